"""Rules of what may be left behind, and of doing nothing, that are left out."""

from __future__ import annotations

from collections.abc import Sequence

from harness.mutations.registry import Patch, named
from mirrorq.containers.timers import FOREVER_MS
from mirrorq.engine.catalog_requests import CatalogRequests
from mirrorq.engine.hosting import Hosting
from mirrorq.engine.lease_keeping import LeaseKeeping
from mirrorq.replication.replica import Replica
from mirrorq.replication.ring import Ring
from mirrorq.replication.state.queue_state import QueueState
from mirrorq.replication.writes import Writes

__all__: list[str] = []


@named("frames of ended messages kept")
def _frames_kept() -> Sequence[Patch]:
    def released(self: Writes, state: QueueState) -> tuple[tuple[int, int], ...]:
        return ()

    return [(Writes, "_released", released)]


@named("applied ops kept in memory")
def _log_kept() -> Sequence[Patch]:
    def trim(self: Ring, applied: int) -> None:
        return None

    return [(Ring, "trim", trim)]


@named("deleted queue stays on the disk")
def _disk_kept() -> Sequence[Patch]:
    real = Hosting.drop_copy

    def drop_copy(self: Hosting, queue_id: int) -> None:
        real(self, queue_id)
        self.out.writes.pop()

    return [(Hosting, "drop_copy", drop_copy)]


@named("open request steps on without a leader")
def _no_rest() -> Sequence[Patch]:
    real = CatalogRequests.next_ms

    def next_ms(self: CatalogRequests, has_leader: bool) -> int:
        return real(self, True)

    return [(CatalogRequests, "next_ms", next_ms)]


@named("lease not asked for again in time")
def _lease_forgotten() -> Sequence[Patch]:
    real = LeaseKeeping.hold

    def hold(self: LeaseKeeping, now_ms: int) -> None:
        real(self, now_ms)
        self._due.clear()

    return [(LeaseKeeping, "hold", hold)]


@named("timer set and nobody told")
def _asleep() -> Sequence[Patch]:
    """Of a copy: the engine's own would keep the whole cluster from coming about."""
    real = Replica._next_ms

    def next_ms(self: Replica, wake_ms: int | None) -> int | None:
        self.timers.next_ms = FOREVER_MS
        if self.master is not None:
            self.master.timers.next_ms = FOREVER_MS
        return real(self, wake_ms)

    return [(Replica, "_next_ms", next_ms)]
