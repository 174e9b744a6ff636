"""Rules of time that are left out: whose clock measures a queue's durations."""

from __future__ import annotations

from collections.abc import Sequence

from harness.mutations.registry import Patch, named
from mirrorq.node.steady_time import SteadyTime
from mirrorq.replication.queue_time import QueueTime


@named("durations by the wall clock")
def _wall_clock() -> Sequence[Patch]:
    """Each master measures by what its own wall clock says, whoever sets that."""

    def read(self: SteadyTime, now_us: int, wall_us: int) -> int:
        return wall_us

    def begin(self: QueueTime, steady_us: int) -> None:
        self._steady_us = steady_us

    def now_us(self: QueueTime) -> int:
        return self._steady_us

    return [
        (SteadyTime, "read", read),
        (QueueTime, "begin", begin),
        (QueueTime, "now_us", property(now_us)),
    ]


@named("idle time forgotten by the next master")
def _stamp_alone() -> Sequence[Patch]:
    """It goes on from the last stamp in its log, as if no time had passed since."""
    real = QueueTime.install

    def install(self: QueueTime, *, is_master: bool) -> None:
        real(self, is_master=is_master)
        if is_master and self._stamp_us and self._faded_us == self._steady_us:
            self.ahead_us = self._stamp_us - self._steady_us

    return [(QueueTime, "install", install)]


@named("steps of the wall clock taken for time")
def _steps() -> Sequence[Patch]:
    """Queues have a time of their own, but a node's steady time follows its wall clock."""

    def read(self: SteadyTime, now_us: int, wall_us: int) -> int:
        return wall_us

    return [(SteadyTime, "read", read)]
