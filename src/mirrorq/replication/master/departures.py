"""Messages that leave a queue for other queues, at its master: couriers, and the note in the
catalog.

A queue with messages in its outbox must not be deleted. So the catalog hears about the outbox
before the first op that fills it. While the queue is being deleted no further message may leave it,
and the queue ends when its outbox is empty.
"""

from __future__ import annotations

from mirrorq.protocol.commands import DeleteQueue, NoteOutbox
from mirrorq.replication.master.courier import CIRCLE, Couriers
from mirrorq.replication.master.term import Term


class Departures:
    """What leaves the queue for others, and whether the catalog knows. A part of `Master`."""

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
        """The catalog knows that the queue may send to others."""
        self.is_ending = False
        """The queue is being deleted."""
        self.circled: dict[str, int] = {}
        """Dead-letter queue -> messages that were dropped in this term, not to go in a circle."""
        self._term = term
        self._has_asked = False
        self._is_deleted = False

    def ask(self) -> None:
        """Have the catalog know that the queue is not to be deleted over what it has to send."""
        if not self._has_asked:
            self._has_asked = True
            self._term.commands.append(NoteOutbox(self._term.ring.queue_id))

    def may_go_to(self, target: int) -> bool:
        """Whether neither that queue nor this one is deleted."""
        return not self.is_ending and self.is_there(target)

    def is_there(self, target: int) -> bool:
        """Whether that queue has not been deleted."""
        return self._term.targets.serving(target) is not None

    def run(self, now_ms: int) -> None:
        """Send what is to go, note by ops what has arrived; end the queue when nothing is left."""
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
        """Whether something is on its way to another queue, or about to be."""
        term = self._term
        return bool(term.state.outbox.count) or term.log.outbox_lsn > term.state.applied
