"""Rules of the star left out: marks straight to the master, ops straight from it."""

from __future__ import annotations

from typing import Any

from harness.mutations.registry import Real, instead
from mirrorq.protocol.identities import MemberId
from mirrorq.protocol.ring import Data, JoinerDurable
from mirrorq.protocol.views import View
from mirrorq.replication.replica import Replica
from mirrorq.replication.ring import Ring


@instead("mark straight to the master before the sync", Ring, "_pass_watermark")
def _mark_before_sync(real: Real, self: Ring) -> None:
    kept = self.log.durable
    if self._is_direct:
        self.log.durable = self.log.received
    real(self)
    self.log.durable = kept


@instead("stable by the first mark that came straight", Ring, "_advance_stable")
def _first_mark(real: Real, self: Ring) -> None:
    kept = self._durable_left
    if self._is_direct:
        self._durable_left = max(self.reported.values(), default=0)
    real(self)
    self._durable_left = kept


@instead("straight marks kept over a view change", Ring, "install")
def _marks_kept(real: Real, self: Ring, new: View) -> None:
    reported, is_direct = self.reported, self._is_direct
    real(self, new)
    self.reported = reported
    self._is_direct = is_direct and self.is_master and bool(self._mirrors)


@instead("straight mark of another epoch", Replica, "_on_ring")
def _mark_epoch(real: Real, self: Replica, now_ms: int, sender: MemberId, message: Any) -> None:
    if isinstance(message, JoinerDurable):
        message = JoinerDurable(self.queue_id, self.ring.epoch, message.lsn)
    real(self, now_ms, sender, message)


@instead("op of the star that is missing is not asked for", Ring, "on_data")
def _gap_skipped(real: Real, self: Ring, sender: MemberId, message: Data) -> None:
    first = message.entries[0].lsn if message.entries else 0
    if self._is_direct and first > self.log.received + 1:
        self.log.received = first - 1
        self.log.base = max(self.log.base, first - 1) if not self.log.entries else self.log.base
    real(self, sender, message)
