"""Rules of joining that are left out: counting in, transfer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from harness.mutations.registry import Patch, Real, instead, named
from mirrorq.protocol.identities import MemberId
from mirrorq.protocol.ops import AckOp
from mirrorq.protocol.ring import TransferState
from mirrorq.replication import donor
from mirrorq.replication.membership import Membership
from mirrorq.replication.replica import Replica
from mirrorq.replication.ring import Ring
from mirrorq.replication.state.queue_state import QueueState
from mirrorq.replication.transfer import Transfer


@instead("counted in by the known stable mark only", Membership, "count_in")
def _counted_by_stable(
    real: Real, self: Membership, now_ms: int, out: Any, *, is_active: bool
) -> None:
    """A master that does not wait for its own promotion either: with that wait stable is
    beyond the history by itself."""
    start_last, self._ring.start_last = self._ring.start_last, 0
    real(self, now_ms, out, is_active=True)
    self._ring.start_last = start_last


@instead("gate ended by a timeout", Ring, "on_tick")
def _gate_timeout(real: Real, self: Ring) -> None:
    self.gates = {}
    self.joiners = {}
    real(self)


@instead("joiner reports before its disk", Ring, "_report_joiner")
def _joiner_received(real: Real, self: Ring) -> None:
    kept, self.log.durable = self.log.durable, self.log.received
    real(self)
    self.log.durable = kept


@instead("joiner reports before it is complete", Ring, "_report_joiner")
def _joiner_incomplete(real: Real, self: Ring) -> None:
    kept, self.complete = self.complete, True
    real(self)
    self.complete = kept


@instead("natural drain on received acks", Replica, "_settle")
def _drain_received(real: Real, self: Replica, now_ms: int, out: Any) -> None:
    """The newest ack in the log ends its messages, whether it is stable or not."""
    acks = [one.payload for one in self.ring.log.entries if isinstance(one.payload, AckOp)]
    self.transfer.on_ended(acks[-1].ranges if acks else ())
    real(self, now_ms, out)


@instead("gate of a dropped member ended at the proposal", Membership, "move_slow_out")
def _drop_at_proposal(real: Real, self: Membership, now_ms: int, out: Any) -> None:
    before = out.propose
    real(self, now_ms, out)
    if out.propose is not before:
        self._ring._durable_left = self._ring.log.durable


@instead("state taken from the received log", Replica, "_give_state")
def _state_received(real: Real, self: Replica, now_ms: int, sender: MemberId, message: Any) -> None:
    kept = self.state
    self.state = QueueState.decode(kept.encode())
    for lsn in range(kept.applied + 1, self.ring.log.received + 1):
        entry = self.ring.log.entry(lsn)
        if entry is not None:
            self.state.apply(entry)
    real(self, now_ms, sender, message)
    self.state = kept


@instead("state merged, not replaced", Replica, "_take_state")
def _state_merged(real: Real, self: Replica, now_ms: int, message: TransferState) -> None:
    before = self.state
    real(self, now_ms, message)
    if self.state is not before:
        for first, last in before.live:
            self.state.live.add(first, last)


@instead("late body makes an acked message live", Transfer, "accept_chunk")
def _late_body(
    real: Real, self: Transfer, now_ms: int, message: Any, epoch: int, state: QueueState
) -> Any:
    for entry in message.entries:
        state.live.add(entry.header.first_sequence, entry.header.last_sequence)
    return real(self, now_ms, message, epoch, state)


@named("page that differs taken for the same")
def _page_of_any_digest() -> Sequence[Patch]:
    return [(donor, "digest", lambda _: (0, 0))]
