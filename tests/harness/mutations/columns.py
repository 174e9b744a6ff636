"""Rules of sizes and times that are read from the disk when they are wanted, left out."""

from __future__ import annotations

from typing import Any

from harness.mutations.registry import Real, instead
from mirrorq.replication.state.columns import Columns
from mirrorq.replication.state.paging import PagedContents


@instead("block of columns not written", PagedContents, "changed_pages")
def _not_written(real: Real, self: PagedContents) -> Any:
    """It leaves the memory though its page is not on the disk."""
    self.columns.table.changed.pop(self.columns.table.firsts[0], None)
    return real(self)


@instead("block of an older checkpoint believed", Columns, "_seal")
def _older(real: Real, self: Columns, first: int) -> None:
    """The tail leaves the memory when it is sealed, whatever of it is on the disk."""
    at = self.table.firsts[-1]
    real(self, first)
    if self.table.lsn(at):
        self._cache.put(self._owner, at, self._held.pop(at))
        self.table.changed.pop(at, None)


@instead("bytes of a block left out", Columns, "total")
def _left_out(real: Real, self: Columns, first: int, last: int) -> int:
    """A sum over many blocks goes on behind the one after the first."""
    pieces = list(self._pieces(first, last))
    pieces = pieces[:1] + pieces[2:]
    return sum(self._block(i).sizes.total(low, high) for i, low, high in pieces)


@instead("bytes of a block counted twice", Columns, "total")
def _twice(real: Real, self: Columns, first: int, last: int) -> int:
    """A sum over many blocks has the first one among those that it takes whole, too."""
    pieces = list(self._pieces(first, last))
    found = sum(self._block(i).sizes.total(low, high) for i, low, high in pieces)
    return found + (self.directory.totals[pieces[0][0]] if len(pieces) > 1 else 0)


@instead("block skipped by a reader of times", Columns, "_pieces")
def _skipped(real: Real, self: Columns, first: int, last: int) -> Any:
    found = [*real(self, first, last)]
    return iter(found[:1] + found[2:])


@instead("block that ended taken off too early", Columns, "sweep")
def _too_early(real: Real, self: Columns) -> None:
    """While somebody still wants its page."""
    kept, self._state.snapshots = self._state.snapshots, []
    real(self)
    self._state.snapshots = kept
