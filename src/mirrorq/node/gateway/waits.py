"""Calls of clients whose answers wait for something to come true on this node."""

from __future__ import annotations

from collections.abc import Callable

from attrs import frozen

from mirrorq.protocol.clients import ClientAnswer

__all__ = ["Look", "Waits"]

Look = Callable[[], ClientAnswer | None]
"""The answer, None while there is none."""
_Key = tuple[bytes, int]
"""A client's identity and the number of its call."""


@frozen
class _Wait:
    look: Look
    answer: Callable[[ClientAnswer], None]


class Waits:
    """Of all clients of one node."""

    def __init__(self) -> None:
        self._any: dict[_Key, _Wait] = {}
        """What they wait for may come true at any time."""
        self._catalog: dict[_Key, _Wait] = {}
        """These wait for the catalog to change."""
        self._index = 0
        """Of the catalog, when it was looked at last."""

    @property
    def is_looking(self) -> bool:
        """Whether `look` has something to look at."""
        return bool(self._any)

    def begin(
        self,
        key: _Key,
        look: Look,
        answer: Callable[[ClientAnswer], None],
        *,
        on_catalog: bool = False,
    ) -> None:
        """Answer as soon as the look gives something, which it does not yet.

        Args:
            on_catalog: nothing but a change of the catalog can bring it.
        """
        waits = self._catalog if on_catalog else self._any
        waits[key] = _Wait(look, answer)

    def end(self, key: _Key) -> None:
        """Nobody waits for this any more, if somebody did."""
        self._any.pop(key, None)
        self._catalog.pop(key, None)

    def look(self) -> None:
        """Answer those whose wait is over."""
        if self._any:
            _look_at(self._any)

    def on_catalog(self, index: int) -> None:
        """The catalog has applied its log up to here."""
        if index != self._index:
            self._index = index
            _look_at(self._catalog)


def _look_at(waits: dict[_Key, _Wait]) -> None:
    for wait in list(waits.values()):
        answer = wait.look()
        if answer is not None:
            wait.answer(answer)
