"""Speed of the Spark connector: read beside a bare source, write beside put_many, in one run.

    python benches/spark.py --count 2000000 --nodes 3

The bare source is a Python data source that yields record batches of the same shape from memory:
what Spark's own way with a Python source costs. Every figure is the best of `--rounds`.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

import mirrorq
from mirrorq.demo.ports import free_ports

SIZE = 100
"""Bytes of a message."""
BATCH = 10_000
"""Messages of one put_many and of one record batch."""
PROCESSES = 2
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


def put(endpoints: str, queue: str, count: int) -> None:
    """One process's put_many."""
    with mirrorq.connect(endpoints) as client, client.queue(queue) as target:
        bodies = [b"x" * SIZE] * BATCH
        puts = [target.put_many(bodies) for _ in range(count // BATCH)]
        for one in puts:
            one.result(600)


def put_all(endpoints: str, queue: str, count: int) -> None:
    context = multiprocessing.get_context("spawn")
    given = (endpoints, queue, count // PROCESSES)
    running = [context.Process(target=put, args=given) for _ in range(PROCESSES)]
    for process in running:
        process.start()
    for process in running:
        process.join()


def consume(frame: DataFrame) -> int:
    """Read every value; return how many there were."""
    row = frame.selectExpr("count(*) AS n", "sum(length(value)) AS size").first()
    assert row.size == row.n * SIZE
    return int(row.n)


def rate(count: int, rounds: int, work: Callable[[], Any]) -> float:
    """Messages a second, the best of so many rounds."""
    best = float("inf")
    for _ in range(rounds):
        began = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - began)
    return count / best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=2_000_000)
    parser.add_argument("--nodes", type=int, default=3, choices=(1, 3))
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    count = given.count // (BATCH * PROCESSES) * BATCH * PROCESSES
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.master(f"local[{PROCESSES}]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.python.unix.domain.socket.enabled", "true")
    spark = builder.config("spark.log.level", "ERROR").getOrCreate()
    spark.dataSource.register(Bare)
    with tempfile.TemporaryDirectory() as folder:
        started, endpoints = nodes(Path(folder), given.nodes)
        try:
            measure(spark, endpoints, count, given.rounds)
        finally:
            for process in started:
                process.kill()
                process.communicate()
            spark.stop()


def measure(spark: SparkSession, endpoints: str, count: int, rounds: int) -> None:
    with mirrorq.connect(endpoints) as client:
        for name in ("put", "written"):
            client.queue(name).close()
        written, was_put = client.queue("written"), client.queue("put")
        reader = spark.read.format("mirrorq").options(endpoints=endpoints, queue="put")
        reader = reader.options(columns="value", minPartitions=PROCESSES)
        bare = spark.read.format("bare").option("count", count).load()

        def put_anew() -> None:
            was_put.purge()
            put_all(endpoints, "put", count)

        rows = spark.range(0, count, 1, PROCESSES).selectExpr(f"repeat('x', {SIZE}) AS value")
        writer = rows.write.format("mirrorq").mode("append")
        writer = writer.options(endpoints=endpoints, queue="written")
        figures = {"put_many": rate(count, rounds, put_anew)}
        figures["bare"] = rate(count, rounds + 1, lambda: consume(bare))
        figures["read"] = rate(count, rounds + 1, lambda: consume(reader.load()))

        def write_anew() -> None:
            written.purge()
            writer.save()

        figures["write"] = rate(count, rounds, write_anew)
    for name, figure in figures.items():
        print(f"{name:10} {figure:12,.0f} messages/s")
    print(f"read  / bare source  {figures['read'] / figures['bare']:.2f}")
    print(f"write / put_many     {figures['write'] / figures['put_many']:.2f}")


if __name__ == "__main__":
    main()
