"""Writing DataFrames into queues: staged by tasks, shown all at once by the driver's commit.

Tasks are tried again, run twice, in another order, and are killed: what each try stages is named
by its own attempt and seen by nobody. The commit is one replicated op that names the attempts
that count; it takes effect once for each (transaction, version), however often it is asked. Into
how many queues they go makes no difference: one of them decides for all.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import datasource
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import BinaryType, DataType, MapType, StringType, StructType

from mirrorq.errors import ConfigError, MirrorQError
from mirrorq.message import pack_properties
from mirrorq.staged import Staged, StagedAttempt, StagedPart
from pyspark_mirrorq.addresses import Addresses, deciding_queue, is_addressed
from pyspark_mirrorq.cluster import client_of, connected, handle_on
from pyspark_mirrorq.options import Options

__all__ = ["BatchWriter", "StreamWriter", "buffers", "check_columns"]

TEXT = (BinaryType(), StringType())
WRITTEN: dict[str, tuple[DataType, ...]] = {
    "value": TEXT,
    "headers": (MapType(StringType(), StringType()), MapType(StringType(), BinaryType())),
    "message_id": (StringType(),),
    "key": TEXT,
}
ADDRESS: tuple[DataType, ...] = (StringType(),)
"""What the column queue is, where it says where rows go."""
CARRIED = ("headers", "message_id", "key")
"""What comes with a body: a message's properties."""
READ_ONLY = ("queue", "shard", "sequence", "timestamp", "redelivered", "delivery_count")
"""Columns of what was read from a queue: another one gives its messages its own."""
QUERY_PROPERTY = "sql.streaming.queryId"
BATCH_PROPERTY = "streaming.sql.batchId"
"""How Spark names a streaming query and its micro-batch to tasks."""
STAGE_S = 120.0
"""How long the queue may take to have on disk what a task has staged: a failover fits in."""


def check_columns(options: Options, schema: StructType, overwrite: bool) -> None:
    """Whether this can be written at all.

    Raises:
        ConfigError: a column is missing, unknown or of the wrong type; nothing says into which
            queue.
    """
    if overwrite:
        raise ConfigError(
            'a queue is only added to: write with .mode("append"). To empty it first, purge it'
        )
    names = schema.fieldNames()
    if len(options.queues) != 1 and not is_addressed(options, names):
        raise ConfigError(
            'option queue is missing: name the queue to write to, as in .option("queue", "orders")'
            if not options.queues
            else f"option queue names {', '.join(options.queues)}, and no column queue says which "
            "row goes where: add the column, or name one queue"
        )
    if "value" not in names:
        raise ConfigError(
            f"column value is missing: the bodies, binary or string. There are "
            f"{', '.join(names)}: rename one of them, or make one, as in "
            '.selectExpr("to_json(struct(*)) AS value")'
        )
    for field in schema.fields:
        types = _types(field.name, is_addressed(options, names))
        if types is None and field.name not in READ_ONLY:
            raise ConfigError(
                f"column {field.name!r} cannot be written: a message has {', '.join(WRITTEN)}. "
                "Put it into value, or select the others"
            )
        if types is not None and not any(_is_type(field.dataType, one) for one in types):
            raise ConfigError(
                f"column {field.name} is of type {field.dataType.simpleString()}: make it "
                f"{' or '.join(one.simpleString() for one in types)}"
            )


def _types(name: str, is_addressed: bool) -> tuple[DataType, ...] | None:
    """What a column may be; None: it is not written."""
    return ADDRESS if name == "queue" and is_addressed else WRITTEN.get(name)


def _is_type(given: DataType, wanted: DataType) -> bool:
    if isinstance(given, MapType) and isinstance(wanted, MapType):
        return _is_type(given.keyType, wanted.keyType) and _is_type(
            given.valueType, wanted.valueType
        )
    return type(given) is type(wanted)


class Part(WriterCommitMessage):  # type: ignore[misc]
    """What a task tells the driver."""

    def __init__(self, part: StagedPart) -> None:
        self.part = part


def _parts(messages: Iterable[Part | None]) -> list[StagedPart]:
    return [message.part for message in messages if message is not None]


def _stage(
    options: Options, transaction: str, version: int, run: str, batches: Iterable[pa.RecordBatch]
) -> Part:
    """A task's work: returns when all of it is on the disk of every member in sync."""
    context = TaskContext.get()
    client = client_of(options, options.endpoints)
    # Which queue decides is no matter of tasks: the driver knows all parts.
    with client.staged(transaction, version, "", run=run) as staged:
        attempt = staged.attempt(context.partitionId(), context.taskAttemptId())
        addresses = Addresses(client, options, context.partitionId())
        for batch in batches:
            for part, rows in addresses.parts(batch):
                _stage_batch(attempt, rows, part)
        return Part(attempt.finish(STAGE_S))


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


@contextmanager
def _driver(options: Options, parts: Sequence[StagedPart]) -> Iterator[Staged | None]:
    """The driver's side of a run; None when there is nothing to commit."""
    if not parts:
        yield None
        return
    first = parts[0]
    with connected(options) as client:
        queue = deciding_queue(client, options, parts)
        if queue is None:
            yield None
            return
        with client.staged(first.transaction, first.version, queue, run=first.run) as staged:
            yield staged


def _commit(options: Options, parts: Sequence[StagedPart]) -> None:
    with _driver(options, parts) as staged:
        if staged is not None:
            staged.commit(parts, STAGE_S)


def _abort(options: Options, parts: Sequence[StagedPart]) -> None:
    """After a commit, whose outcome the caller may not have heard, this does nothing."""
    with _driver(options, parts) as staged:
        if staged is not None:
            staged.abort(parts, STAGE_S)


class BatchWriter(DataSourceArrowWriter):  # type: ignore[misc]
    """One job's write. Made once a job and pickled, so its names are those of all its tasks."""

    def __init__(self, options: Options) -> None:
        if bool(options.transaction) != (options.version is not None):
            raise ConfigError("options txnAppId and txnVersion go together: give both, or none")
        self._options = options
        self._run = uuid.uuid4().hex
        self._transaction = options.transaction or f"spark-{self._run}"
        self._version = options.version or 0
        with connected(options) as client:
            for queue in options.queues:
                handle_on(client, queue, options.timeout_s).close()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Part:
        return _stage(self._options, self._transaction, self._version, self._run, iterator)

    def commit(self, messages: Sequence[Part | None]) -> None:
        _commit(self._options, _parts(messages))

    def abort(self, messages: Sequence[Part | None]) -> None:
        _abort(self._options, _parts(messages))


class _Query:
    """What writers of a stream share: the transaction is the query, the version its batch."""

    def __init__(self, options: Options, schema: StructType) -> None:
        if options.transaction or options.version is not None:
            raise ConfigError(
                "options txnAppId and txnVersion are of batch writes: a stream has its query's id "
                "and its batches' numbers. Leave them out"
            )
        self._options = options
        self._schema = schema
        self._run = uuid.uuid4().hex

    def _stage(self, batches: Iterable[pa.RecordBatch]) -> Part:
        context = TaskContext.get()
        query = context.getLocalProperty(QUERY_PROPERTY)
        number = context.getLocalProperty(BATCH_PROPERTY)
        if query is None or number is None:
            raise MirrorQError(
                "Spark has not named the streaming query and batch to its tasks: write in "
                "foreachBatch, with txnAppId and txnVersion, as docs/spark.md shows"
            )
        return _stage(self._options, query, int(number), self._run, batches)

    def commit(self, messages: Sequence[Part | None], batchId: int) -> None:  # noqa: N803
        _commit(self._options, _parts(messages))

    def abort(self, messages: Sequence[Part | None], batchId: int) -> None:  # noqa: N803
        _abort(self._options, _parts(messages))


_ArrowWriter = getattr(datasource, "DataSourceStreamArrowWriter", None)
if _ArrowWriter is not None:

    class StreamWriter(_Query, _ArrowWriter):  # type: ignore[misc,valid-type]
        """A stream's write, by record batches: Spark 4.1 and later."""

        def write(self, iterator: Iterator[pa.RecordBatch]) -> Part:
            return self._stage(iterator)

else:

    class StreamWriter(_Query, datasource.DataSourceStreamWriter):  # type: ignore[misc,no-redef]
        """A stream's write, by rows: Spark 4.0."""

        def write(self, iterator: Iterator[Mapping[str, Any]]) -> Part:
            return self._stage(_batched(iterator, self._schema))


ROWS = 1000
"""Rows that are made into one record batch."""


def _batched(rows: Iterable[Any], schema: StructType) -> Iterator[pa.RecordBatch]:
    names = [name for name in (*WRITTEN, "queue") if name in schema.fieldNames()]
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
