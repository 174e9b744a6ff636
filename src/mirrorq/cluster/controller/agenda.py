"""Queues that the catalog's leader is to judge: so many at a time, the urgent ones first. Pure.

1. What is to be judged stays so until it is taken. A change in the middle of a sweep puts the
   queues that it concerns in again, those too that were taken already: none is left out, and each
   is judged by what is known when it is taken.
2. A time for which a queue waits is that queue's alone.
3. So many are taken in one millisecond as `JUDGED_MAX` says: a node that is asked for more steps in
   between, and shows that it lives.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from attrs import define, field

from mirrorq.containers.timers import FOREVER_MS, Deadlines

JUDGED_MAX = 64
"""Queues judged in one millisecond of the leader's clock, which one step does not outlast."""


@define
class Agenda:
    """What one leader is still to judge."""

    _urgent: dict[int, None] = field(factory=dict)
    """Queues of which somebody may wait for a master."""
    _changed: dict[int, None] = field(factory=dict)
    _swept: dict[int, None] = field(factory=dict)
    _waits: Deadlines = field(factory=Deadlines)
    """When judgements wanted another look."""
    _retries: Deadlines = field(factory=Deadlines)
    """When proposals seem lost."""
    _at_ms: int = -1
    _left: int = 0
    """To be taken at that time."""

    def clear(self) -> None:
        """A term begins or ends."""
        for queues in (self._urgent, self._changed, self._swept):
            queues.clear()
        self._waits, self._retries = Deadlines(), Deadlines()

    # --- What is to be judged -------------------------------------------------------------

    def hurry(self, queues: Iterable[int]) -> None:
        """Before all others."""
        self._urgent.update(dict.fromkeys(queues))

    def mark(self, queues: Iterable[int]) -> None:
        """Something about these has changed."""
        self._changed.update(dict.fromkeys(queues))

    def sweep(self, queues: Iterable[int]) -> None:
        """Something that may concern every queue has changed."""
        self._swept.update(dict.fromkeys(queues))

    def wait(self, queue_id: int, at_ms: int) -> None:
        """Judge this queue again at that time, or earlier if it waits for that."""
        self._waits.set_by(queue_id, at_ms)

    def retry(self, queue_id: int, at_ms: int | None) -> None:
        """Judge this queue at that time, as its proposal seems lost then; None: it is not."""
        self._retries.set(queue_id, at_ms)

    def begin(self, queue_id: int) -> None:
        """A judgement of this queue begins: what earlier ones waited for is void."""
        self._waits.set(queue_id, None)

    def forget(self, queue_id: int) -> None:
        """The queue is no more."""
        self._waits.set(queue_id, None)
        self._retries.set(queue_id, None)

    # --- Taking ---------------------------------------------------------------------------

    def take_due(self, now_ms: int) -> list[int]:
        """Mark so many queues whose time has come; return those that waited for another look."""
        self.mark(self._retries.take_due(now_ms, JUDGED_MAX))
        due = self._waits.take_due(now_ms, JUDGED_MAX)
        self.mark(due)
        return due

    def take(self, now_ms: int) -> list[int]:
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
