"""What was asked for and is not in the queue any more."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from mirrorq.errors import MirrorQError

__all__ = [
    "DataLossError",
    "missing_from",
    "on_another_queue",
    "on_fewer",
    "on_gone",
    "on_missing",
]

log = logging.getLogger("pyspark_mirrorq")

Range = tuple[int, int]
LATER = "Begin at a later place (startingOffsets; a stream with a new checkpoint)"
NAMED_COUNT = 5
"""So many ranges are named in an error."""


class DataLossError(MirrorQError):
    """Messages that a job was to read are gone, and failOnDataLoss is true."""


def missing_from(wanted: Sequence[Range], found: Sequence[Range]) -> list[Range]:
    """The parts of the wanted ranges that are in none of the found ones; all are in order."""
    missing: list[Range] = []
    index = 0
    for first, last in wanted:
        while index < len(found) and found[index][1] < first:
            index += 1
        at = index
        while first <= last and at < len(found) and found[at][0] <= last:
            if found[at][0] > first:
                missing.append((first, found[at][0] - 1))
            first = found[at][1] + 1
            at += 1
        if first <= last:
            missing.append((first, last))
    return missing


def on_missing(queue: str, missing: Sequence[Range], fail: bool, why: str) -> int:
    """Raise an error that names what is missing, or say it and go on.

    Returns:
        How many messages are missing.

    Raises:
        DataLossError: something is, and `fail`.
    """
    count = sum(last - first + 1 for first, last in missing)
    if not count:
        return 0
    named = ", ".join(
        str(first) if first == last else f"{first} to {last}"
        for first, last in missing[:NAMED_COUNT]
    )
    more = f" and {len(missing) - NAMED_COUNT} more ranges" if len(missing) > NAMED_COUNT else ""
    _tell(f"{count} message(s) of queue {queue!r} are gone: sequences {named}{more}. {why}", fail)
    return count


def on_fewer(queue: str, within: Range, planned: int, found: int, fail: bool) -> int:
    """The same for a batch of a stream of which only is known how many messages it had.

    Returns:
        How many messages are missing.

    Raises:
        DataLossError: some are, and `fail`.
    """
    count = max(planned - found, 0)
    if count:
        first, last = within
        _tell(
            f"{count} message(s) of queue {queue!r} are gone: of {planned} within sequences "
            f"{first} to {last}, which Spark had begun to read as a batch, {found} are left. The "
            "others were acked by another consumer, purged, or expired before it could be repeated",
            fail,
        )
    return count


def on_another_queue(queue: str, end: int, fail: bool) -> None:
    """The same for a checkpoint of a queue that is gone, with all that was not read of it.

    Raises:
        DataLossError: `fail` is true.
    """
    _tell(
        f"queue {queue!r} is not the queue that the checkpoint is of, which Spark has read up to "
        f"sequence {end - 1}: that queue was deleted and declared again, or its cluster was made "
        "anew. What it had after that sequence is gone",
        fail,
        "Give the query a new checkpoint",
    )


def on_gone(queue: str, end: int, fail: bool) -> None:
    """The same for a queue of the checkpoint that no queue has replaced.

    Raises:
        DataLossError: `fail` is true.
    """
    _tell(
        f"queue {queue!r}, which Spark has read up to sequence {end - 1}, was deleted, and with it "
        "what came after that",
        fail,
        "Leave it out of queuePattern",
    )


def _tell(text: str, fail: bool, remedy: str = LATER) -> None:
    if fail:
        raise DataLossError(
            f"{text}. {remedy}, or set failOnDataLoss to false to go on without them"
        )
    log.warning("%s; failOnDataLoss is false: going on", text)
