"""Purges under way at a master. Pure.

A purge ends what is ready, and that is also what handles have fetched and no call has returned.
So the handles are asked to give that back first; nothing is handed out meanwhile. One that does
not answer in time keeps what it has.
"""

from __future__ import annotations

from collections.abc import Mapping

from attrs import define

from mirrorq.attachments import Attachments
from mirrorq.messages import SessionId

__all__ = ["OpenPurge", "Purges"]


@define
class OpenPurge:
    """One that waits."""

    session: SessionId
    request: int
    number: int
    until_ms: int
    waits: dict[SessionId, int]
    """Handle -> its attachment then; who attaches anew keeps nothing that was not seen."""


class Purges:
    """All of one reign, in the order in which they were asked for."""

    def __init__(self) -> None:
        self._open: list[OpenPurge] = []
        self._number = 0

    def __bool__(self) -> bool:
        return bool(self._open)

    def begin(
        self, session: SessionId, request: int, until_ms: int, holders: Mapping[SessionId, int]
    ) -> int:
        """Open a purge that waits for these handles; return the number to ask them with."""
        self._number += 1
        self._open.append(OpenPurge(session, request, self._number, until_ms, dict(holders)))
        return self._number

    def on_recalled(self, session: SessionId, number: int) -> None:
        """A handle has given back what nobody had seen."""
        for purge in self._open:
            if purge.number == number:
                purge.waits.pop(session, None)

    def take_due(self, now_ms: int, attachments: Attachments) -> list[OpenPurge]:
        """Those that wait for nobody any more."""
        due = []
        for purge in self._open:
            waits = any(attachments.number_of(one) == at for one, at in purge.waits.items())
            if not waits or now_ms >= purge.until_ms:
                due.append(purge)
        if due:
            self._open = [purge for purge in self._open if purge not in due]
        return due

    def wake_at_ms(self) -> int | None:
        return min((purge.until_ms for purge in self._open), default=None)
