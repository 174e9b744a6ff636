"""The node's clock: milliseconds that go on while the machine sleeps."""

from __future__ import annotations

import time

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
# A machine that slept longer than its lease must notice: CLOCK_MONOTONIC stands still then.


def now_ms() -> int:
    """Milliseconds since boot."""
    return time.clock_gettime_ns(_CLOCK) // 1_000_000


def wall_us() -> int:
    """Microseconds since 1970-01-01 UTC: for timestamps only."""
    return time.time_ns() // 1000
