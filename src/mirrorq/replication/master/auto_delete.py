"""Whether a queue that goes with its last consumer has lost it: a master's judgement. Pure.

The rule is RabbitMQ's: an auto-delete queue lives without consumers until it has had one, and
is deleted when the last has gone. `get` is no consumer. That there was one is kept in the
catalog, so that a new master knows it; the consumers themselves are not, so they get time to
come back after a change of master or of connection. So does one whose client was taken for gone and
never said goodbye: it may only have been late, and what came into the queue meanwhile is its own.

Once the deletion is asked for it may be done at any moment, and is not taken back: a consumer
that comes after that is not seated. It learns that the queue is gone or, when the term ended
first (the deletion names it and then fails), asks the next master again.
"""

from __future__ import annotations

from collections.abc import Hashable

from attrs import define, field

from mirrorq.protocol.commands import CatalogCommand, DeleteQueue, NoteConsumers

__all__ = ["AutoDelete", "IdleExpiry"]


# Whether a queue with `expires` has been unused for so long: a master's judgement.
#
# A use is what it is in RabbitMQ: a consumer, a get, a declaration (which is a handle that is
# opened: it attaches to the master). A message that a handle holds is one too. Publishing is
# none. Nothing of it is replicated: a new master counts from the start of its term.
#
# The deletion names the term, so that it fails when another master has taken over. Once it is
# asked for it may be done at any moment and is not taken back: a consumer that comes after that
# is not seated, as with `auto_delete`.
@define
class IdleExpiry:
    """When nobody has used the queue for as long as its policy's `expires` says, in one master's
    term; of no effect without such a policy."""

    queue_id: int
    term: int
    expires_ms: int | None = None
    is_ending: bool = False
    """The deletion is asked for: nobody is seated any more."""
    _used_ms: int = 0
    """When the queue was last used."""

    def use(self, now_ms: int) -> None:
        """Somebody uses the queue at this moment."""
        self._used_ms = max(self._used_ms, now_ms)

    def judge(self, now_ms: int, is_used: bool) -> DeleteQueue | None:
        """Return the deletion that is due, if any.

        Args:
            is_used: there are consumers, gets that wait, or messages that are held.
        """
        if is_used:
            self.use(now_ms)
        if self.is_ending or self.expires_ms is None:
            return None
        if is_used or now_ms < self._used_ms + self.expires_ms:
            return None
        self.is_ending = True
        return DeleteQueue(self.queue_id, self.term)

    def wake_at_ms(self) -> int | None:
        """When to judge again though nothing happens."""
        if self.is_ending or self.expires_ms is None:
            return None
        return self._used_ms + self.expires_ms


@define
class AutoDelete:
    """When the last consumer of an auto-delete queue has gone, in one master's term; of no effect
    on other queues."""

    queue_id: int
    term: int
    auto_delete: bool = False
    was_consumed: bool = False
    is_ending: bool = False
    """The deletion is asked for: nobody is seated any more."""
    _is_noted: bool = False
    """That there was a consumer is asked for, or is in the catalog."""
    _back_by_ms: int = 0
    """Consumers that were there before may come back until then."""
    _away: dict[Hashable, int] = field(factory=dict)
    """Consumers' handles that were lost, by what they are known by when they come back -> when they
    are given up: in the order of that. None: those of a former master's term."""
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

    def lose(self, handle: Hashable, now_ms: int, wait_ms: int) -> None:
        """A handle with consumers was lost, and is waited for. None: those of a former term."""
        if not self.auto_delete:
            return
        while self._away and next(iter(self._away.values())) <= now_ms:
            del self._away[next(iter(self._away))]
        self._away.pop(handle, None)
        self._away[handle] = now_ms + wait_ms

    def find(self, handle: Hashable) -> bool:
        """A handle is here; whether it had been lost."""
        return self._away.pop(handle, None) is not None

    @property
    def _waits_until_ms(self) -> int:
        """When nobody is expected to come back any more."""
        return max(self._back_by_ms, next(reversed(self._away.values()), 0))

    def judge(self, now_ms: int, consumers: int) -> CatalogCommand | None:
        """Return what to ask the catalog for, now that there are so many consumers."""
        if not self.auto_delete or self.is_ending:
            return None
        self._is_vacant = not consumers
        if consumers:
            self.was_consumed = True
            self._away.pop(None, None)
            if self._is_noted:
                return None
            self._is_noted = True
            return NoteConsumers(self.queue_id)
        if not self.was_consumed or now_ms < self._waits_until_ms:
            return None
        self.is_ending = True
        return DeleteQueue(self.queue_id, self.term)

    def wake_at_ms(self) -> int | None:
        """When to judge again though nothing happens."""
        waits = self.auto_delete and self.was_consumed and self._is_vacant and not self.is_ending
        return self._waits_until_ms if waits else None
