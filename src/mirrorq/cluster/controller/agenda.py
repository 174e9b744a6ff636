"""Queues which the catalog's leader is to judge: a portion at a time, urgent queues first. Pure.

1. A queue stays on the agenda until taken. A change in the middle of a sweep puts the affected
   queues in again, even queues already taken. So no queue is left out, and each judgement uses
   the state at its time.
2. A deadline belongs to a single queue.
3. At most `JUDGED_MAX` queues are taken in one millisecond. Between portions the node can answer,
   and shows signs of life.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from attrs import define, field

from mirrorq.containers.timers import FOREVER_MS, Deadlines

JUDGED_MAX = 64
"""Limit of queues judged in one millisecond of the leader's clock, and so in one step."""


@define
class Agenda:
    """Queues which one leader is still to judge."""

    _urgent: dict[int, None] = field(factory=dict)
    """Queues with clients possibly waiting for a master."""
    _changed: dict[int, None] = field(factory=dict)
    _swept: dict[int, None] = field(factory=dict)
    _waits: Deadlines = field(factory=Deadlines)
    """When judgements wanted another look."""
    _retries: Deadlines = field(factory=Deadlines)
    """When proposals seem lost."""
    _at_ms: int = -1
    _left: int = 0
    """Queues still allowed at `_at_ms`."""

    def clear(self) -> None:
        """A term begins or ends."""
        for queues in (self._urgent, self._changed, self._swept):
            queues.clear()
        self._waits, self._retries = Deadlines(), Deadlines()

    # --- What is to be judged -------------------------------------------------------------

    def hurry(self, queues: Iterable[int]) -> None:
        """Judge the queues before all others."""
        self._urgent.update(dict.fromkeys(queues))

    def mark(self, queues: Iterable[int]) -> None:
        """Judge the queues, as part of their state has changed."""
        self._changed.update(dict.fromkeys(queues))

    def sweep(self, queues: Iterable[int]) -> None:
        """Judge the queues after a change of possible effect on every queue."""
        self._swept.update(dict.fromkeys(queues))

    def wait(self, queue_id: int, at_ms: int) -> None:
        """Judge the queue again at `at_ms`, or at an earlier time already set."""
        self._waits.set_by(queue_id, at_ms)

    def retry(self, queue_id: int, at_ms: int | None) -> None:
        """Judge the queue at `at_ms`, when its proposal seems lost; None: no retry."""
        self._retries.set(queue_id, at_ms)

    def begin_judgement(self, queue_id: int) -> None:
        """Begin a judgement of the queue: its earlier waits are void."""
        self._waits.set(queue_id, None)

    def forget(self, queue_id: int) -> None:
        """The queue is no more."""
        self._waits.set(queue_id, None)
        self._retries.set(queue_id, None)

    # --- Taking ---------------------------------------------------------------------------

    def take_due(self, now_ms: int) -> list[int]:
        """Mark a portion of the due queues; return the queues due by `wait`."""
        self.mark(self._retries.take_due(now_ms, JUDGED_MAX))
        due = self._waits.take_due(now_ms, JUDGED_MAX)
        self.mark(due)
        return due

    def take_portion(self, now_ms: int) -> list[int]:
        """Return the queues to judge now."""
        if not self._urgent and not self._changed and not self._swept:
            return []
        if now_ms != self._at_ms:
            self._at_ms, self._left = now_ms, JUDGED_MAX
        taken: list[int] = []
        for queues in (self._urgent, self._changed, self._swept):
            for queue_id in list(islice(queues, self._left)):
                self._left -= 1
                taken.append(queue_id)
                for others in (self._urgent, self._changed, self._swept):
                    others.pop(queue_id, None)
        return taken

    def wake_at_ms(self, now_ms: int) -> int | None:
        """Return when there is something to judge; None: not by time alone."""
        if self._urgent or self._changed or self._swept:
            return now_ms + 1
        next_ms = min(self._waits.next_ms, self._retries.next_ms)
        return None if next_ms == FOREVER_MS else next_ms
