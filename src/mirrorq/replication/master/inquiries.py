"""Questions about a queue that its master answers from what is at hand; nothing changes."""

from __future__ import annotations

from mirrorq.containers.ranges import RangeSet
from mirrorq.protocol.identities import SessionId
from mirrorq.protocol.sessions import Browse, Browsed, Counts, Inquire
from mirrorq.replication.master.reign import Reign

__all__ = ["browsed", "counts"]

BROWSE_COUNT_MAX = 10_000
"""Most messages one Browse answers; the caller goes on from there."""


def browsed(reign: Reign, body: Browse) -> Browsed:
    """Live messages from a sequence on that are whole here, as runs of one delivery count."""
    state, withheld = reign.state, reign.delivery.withheld
    wanted = min(body.count_max, BROWSE_COUNT_MAX)
    found: list[tuple[int, int, int]] = []
    ranges = state.live.within(max(body.start, 1), state.next_sequence)
    if withheld:
        shown = RangeSet(ranges)
        for piece in withheld:
            shown.remove(*piece)
        ranges = list(shown)
    for low, high in ranges:
        first = low
        while first <= high and wanted > 0:
            count, last = state.count_run(first, min(high, first + wanted - 1))
            found.append((first, last, count))
            wanted -= last - first + 1
            first = last + 1
        if wanted <= 0:
            break
    return Browsed(body.request, tuple(found))


def counts(reign: Reign, session: SessionId, body: Inquire) -> Counts:
    """How many messages and consumers there are, as a session asks."""
    delivery, state = reign.delivery, reign.state
    return Counts(
        body.request,
        delivery.ready_count,
        delivery.unacknowledged,
        delivery.consumer_count,
        state.next_sequence,
        0,
        reign.delays.count,
        state.applied,
        delivery.is_hungry_beside((session, 0)),
    )
