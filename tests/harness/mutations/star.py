"""Rules of the star left out: marks straight to the master, ops straight from it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from harness.mutations.registry import Patch, named
from mirrorq.protocol.identities import MemberId
from mirrorq.protocol.ring import Data, JoinerDurable
from mirrorq.protocol.views import View
from mirrorq.replication.replica import Replica
from mirrorq.replication.ring import Ring


@named("mark straight to the master before the sync")
def _mark_before_sync() -> Sequence[Patch]:
    real = Ring._pass_watermark

    def pass_on(self: Ring) -> None:
        kept = self.durable
        if self._is_direct:
            self.durable = self.received
        real(self)
        self.durable = kept

    return [(Ring, "_pass_watermark", pass_on)]


@named("stable by the first mark that came straight")
def _first_mark() -> Sequence[Patch]:
    real = Ring._advance_stable

    def advance(self: Ring) -> None:
        kept = self._w_left
        if self._is_direct:
            self._w_left = max(self.reported.values(), default=0)
        real(self)
        self._w_left = kept

    return [(Ring, "_advance_stable", advance)]


@named("straight marks kept over a view change")
def _marks_kept() -> Sequence[Patch]:
    real = Ring.install

    def install(self: Ring, new: View) -> None:
        reported, is_direct = self.reported, self._is_direct
        real(self, new)
        self.reported = reported
        self._is_direct = is_direct and self.is_master and bool(self._mirrors)

    return [(Ring, "install", install)]


@named("straight mark of another epoch")
def _mark_epoch() -> Sequence[Patch]:
    real = Replica._on_ring

    def on_ring(self: Replica, now_ms: int, sender: MemberId, message: Any) -> None:
        if isinstance(message, JoinerDurable):
            message = JoinerDurable(self.queue_id, self.ring.epoch, message.lsn)
        real(self, now_ms, sender, message)

    return [(Replica, "_on_ring", on_ring)]


@named("op of the star that is missing is not asked for")
def _gap_skipped() -> Sequence[Patch]:
    real = Ring.on_data

    def on_data(self: Ring, sender: MemberId, message: Data) -> None:
        first = message.entries[0].lsn if message.entries else 0
        if self._is_direct and first > self.received + 1:
            self.received = first - 1
            self.base = max(self.base, first - 1) if not self.log else self.base
        real(self, sender, message)

    return [(Ring, "on_data", on_data)]
