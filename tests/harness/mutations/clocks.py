"""Rules of time that are left out: whose clock measures a queue's durations."""

from __future__ import annotations

from typing import Any

from harness.mutations.registry import Real, instead
from mirrorq.node.steady_time import SteadyTime
from mirrorq.replication.master.auto_delete import IdleExpiry
from mirrorq.replication.queue_time import QueueTime


@instead("durations by the wall clock", SteadyTime, "read")
def _wall_clock(real: Real, self: SteadyTime, now_us: int, wall_us: int) -> int:
    """Each master measures by what its own wall clock says, whoever sets that."""
    return wall_us


@instead("durations by the wall clock", QueueTime, "begin_step")
def _wall_clock_begin(real: Real, self: QueueTime, steady_us: int) -> None:
    self._steady_us = steady_us


@instead("durations by the wall clock", QueueTime, "now_us")
def _wall_clock_now_us(real: Real, self: QueueTime) -> int:
    return self._steady_us


@instead("expires counted from each master's beginning", IdleExpiry, "begin_term")
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
