"""What leaves a queue for others, at its master: couriers, and what the catalog must know first.

A queue with something in its outbox is not to be deleted: so the catalog is told before the first
op that puts something there. While the queue is being deleted nothing more may leave it, and it
goes when its outbox is empty.
"""

from __future__ import annotations

from mirrorq.protocol.commands import DeleteQueue, NoteOutbox
from mirrorq.replication.master.courier import Couriers
from mirrorq.replication.master.reign import Reign

__all__ = ["Departures"]


class Departures:
    """One reign's."""

    def __init__(self, reign: Reign) -> None:
        ring = reign.ring
        self.couriers = Couriers(
            ring.me,
            ring.queue_id,
            reign.state,
            reign.config,
            reign.targets,
            reign.codec,
            reign.timers.new(),
        )
        self.is_known = False
        """The catalog knows that the queue may send to others."""
        self.is_ending = False
        """The queue is being deleted."""
        self._reign = reign
        self._has_asked = False
        self._is_deleted = False

    def ask(self) -> None:
        """Have the catalog know that the queue is not to be deleted over what it has to send."""
        if not self._has_asked:
            self._has_asked = True
            self._reign.commands.append(NoteOutbox(self._reign.ring.queue_id))

    def may_go_to(self, target: int) -> bool:
        """Whether neither that queue nor this one is deleted."""
        return not self.is_ending and self.is_there(target)

    def is_there(self, target: int) -> bool:
        """Whether that queue has not been deleted."""
        return self._reign.targets.serving(target) is not None

    def run(self, now_ms: int) -> None:
        """Send what is to go, note by ops what has arrived; end the queue when nothing is left."""
        couriers, reign = self.couriers, self._reign
        if couriers.is_due(now_ms):
            couriers.pursue(now_ms)
        if not couriers.done and not self.is_ending:
            return
        done, couriers.done = couriers.done, []
        for op in done:
            reign.log.propose(op)
            if op.outcome != "confirmed" and op.target in reign.state.outbox.outlets:
                text = f"messages for queue {op.target} went nowhere: {op.outcome}"
                reign.notice("dead letters lost", text)
        if self.is_ending and not self._is_deleted and not self._has_any():
            self._is_deleted = True
            reign.commands.append(DeleteQueue(reign.ring.queue_id, is_drained=True))

    def _has_any(self) -> bool:
        """Whether something is on its way to another queue, or about to be."""
        reign = self._reign
        return bool(reign.state.outbox.count) or reign.log.outbox_lsn > reign.state.applied
