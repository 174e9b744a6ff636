"""When something wants to be woken next: the parts of one machine (`Timers`), many queues
(`Deadlines`). Pure.

A part of a machine says when it wants to be woken as soon as that changes, and is not asked: most
steps of a queue change no such time. A timer may be early: who is woken for nothing sets it anew.
It must never be late, for nothing else may come (`harness.wakeups` in the tests compares).

A node with a thousand idle queues asks at each step for the next time, and a busy queue moves its
own at each of its steps, mostly to later. So the time that stands in the heap may be earlier than
the one that holds: it is put right when it comes to the top.
"""

from __future__ import annotations

from heapq import heappop, heappush, heapreplace
from operator import attrgetter

FOREVER_MS = 1 << 62
"""Later than every time."""
ALL = 1 << 62
"""More than there ever are."""


class Timer:
    """One part's: owned by that part, which sets it. It stays as it is set when its time has come:
    the part is stepped then, and sets it anew or clears it."""

    def __init__(self, of: Timers) -> None:
        self.at_ms = FOREVER_MS
        """Wake the part then; FOREVER_MS: not at any time."""
        self._all = of

    def set(self, at_ms: int) -> None:
        """Wake the part at this time and at no other."""
        was_ms = self.at_ms
        if at_ms == was_ms:
            return
        self.at_ms = at_ms
        timers = self._all
        if at_ms <= timers.next_ms:
            timers.next_ms = at_ms
        elif was_ms == timers.next_ms:
            timers.next_ms = min(map(_AT, timers.all))

    def set_by(self, at_ms: int) -> None:
        """Wake the part at this time at the latest."""
        if at_ms < self.at_ms:
            self.set(at_ms)

    def clear(self) -> None:
        """Wake the part at no time."""
        if self.at_ms != FOREVER_MS:
            self.set(FOREVER_MS)


class Timers:
    """Those of the parts of one machine; the machine owns it and reads `next_ms`."""

    def __init__(self) -> None:
        self.next_ms = FOREVER_MS
        """The earliest time of all."""
        self.all: list[Timer] = []

    def new(self) -> Timer:
        """A timer for one more part."""
        timer = Timer(self)
        self.all.append(timer)
        return timer


_AT = attrgetter("at_ms")


class Deadlines:
    """A time in milliseconds for each key, or none."""

    def __init__(self) -> None:
        self.next_ms = FOREVER_MS
        """The earliest time of all."""
        self._at: dict[int, int] = {}
        """What holds."""
        self._entries: dict[int, int] = {}
        """Key -> its earliest time in the heap: never later than what holds."""
        self._heap: list[tuple[int, int]] = []

    def set(self, key: int, at_ms: int | None) -> None:
        """Step this one at that time; None: not at any."""
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
        """Step this one at that time at the latest."""
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
        """Return so many keys whose time has come, the earliest first. Each has none until set
        anew."""
        found: list[int] = []
        while self.next_ms <= now_ms and len(found) < most:
            _, key = heappop(self._heap)
            del self._at[key], self._entries[key]
            found.append(key)
            self.next_ms = self._find_next()
        return found


def earliest(*times: int | None) -> int | None:
    """The earliest of these times, None being never."""
    found = None
    for time in times:
        if time is not None and (found is None or time < found):
            found = time
    return found
