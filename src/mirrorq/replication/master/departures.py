"""Messages that leave a queue for other queues, at its master: couriers, and the note in the
catalog.

A queue with messages in its outbox must not be deleted. So the catalog hears about the outbox
before the first op that fills it. While the queue is being deleted no further message may leave,
and the queue ends when its outbox is empty.
"""

from __future__ import annotations

from mirrorq.protocol.commands import DeleteQueue, NoteOutbox
from mirrorq.replication.master.courier import CIRCLE, Couriers
from mirrorq.replication.master.term import Term


class Departures:
    """Couriers of a queue, and the catalog's knowledge of its outbox. A part of `Master`."""

    def __init__(self, term: Term) -> None:
        ring = term.ring
        self.couriers = Couriers(
            ring.me,
            ring.queue_id,
            term.state,
            term.config,
            term.targets,
            term.codec,
            term.timers.new(),
        )
        self.is_known = False
        """True when the catalog knows that the queue may send to other queues."""
        self.is_ending = False
        """True while the queue is being deleted."""
        self.circled: dict[str, int] = {}
        """Dead-letter queue -> messages dropped in this term to avoid a circle."""
        self._term = term
        self._has_asked = False
        self._is_deleted = False

    def ask(self) -> None:
        """Ask the catalog once to note that the queue has an outbox."""
        if not self._has_asked:
            self._has_asked = True
            self._term.commands.append(NoteOutbox(self._term.ring.queue_id))

    def may_go_to(self, target: int) -> bool:
        """Return true if neither the target nor this queue is deleted."""
        return not self.is_ending and self.is_there(target)

    def is_there(self, target: int) -> bool:
        """Return true if the queue has not been deleted."""
        return self._term.targets.serving(target) is not None

    def move_entries(self, now_ms: int) -> None:
        """Send entries, propose ops for arrived entries; end the queue when nothing is left."""
        couriers, term = self.couriers, self._term
        if couriers.is_due(now_ms):
            couriers.pursue(now_ms)
        if not couriers.done and not self.is_ending:
            return
        done, couriers.done = couriers.done, []
        for op in done:
            term.log.propose(op)
        self._tell_lost()
        if self.is_ending and not self._is_deleted and not self._has_any():
            self._is_deleted = True
            term.commands.append(DeleteQueue(term.ring.queue_id, is_drained=True))

    def _tell_lost(self) -> None:
        lost, self.couriers.lost = self.couriers.lost, []
        for target, count, why in lost:
            name = self._term.targets.name(target)
            queue = repr(name) if name else f"with the id {target}"
            self._term.notice(
                "dead letters lost", f"{count} message(s) for queue {queue} went nowhere: {why}"
            )
            if why == CIRCLE:
                self.circled[name] = self.circled.get(name, 0) + count

    def _has_any(self) -> bool:
        """Return true if an entry is on its way to another queue, or about to be."""
        term = self._term
        return bool(term.state.outbox.count) or term.log.outbox_lsn > term.state.applied
