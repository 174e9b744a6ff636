"""A task's work: the rows of an attempt, staged."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.types import BinaryType, DataType, MapType, StructType

from mirrorq import bulk
from mirrorq.bulk.staging import StagedAttempt, StagedPart
from mirrorq.errors import ConfigError
from mirrorq.wire.properties import pack_properties
from pyspark_mirrorq.addresses import Addresses
from pyspark_mirrorq.cluster import client_of
from pyspark_mirrorq.options import Options

__all__ = ["STAGE_S", "batched", "buffers", "stage"]

STAGE_S = 120.0
"""How long the queue may take to have on disk what a task has staged: a failover fits in."""
CARRIED = ("headers", "message_id", "key", "reply_to", "correlation_id", "content_type")
"""What comes with a body: a message's properties, as `pack_properties` takes them."""
ROWS = 1000
"""Rows that are made into one record batch."""


def stage(
    options: Options, transaction: str, version: int, run: str, batches: Iterable[pa.RecordBatch]
) -> StagedPart:
    """A task's work: returns when all of it is on the disk of every member in sync."""
    context = TaskContext.get()
    client = client_of(options, options.endpoints)
    # Which queue decides is no matter of tasks: the driver knows all parts.
    with bulk.staged(client, transaction, version, "", run=run) as staged:
        attempt = staged.attempt(context.partitionId(), context.taskAttemptId())
        addresses = Addresses(client, options, context.partitionId())
        for batch in batches:
            for part, rows in addresses.parts(batch):
                _stage_batch(attempt, rows, part)
        return attempt.finish(STAGE_S)


def _stage_batch(attempt: StagedAttempt, batch: pa.RecordBatch, queue: str) -> None:
    names = batch.schema.names
    column = batch.column(names.index("value"))
    if column.null_count:
        raise ConfigError(
            f"column value is null in {column.null_count} of {batch.num_rows} rows: a message has "
            "a body. Filter those rows, or coalesce them to something"
        )
    column = column.cast(pa.binary())
    if not any(name in names for name in CARRIED):
        if len(column):
            attempt.put_column(*buffers(column), queue=queue)
        return
    columns = [_listed(batch, names, name) for name in CARRIED]
    properties = [pack_properties(*row) for row in zip(*columns, strict=True)]
    attempt.put_many(column.to_pylist(), properties, queue=queue)


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
    names = [name for name in ("value", *CARRIED, "queue") if name in schema.fieldNames()]
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
