"""Rules of the ring that are left out: marks, fencing, repair."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from harness.mutations.registry import Patch, Real, instead, named
from mirrorq.protocol.identities import MemberId
from mirrorq.protocol.ring import Data, History, HistoryRequest, Mark, Watermark
from mirrorq.protocol.views import View
from mirrorq.replication import ring
from mirrorq.replication.replica import Replica
from mirrorq.replication.ring import Ring


@instead("confirm before the own disk", Ring, "_advance_stable")
def _confirm_early(real: Real, self: Ring) -> None:
    kept, self.durable = self.durable, self.received
    real(self)
    self.durable = kept


@instead("watermark is received", Ring, "_pass_watermark")
def _watermark_received(real: Real, self: Ring) -> None:
    kept, self.durable = self.durable, self.received
    real(self)
    self.durable = kept


@instead("own durable without the minimum", Ring, "_pass_watermark")
def _own_durable(real: Real, self: Ring) -> None:
    kept = self._w_left
    if not self.is_master:
        self._w_left = self.durable
    real(self)
    self._w_left = kept


@instead("watermark kept over a view change", Ring, "install")
def _watermark_kept(real: Real, self: Ring, new: View) -> None:
    kept = self._w_left
    real(self, new)
    self._w_left = kept


@named("watermark of another epoch")
def _watermark_epoch() -> Sequence[Patch]:
    return _any_epoch(Watermark)


@named("data of another epoch")
def _data_epoch() -> Sequence[Patch]:
    """Links are FIFO, so the check of the epoch and the wait for repair guard the same: this
    leaves out both."""
    real = Ring.on_data

    def on_data(self: Ring, sender: MemberId, message: Data) -> None:
        kept, self.repaired = self.repaired, True
        real(self, sender, message)
        self.repaired = kept

    return [*_any_epoch(Data), (Ring, "on_data", on_data)]


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


@named("watermark before repair")
def _watermark_unrepaired() -> Sequence[Patch]:
    real_on, real_settle = Ring.on_watermark, Ring.settle

    def on_watermark(self: Ring, sender: MemberId, message: Watermark) -> None:
        kept, self.repaired = self.repaired, True
        real_on(self, sender, message)
        self.repaired = kept

    def settle(self: Ring, now_ms: int = 0) -> None:
        if not self.repaired and self.view is not None:
            self._pass_watermark()
        real_settle(self, now_ms)

    return [(Ring, "on_watermark", on_watermark), (Ring, "settle", settle)]


@named("durable not lowered by a cut")
def _durable_kept() -> Sequence[Patch]:
    real = Ring._cut

    def cut(self: Ring, lsn: int) -> None:
        durable, writes = self.durable, self._writes
        real(self, lsn)
        self.durable, self._writes = durable, writes

    def on_persisted(self: Ring, number: int) -> None:
        while self._writes and self._writes[0][0] <= number:
            self.durable = max(self.durable, self._writes.popleft()[1])

    return [(Ring, "_cut", cut), (Ring, "on_persisted", on_persisted)]


@instead("apply on received", Replica, "_apply_stable")
def _apply_received(real: Real, self: Replica, now_ms: int) -> None:
    kept, self.ring.stable = self.ring.stable, self.ring.received
    real(self, now_ms)
    self.ring.stable = kept


@instead("cut by length", ring, "common_lsn")
def _cut_by_length(real: Real, mine: list[tuple[int, int]], theirs: Any) -> int:
    pairs = list(theirs)
    return min(mine[-1][1], int(pairs[-1][1])) if mine and pairs else 0


@instead("cut by the last epoch alone", ring, "common_lsn")
def _cut_by_last(real: Real, mine: list[tuple[int, int]], theirs: Any) -> int:
    pairs = list(theirs)
    if not mine or not pairs:
        return 0
    (epoch, last), (their_epoch, their_last) = mine[-1], pairs[-1]
    return min(last, their_last) if epoch <= their_epoch else 0


@instead("cut to the left's length", Ring, "on_mark")
def _cut_to_left(real: Real, self: Ring, sender: MemberId, message: Mark) -> None:
    if self.repaired and message.epoch == self.epoch and sender == self._left():
        self._cut(message.received)
    real(self, sender, message)


@instead("unrepaired left answers", Ring, "on_history_request")
def _unrepaired_answers(real: Real, self: Ring, sender: MemberId, message: HistoryRequest) -> None:
    if not self.repaired and message.epoch == self.epoch and sender == self._right():
        answer = History(self.queue_id, self.epoch, tuple(self.history))
        self._send(sender, answer)
    real(self, sender, message)
