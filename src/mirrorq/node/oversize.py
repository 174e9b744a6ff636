"""Messages too large to be sent: named in the log, counted, and reported as an alarm.

The protocols repeat lost messages, and an oversized message is lost each time. Without a report a
copy would stay at 0 % for ever without a visible reason.
"""

from __future__ import annotations

import logging

from mirrorq import clock

PERIOD_MS = 60_000
"""An equal message is logged at most once in so many milliseconds."""
RECENT_MS = 10_000
"""An oversized message not repeated for so long is over: an active sender repeats it sooner."""
KINDS_MAX = 1000
"""Limit on remembered kinds of messages, each of one queue to one node."""

_Key = tuple[str, str, int]
"""(receiver, kind, queue id)."""


class Oversize:
    """Messages that one node could not send for their size. The driver owns the object. Node thread
    only, unless a method states otherwise.

    Args:
        log: log that names each message.
    """

    def __init__(self, log: logging.Logger) -> None:
        self.count = 0
        """Messages since the start. From any thread."""
        self._log = log
        self._told_ms: dict[_Key, int] = {}
        self._recent: dict[_Key, tuple[int, str]] = {}
        """(time of the last message, its text)."""

    def report(self, to: str, kind: str, queue: tuple[int, str], size: int, limit: int) -> None:
        """Note an unsent message.

        Args:
            queue: id and name of the message's queue, (0, "") for none.
            size: size of the largest part.
            limit: size that the receiver takes.
        """
        now_ms = clock.now_ms()
        self.count += 1
        key = (to, kind, queue[0])
        of_queue = f" of queue {queue[1]!r}" if queue[0] else ""
        text = f"{kind}{of_queue} for {to} has {size} bytes, more than {limit}"
        if len(self._recent) >= KINDS_MAX:
            self._recent.clear()
            self._told_ms.clear()
        self._recent[key] = (now_ms, text)
        if now_ms - self._told_ms.get(key, -PERIOD_MS) >= PERIOD_MS:
            self._told_ms[key] = now_ms
            self._log.error("cannot send: %s", text)

    def recent(self) -> tuple[str, ...]:
        """Return the texts of recent unsent messages."""
        return tuple(text for _, text in self._live().values())

    def of_queue(self, queue_id: int) -> tuple[str, ...]:
        """Return the texts of a queue's recent unsent messages. From any thread."""
        return tuple(text for key, (_, text) in self._live().items() if key[2] == queue_id)

    def _live(self) -> dict[_Key, tuple[int, str]]:
        before_ms = clock.now_ms() - RECENT_MS
        return {key: found for key, found in dict(self._recent).items() if found[0] >= before_ms}
