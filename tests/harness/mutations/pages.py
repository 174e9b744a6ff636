"""Rules of checkpoints in pages that are left out."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

from harness.mutations.registry import Patch, named
from mirrorq.protocol.effects import Page, sorted_out
from mirrorq.replication.checkpoints import Checkpoints
from mirrorq.replication.donor import Incoming
from mirrorq.replication.state.paging import PagedContents
from mirrorq.replication.state.queue_state import QueueState
from mirrorq.testing import disk


@named("changed page not written")
def _changed_not_written() -> Sequence[Patch]:
    real = PagedContents.changed_pages

    def changed(self: PagedContents) -> Any:
        found = real(self)
        return found[1:] if len(found) > 1 else found

    return [(PagedContents, "changed_pages", changed)]


@named("page counted that the checkpoint does not cover")
def _later_page() -> Sequence[Patch]:
    """The newest of a page counts, whatever the head says."""

    def newest(pages: Iterable[Page], lsn: int) -> Any:
        return sorted_out(pages, 1 << 62)

    return [(disk, "sorted_out", newest)]


@named("page of an older checkpoint counted")
def _older_page() -> Sequence[Patch]:
    def oldest(pages: Iterable[Page], lsn: int) -> Any:
        kept = {}
        for page in sorted(pages, key=lambda page: -page.lsn):
            kept[page.kind, page.first] = page
        return sorted_out(kept.values(), lsn)

    return [(disk, "sorted_out", oldest)]


@named("head written before its pages")
def _head_first() -> Sequence[Patch]:
    real = Checkpoints._make

    def make(self: Checkpoints, one: Any, pages: list[Page]) -> bool:
        real(self, one, pages)
        return True

    return [(Checkpoints, "_make", make)]


@named("stale pages stay on the disk")
def _stale_pages_stay() -> Sequence[Patch]:
    """A checkpoint that never came to its end counts with the next one."""
    real = Checkpoints.__init__

    def begin(self: Checkpoints, stale: Iterable[Page] = (), lsn: int = 0, size: int = 0) -> None:
        real(self, (), lsn, size)

    return [(Checkpoints, "__init__", begin)]


@named("page retained counts with a later checkpoint")
def _retained_counts_later() -> Sequence[Patch]:
    """What has come of a state that never was whole stays, whatever head is written."""
    return [(Checkpoints, "drop_retained", lambda _: None)]


@named("page retained counts in a state that has not got it")
def _retained_is_left() -> Sequence[Patch]:
    real = Checkpoints._taken_up

    def taken_up(self: Checkpoints, new: QueueState) -> Any:
        stale = [*self._stale]
        found = real(self, new)
        self._stale = deque(stale)
        return found

    return [(Checkpoints, "_taken_up", taken_up)]


@named("page retained beyond the head believed")
def _retained_beyond_the_head() -> Sequence[Patch]:
    """What is the same in an older state stays under the lsn of the newer one."""
    real = Incoming._lsn_here

    def lsn_here(self: Incoming, kind: int, first: int) -> int:
        retained = self._retained.get((kind, first))
        return real(self, kind, first) if retained is None else retained.lsn

    return [(Incoming, "_lsn_here", lsn_here)]


@named("page retained believed though another one is there")
def _retained_unread() -> Sequence[Patch]:
    """Of two of a place the older one is taken off the disk and stands in the state."""
    real = Checkpoints.retain

    def retain(self: Checkpoints) -> Any:
        before, both = self._retained, self._retained.keys() & self._staged.keys()
        real(self)
        older = {place: before[place] for place in both}
        self._retained = {**self._retained, **older}
        return self._retained

    return [(Checkpoints, "retain", retain)]
