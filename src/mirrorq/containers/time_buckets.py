"""What a master does when: delayed messages by the time at which they are due.

In buckets of about a second, 24 bytes an entry; only the bucket that comes next is kept in order.
"""

from __future__ import annotations

from array import array
from heapq import heappop, heappush

BUCKET_BITS = 20
"""A bucket holds the entries of 2^20 microseconds."""


class Timetable:
    """Ranges of messages with the moment at which they are due."""

    def __init__(self) -> None:
        self._next: list[tuple[int, int, int]] = []
        """A heap of (due_us, first, last): all that is due before any bucket."""
        self._until = -(1 << 63)
        """Buckets up to this one are in `_next`."""
        self._buckets: dict[int, array[int]] = {}
        self._keys: list[int] = []
        """A heap of the buckets' keys."""

    def add(self, due_us: int, first: int, last: int) -> None:
        """Messages first to last are due at this moment."""
        key = due_us >> BUCKET_BITS
        if key <= self._until:
            heappush(self._next, (due_us, first, last))
            return
        bucket = self._buckets.get(key)
        if bucket is None:
            bucket = self._buckets[key] = array("q")
            heappush(self._keys, key)
        bucket.extend((due_us, first, last))

    def __bool__(self) -> bool:
        return bool(self._next or self._keys)

    def next_us(self) -> int | None:
        """When something is due; None: never."""
        if not self._next and self._keys:
            self._until = heappop(self._keys)
            flat = self._buckets.pop(self._until)
            for at in range(0, len(flat), 3):
                heappush(self._next, (flat[at], flat[at + 1], flat[at + 2]))
        return self._next[0][0] if self._next else None

    def take(self, now_us: int, count_max: int) -> list[tuple[int, int, int]]:
        """Remove what is due by now, at most `count_max`: (due_us, first, last), in order."""
        taken: list[tuple[int, int, int]] = []
        while len(taken) < count_max:
            due_us = self.next_us()
            if due_us is None or due_us > now_us:
                break
            taken.append(heappop(self._next))
        return taken
