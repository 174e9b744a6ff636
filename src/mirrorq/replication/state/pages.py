"""The applied state in pages: the bytes of a stretch of sequences, or of producer ids. Pure.

A page is a function of the state and of a stretch. A page can therefore be made at any time, and
all copies make equal pages. A `Table` divides all sequences (or all producer ids) into stretches.
The table knows the pages on the disk, and the pages that have changed since. A page with too many
entries is cut in two when it is made. Fifty million equal messages fit into one page.

A `Snapshot` holds the pages of one moment. Its pages are made one after the other while the queue
goes on. Before an op changes a stretch, the page of the stretch is made, if the snapshot still
needs the page. An op that changes many stretches waits until their pages are made, a few in each
step. The number of pages in memory is bounded. At the bound an op waits for the disk, which takes
kept pages first. An op never waits for another node: the snapshot for that node becomes void.

Invariants:
1. pages of a table do not overlap; the first begins at 0, each ends where the next page begins.
2. a page that is not in `changed` is on the disk in its present form, or is empty.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from itertools import groupby
from operator import itemgetter
from typing import Any, Protocol

import msgspec

from mirrorq.containers.ranges import Range
from mirrorq.protocol import ops
from mirrorq.protocol.effects import COLUMNS, MESSAGES, PRODUCERS, Page, PageReader
from mirrorq.protocol.staged import CommitOp

__all__ = [
    "COLUMNS",
    "MESSAGES",
    "PRODUCERS",
    "PageCache",
    "Pages",
    "Snapshot",
    "Table",
    "Watched",
    "changed_by",
]

END = 2**63 - 1
"""Greatest possible sequence or id."""
ENTRIES_MAX = {MESSAGES: 2048, PRODUCERS: 128, COLUMNS: 2048}
"""Entries of a page: runs and ranges of 16 to 32 bytes, or producers. More: cut in two."""
SMALL_MAX = {MESSAGES: 256, PRODUCERS: 64, COLUMNS: 256}
"""A state with at most this many entries is one value, without pages."""
PREIMAGES_MAX = 64
"""Pages made in one step before an op changes their content: some milliseconds."""
CACHED_PAGES = 128
"""Pages of all queues in a node's cache, some 80 KiB each."""
KEPT_MAX = 512
"""Changed pages that a snapshot keeps, some 16 MiB."""


class Pages(Protocol):
    """Source of pages: a state."""

    def count_within(self, kind: int, first: int, last: int) -> int:
        """Number of entries in the page of this stretch; 0: the page is empty."""

    def extent_within(self, first: int, last: int) -> Range:
        """First and last sequence used in this stretch of messages, which must not be empty."""

    def page(self, kind: int, first: int, last: int) -> bytes:
        """Encode the page of this stretch."""


Stretch = tuple[int, int, int]
"""(kind, first, last)."""


def changed_by(entry: ops.Entry) -> list[Stretch]:
    """Stretches that an op may change. The id that the op gives to a producer is not included."""
    header = entry.header
    op = entry.step if entry.payload is None else entry.payload
    found: list[Stretch] = [(PRODUCERS, header.producer, header.producer)]
    found += [(PRODUCERS, key.producer, key.producer) for key in entry.keys if key is not None]
    if entry.payload is None or isinstance(op, CommitOp):
        found.append((MESSAGES, END, END))  # published messages are in the last page
    match op:
        case ops.ProducerOp():
            found += [(PRODUCERS, number, number) for number in op.expired]
        case ops.PromotedOp() if op.how != "clean":
            found += [(MESSAGES, 0, END), (PRODUCERS, 0, END)]
        case ops.DueOp():
            found += [(MESSAGES, *one) for one in (*op.entering, *op.returning)]
        case (
            ops.AckOp()
            | ops.PurgeOp()
            | ops.DropHeadOp()
            | ops.ExpiryOp()
            | ops.DiscardOp()
            | ops.OutboxOp()
            | ops.Step()
        ):
            found += [(MESSAGES, *one) for one in op.ranges]
        case ops.ReturnOp() | ops.ReturnLaterOp():
            found += [(MESSAGES, *one) for one in op.ranges]
        case _:
            pass
    return found


def _one_page() -> array[int]:
    return array("Q", (0,))


class Table(msgspec.Struct, gc=False, eq=False):
    """The pages of one kind: where each begins, and the lsn of its version on the disk."""

    firsts: array[int] = msgspec.field(default_factory=_one_page)
    _lsns: array[int] = msgspec.field(default_factory=_one_page)
    """Lsn of each page's version on the disk; 0: the page is not on the disk."""
    changed: dict[int, None] = msgspec.field(default_factory=dict)
    """Beginnings of pages that differ from their version on the disk."""
    gone: dict[int, int] = msgspec.field(default_factory=dict)
    """Beginnings of removed pages -> lsn of the version that is still on the disk."""

    def touch(self, first: int, last: int) -> None:
        """Mark all pages of this stretch as changed."""
        firsts = self.firsts
        index = bisect_right(firsts, first) - 1
        self.changed[firsts[index]] = None
        index += 1
        while index < len(firsts) and firsts[index] <= last:
            self.changed[firsts[index]] = None
            index += 1

    def stretch(self, first: int) -> Range:
        """First and last of the page that begins at `first`."""
        index = bisect_left(self.firsts, first)
        after = index + 1
        return first, self.firsts[after] - 1 if after < len(self.firsts) else END

    def stretches(self) -> list[Range]:
        """First and last of every page, in order. Fast: a step of Python's or two for each page."""
        return [*zip(self.firsts, [*[first - 1 for first in self.firsts[1:]], END], strict=True)]

    def split(self, first: int, at: int) -> None:
        """Cut the page of `first` in two before `at`. The page must not have changed since it was
        asked for."""
        index = bisect_right(self.firsts, first)
        self.firsts.insert(index, at)
        self._lsns.insert(index, self.gone.pop(at, 0))

    def insert(self, first: int) -> None:
        """Begin another page at `first`, in the middle of a page. It is not on the disk."""
        index = bisect_right(self.firsts, first)
        self.firsts.insert(index, first)
        self._lsns.insert(index, 0)

    def drop(self, first: int) -> None:
        """Remove the empty page that begins at `first`. The page before takes its stretch."""
        self.clear(first)
        if first:
            index = bisect_left(self.firsts, first)
            del self.firsts[index], self._lsns[index]

    def append(self, first: int) -> None:
        """Begin another page behind all pages."""
        self.firsts.append(first)
        self._lsns.append(0)

    def renew(self, first: int) -> None:
        """Restore the lsn of a cleared page that is not empty any more."""
        self._lsns[bisect_left(self.firsts, first)] = self.gone.pop(first)

    def clear(self, first: int) -> None:
        """Note that the page at `first` is empty."""
        index = bisect_left(self.firsts, first)
        if self._lsns[index]:
            self.gone[first] = self._lsns[index]
            self._lsns[index] = 0

    def drop_many(self, begin: int, end: int) -> None:
        """Drop the pages with indexes `begin` to below `end` in `firsts`."""
        dropped = self.firsts[begin:end]
        for first, lsn in zip(dropped, self._lsns[begin:end], strict=True):
            if lsn:
                self.gone[first] = lsn
            self.changed.pop(first, None)
        if begin == 0:
            self._lsns[0] = 0
        del self.firsts[max(begin, 1) : end], self._lsns[max(begin, 1) : end]

    def lsn(self, first: int) -> int:
        """Lsn of the page that begins at `first` on the disk; 0: the page is not there."""
        return self._lsns[bisect_left(self.firsts, first)]

    def place(self, first: int, lsn: int) -> int:
        """Note that the page is on the disk under this lsn; return its previous lsn."""
        index = bisect_left(self.firsts, first)
        before, self._lsns[index] = self._lsns[index], lsn
        return before

    def on_disk(self) -> dict[int, int]:
        """All pages that are on the disk: first -> lsn."""
        found = {f: lsn for f, lsn in zip(self.firsts, self._lsns, strict=True) if lsn}
        return found | self.gone

    def take_over(self, on_disk: dict[int, int]) -> list[tuple[int, int]]:
        """Replace another table that has pages on the disk. Returns (first, lsn) of pages for which
        this table already has a newer version on the disk."""
        older = []
        mine = dict(zip(self.firsts, self._lsns, strict=True))
        for first, lsn in [item for item in on_disk.items() if mine.get(item[0]) != item[1]]:
            index = bisect_left(self.firsts, first)
            if index == len(self.firsts) or self.firsts[index] != first:
                self.gone[first] = lsn
            elif not self._lsns[index]:
                self._lsns[index] = lsn
            else:
                older.append((first, lsn))
        return older

    def written_lsn(self, first: int) -> int:
        """Lsn under which the unchanged page is on the disk; 0: changed or not there."""
        index = bisect_left(self.firsts, first)
        is_there = index < len(self.firsts) and self.firsts[index] == first
        return self._lsns[index] if is_there and first not in self.changed else 0

    def displace(self, first: int, lsn: int) -> None:
        """Note that the page on the disk with this lsn is not the current version."""
        index = bisect_left(self.firsts, first)
        if index < len(self.firsts) and (self.firsts[index], self._lsns[index]) == (first, lsn):
            self._lsns[index] = 0

    def touch_unwritten(self) -> None:
        """Mark all pages that are not on the disk as changed."""
        for first, lsn in zip(self.firsts, self._lsns, strict=True):
            if not lsn:
                self.changed[first] = None

    def load(self, first: int, lsn: int) -> None:
        """Add a page that was read. Pages must come in order."""
        if first:
            self.firsts.append(first)
            self._lsns.append(lsn)
        else:
            self._lsns[0] = lsn


class Snapshot:
    """The state as it was at one lsn, page by page."""

    def __init__(
        self,
        pages: Pages,
        lsn: int,
        wanted: Iterable[tuple[int, Range]],
        tables: dict[int, Table],
        *,
        is_awaited: bool,
    ) -> None:
        """
        Args:
            wanted: (kind, stretch) of the pages, each kind in order.
            tables: tables in which a page is cut in two when the snapshot cuts the page.
            is_awaited: true: with no room for its pages, an op waits until pages are taken. Pages
                are taken without a request, in any order. False: the snapshot becomes void.
        """
        self.lsn = lsn
        self.is_void = False
        """True when too many pages have changed: the snapshot must not be used."""
        self._is_awaited = is_awaited
        self._pages = pages
        self._tables = tables
        self._wanted: dict[int, list[Range]] = {}
        """Stretches still to be taken of each kind. The next stretch is last."""
        for kind, pages_of_kind in groupby(wanted, itemgetter(0)):
            self._wanted[kind] = [stretch for _, stretch in pages_of_kind]
            self._wanted[kind].reverse()
        self._kept: dict[tuple[int, int], bytes] = {}
        """Pages made early, because their content has changed since."""

    @property
    def is_at_end(self) -> bool:
        """Return true if all pages have been taken."""
        return not any(self._wanted.values())

    @property
    def following(self) -> tuple[int, int] | None:
        """(kind, first) of the next page; None when all have been taken."""
        for kind, stretches in self._wanted.items():
            if stretches:
                return kind, stretches[-1][0]
        return None

    @property
    def is_full(self) -> bool:
        """Return true if no page can be kept before some are taken."""
        return len(self._kept) >= KEPT_MAX

    def next_page(self) -> Page | None:
        """Return the next page; None when all have been taken. An empty page has data b""."""
        if self._is_awaited and self._kept:
            (kind, first), made = self._kept.popitem()
            stretches = self._wanted[kind]
            del stretches[bisect_left(stretches, -first, key=lambda stretch: -stretch[0])]
            return Page(kind, first, self.lsn, made)
        for kind, stretches in self._wanted.items():
            if stretches:
                first, last = self._cut(kind, stretches)
                data = self._kept.pop((kind, first), None)
                return Page(kind, first, self.lsn, self._made(kind, first, last, data))
        return None

    def _made(self, kind: int, first: int, last: int, data: bytes | None) -> bytes:
        if data is not None:
            return data
        return self._pages.page(kind, first, last) if self._count(kind, first, last) else b""

    def _count(self, kind: int, first: int, last: int) -> int:
        return self._pages.count_within(kind, first, last)

    def _cut(self, kind: int, stretches: list[Range]) -> Range:
        """Take the next stretch, cut until its page is small enough."""
        first, last = stretches.pop()
        while (kind, first) not in self._kept and self._is_large(kind, first, last):
            at = self._middle(kind, first, last)
            stretches.append((at, last))
            last = at - 1
        return first, last

    def _is_large(self, kind: int, first: int, last: int) -> bool:
        # Pages of other kinds are small from the start, and are never cut here.
        if kind != MESSAGES or self._count(kind, first, last) <= ENTRIES_MAX[kind]:
            return False
        least, most = self._pages.extent_within(first, last)
        return least < most

    def _middle(self, kind: int, first: int, last: int) -> int:
        """Sequence at which to cut: the roundest number, so all copies cut alike."""
        least, most = self._pages.extent_within(first, last)
        bit = (least ^ most).bit_length() - 1
        at = most >> bit << bit
        if self._tables:
            self._tables[kind].split(first, at)
        return at

    def prepare(self, changes: Iterable[Stretch]) -> bool:
        """Make pages of stretches that are about to change, as many as fit into one step. Return
        true if all were made."""
        kept_max = min(len(self._kept) + PREIMAGES_MAX, KEPT_MAX)
        return all(self._make(*one, kept_max) for one in changes)

    def wants(self, kind: int, first: int, last: int) -> bool:
        """Return true if a page of this stretch is still to be taken."""
        stretches = () if self.is_void else self._wanted.get(kind, ())
        index = bisect_left(stretches, -last, key=lambda stretch: -stretch[0])
        return index < len(stretches) and stretches[index][1] >= first

    def before(self, kind: int, first: int, last: int) -> None:
        """Make the wanted pages of a stretch that is about to change."""
        self._make(kind, first, last, END)

    def _make(self, kind: int, first: int, last: int, kept_max: int) -> bool:
        """Make wanted pages of a stretch while fewer than `kept_max` are kept. True: all made."""
        stretches = self._wanted.get(kind)
        if not stretches or self.is_void:
            return True
        # Stretches are in falling order: begin with the first stretch at or before `last`.
        index = bisect_left(stretches, -last, key=lambda stretch: -stretch[0])
        while index < len(stretches) and stretches[index][1] >= first:
            if (kind, stretches[index][0]) in self._kept:
                index += 1
                continue
            if len(self._kept) >= kept_max:
                self.is_void = self.is_full and not self._is_awaited
                if self.is_void:
                    self._kept.clear()
                return self.is_void
            index = self._keep(kind, stretches, index, first, last)
        return True

    def _keep(self, kind: int, stretches: list[Range], index: int, first: int, last: int) -> int:
        """Make the page of a stretch that overlaps first to last. A large page is cut first.
        Returns the index of the next stretch."""
        low, high = stretches[index]
        if not self._is_large(kind, low, high):
            self._kept[kind, low] = self._made(kind, low, high, None)
            return index + 1
        at = self._middle(kind, low, high)
        stretches[index : index + 1] = [(at, high), (low, at - 1)]
        return index if at <= last else index + 1


class Watched(Protocol):
    """Interface through which parts of a state announce changes."""

    snapshots: list[Snapshot]

    def touch(self, kind: int, first: int, last: int) -> None:
        """Prepare a change of this stretch."""


class PageCache:
    """Cache of a node: pages of all its queues that were read last from its disk."""

    def __init__(self, read: PageReader | None = None) -> None:
        """
        Args:
            read: reads a page of this node's disk. None: no page ever leaves the memory.
        """
        self.can_read = read is not None
        self._read = read
        self._pages: dict[tuple[int, int], Any] = {}
        self._owners = 0

    def owner(self) -> int:
        """Return a key for an owner of cached pages. Two states of a queue have two keys."""
        self._owners += 1
        return self._owners

    def get(self, owner: int, first: int) -> Any:
        """Return the cached page or None. The page becomes the most recently used page."""
        page = self._pages.pop((owner, first), None)
        if page is not None:
            self._pages[owner, first] = page
        return page

    def put(self, owner: int, first: int, page: Any) -> None:
        """Add a page, and drop the least recently used pages."""
        self._pages[owner, first] = page
        while len(self._pages) > CACHED_PAGES:
            del self._pages[next(iter(self._pages))]

    def drop(self, owner: int, first: int) -> None:
        """Remove a page."""
        self._pages.pop((owner, first), None)

    def read(self, queue_id: int, kind: int, first: int, lsn: int) -> bytes:
        """Read a page from the disk; b"" when the page is missing or damaged."""
        return b"" if self._read is None else self._read(queue_id, kind, first, lsn)
