"""Which queue each row of a write goes to, and which of them decides whether all of it shows.

One queue that an option names takes every row, as Kafka's option topic does. Else the column
`queue` says for each row. Several queues of one write show it together or not at all: one of them
decides (`mirrorq.staged`), the same one whenever the write is repeated.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pyarrow as pa
import pyarrow.compute as pc

from mirrorq.errors import ConfigError, QueueNotFound
from mirrorq.staged import StagedPart
from pyspark_mirrorq.options import Options

__all__ = ["COLUMN", "by_queue", "deciding_queue", "is_addressed", "naming"]

COLUMN = "queue"


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


@contextmanager
def naming(queue: str, options: Options) -> Iterator[None]:
    """Say who has named a queue that turns out not to be there.

    Raises:
        QueueNotFound: no queue has this name.
    """
    try:
        yield
    except QueueNotFound:
        who = "option" if queue in options.queues else "column"
        raise QueueNotFound(
            f"{who} queue: no queue is named {queue!r} in the cluster at "
            f"{', '.join(options.endpoints)}: declare it first, or correct the name"
        ) from None


def deciding_queue(options: Options, parts: Sequence[StagedPart]) -> str | None:
    """The queue in which a write is committed: the first that the option names, else by name the
    first that has rows of it; None: there are no rows, and nothing to commit."""
    if options.queues:
        return options.queues[0]
    named = [name for part in parts for name, chunks, _ in part.queues if chunks]
    return min(named, default=None)
