"""Judges at the master if an auto-delete queue has lost its last consumer. Pure.

The rule is RabbitMQ's: an auto-delete queue lives without consumers until its first consumer, and
is deleted when the last consumer has gone. `get` is no consumer. The catalog notes the first
consumer, so a new master knows of it, but knows no names. Consumers therefore get time to come back
after a change of master or of connection. A consumer with a client that fell silent without a
goodbye gets the same time: the client may only be late, and the messages are for this consumer.

The master asks for the deletion once and does not take the request back. A later consumer is not
seated, and learns that the queue is gone. If the term ended first, the deletion fails, because the
request names the term, and the consumer asks the next master.
"""

from __future__ import annotations

from collections.abc import Hashable

from attrs import define, field

from mirrorq.containers.timers import earliest
from mirrorq.protocol.commands import CatalogCommand, DeleteQueue, NoteConsumers
from mirrorq.protocol.ops import IdleOp

NOTE_PARTS = 8
"""The log may note a queue as idle after this fraction of `expires` without use (1 / 8)."""
NOTE_US_MIN = 1_000_000
"""Least idle time before a note, in microseconds. Frequent use costs no ops."""


@define
class IdleExpiry:
    """Judges in a master's term if a queue was unused for the time `expires` of its policy. Has no
    effect without such a policy.

    Uses are those of RabbitMQ: a consumer, a get, a declaration (a handle that attaches to the
    master), and a message that a handle holds. Publishing is no use. All times are the queue's.

    An op notes the begin of idleness after a part of `expires`; another op notes that the queue is
    used again. A new master goes on from the note. Without a note it counts from the start of its
    term. A queue in constant use costs no op, and a queue without use costs a single op.

    The deletion names the term, so it fails when another master has taken over. The request is not
    taken back: a later consumer is not seated, as with `auto_delete`.
    """

    queue_id: int
    term: int
    expires_ms: int | None = None
    is_ending: bool = False
    """True when the deletion is asked for: no consumer is seated any more."""
    _used_us: int = 0
    """Queue time of the last use."""
    _is_used: bool = False
    """True while a consumer, a waiting get or a held message uses the queue."""
    _noted_us: int = 0
    """Begin of idleness according to the log; 0: in use."""
    _not_before_us: int = 0
    """Earliest time of a deletion: users of a former term may come back until then."""

    def begin_term(self, now_us: int, idle_since_us: int, return_us: int) -> None:
        """Begin the term.

        Args:
            idle_since_us: begin of idleness according to the log.
            return_us: time for users of the former term to come back.
        """
        self._noted_us = idle_since_us
        self._used_us = idle_since_us or now_us
        self._not_before_us = now_us + return_us

    def use(self, now_us: int) -> None:
        """Note a use of the queue at this moment."""
        self._used_us = max(self._used_us, now_us)

    def look(self, now_us: int, is_used: bool) -> IdleOp | None:
        """Return the op to be proposed, if any.

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
        """Time of the next judgement without an event; None: never.

        Args:
            now_us: the queue's time, `now_ms` the node's.
        """
        due_us = earliest(self._end_us, self._note_due_us)
        if self.is_ending or due_us is None:
            return None
        return now_ms + max(-((now_us - due_us) // 1000), 1)


@define
class AutoDelete:
    """Judges in a master's term if the last consumer of an auto-delete queue has gone. Has no
    effect on other queues."""

    queue_id: int
    term: int
    auto_delete: bool = False
    was_consumed: bool = False
    is_ending: bool = False
    """True when the deletion is asked for: no consumer is seated any more."""
    _is_noted: bool = False
    """True when the catalog knows, or is asked to note, that there was a consumer."""
    _back_by_ms: int = 0
    """Former consumers may come back until this time."""
    _away: dict[Hashable, int] = field(factory=dict)
    """Lost handles with consumers, by `Attachment.handle` -> time at which a handle is given up, in
    order of time. Key None: handles of a former master's term."""
    _is_vacant: bool = False

    def declare(self, *, auto_delete: bool, was_consumed: bool) -> None:
        """Take in the queue's declaration from the catalog."""
        self.auto_delete = auto_delete
        self.was_consumed = self.was_consumed or was_consumed
        self._is_noted = self._is_noted or was_consumed

    def expect(self, by_ms: int) -> None:
        """Let former consumers come back until this time."""
        if self.auto_delete:
            self._back_by_ms = max(self._back_by_ms, by_ms)

    def lose(self, handle: Hashable, now_ms: int, wait_ms: int) -> None:
        """Wait for a lost handle with consumers. None: the handles of a former term."""
        if not self.auto_delete:
            return
        while self._away and next(iter(self._away.values())) <= now_ms:
            del self._away[next(iter(self._away))]
        self._away.pop(handle, None)
        self._away[handle] = now_ms + wait_ms

    def find(self, handle: Hashable) -> bool:
        """Note that a handle is here. Returns true if the handle was lost."""
        return self._away.pop(handle, None) is not None

    @property
    def _waits_until_ms(self) -> int:
        """Time at which no consumer is expected to come back any more."""
        return max(self._back_by_ms, next(reversed(self._away.values()), 0))

    def judge(self, now_ms: int, consumers: int) -> CatalogCommand | None:
        """Return the command for the catalog, if any, with this number of consumers."""
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
        """Time of the next judgement without an event; None: never."""
        waits = self.auto_delete and self.was_consumed and self._is_vacant and not self.is_ending
        return self._waits_until_ms if waits else None
