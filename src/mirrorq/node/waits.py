"""Conditions of waiting calls, on a node's thread: a master that serves, a new catalog."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

from attrs import frozen

LOOK_MS = 50
"""How often what is waited for is looked for, beside each step of the engine."""
VAIN_LOOKS_MAX = 16
"""A step looks no further after so many in a row, and the next one goes on there: what clients wait
for may never come, and each of them may have hundreds of calls."""
Found = TypeVar("Found")


def _nothing() -> None:
    """Nobody need be told."""


@frozen
class _Wait:
    look: Callable[[], Any]
    found: Callable[[Any], None]
    at_end: Callable[[], None]


_Line = OrderedDict[Hashable, _Wait]
"""Those that were not looked at for longest stand first."""


class Waits:
    """All waits of one node, by keys of their own. The driver has it; the node thread's alone."""

    def __init__(self) -> None:
        self.at_any_time = _Line()
        """What they wait for may come true by time alone."""
        self.of_clients = _Line()
        """The same of calls of clients: a part of them in each step."""
        self.on_catalog = _Line()
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
        is_clients: bool = False,
    ) -> None:
        """Have `found` called once, with the first thing that the look gives: not None.

        Args:
            look: must not raise.
            at_end: called in place of it when the thread ends before.
            on_catalog: nothing but a change of the catalog can bring it.
            is_clients: a client waits.
        """
        waits = self.of_clients if is_clients else self.at_any_time
        waits = self.on_catalog if on_catalog else waits
        waits[key] = _Wait(look, found, at_end)

    def end(self, key: Hashable) -> None:
        """Nobody waits for this any more, if somebody did."""
        for waits in self._all():
            waits.pop(key, None)

    @property
    def need_time(self) -> bool:
        """Whether something may come true by time alone."""
        return bool(self.at_any_time or self.of_clients)

    def look(self, index: int) -> None:
        """Look for all that may have come true; the catalog has applied its log up to `index`."""
        if self.at_any_time:
            _look_at(self.at_any_time, len(self.at_any_time))
        if self.of_clients:
            _look_at(self.of_clients, VAIN_LOOKS_MAX)
        if index != self._index:
            self._index = index
            _look_at(self.on_catalog, len(self.on_catalog))

    def close(self) -> None:
        """The thread ends: nothing comes true any more."""
        for waits in self._all():
            while waits:
                waits.popitem()[1].at_end()

    def _all(self) -> tuple[_Line, ...]:
        return self.at_any_time, self.of_clients, self.on_catalog


def _look_at(waits: _Line, vain_max: int) -> None:
    """Look at those first that were not looked at for longest."""
    left, vain = len(waits), 0
    while waits and left and vain < vain_max:
        key, wait = next(iter(waits.items()))
        found = wait.look()
        left -= 1
        if waits.get(key) is not wait:
            continue
        if found is None:
            waits.move_to_end(key)
            vain += 1
        else:
            del waits[key]
            wait.found(found)
