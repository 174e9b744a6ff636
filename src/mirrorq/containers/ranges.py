"""A set of integers kept as sorted, disjoint ranges in two compact arrays.

Sixteen bytes a range, whatever its length: a queue of five million messages in a row is
one range. Changes at either end are cheap; one in the middle moves memory, never objects.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator

__all__ = ["Range"]


Range = tuple[int, int]
"""(first, last), both inclusive."""


class RangeSet:
    """Sorted disjoint ranges of non-negative integers; neighbours are always merged."""

    __slots__ = ("_firsts", "_lasts", "count")

    def __init__(self, ranges: Iterable[Range] = ()) -> None:
        self._firsts = array("Q")
        self._lasts = array("Q")
        self.count = 0
        """How many integers are in the set."""
        for first, last in ranges:
            self.add(first, last)

    def add(self, first: int, last: int) -> None:
        """Put first to last in; what is there already stays."""
        firsts, lasts = self._firsts, self._lasts
        if not lasts or first > lasts[-1] + 1:
            firsts.append(first)
            lasts.append(last)
            self.count += last - first + 1
            return
        low = bisect_left(lasts, first - 1 if first else 0)
        high = bisect_right(firsts, last + 1)
        if low < high:
            self.count -= sum(lasts[i] - firsts[i] + 1 for i in range(low, high))
            first = min(first, firsts[low])
            last = max(last, lasts[high - 1])
        self.count += last - first + 1
        if high - low == 1:
            firsts[low] = first
            lasts[low] = last
        else:
            firsts[low:high] = array("Q", (first,))
            lasts[low:high] = array("Q", (last,))

    def remove(self, first: int, last: int) -> int:
        """Take first to last out; return how many of them were in."""
        firsts, lasts = self._firsts, self._lasts
        low = bisect_left(lasts, first)
        high = bisect_right(firsts, last)
        if low >= high:
            return 0
        old = sum(lasts[i] - firsts[i] + 1 for i in range(low, high))
        keep_firsts = array("Q")
        keep_lasts = array("Q")
        if firsts[low] < first:
            keep_firsts.append(firsts[low])
            keep_lasts.append(first - 1)
        if lasts[high - 1] > last:
            keep_firsts.append(last + 1)
            keep_lasts.append(lasts[high - 1])
        if high - low == len(keep_firsts) == 1:
            firsts[low] = keep_firsts[0]
            lasts[low] = keep_lasts[0]
        else:
            firsts[low:high] = keep_firsts
            lasts[low:high] = keep_lasts
        gone = old - sum(b - a + 1 for a, b in zip(keep_firsts, keep_lasts, strict=True))
        self.count -= gone
        return gone

    def __contains__(self, value: int) -> bool:
        index = bisect_left(self._lasts, value)
        return index < len(self._lasts) and self._firsts[index] <= value

    def __bool__(self) -> bool:
        return bool(self._firsts)

    def __len__(self) -> int:
        """How many ranges there are."""
        return len(self._firsts)

    def __iter__(self) -> Iterator[Range]:
        return zip(self._firsts, self._lasts, strict=True)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RangeSet):
            return NotImplemented
        return self._firsts == other._firsts and self._lasts == other._lasts

    __hash__ = None  # type: ignore[assignment]

    @property
    def first(self) -> int:
        """The least integer. Raises IndexError when empty."""
        return self._firsts[0]

    @property
    def last(self) -> int:
        """The greatest integer. Raises IndexError when empty."""
        return self._lasts[-1]

    def front(self) -> Range:
        """The first range. Raises IndexError when empty."""
        return self._firsts[0], self._lasts[0]

    def within(self, first: int, last: int) -> list[Range]:
        """The parts of first to last that are in the set."""
        firsts, lasts = self._firsts, self._lasts
        low = bisect_left(lasts, first)
        high = bisect_right(firsts, last)
        return [(max(firsts[i], first), min(lasts[i], last)) for i in range(low, high)]

    def around(self, first: int, last: int) -> Range | None:
        """The first range of the set that shares an integer with first to last."""
        index = bisect_left(self._lasts, first)
        if index == len(self._lasts) or self._firsts[index] > last:
            return None
        return self._firsts[index], self._lasts[index]

    def take_after(self, value: int, count: int, gap: int) -> Range | None:
        """The span of the first integers above `value` that are in the set: at most `count`
        of them, and up to the first place where more than `gap` integers are not in the set.

        None when none is above `value`.
        """
        firsts, lasts = self._firsts, self._lasts
        index = bisect_right(lasts, value)
        if index == len(lasts):
            return None
        first = max(firsts[index], value + 1)
        last = min(lasts[index], first + count - 1)
        count -= last - first + 1
        index += 1
        while count > 0 and index < len(firsts) and firsts[index] - last <= gap + 1:
            end = min(lasts[index], firsts[index] + count - 1)
            count -= end - firsts[index] + 1
            last = end
            index += 1
        return first, last

    def run(self, first: int, last: int) -> Range:
        """The first part of first to last that is in the set; (last + 1, last) when none is."""
        low = bisect_left(self._lasts, first)
        if low == len(self._lasts) or self._firsts[low] > last:
            return last + 1, last
        return max(self._firsts[low], first), min(self._lasts[low], last)

    def nth(self, count: int) -> int:
        """The integer that has count - 1 lesser ones in the set. Raises IndexError: too few."""
        for first, last in self:
            size = last - first + 1
            if count <= size:
                return first + count - 1
            count -= size
        raise IndexError(f"{count} more integers than there are")

    def gap(self, value: int, least: int, most: int) -> Range:
        """The widest range of integers around `value` that are not in the set.

        `value` itself must not be in it. The answer lies within least to most.
        """
        index = bisect_left(self._lasts, value)
        first = self._lasts[index - 1] + 1 if index else least
        last = self._firsts[index] - 1 if index < len(self._firsts) else most
        return max(first, least), min(last, most)

    def copy(self) -> RangeSet:
        twin = RangeSet()
        twin._firsts = self._firsts[:]
        twin._lasts = self._lasts[:]
        twin.count = self.count
        return twin

    def to_bytes(self) -> bytes:
        """All firsts, then all lasts, eight bytes each in the machine's order (little-endian
        on every machine that mirrorq runs on)."""
        return self._firsts.tobytes() + self._lasts.tobytes()

    @classmethod
    def from_bytes(cls, data: bytes) -> RangeSet:
        """Read what `to_bytes` wrote. Raises ValueError when it is no such thing."""
        if len(data) % 16:
            raise ValueError(f"a range set of {len(data)} bytes: not a multiple of 16")
        half = len(data) // 2
        made = cls()
        made._firsts.frombytes(data[:half])
        made._lasts.frombytes(data[half:])
        before = -1
        for first, last in made:
            if not before < first <= last:
                raise ValueError(f"ranges out of order at {first}")
            before = last + 1
            made.count += last - first + 1
        return made
