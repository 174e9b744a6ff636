"""A set of integers kept as sorted, disjoint ranges in compact arrays.

A range takes 16 bytes at any length: a queue of five million messages in a row is one range. The
arrays are chunks of some hundred ranges: a change moves only the content of its chunk. Python's
garbage collector does not look at an empty set: a queue has some fifteen sets, and a set is part of
no cycle.

Where there are many chunks, chunks that have not changed for a while are *packed*: distances from
each edge to the next, in as many bytes as the widest distance needs, as a rule two to four a range.
A packed chunk is read like any other and becomes an array again before a change. Python's garbage
collector does not look at packed chunks.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import accumulate, chain, islice
from operator import le, lt
from typing import ClassVar, Literal, Self, cast

import msgspec

Range = tuple[int, int]
"""(first, last), both inclusive."""
CHUNK_COUNT = 512
"""Most ranges of a chunk."""
EAGER_COUNT = 4
"""So few chunks are copied at once."""
WARM_COUNT = 256
"""Chunks of a set that are arrays, two megabytes; other chunks are packed in time."""
COOLED_MAX = 8
"""Maximum number of chunks that one change packs: less than a millisecond."""
READ_COUNT = 64
"""Number of packed chunks, of all sets, that are kept as arrays after a read."""
WIDTHS: dict[Literal["B", "H", "I", "Q"], int] = {"B": 1, "H": 2, "I": 4, "Q": 8}
"""Bytes of an array's item by type code."""
BASE_BYTES = 8
Chunk = list["array[int]"]
"""Firsts, lasts, and a column for each number of a range."""
NO_STARTS = cast("array[int]", ())
NO_CHUNKS = cast("list[Chunk | Packed]", ())
NOT_SHARED = cast("set[int]", frozenset())
"""Stands for a set's own `_shared` until the first use; nothing can be put into this value."""


class Packed(msgspec.Struct, frozen=True, gc=False):
    """A chunk in little memory. Immutable."""

    size: int
    """Number of ranges."""
    count: int
    """Number of integers in the ranges."""
    data: bytes

    def __getitem__(self, column: int) -> array[int]:
        return _columns(self)[column]

    def __iter__(self) -> Iterator[array[int]]:
        return iter(_columns(self))

    @classmethod
    def of(cls, chunk: Chunk) -> Self:
        firsts, lasts, *numbers = chunk
        size = len(firsts)
        edges = array("Q", bytes(2 * BASE_BYTES * size))
        edges[::2], edges[1::2] = firsts, lasts
        steps = _less(edges[1:], edges[:-1])
        parts = [_narrow(edges[0], steps)]
        for column in numbers:
            least = min(column)
            parts.append(_narrow(least, _less(column, array("Q", [least]) * size)))
        return cls(size, sum(steps[::2]) + size, b"".join(parts))


def _less(numbers: array[int], others: array[int]) -> array[int]:
    """Return each number minus the number of `others` at the same place, which is never greater.
    One subtraction is enough, as no place has to borrow from the next."""
    rest = int.from_bytes(numbers, "little") - int.from_bytes(others, "little")
    return array("Q", rest.to_bytes(BASE_BYTES * len(numbers), "little"))


def _narrow(base: int, above: array[int]) -> bytes:
    """Return bytes of a base and the distances from the base, or from number to number."""
    bits = max(above).bit_length()
    code, width = next(item for item in WIDTHS.items() if bits <= 8 * item[1])
    narrow: memoryview = memoryview(above.tobytes()).cast(code)[:: BASE_BYTES // width]
    return base.to_bytes(BASE_BYTES, "little") + code.encode() + narrow.tobytes()


@lru_cache(maxsize=READ_COUNT)
def _columns(packed: Packed) -> Chunk:
    """A packed chunk's columns, to be looked at only."""
    base, above, at = _wide(packed.data, 0, 2 * packed.size - 1)
    edges = array("Q", accumulate(above, initial=base))
    columns = [edges[::2], edges[1::2]]
    while at < len(packed.data):
        base, above, at = _wide(packed.data, at, packed.size)
        columns.append(array("Q", [base + number for number in above]))
    return columns


def _wide(data: bytes, at: int, count: int) -> tuple[int, array[int], int]:
    """Return (base, numbers, offset of the next part) from the bytes of `_narrow`."""
    base, at = int.from_bytes(data[at : at + BASE_BYTES], "little"), at + BASE_BYTES
    code = chr(data[at])
    end = at + 1 + count * array(code).itemsize
    return base, array(code, data[at + 1 : end]), end


def _size(chunk: Chunk | Packed) -> int:
    """Return the number of ranges in a chunk."""
    return chunk.size if isinstance(chunk, Packed) else len(chunk[0])


def _count(chunk: Chunk | Packed) -> int:
    """Return the number of integers in a chunk."""
    if isinstance(chunk, Packed):
        return chunk.count
    return sum(chunk[1]) - sum(chunk[0]) + len(chunk[0])


class Chunks(msgspec.Struct, gc=False, eq=False, kw_only=True):
    """Sorted disjoint ranges, each with some numbers of its own.

    No chunk is empty, and none has more than `CHUNK_COUNT` ranges. A copy shares chunks with its
    original; a set makes a shared chunk its own before a change. While chunks may be packed, all
    other chunks are in `_warm`. A chunk is packed only when no caller is about to change the chunk.
    """

    GAP: ClassVar[int] = 0
    """Integers between neighbours at least."""

    _width: int = 0
    """Number of numbers that each range has."""
    _starts: array[int] = NO_STARTS
    """The first integer of each chunk."""
    _chunks: list[Chunk | Packed] = NO_CHUNKS
    _shared: set[int] = NOT_SHARED
    """`id` of each chunk that another set may share."""
    _warm: deque[Chunk] | None = None
    """Chunks that are arrays, the latest at the end. Entries may be chunks that were removed. None:
    no chunk is packed."""
    _is_plain: bool = True
    """No chunk is packed or shared."""
    _length: int = 0
    count: int = 0
    """Number of integers in the ranges."""

    def __bool__(self) -> bool:
        return self.count > 0

    def __len__(self) -> int:
        """Return the number of ranges."""
        return self._length

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, type(self)):
            return NotImplemented
        return self.count == other.count and self.to_bytes() == other.to_bytes()

    # The base class has a comparison of its own, which knows nothing of `__eq__`.
    __ne__ = object.__ne__

    __hash__ = None  # type: ignore[assignment]

    def __contains__(self, value: int) -> bool:
        at, index = self._find(value)
        return at < len(self._chunks) and self._chunks[at][0][index] <= value

    @property
    def first(self) -> int:
        """The least integer. Raises IndexError when empty."""
        return self._starts[0]

    @property
    def last(self) -> int:
        """The greatest integer. Raises IndexError when empty."""
        return self._chunks[-1][1][-1]

    def _find(self, value: int) -> tuple[int, int]:
        """Return (chunk, index in the chunk) of the first range that ends at `value` or behind it.
        Without a match the result lies behind the last chunk."""
        at = bisect_right(self._starts, value) - 1
        if at < 0:
            return 0, 0
        lasts = self._chunks[at][1]
        index = bisect_left(lasts, value)
        return (at, index) if index < len(lasts) else (at + 1, 0)

    def remove(self, first: int, last: int) -> int:
        """Take first to last out; return how many of these integers were in the set."""
        chunks, before = self._chunks, self.count
        if self._length == 1 and first <= chunks[0][0][0] and last >= chunks[0][1][0]:
            # As most small sets end.
            chunks.clear()
            del self._starts[:]
            self._length = self.count = 0
            return before
        at, index = self._find(first)
        if at < len(chunks) and chunks[at][0][index] <= last:
            chunk, end = self._own(at), at + 1
            self._cut(chunk, index, bisect_right(chunk[0], last, index), first, last)
            if end < len(chunks) and self._starts[end] <= last:
                end = self._remove_behind(end, first, last)
            self._tidy(at, end)
        return before - self.count

    def _remove_behind(self, at: int, first: int, last: int) -> int:
        """Remove from the chunk at `at` on: whole chunks, then ranges of the chunk behind them.
        Return the index at which the changed chunks end."""
        whole = bisect_right(self._starts, last) - 1
        self.count -= sum(map(_count, self._chunks[at:whole]))
        self._length -= sum(map(_size, self._chunks[at:whole]))
        del self._chunks[at:whole], self._starts[at:whole]
        chunk = self._own(at)
        self._cut(chunk, 0, bisect_right(chunk[0], last), first, last)
        return at + 1

    def _own(self, at: int) -> Chunk:
        """Return a chunk that is about to change, as this set's own arrays."""
        chunk = self._chunks[at]
        if self._is_plain or not (isinstance(chunk, Packed) or id(chunk) in self._shared):
            return cast(Chunk, chunk)
        if self._warm is not None:
            self._cool()
        self._shared.discard(id(chunk))
        own = self._chunks[at] = [column[:] for column in self._chunks[at]]
        if self._warm is not None:
            self._warm.append(own)
        return own

    # --- Packed chunks ------------------------------------------------------------------

    def _warm_up(self, made: Iterable[Chunk]) -> None:
        """Note that chunks became arrays. None of the chunks may be about to change."""
        if self._warm is not None:
            self._warm.extend(made)
            self._cool()
        elif len(self._chunks) > WARM_COUNT:
            self._warm = deque([one for one in self._chunks if isinstance(one, list)])
            self._shared = self._shared or set()
            self._is_plain = False
            self._cool()

    def _cool(self) -> None:
        """Pack the chunks that have been arrays for the longest time, until there is room for
        another one. At most `COOLED_MAX` chunks are packed at a time."""
        assert self._warm is not None
        for _ in range(min(len(self._warm) - WARM_COUNT + 1, COOLED_MAX)):
            chunk = self._warm.popleft()
            at = bisect_right(self._starts, chunk[0][0]) - 1 if chunk[0] else -1
            if at >= 0 and self._chunks[at] is chunk:
                self._shared.discard(id(chunk))
                self._chunks[at] = Packed.of(chunk)

    def _thaw(self) -> None:
        """There are few chunks: none is packed any more."""
        for at, chunk in enumerate(self._chunks):
            if isinstance(chunk, Packed):
                self._chunks[at] = [column[:] for column in chunk]
        self._warm = None
        self._is_plain = not self._shared

    def _cut(self, chunk: Chunk, low: int, high: int, first: int, last: int) -> None:
        """Take first to last out of the ranges of a chunk that overlap first to last."""
        firsts, lasts = chunk[0], chunk[1]
        start, end = firsts[low], lasts[high - 1]
        is_one = high - low == 1
        if is_one and (start < first) != (end > last):
            if start < first:
                lasts[low] = first - 1
                self.count -= end - first + 1
            else:
                firsts[low] = last + 1
                self.count -= last - start + 1
            return
        self.count -= sum(lasts[low:high]) - sum(firsts[low:high]) + high - low
        left = []
        if start < first:
            left.append([start, first - 1, *[column[low] for column in chunk[2:]]])
            self.count += first - start
        if end > last:
            left.append([last + 1, end, *[column[high - 1] for column in chunk[2:]]])
            self.count += end - last
        self._length += len(left) - (high - low)
        for number, column in enumerate(chunk):
            column[low:high] = array("Q", [each[number] for each in left])

    def _insert(self, first: int, last: int, *numbers: int) -> None:
        """Add a range that overlaps no other range."""
        if not self._chunks:
            self._starts = array("Q", (first,))
            self._chunks = [[array("Q") for _ in range(2 + self._width)]]
        at = max(bisect_right(self._starts, first) - 1, 0)
        chunk = self._own(at)
        index = bisect_left(chunk[0], first)
        for column, number in zip(chunk, (first, last, *numbers), strict=True):
            column.insert(index, number)
        self._length += 1
        self.count += last - first + 1
        self._tidy(at, at + 1)

    def _tidy(self, begin: int, end: int) -> None:
        """Chunks begin to end - 1 have changed: none is to be empty, too long, or short beside a
        short one."""
        chunks = self._chunks
        size = len(chunks[begin][0])
        is_alone = len(chunks) == 1 or size > CHUNK_COUNT // 4
        if end == begin + 1 and is_alone and 0 < size <= CHUNK_COUNT:
            self._starts[begin] = chunks[begin][0][0]
            return
        placed: list[Chunk | Packed] = []
        end = min(end + 1, len(chunks))  # the next one may take in what is short
        before = chunks[begin:end]
        for chunk in before:
            size = _size(chunk)
            if size > CHUNK_COUNT:
                half = size // 2
                placed.append([column[:half] for column in chunk])
                placed.append([column[half:] for column in chunk])
            elif placed and len(placed[-1][0]) + size <= CHUNK_COUNT // 2:
                placed[-1] = [one + more for one, more in zip(placed[-1], chunk, strict=True)]
            elif size:
                placed.append(chunk)
        chunks[begin:end] = placed
        self._starts[begin:end] = array("Q", [chunk[0][0] for chunk in placed])
        if self._warm is not None and len(chunks) <= max(WARM_COUNT // 4, 1):
            self._thaw()
        known = set(map(id, before))
        self._warm_up([one for one in placed if isinstance(one, list) and id(one) not in known])

    def _new(self) -> Self:
        """Return an empty set of the same class."""
        raise NotImplementedError

    def copy(self) -> Self:
        """Return an equal set that later changes of either set leave alone."""
        twin = self._new()
        if not self._chunks:
            return twin
        twin._starts = self._starts[:]
        if len(self._chunks) > EAGER_COUNT:
            twin._chunks = self._chunks[:]
            self._shared = set(map(id, self._chunks if self._warm is None else self._warm))
            twin._shared = self._shared.copy()
            twin._warm = self._warm if self._warm is None else self._warm.copy()
            self._is_plain = twin._is_plain = False
        else:
            twin._chunks = [[column[:] for column in chunk] for chunk in self._chunks]
        twin._length, twin.count = self._length, self.count
        return twin

    def to_bytes(self) -> bytes:
        """All firsts, all lasts, then all of each number, eight bytes each in the machine's order
        (little-endian on every machine that mirrorq runs on)."""
        columns = range(2 + self._width)
        return b"".join(chunk[one].tobytes() for one in columns for chunk in self._chunks)

    def extend(self, data: bytes) -> None:
        """Add ranges, in the format of `to_bytes`, behind all others. Raises ValueError if the
        bytes are malformed or the ranges do not come behind."""
        width = 2 + self._width
        if len(data) % (8 * width):
            raise ValueError(f"ranges of {len(data)} bytes: not a multiple of {8 * width}")
        if not data:
            return
        size = len(data) // width
        whole = [array("Q", data[at : at + size]) for at in range(0, len(data), size)]
        firsts, lasts = whole[0], whole[1]
        are_apart = all(map(lt, map(self.GAP.__add__, lasts), islice(firsts, 1, None)))
        if not are_apart or not all(map(le, firsts, lasts)):
            raise ValueError("ranges out of order")
        if self and firsts[0] <= self.last:
            raise ValueError(f"a range from {firsts[0]} comes late")
        self._join(whole)
        self.count += sum(lasts) - sum(firsts) + len(firsts)
        self._length += len(firsts)
        starts = range(0, len(firsts), CHUNK_COUNT)
        made = [[column[at : at + CHUNK_COUNT] for column in whole] for at in starts]
        if self._chunks:
            self._chunks += made
            self._starts += firsts[::CHUNK_COUNT]
        else:
            self._chunks, self._starts = [*made], firsts[::CHUNK_COUNT]
        self._warm_up(made)

    def _join(self, whole: Chunk) -> None:
        """Join the first range of `whole` with the last range of the set if both touch."""
        if not self or whole[0][0] != self.last + 1:
            return
        before = [*self._chunks[-1]]
        if all(column[-1] == more[0] for column, more in zip(before[2:], whole[2:], strict=True)):
            first = before[0][-1]
            self.remove(first, self.last)
            whole[0][0] = first

    def part(self, first: int, last: int) -> bytes:
        """Return the parts of first to last that are in ranges, in the format of `to_bytes`."""
        columns: Chunk = [array("Q") for _ in range(2 + self._width)]
        at, low = self._find(first)
        while at < len(self._chunks):
            chunk = self._chunks[at]
            high = bisect_right(chunk[0], last, low)
            for column, known in zip(columns, chunk, strict=True):
                column += known[low:high]
            if high < len(chunk[0]):
                break
            at, low = at + 1, 0
        if columns[0]:
            columns[0][0] = max(columns[0][0], first)
            columns[1][-1] = min(columns[1][-1], last)
        return b"".join(column.tobytes() for column in columns)

    def count_within(self, first: int, last: int) -> int:
        """Return how many ranges overlap first to last."""
        (at, index), (end, stop) = self._find(first), self._find(last)
        count = sum(map(_size, self._chunks[at:end])) - index + stop
        is_more = end < len(self._chunks) and self._chunks[end][0][stop] <= last
        return count + is_more

    def reach(self, first: int, last: int, count: int) -> int:
        """Return the end of a stretch from `first` that overlaps at most `count` ranges. The end is
        `last` at most."""
        at, index = self._find(first)
        while at < len(self._chunks):
            firsts = self._chunks[at][0]
            if index + count < len(firsts):
                return min(firsts[index + count] - 1, last)
            count -= len(firsts) - index
            at, index = at + 1, 0
        return last


class RangeSet(Chunks, gc=False, eq=False):
    """Sorted disjoint ranges of non-negative integers; neighbours are always merged."""

    GAP: ClassVar[int] = 1

    _given: Iterable[Range] = ()
    """Ranges of a new set. Empty when the set is made."""

    def __post_init__(self) -> None:
        if self._given != ():
            given, self._given = self._given, ()
            for first, last in given:
                self.add(first, last)

    def __iter__(self) -> Iterator[Range]:
        chunks = self._chunks
        if len(chunks) == 1:
            return zip(*chunks[0], strict=True)
        return chain.from_iterable(zip(*chunk, strict=True) for chunk in chunks[:])

    def add(self, first: int, last: int) -> None:
        """Add first to last; integers that are already in the set stay."""
        chunks = self._chunks
        if not chunks or first > chunks[-1][1][-1] + 1:
            self._append(first, last)
            return
        at, index = self._find(first - 1)
        if chunks[at][0][index] > last + 1:
            self._insert(first, last)
            return
        firsts, lasts = chunks[at] if self._is_plain else self._own(at)
        is_one = index + 1 == len(firsts) and at + 1 == len(chunks)
        if is_one or (index + 1 < len(firsts) and firsts[index + 1] > last + 1):
            start, end = firsts[index], lasts[index]
            if first < start:
                firsts[index] = first
                self.count += start - first
                self._starts[at] = firsts[0]
            if last > end:
                lasts[index] = last
                self.count += last - end
            return
        first = min(first, firsts[index])
        after = self.around(last + 1, last + 1)
        if after is not None:
            last = after[1]
        else:
            inside = self.around(last, last)
            last = last if inside is None else max(last, inside[1])
        self.remove(first, last)
        self._insert(first, last)

    def _append(self, first: int, last: int) -> None:
        """Add a range behind all others."""
        chunks = self._chunks
        if not chunks:
            self._starts = array("Q", (first,))
            self._chunks = [[self._starts[:], array("Q", (last,))]]
        elif len(chunks[-1][0]) >= CHUNK_COUNT:
            self._starts.append(first)
            chunk = [array("Q", (first,)), array("Q", (last,))]
            chunks.append(chunk)
            self._warm_up((chunk,))
        else:
            firsts, lasts = chunks[-1] if self._is_plain else self._own(len(chunks) - 1)
            firsts.append(first)
            lasts.append(last)
        self._length += 1
        self.count += last - first + 1

    def _new(self) -> Self:
        return type(self)()

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Read the bytes of `to_bytes`. Raises ValueError if the bytes are malformed."""
        made = cls()
        made.extend(data)
        return made

    def extent_within(self, first: int, last: int) -> Range:
        """The least and the greatest integer of first to last, some of which are in the set."""
        at, index = self._find(first)
        end, stop = self._find(last)
        chunks = self._chunks
        least = max(chunks[at][0][index], first)
        if end < len(chunks) and chunks[end][0][stop] <= last:
            return least, last
        lasts = chunks[end][1] if stop else chunks[end - 1][1]
        return least, lasts[stop - 1]

    def front(self) -> Range:
        """The first range. Raises IndexError when empty."""
        firsts, lasts = self._chunks[0]
        return firsts[0], lasts[0]

    def within(self, first: int, last: int) -> list[Range]:
        """Return the parts of first to last that are in the set."""
        found: list[Range] = []
        chunks = self._chunks
        if self._length == 1:
            start, end = chunks[0][0][0], chunks[0][1][0]
            is_none = start > last or end < first
            return [] if is_none else [(max(start, first), min(end, last))]
        at, low = self._find(first)
        while at < len(chunks):
            firsts, lasts = chunks[at]
            high = bisect_right(firsts, last, low)
            found += zip(firsts[low:high], lasts[low:high], strict=True)
            if high < len(firsts):
                break
            at, low = at + 1, 0
        if found:
            found[0] = (max(found[0][0], first), found[0][1])
            found[-1] = (found[-1][0], min(found[-1][1], last))
        return found

    def around(self, first: int, last: int) -> Range | None:
        """Return the first range of the set that overlaps first to last, None without a match."""
        at, index = self._find(first)
        if at == len(self._chunks) or self._chunks[at][0][index] > last:
            return None
        return self._chunks[at][0][index], self._chunks[at][1][index]

    def take_after(self, value: int, count: int, gap: int, ranges: int) -> Range | None:
        """The span of the first integers above `value` that are in the set: at most `count`
        of them, in so many ranges at most, and up to the first place where more than `gap`
        integers are not in the set.

        None when none is above `value`.
        """
        span: Range | None = None
        at, index = self._find(value + 1)
        while at < len(self._chunks) and ranges > 0:
            rest = [islice(column, index, index + ranges) for column in self._chunks[at]]
            for first, last in zip(*rest, strict=True):
                first = max(first, value + 1)
                if span is not None and (count <= 0 or first - span[1] > gap + 1):
                    return span
                last = min(last, first + count - 1)
                count -= last - first + 1
                span = (first if span is None else span[0], last)
            ranges -= _size(self._chunks[at]) - index
            at, index = at + 1, 0
        return span

    def first_run(self, first: int, last: int) -> Range:
        """Return the first part of first to last in the set; (last + 1, last) without a match."""
        found = self.around(first, last)
        return (last + 1, last) if found is None else (max(found[0], first), min(found[1], last))

    def nth(self, count: int) -> int:
        """Return the integer with count - 1 lesser ones in the set. Raises IndexError: too few."""
        for first, last in self:
            size = last - first + 1
            if count <= size:
                return first + count - 1
            count -= size
        raise IndexError(f"{count} more integers than there are")

    def gap(self, value: int, least: int, most: int) -> Range:
        """Return the widest range of integers around `value` that are not in the set.

        `value` itself must not be in the set. The answer lies within least to most.
        """
        at, index = self._find(value)
        if at < len(self._chunks):
            most = min(most, self._chunks[at][0][index] - 1)
        if index or at:
            lasts = self._chunks[at][1] if index else self._chunks[at - 1][1]
            least = max(least, lasts[index - 1] + 1)
        return least, most
