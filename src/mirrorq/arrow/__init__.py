"""Queues as Arrow tables. Needs the extra `arrow`; only the Spark connector imports this module.

    import pyarrow.parquet as pq
    from mirrorq import arrow

    with arrow.take(queue) as reader:
        pq.write_table(reader.read_all(), "orders.parquet")

A frame's two buffers are an Arrow binary array as they stand (docs/disk-format.md): no Python
object is made for a message. Only headers and texts, where they are asked for, are read one by one.

*Threads*: a reader is one thread's at a time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

try:
    import pyarrow as pa
except ImportError as error:
    raise ImportError("mirrorq.arrow needs pyarrow: pip install 'mirrorq[arrow]'") from error

from mirrorq import bulk
from mirrorq.api.queue import MirroredQueue
from mirrorq.arrow.batches import record_batches, schema_of
from mirrorq.errors import ConfigError, MirrorQError, StoreCorrupt

if TYPE_CHECKING:
    from mirrorq.api.confirmation import Confirmation
    from mirrorq.bulk.leases import RangeLease
    from mirrorq.bulk.reading import Batch

__all__ = ["read", "record_batches", "take", "write"]

COLUMNS = ("value", "sequence", "timestamp")
LEASE_S = 30.0
"""The queue's master has so long to hand messages out."""
BINARIES = ("binary", "large_binary", "binary_view")
TEXTS = ("string", "large_string", "string_view")
"""Types of columns that `write` takes."""
PART_ROWS = 50_000
"""Rows that `write` makes messages of at once: other libraries give a table as one batch."""
AHEAD_COUNT = 4
"""So many of these parts are on their way unconfirmed."""


@runtime_checkable
class ArrowStream(Protocol):
    """A table of any library that speaks Arrow's C stream interface."""

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Return the stream as a capsule."""


def read(queue: MirroredQueue, columns: Sequence[str] = COLUMNS) -> pa.RecordBatchReader:
    """Look at all messages that a queue has now, ready, held and delayed, and take none.

    Args:
        queue: a handle of a node or a client; of a sharded queue the shards follow each other.
        columns: of `value` (binary), `sequence` (int64), `timestamp` (UTC), `queue`, `shard`,
            `headers` (map of texts), `message_id`, `reply_to`, `correlation_id`, `content_type`,
            `redelivered` and `delivery_count`.

    Returns:
        A reader in the order of publishing. It reads from the copy at hand while it goes on.

    Raises:
        ConfigError: there is no such column, or no column is named.
        NoQuorum, QueueDown: there is no master.
    """
    schema = schema_of(columns := tuple(columns))

    def parts() -> Iterator[pa.RecordBatch]:
        with _rings(queue) as rings:
            for ring in rings:
                extent = bulk.extent(ring)
                found = bulk.reader(ring).read(1, extent.next_sequence - 1, extent=extent)
                yield from record_batches(found, ring.name, columns)

    return pa.RecordBatchReader.from_batches(schema, parts())


@contextmanager
def take(
    queue: MirroredQueue,
    columns: Sequence[str] = COLUMNS,
    *,
    count_max: int | None = None,
    timeout: float = LEASE_S,
) -> Iterator[pa.RecordBatchReader]:
    """Take the messages that are ready now: acked at the end of a `with` that nothing has left by
    an exception, given back else.

    Args:
        queue: as for `read`.
        columns: as for `read`.
        count_max: at most so many; of a sharded queue of each shard. None: all.
        timeout: seconds to wait for each answer of the queue's master.

    Yields:
        A reader, in the order of publishing.

    Raises:
        AckRefused: at the end: some of the messages had gone back to the queue meanwhile; of the
            others all are acked.
        ConfigError, PreconditionFailed, NoQuorum, QueueDown: as `bulk.lease`.
    """
    schema = schema_of(columns := tuple(columns))
    with _rings(queue) as rings, ExitStack() as held:
        leases = [
            (ring, held.enter_context(bulk.lease(ring, count_max, "arrow", timeout)))
            for ring in rings
        ]
        yield pa.RecordBatchReader.from_batches(schema, _leased(leases, columns))
        errors = list(filter(None, (_ack_error(lease, timeout) for _, lease in leases)))
        if errors:
            raise errors[0]


def _ack_error(lease: bulk.RangeLease, timeout: float) -> MirrorQError | None:
    """Ack the messages of one shard, whatever becomes of the others; return the error."""
    try:
        lease.ack(timeout)
    except MirrorQError as error:
        return error
    return None


def write(
    queue: MirroredQueue,
    data: ArrowStream | pa.RecordBatch | Iterable[pa.RecordBatch],
    column: str = "value",
    **options: Any,
) -> int:
    """Put the values of a column, each a message, in order; return how many when all are confirmed.

    Args:
        queue: a handle of a node or a client.
        data: a table of pyarrow, pandas, Polars or DuckDB; a reader; record batches.
        column: binary or texts, without nulls.
        options: as for `MirroredQueue.put_many`; of all messages.

    Raises:
        ConfigError: there is no such column, it has other types, or nulls.
        TypeError: the data is no table, and no record batches.
        NotConfirmed, ConfirmUnknown: as of `put_many`'s confirmation. What was confirmed before
            stays in the queue.
    """
    count = 0
    on_way: deque[Confirmation] = deque()
    for part in _parts(data):
        bodies = _bodies(part, column)
        on_way.append(queue.put_many(bodies, **options))
        count += len(bodies)
        while len(on_way) > AHEAD_COUNT:
            on_way.popleft().result()
    for confirmation in on_way:
        confirmation.result()
    return count


def _parts(
    data: ArrowStream | pa.RecordBatch | Iterable[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    """Yield record batches of `PART_ROWS` at most."""
    if isinstance(data, pa.RecordBatch):
        data = [data]
    elif isinstance(data, ArrowStream):
        with suppress(pa.ArrowInvalid):  # a single column
            data = pa.RecordBatchReader.from_stream(data)
    for one in data if isinstance(data, Iterable) else [data]:
        if not isinstance(one, pa.RecordBatch):
            raise TypeError(
                f"data has a {type(one).__name__}: give a table, a reader or record batches"
            )
        for at in range(0, max(one.num_rows, 1), PART_ROWS):
            yield one.slice(at, PART_ROWS)


def _bodies(batch: pa.RecordBatch, column: str) -> list[bytes]:
    at = batch.schema.get_field_index(column)
    if at < 0:
        raise ConfigError(f"there is no column {column!r}: {', '.join(batch.schema.names)}")
    values = batch.column(at)
    if values.null_count:
        raise ConfigError(f"column {column!r} has {values.null_count} nulls: a message is bytes")
    kind = str(values.type)
    if kind not in BINARIES + TEXTS:
        raise ConfigError(f"column {column!r} is {kind}: give binary values, or texts")
    if kind in TEXTS:
        values = values.cast(pa.large_string()).cast(pa.large_binary())
    return values.to_pylist()  # type: ignore[no-any-return]


@contextmanager
def _rings(queue: MirroredQueue) -> Iterator[list[MirroredQueue]]:
    """Handles on the shards of a queue, or the handle itself."""
    if not isinstance(queue, MirroredQueue):
        raise TypeError(
            f"{queue!r} is no MirroredQueue: give one of node.queue() or client.queue()"
        )
    with ExitStack() as opened:
        shards = [opened.enter_context(queue.shard(number)) for number in range(queue.shards)]
        yield shards or [queue]


def _leased(
    leases: Iterable[tuple[MirroredQueue, RangeLease]], columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    for ring, lease in leases:
        extent = bulk.extent(ring)
        for first, last in lease.ranges:
            found = bulk.reader(ring).read(first, last, extent=extent)
            batches = _all_of(found, ring.name, first, last, lease)
            yield from record_batches(batches, ring.name, columns)


def _all_of(
    found: Iterable[Batch], queue: str, first: int, last: int, lease: RangeLease
) -> Iterator[Batch]:
    """Hand these on.

    Raises:
        StoreCorrupt: at their end: some of the messages were not among them.
        ValueError: the same, after the end of the lease.
    """
    missing = last - first + 1
    for batch in found:
        missing -= batch.count
        yield batch
    if missing and lease.is_over:
        raise ValueError(f"queue {queue!r}: the reader is used after its `with` block: read in it")
    if missing:
        raise StoreCorrupt(
            f"queue {queue!r}: {missing} of the messages {first} to {last}, which are taken, are "
            "not in the copy at hand: they are given back"
        )
