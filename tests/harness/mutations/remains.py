"""Rules of what may be left behind, and of doing nothing, that are left out."""

from __future__ import annotations

from collections.abc import Sequence

from harness.mutations.registry import Patch, named
from mirrorq.containers.timers import Timer
from mirrorq.engine.catalog_requests import CatalogRequests
from mirrorq.engine.hosting import Hosting
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
        self._out.writes.pop()

    return [(Hosting, "drop_copy", drop_copy)]


@named("open request steps on without a leader")
def _no_rest() -> Sequence[Patch]:
    real = CatalogRequests.next_ms

    def next_ms(self: CatalogRequests, has_leader: bool) -> int:
        return real(self, True)

    return [(CatalogRequests, "next_ms", next_ms)]


@named("timer set and nobody told")
def _asleep() -> Sequence[Patch]:
    def set_to(self: Timer, at_ms: int) -> None:
        self.at_ms = at_ms

    return [(Timer, "set", set_to)]
