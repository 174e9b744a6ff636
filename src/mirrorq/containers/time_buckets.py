"""Delayed messages by the time at which they are due.

A bucket covers about a second, an entry takes 24 bytes. A bucket has rows of 512 entries. A row is
put in order when full: opening a bucket sorts only its newest row, however many entries are due.
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
    """Ranges of messages, each with the time at which the range is due."""

    def __init__(self) -> None:
        self._next: list[tuple[Due, int]] = []
        """A heap: the first entry of each row of the open bucket, with the row's number. All
        entries here are due before any other bucket."""
        self._until = -(1 << 63)
        """Buckets up to this one are open."""
        self._rows: dict[int, array[int]] = {}
        """Row number -> full row, in order, the last entry first."""
        self._number = 0
        """Number of the newest row. A late entry has no row and the number 0."""
        self._heads: dict[int, list[tuple[Due, int]]] = {}
        """Bucket -> heap of its full rows, in the format of `_next`."""
        self._filling: dict[int, array[int]] = {}
        """Bucket -> its newest row, in order of arrival."""
        self._keys: list[int] = []
        """A heap of the buckets' keys."""

    def add(self, due_us: int, first: int, last: int) -> None:
        """Add messages first to last, due at `due_us`."""
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
        """Return when the first entry is due; None: never."""
        if not self._next and self._keys:
            key = self._until = heappop(self._keys)
            if self._filling[key]:
                self._close_row(key)
            self._next = self._heads.pop(key)
            del self._filling[key]
        return self._next[0][0][0] if self._next else None

    def take_due(self, now_us: int, count_max: int) -> list[Due]:
        """Remove and return entries that are due by now, at most `count_max`, in order."""
        taken: list[Due] = []
        while len(taken) < count_max:
            due_us = self.next_us()
            if due_us is None or due_us > now_us:
                break
            taken.append(self._pop())
        return taken

    def _pop(self) -> Due:
        """Remove and return the entry that is due first."""
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
