"""Judges at the master whether an auto-delete queue has lost its last consumer. Pure.

The rule is RabbitMQ's: an auto-delete queue lives without consumers until its first consumer, and
is deleted when the last consumer has gone. `get` is no consumer. The catalog notes that there was a
consumer, so a new master knows. It does not note which consumers there are, so consumers get time
to come back after a change of master or of connection. A consumer whose client fell silent without
a goodbye gets the same time: it may only be late, and the queue's messages are for it.

The master asks for the deletion once and does not take it back: a consumer that comes later is not
seated. It hears that the queue is gone. If the term ended first, the deletion fails, because it
names the term, and the consumer asks the next master.
"""

from __future__ import annotations

from collections.abc import Hashable

from attrs import define, field

from mirrorq.containers.timers import earliest
from mirrorq.protocol.commands import CatalogCommand, DeleteQueue, NoteConsumers
from mirrorq.protocol.ops import IdleOp

NOTE_PARTS = 8
"""Who has not used the queue for one part in so many of `expires` may be noted as gone."""
NOTE_US_MIN = 1_000_000
"""And for so long: what is used again and again costs no two ops each time."""


@define
class IdleExpiry:
    """Judges whether a queue was unused for as long as its policy's `expires` says, in one
    master's term. Without such a policy it has no effect.

    Uses are those of RabbitMQ: a consumer, a get, a declaration (a handle that attaches to the
    master), and a message that a handle holds. Publishing is no use. All times are the queue's.

    An op notes since when the queue is idle, once it was idle for a part of `expires`; another op
    notes that it is used again. A new master goes on from the note. Without one it counts from the
    start of its term. A queue in constant use costs no op, and a queue without use costs one.

    The deletion names the term, so it fails when another master has taken over. It is not taken
    back: a consumer that comes after the request is not seated, as with `auto_delete`.
    """

    queue_id: int
    term: int
    expires_ms: int | None = None
    is_ending: bool = False
    """The deletion is asked for: nobody is seated any more."""
    _used_us: int = 0
    """When the queue was last used."""
    _is_used: bool = False
    """By somebody who stays: whenever he goes, that is a step."""
    _noted_us: int = 0
    """What the log says: idle since then; 0: in use."""
    _not_before_us: int = 0
    """Users of a former term may come back until then."""

    def begin(self, now_us: int, idle_since_us: int, return_us: int) -> None:
        """The term begins.

        Args:
            idle_since_us: what the log says.
            return_us: how long users of the former term may take to come back.
        """
        self._noted_us = idle_since_us
        self._used_us = idle_since_us or now_us
        self._not_before_us = now_us + return_us

    def use(self, now_us: int) -> None:
        """Somebody uses the queue at this moment."""
        self._used_us = max(self._used_us, now_us)

    def look(self, now_us: int, is_used: bool) -> IdleOp | None:
        """Return what is to be said in the log, if anything.

        Args:
            is_used: there are consumers, gets that wait, or messages that are held.
        """
        if is_used or self._is_used:
            self.use(now_us)
        self._is_used = is_used
        due_us = self._note_due_us
        is_idle = due_us is not None and now_us >= due_us
        if self._noted_us:
            is_idle = self._used_us == self._noted_us
        if is_idle == bool(self._noted_us):
            return None
        self._noted_us = self._used_us if is_idle else 0
        return IdleOp(self._noted_us)

    @property
    def _note_due_us(self) -> int | None:
        if self.expires_ms is None or self._is_used or self._noted_us:
            return None
        return self._used_us + max(self.expires_ms * 1000 // NOTE_PARTS, NOTE_US_MIN)

    @property
    def _end_us(self) -> int | None:
        if self.expires_ms is None or self._is_used:
            return None
        return max(self._used_us + self.expires_ms * 1000, self._not_before_us)

    def judge(self, now_us: int) -> DeleteQueue | None:
        """Return the deletion that is due, if any."""
        end_us = self._end_us
        if self.is_ending or end_us is None or now_us < end_us:
            return None
        self.is_ending = True
        return DeleteQueue(self.queue_id, self.term)

    def wake_at_ms(self, now_ms: int, now_us: int) -> int | None:
        """When to judge again though nothing happens.

        Args:
            now_us: the queue's time, `now_ms` the node's.
        """
        due_us = earliest(self._end_us, self._note_due_us)
        if self.is_ending or due_us is None:
            return None
        return now_ms + max(-((now_us - due_us) // 1000), 1)


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
