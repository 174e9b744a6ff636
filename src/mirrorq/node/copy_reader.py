"""Reads of a queue's local copy without its master, for readers that take no messages.

Any copy in sync is suitable: applied states at the same lsn are equal (Lemma 3). A copy that has
applied the master's ops up to the request shows no less than the master did. Used on the node
thread. An answer is bounded in pieces and, unless a single message is larger, in bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mirrorq.errors import QueueDown, QueueNotFound
from mirrorq.node.frame_reader import frames_of
from mirrorq.protocol.copy_page import CopyPage, Piece
from mirrorq.protocol.views import in_sync_ids

if TYPE_CHECKING:
    from mirrorq.engine.engine import Engine
    from mirrorq.node.frame_reader import FrameReader
    from mirrorq.replication.state.queue_state import QueueState

RANGES_MAX = 10_000
"""Maximum number of pieces in an answer; the caller continues from there."""


def read_copy(
    engine: Engine,
    reader: FrameReader,
    queue_id: int,
    span: tuple[int, int],
    bytes_max: int,
    applied: int,
) -> CopyPage | None:
    """Read from the local copy; None when the copy has not applied enough ops yet.

    Args:
        span: first and last sequence.
        bytes_max: limit for frames; 0: the pieces alone.
        applied: the lsn that the copy must have applied.

    Raises:
        QueueNotFound, QueueDown: there is no readable copy here.
        StoreCorrupt: the first frame is damaged or missing.
    """
    state = _state(engine, queue_id)
    if state.applied < applied:
        return None
    pieces = _pieces(state, max(span[0], 1), span[1])
    next_sequence = pieces[-1][1] + 1 if len(pieces) == RANGES_MAX else span[1] + 1
    if not bytes_max or not pieces:
        return CopyPage(next_sequence, tuple(pieces))
    ranges = [(low, high) for low, high, _ in pieces]
    found, whole, end = frames_of(reader, queue_id, ranges, bytes_max)
    if whole == len(pieces):
        return CopyPage(next_sequence, tuple(pieces), found)
    shown = pieces[:whole]
    low, _, count = pieces[whole]
    if end >= low:
        shown.append((low, end, count))
    return CopyPage(shown[-1][1] + 1, tuple(shown), found)


def seek_copy(engine: Engine, queue_id: int, stamp_ms: int, applied: int) -> int | None:
    """Find the first live message published at `stamp_ms` or later, as `read_copy` reads.

    Returns:
        The message's sequence; the next free sequence when there is no such message; None when
        the copy has not applied enough ops yet.
    """
    state = _state(engine, queue_id)
    if state.applied < applied:
        return None
    for first, last in state.live:
        found = state.columns.since(stamp_ms, first, last)
        if found is not None:
            return found
    return state.next_sequence


def _state(engine: Engine, queue_id: int) -> QueueState:
    record = engine.catalog.queue(queue_id)
    if record is None:
        raise QueueNotFound(f"there is no queue {queue_id}: it was deleted")
    replica = engine.replicas.get(queue_id)
    if replica is None or engine.me not in in_sync_ids(record.view):
        raise QueueDown(
            f"node {engine.me.node} has no copy in sync of queue {record.name!r}: read from "
            f"{' or '.join(one.node for one in in_sync_ids(record.view))}"
        )
    if replica.halted:
        raise QueueDown(f"the copy of queue {record.name!r} here is halted: {replica.halted}")
    return replica.state


def _pieces(state: QueueState, first: int, last: int) -> list[Piece]:
    """Return the live messages from first to last as pieces, at most RANGES_MAX pieces."""
    pieces: list[Piece] = []
    while first <= last and len(pieces) < RANGES_MAX:
        low, high = state.live.first_run(first, last)
        if low > high:
            break
        count, high = state.count_run(low, high)
        pieces.append((low, high, count))
        first = high + 1
    return pieces
