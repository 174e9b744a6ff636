"""A number for each live message of a queue, kept as runs of equal ones in compact arrays.

Sixteen or twenty bytes a run, whatever its length. What stands for a message that is not live
means nothing, so runs of dead messages are taken out and their neighbours grow over them. All
of it follows from the ops alone: columns at the same lsn are equal on all copies.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import accumulate, chain, compress, islice
from operator import eq, mul, ne, sub
from typing import Self

MASK = 2**64 - 1
"""Sums are counted modulo 2^64: only differences of them are read."""
HEAD_COUNT = 1024
"""Runs that are gone at the front are cut off when there are more, and more than half."""

_OFFSET = struct.Struct("i")
_TWO_OFFSETS = struct.Struct("ii")


class Column:
    """Numbers from 0 to 2^63 - 1 by sequence. Sequences are appended in rising order."""

    __slots__ = ("_head", "_lasts", "_values")

    def __init__(self) -> None:
        self._lasts = array("Q")
        """Last sequence of each run; it begins behind the run before."""
        self._values = array("Q")
        self._head = 0
        """Runs before this are gone."""

    def append(self, first: int, last: int, value: int) -> None:
        """Set the value of new messages at the end."""
        if len(self._lasts) > self._head and self._values[-1] == value:
            self._lasts[-1] = last
        else:
            self._lasts.append(last)
            self._values.append(value)

    def forget(self, low: int, high: int) -> None:
        """No message from low to high is live, and none beside them is dead.

        Runs end with a live message, and neighbours differ: so a column follows from what is live
        and its values alone, whatever has ended in which order.
        """
        lasts, head = self._lasts, self._head
        index = bisect_left(lasts, low, head)
        if index == len(lasts):
            return
        start = lasts[index - 1] + 1 if index > head else 1
        if start < low:
            if lasts[index] > high:
                return
            lasts[index] = low - 1
            index += 1
        stop = bisect_right(lasts, high, index)
        if head < index and stop < len(lasts) and self._values[index - 1] == self._values[stop]:
            index -= 1
        if index == head:
            self._head = stop
            if stop > HEAD_COUNT and 2 * stop > len(lasts):
                self._cut(0, stop)
                self._head = 0
        elif index < stop:
            self._cut(index, stop)

    def _cut(self, start: int, stop: int) -> None:
        del self._lasts[start:stop]
        del self._values[start:stop]

    def at(self, sequence: int) -> int:
        """The value of a live message; 0 behind the end."""
        index = bisect_left(self._lasts, sequence, self._head)
        return self._values[index] if index < len(self._lasts) else 0

    def runs(self, first: int, last: int) -> Iterator[tuple[int, int, int]]:
        """(first, last, value) of the runs from first to last."""
        lasts = self._lasts
        index = bisect_left(lasts, first, self._head)
        while first <= last and index < len(lasts):
            end = min(lasts[index], last)
            yield first, end, self._values[index]
            first = end + 1
            index += 1
        if first <= last:
            yield first, last, 0

    def count_within(self, first: int, last: int) -> int:
        """How many runs share something with first to last."""
        low = bisect_left(self._lasts, first, self._head)
        return min(bisect_left(self._lasts, last, low) + 1, len(self._lasts)) - low

    def part(self, first: int, last: int) -> bytes:
        """The runs of first to last, two live messages, as `to_bytes` has them."""
        low = bisect_left(self._lasts, first, self._head)
        high = bisect_left(self._lasts, last, low) + 1
        lasts = self._lasts[low:high]
        if lasts and lasts[-1] > last:
            lasts[-1] = last
        return lasts.tobytes() + self._values[low:high].tobytes()

    def extend(self, data: bytes) -> None:
        """Add runs, which `part` gave, behind those that are there.

        Raises ValueError when they are no such thing.
        """
        more = type(self).from_bytes(data)
        lasts, values = more._lasts, more._values
        if not lasts:
            return
        if len(self) and lasts[0] <= self._lasts[-1]:
            raise ValueError(f"a run of a column up to {lasts[0]} comes late")
        if len(self) and values[0] == self._values[-1]:
            self._lasts[-1] = lasts[0]
            del lasts[0], values[0]
        self._add(lasts, values)

    def _add(self, lasts: array[int], values: array[int]) -> None:
        self._lasts += lasts
        self._values += values

    def check_end(self, last: int) -> None:
        """Raises ValueError when there are runs behind `last`."""
        if len(self) and self._lasts[-1] > last:
            raise ValueError(f"a column goes to {self._lasts[-1]}, the queue to {last}")

    def __len__(self) -> int:
        """How many runs there are."""
        return len(self._lasts) - self._head

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Column):
            return NotImplemented
        return self.to_bytes() == other.to_bytes()

    __hash__ = None  # type: ignore[assignment]

    def copy(self) -> Self:
        """An equal one that shares nothing with it."""
        twin = type(self)()
        twin._lasts = self._lasts[self._head :]
        twin._values = self._values[self._head :]
        return twin

    def to_bytes(self) -> bytes:
        """All lasts, then all values, eight bytes each, little-endian."""
        return self._lasts[self._head :].tobytes() + self._values[self._head :].tobytes()

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Read what `to_bytes` wrote. Raises ValueError when it is no such thing."""
        if len(data) % 16:
            raise ValueError(f"a column of {len(data)} bytes: not a multiple of 16")
        lasts, values = array("Q"), array("Q")
        lasts.frombytes(data[: len(data) // 2])
        values.frombytes(data[len(data) // 2 :])
        made = cls()
        before = 0
        for last, value in zip(lasts, values, strict=True):
            if last <= before:
                raise ValueError(f"runs of a column out of order at {last}")
            made._load(before + 1, last, value)
            before = last
        return made

    def _load(self, first: int, last: int, value: int) -> None:
        """A run as it was: equal neighbours stay two."""
        self._lasts.append(last)
        self._values.append(value)


class Sizes(Column):
    """Bytes of messages: a column that can be summed."""

    __slots__ = ("_totals",)

    def __init__(self) -> None:
        super().__init__()
        self._totals = array("Q")
        """Sum of all sizes up to the end of each run, counted from any beginning."""

    def append(self, first: int, last: int, value: int) -> None:
        count = len(self._lasts)
        super().append(first, last, value)
        added = (last - first + 1) * value
        if len(self._lasts) > count:
            before = self._totals[-1] if self._totals else 0
            self._totals.append(before + added & MASK)
        else:
            self._totals[-1] = self._totals[-1] + added & MASK

    def append_offsets(self, first: int, offsets: bytes, count: int) -> None:
        """The sizes of a frame's messages, from `first` on, by the offsets in it; of those behind
        its first ones, by the offsets from there on."""
        size = equal_size(offsets, count)
        if size is None:
            self.append_sizes(first, sizes_of(offsets, count))
        else:
            self.append(first, first + count - 1, size)

    def append_sizes(self, first: int, sizes: list[int]) -> None:
        """The sizes of messages from `first` on. No step of Python's a message: there are many."""
        last = first + len(sizes) - 1
        if sizes.count(sizes[0]) == len(sizes):
            self.append(first, last, sizes[0])
            return
        before = self._totals[-1] if self._totals else 0
        if len(self._lasts) > self._head and self._values[-1] == sizes[0]:
            # The first run goes on with the one that is there.
            for each in (self._lasts, self._values, self._totals):
                each.pop()
        ends = [*map(ne, sizes, islice(sizes, 1, None)), True]
        totals = compress(islice(accumulate(sizes, initial=before), 1, None), ends)
        self._lasts.extend(compress(range(first, last + 1), ends))
        self._values.extend(compress(sizes, ends))
        does_fit = before + sum(sizes) <= MASK
        self._totals.extend(totals if does_fit else map(MASK.__and__, totals))

    def within(self, first: int, last: int) -> Self:
        """A copy of the runs that first to last lie in."""
        lasts = self._lasts
        low = bisect_left(lasts, first, self._head)
        high = bisect_left(lasts, last, self._head) + 1
        found = type(self)()
        found._lasts = lasts[low:high]
        found._values = self._values[low:high]
        found._totals = self._totals[low:high]
        return found

    def append_pieces(self, at: int, pieces: Iterable[SizedPiece]) -> None:
        """Give new messages, from `at` on, the sizes that others have in other columns."""
        for first, last, sizes in pieces:
            self.append_from(sizes, first, last, at)
            at += last - first + 1

    def append_from(self, other: Sizes, first: int, last: int, at: int) -> None:
        """Give new messages, from `at` on, the sizes that first to last have in another column,
        where all of them were appended in one go."""
        lasts, values, shift = other._lasts, other._values, at - first
        low = bisect_left(lasts, first, other._head)
        high = bisect_left(lasts, last, other._head)
        if high - low < 2 or any(map(eq, values[low:high], values[low + 1 : high + 1])):
            for start, end, value in other.runs(first, last):
                self.append(start + shift, end + shift, value)
            return
        self.append(at, lasts[low] + shift, values[low])
        # Whole runs, none of which is of its neighbours' size.
        more = self._totals[-1] - other._totals[low]
        self._lasts += _raised(lasts[low + 1 : high], shift)
        self._values += values[low + 1 : high]
        self._totals += _raised(other._totals[low + 1 : high], more)
        value = values[high] if high < len(values) else 0
        self.append(lasts[high - 1] + 1 + shift, last + shift, value)

    def total(self, first: int, last: int) -> int:
        """Bytes of first to last, all of which are live."""
        lasts, values, head = self._lasts, self._values, self._head
        low = bisect_left(lasts, first, head)
        high = bisect_left(lasts, last, head)
        if low >= len(lasts):
            return 0
        if low == high:
            return (last - first + 1) * values[low]
        found = (lasts[low] - first + 1) * values[low]
        found += self._totals[high - 1] - self._totals[low] & MASK
        if high < len(lasts):
            found += (last - lasts[high - 1]) * values[high]
        return found

    def reach(self, first: int, last: int, size: int) -> int:
        """The first message, from `first` on, with which they are so many bytes; `last` when all of
        them, live ones, are fewer."""
        lasts = self._lasts
        low = bisect_left(lasts, first, self._head)
        high = bisect_left(lasts, last, low)
        at = low + bisect_left(
            range(low, high), size, key=lambda run: self.total(first, lasts[run])
        )
        start = max(lasts[at - 1] + 1, first) if at > low else first
        each = self._values[at] if at < len(lasts) else 0
        size -= self.total(first, start - 1) if start > first else 0
        return min(start - 1 + -(-size // each), last) if each else last

    def copy(self) -> Self:
        twin = super().copy()
        twin._totals = self._totals[self._head :]
        return twin

    def _cut(self, start: int, stop: int) -> None:
        super()._cut(start, stop)
        del self._totals[start:stop]

    def _add(self, lasts: array[int], values: array[int]) -> None:
        before = self._lasts[-1] if len(self) else 0
        counts = map(sub, lasts, chain((before,), lasts))
        total = self._totals[-1] if self._totals else 0
        totals = islice(accumulate(map(mul, counts, values), initial=total), 1, None)
        super()._add(lasts, values)
        self._totals.extend(map(MASK.__and__, totals))

    def _load(self, first: int, last: int, value: int) -> None:
        before = self._totals[-1] if self._totals else 0
        super()._load(first, last, value)
        self._totals.append(before + (last - first + 1) * value & MASK)


def _raised(numbers: array[int], more: int) -> array[int]:
    """Each of these numbers, which rise, higher by `more`, modulo 2^64: in one long addition where
    none overflows, which would carry into the next."""
    made = array("Q")
    if not numbers:
        return made
    is_rising = numbers[0] <= numbers[-1]  # where it is not, sums have passed 2^64
    if not is_rising or numbers[0] + more < 0 or numbers[-1] + more > MASK:
        made.extend(map(MASK.__and__, map(more.__add__, numbers)))
        return made
    size = 8 * len(numbers)
    ones = int.from_bytes(b"\1\0\0\0\0\0\0\0" * len(numbers), "little")
    raised = int.from_bytes(numbers.tobytes(), "little") + ones * more
    # No sum is cut off by this; it keeps what a damaged checkpoint says from raising here.
    made.frombytes((raised & ~(-1 << 8 * size)).to_bytes(size, "little"))
    return made


SizedPiece = tuple[int, int, Sizes]
"""Messages first to last, and the column in which their sizes are."""


def equal_size(offsets: bytes, count: int) -> int | None:
    """The size of all bodies between these offsets, None when they differ. Most producers' are
    equal, and whether they are is seen without looking at each."""
    if not offsets:
        return 0
    start, stop = _TWO_OFFSETS.unpack_from(offsets)
    size = stop - start
    (end,) = _OFFSET.unpack_from(offsets, 4 * count)
    if end - start != size * count or (count > 1 and offsets != _equal_steps(start, size, count)):
        return None
    return int(size)


@lru_cache(maxsize=32)
def _equal_steps(start: int, size: int, count: int) -> bytes:
    stop = start + (count + 1) * size
    return array("i", range(start, stop, size) if size else [start] * (count + 1)).tobytes()


def sizes_of(offsets: bytes, count: int) -> list[int]:
    """Bytes of each body, from the offsets in its frame; all 0 where there are none."""
    if not offsets:
        return [0] * count
    ends = array("i")
    ends.frombytes(offsets)
    return list(map(sub, ends[1:], ends))
