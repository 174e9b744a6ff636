"""Messages that a process held when it ended: one of them may have ended it. Pure.

A consumer's handle gets one such message at a time. A message that kills every process therefore
raises the delivery count of messages beside it only once. Nothing here is replicated: the next
master delivers these messages like all other messages.
"""

from __future__ import annotations

from collections.abc import Iterable

from mirrorq.containers.ranges import Range, RangeSet
from mirrorq.protocol.identities import SessionId

TRIAL_MS = 1000
"""Time within which a deadly message is assumed to kill its process."""
FAILURES = 3
"""A dead process is detected within this many times `Config.failure_ms`."""
SUSPECTS_MAX = 16_384
"""Bound of remembered suspects; further messages are delivered as usual."""


class Suspects:
    """The suspects, and the handles that work on a suspect."""

    def __init__(self, failure_ms: int = 0) -> None:
        self.trial_ms = TRIAL_MS + FAILURES * failure_ms
        """A handle that has held a suspect for this time may get another suspect."""
        self.messages = RangeSet()
        """Suspects that are ready, or will be soon."""
        self.trials: dict[SessionId, int] = {}
        """Handle -> number of its last delivery with a suspect."""

    def add(self, ranges: Iterable[Range]) -> None:
        """Add the messages that an ended process held."""
        for first, last in ranges:
            if self.messages.count < SUSPECTS_MAX:
                self.messages.add(first, min(last, first + SUSPECTS_MAX - 1))

    def remove(self, first: int, last: int) -> None:
        """Remove messages that are delivered, or have ended."""
        if self.messages:
            self.messages.remove(first, last)

    def share(self, first: int, last: int) -> int:
        """Number of these messages for one callback now: a suspect goes alone."""
        found = self.messages.within(first, last)
        return max(found[0][0] - first, 1) if found else last - first + 1
