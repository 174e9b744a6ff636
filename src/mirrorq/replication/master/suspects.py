"""Messages that a process held when it ended: one of them may have ended it. Pure.

A consumer's handle is given one such message at a time. So a message that kills each process that
works on it counts no delivery of a message beside it but once. Nothing here is replicated: the next
master hands these messages out as all others.
"""

from __future__ import annotations

from collections.abc import Iterable

from mirrorq.containers.ranges import Range, RangeSet
from mirrorq.protocol.identities import SessionId

TRIAL_MS = 1000
"""A message that kills its process is taken to do so within this time."""
FAILURES = 3
"""A process that is dead is found out within so many times `Config.failure_ms`."""
SUSPECTS_MAX = 16_384
"""So many messages are remembered at most; others are handed out as all are."""


class Suspects:
    """Which messages these are, and which handle works on one."""

    def __init__(self, failure_ms: int = 0) -> None:
        self.trial_ms = TRIAL_MS + FAILURES * failure_ms
        """A handle that has held one for so long lives, and may be given another one beside it."""
        self.messages = RangeSet()
        """Ready, or soon."""
        self.trials: dict[SessionId, int] = {}
        """The number of the delivery of one of them that a handle was made last."""

    def add(self, ranges: Iterable[Range]) -> None:
        """A process that held these has ended."""
        for first, last in ranges:
            if self.messages.count < SUSPECTS_MAX:
                self.messages.add(first, min(last, first + SUSPECTS_MAX - 1))

    def remove(self, first: int, last: int) -> None:
        """These are handed out, or ended."""
        if self.messages:
            self.messages.remove(first, last)

    def share(self, first: int, last: int) -> int:
        """How many of these messages may be handed to one callback now: a suspect goes alone."""
        found = self.messages.within(first, last)
        return max(found[0][0] - first, 1) if found else last - first + 1
