"""Rules of time that are left out: whose clock measures a queue's durations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from harness.mutations.registry import Patch, Real, instead, named
from mirrorq.node.steady_time import SteadyTime
from mirrorq.replication.master.auto_delete import IdleExpiry
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


@instead("idle time forgotten by the next master", QueueTime, "install")
def _stamp_alone(real: Real, self: QueueTime, *, is_master: bool) -> None:
    """It goes on from the last stamp in its log, as if no time had passed since."""
    real(self, is_master=is_master)
    if is_master and self._stamp_us and self._faded_us == self._steady_us:
        self.ahead_us = self._stamp_us - self._steady_us


@instead("expires counted from each master's beginning", IdleExpiry, "begin")
def _expires_anew(
    real: Real, self: IdleExpiry, now_us: int, idle_since_us: int, return_us: int
) -> None:
    """What the log says of idle time is not looked at."""
    real(self, now_us, 0, return_us)


@instead("a use of an idle queue not told", IdleExpiry, "look")
def _use_not_told(real: Real, self: IdleExpiry, now_us: int, is_used: bool) -> Any:
    """Once it is said that a queue is idle, the next master knows of no use after that."""
    op = real(self, now_us, is_used)
    return None if op is not None and not op.since_us else op


@instead("steps of the wall clock taken for time", SteadyTime, "read")
def _steps(real: Real, self: SteadyTime, now_us: int, wall_us: int) -> int:
    """Queues have a time of their own, but a node's steady time follows its wall clock."""
    return wall_us
