"""A number for each live message of a queue, kept as runs of equal numbers in compact arrays.

A run takes 16 or 24 bytes at any length. The number of a dead message has no meaning, so runs of
dead messages are taken out and their neighbours grow over them. A column follows from the ops
alone: columns at the same lsn are equal on all copies. The arrays are chunks of some hundred runs:
a change moves only the content of its chunk.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import accumulate, chain, compress, islice
from operator import eq, lt, mul, ne, sub
from typing import ClassVar, Self, cast

import msgspec

MASK = 2**64 - 1
"""Sums are counted modulo 2^64: only differences of sums are read."""
CHUNK_COUNT = 1024
"""Most runs of a chunk."""
Chunk = list["array[int]"]
"""Last sequence of each run, value of each run, and further columns of a subclass. A run begins
behind the run before."""

NO_ENDS = cast("array[int]", ())
NO_CHUNKS = cast("list[Chunk]", ())
"""Stands in place of chunks while a column is empty: nothing can be put into this value."""

_OFFSET = struct.Struct("i")
_TWO_OFFSETS = struct.Struct("ii")


class Column(msgspec.Struct, gc=False, eq=False):
    """Numbers from 0 to 2^63 - 1 by sequence. Sequences are appended in rising order.

    No chunk is empty, and none has more than `CHUNK_COUNT` runs.
    """

    WIDTH: ClassVar[int] = 2
    """Arrays of a chunk."""

    _ends: array[int] = NO_ENDS
    """The last sequence of each chunk."""
    _chunks: list[Chunk] = NO_CHUNKS
    _length: int = 0

    def append(self, first: int, last: int, value: int) -> None:
        """Set the value of new messages at the end."""
        chunks = self._chunks
        if chunks and chunks[-1][1][-1] == value:
            chunks[-1][0][-1] = self._ends[-1] = last
        else:
            self._push(last, value)

    def _push(self, *run: int) -> None:
        """Append a run."""
        chunks, ends = self._chunks, self._ends
        if not chunks:
            self._chunks = [[array("Q", (number,)) for number in run]]
            self._ends = array("Q", (run[0],))
        elif len(chunks[-1][0]) >= CHUNK_COUNT:
            chunks.append([array("Q", (number,)) for number in run])
            ends.append(run[0])
        else:
            for column, number in zip(chunks[-1], run, strict=True):
                column.append(number)
            ends[-1] = run[0]
        self._length += 1

    def _extend(self, whole: Chunk) -> None:
        """Many more, at the end."""
        count = len(whole[0])
        if count and not self._chunks:
            self._chunks, self._ends = [], array("Q")
        chunks = self._chunks
        room = CHUNK_COUNT - len(chunks[-1][0]) if chunks else 0
        if room and count:
            for column, more in zip(chunks[-1], whole, strict=True):
                column += more[:room]
            self._ends[-1] = chunks[-1][0][-1]
        for at in range(room, count, CHUNK_COUNT):
            chunks.append([column[at : at + CHUNK_COUNT] for column in whole])
            self._ends.append(chunks[-1][0][-1])
        self._length += count

    def _find(self, sequence: int) -> tuple[int, int]:
        """Return (chunk, index in the chunk) of the first run that ends at `sequence` or behind it.
        Without a match the result lies behind the last chunk."""
        at = bisect_left(self._ends, sequence)
        if at == len(self._ends):
            return at, 0
        return at, bisect_left(self._chunks[at][0], sequence)

    def _start(self, at: int, index: int) -> int:
        """Return the sequence at which a run begins."""
        if index:
            return self._chunks[at][0][index - 1] + 1
        return self._ends[at - 1] + 1 if at else 1

    def forget(self, low: int, high: int) -> None:
        """Forget messages low to high: none of them is live, and both neighbours are live.

        Runs end with a live message, and neighbours differ. So a column follows from the live
        messages and their values alone, in any order of ends.
        """
        chunks = self._chunks
        at, index = self._find(low)
        if at == len(chunks):
            return
        if self._start(at, index) < low:
            lasts = chunks[at][0]
            if lasts[index] > high:
                return
            lasts[index] = low - 1
            index += 1
            if index == len(lasts):
                self._ends[at] = low - 1
                at, index = at + 1, 0
        end, stop = self._find(high + 1)
        if end < len(chunks) and (at or index):
            before = (at, index - 1) if index else (at - 1, len(chunks[at - 1][0]) - 1)
            if chunks[before[0]][1][before[1]] == chunks[end][1][stop]:
                at, index = before
        if (at, index) < (end, stop):
            self._cut(at, index, end, stop)

    def _cut(self, at: int, index: int, end: int, stop: int) -> None:
        """Take out the runs from (at, index) up to before (end, stop)."""
        chunks = self._chunks
        if at == end:
            self._length -= stop - index
            for column in chunks[at]:
                del column[index:stop]
        else:
            self._length += index - stop - sum(len(chunk[0]) for chunk in chunks[at:end])
            if stop:
                for column in chunks[end]:
                    del column[:stop]
            if index:
                for column in chunks[at]:
                    del column[index:]
                self._ends[at] = chunks[at][0][-1]
                at += 1
            del chunks[at:end], self._ends[at:end]
        self._tidy(at)

    def _tidy(self, at: int) -> None:
        """Join short neighbours around chunk `at`: it and the chunk before have become shorter."""
        chunks = self._chunks
        for left in range(min(at, len(chunks) - 2), max(at - 3, -1), -1):
            if len(chunks[left][0]) + len(chunks[left + 1][0]) <= CHUNK_COUNT // 2:
                for column, more in zip(chunks[left], chunks[left + 1], strict=True):
                    column += more
                del chunks[left + 1], self._ends[left]

    def at(self, sequence: int) -> int:
        """The value of a live message; 0 behind the end."""
        at, index = self._find(sequence)
        return self._chunks[at][1][index] if at < len(self._chunks) else 0

    def runs(self, first: int, last: int) -> Iterator[tuple[int, int, int]]:
        """(first, last, value) of the runs from first to last."""
        chunks = self._chunks
        at, index = self._find(first)
        while first <= last and at < len(chunks):
            lasts, values = chunks[at][:2]
            end = min(lasts[index], last)
            yield first, end, values[index]
            first = end + 1
            index += 1
            if index == len(lasts):
                at, index = at + 1, 0
        if first <= last:
            yield first, last, 0

    def _whole(self, first: int, last: int) -> Chunk:
        """Return a copy of the runs around first to last, in one chunk."""
        (at, low), (end, stop) = self._find(first), self._find(last)
        if at == end < len(self._chunks):
            return [column[low : stop + 1] for column in self._chunks[at]]
        found: Chunk = [array("Q") for _ in range(self.WIDTH)]
        for chunk in self._chunks[at : end + 1]:
            for column, known in zip(found, chunk, strict=True):
                column += known
        behind = len(self._chunks[end][0]) - stop - 1 if end < len(self._chunks) else 0
        for column in found:
            del column[len(column) - behind :], column[:low]
        return found

    def count_within(self, first: int, last: int) -> int:
        """Return how many runs overlap first to last."""
        (at, low), (end, stop) = self._find(first), self._find(last)
        is_more = end < len(self._chunks)
        if not (at or low or is_more):
            return self._length
        return sum(len(chunk[0]) for chunk in self._chunks[at:end]) + stop - low + is_more

    def part(self, first: int, last: int) -> bytes:
        """Return the runs of first to last, two live messages, in the format of `to_bytes`."""
        lasts, values = self._whole(first, last)[:2]
        if lasts and lasts[-1] > last:
            lasts[-1] = last
        return lasts.tobytes() + values.tobytes()

    def extend(self, data: bytes) -> None:
        """Add runs, in the bytes of `part`, behind all others.

        Raises ValueError if the bytes are malformed or the runs do not come behind.
        """
        lasts, values = _runs_of(data)
        if not lasts:
            return
        if len(self) and lasts[0] <= self._ends[-1]:
            raise ValueError(f"a run of a column up to {lasts[0]} comes late")
        if len(self) and values[0] == self._chunks[-1][1][-1]:
            self.append(self._ends[-1] + 1, lasts[0], values[0])
            del lasts[0], values[0]
        self._add(lasts, values)

    def _add(self, lasts: array[int], values: array[int]) -> None:
        """Add runs unchanged: equal neighbours stay two runs."""
        self._extend([lasts, values])

    @property
    def last(self) -> int:
        """The end of the last run; 0 when there is none."""
        return self._ends[-1] if self._chunks else 0

    @property
    def greatest(self) -> int:
        """The greatest value of all."""
        return max((max(chunk[1]) for chunk in self._chunks), default=0)

    def run_end(self, first: int, count: int) -> int:
        """Return the end of the last of `count` runs. The first run holds `first`."""
        at, index = self._find(first)
        index += count - 1
        while at < len(self._chunks):
            lasts = self._chunks[at][0]
            if index < len(lasts):
                return lasts[index]
            at, index = at + 1, index - len(lasts)
        return MASK

    def check_end(self, last: int) -> None:
        """Raises ValueError when there are runs behind `last`."""
        if len(self) and self._ends[-1] > last:
            raise ValueError(f"a column goes to {self._ends[-1]}, the queue to {last}")

    def __len__(self) -> int:
        """Return the number of runs."""
        return self._length

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Column):
            return NotImplemented
        return self.to_bytes() == other.to_bytes()

    # The base class has a comparison of its own, which knows nothing of `__eq__`.
    __ne__ = object.__ne__

    __hash__ = None  # type: ignore[assignment]

    def copy(self) -> Self:
        """Return an equal column that shares nothing with the original."""
        twin = type(self)()
        if self._chunks:
            twin._ends = self._ends[:]
            twin._chunks = [[column[:] for column in chunk] for chunk in self._chunks]
        twin._length = self._length
        return twin

    def to_bytes(self) -> bytes:
        """All lasts, then all values, eight bytes each, little-endian."""
        return b"".join(chunk[one].tobytes() for one in (0, 1) for chunk in self._chunks)

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Read the bytes of `to_bytes`. Raises ValueError if the bytes are malformed."""
        made = cls()
        made._add(*_runs_of(data))
        return made


def _runs_of(data: bytes) -> tuple[array[int], array[int]]:
    """Return lasts and values of runs from the bytes of `to_bytes`."""
    if len(data) % 16:
        raise ValueError(f"a column of {len(data)} bytes: not a multiple of 16")
    lasts, values = array("Q", data[: len(data) // 2]), array("Q", data[len(data) // 2 :])
    if lasts and not (lasts[0] and all(map(lt, lasts, islice(lasts, 1, None)))):
        raise ValueError(f"runs of a column out of order, from {lasts[0]}")
    return lasts, values


class Sizes(Column, gc=False, eq=False):
    """Bytes of messages: a column that can be summed.

    The third number of a run is the sum of all sizes up to its end, counted from any beginning.
    """

    WIDTH: ClassVar[int] = 3

    def append(self, first: int, last: int, value: int) -> None:
        added = (last - first + 1) * value
        chunks = self._chunks
        if chunks and chunks[-1][1][-1] == value:
            lasts, _, totals = chunks[-1]
            lasts[-1] = self._ends[-1] = last
            totals[-1] = totals[-1] + added & MASK
        else:
            self._push(last, value, self._total + added & MASK)

    @property
    def _total(self) -> int:
        """Up to the end."""
        return self._chunks[-1][2][-1] if self._chunks else 0

    def append_offsets(self, first: int, offsets: bytes, count: int) -> None:
        """Add the sizes of a frame's messages, from `first` on. `offsets` are the frame's, or their
        tail for the last messages of a frame."""
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
        before = self._total
        if self._chunks and self._chunks[-1][1][-1] == sizes[0]:
            # The first new run goes on with the last run of the column.
            at = len(self._chunks) - 1
            self._cut(at, len(self._chunks[at][0]) - 1, at + 1, 0)
        ends = [*map(ne, sizes, islice(sizes, 1, None)), True]
        totals = compress(islice(accumulate(sizes, initial=before), 1, None), ends)
        does_fit = before + sum(sizes) <= MASK
        whole = (
            compress(range(first, last + 1), ends),
            compress(sizes, ends),
            totals if does_fit else map(MASK.__and__, totals),
        )
        self._extend([array("Q", column) for column in whole])

    def within(self, first: int, last: int) -> Self:
        """Return a copy of the runs around first to last."""
        found = type(self)()
        found._extend(self._whole(first, last))
        return found

    def append_pieces(self, at: int, pieces: Iterable[SizedPiece]) -> None:
        """Give new messages, from `at` on, the sizes that messages have in other columns."""
        for first, last, sizes in pieces:
            self.append_from(sizes, first, last, at)
            at += last - first + 1

    def append_from(self, other: Sizes, first: int, last: int, at: int) -> None:
        """Give new messages, from `at` on, the sizes of first to last in another column, where all
        of them were appended in one go."""
        lasts, values, totals = other._whole(first, last)
        high, shift = bisect_left(lasts, last), at - first
        if high < 2 or any(map(eq, values[:high], values[1 : high + 1])):
            for start, end, value in other.runs(first, last):
                self.append(start + shift, end + shift, value)
            return
        self.append(at, lasts[0] + shift, values[0])
        # Whole runs; neighbours have different sizes.
        more = self._total - totals[0]
        whole = [_raised(lasts[1:high], shift), values[1:high], _raised(totals[1:high], more)]
        self._extend(whole)
        value = values[high] if high < len(values) else 0
        self.append(lasts[high - 1] + 1 + shift, last + shift, value)

    def total(self, first: int, last: int) -> int:
        """Bytes of first to last, all of which are live."""
        chunks = self._chunks
        at, low = self._find(first)
        if at == len(chunks):
            return 0
        lasts, values, totals = chunks[at]
        if last <= lasts[low]:
            return (last - first + 1) * values[low]
        found = (lasts[low] - first + 1) * values[low] - totals[low]
        end, high = self._find(last)
        before = chunks[end - 1] if not high else chunks[end]
        found += before[2][high - 1]
        if end < len(chunks):
            found += (last - before[0][high - 1]) * chunks[end][1][high]
        return found & MASK

    def reach(self, first: int, last: int, size: int) -> int:
        """Return the first message at which the messages from `first` on have `size` bytes. Return
        `last` when all of them, live messages, have fewer."""
        (at, low), (end, high) = self._find(first), self._find(last)
        begin, ends = at, self._ends
        at += bisect_left(range(at, end), size, key=lambda one: self.total(first, ends[one]))
        if at == len(ends):
            return last
        lasts = self._chunks[at][0]
        within = range(low if at == begin else 0, high if at == end else len(lasts))
        low = within.start + bisect_left(within, size, key=lambda i: self.total(first, lasts[i]))
        start = max(self._start(at, low), first)
        each = self._chunks[at][1][low]
        size -= self.total(first, start - 1) if start > first else 0
        return min(start - 1 + -(-size // each), last) if each else last

    def _add(self, lasts: array[int], values: array[int]) -> None:
        before = self._ends[-1] if len(self) else 0
        counts = map(sub, lasts, chain((before,), lasts))
        totals = islice(accumulate(map(mul, counts, values), initial=self._total), 1, None)
        self._extend([lasts, values, array("Q", map(MASK.__and__, totals))])


def _raised(numbers: array[int], more: int) -> array[int]:
    """Return rising numbers, each higher by `more`, modulo 2^64. One long addition is enough unless
    a number overflows, which would carry into the next."""
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
    # No sum is cut off here; the mask keeps a damaged checkpoint from raising an error.
    made.frombytes((raised & ~(-1 << 8 * size)).to_bytes(size, "little"))
    return made


SizedPiece = tuple[int, int, Sizes]
"""Messages first to last, and the column in which their sizes are."""


def equal_size(offsets: bytes, count: int) -> int | None:
    """Return the size of all bodies between these offsets, None when sizes differ. Most producers'
    bodies have equal sizes, and a comparison of bytes detects equal sizes."""
    if not offsets:
        return 0
    start, stop = _TWO_OFFSETS.unpack_from(offsets)
    size = stop - start
    (end,) = _OFFSET.unpack_from(offsets, 4 * count)
    if end - start != size * count or (count > 1 and offsets != _equal_steps(start, size, count)):
        return None
    return int(size)


def largest_size(offsets: bytes, count: int) -> int:
    """Return the bytes of the largest body between offsets."""
    size = equal_size(offsets, count)
    return max(sizes_of(offsets, count)) if size is None else size


@lru_cache(maxsize=32)
def _equal_steps(start: int, size: int, count: int) -> bytes:
    stop = start + (count + 1) * size
    return array("i", range(start, stop, size) if size else [start] * (count + 1)).tobytes()


def sizes_of(offsets: bytes, count: int) -> list[int]:
    """Return the bytes of each body, from the offsets in its frame; all 0 without offsets."""
    if not offsets:
        return [0] * count
    ends = array("i")
    ends.frombytes(offsets)
    return list(map(sub, ends[1:], ends))
