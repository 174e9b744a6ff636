"""One course of a Spark application whose executors are processes: at_scale.py MASTER COURSE GIVEN.

GIVEN is a JSON object: `endpoints`, `queue`, `folder`, and `settings` for the session. The course
prints one JSON line of what came of it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import udf
from pyspark.sql.streaming import DataStreamReader, DataStreamWriter

COUNT = 60_000
"""Rows: some chunks of each task are staged when one dies half-way."""
WAIT_S = 300.0


def executor() -> int:
    """The process that this Python worker's executor is: the parent of the worker's parent."""
    parent = Path(f"/proc/{os.getppid()}/stat").read_text()
    return int(parent.rpartition(")")[2].split()[1])


def mark(folder: str, what: str) -> None:
    """Note what happened, across processes."""
    Path(folder, what).touch()


def wait_for(folder: str, what: str) -> None:
    end = time.monotonic() + WAIT_S
    while not Path(folder, what).exists():
        if time.monotonic() > end:
            raise TimeoutError(f"{what} never came")
        time.sleep(0.05)


class Course:
    """A session, and one queue."""

    def __init__(self, master: str, given: dict[str, Any]) -> None:
        self.folder: str = given["folder"]
        self.options = {one: given[one] for one in ("endpoints", "queue")} | {"timeout": "120s"}
        builder = SparkSession.builder.master(master).appName("at scale")
        for name, value in given["settings"].items():
            builder = builder.config(name, value)
        self.spark = builder.getOrCreate()

    def read(self, **options: object) -> DataFrame:
        given = {one: str(value) for one, value in options.items()}
        return self.spark.read.format("mirrorq").options(**self.options, **given).load()

    def write(self, rows: Any) -> None:
        """Numbers into the queue."""
        frame = rows.map(lambda number: (str(number),)).toDF("value string")
        frame.write.format("mirrorq").mode("append").options(**self.options).save()

    def numbers(self, change: Callable[[Iterator[int]], Iterable[int]]) -> Any:
        return self.spark.sparkContext.parallelize(range(COUNT), 2).mapPartitions(change)

    def stream(self, frame: DataFrame) -> list[int]:
        """All that is there, into Parquet; how many rows came, and how many different ones. A query
        is begun again when only its Python process was too slow to start."""
        out = f"{self.folder}/out"
        writer: DataStreamWriter = frame.writeStream.format("parquet").trigger(availableNow=True)
        writer = writer.option("checkpointLocation", f"{self.folder}/checkpoint")
        while True:
            query = writer.option("path", out).start()
            try:
                query.awaitTermination(WAIT_S)
                break
            except PySparkException as error:
                if "connect back" not in str(error):
                    raise
        count = self.spark.read.parquet(out).selectExpr("count(*)", "count(DISTINCT value)")
        return list(count.first())

    def drain(self) -> DataStreamReader:
        """A stream that takes what Spark has committed."""
        return self.spark.readStream.format("mirrorq").options(**self.options, mode="drain")

    # --- Courses ----------------------------------------------------------------------------

    def all_ways(self) -> object:
        """Write, read, drain to Parquet by a stream; how many processes took part."""
        self.write(self.numbers(lambda rows: rows))
        found = self.read(columns="value", minPartitions=8)
        executors = found.rdd.mapPartitions(lambda _: [executor()]).distinct().count()
        stream = self.drain().load()
        read = found.count()
        return {"read": read, "executors": executors, "streamed": self.stream(stream)}

    def reordered(self) -> object:
        """The first attempts fail when they have staged a part; the others see other orders."""
        folder = self.folder

        def change(rows: Iterator[int]) -> Iterator[int]:
            context = TaskContext.get()
            listed = sorted(rows, reverse=context.attemptNumber() > 0)
            for count, row in enumerate(listed):
                if context.attemptNumber() == 0 and count == 25_000:
                    mark(folder, f"failed-{context.partitionId()}")
                    raise RuntimeError("the first attempt fails")
                yield row

        self.write(self.numbers(change))
        return sorted(path.name for path in Path(folder).glob("failed-*"))

    def killed_executor(self) -> object:
        """An executor dies when its task has staged a part: with it go shuffled rows, which are
        made again, in another order."""
        folder = self.folder

        def change(rows: Iterator[int]) -> Iterator[int]:
            partition = TaskContext.get().partitionId()
            for count, row in enumerate(rows):
                if count == 25_000 and partition == 1 and not Path(folder, "killed").exists():
                    mark(folder, "killed")
                    os.kill(executor(), signal.SIGKILL)
                yield row

        shuffled = self.numbers(lambda rows: rows).repartition(2).mapPartitions(change)
        self.write(shuffled)
        return Path(folder, "killed").exists()

    def killed_in_a_stream(self) -> object:
        """An executor dies in the middle of a batch that a stream reads."""
        folder = self.folder

        @udf("long")
        def passed(sequence: int) -> int:
            if sequence > COUNT // 2 and not Path(folder, "killed").exists():
                mark(folder, "killed")
                os.kill(executor(), signal.SIGKILL)
            return sequence

        self.write(self.numbers(lambda rows: rows))
        stream = self.drain().option("maxOffsetsPerTrigger", COUNT // 4)
        frame = stream.option("columns", "sequence,value").load()
        streamed = self.stream(frame.select(passed("sequence").alias("sequence"), "value"))
        return {"killed": Path(folder, "killed").exists(), "streamed": streamed}

    def speculative_stream(self) -> object:
        """A task of a stream that reads is slow half way; a second try beside it reads the same
        again, and one of them counts."""
        folder = self.folder

        @udf("long")
        def passed(sequence: int) -> int:
            context = TaskContext.get()
            is_first = context.attemptNumber() == 0 and context.partitionId() == 1
            if is_first and sequence % 1000 == 0 and not Path(folder, "slow").exists():
                mark(folder, "slow")
                wait_for(folder, "again")
            if context.attemptNumber() == 1:
                mark(folder, "again")
            return sequence

        self.write(self.numbers(lambda rows: rows))
        stream = self.drain().option("minPartitions", 4)
        frame = stream.option("columns", "sequence,value").load()
        streamed = self.stream(frame.select(passed("sequence").alias("sequence"), "value"))
        return {"again": Path(folder, "again").exists(), "streamed": streamed}

    def retried_read(self) -> object:
        """First tries of tasks fail in the middle of what they read; the others read it again."""
        folder = self.folder

        @udf("long")
        def passed(sequence: int) -> int:
            context = TaskContext.get()
            if context.attemptNumber() == 0 and sequence % 10_000 == 5_000:
                mark(folder, f"failed-{context.partitionId()}")
                raise RuntimeError("the first attempt fails")
            return sequence

        self.write(self.numbers(lambda rows: rows))
        frame = self.read(columns="sequence,value", minPartitions=4)
        frame = frame.select(passed("sequence").alias("sequence"), "value")
        frame.write.parquet(f"{folder}/out")
        out = self.spark.read.parquet(f"{folder}/out")
        counts = out.selectExpr("count(*)", "count(DISTINCT value)").first()
        failed = len(list(Path(folder).glob("failed-*")))
        return {"failed": failed, "read": list(counts)}

    def drained(self) -> object:
        """A block takes a part; another that fails gives its part back."""
        import pyspark_mirrorq

        self.write(self.numbers(lambda rows: rows))
        given = (self.spark, self.options["endpoints"], self.options["queue"])
        with pyspark_mirrorq.drain(*given, limit=COUNT // 3) as drained:
            count = drained.df.select("value").distinct().count()
        try:
            with pyspark_mirrorq.drain(*given) as failing:
                rest = failing.df.count()
                raise RuntimeError("the job fails")
        except RuntimeError:
            pass
        return {"count": count, "acked": drained.acked, "rest": rest}

    def speculative(self) -> object:
        """The first try of a task is slow once it has staged a part; the one beside it wins."""
        return self._speculate(is_late=False)

    def speculative_and_late(self) -> object:
        """The same, but the slow one goes on when the other has sent all its rows: both write to
        the end, or one is killed on the way."""
        return self._speculate(is_late=True)

    def _speculate(self, is_late: bool) -> object:
        folder = self.folder

        def change(rows: Iterator[int]) -> Iterator[int]:
            context = TaskContext.get()
            is_slow = context.attemptNumber() == 0 and context.partitionId() == 1
            name = f"{context.partitionId()}-{context.attemptNumber()}"
            for count, row in enumerate(rows):
                if is_slow and count == 25_000:
                    mark(folder, f"slow-{name}")
                    wait_for(folder, "sent-1-1" if is_late else "never")
                yield row
            mark(folder, f"sent-{name}")

        self.write(self.numbers(change))
        return sorted(path.name for path in Path(folder).glob("s*-1-*"))


def main() -> None:
    master, name, given = sys.argv[1:]
    course = Course(master, json.loads(given))
    try:
        found = getattr(course, name)()
    finally:
        course.spark.stop()
    print(json.dumps({"found": found}), flush=True)


if __name__ == "__main__":
    main()
