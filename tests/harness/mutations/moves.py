"""Rules of moving a living master that are left out."""

from __future__ import annotations

from msgspec.structs import replace

from harness.mutations.registry import Real, instead
from mirrorq.cluster.controller.handover import HandOvers
from mirrorq.protocol.control import Yielded
from mirrorq.protocol.views import View
from mirrorq.replication.master.master import Master


@instead("promise of another epoch", HandOvers, "on_yielded")
def _promise_epoch(real: Real, self: HandOvers, promise: Yielded, found: View) -> None:
    real(self, replace(promise, epoch=found.epoch), found)


@instead("promise not honoured", Master, "settle")
def _promise_broken(real: Real, self: Master, now_ms: int) -> None:
    """The master promises, and goes on handing out."""
    kept, self.yielded_epoch = self.yielded_epoch, 0
    real(self, now_ms)
    self.yielded_epoch = kept
