"""Rules of what may be left behind, and of doing nothing, that are left out."""

from __future__ import annotations

from typing import Any

from harness.mutations.registry import Real, answer, instead
from mirrorq.containers.timers import FOREVER_MS
from mirrorq.engine.catalog_requests import CatalogRequests
from mirrorq.engine.hosting import Hosting
from mirrorq.engine.lease_keeping import LeaseKeeping
from mirrorq.replication.replica import Replica
from mirrorq.replication.ring import Ring
from mirrorq.replication.writes import Writes

__all__: list[str] = []


answer("frames of ended messages kept", Writes, "_released", ())


answer("applied ops kept in memory", Ring, "trim", None)


@instead("deleted queue stays on the disk", Hosting, "drop_copy")
def _disk_kept(real: Real, self: Hosting, queue_id: int) -> None:
    real(self, queue_id)
    self.out.writes.pop()


@instead("open request steps on without a leader", CatalogRequests, "next_ms")
def _no_rest(real: Real, self: CatalogRequests, has_leader: bool) -> Any:
    return real(self, True)


@instead("lease not asked for again in time", LeaseKeeping, "hold")
def _lease_forgotten(real: Real, self: LeaseKeeping, now_ms: int) -> None:
    real(self, now_ms)
    self._due.clear()


@instead("timer set and nobody told", Replica, "_next_ms")
def _asleep(real: Real, self: Replica, wake_ms: int | None) -> Any:
    """Of a copy: the engine's own would keep the whole cluster from coming about."""
    self.timers.next_ms = FOREVER_MS
    if self.master is not None:
        self.master.timers.next_ms = FOREVER_MS
    return real(self, wake_ms)
