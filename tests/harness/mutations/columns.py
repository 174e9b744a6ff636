"""Rules of sizes and times that are read from the disk when they are wanted, left out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from harness.mutations.registry import Patch, named
from mirrorq.replication.state.columns import Columns
from mirrorq.replication.state.paging import PagedContents


@named("block of columns not written")
def _not_written() -> Sequence[Patch]:
    """It leaves the memory though its page is not on the disk."""
    real = PagedContents.changed_pages

    def changed(self: PagedContents) -> Any:
        self.columns.table.changed.pop(self.columns.table.firsts[0], None)
        return real(self)

    return [(PagedContents, "changed_pages", changed)]


@named("block of an older checkpoint believed")
def _older() -> Sequence[Patch]:
    """The tail leaves the memory when it is sealed, whatever of it is on the disk."""
    real = Columns._seal

    def seal(self: Columns, first: int) -> None:
        at = self.table.firsts[-1]
        real(self, first)
        if self.table.lsn(at):
            self._cache.put(self._owner, at, self._held.pop(at))
            self.table.changed.pop(at, None)

    return [(Columns, "_seal", seal)]


@named("bytes of a block left out")
def _left_out() -> Sequence[Patch]:
    """A sum over many blocks goes on behind the one after the first."""

    def total(self: Columns, first: int, last: int) -> int:
        pieces = list(self._pieces(first, last))
        pieces = pieces[:1] + pieces[2:]
        return sum(self._block(i).sizes.total(low, high) for i, low, high in pieces)

    return [(Columns, "total", total)]


@named("bytes of a block counted twice")
def _twice() -> Sequence[Patch]:
    """A sum over many blocks has the first one among those that it takes whole, too."""

    def total(self: Columns, first: int, last: int) -> int:
        pieces = list(self._pieces(first, last))
        found = sum(self._block(i).sizes.total(low, high) for i, low, high in pieces)
        return found + (self.directory.totals[pieces[0][0]] if len(pieces) > 1 else 0)

    return [(Columns, "total", total)]


@named("block skipped by a reader of times")
def _skipped() -> Sequence[Patch]:
    real = Columns._pieces

    def pieces(self: Columns, first: int, last: int) -> Any:
        found = [*real(self, first, last)]
        return iter(found[:1] + found[2:])

    return [(Columns, "_pieces", pieces)]


@named("block that ended taken off too early")
def _too_early() -> Sequence[Patch]:
    """While somebody still wants its page."""
    real = Columns.sweep

    def sweep(self: Columns) -> None:
        kept, self._state.snapshots = self._state.snapshots, []
        real(self)
        self._state.snapshots = kept

    return [(Columns, "sweep", sweep)]
