"""When ready messages end by their time to live: the index of one master's reign. Pure.

A message lives for the lesser of its own `ttl` and the policy's `message-ttl`, counted from the
time that the master stamped on its publish. The queue's time at its master alone decides when that
is over; the end itself is an op. What a consumer holds is not looked at until it comes back.

Deadlines need not rise with sequences (each message may have its own), so ready messages are sorted
by deadline into buckets of 64 ms, those of later than about a minute into coarse ones. A bucket
holds ranges, so a million messages of one frame cost as much as one. What is handed out stays in
its bucket and is looked up in vain.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from mirrorq.containers.ranges import Range, RangeSet
from mirrorq.replication.state.queue_state import QueueState

FINE_BITS = 6
COARSE_BITS = 16


class Expiry:
    """Deadlines of the ready messages."""

    def __init__(self, state: QueueState) -> None:
        self._state = state
        self._policy_ms: int | None = None
        self._fine: dict[int, RangeSet] = {}
        self._coarse: dict[int, RangeSet] = {}
        self._opened = 0
        """Coarse buckets up to this one are in fine ones."""
        self.next_ms: int | None = None
        """When to look again, by the queue's time: no deadline is earlier; None: there is none."""

    def begin(self, policy_ms: int | None, ready: Iterable[Range]) -> None:
        """The policy's time, and all that is ready: at the start, and when the policy changes."""
        self._policy_ms = policy_ms
        self._fine, self._coarse, self.next_ms = {}, {}, None
        self.note(ready)

    def note(self, ranges: Iterable[Range]) -> None:
        """These have become ready."""
        if self._policy_ms is None and not self._state.has_ttls:
            return
        for first, last in ranges:
            for low, high, deadline_ms in self.deadlines(first, last):
                self._put(low, high, deadline_ms)

    def deadlines(self, first: int, last: int) -> Iterator[tuple[int, int, int]]:
        """(first, last, deadline) of live messages that have one: ms since 1970."""
        state, policy_ms = self._state, self._policy_ms
        for low, high, ttl_ms in state.ttls.runs(first, last):
            life_ms = policy_ms
            if ttl_ms and (life_ms is None or ttl_ms < life_ms):
                life_ms = ttl_ms
            if life_ms is None:
                continue
            for start, end, stamp_ms in state.stamps.runs(low, high):
                if stamp_ms:
                    yield start, end, stamp_ms + life_ms

    def _put(self, first: int, last: int, deadline_ms: int) -> None:
        coarse = deadline_ms >> COARSE_BITS
        if coarse <= self._opened:
            bucket = self._fine.setdefault(deadline_ms >> FINE_BITS, RangeSet())
        else:
            bucket = self._coarse.setdefault(coarse, RangeSet())
            deadline_ms = coarse << COARSE_BITS
        bucket.add(first, last)
        if self.next_ms is None or deadline_ms < self.next_ms:
            self.next_ms = deadline_ms

    def due(self, time_ms: int) -> RangeSet:
        """Messages that were noted and whose time is over; most of them may not be ready now."""
        over = RangeSet()
        if self.next_ms is None or time_ms < self.next_ms:
            return over
        self._open(time_ms >> COARSE_BITS)
        for number in sorted(n for n in self._fine if n << FINE_BITS <= time_ms):
            bucket = self._fine.pop(number)
            for first, last in bucket:
                for low, high in self._state.live.within(first, last):
                    for start, end, deadline_ms in self.deadlines(low, high):
                        if deadline_ms <= time_ms:
                            over.add(start, end)
                        else:
                            self._put(start, end, deadline_ms)
        self.next_ms = self._earliest()
        return over

    def _open(self, upto: int) -> None:
        """Sort coarse buckets whose time has come into fine ones."""
        self._opened = max(self._opened, upto)
        for number in sorted(n for n in self._coarse if n <= self._opened):
            for first, last in self._coarse.pop(number):
                for low, high in self._state.live.within(first, last):
                    for piece in self.deadlines(low, high):
                        self._put(*piece)

    def _earliest(self) -> int | None:
        """The earliest deadline: exact when it is in a fine bucket."""
        times = [number << COARSE_BITS for number in self._coarse]
        if self._fine:
            bucket = self._fine[min(self._fine)]
            times += [
                deadline_ms
                for first, last in bucket
                for low, high in self._state.live.within(first, last)
                for _, _, deadline_ms in self.deadlines(low, high)
            ] or [min(self._fine) << FINE_BITS]
        return min(times, default=None)
