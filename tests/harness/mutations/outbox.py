"""Rules of the outbox that are left out."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from harness.mutations.registry import Real, instead
from mirrorq.cluster.catalog.catalog import Catalog
from mirrorq.protocol.ops import OutboxDoneOp, OutboxOp
from mirrorq.replication.master.departures import Departures
from mirrorq.replication.master.producers import Producers
from mirrorq.replication.state.image import NUMBER_MAX
from mirrorq.replication.state.outbox import Outbox


@instead("outbox published from an unstable op", Departures, "move_entries")
def _outbox_unstable(real: Real, self: Departures, now_ms: int) -> None:
    state, ring = self._term.state, self._term.ring
    applied, shadow = state.outbox, Outbox.restore(state.outbox.image(), NUMBER_MAX)
    for lsn in range(state.applied + 1, ring.log.received + 1):
        entry = ring.log.entry(lsn)
        payload = entry.payload if entry is not None else None
        if isinstance(payload, OutboxOp):
            shadow.add(payload.target, payload.ranges, payload.reason, 0)
        elif isinstance(payload, OutboxDoneOp):
            shadow.done(payload.target, payload.number)
    state.outbox = shadow
    real(self, now_ms)
    state.outbox = applied


@instead("outbox lost with its queue", Catalog, "_on_delete_queue")
def _outbox_lost(real: Real, self: Catalog, command: Any) -> Any:
    return real(self, replace(command, is_drained=True))


@instead("outbox's id expires", Producers, "_may_expire")
def _outbox_id_expires(real: Real, self: Producers, producer: int) -> bool:
    return producer in self._term.log.highest
