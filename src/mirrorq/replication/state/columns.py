"""Size, time and ttl of each message, for counting and expiry at a master: no op depends on them.

Most of the knowledge about a deep queue lies in columns, and is seldom read. Columns are therefore
cut into *blocks* of some thousand runs. The last block, the *tail*, takes new messages. A full
block is *sealed* and never changes again. The next checkpoint writes a sealed block once. The block
then leaves memory, and is read again on demand. A line of the *directory* stays in memory: where
the block begins, the sum of its bodies, its latest time.

A sealed block keeps the lines of ended messages as long as one of its messages lives. A block
without a live message is removed when a checkpoint begins, unless its page is still needed.

Invariants:
1. a sealed block does not change.
2. a block that is not in memory is on the disk, under the lsn in its table.
3. a block begins at the first message that was put into it. The very first block begins at 0, and
   keeps its beginning when its messages have gone.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from typing import Self

import msgspec

from mirrorq.containers.range_map import NO_NUMBERS
from mirrorq.containers.ranges import Range, RangeSet
from mirrorq.containers.run_length import Column, SizedPiece, Sizes, equal_size, sizes_of
from mirrorq.errors import MALFORMED
from mirrorq.protocol.effects import Page
from mirrorq.replication.state import pages
from mirrorq.replication.state.pages import COLUMNS, END, MESSAGES, PageCache, Table, Watched

RUN_BYTES = 16
"""Bytes of a run in a page."""
MERGED_BLOCKS = 2
"""`is_small` does not merge more blocks than `MERGED_BLOCKS` to count runs."""
_NUMBER_BYTES = 8


class Block(msgspec.Struct, gc=False, eq=False):
    """Columns of neighbouring messages: sizes, publish times and ttls."""

    sizes: Sizes = msgspec.field(default_factory=Sizes)
    stamps: Column = msgspec.field(default_factory=Column)
    """Publish time of each message in ms since 1970; 0: not known."""
    ttls: Column = msgspec.field(default_factory=Column)
    """Ttl of each message in ms; 0: the message has none of its own."""

    def columns(self) -> tuple[Sizes, Column, Column]:
        return self.sizes, self.stamps, self.ttls

    @property
    def runs(self) -> int:
        """Number of runs of the longest column."""
        return max(len(self.sizes), len(self.stamps), len(self.ttls))

    @property
    def count(self) -> int:
        """Number of runs of the three columns together."""
        return len(self.sizes) + len(self.stamps) + len(self.ttls)

    def encode(self) -> bytes:
        return msgspec.msgpack.encode([column.to_bytes() for column in self.columns()])

    @classmethod
    def decode(cls, data: bytes, last: int = END) -> Self:
        """Read the result of `encode`. Raises ValueError when the bytes are malformed, or a column
        goes beyond `last`."""
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


class Directory(msgspec.Struct, gc=False, eq=False):
    """Summary of each sealed block. Answers many questions without reading the block."""

    firsts: array[int] = NO_NUMBERS
    totals: array[int] = NO_NUMBERS
    """Bytes of all bodies of each block, ended messages included."""
    latest: array[int] = NO_NUMBERS
    """Latest publish time in each block, in ms."""
    counts: array[int] = NO_NUMBERS
    """Twice the runs of each block, plus 1 where a message has a ttl. 0: the block is empty."""

    def columns(self) -> tuple[array[int], ...]:
        return self.firsts, self.totals, self.latest, self.counts

    def _make_columns(self) -> None:
        if not self.firsts:
            self.firsts, self.totals = array("Q"), array("Q")
            self.latest, self.counts = array("Q"), array("Q")

    def append(self, *numbers: int) -> None:
        self._make_columns()
        for column, number in zip(self.columns(), numbers, strict=True):
            column.append(number)

    def _within(self, first: int, last: int) -> Range:
        """(index of the first, index behind the last) of the blocks that begin in first to last."""
        low, high = bisect_left(self.firsts, first), bisect_right(self.firsts, last)
        is_empty = low == 0 < high and not self.counts[0]
        return low + is_empty, high

    def count(self, first: int, last: int) -> int:
        """Return the number of blocks that begin in first to last."""
        low, high = self._within(first, last)
        return high - low

    def extent(self, first: int, last: int) -> Range:
        """Beginnings of the first and last block in first to last; (last, first) for none."""
        low, high = self._within(first, last)
        return (self.firsts[low], self.firsts[high - 1]) if low < high else (last, first)

    def part(self, first: int, last: int) -> bytes:
        """Lines of the blocks that begin in first to last."""
        low, high = self._within(first, last)
        columns = self.columns() if low < high else ()
        return b"".join(column[low:high].tobytes() for column in columns)

    def extend(self, data: bytes) -> None:
        """Append lines that `part` gave.

        Raises ValueError when the data have a wrong length.
        """
        width = len(self.columns())
        if len(data) % (_NUMBER_BYTES * width):
            raise ValueError(f"a directory of {len(data)} bytes")
        size = len(data) // width
        self._make_columns()
        for index, column in enumerate(self.columns()):
            column.frombytes(data[index * size : (index + 1) * size])

    def finish_blocks(self, tail: int) -> None:
        """Finish after all lines were added: the first block begins at 0, even an empty block.

        Args:
            tail: beginning of the tail, which has no line.

        Raises ValueError when the lines are out of order.
        """
        firsts = self.firsts
        if any(map(int.__ge__, firsts, firsts[1:])) or 0 in self.counts:
            raise ValueError("blocks out of order")
        if firsts[0] if firsts else tail:
            self._make_columns()
            for column in self.columns():
                column.insert(0, 0)

    def drop(self, low: int, high: int) -> None:
        """Remove the lines of empty blocks, `low` to below `high`. The first line stays."""
        for column in self.columns():
            if low == 0:
                column[0] = 0
            del column[max(low, 1) : high]


class Columns:
    """Columns of a queue's state."""

    def __init__(self, table: Table, state: Watched) -> None:
        """
        Args:
            table: pages of the columns. Its `firsts` are the beginnings of the blocks.
        """
        self.table = table
        self.tail = Block()
        self.directory = Directory()
        """Lines of all blocks but the tail."""
        self.has_ttls = False
        """True if a message may have a ttl. A hint for a master, no part of the state."""
        self.count = 0
        """Runs of all sealed blocks."""
        self._state = state
        self._held: dict[int, Block] = {}
        """Sealed blocks in memory that may not be on the disk yet, by beginning."""
        self._ended = RangeSet()
        """Ended messages, in stretches that cover whole blocks."""
        self._came: list[Page] = []
        """Pages added while a state is read."""
        self.keep_in(PageCache(), 0)

    def keep_in(self, cache: PageCache, queue_id: int) -> None:
        """Use this cache for blocks on the disk: such blocks may leave memory."""
        self._cache = cache
        self._owner = cache.owner()
        self._queue_id = queue_id

    # --- Publishing -----------------------------------------------------------------------

    def publish(self, first: int, offsets: bytes, count: int, stamp_ms: int, ttl_ms: int) -> None:
        """Add the messages of a frame; sizes are computed from the frame's offsets."""
        size = equal_size(offsets, count)
        if size is not None:
            self.append(first, first + count - 1, size, stamp_ms, ttl_ms)
            return
        sizes = sizes_of(offsets, count)
        for begin, end in self._opened(first, first + count - 1):
            self.tail.sizes.append_sizes(begin, sizes[begin - first : end - first + 1])
            self._set(begin, end, stamp_ms, ttl_ms)

    def append(self, first: int, last: int, size: int, stamp_ms: int, ttl_ms: int) -> None:
        """Add messages that have the same size, time and ttl."""
        self._open(first)
        self.tail.sizes.append(first, last, size)
        self._set(first, last, stamp_ms, ttl_ms)

    def append_pieces(self, at: int, pieces: Iterable[SizedPiece], stamp_ms: int) -> None:
        """Add messages from sequence `at` on. Their sizes are copied from other columns."""
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
        """Cut first to last into pieces. At each yield the tail has room for the yielded piece."""
        while first <= last:
            self._open(first)
            room = pages.ENTRIES_MAX[COLUMNS] - self.tail.runs
            end = min(last, first + room - 1)
            yield first, end
            first = end + 1

    def _open(self, first: int) -> None:
        """Prepare the tail for a change: seal a full tail, and mark its page as changed."""
        if self.tail.runs >= pages.ENTRIES_MAX[COLUMNS]:
            self._seal(first)
        at = self.table.firsts[-1]
        if self._state.snapshots or at not in self.table.changed:
            self._state.touch(COLUMNS, at, at)

    def _seal(self, first: int) -> None:
        """Seal the full tail, and begin another tail at `first`."""
        tail, at = self.tail, self.table.firsts[-1]
        self._state.touch(MESSAGES, at, at)
        total = tail.sizes.total(max(at, 1), first - 1) % (1 << 64)
        has_ttl = tail.ttls.greatest > 0
        self.directory.append(at, total, tail.stamps.greatest, 2 * tail.count + has_ttl)
        self.count += tail.count
        self._held[at] = tail
        self.table.append(first)
        self.tail = Block()

    # --- Queries --------------------------------------------------------------------------

    def block_of(self, sequence: int) -> int:
        """Index of the block with this message."""
        return self._find(sequence)

    def within_block(self, first: int, last: int) -> int:
        """Last message of first to last that lies in the same block as `first`."""
        firsts, after = self.table.firsts, self._find(first) + 1
        return min(firsts[after] - 1, last) if after < len(firsts) else last

    def has_ttls_in(self, block: int) -> bool:
        """Return true if a message of the block has a ttl, or may have a ttl."""
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
        """Read a block from the disk. In a damaged block sizes, times and ttls are 0: unknown."""
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
        """Cut first to last at the borders of blocks: (block index, first, last)."""
        index, firsts = self._find(first), self.table.firsts
        while first <= last:
            end = min(firsts[index + 1] - 1, last) if index + 1 < len(firsts) else last
            yield index, first, end
            first, index = end + 1, index + 1

    def total(self, first: int, last: int) -> int:
        """Bytes of the messages from first to last, which must all be live."""
        low, high, firsts = self._find(first), self._find(last), self.table.firsts
        if low == high:
            return self._block(low).sizes.total(first, last)
        # All messages between are live: the directory has their sum.
        whole = low + (first > max(firsts[low], 1))
        found = sum(self.directory.totals[whole:high])
        if low < whole:
            found += self._block(low).sizes.total(first, firsts[whole] - 1)
        return found + self._block(high).sizes.total(firsts[high], last)

    def reach(self, first: int, last: int, size: int) -> int:
        """Return the first message at which the bodies from `first` on reach `size` bytes. Return
        `last` when they have fewer bytes. All messages must be live."""
        for index, low, high in self._pieces(first, last):
            held = self.total(low, high) if high == last else self._total_to_end(index, low)
            if held >= size or high == last:
                return self._block(index).sizes.reach(low, high, size)
            size -= held
        return last

    def _total_to_end(self, index: int, first: int) -> int:
        """Bytes of the bodies from `first` to the end of a sealed block."""
        firsts = self.table.firsts
        if first <= max(firsts[index], 1):
            return self.directory.totals[index]
        return self._block(index).sizes.total(first, firsts[index + 1] - 1)

    def size(self, sequence: int) -> int:
        """Bytes of a live message's body."""
        return self._block(self._find(sequence)).sizes.at(sequence)

    def stamp_ms(self, sequence: int) -> int:
        """Publish time of a live message in ms since 1970; 0: not known."""
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
        """Return the first of these live messages that was published at `stamp_ms` or later."""
        latest = self.directory.latest
        for index, low, high in self._pieces(first, last):
            if index < len(latest) and latest[index] < stamp_ms:
                continue
            for begin, _, value in self._block(index).stamps.runs(low, high):
                if value >= stamp_ms:
                    return begin
        return None

    def latest_ms(self, live: Iterable[Range]) -> int:
        """Latest publish time of these live messages, 0 without a message."""
        return max((value for piece in live for _, _, value in self.stamps(*piece)), default=0)

    # --- Ended messages -------------------------------------------------------------------

    def forget(self, low: int, high: int) -> None:
        """Forget ended messages. `low` to `high` is a whole gap between live messages."""
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
        """Drop blocks without live messages. Call only between checkpoints: the pages of the last
        checkpoint must stay on the disk until the next checkpoint is complete."""
        ended, self._ended = self._ended, RangeSet()
        # From behind: earlier blocks keep their indexes.
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

    # --- Memory and pages -----------------------------------------------------------------

    @property
    def held_count(self) -> int:
        """Number of sealed blocks that must go to the disk before they can leave memory."""
        return len(self._held) if self._cache.can_read else 0

    def release(self) -> None:
        """Move written blocks to the cache. Call only when no checkpoint is being made."""
        if not self._cache.can_read:
            return
        for first in [*self._held]:
            if first not in self.table.changed and self.table.lsn(first):
                self._cache.put(self._owner, first, self._held.pop(first))

    @property
    def tail_end(self) -> int:
        """Beginning of the tail plus 1; 0: the tail is empty."""
        return self.table.firsts[-1] + 1 if self.tail.runs else 0

    def blocks(self, first: int, last: int) -> int:
        """Return the number of sealed blocks that begin in first to last."""
        return self.directory.count(first, last)

    @property
    def bytes_about(self) -> int:
        """Approximate bytes of all pages."""
        return RUN_BYTES * (self.count + self.tail.count)

    @property
    def changed_bytes(self) -> int:
        """Approximate bytes of the pages that the next checkpoint writes."""
        return RUN_BYTES * sum(map(self.count_of, self.table.changed))

    def count_of(self, first: int) -> int:
        """Number of runs of the block that begins at `first`; 0: no such block, or empty."""
        firsts = self.table.firsts
        index = bisect_left(firsts, first)
        if index == len(firsts) or firsts[index] != first:
            return 0
        counts = self.directory.counts
        return counts[index] // 2 if index < len(counts) else self.tail.count

    def page(self, first: int) -> bytes:
        """Encode the block that begins at `first`. Bytes that are only on the disk are copied."""
        firsts = self.table.firsts
        is_here = first == firsts[-1] or first in self._held
        lsn = 0 if is_here else self.table.written_lsn(first)
        if lsn and self._cache.get(self._owner, first) is None:
            data = self._cache.read(self._queue_id, COLUMNS, first, lsn)
            if data:
                return data
        return self._block(bisect_left(firsts, first)).encode()

    def merged(self, live: Iterable[Range]) -> Block:
        """Join all columns to one block. Equal live messages and numbers give equal blocks."""
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
        """Return true if the joined columns have at most `most` runs. Many blocks: false."""
        if sum(map(bool, self.directory.counts[: MERGED_BLOCKS + 2])) > MERGED_BLOCKS:
            return False
        return self.merged(live).count <= most

    def collapse(self, table: Table, live: Iterable[Range]) -> None:
        """Join all columns in the tail: the state is written to the disk as one value."""
        if len(self.directory.firsts):
            self._state.touch(COLUMNS, 0, END)
        self.replace(table, self.merged(live))

    def replace(self, table: Table, whole: Block) -> None:
        """Replace all columns by `whole`, cut into blocks. No block is on the disk."""
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

    # --- Reading a state ------------------------------------------------------------------

    def add_page(self, page: Page) -> None:
        """Add a page of a state that is read. A page without data is on the disk."""
        if self._came and page.first <= self._came[-1].first:
            raise ValueError(f"a block from {page.first} comes late")
        self._came.append(page)

    def end_pages(self, tail_end: int, next_sequence: int) -> None:
        """Finish after all pages were added.

        Args:
            tail_end: beginning of the tail plus 1; 0: the tail is empty.

        Raises ValueError when the pages differ from the directory or the head.
        """
        came, self._came = self._came, []
        expected = [*self.directory.firsts, *([tail_end - 1] if tail_end else [])]
        if [page.first for page in came] != expected:
            raise ValueError(f"pages of {len(came)} blocks, not of {len(expected)}")
        self.directory.finish_blocks(tail_end - 1 if tail_end else 0)
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
