"""Rules of moving a living master that are left out."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from harness.mutations.registry import Patch, named
from mirrorq.cluster.catalog.records import QueueRecord
from mirrorq.cluster.controller.controller import Controller
from mirrorq.cluster.controller.handover import HandOvers
from mirrorq.protocol.control import Yielded
from mirrorq.protocol.identities import MemberId
from mirrorq.protocol.views import View
from mirrorq.replication.master.core import Master


@named("moved without its promise")
def _move_unpromised() -> Sequence[Patch]:
    def has_yielded(self: HandOvers, queue_id: int, found: View) -> bool:
        return True

    return [(HandOvers, "has_yielded", has_yielded)]


@named("copies given up for a master that is silent")
def _silent_master() -> Sequence[Patch]:
    """They go in the very change that moves the queue, or without its word."""

    def has_word(self: Controller, queue: QueueRecord, head: MemberId) -> bool:
        return True

    return [(Controller, "_has_word", has_word)]


@named("promise of another epoch")
def _promise_epoch() -> Sequence[Patch]:
    real = HandOvers.on_yielded

    def on_yielded(self: HandOvers, promise: Yielded, found: View) -> None:
        real(self, replace(promise, epoch=found.epoch), found)

    return [(HandOvers, "on_yielded", on_yielded)]


@named("promise not honoured")
def _promise_broken() -> Sequence[Patch]:
    """The master promises, and goes on handing out."""
    real = Master.settle

    def settle(self: Master, now_ms: int) -> None:
        kept, self.yielded_epoch = self.yielded_epoch, 0
        real(self, now_ms)
        self.yielded_epoch = kept

    return [(Master, "settle", settle)]
