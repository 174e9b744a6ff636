"""Rules of the ring that are left out: marks, fencing, repair."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from harness.mutations.registry import Patch, Real, instead, named
from mirrorq.protocol.identities import MemberId
from mirrorq.protocol.ring import History, HistoryRequest, Mark, Watermark
from mirrorq.replication.replica import Replica
from mirrorq.replication.ring import Ring


@instead("confirm before the own disk", Ring, "_advance_stable")
def _confirm_early(real: Real, self: Ring) -> None:
    kept, self.log.durable = self.log.durable, self.log.received
    real(self)
    self.log.durable = kept


@instead("watermark is received", Ring, "_pass_watermark")
def _watermark_received(real: Real, self: Ring) -> None:
    kept, self.log.durable = self.log.durable, self.log.received
    real(self)
    self.log.durable = kept


@instead("own durable without the minimum", Ring, "_pass_watermark")
def _own_durable(real: Real, self: Ring) -> None:
    kept = self._durable_left
    if not self.is_master:
        self._durable_left = self.log.durable
    real(self)
    self._durable_left = kept


@named("watermark of another epoch")
def _watermark_epoch() -> Sequence[Patch]:
    return _any_epoch(Watermark)


@named("stale repair answer")
def _history_epoch() -> Sequence[Patch]:
    return _any_epoch(History)


def _any_epoch(kind: type) -> Sequence[Patch]:
    """Messages of this kind count in whatever epoch they were sent."""
    real = Replica._on_ring

    def on_ring(self: Replica, now_ms: int, sender: MemberId, message: Any) -> None:
        heard: Any = message
        if isinstance(message, kind):
            heard = replace(heard, epoch=self.ring.epoch)
        real(self, now_ms, sender, heard)

    return [(Replica, "_on_ring", on_ring)]


@instead("watermark before repair", Ring, "on_watermark")
def _watermark_unrepaired(real: Real, self: Ring, sender: MemberId, message: Watermark) -> None:
    kept, self.repaired = self.repaired, True
    real(self, sender, message)
    self.repaired = kept


@instead("watermark before repair", Ring, "settle")
def _watermark_unrepaired_settle(real: Real, self: Ring, now_ms: int = 0) -> None:
    if not self.repaired and self.view is not None:
        self._pass_watermark()
    real(self, now_ms)


@instead("apply on received", Replica, "_apply_stable")
def _apply_received(real: Real, self: Replica, now_ms: int) -> None:
    kept, self.ring.log.stable = self.ring.log.stable, self.ring.log.received
    real(self, now_ms)
    self.ring.log.stable = kept


@instead("cut to the left's length", Ring, "on_mark")
def _cut_to_left(real: Real, self: Ring, sender: MemberId, message: Mark) -> None:
    if self.repaired and message.epoch == self.epoch and sender == self._left():
        self.log.cut(message.received)
    real(self, sender, message)


@instead("unrepaired left answers", Ring, "on_history_request")
def _unrepaired_answers(real: Real, self: Ring, sender: MemberId, message: HistoryRequest) -> None:
    if not self.repaired and message.epoch == self.epoch and sender == self._right():
        answer = History(self.queue_id, self.epoch, tuple(self.log.history))
        self._send(sender, answer)
    real(self, sender, message)
