"""Questions about a queue that its master answers from what is at hand; nothing changes."""

from __future__ import annotations

from mirrorq.containers.ranges import Range
from mirrorq.protocol.identities import SessionId
from mirrorq.protocol.sessions import Browse, Browsed, Counts, Inquire
from mirrorq.replication.master.term import Term

__all__ = ["browsed", "counts"]

BROWSE_COUNT_MAX = 10_000
"""Most messages one Browse answers; the caller goes on from there."""
BROWSE_RANGES_MAX = 1000
"""The same of messages that do not stand side by side."""


def browsed(term: Term, body: Browse) -> Browsed:
    """Live messages from a sequence on that are whole here, as runs of one delivery count."""
    wanted = min(body.count_max, BROWSE_COUNT_MAX)
    found: list[tuple[int, int, int]] = []
    start, end = max(body.start, 1), term.state.next_sequence
    while not found and start < end and wanted > 0:
        # Again only when nothing of it is whole here: who browses goes on behind what is found.
        upto = term.state.live.reach(start, end, BROWSE_RANGES_MAX)
        upto = term.bodies.missing.reach(start, upto, BROWSE_RANGES_MAX)
        whole = term.dispatch.whole(term.state.live.within(start, upto))
        found = _runs(term, whole, wanted)
        start = upto + 1
    return Browsed(body.request, tuple(found))


def _runs(term: Term, ranges: list[Range], wanted: int) -> list[tuple[int, int, int]]:
    """The first so many of these messages, as runs of one delivery count."""
    found: list[tuple[int, int, int]] = []
    for low, high in ranges:
        first = low
        while first <= high and wanted > 0:
            count, last = term.state.count_run(first, min(high, first + wanted - 1))
            found.append((first, last, count))
            wanted -= last - first + 1
            first = last + 1
        if wanted <= 0:
            break
    return found


def counts(term: Term, session: SessionId, body: Inquire) -> Counts:
    """How many messages and consumers there are, as a session asks."""
    dispatch, state = term.dispatch, term.state
    return Counts(
        body.request,
        dispatch.ready_count,
        dispatch.unacknowledged,
        dispatch.consumer_count,
        state.next_sequence,
        0,
        term.delays.count,
        state.applied,
        dispatch.is_hungry_beside((session, 0)),
    )
