"""Size, time and ttl of each message, for counting and expiry at a master: no op depends on them.

The columns are most of the knowledge about a deep queue, and are seldom read. So they lie in
*blocks* of some thousand runs. The last block, the *tail*, takes new messages. A full block is
*sealed* and never changes again. The next checkpoint writes a sealed block once; then it leaves
memory, and is read again on demand. A line of the *directory* stays in memory: where the block
begins, the sum of its bodies, its latest time.

A sealed block keeps the lines of ended messages as long as a message in it lives. A block without a
live message goes as a whole when a checkpoint begins, unless its page is still needed.

Invariants:
1. a sealed block does not change.
2. a block that is not in memory is on the disk, under the lsn in its table.
3. a block begins at the first message that was put into it. The very first block begins at 0, and
   keeps this beginning when its messages have gone.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from typing import Self

import msgspec

from mirrorq.containers.ranges import Range, RangeSet
from mirrorq.containers.run_length import Column, SizedPiece, Sizes, equal_size, sizes_of
from mirrorq.errors import MALFORMED
from mirrorq.protocol.effects import Page
from mirrorq.replication.state import pages
from mirrorq.replication.state.pages import COLUMNS, END, MESSAGES, PageCache, Table, Watched

RUN_BYTES = 16
"""Of a run, in a page."""
MERGED_BLOCKS = 2
"""No more are looked through whether they have become little."""
_NUMBER_BYTES = 8


class Block:
    """A stretch of messages."""

    def __init__(self) -> None:
        self.sizes = Sizes()
        self.stamps = Column()
        """When each was published: ms since 1970; 0 is not known."""
        self.ttls = Column()
        """Each one's own time to live in ms; 0 is none."""

    def columns(self) -> tuple[Sizes, Column, Column]:
        return self.sizes, self.stamps, self.ttls

    @property
    def runs(self) -> int:
        """The most that one of its columns has."""
        return max(len(self.sizes), len(self.stamps), len(self.ttls))

    @property
    def count(self) -> int:
        """Runs of all of them."""
        return len(self.sizes) + len(self.stamps) + len(self.ttls)

    def encode(self) -> bytes:
        return msgspec.msgpack.encode([column.to_bytes() for column in self.columns()])

    @classmethod
    def decode(cls, data: bytes, last: int = END) -> Self:
        """Read what `encode` wrote. Raises ValueError when it is no such thing, or goes beyond
        `last`."""
        block = cls()
        try:
            sizes, stamps, ttls = msgspec.msgpack.decode(data, type=tuple[bytes, bytes, bytes])
        except MALFORMED as error:
            raise ValueError(f"a page of {len(data)} bytes: {error}") from error
        block.sizes = Sizes.from_bytes(sizes)
        block.stamps = Column.from_bytes(stamps)
        block.ttls = Column.from_bytes(ttls)
        for column in block.columns():
            column.check_end(last)
        return block


class Directory:
    """What is known of sealed blocks without reading them."""

    def __init__(self) -> None:
        self.firsts = array("Q")
        self.totals = array("Q")
        """Bytes of all bodies, while all of them live."""
        self.latest = array("Q")
        """The greatest of its times."""
        self.counts = array("Q")
        """Twice the runs of its columns, and 1 more where there is a ttl. 0: nothing is left."""

    def columns(self) -> tuple[array[int], ...]:
        return self.firsts, self.totals, self.latest, self.counts

    def append(self, *numbers: int) -> None:
        for column, number in zip(self.columns(), numbers, strict=True):
            column.append(number)

    def _within(self, first: int, last: int) -> Range:
        """(index of the first, index behind the last) of the blocks that begin in first to last."""
        low, high = bisect_left(self.firsts, first), bisect_right(self.firsts, last)
        is_empty = low == 0 < high and not self.counts[0]
        return low + is_empty, high

    def count(self, first: int, last: int) -> int:
        """How many blocks begin in first to last."""
        low, high = self._within(first, last)
        return high - low

    def extent(self, first: int, last: int) -> Range:
        """Where the first and the last block of these begin; (last, first) when none does."""
        low, high = self._within(first, last)
        return (self.firsts[low], self.firsts[high - 1]) if low < high else (last, first)

    def part(self, first: int, last: int) -> bytes:
        """Lines of the blocks that begin in first to last."""
        low, high = self._within(first, last)
        return b"".join(column[low:high].tobytes() for column in self.columns())

    def extend(self, data: bytes) -> None:
        """Lines that `part` gave, behind those that are there.

        Raises ValueError when they are no such thing.
        """
        width = len(self.columns())
        if len(data) % (_NUMBER_BYTES * width):
            raise ValueError(f"a directory of {len(data)} bytes")
        size = len(data) // width
        for index, column in enumerate(self.columns()):
            column.frombytes(data[index * size : (index + 1) * size])

    def begin(self, tail: int) -> None:
        """All lines have come: the first block begins at 0, whether anything is left of it.

        Args:
            tail: where the block begins that has no line.

        Raises ValueError when they are out of order.
        """
        firsts = self.firsts
        if any(map(int.__ge__, firsts, firsts[1:])) or 0 in self.counts:
            raise ValueError("blocks out of order")
        if firsts[0] if firsts else tail:
            for column in self.columns():
                column.insert(0, 0)

    def drop(self, low: int, high: int) -> None:
        """Nothing is left of these."""
        for column in self.columns():
            if low == 0:
                column[0] = 0
            del column[max(low, 1) : high]


class Columns:
    """Of one queue's state."""

    def __init__(self, table: Table, state: Watched) -> None:
        """
        Args:
            table: of the pages, whose `firsts` say where blocks begin.
        """
        self.table = table
        self.tail = Block()
        self.directory = Directory()
        """Of all blocks but the tail."""
        self.has_ttls = False
        """Whether some message may have one. Not part of the state: a hint for a master."""
        self.count = 0
        """Runs of sealed blocks."""
        self._state = state
        self._held: dict[int, Block] = {}
        """Sealed, and perhaps not on the disk yet."""
        self._ended = RangeSet()
        """Stretches of messages that have ended, where they take in whole blocks."""
        self._came: list[Page] = []
        """Pages of a state that is read."""
        self.keep_in(PageCache(), 0)

    def keep_in(self, cache: PageCache, queue_id: int) -> None:
        """What is on the disk needs not be in memory any more."""
        self._cache = cache
        self._owner = cache.owner()
        self._queue_id = queue_id

    # --- What has been published ----------------------------------------------------------

    def publish(self, first: int, offsets: bytes, count: int, stamp_ms: int, ttl_ms: int) -> None:
        """Add a frame's messages, by the offsets in it."""
        size = equal_size(offsets, count)
        if size is not None:
            self.append(first, first + count - 1, size, stamp_ms, ttl_ms)
            return
        sizes = sizes_of(offsets, count)
        for begin, end in self._opened(first, first + count - 1):
            self.tail.sizes.append_sizes(begin, sizes[begin - first : end - first + 1])
            self._set(begin, end, stamp_ms, ttl_ms)

    def append(self, first: int, last: int, size: int, stamp_ms: int, ttl_ms: int) -> None:
        """Add messages that are alike."""
        self._open(first)
        self.tail.sizes.append(first, last, size)
        self._set(first, last, stamp_ms, ttl_ms)

    def append_pieces(self, at: int, pieces: Iterable[SizedPiece], stamp_ms: int) -> None:
        """Add messages, from `at` on, that have the sizes of others in other columns."""
        for first, last, sizes in pieces:
            shift = at - first
            for begin, end in self._opened(at, last + shift):
                self.tail.sizes.append_from(sizes, begin - shift, end - shift, begin)
                self._set(begin, end, stamp_ms, 0)
            at = last + shift + 1

    def _set(self, first: int, last: int, stamp_ms: int, ttl_ms: int) -> None:
        self.tail.stamps.append(first, last, stamp_ms)
        self.tail.ttls.append(first, last, ttl_ms)
        self.has_ttls = self.has_ttls or ttl_ms > 0

    def _opened(self, first: int, last: int) -> Iterator[Range]:
        """First to last in pieces for each of which the tail has room when it is given."""
        while first <= last:
            self._open(first)
            room = pages.ENTRIES_MAX[COLUMNS] - self.tail.runs
            end = min(last, first + room - 1)
            yield first, end
            first = end + 1

    def _open(self, first: int) -> None:
        """The tail is about to change, and has room."""
        if self.tail.runs >= pages.ENTRIES_MAX[COLUMNS]:
            self._seal(first)
        at = self.table.firsts[-1]
        if self._state.snapshots or at not in self.table.changed:
            self._state.touch(COLUMNS, at, at)

    def _seal(self, first: int) -> None:
        """The tail is full; another one begins."""
        tail, at = self.tail, self.table.firsts[-1]
        self._state.touch(MESSAGES, at, at)
        total = tail.sizes.total(max(at, 1), first - 1) % (1 << 64)
        has_ttl = tail.ttls.greatest > 0
        self.directory.append(at, total, tail.stamps.greatest, 2 * tail.count + has_ttl)
        self.count += tail.count
        self._held[at] = tail
        self.table.append(first)
        self.tail = Block()

    # --- What is asked --------------------------------------------------------------------

    def block_of(self, sequence: int) -> int:
        """Which block a message lies in, counted from the first."""
        return self._find(sequence)

    def within_block(self, first: int, last: int) -> int:
        """The last of these that lies in the block of the first."""
        firsts, after = self.table.firsts, self._find(first) + 1
        return min(firsts[after] - 1, last) if after < len(firsts) else last

    def has_ttls_in(self, block: int) -> bool:
        """Whether some message of a block has a ttl, or may have."""
        counts = self.directory.counts
        return block >= len(counts) or bool(counts[block] & 1)

    def _find(self, sequence: int) -> int:
        return bisect_right(self.table.firsts, sequence) - 1

    def _block(self, index: int) -> Block:
        firsts = self.table.firsts
        if index + 1 == len(firsts):
            return self.tail
        first = firsts[index]
        block: Block | None = self._held.get(first) or self._cache.get(self._owner, first)
        if block is None:
            block = self._read(index)
            self._cache.put(self._owner, first, block)
        return block

    def _read(self, index: int) -> Block:
        """A block from the disk. Where it is damaged there, sizes and times are not known: 0."""
        first, last = self.table.stretch(self.table.firsts[index])
        data = self._cache.read(self._queue_id, COLUMNS, first, self.table.lsn(first))
        try:
            return Block.decode(data, last)
        except ValueError:
            block = Block()
            for column in block.columns():
                column.append(first, last, 0)
            return block

    def _pieces(self, first: int, last: int) -> Iterator[tuple[int, int, int]]:
        """(block, first, last) of what first to last lie in."""
        index, firsts = self._find(first), self.table.firsts
        while first <= last:
            end = min(firsts[index + 1] - 1, last) if index + 1 < len(firsts) else last
            yield index, first, end
            first, index = end + 1, index + 1

    def total(self, first: int, last: int) -> int:
        """Bytes of first to last, all of which are live."""
        low, high, firsts = self._find(first), self._find(last), self.table.firsts
        if low == high:
            return self._block(low).sizes.total(first, last)
        # Of what lies between all live: the directory knows their sum.
        whole = low + (first > max(firsts[low], 1))
        found = sum(self.directory.totals[whole:high])
        if low < whole:
            found += self._block(low).sizes.total(first, firsts[whole] - 1)
        return found + self._block(high).sizes.total(firsts[high], last)

    def reach(self, first: int, last: int, size: int) -> int:
        """The first message, from `first` on, with which they are so many bytes; `last` when all of
        them, live ones, are fewer."""
        for index, low, high in self._pieces(first, last):
            held = self.total(low, high) if high == last else self._total_to_end(index, low)
            if held >= size or high == last:
                return self._block(index).sizes.reach(low, high, size)
            size -= held
        return last

    def _total_to_end(self, index: int, first: int) -> int:
        """Bytes from here to the end of a sealed block."""
        firsts = self.table.firsts
        if first <= max(firsts[index], 1):
            return self.directory.totals[index]
        return self._block(index).sizes.total(first, firsts[index + 1] - 1)

    def size(self, sequence: int) -> int:
        """Bytes of a live message's body."""
        return self._block(self._find(sequence)).sizes.at(sequence)

    def stamp_ms(self, sequence: int) -> int:
        """When a live message was published."""
        return self._block(self._find(sequence)).stamps.at(sequence)

    def stamps(self, first: int, last: int) -> Iterator[tuple[int, int, int]]:
        """(first, last, time) of runs of live messages."""
        for index, low, high in self._pieces(first, last):
            yield from self._block(index).stamps.runs(low, high)

    def ttls(self, first: int, last: int) -> Iterator[tuple[int, int, int]]:
        """(first, last, ttl) of runs of live messages."""
        for index, low, high in self._pieces(first, last):
            if self.has_ttls_in(index):
                yield from self._block(index).ttls.runs(low, high)
            else:
                yield low, high, 0

    def since(self, stamp_ms: int, first: int, last: int) -> int | None:
        """The first of these live messages that was published then or later."""
        latest = self.directory.latest
        for index, low, high in self._pieces(first, last):
            if index < len(latest) and latest[index] < stamp_ms:
                continue
            for begin, _, value in self._block(index).stamps.runs(low, high):
                if value >= stamp_ms:
                    return begin
        return None

    def latest_ms(self, live: Iterable[Range]) -> int:
        """The greatest time of these."""
        return max((value for piece in live for _, _, value in self.stamps(*piece)), default=0)

    # --- What has ended -------------------------------------------------------------------

    def forget(self, low: int, high: int) -> None:
        """No message from low to high is live, and none beside them is dead."""
        at = self.table.firsts[-1]
        if high >= at and self.tail.runs:
            if self._state.snapshots or at not in self.table.changed:
                self._state.touch(COLUMNS, at, at)
            for column in self.tail.columns():
                column.forget(1 if low <= at else low, high)
        if low < at:
            self._note_ended(0 if low == 1 else low, min(high, at - 1))

    def _note_ended(self, low: int, high: int) -> None:
        firsts = self.table.firsts
        index = bisect_left(firsts, low)
        if index + 1 < len(firsts) and firsts[index + 1] - 1 <= high:
            self._ended.add(low, high)

    def sweep(self) -> None:
        """Blocks of which nothing lives are no more. Called between checkpoints: what the last one
        has on the disk must be there until the next one is."""
        ended, self._ended = self._ended, RangeSet()
        # From behind: what is before stays where it is.
        for low, high in reversed([*ended]):
            begin, end = bisect_left(self.table.firsts, low), self._find(high + 1)
            if begin >= end:
                continue
            last = self.table.firsts[end] - 1
            if any(one.wants(COLUMNS, low, last) for one in self._state.snapshots):
                self._ended.add(low, high)
            elif self.directory.counts[begin] or end > begin + 1:
                self._drop(begin, end)

    def _drop(self, begin: int, end: int) -> None:
        firsts, counts = self.table.firsts, self.directory.counts
        self._state.touch(MESSAGES, firsts[begin], firsts[end - 1])
        self.count -= sum(count // 2 for count in counts[begin:end])
        for first in [one for one in self._held if firsts[begin] <= one <= firsts[end - 1]]:
            del self._held[first]
        self.directory.drop(begin, end)
        self.table.drop_many(begin, end)

    # --- Memory, and pages ----------------------------------------------------------------

    @property
    def held_count(self) -> int:
        """Sealed blocks that are to go to the disk before they can leave the memory."""
        return len(self._held) if self._cache.can_read else 0

    def release(self) -> None:
        """All that was given to the disk is there, and no checkpoint is being made."""
        if not self._cache.can_read:
            return
        for first in [*self._held]:
            if first not in self.table.changed and self.table.lsn(first):
                self._cache.put(self._owner, first, self._held.pop(first))

    @property
    def tail_end(self) -> int:
        """Where the tail begins and 1 more, 0 when there is nothing in it."""
        return self.table.firsts[-1] + 1 if self.tail.runs else 0

    def blocks(self, first: int, last: int) -> int:
        """How many sealed blocks begin in first to last."""
        return self.directory.count(first, last)

    @property
    def bytes_about(self) -> int:
        """Of all pages."""
        return RUN_BYTES * (self.count + self.tail.count)

    @property
    def changed_bytes(self) -> int:
        """Of those that go to the disk next."""
        return RUN_BYTES * sum(map(self.count_of, self.table.changed))

    def count_of(self, first: int) -> int:
        """Runs of the block that begins here; 0: there is nothing, or no such block."""
        firsts = self.table.firsts
        index = bisect_left(firsts, first)
        if index == len(firsts) or firsts[index] != first:
            return 0
        counts = self.directory.counts
        return counts[index] // 2 if index < len(counts) else self.tail.count

    def page(self, first: int) -> bytes:
        """The page of the block that begins here: as it is on the disk, if it is there alone."""
        firsts = self.table.firsts
        is_here = first == firsts[-1] or first in self._held
        lsn = 0 if is_here else self.table.written_lsn(first)
        if lsn and self._cache.get(self._owner, first) is None:
            data = self._cache.read(self._queue_id, COLUMNS, first, lsn)
            if data:
                return data
        return self._block(bisect_left(firsts, first)).encode()

    def merged(self, live: Iterable[Range]) -> Block:
        """All of it as one block: equal where live messages and their numbers are."""
        if not len(self.directory.firsts):
            return self.tail
        whole = Block()
        for piece in live:
            for index, low, high in self._pieces(*piece):
                block = self._block(index)
                for column, known in zip(whole.columns(), block.columns(), strict=True):
                    column.extend(known.part(low, high))
        return whole

    def is_small(self, live: Iterable[Range], most: int) -> bool:
        """Whether all of it has no more than so many runs. Of many blocks that is not looked up."""
        if sum(map(bool, self.directory.counts[: MERGED_BLOCKS + 2])) > MERGED_BLOCKS:
            return False
        return self.merged(live).count <= most

    def collapse(self, table: Table, live: Iterable[Range]) -> None:
        """All of it is one value on the disk: it is the tail."""
        if len(self.directory.firsts):
            self._state.touch(COLUMNS, 0, END)
        self.replace(table, self.merged(live))

    def replace(self, table: Table, whole: Block) -> None:
        """All of it is this from now on, in blocks. None of them is on the disk."""
        self.table, self.tail, self.directory = table, Block(), Directory()
        self.has_ttls = whole.ttls.greatest > 0
        self._held, self._ended, self.count = {}, RangeSet(), 0
        self._owner = self._cache.owner()
        most = pages.ENTRIES_MAX[COLUMNS]
        begin, last = 1, max(column.last for column in whole.columns())
        while whole.runs > most and begin <= last:
            end = min(column.run_end(begin, most) for column in whole.columns())
            if end >= last:
                break
            for column, known in zip(self.tail.columns(), whole.columns(), strict=True):
                column.extend(known.part(begin, end))
            self._seal(end + 1)
            begin = end + 1
        if begin == 1:
            self.tail = whole
            return
        for column, known in zip(self.tail.columns(), whole.columns(), strict=True):
            column.extend(known.part(begin, last))

    # --- A state that is read -------------------------------------------------------------

    def add_page(self, page: Page) -> None:
        """A page has come, or is on the disk, where it has no data."""
        if self._came and page.first <= self._came[-1].first:
            raise ValueError(f"a block from {page.first} comes late")
        self._came.append(page)

    def end_pages(self, tail_end: int, next_sequence: int) -> None:
        """All have.

        Args:
            tail_end: first of the tail and 1 more; 0: there is nothing in it.

        Raises ValueError when they are not those that the directory and the head name.
        """
        came, self._came = self._came, []
        expected = [*self.directory.firsts, *([tail_end - 1] if tail_end else [])]
        if [page.first for page in came] != expected:
            raise ValueError(f"pages of {len(came)} blocks, not of {len(expected)}")
        self.directory.begin(tail_end - 1 if tail_end else 0)
        for page in came:
            self.table.load(page.first, page.lsn)
        if not tail_end and expected:
            self.table.append(next_sequence)
        self.count = sum(count // 2 for count in self.directory.counts)
        for page in came:
            if page.data is not None:
                self._held[page.first] = Block.decode(page.data, self.table.stretch(page.first)[1])
        at = self.table.firsts[-1]
        if tail_end:
            held = self._held.pop(at, None)
            self.tail = held or Block.decode(
                self._cache.read(self._queue_id, COLUMNS, at, self.table.lsn(at)), next_sequence - 1
            )
        counts = self.directory.counts
        self.has_ttls = self.tail.ttls.greatest > 0 or any(count & 1 for count in counts)
