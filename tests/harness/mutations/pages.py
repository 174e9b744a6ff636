"""Rules of checkpoints in pages that are left out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from harness.mutations.registry import Patch, Real, instead, named
from mirrorq.containers.fifo import Fifo
from mirrorq.protocol import effects
from mirrorq.protocol.effects import Page, sorted_out
from mirrorq.replication.checkpoints import Checkpoints
from mirrorq.replication.donor import Incoming
from mirrorq.replication.state.paging import PagedContents
from mirrorq.replication.state.queue_state import QueueState


@instead("changed page not written", PagedContents, "changed_pages")
def _changed_not_written(real: Real, self: PagedContents) -> Any:
    found = real(self)
    return found[1:] if len(found) > 1 else found


@instead("page counted that the checkpoint does not cover", effects, "sorted_out")
def _later_page(real: Real, pages: Iterable[Page], lsn: int) -> Any:
    """The newest of a page counts, whatever the head says."""
    return sorted_out(pages, 1 << 62)


@instead("page of an older checkpoint counted", effects, "sorted_out")
def _older_page(real: Real, pages: Iterable[Page], lsn: int) -> Any:
    kept = {}
    for page in sorted(pages, key=lambda page: -page.lsn):
        kept[page.kind, page.first] = page
    return sorted_out(kept.values(), lsn)


@instead("head written before its pages", Checkpoints, "_make")
def _head_first(real: Real, self: Checkpoints, one: Any, pages: list[Page]) -> Any:
    real(self, one, pages)
    return True


@instead("stale pages stay on the disk", Checkpoints, "__init__")
def _stale_pages_stay(
    real: Real, self: Checkpoints, stale: Iterable[Page] = (), lsn: int = 0, size: int = 0
) -> None:
    """A checkpoint that never came to its end counts with the next one."""
    real(self, (), lsn, size)


@named("page retained counts with a later checkpoint")
def _retained_counts_later() -> Sequence[Patch]:
    """What has come of a state that never was whole stays, whatever head is written."""
    return [(Checkpoints, "drop_retained", lambda _: None)]


@instead("page retained counts in a state that has not got it", Checkpoints, "_taken_up")
def _retained_is_left(real: Real, self: Checkpoints, new: QueueState) -> Any:
    stale = [*self._stale]
    found = real(self, new)
    self._stale = Fifo.of(stale)
    return found


@instead("page retained beyond the head believed", Incoming, "_lsn_here")
def _retained_beyond_the_head(real: Real, self: Incoming, kind: int, first: int) -> Any:
    """What is the same in an older state stays under the lsn of the newer one."""
    retained = self._retained.get((kind, first))
    return real(self, kind, first) if retained is None else retained.lsn


@instead("page retained believed though another one is there", Checkpoints, "retain")
def _retained_unread(real: Real, self: Checkpoints) -> Any:
    """Of two of a place the older one is taken off the disk and stands in the state."""
    before, both = self._retained, self._retained.keys() & self._staged.keys()
    real(self)
    older = {place: before[place] for place in both}
    self._retained = {**self._retained, **older}
    return self._retained
