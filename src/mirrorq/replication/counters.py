"""Totals of a queue's messages while this node was its master, for metrics. Pure.

An op is counted when it is applied, so only stable ops count; a confirm is counted when it is sent.
No decision depends on a total. A batch costs one addition, not one for each message.
"""

from __future__ import annotations

from collections.abc import Iterable

from attrs import define, field

from mirrorq.containers.ranges import Range
from mirrorq.protocol import ops
from mirrorq.protocol.sessions import Confirmed, Deliver, SessionReply, Settled
from mirrorq.protocol.staged import CommitOp

REASONS = ("expired", "maxlen", "rejected", "delivery_limit", "purged", "moved")
"""Reasons for an end without an ack, with RabbitMQ's names where RabbitMQ has the reason."""


@define
class Tally:
    """Totals of a queue, since this node has a copy. Totals only grow."""

    published: int = 0
    """Messages stored: stable."""
    refused: int = 0
    """Messages refused by an op: over a limit, as a rule."""
    confirmed: int = 0
    """Confirms sent, including confirms to other queues and repeats after a reconnect."""
    delivered: int = 0
    """Messages delivered, including messages that a get() fetches ahead."""
    redelivered: int = 0
    """Messages delivered again."""
    acked: int = 0
    acks_refused: int = 0
    """Messages with an ack, nack or move that the master refused, because they had gone back."""
    returned: int = 0
    """Messages that went back to the queue."""
    dead_lettered: int = 0
    """Messages that went to a dead-letter queue."""
    failovers: int = 0
    """Number of times that this node took the queue over, after own restarts too."""
    unclean: int = 0
    """Promotions of a member that was not in sync."""
    ended: dict[str, int] = field(factory=lambda: dict.fromkeys(REASONS, 0))
    """Messages that ended without an ack, by reason."""

    def count_op(self, entry: ops.Entry, verdict: str, repeat_count: int) -> None:
        """Count an op that was applied at the master.

        Args:
            repeat_count: messages of a publish that repeat unique keys and were not stored.
            verdict: why an op about staged messages was refused; "" otherwise.
        """
        payload = entry.payload
        if payload is None:
            self._note_publish(entry)
            self.published -= repeat_count
        elif isinstance(payload, ops.AckOp):
            self.acked += _count(payload.ranges)
        elif isinstance(payload, ops.ReturnOp | ops.ReturnLaterOp):
            self.returned += _count(payload.ranges)
        elif isinstance(payload, CommitOp):
            self.published += 0 if verdict else payload.count
        elif isinstance(payload, ops.RefusalOp):
            self.refused += entry.header.count
        elif isinstance(payload, ops.PromotedOp):
            self.failovers += entry.lsn > 1
            self.unclean += payload.how == "unclean"
        else:
            self._note_ended(payload)

    def _note_publish(self, entry: ops.Entry) -> None:
        step, count = entry.step, entry.header.count
        if step is None:
            self.published += count
        elif isinstance(step, ops.Step):
            self.acked += _count(step.ranges)
            # The first body is the step itself.
            self.published += 0 if step.target else count - 1

    def _note_ended(self, payload: object) -> None:
        match payload:
            case ops.ExpiryOp():
                self.ended["expired"] += _count(payload.ranges)
            case ops.DropHeadOp():
                self.ended["maxlen"] += _count(payload.ranges)
            case ops.PurgeOp():
                self.ended["purged"] += _count(payload.ranges)
            case ops.DiscardOp() | ops.OutboxOp():
                reason = payload.reason if payload.reason in self.ended else "rejected"
                count = _count(payload.ranges)
                self.ended[reason] += count
                if isinstance(payload, ops.OutboxOp) and reason != "moved":
                    self.dead_lettered += count
            case _:
                pass

    def note_replies(self, replies: Iterable[SessionReply]) -> None:
        """Count the master's replies of this step."""
        for reply in replies:
            body = reply.reply
            if type(body) is Confirmed:
                for _, count, _ in (*body.runs, *body.repeats):
                    self.confirmed += count
            elif type(body) is Settled:
                self.acks_refused += _count((one.first, one.last) for one in body.refused)

    def note_sent(self, deliver: Deliver) -> None:
        """Count a delivery that was sent."""
        for piece in deliver.deliveries:
            count = piece.last - piece.first + 1
            self.delivered += count
            if piece.count > 1:
                self.redelivered += count


def _count(ranges: Iterable[Range]) -> int:
    return sum(last - first + 1 for first, last in ranges)
