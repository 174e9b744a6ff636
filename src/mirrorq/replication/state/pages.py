"""The applied state in pages: the bytes of a stretch of sequences, or of producer ids. Pure.

A page is a function of the state and of its stretch. So it can be made at any time, and all copies
make the same page. A `Table` divides all sequences into stretches (another table all producer ids).
It knows which pages are on the disk and which have changed since. A page that holds too much is cut
in two when it is made; fifty million equal messages fit into one page.

A `Snapshot` holds the pages of one moment. They are made one after the other while the queue goes
on. Before an op changes a stretch, the page of that stretch is made, if the snapshot still needs
it. An op that changes many stretches waits until their pages are made, some of them in each step.
The pages kept in memory are bounded. At the bound an op waits for the disk, which takes kept pages
first. It never waits for another node: a snapshot that is being sent to one becomes void instead.

Invariants:
1. pages of a table do not overlap; the first begins at 0, each ends where the next one begins.
2. a page that is not in `changed` is on the disk in its present form, or holds nothing.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from itertools import groupby
from operator import itemgetter
from typing import Any, Protocol

from mirrorq.containers.ranges import Range
from mirrorq.protocol.effects import COLUMNS, MESSAGES, PRODUCERS, Page, PageReader
from mirrorq.protocol.ops import (
    AckOp,
    DiscardOp,
    DropHeadOp,
    DueOp,
    Entry,
    ExpiryOp,
    OutboxOp,
    ProducerOp,
    PromotedOp,
    PurgeOp,
    ReturnLaterOp,
    ReturnOp,
    Step,
)
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
"""No sequence and no id is greater."""
ENTRIES_MAX = {MESSAGES: 2048, PRODUCERS: 128, COLUMNS: 2048}
"""Runs and ranges of a page, 16 to 32 bytes each, and producers. One with more is cut in two."""
SMALL_MAX = {MESSAGES: 256, PRODUCERS: 64, COLUMNS: 256}
"""A state with no more than this is one value, without pages."""
PREIMAGES_MAX = 64
"""Pages that one step makes because an op is about to change them: some milliseconds."""
CACHED_PAGES = 128
"""Pages of all queues that are kept when they have been read: some 80 KiB each."""
KEPT_MAX = 512
"""Pages that a snapshot keeps because they have changed since: some 16 MiB."""


class Pages(Protocol):
    """What pages are made of."""

    def count_within(self, kind: int, first: int, last: int) -> int:
        """How many entries the page of this stretch has; 0: it holds nothing."""
        ...

    def extent_within(self, first: int, last: int) -> Range:
        """The first and the last thing of messages in this stretch, which holds something."""
        ...

    def page(self, kind: int, first: int, last: int) -> bytes:
        """The page of this stretch."""
        ...


Stretch = tuple[int, int, int]
"""(kind, first, last)."""


def changed_by(entry: Entry) -> list[Stretch]:
    """Where an op may change what pages show, but for the id that it gives to a producer."""
    header = entry.header
    op = entry.step if entry.payload is None else entry.payload
    found: list[Stretch] = [(PRODUCERS, header.producer, header.producer)]
    found += [(PRODUCERS, key.producer, key.producer) for key in entry.keys if key is not None]
    if entry.payload is None or isinstance(op, CommitOp):
        found.append((MESSAGES, END, END))  # what comes is in the last page
    match op:
        case ProducerOp():
            found += [(PRODUCERS, number, number) for number in op.expired]
        case PromotedOp() if op.how != "clean":
            found += [(MESSAGES, 0, END), (PRODUCERS, 0, END)]
        case DueOp():
            found += [(MESSAGES, *one) for one in (*op.entering, *op.returning)]
        case AckOp() | PurgeOp() | DropHeadOp() | ExpiryOp() | DiscardOp() | OutboxOp() | Step():
            found += [(MESSAGES, *one) for one in op.ranges]
        case ReturnOp() | ReturnLaterOp():
            found += [(MESSAGES, *one) for one in op.ranges]
        case _:
            pass
    return found


class Table:
    """The pages of one kind: where each begins, and which lsn it has on the disk."""

    def __init__(self) -> None:
        self.firsts = array("Q", (0,))
        self._lsns = array("Q", (0,))
        """Of the page as it is on the disk; 0: it is not there."""
        self.changed: dict[int, None] = {}
        """Firsts of pages that are not on the disk as they are."""
        self.gone: dict[int, int] = {}
        """Pages that are no more -> the lsn under which they are on the disk."""

    def touch(self, first: int, last: int) -> None:
        """What is in this stretch has changed."""
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
        """First and last of every page: a step of Python's or two for each."""
        return [*zip(self.firsts, [*[first - 1 for first in self.firsts[1:]], END], strict=True)]

    def split(self, first: int, at: int) -> None:
        """The page of `first`, which has not changed since it was asked for, ends before `at`, and
        another one begins there."""
        index = bisect_right(self.firsts, first)
        self.firsts.insert(index, at)
        self._lsns.insert(index, self.gone.pop(at, 0))

    def insert(self, first: int) -> None:
        """Another page begins here, in the middle of one; it is not on the disk."""
        index = bisect_right(self.firsts, first)
        self.firsts.insert(index, first)
        self._lsns.insert(index, 0)

    def drop(self, first: int) -> None:
        """The page that begins at `first` holds nothing: what comes there is the one's before."""
        self.clear(first)
        if first:
            index = bisect_left(self.firsts, first)
            del self.firsts[index], self._lsns[index]

    def append(self, first: int) -> None:
        """Another page begins behind all others."""
        self.firsts.append(first)
        self._lsns.append(0)

    def renew(self, first: int) -> None:
        """The page that begins at `first` holds something again."""
        self._lsns[bisect_left(self.firsts, first)] = self.gone.pop(first)

    def clear(self, first: int) -> None:
        """The page that begins at `first` holds nothing now."""
        index = bisect_left(self.firsts, first)
        if self._lsns[index]:
            self.gone[first] = self._lsns[index]
            self._lsns[index] = 0

    def drop_many(self, begin: int, end: int) -> None:
        """The same as `drop` of each of these, by their places in `firsts`."""
        dropped = self.firsts[begin:end]
        for first, lsn in zip(dropped, self._lsns[begin:end], strict=True):
            if lsn:
                self.gone[first] = lsn
            self.changed.pop(first, None)
        if begin == 0:
            self._lsns[0] = 0
        del self.firsts[max(begin, 1) : end], self._lsns[max(begin, 1) : end]

    def lsn(self, first: int) -> int:
        """Under which lsn the page that begins at `first` is on the disk; 0: it is not there."""
        return self._lsns[bisect_left(self.firsts, first)]

    def place(self, first: int, lsn: int) -> int:
        """A page is on the disk under this lsn; return the one that it had."""
        index = bisect_left(self.firsts, first)
        before, self._lsns[index] = self._lsns[index], lsn
        return before

    def on_disk(self) -> dict[int, int]:
        """All pages that are on the disk: first -> lsn."""
        found = {f: lsn for f, lsn in zip(self.firsts, self._lsns, strict=True) if lsn}
        return found | self.gone

    def take_over(self, on_disk: dict[int, int]) -> list[tuple[int, int]]:
        """This table stands in the place of another one, whose pages are on the disk. Returns
        (first, lsn) of those beside which it has newer ones there."""
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
        """Under which lsn the page that begins here is on the disk as it is; 0: it is not."""
        index = bisect_left(self.firsts, first)
        is_there = index < len(self.firsts) and self.firsts[index] == first
        return self._lsns[index] if is_there and first not in self.changed else 0

    def displace(self, first: int, lsn: int) -> None:
        """The page that is on the disk under this lsn does not count there."""
        index = bisect_left(self.firsts, first)
        if index < len(self.firsts) and (self.firsts[index], self._lsns[index]) == (first, lsn):
            self._lsns[index] = 0

    def touch_unwritten(self) -> None:
        """What is not on the disk has to go there."""
        for first, lsn in zip(self.firsts, self._lsns, strict=True):
            if not lsn:
                self.changed[first] = None

    def load(self, first: int, lsn: int) -> None:
        """A page was read; they come in order."""
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
            tables: what is cut in two here is two pages there, too.
            is_awaited: an op for whose pages there is no place waits until some are taken, which
                comes by itself; they are given in any order. Otherwise the snapshot is void then.
        """
        self.lsn = lsn
        self.is_void = False
        """More has changed than is kept: it is not to be used."""
        self._is_awaited = is_awaited
        self._pages = pages
        self._tables = tables
        self._wanted: dict[int, list[Range]] = {}
        """The next stretch of each kind last."""
        for kind, pages_of_kind in groupby(wanted, itemgetter(0)):
            self._wanted[kind] = [stretch for _, stretch in pages_of_kind]
            self._wanted[kind].reverse()
        self._kept: dict[tuple[int, int], bytes] = {}
        """Pages that were made before they were asked for: what they show has changed."""

    @property
    def is_at_end(self) -> bool:
        """Whether all pages have been taken."""
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
        """Whether no more is kept before some has been taken."""
        return len(self._kept) >= KEPT_MAX

    def take(self) -> Page | None:
        """The next page; None when all have been taken. b"" of one that holds nothing."""
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
        """The next stretch, cut until its page is small enough."""
        first, last = stretches.pop()
        while (kind, first) not in self._kept and self._is_large(kind, first, last):
            at = self._middle(kind, first, last)
            stretches.append((at, last))
            last = at - 1
        return first, last

    def _is_large(self, kind: int, first: int, last: int) -> bool:
        # Others are small from the start, and are never cut here.
        if kind != MESSAGES or self._count(kind, first, last) <= ENTRIES_MAX[kind]:
            return False
        least, most = self._pages.extent_within(first, last)
        return least < most

    def _middle(self, kind: int, first: int, last: int) -> int:
        """Where to cut: the roundest number, so that copies cut at the same places."""
        least, most = self._pages.extent_within(first, last)
        bit = (least ^ most).bit_length() - 1
        at = most >> bit << bit
        if self._tables:
            self._tables[kind].split(first, at)
        return at

    def prepare(self, changes: Iterable[Stretch]) -> bool:
        """Make pages of what is about to change, so many that it is a step's work; return whether
        these were all of them."""
        kept_max = min(len(self._kept) + PREIMAGES_MAX, KEPT_MAX)
        return all(self._make(*one, kept_max) for one in changes)

    def wants(self, kind: int, first: int, last: int) -> bool:
        """Whether a page is still to be taken of this stretch."""
        stretches = () if self.is_void else self._wanted.get(kind, ())
        index = bisect_left(stretches, -last, key=lambda stretch: -stretch[0])
        return index < len(stretches) and stretches[index][1] >= first

    def before(self, kind: int, first: int, last: int) -> None:
        """What is in this stretch is about to change."""
        self._make(kind, first, last, END)

    def _make(self, kind: int, first: int, last: int, kept_max: int) -> bool:
        """Make what is wanted of a stretch, until so many pages are kept; whether that was all."""
        stretches = self._wanted.get(kind)
        if not stretches or self.is_void:
            return True
        # The stretches fall: from the first one that begins at `last` or before it.
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
        """Make the page of a stretch that shares something with first to last, and is cut until it
        is small enough. Returns where to go on."""
        low, high = stretches[index]
        if not self._is_large(kind, low, high):
            self._kept[kind, low] = self._made(kind, low, high, None)
            return index + 1
        at = self._middle(kind, low, high)
        stretches[index : index + 1] = [(at, high), (low, at - 1)]
        return index if at <= last else index + 1


class Watched(Protocol):
    """A state, as its parts see it."""

    snapshots: list[Snapshot]

    def touch(self, kind: int, first: int, last: int) -> None:
        """What is known of this stretch is about to change."""
        ...


class PageCache:
    """Pages of all queues of a node that were read from its disk: those that were used last."""

    def __init__(self, read: PageReader | None = None) -> None:
        """
        Args:
            read: reads a page of this node's disk; without it nothing ever leaves the memory.
        """
        self.can_read = read is not None
        self._read = read
        self._pages: dict[tuple[int, int], Any] = {}
        self._owners = 0

    def owner(self) -> int:
        """A number for who keeps pages here: states of two pasts may share all others."""
        self._owners += 1
        return self._owners

    def get(self, owner: int, first: int) -> Any:
        """The page, when it is here; it is the one that was used last then."""
        page = self._pages.pop((owner, first), None)
        if page is not None:
            self._pages[owner, first] = page
        return page

    def put(self, owner: int, first: int, page: Any) -> None:
        """Keep it for a while."""
        self._pages[owner, first] = page
        while len(self._pages) > CACHED_PAGES:
            del self._pages[next(iter(self._pages))]

    def drop(self, owner: int, first: int) -> None:
        """It is to be kept no more."""
        self._pages.pop((owner, first), None)

    def read(self, queue_id: int, kind: int, first: int, lsn: int) -> bytes:
        """Of the disk; b"" when it is not there as it was written."""
        return b"" if self._read is None else self._read(queue_id, kind, first, lsn)
