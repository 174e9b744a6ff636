"""The clocks that all of mirrorq goes by: this machine's, or those that a simulation plays.

`now_ms` goes on while the machine sleeps; `monotonic` and `sleep` are for the time-outs of users'
calls. All are called as `clock.now_ms()`: `mirrorq.testing` puts others in their place.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from mirrorq import system


class Clock(Protocol):
    """What a simulation plays, for its own threads; for others it asks `MACHINE`."""

    def now_ms(self) -> int: ...

    def wall_us(self) -> int: ...

    def boot(self) -> str: ...

    def monotonic(self) -> float: ...

    def sleep(self, seconds: float, /) -> None: ...


class Machine:
    """The clocks of this machine."""

    monotonic = staticmethod(time.monotonic)
    sleep = staticmethod(time.sleep)
    boot = staticmethod(system.boot_id)

    @staticmethod
    def now_ms() -> int:
        return time.clock_gettime_ns(system.CLOCK) // 1_000_000

    @staticmethod
    def wall_us() -> int:
        return time.time_ns() // 1000


MACHINE: Clock = Machine()

now_ms: Callable[[], int] = MACHINE.now_ms
"""Milliseconds since boot."""
wall_us: Callable[[], int] = MACHINE.wall_us
"""Microseconds since 1970-01-01 UTC. Somebody may set it: no duration goes by it."""
boot: Callable[[], str] = MACHINE.boot
"""Which boot of the machine this is; "" where that is not known."""
monotonic: Callable[[], float] = MACHINE.monotonic
"""Seconds, of which only differences mean anything."""
sleep: Callable[[float], None] = MACHINE.sleep
"""Let so many seconds pass on the calling thread."""


def play(other: Clock) -> None:
    """Have all of mirrorq in this process go by another clock; `MACHINE` ends that."""
    global now_ms, wall_us, boot, monotonic, sleep
    now_ms, wall_us, boot = other.now_ms, other.wall_us, other.boot
    monotonic, sleep = other.monotonic, other.sleep
