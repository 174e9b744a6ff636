"""A task's work: the rows of an attempt, staged; or put, where they have unique keys."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.types import BinaryType, DataType, MapType, StructType

from mirrorq import Client, Confirmation, MirroredQueue, bulk
from mirrorq.bulk.staging import StagedAttempt, StagedPart
from mirrorq.errors import ConfigError
from mirrorq.wire.properties import pack_properties
from pyspark_mirrorq.addresses import Addresses, by_queue
from pyspark_mirrorq.cluster import client_of, handle_on
from pyspark_mirrorq.options import Options

__all__ = ["STAGE_S", "batched", "buffers", "stage"]

STAGE_S = 120.0
"""How long the queue may take to have on disk what a task has staged: a failover fits in."""
CARRIED = ("headers", "message_id", "key", "reply_to", "correlation_id", "content_type")
"""What comes with a body: a message's properties, as `pack_properties` takes them."""
UNIQUE = "unique"
AHEAD_COUNT = 10_000
"""Rows with unique keys that a task has on their way at most."""
ROWS = 1000
"""Rows that are made into one record batch."""


def stage(
    options: Options, transaction: str, version: int, run: str, batches: Iterable[pa.RecordBatch]
) -> StagedPart:
    """A task's work: returns when all of it is on the disk of every member in sync."""
    context = TaskContext.get()
    client = client_of(options, options.endpoints)
    # Which queue decides is no matter of tasks: the driver knows all parts.
    with (
        bulk.staged(client, transaction, version, "", run=run) as staged,
        ExitStack() as opened,
    ):
        attempt = staged.attempt(context.partitionId(), context.taskAttemptId())
        addresses = Addresses(client, options, context.partitionId())
        unique_rows = _UniqueRows(client, options, opened)
        for batch in batches:
            if UNIQUE in batch.schema.names:
                unique_rows.put(batch)
                continue
            for part, rows in addresses.parts(batch):
                _stage_batch(attempt, rows, part)
        unique_rows.wait(0)
        return attempt.finish(STAGE_S)


class _UniqueRows:
    """Puts rows one by one, for their queue looks at each key."""

    def __init__(self, client: Client, options: Options, opened: ExitStack) -> None:
        self._client = client
        self._options = options
        self._opened = opened
        self._handles: dict[str, MirroredQueue] = {}
        self._on_way: deque[Confirmation] = deque()

    def put(self, batch: pa.RecordBatch) -> None:
        for name in ("value", UNIQUE):
            _check_no_nulls(batch, name)
        for queue, rows in by_queue(batch, self._options):
            handle = self._handles.get(queue)
            if handle is None:
                made = handle_on(self._client, queue, self._options.timeout_s)
                handle = self._handles[queue] = self._opened.enter_context(made)
            names = rows.schema.names
            carried = [name for name in CARRIED if name in names]
            columns = [_listed(rows, names, name) for name in ("value", UNIQUE, *carried)]
            for body, key, *values in zip(*columns, strict=True):
                pairs = zip(carried, values, strict=True)
                found = {name: value for name, value in pairs if value is not None}
                data = body.encode() if isinstance(body, str) else body
                self._on_way.append(handle.put(data, timeout=STAGE_S, unique=key, **found))
            self.wait(AHEAD_COUNT)

    def wait(self, left: int) -> None:
        """Until at most so many are on their way. Raises what has become of one of them."""
        while len(self._on_way) > left:
            self._on_way.popleft().result(STAGE_S)


def _stage_batch(attempt: StagedAttempt, batch: pa.RecordBatch, queue: str) -> None:
    names = batch.schema.names
    _check_no_nulls(batch, "value")
    column = batch.column(names.index("value")).cast(pa.binary())
    if not any(name in names for name in CARRIED):
        if len(column):
            attempt.put_column(*buffers(column), queue=queue)
        return
    columns = [_listed(batch, names, name) for name in CARRIED]
    properties = [pack_properties(*row) for row in zip(*columns, strict=True)]
    attempt.put_many(column.to_pylist(), properties, queue=queue)


def _check_no_nulls(batch: pa.RecordBatch, name: str) -> None:
    column = batch.column(batch.schema.names.index(name))
    if column.null_count:
        raise ConfigError(
            f"column {name} is null in {column.null_count} of {batch.num_rows} rows: a message has "
            f"{'a body' if name == 'value' else 'its own key'}. Filter those rows, or coalesce "
            "them to something"
        )


def buffers(column: pa.Array) -> tuple[memoryview, memoryview]:
    """Offsets and values of a binary array that has bodies: views, no copy."""
    _, offsets, values = column.buffers()
    start, stop = 4 * column.offset, 4 * (column.offset + len(column) + 1)
    return memoryview(offsets)[start:stop], memoryview(values or b"")


def _listed(batch: pa.RecordBatch, names: Sequence[str], name: str) -> list[Any]:
    if name not in names:
        return [None] * batch.num_rows
    values = batch.column(names.index(name)).to_pylist()
    return [None if one is None else dict(one) for one in values] if name == "headers" else values


def batched(rows: Iterable[Any], schema: StructType) -> Iterator[pa.RecordBatch]:
    """Record batches of the columns of rows that are written."""
    names = [name for name in ("value", *CARRIED, UNIQUE, "queue") if name in schema.fieldNames()]
    types = {name: _arrow_type(schema[name].dataType) for name in names}
    gathered: list[Any] = []

    def batch() -> pa.RecordBatch:
        columns = []
        for name in names:
            values = [row[name] for row in gathered]
            if name == "headers":
                values = [None if one is None else list(one.items()) for one in values]
            columns.append(pa.array(values, types[name]))
        return pa.RecordBatch.from_arrays(columns, names)

    for row in rows:
        gathered.append(row)
        if len(gathered) == ROWS:
            yield batch()
            gathered.clear()
    if gathered:
        yield batch()


def _arrow_type(given: DataType) -> pa.DataType:
    if isinstance(given, MapType):
        return pa.map_(pa.string(), _arrow_type(given.valueType))
    return pa.binary() if isinstance(given, BinaryType) else pa.string()
