"""Writing DataFrames into queues: staged by tasks, shown all at once by the driver's commit.

Tasks are tried again, run twice, in another order, and are killed: what each try stages is named
by its own attempt and seen by nobody. The commit is one replicated op that names the attempts
that count; it takes effect once for each (transaction, version), however often it is asked. Into
how many queues they go makes no difference: one of them decides for all.

Rows with a column `unique` are put at once instead: by its key a queue knows what is put again.

Spark begins a process that makes the writer and one that commits, and waits 10 seconds at most for
some: so what only tasks need, or only the commit, is imported there.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
from pyspark.sql import datasource
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import BinaryType, DataType, MapType, StringType, StructType

from mirrorq.errors import ConfigError, MirrorQError
from pyspark_mirrorq.addresses import is_addressed
from pyspark_mirrorq.options import Options
from pyspark_mirrorq.workers import Sent

if TYPE_CHECKING:
    import pyarrow as pa

    from mirrorq.bulk.staging import StagedPart

__all__ = ["BatchWriter", "Part", "StreamWriter", "check_columns"]

TEXT = (BinaryType(), StringType())
WRITTEN: dict[str, tuple[DataType, ...]] = {
    "value": TEXT,
    "headers": (MapType(StringType(), StringType()), MapType(StringType(), BinaryType())),
    "message_id": (StringType(),),
    "key": TEXT,
    "reply_to": (StringType(),),
    "correlation_id": (StringType(),),
    "content_type": (StringType(),),
    "unique": TEXT,
}
ADDRESS: tuple[DataType, ...] = (StringType(),)
"""What the column queue is, where it says where rows go."""
READ_ONLY = ("queue", "shard", "sequence", "timestamp", "redelivered", "delivery_count")
"""Columns of what was read from a queue: another one gives its messages its own."""
QUERY_PROPERTY = "sql.streaming.queryId"
BATCH_PROPERTY = "streaming.sql.batchId"
"""How Spark names a streaming query and its micro-batch to tasks."""


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


def _staged(
    options: Options, transaction: str, version: int, run: str, batches: Iterable[pa.RecordBatch]
) -> Part:
    from pyspark_mirrorq.staged_rows import stage

    return Part(stage(options, transaction, version, run, batches))


def _commit(options: Options, messages: Iterable[Part | None]) -> None:
    from pyspark_mirrorq.staged_commit import commit

    commit(options, [message.part for message in messages if message is not None])


def _abort(options: Options, messages: Iterable[Part | None]) -> None:
    from pyspark_mirrorq.staged_commit import abort

    abort(options, [message.part for message in messages if message is not None])


class BatchWriter(Sent, DataSourceArrowWriter):  # type: ignore[misc]
    """One job's write. Made once a job and pickled, so its names are those of all its tasks."""

    def __init__(self, options: Options) -> None:
        if bool(options.transaction) != (options.version is not None):
            raise ConfigError("options txnAppId and txnVersion go together: give both, or none")
        self._options = options
        self._run = uuid.uuid4().hex
        self._transaction = options.transaction or f"spark-{self._run}"
        self._version = options.version or 0
        from pyspark_mirrorq.cluster import connected, handle_on

        with connected(options) as client:
            for queue in options.queues:
                handle_on(client, queue, options.timeout_s).close()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Part:
        return _staged(self._options, self._transaction, self._version, self._run, iterator)

    def commit(self, messages: Sequence[Part | None]) -> None:
        _commit(self._options, messages)

    def abort(self, messages: Sequence[Part | None]) -> None:
        _abort(self._options, messages)


class _Query(Sent):
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
        return _staged(self._options, query, int(number), self._run, batches)

    def commit(self, messages: Sequence[Part | None], batchId: int) -> None:  # noqa: N803
        _commit(self._options, messages)

    def abort(self, messages: Sequence[Part | None], batchId: int) -> None:  # noqa: N803
        _abort(self._options, messages)


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
            from pyspark_mirrorq.staged_rows import batched

            return self._stage(batched(iterator, self._schema))
