"""Outcomes of producers' numbers: of one producer, and of all producers of a queue. Pure.

A queue knows each handle that published within a day, be it ten or a million. Producers therefore
lie in pages of some hundred neighbours, in order of id, like sizes and times (`columns`). A page
that has not changed since it was written is only on the disk, and is read on demand. Changed pages
wait in memory for the next checkpoint, as the bytes of the checkpoint. The few pages that changed
last are objects.

Invariants:
1. a page in `changed` of its table, now or when the present checkpoint began, is in memory. The
   table has the lsn of any other page on the disk; 0: the page is empty.
2. a changed page is in no cache.
3. no page has more than `ENTRIES_MAX` producers. A larger page is cut in two at once, at the
   roundest id, so that all copies cut alike.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from typing import Annotated
from zlib import crc32

import msgspec

from mirrorq.containers.ranges import RangeSet
from mirrorq.errors import MALFORMED
from mirrorq.protocol.effects import PRODUCERS, Page
from mirrorq.replication.state import pages
from mirrorq.replication.state.pages import END, PageCache, Table, Watched

REFUSED = 0
"""First sequence of an outcome that is a refusal."""
LOST = -1
"""First sequence of an outcome whose messages were stored, and have since been lost."""
OPEN_PAGES = 8
"""Changed pages of one queue that are objects, some 40 KiB each. The bound limits the work of the
garbage collector; other changed pages are bytes."""
HELD_PAGES = 1024
"""Changed pages in memory, some 5 KiB each as bytes. With more, a checkpoint is due."""
WALKED_PAGES = 8
"""Pages read in one search for idle producers: less than a millisecond."""
LOSER_PAGES = 32
"""Pages read in one search for producers with lost messages: some three milliseconds. All searches
must end before an unclean promotion is applied."""

_Number = Annotated[int, msgspec.Meta(ge=0, le=END)]


class Producer(msgspec.Struct, array_like=True, gc=False):
    """State of one producer id: its highest number in the applied log, and the outcomes."""

    highest: _Number = 0
    settled: _Number = 0
    outcomes: list[tuple[int, int, int, str]] = []
    """(first number, count, first sequence or REFUSED, reason), in order of number."""
    used_us: int = 0
    """Timestamp of the last op of this producer. Decides about expiry."""

    def record_outcome(
        self, first: int, count: int, sequence: int, reason: str, settled: int
    ) -> None:
        """Record the outcome of numbers first to first + count - 1."""
        self.highest = max(self.highest, first + count - 1)
        self.settled = max(self.settled, settled)
        outcomes = self.outcomes
        if outcomes and sequence != REFUSED:
            before = outcomes[-1]
            joins = before[0] + before[1] == first and before[2] + before[1] == sequence
            if joins and before[2] > REFUSED and before[3] == reason:
                outcomes[-1] = (before[0], before[1] + count, before[2], reason)
                count = 0
        if count:
            outcomes.append((first, count, sequence, reason))
        self._forget_settled()

    def _forget_settled(self) -> None:
        keep = 0
        for first, count, _, _ in self.outcomes:
            if first + count - 1 > self.settled:
                break
            keep += 1
        if keep:
            del self.outcomes[:keep]

    def outcomes_of(self, first: int, last: int) -> list[tuple[int, int, int, str]]:
        """Outcomes of numbers first to last, as far as they are kept."""
        found = []
        for start, count, sequence, reason in self.outcomes:
            low, high = max(first, start), min(last, start + count - 1)
            if low <= high:
                shifted = sequence + low - start if sequence > REFUSED else sequence
                found.append((low, high - low + 1, shifted, reason))
        return found

    def has_some_of(self, lost: RangeSet) -> bool:
        """Return true if an outcome holds a sequence of `lost`."""
        return any(
            sequence > REFUSED and lost.around(sequence, sequence + count - 1) is not None
            for _, count, sequence, _ in self.outcomes
        )

    def lose(self, lost: RangeSet, reason: str) -> None:
        """Mark outcomes of these sequences as lost: a repeated query must not see a confirm."""
        kept, self.outcomes = self.outcomes, []
        for outcome in kept:
            first, count, sequence, why = outcome
            gone = lost.within(sequence, sequence + count - 1) if sequence > REFUSED else []
            if not gone:
                self.outcomes.append(outcome)
                continue
            begin = sequence
            for low, high in gone:
                if begin < low:
                    self.outcomes.append((first + begin - sequence, low - begin, begin, why))
                self.outcomes.append((first + low - sequence, high - low + 1, LOST, reason))
                begin = high + 1
            if begin < sequence + count:
                rest = sequence + count - begin
                self.outcomes.append((first + begin - sequence, rest, begin, why))


Chunk = dict[int, Producer]
"""The producers of a page."""
_Chunk = dict[_Number, Producer]
_DECODER = msgspec.msgpack.Decoder(_Chunk)
_ENCODER = msgspec.msgpack.Encoder()
Used = tuple[int, int]
"""(producer id, `used_us`)."""


def _packed(chunk: Chunk) -> bytes:
    return _ENCODER.encode(dict(sorted(chunk.items())))


def _unpacked(data: bytes) -> Chunk:
    """Decode a page. Raises ValueError for malformed bytes."""
    try:
        return _DECODER.decode(data)
    except MALFORMED as error:
        raise ValueError(f"a page of {len(data)} bytes: {error}") from error


def _part(chunk: Chunk, first: int, last: int) -> Chunk:
    return {number: one for number, one in chunk.items() if first <= number <= last}


class Producers(Mapping[int, Producer]):
    """Producers of one queue's state, by id. Callers must not change a producer that they read:
    `change` returns a producer for changes."""

    def __init__(self, table: Table, state: Watched) -> None:
        """
        Args:
            table: table of the pages. Only this class cuts the pages.
        """
        self.table = table
        self._state = state
        self._count = 0
        self._open: dict[int, Chunk] = {}
        """Changed pages as objects, by beginning. The most recently used page is last."""
        self._held: dict[int, tuple[int, bytes]] = {}
        """Other changed pages: (number of producers, bytes), by beginning."""
        self._are_given = False
        """True while a checkpoint has pages that may not be on the disk yet."""
        self._last_read = -1
        """Last id of the pages that were read so far."""
        self.keep_in(PageCache(), 0)

    def keep_in(self, cache: PageCache, queue_id: int) -> None:
        """Use this cache for pages on the disk: such pages may leave memory."""
        self._cache = cache
        self._owner = cache.owner()
        self._queue_id = queue_id

    # --- Queries ------------------------------------------------------------------------

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[int]:
        """All ids, in order: for a small state, and for tests."""
        return self.ids(0, END)

    def __getitem__(self, number: int) -> Producer:
        return self._chunk(self._find(number))[number]

    def find(self, number: int) -> Producer | None:
        """Return the producer of this id, or None. Reads at most one page."""
        return self._chunk(self._find(number)).get(number)

    def ids(self, first: int, last: int) -> Iterator[int]:
        """Known ids of first to last, in order."""
        for at in self._firsts(first, last):
            yield from sorted(_part(self._chunk(at), first, last))

    def walk(self, least: int) -> tuple[list[Used], int]:
        """(id, `used_us`) of producers from id `least` on, of a few pages, which are not put into
        the cache. Also the next `least`; 0: the end is reached."""
        firsts, found = self.table.firsts, list[Used]()
        index = bisect_right(firsts, least) - 1
        end = min(index + WALKED_PAGES, len(firsts))
        for at in firsts[index:end]:
            found += [(n, one.used_us) for n, one in sorted(self._looked_at(at).items())]
        return found, firsts[end] if end < len(firsts) else 0

    def losers(self, lost: RangeSet, least: int) -> tuple[list[int], int]:
        """Ids of producers that have outcomes with `lost` sequences, from id `least` on, of a few
        pages. Also the next `least`; 0: the end is reached."""
        firsts, found = self.table.firsts, list[int]()
        index = bisect_right(firsts, least) - 1
        end = min(index + LOSER_PAGES, len(firsts))
        for at in firsts[index:end]:
            for number, one in sorted(self._looked_at(at).items()):
                if one.outcomes and one.has_some_of(lost):
                    found.append(number)
        return found, firsts[end] if end < len(firsts) else 0

    def _find(self, number: int) -> int:
        """Beginning of the page with this id."""
        firsts = self.table.firsts
        return firsts[bisect_right(firsts, number) - 1]

    def _firsts(self, first: int, last: int) -> Iterator[int]:
        """Beginnings of the pages of first to last."""
        firsts = self.table.firsts
        index = bisect_right(firsts, first) - 1
        while index < len(firsts) and firsts[index] <= last:
            yield firsts[index]
            index += 1

    def _chunk(self, first: int) -> Chunk:
        chunk = self._open.get(first)
        if chunk is None and first in self._held:
            chunk = self._reopen(first)
        return self._cached(first) if chunk is None else chunk

    def _cached(self, first: int) -> Chunk:
        """Producers of an unchanged page. The cache keeps the page as bytes."""
        data: bytes | None = self._cache.get(self._owner, first)
        if data is None:
            data = self._bytes(first)
            if data:
                self._cache.put(self._owner, first, data)
        return _unpacked(data) if data else {}

    def _looked_at(self, first: int) -> Chunk:
        """Producers of a page, read without a change of the cache or of `_open`."""
        if first in self._held:
            return _unpacked(self._held[first][1])
        chunk = self._open.get(first)
        return self._read(first) if chunk is None else chunk

    def _read(self, first: int) -> Chunk:
        data = self._bytes(first)
        return _unpacked(data) if data else {}

    def _bytes(self, first: int) -> bytes:
        """Bytes of an unchanged page on the disk; b"" for an empty page."""
        lsn = self.table.lsn(first)
        if not lsn or first in self.table.changed:
            return b""
        return self._cache.read(self._queue_id, PRODUCERS, first, lsn)

    # --- Changes ------------------------------------------------------------------------

    def change(self, number: int) -> Producer | None:
        """Return the producer of this id for a change; None when the id is unknown."""
        first = self._find(number)
        chunk = self._open.get(first)
        if chunk is None or self._state.snapshots or first not in self.table.changed:
            if number not in self._chunk(first):
                return None
            chunk = self._changing(first, number)
        return chunk.get(number)

    def add(self, number: int, producer: Producer) -> Producer:
        """Add a producer under this id, or replace the producer."""
        first = self._find(number)
        chunk = self._changing(first, number)
        self._count += number not in chunk
        chunk[number] = producer
        if len(chunk) > pages.ENTRIES_MAX[PRODUCERS]:
            self._split(first, chunk, number)
        return producer

    def remove(self, number: int) -> None:
        """Remove the producer of this id, if known."""
        first = self._find(number)
        if number in self._chunk(first):
            del self._changing(first, number)[number]
            self._count -= 1

    def _changing(self, first: int, number: int) -> Chunk:
        """Open the page that begins at `first` for a change of producer `number`."""
        chunk = self._chunk(first)
        self._state.touch(PRODUCERS, number, number)
        self._cache.drop(self._owner, first)
        self._keep_open(first, chunk)
        return chunk

    def _keep_open(self, first: int, chunk: Chunk) -> None:
        self._open.pop(first, None)
        self._open[first] = chunk
        while len(self._open) > OPEN_PAGES:
            oldest = next(iter(self._open))
            packed = self._open.pop(oldest)
            self._held[oldest] = len(packed), _packed(packed)

    def _reopen(self, first: int) -> Chunk:
        chunk = _unpacked(self._held.pop(first)[1])
        self._keep_open(first, chunk)
        return chunk

    def _split(self, first: int, chunk: Chunk, number: int) -> None:
        """Cut a page in two. The half with `number`, which is about to change, is opened last."""
        least, most = min(chunk), max(chunk)
        bit = (least ^ most).bit_length() - 1
        at = most >> bit << bit
        self.table.insert(at)
        self.table.touch(first, at)
        del self._open[first]  # else the whole page could be kept as bytes, beside its half
        halves = [(first, _part(chunk, first, at - 1)), (at, _part(chunk, at, END))]
        for begin, half in halves if number >= at else reversed(halves):
            self._keep_open(begin, half)

    # --- Pages --------------------------------------------------------------------------

    def count_within(self, first: int, last: int) -> int:
        """Number of producers in first to last. A page wholly within that is only on the disk, and
        not empty, counts as 1 without a read."""
        return sum(self._count_of(at, first, last) for at in self._firsts(first, last))

    def _count_of(self, at: int, first: int, last: int) -> int:
        """Number of producers of first to last in the page that begins at `at`."""
        low, high = self.table.stretch(at)
        if low < first or high > last:
            return len(_part(self._looked_at(at), first, last))
        if at in self._held:
            return self._held[at][0]
        return len(self._open[at]) if at in self._open else not self._is_empty(at)

    def page(self, first: int, last: int) -> bytes:
        """Encode the page of this stretch, which must not be empty."""
        if self.table.stretch(self._find(first)) == (first, last):
            return self._page(first)
        found: Chunk = {}
        for at in self._firsts(first, last):
            found |= _part(self._looked_at(at), first, last)
        return _packed(found)

    def _page(self, first: int) -> bytes:
        if first in self._held:
            return self._held[first][1]
        chunk = self._open.get(first)
        return self._bytes(first) if chunk is None else _packed(chunk)

    def drop(self, first: int) -> None:
        """Forget an empty page that is about to be removed."""
        self._open.pop(first, None)
        self._held.pop(first, None)
        self._cache.drop(self._owner, first)

    def collapse(self, table: Table) -> None:
        """Forget all pages: the whole state is one value on the disk."""
        whole = dict(self.items())
        self.table, self._owner = table, self._cache.owner()
        self._open, self._held, self._count = {}, {}, 0
        self.load(whole)

    def load(self, whole: Chunk) -> None:
        """Add all producers of a state without pages."""
        for number, producer in sorted(whole.items()):
            self.add(number, producer)

    @property
    def held_count(self) -> int:
        """Number of pages that must go to the disk before they can leave memory."""
        return len(self._held) + len(self._open) if self._cache.can_read else 0

    def give(self) -> None:
        """Note that the changed pages are given to the disk now."""
        self._are_given = True

    @property
    def is_landing(self) -> bool:
        """Return true if pages that were given to the disk may not be there yet."""
        return self._are_given and self._cache.can_read

    def release(self) -> None:
        """Let written pages leave memory. Call only when no checkpoint is being made."""
        if not self._are_given or not self._cache.can_read:
            return
        self._are_given = False
        changed = self.table.changed
        for first in [one for one in self._held if one not in changed]:
            del self._held[first]
        for first in [one for one in self._open if one not in changed]:
            self._cache.put(self._owner, first, _packed(self._open.pop(first)))

    # --- Reading a state ----------------------------------------------------------------

    def pages_checksum(self) -> int:
        """Checksum of the beginnings of all pages that are not empty. Reveals a missing page."""
        empty = {first for first in (0, *self.table.changed) if self._is_empty(first)}
        firsts = self.table.firsts
        if empty:
            firsts = array("Q", [first for first in firsts if first not in empty])
        return crc32(firsts.tobytes()) + 1

    def _is_empty(self, first: int) -> bool:
        if first in self._held:
            return not self._held[first][0]
        if first in self._open:
            return not self._open[first]
        return first in self.table.changed or not self.table.lsn(first)

    def add_page(self, page: Page) -> None:
        """Add a page of a state that is read. A page without data is on the disk.

        Raises ValueError when the page is malformed or out of order.
        """
        if page.first <= self._last_read:
            raise ValueError(f"a page of producers from {page.first} comes late")
        self._last_read = page.first
        self.table.load(page.first, page.lsn)
        if page.data is not None:
            chunk = _unpacked(page.data)
            if not chunk or min(chunk) < page.first:
                raise ValueError(f"a page from {page.first} that holds {len(chunk)} producers")
            self._held[page.first] = len(chunk), page.data
            self._last_read = max(chunk)

    def end_pages(self, count: int, seal: int) -> None:
        """Finish after all pages were added.

        Args:
            count: number of producers according to the head.
            seal: checksum of the pages according to the head.

        Raises ValueError when the pages differ from the head.
        """
        if seal != self.pages_checksum():
            raise ValueError("pages of other producers than the head names")
        self._count = count
