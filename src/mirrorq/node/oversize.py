"""Messages that were too large to be sent: named in the log, counted, and told as an alarm.

The protocols say again what got lost, and what is too large gets lost each time: without a word a
copy would stay at 0 % for ever, and nobody would know why.
"""

from __future__ import annotations

import logging

from mirrorq import clock

PERIOD_MS = 60_000
"""The same is written to the log once in this time."""
RECENT_MS = 10_000
"""What has not come again for so long is over: what is too large is tried more often."""
KINDS_MAX = 1000
"""Kinds of messages, each of one queue to one node, that are remembered."""

_Key = tuple[str, str, int]
"""To whom, what, queue id."""


class Oversize:
    """What one node could not send for its size. The driver has it; the node thread's, but for what
    says otherwise.

    Args:
        log: where each is named.
    """

    def __init__(self, log: logging.Logger) -> None:
        self.count = 0
        """Messages, since the start. From any thread."""
        self._log = log
        self._told_ms: dict[_Key, int] = {}
        self._recent: dict[_Key, tuple[int, str]] = {}
        """(when last, in words)."""

    def note(self, to: str, kind: str, queue: tuple[int, str], size: int, limit: int) -> None:
        """A message was not sent.

        Args:
            queue: id and name of the queue that it is about, (0, "") for none.
            size: of its largest part.
            limit: what the receiver takes.
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
        """What was not sent lately, in words."""
        return tuple(text for _, text in self._live().values())

    def of_queue(self, queue_id: int) -> tuple[str, ...]:
        """The same of one queue. From any thread."""
        return tuple(text for key, (_, text) in self._live().items() if key[2] == queue_id)

    def _live(self) -> dict[_Key, tuple[int, str]]:
        before_ms = clock.now_ms() - RECENT_MS
        return {key: found for key, found in dict(self._recent).items() if found[0] >= before_ms}
