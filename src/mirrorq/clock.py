"""Clocks of all of mirrorq: this machine's clocks, or clocks of a simulation.

`now_ms` goes on while the machine sleeps; `monotonic` and `sleep` are for the time-outs of users'
calls. All are called as `clock.now_ms()`: `mirrorq.testing` replaces the functions.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from mirrorq import system


class Clock(Protocol):
    """Clock of a simulation, for its own threads; for other threads the clock asks `MACHINE`."""

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
"""Microseconds since 1970-01-01 UTC. The time may be set: no duration is measured by this clock."""
boot: Callable[[], str] = MACHINE.boot
"""Id of this boot of the machine; "" if unknown."""
monotonic: Callable[[], float] = MACHINE.monotonic
"""Seconds, of which only differences mean anything."""
sleep: Callable[[float], None] = MACHINE.sleep
"""Let so many seconds pass on the calling thread."""


def play(other: Clock) -> None:
    """Replace the clock of all of mirrorq in this process; `MACHINE` restores the default."""
    global now_ms, wall_us, boot, monotonic, sleep
    now_ms, wall_us, boot = other.now_ms, other.wall_us, other.boot
    monotonic, sleep = other.monotonic, other.sleep
