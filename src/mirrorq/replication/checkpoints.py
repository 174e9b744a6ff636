"""The checkpoint in the making: a state goes to the disk page by page. Pure.

A checkpoint is the state at one lsn. It consists of the pages that have changed since the last
checkpoint and of a *head*, which holds the rest and makes the checkpoint count. A commit takes
pages up to a bound; the next commit goes on with the rest, and the queue goes on meanwhile. The
name of a page contains the lsn, so no page of the last checkpoint changes before the new head is on
the disk. A store that ends in the middle has the last checkpoint, whole, and pages that are stale.
Of several pages with the same beginning the newest page counts that the head covers. A page without
content says that a stretch has become empty, where the old page cannot leave the disk with the
head.

Stale pages leave the disk before another checkpoint begins. So a page of a checkpoint that never
ended can never count. A small state is one value and has no page.

A state from another member becomes a checkpoint as well. Its pages are *staged*. They go to the
disk as they arrive, under the lsn of that state, which no checkpoint of this copy has reached.
After the last page the head makes the state count. A page that this copy has already in the same
form stays in its place. When the last page never arrives, the pages on the disk are *retained*. The
next state may contain them, and then they count with its head. Pages that an earlier process left
behind are retained as well.

Invariants:
1. while a checkpoint is open, the pages under older lsns stay on the disk.
2. no checkpoint begins, and no page is staged, while stale pages are on the disk.
3. no checkpoint of this copy's own state begins while pages are staged.
4. a retained page is on the disk, under an lsn beyond each head that is written meanwhile. Each
   place has at most one retained page.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from attrs import define, field

from mirrorq.containers.fifo import Fifo
from mirrorq.containers.ranges import Range
from mirrorq.protocol.effects import Page
from mirrorq.replication.state.pages import END, Snapshot, Table
from mirrorq.replication.state.queue_state import QueueState

PART_BYTES = 1 << 20
"""Approximate bytes of pages in one commit."""
SWEEP_MAX = 1000
"""Pages that one commit removes from the disk: some milliseconds."""

Place = tuple[int, int]
"""(kind, first) of a page."""


@define
class Open:
    """A checkpoint between its first page and its head."""

    lsn: int
    head: bytes
    snapshot: Snapshot | None
    wanted: list[tuple[int, Range]]
    gone: list[Page] = field(factory=list)
    """Removed pages that are still on the disk. Known when all pages have been made."""
    unsaid: Fifo[Page] = field(factory=Fifo)
    """Removed pages that still need an empty page, when the head's commit cannot remove all."""
    are_made: bool = False
    """True when all pages have been made."""
    written: list[Page] = field(factory=list)
    """Pages on the disk under this lsn, without their bytes."""
    has_come: bool = False
    """True if the state came from another member."""
    arrived: Fifo[Page] = field(factory=Fifo)
    """Pages from the other member that wait for the disk."""
    staged: dict[Place, Page] = field(factory=dict)
    """Pages of the coming state that were given to the disk or retained, without bytes."""
    replaced: list[Page] = field(factory=list)
    """Older pages on the disk beside newer pages of this checkpoint."""
    size: int = 0


class Checkpoints:
    """The checkpoints of one copy of a queue."""

    def __init__(self, stale: Iterable[Page] = (), lsn: int = END, size: int = 0) -> None:
        """
        Args:
            stale: pages on the disk that do not count.
            lsn: lsn of the head on the disk.
            size: bytes of the head on the disk.
        """
        self._open: Open | None = None
        self._stale: Fifo[Page] = Fifo()
        """Pages to be removed from the disk, in this order."""
        self._retained: dict[Place, Page] = {}
        """Pages on the disk from incomplete states, without their bytes. The dict is replaced,
        never changed: a reader for the next state keeps its version."""
        self._coming = 0
        """Number of the state that comes from another member; 0: none."""
        self._arrived: Fifo[Page] = Fifo()
        """Pages of the coming state that wait for the disk."""
        self._staged: dict[Place, Page] = {}
        """Pages of the coming state that were given to the disk, without their bytes."""
        self.size = size
        """Bytes written for the last checkpoint."""
        for page in stale:
            place = page.kind, page.first
            if page.lsn <= lsn or page.data == b"":
                self._stale.append(_off(page))
                continue
            if place in self._retained:
                self._stale.append(self._retained[place])
            self._retained[place] = _off(page)

    @property
    def is_open(self) -> bool:
        """Return true if a checkpoint has begun and its head is not written yet."""
        return self._open is not None

    @property
    def is_busy(self) -> bool:
        """Return true if `part` has pages or a head to give."""
        return self._open is not None or bool(self._stale) or bool(self._arrived)

    @property
    def is_staging(self) -> bool:
        """Return true if a state comes from another member."""
        return self._coming > 0

    @property
    def has_arrived(self) -> bool:
        """Return true if pages of the coming state wait for the disk."""
        return bool(self._arrived)

    @property
    def has_retained(self) -> bool:
        """Return true if pages of incomplete states are on the disk."""
        return bool(self._retained)

    @property
    def staged_count(self) -> int:
        """Number of pages of the coming state that were given to the disk."""
        return len(self._staged)

    def stage(self, number: int, pages: list[Page]) -> None:
        """Take pages of the coming state with this number."""
        if number != self._coming:
            self.retain()
            self._coming = number
        self._arrived.extend(pages)

    def retain(self) -> Mapping[Place, Page]:
        """Give up the coming state, and retain its pages. Returns all retained pages."""
        older = self._retained.keys() & self._staged.keys()
        self._stale.extend(
            self._retained[place]
            for place in sorted(older)
            if self._retained[place].lsn != self._staged[place].lsn
        )
        self._retained = {**self._retained, **self._staged}
        self._staged, self._coming = {}, 0
        self._arrived.clear()
        return self._retained

    def drop_retained(self) -> None:
        """Make all retained pages stale."""
        self._stale.extend(self._retained.values())
        self._retained = {}

    def begin_checkpoint(self, state: QueueState) -> bool:
        """Begin a checkpoint of the present state; False when stale pages must go first."""
        self.retain()
        if any(page.lsn <= state.applied for page in self._retained.values()):
            self.drop_retained()  # The page would count with this head.
        if self.is_busy:
            return False
        state.columns.sweep()
        if state.is_small:
            self._open = _small(state)
        else:
            self._open = _paged(state)
        return True

    def part(self, state: QueueState) -> tuple[list[Page], Open | None]:
        """Return the next pages for the disk, and the checkpoint when its head goes along."""
        one = self._open
        pages: list[Page] = []
        if self._stale and (one is None or one.has_come):
            self._sweep(pages)
            return pages, None
        if one is None:
            _take(self._arrived, pages, self._staged)
            return pages, None
        if one.snapshot is None:
            self._open = None
            self._stale.extend(one.gone)
            self._sweep(pages)
            self.size = len(one.head)
            return pages, one
        if not self._make(one, pages) or not self._say(one, state, pages):
            return pages, None
        self._finish(one, state, pages)
        return pages, one

    def _say(self, one: Open, state: QueueState, pages: list[Page]) -> bool:
        """Add empty pages for many removed pages; return true if all have been added."""
        if not one.are_made:
            one.are_made = True
            for kind, table in state.tables.items():
                one.gone += [Page(kind, first, lsn, None) for first, lsn in table.gone.items()]
                table.gone = {}
            one.unsaid.extend(one.gone if len(one.gone) > SWEEP_MAX else ())
        while one.unsaid and len(pages) < SWEEP_MAX:
            page = one.unsaid.popleft()
            pages.append(Page(page.kind, page.first, one.lsn, b""))
            one.written.append(_off(pages[-1]))
        return not one.unsaid

    def _make(self, one: Open, pages: list[Page]) -> bool:
        """Add pages up to the bound; return true if all have been added."""
        assert one.snapshot is not None
        size = _take(one.arrived, pages, one.staged)
        while size < PART_BYTES:
            taken = one.snapshot.next_page()
            if taken is None:
                one.size += size
                return True
            if taken.data:
                pages.append(taken)
                one.written.append(_off(taken))
                size += len(taken.data)
        one.size += size
        return False

    def _finish(self, one: Open, state: QueueState, pages: list[Page]) -> None:
        assert one.snapshot is not None
        state.snapshots.remove(one.snapshot)
        are_said = len(one.gone) > SWEEP_MAX
        if are_said:
            self._stale.extend(one.gone)
        else:
            pages.extend(one.gone)
        ended = {(page.kind, page.first) for page in one.gone} if are_said else ()
        self._stale.extend(one.replaced)
        for page in one.written:
            if (page.kind, page.first) in ended:
                self._stale.append(page)
                continue
            before = state.tables[page.kind].place(page.first, one.lsn)
            if before:
                self._stale.append(Page(page.kind, page.first, before, None))
        self._open = None
        self._sweep(pages)
        self.size = one.size + len(one.head)

    def _sweep(self, pages: list[Page]) -> None:
        for _ in range(min(len(self._stale), SWEEP_MAX)):
            pages.append(self._stale.popleft())

    # --- Abandoned checkpoints ------------------------------------------------------------

    def _give_up(self, one: Open, state: QueueState) -> None:
        self._open = None
        self._stale.extend(one.written)
        if one.snapshot is not None:
            state.snapshots.remove(one.snapshot)
        for kind, (first, last) in one.wanted:
            state.tables[kind].touch(first, last)
        self._stale.extend(one.staged.values())
        for page in one.staged.values():
            state.tables[page.kind].displace(page.first, page.lsn)
        for page in (*one.gone, *one.replaced):
            state.tables[page.kind].take_over({page.first: page.lsn})

    def replace(self, old: QueueState, new: QueueState) -> None:
        """Replace the state by a state from another member, which becomes the next checkpoint with
        its staged and retained pages."""
        if self._open is not None:
            self._give_up(self._open, old)
        replaced: list[Page] = []
        for kind, table in old.tables.items():
            older = new.tables[kind].take_over(table.on_disk())
            replaced += [Page(kind, first, lsn, None) for first, lsn in older]
        if new.is_small:
            self.retain()
            self.drop_retained()
            one = _small(new)
        else:
            one = _paged(new)
            one.arrived, self._arrived = self._arrived, Fifo()
            one.staged = {**self._taken_up(new), **self._staged}
            self._staged, self._coming = {}, 0
            one.replaced = replaced
        one.has_come = True
        self._open = one

    def _taken_up(self, new: QueueState) -> dict[Place, Page]:
        """Take the retained pages of the new state. Other retained pages become stale."""
        retained, self._retained = self._retained, {}
        found = {
            (page.kind, page.first): page
            for page in retained.values()
            if new.tables[page.kind].written_lsn(page.first) == page.lsn
        }
        self._stale.extend(page for place, page in retained.items() if place not in found)
        return found

    def reset(self) -> None:
        """Forget all pages: the disk has none of them any more."""
        self._open = None
        self._stale.clear()
        self._retained = {}
        self._staged, self._coming = {}, 0
        self._arrived.clear()


def _on_disk(kind: int, table: Table) -> list[Page]:
    return [Page(kind, first, lsn, None) for first, lsn in table.on_disk().items()]


def _small(state: QueueState) -> Open:
    """A checkpoint in a single value."""
    gone = [page for kind, one in state.tables.items() for page in _on_disk(kind, one)]
    state.forget_pages()
    return Open(state.applied, state.encode(), None, [], gone)


def _paged(state: QueueState) -> Open:
    """A checkpoint in pages: only pages that differ from their version on the disk."""
    wanted = state.changed_pages()
    snapshot = Snapshot(state, state.applied, wanted, state.tables, is_awaited=True)
    state.snapshots.append(snapshot)
    return Open(state.applied, state.encode_head(), snapshot, wanted)


def _take(arrived: Fifo[Page], pages: list[Page], given: dict[Place, Page]) -> int:
    """Add arrived pages up to the bound; return their bytes."""
    size = 0
    while arrived and size < PART_BYTES:
        page = arrived.popleft()
        pages.append(page)
        given[page.kind, page.first] = _off(page)
        size += len(page.data or b"")
    return size


def _off(page: Page) -> Page:
    """The request to remove this page from the disk."""
    return Page(page.kind, page.first, page.lsn, None)
