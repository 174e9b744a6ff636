"""Whether a queue that goes with its last consumer has lost it: a master's judgement. Pure.

The rule is RabbitMQ's: an auto-delete queue lives without consumers until it has had one, and
is deleted when the last has gone. `get` is no consumer. That there was one is kept in the
catalog, so that a new master knows it; the consumers themselves are not, so they get time to
come back after a change of master or of connection.

Once the deletion is asked for it may be done at any moment, and is not taken back: a consumer
that comes after that is not seated. It learns that the queue is gone or, when the reign ended
first (the deletion names it and then fails), asks the next master again.
"""

from __future__ import annotations

from attrs import define

from mirrorq.messages import CatalogCommand, DeleteQueue, NoteConsumers

__all__ = ["Vacancy"]


@define
class Vacancy:
    """One reign over one queue; of no effect on a queue that is not auto-delete."""

    queue_id: int
    reign: int
    auto_delete: bool = False
    was_consumed: bool = False
    is_ending: bool = False
    """The deletion is asked for: nobody is seated any more."""
    _is_noted: bool = False
    """That there was a consumer is asked for, or is in the catalog."""
    _back_by_ms: int = 0
    """Consumers that were there before may come back until then."""
    _is_vacant: bool = False

    def declare(self, *, auto_delete: bool, was_consumed: bool) -> None:
        """Take in what the catalog says of the queue."""
        self.auto_delete = auto_delete
        self.was_consumed = self.was_consumed or was_consumed
        self._is_noted = self._is_noted or was_consumed

    def expect(self, by_ms: int) -> None:
        """Consumers of before may come back by then."""
        if self.auto_delete:
            self._back_by_ms = max(self._back_by_ms, by_ms)

    def judge(self, now_ms: int, consumers: int) -> CatalogCommand | None:
        """Return what to ask the catalog for, now that there are so many consumers."""
        if not self.auto_delete or self.is_ending:
            return None
        self._is_vacant = not consumers
        if consumers:
            self.was_consumed = True
            if self._is_noted:
                return None
            self._is_noted = True
            return NoteConsumers(self.queue_id)
        if not self.was_consumed or now_ms < self._back_by_ms:
            return None
        self.is_ending = True
        return DeleteQueue(self.queue_id, self.reign)

    def wake_at_ms(self) -> int | None:
        """When to judge again though nothing happens."""
        waits = self.auto_delete and self.was_consumed and self._is_vacant and not self.is_ending
        return self._back_by_ms if waits else None
