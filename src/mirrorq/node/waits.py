"""What calls wait for to come true on a node's thread: a master that serves, a catalog's change."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, TypeVar

from attrs import frozen

__all__ = ["LOOK_MS", "Waits"]

LOOK_MS = 50
"""How often what is waited for is looked for, beside each step of the engine."""
Found = TypeVar("Found")


def _nothing() -> None:
    """Nobody need be told."""


@frozen
class _Wait:
    look: Callable[[], Any]
    found: Callable[[Any], None]
    at_end: Callable[[], None]


class Waits:
    """All waits of one node, by keys of their own. The driver has it; the node thread's alone."""

    def __init__(self) -> None:
        self.at_any_time: dict[Hashable, _Wait] = {}
        """What they wait for may come true by time alone."""
        self.on_catalog: dict[Hashable, _Wait] = {}
        """These wait for the catalog to change."""
        self._index = 0
        """Of the catalog, when it was looked at last."""

    def begin(
        self,
        key: Hashable,
        look: Callable[[], Found | None],
        found: Callable[[Found], None],
        *,
        at_end: Callable[[], None] = _nothing,
        on_catalog: bool = False,
    ) -> None:
        """Have `found` called once, with the first thing that the look gives: not None.

        Args:
            look: must not raise.
            at_end: called in place of it when the thread ends before.
            on_catalog: nothing but a change of the catalog can bring it.
        """
        waits = self.on_catalog if on_catalog else self.at_any_time
        waits[key] = _Wait(look, found, at_end)

    def end(self, key: Hashable) -> None:
        """Nobody waits for this any more, if somebody did."""
        self.at_any_time.pop(key, None)
        self.on_catalog.pop(key, None)

    def look(self, index: int) -> None:
        """Look for all that may have come true; the catalog has applied its log up to `index`."""
        if self.at_any_time:
            _look_at(self.at_any_time)
        if index != self._index:
            self._index = index
            _look_at(self.on_catalog)

    def close(self) -> None:
        """The thread ends: nothing comes true any more."""
        for waits in (self.at_any_time, self.on_catalog):
            while waits:
                waits.popitem()[1].at_end()


def _look_at(waits: dict[Hashable, _Wait]) -> None:
    for key, wait in list(waits.items()):
        found = wait.look()
        if found is not None and waits.get(key) is wait:
            del waits[key]
            wait.found(found)
