"""Conditions of waiting calls, on a node's thread: a master that serves, a new catalog."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

from attrs import frozen

LOOK_MS = 50
"""Interval of checks in milliseconds, in addition to each step of the engine."""
VAIN_LOOKS_MAX = 16
"""A step stops after so many vain checks in a row, and the next step continues there. Conditions of
clients may never hold, and each client may have hundreds of calls."""
Found = TypeVar("Found")


def _nothing() -> None:
    """Do nothing at the end of the thread."""


@frozen
class _Wait:
    look: Callable[[], Any]
    found: Callable[[Any], None]
    at_end: Callable[[], None]


_Line = OrderedDict[Hashable, _Wait]
"""Waits in order: the wait checked longest ago is first."""


class Waits:
    """All waits of one node, by the callers' keys. The driver owns the object. Node thread only."""

    def __init__(self) -> None:
        self.at_any_time = _Line()
        """Waits whose condition may come true by time alone."""
        self.of_clients = _Line()
        """The same for calls of clients: a part of them is checked in each step."""
        self.on_catalog = _Line()
        """Waits for a change of the catalog."""
        self._index = 0
        """Catalog index at the last check."""

    def add(
        self,
        key: Hashable,
        look: Callable[[], Found | None],
        found: Callable[[Found], None],
        *,
        at_end: Callable[[], None] = _nothing,
        on_catalog: bool = False,
        is_clients: bool = False,
    ) -> None:
        """Have `found` called once, with the first result of `look` that is not None.

        Args:
            look: must not raise.
            at_end: called instead of `found` when the thread ends before.
            on_catalog: only a change of the catalog can bring a result.
            is_clients: a client waits.
        """
        waits = self.of_clients if is_clients else self.at_any_time
        waits = self.on_catalog if on_catalog else waits
        waits[key] = _Wait(look, found, at_end)

    def remove(self, key: Hashable) -> None:
        """End a wait, if there is one."""
        for waits in self._all():
            waits.pop(key, None)

    @property
    def need_time(self) -> bool:
        """Whether a condition may come true by time alone."""
        return bool(self.at_any_time or self.of_clients)

    def look(self, index: int) -> None:
        """Check the conditions that may have come true. `index`: the catalog's applied index."""
        if self.at_any_time:
            _look_at(self.at_any_time, len(self.at_any_time))
        if self.of_clients:
            _look_at(self.of_clients, VAIN_LOOKS_MAX)
        if index != self._index:
            self._index = index
            _look_at(self.on_catalog, len(self.on_catalog))

    def close(self) -> None:
        """End all waits at the end of the thread."""
        for waits in self._all():
            while waits:
                waits.popitem()[1].at_end()

    def _all(self) -> tuple[_Line, ...]:
        return self.at_any_time, self.of_clients, self.on_catalog


def _look_at(waits: _Line, vain_max: int) -> None:
    """Check waits, longest unchecked first, until `vain_max` checks were in vain."""
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
