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

Streaming: a producer keeps its pace, a query with a trigger of one second follows it into a sink
that does nothing, then the same with a bare source of that pace. A bare source warms Spark up
before, and micro-batches of the first seconds of each query do not count.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing.queues import SimpleQueue
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)

import kafka_peer
import mirrorq
from mirrorq.client import Client
from mirrorq.demo.ports import free_ports
from mirrorq.staged import StagedPart

SIZE = 100
"""Bytes of a message."""
BATCH = 10_000
"""Messages of one put_many and of one record batch."""
PROCESSES = 2
WARM_S = 15
"""Micro-batches that began earlier do not count."""
NODE = """
import json, sys
import mirrorq
name, path, peers = sys.argv[1:]
with mirrorq.Node(name, path=path, peers=json.loads(peers)) as node:
    node.wait_ready(60)
    print("ready", flush=True)
    sys.stdin.read()
"""


class Bare(DataSource):  # type: ignore[misc]
    """Record batches from memory."""

    @classmethod
    def name(cls) -> str:
        return "bare"

    def schema(self) -> str:
        return "value binary"

    def reader(self, schema: object) -> DataSourceReader:
        return BareReader(int(self.options["count"]))

    def streamReader(self, schema: object) -> BareStream:  # noqa: N802
        return BareStream(int(self.options["rate"]))

    def writer(self, schema: object, overwrite: bool) -> BareWriter:
        return BareWriter()


class Counted(WriterCommitMessage):  # type: ignore[misc]
    def __init__(self, count: int) -> None:
        self.count = count


class BareWriter(DataSourceArrowWriter):  # type: ignore[misc]
    """Drops what it is given."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Counted:
        return Counted(sum(batch.num_rows for batch in iterator))

    def commit(self, messages: Sequence[Counted | None]) -> None:
        pass

    def abort(self, messages: Sequence[Counted | None]) -> None:
        pass


class BareReader(DataSourceReader):  # type: ignore[misc]
    def __init__(self, count: int) -> None:
        self._count = count

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(self._count // PROCESSES) for _ in range(PROCESSES)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        values = pa.array([b"x" * SIZE] * BATCH, pa.binary())
        batch = pa.RecordBatch.from_arrays([values], ["value"])
        for _ in range(partition.value // BATCH):
            yield batch


class BareStream(DataSourceStreamReader):  # type: ignore[misc]
    """So many messages a second, from memory."""

    def __init__(self, rate: int) -> None:
        self._rate = rate
        self._began = time.time()

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        return {"seq": 0}

    def latestOffset(self, start: object = None, limit: object = None) -> dict[str, int]:  # noqa: N802
        count = int((time.time() - self._began) * self._rate)
        return {"seq": count // BATCH * BATCH}

    def partitions(self, start: Mapping[str, int], end: Mapping[str, int]) -> list[InputPartition]:
        count = (end["seq"] - start["seq"]) // BATCH
        parts = [count // PROCESSES + (one < count % PROCESSES) for one in range(PROCESSES)]
        return [InputPartition(one * BATCH) for one in parts if one]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        values = pa.array([b"x" * SIZE] * BATCH, pa.binary())
        batch = pa.RecordBatch.from_arrays([values], ["value"])
        for _ in range(partition.value // BATCH):
            yield batch

    def commit(self, end: object) -> None:
        pass


def nodes(folder: Path, count: int) -> tuple[list[subprocess.Popen[str]], str]:
    """Start a cluster; return its processes and endpoints."""
    names = "abc"[:count]
    ports = free_ports(count)
    peers = {name: f"tcp://127.0.0.1:{port}" for name, port in zip(names, ports, strict=True)}
    started = [
        subprocess.Popen(
            [sys.executable, "-c", NODE, name, str(folder / name), json.dumps(peers)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for name in names
    ]
    for process in started:
        assert process.stdout is not None
        process.stdout.readline()
    return started, ",".join(peers.values())


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
            with client.staged("bench", version, queue, run="bench") as staged:
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
        with self._client.staged("bench", self._version, self._queue, run="bench") as staged:
            staged.commit(parts, 600)
        self._version += 1


def consume(frame: DataFrame) -> int:
    """Read every value; return how many there were."""
    row = frame.selectExpr("count(*) AS n", "sum(length(value)) AS size").first()
    assert row.size == row.n * SIZE
    return int(row.n)


KINDS = ("nodes", "JVM", "Python", "rest")
"""Whose CPU time: nodes, Spark's JVM, its Python processes, and this one with those that put."""


def ticks() -> dict[int, tuple[str, int, str, int]]:
    """(kind, CPU time, kind of those that it has waited for, their CPU time) of each process that
    this one has started, and of itself."""
    parents, times, names = {}, {}, {}
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            pid = int(entry.name)
            names[pid] = (entry / "cmdline").read_text()
            parents[pid] = int(fields[1])
            times[pid] = (sum(map(int, fields[11:13])), sum(map(int, fields[13:15])))
    found = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    spent = {}
    for pid in found & times.keys():
        own, ended = times[pid]
        if "java" in names[pid].partition("\0")[0]:
            # What it has started and waited for are Python processes.
            spent[pid] = ("JVM", own, "Python", ended)
        else:
            is_node, is_spark = NODE in names[pid], "pyspark" in names[pid]
            kind = "nodes" if is_node else "Python" if is_spark else "rest"
            spent[pid] = (kind, own, kind, ended)
    return spent


class Stopwatch:
    """CPU time by kind of process since it was made."""

    def __init__(self) -> None:
        self._before = ticks()

    def read(self) -> dict[str, float]:
        """Seconds."""
        spent, after = dict.fromkeys(KINDS, 0), ticks()
        for pid, (kind, own, ended_kind, ended) in after.items():
            before = self._before.get(pid, ("", 0, "", 0))
            spent[kind] += own - before[1]
            spent[ended_kind] += ended - before[3]
        for pid in self._before.keys() - after.keys():
            # It counted with whoever waited for it, all of its life; not every one is waited for.
            kind, own, _, ended = self._before[pid]
            spent[kind] -= own + ended
        return {kind: max(one, 0) / os.sysconf("SC_CLK_TCK") for kind, one in spent.items()}


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
                broker = stack.enter_context(kafka_peer.Broker(Path(folder), PROCESSES))
                broker.wait_ready()
                builder, kafka = builder.config("spark.jars", jars), broker.endpoint
            except kafka_peer.NotToBeHad as error:
                print(f"Spark's Kafka source does not run beside: {error}")
        spark = builder.config("spark.log.level", "ERROR").getOrCreate()
        spark.dataSource.register(Bare)
        started, endpoints = nodes(Path(folder), given.nodes)
        try:
            if given.streaming:
                stream(spark, endpoints, given.rate, given.streaming)
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


# --- Streaming ----------------------------------------------------------------------------


def put_at(endpoints: str, queue: str, rate: int, seconds: float) -> None:
    """A producer that keeps its pace; what it could not it says."""
    with mirrorq.connect(endpoints) as client, client.queue(queue) as target:
        bodies = [b"x" * SIZE] * (rate // 10)
        began = time.monotonic()
        put = []
        for turn in range(int(seconds * 10)):
            time.sleep(max(began + turn / 10 - time.monotonic(), 0))
            put.append(target.put_many(bodies))
        for one in put:
            one.result(600)
        took = time.monotonic() - began
    print(f"the producer put {len(put) * len(bodies) / took:,.0f} messages/s", flush=True)


def follow(
    frame: DataFrame, folder: str, seconds: float, begin: Callable[[], object] = nothing
) -> list[dict[str, Any]]:
    """Progress of the micro-batches of a query with a trigger of a second, from its first one on,
    after which `begin` is called."""
    query = (
        frame.writeStream.format("noop")
        .option("checkpointLocation", folder)
        .trigger(processingTime="1 second")
        .start()
    )
    while not any(progress["numInputRows"] for progress in query.recentProgress):
        assert query.exception() is None, query.exception()
        time.sleep(0.2)
    begin()
    began = time.monotonic()
    found: dict[int, dict[str, Any]] = {}
    while time.monotonic() < began + seconds:
        assert query.exception() is None, query.exception()
        for progress in query.recentProgress:
            number = progress["batchId"]
            if number not in found and progress["numInputRows"]:
                found[number] = {**json.loads(progress.json), "at": time.monotonic() - began}
        time.sleep(0.2)
    query.stop()
    return [one for one in found.values() if one["at"] > WARM_S]


def report(
    name: str, batches: list[dict[str, Any]], spent: Mapping[str, float], seconds: float
) -> float:
    """Print a query's figures; return the median of its micro-batches, ms."""
    if not batches:
        raise SystemExit(f"{name}: no micro-batch in {seconds:.0f} s after {WARM_S} s: run longer")
    took = [one["durationMs"]["triggerExecution"] for one in batches]
    rows = sum(one["numInputRows"] for one in batches[1:])
    between = max(batches[-1]["at"] - batches[0]["at"], 1)
    print(
        f"{name:8} {rows / between:10,.0f} messages/s, "
        f"{len(batches)} micro-batches: median {statistics.median(took):.0f} ms, "
        f"longest {max(took)} ms"
    )
    phases = sorted({phase for one in batches for phase in one["durationMs"]})
    for phase in phases:
        median = statistics.median(one["durationMs"].get(phase, 0) for one in batches)
        print(f"    {phase:20} {median:6.0f} ms")
    cores = ", ".join(f"{kind} {spent[kind] / seconds:.2f}" for kind in KINDS)
    print(f"    CPU seconds a second: {cores}")
    return statistics.median(took)


def stream(spark: SparkSession, endpoints: str, rate: int, seconds: int) -> None:
    """Follow a producer, then a bare source of its pace."""
    with mirrorq.connect(endpoints) as client, tempfile.TemporaryDirectory() as folder:
        queue = client.queue("stream")
        context = multiprocessing.get_context("spawn")
        producer = context.Process(target=put_at, args=(endpoints, "stream", rate, seconds))
        reader = spark.readStream.format("mirrorq").options(endpoints=endpoints, queue="stream")
        bare = spark.readStream.format("bare").option("rate", rate).load()
        follow(bare, f"{folder}/warm", WARM_S)
        # So that the query has begun, and nothing gathers before it has.
        queue.put(b"x" * SIZE).result(60)
        watch = Stopwatch()
        frame = reader.option("columns", "value").load()
        batches = follow(frame, f"{folder}/own", seconds, producer.start)
        behind, spent = queue.extent().messages, watch.read()
        producer.join()
        own = report("mirrorq", batches, spent, seconds)
        watch = Stopwatch()
        batches = follow(bare, f"{folder}/bare", seconds)
        other = report("bare", batches, watch.read(), seconds)
        print(f"not committed at the end: {behind:,} messages, of {behind / rate:.1f} s")
        print(f"added to a micro-batch: {own - other:.0f} ms")
        print(f"load of the machine, means of 1, 5 and 15 minutes: {os.getloadavg()}")


if __name__ == "__main__":
    main()
