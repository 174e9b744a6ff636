"""When ready messages end by their time to live: the index of one master's term. Pure.

A message lives for the lesser of its own `ttl` and the policy's `message-ttl`, counted from the
time that the master stamped on its publish. Only the queue's time at its master decides when a ttl
is over; the end itself is an op. Held messages are not looked at until they come back.

Deadlines need not rise with sequences, because messages may have their own ttl. Ready messages are
therefore sorted by deadline into buckets of 64 ms. Deadlines later than about a minute go to coarse
buckets. A bucket holds ranges: a million messages of one frame cost as much as a single message. A
delivered message stays in its bucket and is looked up in vain.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice

from mirrorq.containers.fifo import Fifo
from mirrorq.containers.ranges import Range, RangeSet
from mirrorq.replication.state.queue_state import QueueState

FINE_BITS = 6
COARSE_BITS = 16


PIECES = 512
"""Messages, or runs with the same deadline, that one step looks at."""
BLOCK_WEIGHT = 32
"""Cost of reading a block of times, in pieces."""


class Expiry:
    """Deadlines of the ready messages."""

    def __init__(self, state: QueueState) -> None:
        self._state = state
        self._policy_ms: int | None = None
        self._fresh: Fifo[RangeSet] = Fifo()
        """Messages to be sorted into buckets."""
        self._fine: dict[int, RangeSet] = {}
        self._coarse: dict[int, RangeSet] = {}
        self._least: dict[int, int] = {}
        """The earliest deadline in each fine bucket."""
        self._opened = 0
        """Coarse buckets up to this number are opened: moved to `_fresh`, then to fine buckets."""
        self._next_ms: int | None = None
        """Lower bound of all deadlines in buckets; None: there is no deadline."""
        self._block = -1
        """Index of the block that was read last."""

    def restart(self, policy_ms: int | None, ready: Iterable[Range]) -> None:
        """Start again with the policy's ttl and all ready messages."""
        self._policy_ms = policy_ms
        self._fresh.clear()
        self._fine, self._coarse, self._least, self._next_ms = {}, {}, {}, None
        self.add_ready(ready)

    def add_ready(self, ranges: Iterable[Range]) -> None:
        """Note messages that have become ready."""
        if self._policy_ms is None and not self._state.columns.has_ttls:
            return
        fresh = RangeSet(piece for piece in ranges if piece[0] <= piece[1])
        if fresh:
            self._fresh.append(fresh)
            self._sort_in(PIECES)

    def _sort_in(self, count: int) -> None:
        """Sort about `count` pieces of fresh messages into buckets."""
        while self._fresh and count > 0:
            fresh = self._fresh[0]
            upto, pieces, took = self._look(fresh, count)
            count -= took
            for piece in pieces:
                self._put(*piece)
            fresh.remove(fresh.first, upto)
            if not fresh:
                self._fresh.popleft()

    def _look(self, ranges: RangeSet, count: int) -> tuple[int, list[tuple[int, int, int]], int]:
        """Find live pieces with a deadline from the front of `ranges`. Returns (last sequence
        looked at, pieces, cost in pieces)."""
        state, pieces = self._state, list[tuple[int, int, int]]()
        upto, left = ranges.first - 1, count
        while left > 0 and upto < ranges.last:
            first, last = ranges.first_run(upto + 1, ranges.last)
            low, high = state.live.first_run(first, last)
            if low > high:
                upto, left = last, left - 1
                continue
            upto = state.columns.within_block(low, high)
            left -= self._weigh(low)
            found = list(islice(self.deadlines(low, upto), max(left, 1)))
            pieces += found
            if len(found) >= left:
                upto = found[-1][1] if found else upto
            left -= max(len(found), 1)
        return upto, pieces, count - left

    def _weigh(self, sequence: int) -> int:
        """Note this message's block as read last. Return the cost of the look at it, in pieces."""
        columns = self._state.columns
        block, before = columns.block_of(sequence), self._block
        self._block = block
        is_read = self._policy_ms is not None or columns.has_ttls_in(block)
        return BLOCK_WEIGHT if is_read and block != before else 0

    def deadlines(self, first: int, last: int) -> Iterator[tuple[int, int, int]]:
        """(first, last, deadline in ms since 1970) of live messages with a deadline."""
        columns, policy_ms = self._state.columns, self._policy_ms
        for low, high, ttl_ms in columns.ttls(first, last):
            life_ms = policy_ms
            if ttl_ms and (life_ms is None or ttl_ms < life_ms):
                life_ms = ttl_ms
            if life_ms is None:
                continue
            for start, end, stamp_ms in columns.stamps(low, high):
                if stamp_ms:
                    yield start, end, stamp_ms + life_ms

    def _put(self, first: int, last: int, deadline_ms: int) -> None:
        coarse = deadline_ms >> COARSE_BITS
        if coarse <= self._opened:
            number = deadline_ms >> FINE_BITS
            bucket = self._fine.setdefault(number, RangeSet())
            self._least[number] = min(self._least.get(number, deadline_ms), deadline_ms)
        else:
            bucket = self._coarse.setdefault(coarse, RangeSet())
            deadline_ms = coarse << COARSE_BITS
        bucket.add(first, last)
        if self._next_ms is None or deadline_ms < self._next_ms:
            self._next_ms = deadline_ms

    def due(self, time_ms: int, count: int = PIECES) -> RangeSet:
        """Noted messages with a deadline that is over. Most may not be ready now.

        Args:
            count: approximate number of pieces to look at. `next_ms` is past while more are due.
        """
        over = RangeSet()
        self._sort_in(count)
        if self._next_ms is None or time_ms < self._next_ms:
            return over
        self._open(time_ms >> COARSE_BITS)
        self._sort_in(count)
        for number in sorted(n for n in self._fine if n << FINE_BITS <= time_ms):
            if count <= 0:
                break
            count -= self._empty(number, time_ms, count, over)
        self._next_ms = self._earliest()
        return over

    def _empty(self, number: int, time_ms: int, count: int, over: RangeSet) -> int:
        """Move due pieces of a fine bucket to `over`; sort the others anew. Return the cost."""
        bucket = self._fine.pop(number)
        del self._least[number]
        upto, pieces, took = self._look(bucket, count)
        bucket.remove(bucket.first, upto)
        if bucket:
            # The rest follows in the next step.
            self._fine[number], self._least[number] = bucket, number << FINE_BITS
        for start, end, deadline_ms in pieces:
            if deadline_ms <= time_ms:
                over.add(start, end)
            else:
                self._put(start, end, deadline_ms)
        return took

    def _open(self, upto: int) -> None:
        """Sort coarse buckets up to this number into fine buckets."""
        self._opened = max(self._opened, upto)
        for number in sorted(n for n in self._coarse if n <= self._opened):
            self._fresh.append(self._coarse.pop(number))

    def _earliest(self) -> int | None:
        """Lower bound of all deadlines in buckets, of live and of ended messages."""
        times = [number << COARSE_BITS for number in self._coarse]
        return min([*times, *self._least.values()], default=None)

    @property
    def next_ms(self) -> int | None:
        """Time of the next look, by the queue's time; 0: at once; None: never."""
        return 0 if self._fresh else self._next_ms
