"""Streaming, for `spark.py --streaming SECONDS --rate MESSAGES`: what each micro-batch takes, and
what of it is mirrorq's.

Four queries, one after the other, each with a trigger of one second:

- `source`: a producer keeps its pace, a query follows it into a sink that does nothing;
- `bare source`: the same with a Python source of that pace that makes messages in memory;
- `sink`: that source into a queue;
- `bare sink`: that source into a Python sink that drops what it is given.

Each line is a micro-batch: when it began, its rows, what its trigger took, and what of that passed
within the connector, milliseconds: in latestOffset (acks of the batch before with it), partitions
and commit of the driver, and in the read, or write, of the task that took longest. That is what
mirrorq adds, whatever else the machine does; the difference of the medians to the bare ones is the
same seen from outside. `waiting` is how many messages were in the queue when the batch was made:
at a rate that is sustained it stays what arrives between two triggers.

A bare query warms Spark up before, and micro-batches of the first seconds of each do not count.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import pyarrow as pa
from attrs import frozen
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import DataStreamWriter, StreamingQuery

import mirrorq
from bare_spark import SIZE
from cpu_by_kind import KINDS, Stopwatch
from mirrorq import bulk
from pyspark_mirrorq import DefaultSource
from pyspark_mirrorq.columns import checked_columns
from pyspark_mirrorq.options import parse
from pyspark_mirrorq.stream_reader import QueueStream
from pyspark_mirrorq.writer import StreamWriter

__all__ = ["stream"]

WARM_S = 15
WARM_COUNT = 5
"""Micro-batches do not count before a query has run so long and made so many: its Python processes
start in the first ones."""
START_S = 300.0
ASKED_MS = 1000
"""What may be added to a micro-batch."""
DRIVERS = ("latestOffset", "partitions", "commit")
TASKS = ("read", "write")


# --- What passes within the connector -----------------------------------------------------


def note(folder: str, call: str, began: float) -> None:
    """A call has ended: a line in a file of this process."""
    now = time.time()
    with Path(folder, str(os.getpid())).open("a") as file:
        file.write(json.dumps({"at": now, "call": call, "took": now - began}) + "\n")


def notes(folder: str) -> list[dict[str, Any]]:
    return [json.loads(line) for path in Path(folder).iterdir() for line in path.open()]


class TimedStream(QueueStream):  # type: ignore[misc]
    """Notes how long Spark waits for it."""

    folder = ""

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "folder": self.folder}

    def latestOffset(self, start: Any = None, limit: object = None) -> Any:  # noqa: N802
        began = time.time()
        end = super().latestOffset(start, limit)
        note(self.folder, "latestOffset", began)
        return end

    def partitions(self, start: Any, end: Any) -> Any:
        began = time.time()
        found = super().partitions(start, end)
        note(self.folder, "partitions", began)
        return found

    def commit(self, end: Any) -> None:
        began = time.time()
        super().commit(end)
        note(self.folder, "commit", began)

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        batches, own = super().read(partition), 0.0
        while True:
            began = time.time()
            batch = next(batches, None)
            own += time.time() - began
            if batch is None:
                break
            yield batch
        note(self.folder, "read", time.time() - own)


class TimedWriter(StreamWriter):  # type: ignore[misc]
    """Notes how long Spark waits for it; not how long it waits for rows."""

    folder = ""

    def write(self, iterator: Iterator[Any]) -> Any:
        began, waited = time.time(), 0.0

        def rows() -> Iterator[Any]:
            nonlocal waited
            while True:
                asked = time.time()
                row = next(iterator, None)
                waited += time.time() - asked
                if row is None:
                    return
                yield row

        part = super().write(rows())
        note(self.folder, "write", began + waited)
        return part

    def commit(self, messages: Sequence[Any], batchId: int) -> None:  # noqa: N803
        began = time.time()
        super().commit(messages, batchId)
        note(self.folder, "commit", began)


class Timed(DefaultSource):  # type: ignore[misc]
    """mirrorq, timed; option `notes` is the folder for that."""

    @classmethod
    def name(cls) -> str:
        return "timed"

    def __init__(self, options: Mapping[str, str]) -> None:
        given = dict(options)
        self._folder = given.pop("notes")
        super().__init__(given)

    def streamReader(self, schema: Any) -> TimedStream:  # noqa: N802
        options = parse(self.options)
        reader = TimedStream(options, checked_columns(options, schema))
        reader.folder = self._folder
        return reader

    def streamWriter(self, schema: Any, overwrite: bool) -> TimedWriter:  # noqa: N802
        writer = TimedWriter(parse(self.options), schema)
        writer.folder = self._folder
        return writer


# --- Queries ------------------------------------------------------------------------------


@frozen
class MicroBatch:
    """What Spark tells of one."""

    began: float
    """Seconds since 1970."""
    rows: int
    phases: Mapping[str, int]
    """Milliseconds."""
    waiting: int | None

    @property
    def took_ms(self) -> int:
        return self.phases["triggerExecution"]


def micro_batch(progress: Mapping[str, Any]) -> MicroBatch:
    began = datetime.fromisoformat(progress["timestamp"]).timestamp()
    latest = progress["sources"][0].get("latestOffset") or {}
    depths = [one["depth"] for one in latest.values() if isinstance(one, dict) and "depth" in one]
    waiting = sum(depths) if depths else None
    return MicroBatch(began, progress["numInputRows"], progress["durationMs"], waiting)


def begun(writer: DataStreamWriter) -> StreamingQuery:
    """Start a query and wait for its first micro-batch; again where only a Python process was too
    slow to start, for which Spark waits 10 seconds."""
    while True:
        query = writer.start()
        while query.isActive and not query.recentProgress:
            time.sleep(0.2)
        if "connect back" not in str(query.exception()):
            return query


def follow(
    writer: DataStreamWriter,
    seconds: float,
    begin: Callable[[], object] = lambda: None,
    each: Callable[[], object] = lambda: None,
) -> tuple[list[MicroBatch], dict[str, float]]:
    """The micro-batches of a query with a trigger of a second, and CPU seconds a second by kind.

    Args:
        begin: called when its first micro-batch is over.
        each: called now and then.
    """
    query = begun(writer.trigger(processingTime="1 second"))
    try:
        begin()
        began, counted = time.time(), 0.0
        found: dict[int, MicroBatch] = {}
        watch = Stopwatch()
        while not counted or time.time() < counted + seconds:
            time.sleep(0.5)
            if not counted and len(found) >= WARM_COUNT and time.time() >= began + WARM_S:
                watch, counted = Stopwatch(), time.time()
            if not counted and time.time() >= began + START_S:
                raise SystemExit(f"only {len(found)} micro-batches in {START_S:.0f} s")
            for progress in query.recentProgress:
                found[progress["batchId"]] = micro_batch(json.loads(progress.json))
            each()
            if query.exception() is not None:
                raise query.exception()  # type: ignore[misc]
        spent = watch.read()
    finally:
        query.stop()
    ordered = [one for _, one in sorted(found.items())]
    kept = [one for one in ordered if one.rows and one.began >= counted]
    return kept, {kind: each / seconds for kind, each in spent.items()}


def own_ms(batches: Sequence[MicroBatch], noted: Sequence[Mapping[str, Any]]) -> list[list[float]]:
    """For each micro-batch what passed in the driver's calls, in `DRIVERS`' order, and in the task
    that took longest."""
    found = []
    for one, batch in enumerate(batches):
        is_last = one + 1 == len(batches)
        end = batch.began + batch.took_ms / 1000 if is_last else batches[one + 1].began
        # What ends within the time of a batch is of this one: the next one begins later.
        within = [call for call in noted if batch.began <= call["at"] < end]
        parts = [
            sum(call["took"] for call in within if call["call"] == name) * 1000 for name in DRIVERS
        ]
        tasks = [call["took"] * 1000 for call in within if call["call"] in TASKS]
        found.append([*parts, max(tasks, default=0.0)])
    return found


def report(
    name: str,
    batches: Sequence[MicroBatch],
    spent: Mapping[str, float],
    noted: Sequence[Mapping[str, Any]] = (),
) -> None:
    """Print a query's micro-batches, and what they come to."""
    if len(batches) < 2:
        print(f"\n{name}: {len(batches)} micro-batches after those that warm it up: run longer")
        return
    first, last = batches[0], batches[-1]
    own = own_ms(batches, noted)
    added = [sum(parts) for parts in own]
    if noted:
        print(f"\n{name:6} {'rows':>8} {'trigger ms':>10}  mirrorq's ms: ", end="")
        print(*(f"{one:>12}" for one in (*DRIVERS, "task", "all", "waiting")))
        for batch, parts, whole in zip(batches, own, added, strict=True):
            row = f"{batch.began - first.began:5.1f}s {batch.rows:8,} {batch.took_ms:10,}"
            cells = "".join(f" {part:12.0f}" for part in (*parts, whole))
            print(f"{row}  {'':14}{cells} {'' if batch.waiting is None else batch.waiting:>12}")
    rate = sum(batch.rows for batch in batches[1:]) / (last.began - first.began)
    took = [batch.took_ms for batch in batches]
    print(
        f"\n{name}: {rate:,.0f} messages/s in {len(batches)} micro-batches; "
        f"trigger {middle(took)} ms"
    )
    phases = sorted({phase for batch in batches for phase in batch.phases})
    told = (f"{phase} {middle([one.phases.get(phase, 0) for one in batches])}" for phase in phases)
    print(f"    of which, ms: {', '.join(told)}")
    if noted:
        print(f"    within mirrorq: {middle(added)} ms (asked for: less than {ASKED_MS})")
    print(f"    CPU seconds a second: {', '.join(f'{kind} {spent[kind]:.2f}' for kind in KINDS)}")


def middle(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.0f} (longest {max(values):.0f})"


def put_at(endpoints: str, queue: str, rate: int, is_over: Event) -> None:
    """A producer that keeps its pace until it is told; what it could not it says."""
    with mirrorq.connect(endpoints) as client, client.queue(queue) as target:
        bodies = [b"x" * SIZE] * (rate // 10)
        began = time.monotonic()
        put = []
        for turn in itertools.count():
            if is_over.is_set():
                break
            time.sleep(max(began + turn / 10 - time.monotonic(), 0))
            put.append(target.put_many(bodies))
        for one in put:
            one.result(600)
        took = time.monotonic() - began
    print(f"the producer put {len(put) * len(bodies) / took:,.0f} messages/s", flush=True)


def stream(spark: SparkSession, endpoints: str, rate: int, seconds: int) -> None:
    """All four queries."""
    spark.dataSource.register(Timed)
    # A query that is stopped in the middle of a micro-batch tells at length of its tasks.
    spark.sparkContext.setLogLevel("FATAL")
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        client = stack.enter_context(mirrorq.connect(endpoints))
        for name in ("source", "sink"):
            Path(folder, name).mkdir()

        def writing(frame: DataFrame, name: str) -> DataStreamWriter:
            writer = frame.writeStream.format("noop")
            return writer.option("checkpointLocation", f"{folder}/checkpoints/{name}")

        bare = spark.readStream.format("bare").option("rate", rate).load()
        follow(writing(bare, "warm"), 1)

        queue = client.queue("stream")
        # So that the query has begun, and nothing gathers before it has.
        queue.put(b"x" * SIZE).result(60)
        given = {"endpoints": endpoints, "queue": "stream", "columns": "value", "mode": "drain"}
        reader = spark.readStream.format("timed").options(**given, notes=f"{folder}/source")
        context = multiprocessing.get_context("spawn")
        is_over = context.Event()
        producer = context.Process(target=put_at, args=(endpoints, "stream", rate, is_over))
        stack.callback(lambda: producer.is_alive() and producer.kill())
        source, spent = follow(writing(reader.load(), "source"), seconds, producer.start)
        behind = bulk.extent(queue).messages
        is_over.set()
        producer.join()
        report("source", source, spent, notes(f"{folder}/source"))
        print(f"    not committed at the end: {behind:,} messages, of {behind / rate:.1f} s")
        queue.delete()

        without, spent = follow(writing(bare, "bare"), seconds)
        report("bare source", without, spent)

        written = client.queue("written")
        given = {"endpoints": endpoints, "queue": "written", "notes": f"{folder}/sink"}
        writer = writing(bare, "sink").format("timed").options(**given)
        sink, spent = follow(writer, seconds, each=written.purge)
        report("sink", sink, spent, notes(f"{folder}/sink"))

        dropped, spent = follow(writing(bare, "dropped").format("bare"), seconds)
        report("bare sink", dropped, spent)
        print("\nadded to a micro-batch, by medians: ", end="")
        print(f"source {added_ms(source, without)}, sink {added_ms(sink, dropped)}", end="")
        print(f" (asked for: less than {ASKED_MS} ms)")
        print(f"load of the machine, means of 1, 5 and 15 minutes: {os.getloadavg()}")


def added_ms(own: Sequence[MicroBatch], bare: Sequence[MicroBatch]) -> str:
    if min(len(own), len(bare)) < 2:
        return "unknown"
    medians = [statistics.median(one.took_ms for one in some) for some in (own, bare)]
    return f"{medians[0] - medians[1]:.0f} ms"
