"""Producers and consumers of many messages at a time: `put_many` of hundreds, acked together.

What they write into the journal is what others write, message by message; the ops are few, so
much is confirmed in little time. A put is one frame, or several, and an ack ends parts of frames
and of deliveries.
"""

from __future__ import annotations

from collections.abc import Sequence

from harness.workload import Consumer, Dispatch, Producer
from mirrorq.protocol.sessions import Delivery
from mirrorq.session.calls import SettleCall, SettleDone

__all__ = ["BulkConsumer", "BulkProducer", "joined"]

Taken = Sequence[tuple[Delivery, Dispatch]]
HOLDS_MS = (0, 0, 5, 50)
"""How long a user keeps what it took."""
NACK_PART = 0.5
"""Of what is not all acked: how much goes back."""


class BulkProducer(Producer):
    """Puts up to `batch_max` messages at once."""

    in_flight_max = 4000


class BulkConsumer(Consumer):
    """Takes hundreds of messages, and acks or gives back all of them by one call."""

    prefetch = 1500

    def work(self) -> None:
        """The user takes the first ones of what is here, or all."""
        if not self._buffer:
            return
        here = len(self._buffer)
        count = here if self.random.random() < 0.5 else self.random.randint(1, here)
        taken, self._buffer = self._buffer[:count], self._buffer[count:]
        handed_ms, journal = self.cluster.handed_ms, self.journal
        deliveries = []
        for piece, sequence, body in taken:
            name = (piece.epoch, piece.number)
            when_ms = handed_ms[self.queue_id, piece.epoch, piece.number]
            one = Dispatch(sequence, body, piece.count, when_ms, name, self.name)
            deliveries.append((piece, one))
            journal.deliveries.append(one)
        self.cluster.after(self.random.choice(HOLDS_MS), self._settle_all, deliveries)
        if self._buffer:
            self.poke(self.random.randint(1, 5))

    def _settle_all(self, taken: Taken) -> None:
        if not self.is_alive:
            return
        until_ms = self.cluster.nodes[self.node].paused_until_ms
        if self.cluster.now_ms < until_ms:
            self.cluster.at(until_ms, self._settle_all, taken)
            return
        self._unsettled -= len(taken)
        kept: Taken = ()
        if self.random.random() < self.nack_share:
            edge = int(len(taken) * (1 - NACK_PART))
            taken, kept = taken[:edge], taken[edge:]
        for _, one in taken:
            one.acked = "open"
        if taken:
            token = [one for _, one in taken]
            self.session.settle(SettleCall(token, "ack", joined([piece for piece, _ in taken])))
        if kept:
            delay_ms = self.random.choice(self.nack_delays_ms)
            pieces = joined([piece for piece, _ in kept])
            self.session.settle(SettleCall(None, "nack", pieces, delay_ms))
        self.poke()

    def _on_settled(self, done: SettleDone) -> None:
        if not isinstance(done.token, list):
            return
        refused = {
            (piece.epoch, piece.number, sequence)
            for piece in done.refused
            for sequence in range(piece.first, piece.last + 1)
        }
        for one in done.token:
            if not self.is_open:
                one.acked = "lost"
            elif (*one.delivery, one.sequence) in refused:
                one.acked = "refused"
            else:
                one.acked = "ok"
                self.journal.ack_order.append(one)
                self.journal.resolved_ms.setdefault(one.sequence, self.cluster.now_ms)


def joined(pieces: Sequence[Delivery]) -> tuple[Delivery, ...]:
    """Deliveries of a message each as few longer ones."""
    found: list[Delivery] = []
    for piece in pieces:
        last = found[-1] if found else None
        if last is not None and _follows(last, piece):
            found[-1] = Delivery(last.epoch, last.number, last.first, piece.last, last.count)
        else:
            found.append(piece)
    return tuple(found)


def _follows(piece: Delivery, after: Delivery) -> bool:
    """Whether they are neighbours in one delivery."""
    is_same = (piece.epoch, piece.number, piece.count) == (after.epoch, after.number, after.count)
    return is_same and after.first == piece.last + 1
