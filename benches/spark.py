"""Speed of the Spark connector: read beside a bare source, write beside put_many and a bare sink,
in one run.

    python benches/spark.py --count 2000000 --nodes 3
    python benches/spark.py --streaming 60 --rate 100000      # seconds, messages a second
    python benches/spark.py --kafka                           # beside Spark's Kafka source

The bare source is a Python data source that yields record batches of the same shape from memory,
and the bare sink one that drops those that it is given: what Spark's own way with Python costs.
`stage` is what a write does in the cluster, without Spark: as many processes stage record batches
that they have in memory, then one commits. Every figure is the best of `--rounds`. CPU time, of all
processes and of each kind, says more than a rate on a machine that does other things.

`--streaming`: see spark_streaming.py.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from multiprocessing.queues import SimpleQueue
from multiprocessing.synchronize import Barrier
from pathlib import Path

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession

import bare_spark
import kafka_peer
import mirrorq
import spark_streaming
from bare_spark import BATCH, PROCESSES, SIZE, Bare
from cpu_by_kind import KINDS, Stopwatch, nodes
from mirrorq import bulk
from mirrorq.bulk.staging import StagedPart
from mirrorq.client.client import Client


def put(endpoints: str, queue: str, count: int, barrier: Barrier) -> None:
    """One process's put_many, each time both sides come to the barrier."""
    with mirrorq.connect(endpoints) as client, client.queue(queue) as target:
        bodies = [b"x" * SIZE] * BATCH
        while True:
            barrier.wait()
            puts = [target.put_many(bodies) for _ in range(count // BATCH)]
            for one in puts:
                one.result(600)
            barrier.wait()


class Putters:
    """Processes that put when they are told: their start is no part of it, as that of Spark's
    workers is none."""

    def __init__(self, work: Callable[..., None], given: Sequence[object]) -> None:
        context = multiprocessing.get_context("spawn")
        self._barrier = context.Barrier(PROCESSES + 1)
        self._running = [
            context.Process(target=work, args=(*given, self._barrier)) for _ in range(PROCESSES)
        ]
        for process in self._running:
            process.start()

    def put(self) -> None:
        self._barrier.wait()
        self._barrier.wait()

    def end(self) -> None:
        for process in self._running:
            process.kill()
            process.join()


def stage(
    endpoints: str, queue: str, count: int, parts: SimpleQueue[StagedPart], barrier: Barrier
) -> None:
    """One process's part of staged versions, one each time both sides come to the barrier."""
    values = pa.array([b"x" * SIZE] * BATCH, pa.binary())
    _, offsets, data = values.buffers()
    with mirrorq.connect(endpoints) as client:
        for version in itertools.count():
            barrier.wait()
            with bulk.staged(client, "bench", version, queue, run="bench") as staged:
                task = staged.attempt(os.getpid(), 0)
                for _ in range(count // BATCH):
                    task.put_column(memoryview(offsets)[: 4 * (BATCH + 1)], data)
                parts.put(task.finish(600))
            barrier.wait()


class Stagers(Putters):
    """Processes that stage when they are told, for a commit of this one."""

    def __init__(self, client: Client, endpoints: str, queue: str, count: int) -> None:
        self._client, self._queue = client, queue
        self._parts: SimpleQueue[StagedPart] = multiprocessing.get_context("spawn").SimpleQueue()
        self._version = 0
        super().__init__(stage, (endpoints, queue, count, self._parts))

    def put(self) -> None:
        super().put()
        parts = [self._parts.get() for _ in range(PROCESSES)]
        with bulk.staged(self._client, "bench", self._version, self._queue, run="bench") as staged:
            staged.commit(parts, 600)
        self._version += 1


def consume(frame: DataFrame) -> int:
    """Read every value; return how many there were."""
    row = frame.selectExpr("count(*) AS n", "sum(length(value)) AS size").first()
    assert row.size == row.n * SIZE
    return int(row.n)


class Figures:
    """What each way took, the best of its rounds."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._took: dict[str, list[float]] = {}
        self._cpu: dict[str, list[dict[str, float]]] = {}

    def run(self, name: str, work: Callable[[], object], before: Callable[[], object]) -> None:
        before()
        watch, began = Stopwatch(), time.perf_counter()
        work()
        self._took.setdefault(name, []).append(time.perf_counter() - began)
        self._cpu.setdefault(name, []).append(watch.read())

    def rate(self, name: str) -> float:
        """Messages a second."""
        return self._count / min(self._took[name])

    def cpu_us(self, name: str) -> dict[str, float]:
        """Microseconds of CPU time a message by kind, in the round that took least of it."""
        least = min(self._cpu[name], key=lambda spent: sum(spent.values()))
        return {kind: spent / self._count * 1e6 for kind, spent in least.items()}

    def show(self, ratios: Sequence[tuple[str, str]]) -> None:
        kinds = "".join(f"{kind:>8}" for kind in KINDS)
        print(f"{'':12} {'messages/s':>12} {'CPU us/message':>15}  of which{kinds}")
        for name in self._took:
            cpu = self.cpu_us(name)
            parts = "".join(f"{cpu[kind]:8.2f}" for kind in KINDS)
            total = sum(cpu.values())
            print(f"{name:12} {self.rate(name):12,.0f} {total:15.2f}  {'':8}{parts}")
        for one, other in ratios:
            if one in self._took and other in self._took:
                ratio = self.rate(one) / self.rate(other)
                cpu_ratio = sum(self.cpu_us(other).values()) / sum(self.cpu_us(one).values())
                print(f"{one} / {other}: {ratio:.2f} (by CPU time {cpu_ratio:.2f})")


def nothing() -> None:
    pass


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=2_000_000)
    parser.add_argument("--nodes", type=int, default=3, choices=(1, 3))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--streaming", type=int, metavar="SECONDS", help="streaming, so long")
    parser.add_argument("--rate", type=int, default=100_000, help="messages a second")
    parser.add_argument("--kafka", action="store_true", help="beside Spark's own Kafka source")
    given = parser.parse_args()
    count = given.count // (BATCH * PROCESSES) * BATCH * PROCESSES
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.master(f"local[{PROCESSES}]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.ui.showConsoleProgress", "false")
    builder = builder.config("spark.python.unix.domain.socket.enabled", "true")
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        kafka = None
        if given.kafka:
            try:
                jars = kafka_peer.connector_jars()
                broker = stack.enter_context(kafka_peer.Brokers(Path(folder), PROCESSES))
                broker.wait_ready()
                builder, kafka = builder.config("spark.jars", jars), broker.endpoints[0]
            except kafka_peer.NotToBeHad as error:
                print(f"Spark's Kafka source does not run beside: {error}")
        spark = builder.config("spark.log.level", "ERROR").getOrCreate()
        # Spark's Python processes find no modules of this folder.
        for module in (bare_spark, spark_streaming):
            cloudpickle.register_pickle_by_value(module)
        spark.dataSource.register(Bare)
        started, endpoints = nodes(Path(folder), given.nodes)
        try:
            if given.streaming:
                spark_streaming.stream(spark, endpoints, given.rate, given.streaming)
            else:
                measure(spark, endpoints, count, given.rounds, kafka)
        finally:
            for process in started:
                process.kill()
                process.communicate()
            spark.stop()


def measure(
    spark: SparkSession, endpoints: str, count: int, rounds: int, kafka: str | None
) -> None:
    """All ways in turn, so that what else the machine does hits them alike; the first round, in
    which Spark warms up, does not count."""
    with mirrorq.connect(endpoints) as client:
        written, was_put, staged = (client.queue(name) for name in ("written", "put", "staged"))
        each = count // PROCESSES
        putters = Putters(put, (endpoints, "put", each))
        stagers = Stagers(client, endpoints, "staged", each)
        reader = spark.read.format("mirrorq").options(endpoints=endpoints, queue="put")
        reader = reader.options(columns="value", minPartitions=PROCESSES)
        bare = spark.read.format("bare").option("count", count).load()
        rows = spark.range(0, count, 1, PROCESSES).selectExpr(f"repeat('x', {SIZE}) AS value")
        writer = rows.write.format("mirrorq").mode("append")
        writer = writer.options(endpoints=endpoints, queue="written")
        sink = rows.write.format("bare").mode("append")
        try:
            figures = Figures(count)
            for turn in range(rounds + 1):
                if turn == 1:
                    figures = Figures(count)
                figures.run("put_many", putters.put, was_put.purge)
                figures.run("bare", lambda: consume(bare), nothing)
                figures.run("read", lambda: consume(reader.load()), nothing)
                figures.run("sink", sink.save, nothing)
                figures.run("stage", stagers.put, staged.purge)
                figures.run("write", writer.save, written.purge)
                if kafka is not None:
                    run_kafka(spark, rows, kafka, f"round{turn}", figures)
        finally:
            putters.end()
            stagers.end()
    ratios = [("read", "bare"), ("write", "put_many"), ("write", "sink"), ("stage", "put_many")]
    figures.show([*ratios, ("read", "kafka read"), ("write", "kafka write")])
    print(f"load of the machine, means of 1, 5 and 15 minutes: {os.getloadavg()}")


def run_kafka(
    spark: SparkSession, rows: DataFrame, endpoint: str, topic: str, figures: Figures
) -> None:
    """The same rows through Spark's own Kafka source: into a new topic, and out of it."""
    given = {"kafka.bootstrap.servers": endpoint}
    writer = rows.write.format("kafka").options(**given, topic=topic)
    figures.run("kafka write", writer.save, nothing)
    reader = spark.read.format("kafka").options(**given, subscribe=topic)
    figures.run("kafka read", lambda: consume(reader.load()), nothing)


if __name__ == "__main__":
    main()
