"""Wake-up times: for the parts of one machine (`Timers`), for many queues (`Deadlines`). Pure.

A part of a machine sets its wake-up time as soon as the time changes, and is not asked: most steps
of a queue change no time. A timer may be early: a part that is woken for nothing sets the timer
again. A timer must never be late, for nothing else may come (the tests compare by
`harness.wakeups`).

A node with a thousand idle queues asks at each step for the next time. A busy queue moves its time
at each step, mostly to later. So a time in the heap may be earlier than the time in force: the heap
is corrected when the entry comes to the top.
"""

from __future__ import annotations

from heapq import heappop, heappush, heapreplace

import msgspec

FOREVER_MS = 1 << 62
"""Later than every time."""
ALL = 1 << 62
"""More keys than there ever are."""


class Timer(msgspec.Struct, gc=False, eq=False):
    """Wake-up time of one part, which owns and sets the timer. A timer keeps its time when the time
    has come: the part is stepped then, and sets or clears the timer."""

    _all: Timers
    _index: int
    at_ms: int = FOREVER_MS
    """Wake the part then; FOREVER_MS: not at any time. Changed by `set` only."""

    def set(self, at_ms: int) -> None:
        """Wake the part at `at_ms` and at no other time."""
        was_ms = self.at_ms
        if at_ms == was_ms:
            return
        timers = self._all
        self.at_ms = timers.times[self._index] = at_ms
        if at_ms <= timers.next_ms:
            timers.next_ms = at_ms
        elif was_ms == timers.next_ms:
            timers.next_ms = min(timers.times)

    def set_by(self, at_ms: int) -> None:
        """Wake the part at `at_ms` at the latest."""
        if at_ms < self.at_ms:
            self.set(at_ms)

    def clear(self) -> None:
        """Wake the part at no time."""
        if self.at_ms != FOREVER_MS:
            self.set(FOREVER_MS)


class Timers(msgspec.Struct, gc=False, eq=False):
    """Timers of the parts of one machine; the machine owns this object and reads `next_ms`. A queue
    has some ten timers: they are part of no cycle, and Python's garbage collector looks at none."""

    next_ms: int = FOREVER_MS
    """The earliest time of all."""
    times: list[int] = msgspec.field(default_factory=list)
    """Time of each part, in the order in which the timers were made."""

    def new(self) -> Timer:
        """Return a timer for one more part."""
        self.times.append(FOREVER_MS)
        return Timer(self, len(self.times) - 1)


class Deadlines:
    """A time in milliseconds for each key, or none."""

    def __init__(self) -> None:
        self.next_ms = FOREVER_MS
        """The earliest time of all."""
        self._at: dict[int, int] = {}
        """Key -> time in force."""
        self._entries: dict[int, int] = {}
        """Key -> its earliest time in the heap: never later than the time in force."""
        self._heap: list[tuple[int, int]] = []

    def set(self, key: int, at_ms: int | None) -> None:
        """Set the time of `key`; None: no time."""
        was_ms = self._at.get(key)
        if was_ms == at_ms:
            return
        if at_ms is None:
            del self._at[key]
        else:
            self._at[key] = at_ms
            known = self._entries.get(key)
            if known is None or at_ms < known:
                self._entries[key] = at_ms
                heappush(self._heap, (at_ms, key))
            if at_ms < self.next_ms:
                self.next_ms = at_ms
        if was_ms == self.next_ms:
            self.next_ms = self._find_next()

    def set_by(self, key: int, at_ms: int) -> None:
        """Set the time of `key` to `at_ms` at the latest."""
        if at_ms < self._at.get(key, FOREVER_MS):
            self.set(key, at_ms)

    def _find_next(self) -> int:
        heap, at, entries = self._heap, self._at, self._entries
        while heap:
            entry_ms, key = heap[0]
            at_ms = at.get(key)
            if at_ms == entry_ms:
                return entry_ms
            if at_ms is None or entries[key] != entry_ms:
                heappop(heap)  # gone, or an older entry beside an earlier one
                if entries.get(key) == entry_ms:
                    del entries[key]
            else:
                entries[key] = at_ms
                heapreplace(heap, (at_ms, key))
        return FOREVER_MS

    def take_due(self, now_ms: int, most: int = ALL) -> list[int]:
        """Return at most `most` keys whose time has come, the earliest first. A returned key has no
        time until the next `set`."""
        found: list[int] = []
        while self.next_ms <= now_ms and len(found) < most:
            _, key = heappop(self._heap)
            del self._at[key], self._entries[key]
            found.append(key)
            self.next_ms = self._find_next()
        return found


def earliest(*times: int | None) -> int | None:
    """Return the earliest of some times; None means never."""
    found = None
    for time in times:
        if time is not None and (found is None or time < found):
            found = time
    return found
