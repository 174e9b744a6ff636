"""What a master does when: delayed messages by the time at which they are due.

In buckets of about a second, 24 bytes an entry. A bucket is rows of 512 entries, each of them put
in order when it is full: opening one puts its newest row in order only, however many are due then.
"""

from __future__ import annotations

from array import array
from heapq import heappop, heappush, heapreplace
from itertools import chain

BUCKET_BITS = 20
"""A bucket holds the entries of 2^20 microseconds."""
ROW_COUNT = 512
"""Entries of a row."""

Due = tuple[int, int, int]
"""(due_us, first, last)."""


class Timetable:
    """Ranges of messages with the moment at which they are due."""

    def __init__(self) -> None:
        self._next: list[tuple[Due, int]] = []
        """A heap: the first entry of each row of the open bucket, with the row's number. All that
        is due before any other bucket."""
        self._until = -(1 << 63)
        """Buckets up to this one are open."""
        self._rows: dict[int, array[int]] = {}
        """By number: full rows, in order, the last entry first."""
        self._number = 0
        """Of the newest row. An entry that comes late is alone, under 0."""
        self._heads: dict[int, list[tuple[Due, int]]] = {}
        """Bucket -> the same heap of its full rows."""
        self._filling: dict[int, array[int]] = {}
        """Bucket -> its newest row, as it comes."""
        self._keys: list[int] = []
        """A heap of the buckets' keys."""

    def add(self, due_us: int, first: int, last: int) -> None:
        """Messages first to last are due at this moment."""
        key = due_us >> BUCKET_BITS
        if key <= self._until:
            heappush(self._next, ((due_us, first, last), 0))
            return
        row = self._filling.get(key)
        if row is None:
            row = self._filling[key] = array("q")
            self._heads[key] = []
            heappush(self._keys, key)
        row.extend((due_us, first, last))
        if len(row) >= 3 * ROW_COUNT:
            self._close_row(key)

    def _close_row(self, key: int) -> None:
        """Put a bucket's newest row in order."""
        row, self._filling[key] = self._filling[key], array("q")
        entries = sorted(zip(row[0::3], row[1::3], row[2::3], strict=True), reverse=True)
        self._number += 1
        heappush(self._heads[key], (entries.pop(), self._number))
        self._rows[self._number] = array("q", chain.from_iterable(entries))

    def __bool__(self) -> bool:
        return bool(self._next or self._keys)

    def next_us(self) -> int | None:
        """When something is due; None: never."""
        if not self._next and self._keys:
            key = self._until = heappop(self._keys)
            if self._filling[key]:
                self._close_row(key)
            self._next = self._heads.pop(key)
            del self._filling[key]
        return self._next[0][0][0] if self._next else None

    def take(self, now_us: int, count_max: int) -> list[Due]:
        """Remove what is due by now, at most `count_max`, in order."""
        taken: list[Due] = []
        while len(taken) < count_max:
            due_us = self.next_us()
            if due_us is None or due_us > now_us:
                break
            taken.append(self._pop())
        return taken

    def _pop(self) -> Due:
        """Remove what is due first."""
        entry, number = self._next[0]
        row = self._rows.get(number)
        if row:
            due_us, first, last = row[-3:]
            del row[-3:]
            heapreplace(self._next, ((due_us, first, last), number))
        else:
            self._rows.pop(number, None)
            heappop(self._next)
        return entry
