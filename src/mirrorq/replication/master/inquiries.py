"""Questions about a queue that its master answers at once, without a change."""

from __future__ import annotations

from msgspec.structs import replace

from mirrorq.containers.ranges import Range
from mirrorq.containers.timers import FOREVER_MS
from mirrorq.protocol.identities import SessionId
from mirrorq.protocol.sessions import Browse, Browsed, Counts, Inquire
from mirrorq.replication.master.term import Term

BROWSE_COUNT_MAX = 10_000
"""Most messages in an answer to a Browse; the caller continues from there."""
BROWSE_RANGES_MAX = 1000
"""Most ranges of messages in a portion."""


class Browses:
    """Open Browse requests, served by portions: the first body that is whole here may be far behind
    many missing bodies. A part of `Master`."""

    def __init__(self, term: Term) -> None:
        self._term = term
        self._open: dict[tuple[SessionId, int], Browse] = {}
        """Requests without a result so far: (session, request) -> the rest of the Browse."""
        self._more = term.timers.new()
        """Wakes the master to look at the next portion."""

    def on_browse(self, now_ms: int, session: SessionId, body: Browse) -> None:
        """Answer, or go on in the next steps."""
        # A handle that attaches again asks again.
        self._open.pop((session, body.request), None)
        self._look(session, body)
        self._set_timer(now_ms)

    def look_at_portion(self, now_ms: int) -> None:
        """Look at a portion of the request that has waited longest."""
        key = next(iter(self._open), None)
        if key is not None:
            body = self._open.pop(key)
            if key[0] in self._term.attachments:
                self._look(key[0], body)
        self._set_timer(now_ms)

    def _look(self, session: SessionId, body: Browse) -> None:
        """Look at a portion. Whole messages, or the end of the queue, are the answer. The caller
        continues behind the messages of the answer."""
        term = self._term
        start, end = max(body.start, 1), term.state.next_sequence
        upto = term.state.live.reach(start, end, BROWSE_RANGES_MAX)
        upto = term.bodies.missing.reach(start, upto, BROWSE_RANGES_MAX)
        whole = term.dispatch.ready.whole(term.state.live.within(start, upto))
        found = _runs(term, whole, min(body.count_max, BROWSE_COUNT_MAX))
        if found or upto >= end or body.count_max <= 0:
            term.reply(session, Browsed(body.request, tuple(found)))
        else:
            self._open[session, body.request] = replace(body, start=upto + 1)

    def _set_timer(self, now_ms: int) -> None:
        self._more.set(now_ms if self._open else FOREVER_MS)


def _runs(term: Term, ranges: list[Range], wanted: int) -> list[tuple[int, int, int]]:
    """The first `wanted` of these messages, as runs with equal delivery counts."""
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


def counts(term: Term, session: SessionId, body: Inquire, delayed_count: int) -> Counts:
    """Number of messages and consumers, for a session.

    Args:
        delayed_count: messages that wait for a time, or are on their way back to the queue.
    """
    dispatch, state = term.dispatch, term.state
    return Counts(
        body.request,
        dispatch.ready.count,
        dispatch.open.unacknowledged,
        dispatch.consumers.callback_count,
        state.next_sequence,
        dispatch.ready.size,
        delayed_count,
        state.applied,
        dispatch.consumers.has_waiting_beside((session, 0)),
        state.is_paused,
    )
