"""Which queue each row of a write goes to, and which of them decides whether all of it shows.

One queue that an option names takes every row, as Kafka's option topic does. Else the column
`queue` says for each row. Several queues of one write show it together or not at all: one of them
decides (`mirrorq.bulk.staged`), the same one whenever the write is repeated. The shards of a
sharded queue are several queues here: a row goes to that of its key.

The client and PyArrow are imported where they are used: the process that makes a stream's writer
needs neither, the one that commits no PyArrow.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from mirrorq.errors import ConfigError, QueueNotFound
from mirrorq.protocol.shard_names import logical_name, shard_of
from pyspark_mirrorq.options import Options

if TYPE_CHECKING:
    import pyarrow as pa

    from mirrorq.bulk.staging import StagedPart
    from mirrorq.client.client import Client

__all__ = ["Addresses", "by_queue", "by_shard", "deciding_queue", "is_addressed"]

COLUMN = "queue"
KEY = "key"


def is_addressed(options: Options, names: Sequence[str]) -> bool:
    """Whether each row says for itself where it goes: columns have these names."""
    return COLUMN in names and len(options.queues) != 1


def by_queue(batch: pa.RecordBatch, options: Options) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Rows of a batch by the queue that they are for, each queue's in their order.

    Raises:
        ConfigError: a row names no queue, or one that the option queue does not.
    """
    if not is_addressed(options, batch.schema.names):
        yield options.queues[0], batch
        return
    import pyarrow.compute as pc

    column = batch.column(batch.schema.names.index(COLUMN))
    if column.null_count:
        raise ConfigError(
            f"column queue is null in {column.null_count} of {batch.num_rows} rows: name the queue "
            "of each row, or of all of them by the option queue"
        )
    for name in pc.unique(column).to_pylist():
        if options.queues and name not in options.queues:
            raise ConfigError(
                f"column queue names {name!r}, and the option queue {', '.join(options.queues)}: "
                "add it there, or correct the column"
            )
        yield name, batch.filter(pc.equal(column, name))


def by_shard(
    batch: pa.RecordBatch, shards: int, keyless: int
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Rows of a batch by the shard of their key, in their order.

    Args:
        keyless: the shard of rows without one.
    """
    if KEY not in batch.schema.names:
        yield keyless, batch
        return
    import pyarrow as pa
    import pyarrow.compute as pc

    keys = batch.column(batch.schema.names.index(KEY)).to_pylist()
    numbers = pa.array([keyless if key is None else shard_of(key, shards) for key in keys])
    for number in sorted(pc.unique(numbers).to_pylist()):
        yield number, batch.filter(pc.equal(numbers, number))


class Addresses:
    """What one task knows of the queues that its rows go to."""

    def __init__(self, client: Client, options: Options, partition: int) -> None:
        self._client = client
        self._options = options
        self._turn = partition
        """Rows without a key go to one shard after the other, a batch each."""
        self._parts: dict[str, list[str]] = {}

    def parts(self, batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
        """Rows of a batch by the queue or shard that they are for.

        Raises:
            ConfigError, QueueNotFound: a row does not name a queue that there is.
        """
        for queue, rows in by_queue(batch, self._options):
            names = self._named(queue)
            if len(names) == 1:
                yield names[0], rows
                continue
            self._turn += 1
            for number, some in by_shard(rows, len(names), self._turn % len(names)):
                yield names[number], some

    def _named(self, queue: str) -> list[str]:
        found = self._parts.get(queue)
        if found is None:
            found = self._parts[queue] = _part_names(self._client, queue, self._options)
        return found


def _part_names(client: Client, queue: str, options: Options) -> list[str]:
    """Names of the shards of a queue, or its own.

    Raises:
        QueueNotFound: no queue has this name; it says who has named it.
    """
    from pyspark_mirrorq.shards import parts_of

    try:
        parts = parts_of(client, queue, options.timeout_s)
    except QueueNotFound:
        who = "option" if queue in options.queues else "column"
        raise QueueNotFound(
            f"{who} queue: no queue is named {queue!r} in the cluster at "
            f"{', '.join(options.endpoints)}: declare it first, or correct the name"
        ) from None
    for part in parts:
        part.close()
    return [part.name for part in parts]


def deciding_queue(client: Client, options: Options, parts: Sequence[StagedPart]) -> str | None:
    """The queue in which a write is committed: the first that the option names, else by name the
    first that has rows of it; of a sharded one its first shard. None: there are no rows, and
    nothing to commit."""
    if options.queues:
        queue: str | None = options.queues[0]
    else:
        named = [name for part in parts for name, chunks, _ in part.queues if chunks]
        queue = min(map(logical_name, named), default=None)
    return None if queue is None else _part_names(client, queue, options)[0]
