"""Rules of checkpoints in pages that are left out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from harness.mutations.registry import Patch, named
from mirrorq.protocol.effects import Page, sorted_out
from mirrorq.replication.checkpoints import Checkpoints
from mirrorq.replication.state.paging import PagedContents
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

    def begin(self: Checkpoints, stale: Iterable[Page] = ()) -> None:
        real(self)

    return [(Checkpoints, "__init__", begin)]
