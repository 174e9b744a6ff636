"""The node's clock: milliseconds that go on while the machine sleeps."""

from __future__ import annotations

import time
from pathlib import Path

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
# A machine that slept longer than its lease must notice: CLOCK_MONOTONIC stands still then.


_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def now_ms() -> int:
    """Milliseconds since boot."""
    return time.clock_gettime_ns(_CLOCK) // 1_000_000


def wall_us() -> int:
    """Microseconds since 1970-01-01 UTC. Somebody may set it: no duration goes by it."""
    return time.time_ns() // 1000


def boot() -> str:
    """Which boot of the machine this is; "" where that is not known."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ""
