"""Disjoint ranges of integers, each with a number of its own, in three compact arrays.

A range takes 24 bytes. A removed range is only marked. Marked ranges are cleared away when half of
all ranges are marked: a removal anywhere costs a search, not a move of all ranges behind it.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterator
from typing import Self, cast

import msgspec

from mirrorq.containers.ranges import Chunks, Range

Span = tuple[int, int, int]
"""(first, last, number), first and last inclusive."""

NO_NUMBERS = cast("array[int]", ())
"""Stands in place of arrays while there is no range."""
CLEAR_COUNT = 64
"""Marked ranges are cleared away above this number, if more than half are marked."""


class Spans(msgspec.Struct, gc=False, eq=False):
    """Sorted ranges with numbers. An integer that was removed is never added again."""

    _firsts: array[int] = NO_NUMBERS
    _lasts: array[int] = NO_NUMBERS
    """A range is removed if its last is less than its first."""
    _numbers: array[int] = NO_NUMBERS
    _removed: int = 0
    count: int = 0
    """Number of integers in the ranges."""

    def __bool__(self) -> bool:
        return self.count > 0

    def __len__(self) -> int:
        """Return the number of ranges."""
        return len(self._firsts) - self._removed

    def __iter__(self) -> Iterator[Span]:
        for first, last, number in zip(self._firsts, self._lasts, self._numbers, strict=True):
            if first <= last:
                yield first, last, number

    def add(self, first: int, last: int, number: int) -> None:
        """Add a range that touches no other range."""
        at = len(self._firsts)
        if at and first <= self._firsts[-1]:
            at = bisect_right(self._firsts, first)
        self._insert(at, first, last, number)
        self.count += last - first + 1

    def _insert(self, at: int, first: int, last: int, number: int) -> None:
        if not self._firsts:
            self._firsts, self._lasts, self._numbers = array("Q"), array("Q"), array("q")
        self._firsts.insert(at, first)
        self._lasts.insert(at, last)
        self._numbers.insert(at, number)

    def within(self, first: int, last: int) -> list[Span]:
        """Return the parts of first to last that are in ranges, each with its number, in order."""
        found = []
        for at in range(max(bisect_right(self._firsts, first) - 1, 0), len(self._firsts)):
            if self._firsts[at] > last:
                break
            low, high = max(self._firsts[at], first), min(self._lasts[at], last)
            if low <= high:
                found.append((low, high, self._numbers[at]))
        return found

    def first_run(self, first: int, last: int) -> Span | None:
        """Return the first part of first to last that is in a range, None without a match."""
        for at in range(max(bisect_right(self._firsts, first) - 1, 0), len(self._firsts)):
            if self._firsts[at] > last:
                break
            low, high = max(self._firsts[at], first), min(self._lasts[at], last)
            if low <= high:
                return low, high, self._numbers[at]
        return None

    def reach(self, first: int, last: int, count: int) -> int:
        """Return the end of a stretch from `first` that overlaps at most `count` ranges. The end is
        `last` at most."""
        at = max(bisect_right(self._firsts, first) - 1, 0) + count
        return min(last, self._firsts[at] - 1) if at < len(self._firsts) else last

    def remove(self, first: int, last: int) -> None:
        """Take first to last out."""
        at = max(bisect_right(self._firsts, first) - 1, 0)
        while at < len(self._firsts) and self._firsts[at] <= last:
            at += self._cut(at, first, last)
        if self._removed > CLEAR_COUNT and self._removed * 2 > len(self._firsts):
            self._clear()

    def _cut(self, at: int, first: int, last: int) -> int:
        """Take first to last out of one range; return how many ranges replace the range."""
        low, high = self._firsts[at], self._lasts[at]
        if high < first or high < low:
            return 1
        self.count -= min(high, last) - max(low, first) + 1
        if low < first:
            self._lasts[at] = first - 1
            if last < high:
                self._insert(at + 1, last + 1, high, self._numbers[at])
                return 2
        elif last < high:
            self._firsts[at] = last + 1
        else:
            self._lasts[at] = low - 1
            self._removed += 1
        return 1

    def _clear(self) -> None:
        kept: list[Span] = []
        for first, last, number in self:
            if kept and kept[-1][1] == first - 1 and kept[-1][2] == number:
                first = kept.pop()[0]
            kept.append((first, last, number))
        self._firsts = array("Q", [span[0] for span in kept])
        self._lasts = array("Q", [span[1] for span in kept])
        self._numbers = array("q", [span[2] for span in kept])
        self._removed = 0

    def part(self, first: int, last: int) -> bytes:
        """Return the parts of first to last that are in ranges, in the format of `to_bytes`."""
        cut = Spans()
        for span in self.within(first, last):
            cut.add(*span)
        return cut.to_bytes()

    def extend(self, data: bytes) -> None:
        """Add ranges behind all others. Raises ValueError if a range does not come behind them."""
        for first, last, number in Spans.from_bytes(data):
            if len(self._lasts) and first <= self._lasts[-1]:
                raise ValueError(f"a range from {first} comes late")
            self.add(first, last, number)

    def count_within(self, first: int, last: int) -> int:
        """Return about how many ranges overlap first to last."""
        low = max(bisect_right(self._firsts, first) - 1, 0)
        return max(bisect_right(self._firsts, last) - low, 0)

    def to_bytes(self) -> bytes:
        """Return all firsts, all lasts, all numbers, as `RangeSet.to_bytes` does. Neighbours with
        the same number become one range."""
        if not self:
            return b""
        self._clear()
        return self._firsts.tobytes() + self._lasts.tobytes() + self._numbers.tobytes()

    @classmethod
    def from_bytes(cls, data: bytes) -> Spans:
        """Read the bytes of `to_bytes`. Raises ValueError if the bytes are malformed."""
        if len(data) % 24:
            raise ValueError(f"spans of {len(data)} bytes: not a multiple of 24")
        third = len(data) // 3
        made = cls()
        if not data:
            return made
        made._firsts = array("Q", data[:third])
        made._lasts = array("Q", data[third : 2 * third])
        made._numbers = array("q", data[2 * third :])
        before = 0
        for first, last in zip(made._firsts, made._lasts, strict=True):
            if not before < first <= last:
                raise ValueError(f"spans out of order at {first}")
            before = last
            made.count += last - first + 1
        return made


class Places(msgspec.Struct, gc=False, eq=False):
    """Places of messages that entered their priority level later than they came.

    A message's place is its sequence, unless the message was delayed. A delayed message takes the
    queue's next number as its place when it enters its level. Its sequence stays its name.
    """

    by_sequence: Spans = msgspec.field(default_factory=Spans)
    """Ranges of sequences, each with its shift: place = sequence + shift."""
    by_place: Spans = msgspec.field(default_factory=Spans)
    """The same ranges, found by place."""

    def __bool__(self) -> bool:
        return bool(self.by_sequence)

    def enter(self, first: int, last: int, place: int) -> None:
        """Give sequences first to last the places from `place` on."""
        shift = place - first
        self.by_sequence.add(first, last, shift)
        self.by_place.add(place, last + shift, shift)

    def forget(self, first: int, last: int) -> None:
        """Forget the places of sequences first to last."""
        for low, high, shift in self.by_sequence.within(first, last):
            self.by_place.remove(low + shift, high + shift)
        self.by_sequence.remove(first, last)

    def at(self, first: int, last: int) -> Range:
        """Return (end of the run of places that share a shift with `first`, shift of the run)."""
        found = self.by_place.first_run(first, last)
        if found is None:
            return last, 0
        low, high, shift = found
        return (high, shift) if low == first else (low - 1, 0)

    @classmethod
    def from_bytes(cls, data: bytes, next_place: int) -> Places:
        """Read `by_sequence.to_bytes()`. Raises ValueError if the bytes are malformed."""
        made = cls()
        spans = Spans.from_bytes(data)
        free = 1
        for first, last, shift in sorted(spans, key=lambda span: span[0] + span[2]):
            if shift <= 0 or not free <= first + shift <= last + shift < next_place:
                raise ValueError(f"{first} to {last} cannot stand {shift} later")
            free = last + shift + 1
            made.by_place.add(first + shift, last + shift, shift)
        made.by_sequence = spans
        return made


Numbers = tuple[int, ...]
Numbered = tuple[int, int, Numbers]
"""(first, last, numbers of the range)."""


class RangeMap(Chunks, gc=False, eq=False):
    """Sorted disjoint ranges, each with some numbers; neighbours of equal numbers are one range."""

    _width: int

    def _new(self) -> Self:
        return type(self)(self._width)

    @classmethod
    def from_bytes(cls, data: bytes, width: int) -> Self:
        """Read the bytes of `to_bytes`. Raises ValueError if the bytes are malformed."""
        made = cls(width)
        made.extend(data)
        return made

    def __iter__(self) -> Iterator[Numbered]:
        for firsts, lasts, *numbers in self._chunks:
            yield from zip(firsts, lasts, zip(*numbers, strict=True), strict=True)

    def walk(self, first: int, last: int) -> Iterator[Numbered]:
        """Yield the parts of first to last in ranges, in order. Nothing may change meanwhile."""
        at, index = self._find(first)
        while at < len(self._chunks):
            firsts, lasts, *numbers = self._chunks[at]
            for one in range(index, len(firsts)):
                if firsts[one] > last:
                    return
                values = tuple([column[one] for column in numbers])
                yield max(firsts[one], first), min(lasts[one], last), values
            at, index = at + 1, 0

    def at(self, value: int) -> Numbers:
        """Return the numbers of the range around `value`; all 0 if `value` is in no range."""
        at, index = self._find(value)
        if at == len(self._chunks) or self._chunks[at][0][index] > value:
            return (0,) * self._width
        return tuple([column[index] for column in self._chunks[at]][2:])

    def put(self, first: int, last: int, *numbers: int) -> None:
        """Give first to last these numbers in place of any earlier numbers."""
        before, after = self._whole(first - 1, numbers), self._whole(last + 1, numbers)
        if before is not None:
            first = before[0]
        if after is not None:
            last = after[1]
        self.remove(first, last)
        self._insert(first, last, *numbers)

    def _whole(self, value: int, numbers: Numbers) -> Range | None:
        """Return the range around `value` if the range has exactly these numbers."""
        at, index = self._find(value)
        if at == len(self._chunks) or self._chunks[at][0][index] > value:
            return None
        first, last, *known = [column[index] for column in self._chunks[at]]
        return (first, last) if tuple(known) == numbers else None
