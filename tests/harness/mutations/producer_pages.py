"""Rules of producers that are read from the disk when they are wanted, left out."""

from __future__ import annotations

from typing import Any

from harness.mutations.registry import Real, instead
from mirrorq.replication.state.pages import PageCache
from mirrorq.replication.state.paging import PagedContents
from mirrorq.replication.state.producer import Producers


@instead("page of producers not written", PagedContents, "changed_pages")
def _not_written(real: Real, self: PagedContents) -> Any:
    """It leaves the memory with those that were."""
    table = self.producers.table
    table.changed.pop(next(iter(table.changed), 0), None)
    return real(self)


@instead("page of producers that has changed since leaves the memory", Producers, "release")
def _changed_since(real: Real, self: Producers) -> None:
    """What the checkpoint wrote of it is believed."""
    changed, self.table.changed = self.table.changed, {}
    real(self)
    self.table.changed = changed


@instead("page of producers of an older checkpoint believed", Producers, "_chunk")
def _older(real: Real, self: Producers, first: int) -> Any:
    """What was read before it changed stays in the cache, and is asked first."""
    kept = self._cache.get(self._owner, first)
    return real(self, first) if kept is None else kept


@instead("page of producers of an older checkpoint believed", PageCache, "drop")
def _older_drop(real: Real, self: PageCache, owner: int, first: int) -> None:
    return None


@instead("producers lost where a page is cut", Producers, "_keep_open")
def _cut(real: Real, self: Producers, first: int, chunk: Any) -> None:
    is_half = first not in self._open and first in self.table.changed
    if is_half and len(chunk) > 1 and not self.table.lsn(first):
        chunk.popitem()
    real(self, first, chunk)
