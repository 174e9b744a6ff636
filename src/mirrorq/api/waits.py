"""What a call waits for, until when, and what it raises: written once for threads and for asyncio.

A call that may wait is a generator. It yields each `Wait`, is sent whether that came true in time,
and returns what the call returns. `in_thread` runs it with a thread that waits; `mirrorq.aio` runs
the same generator in a loop.

*Interrupts*: who is interrupted while it waits leaves the generator closed: what it took back in
its `finally` it takes back then.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator
from typing import NamedTuple, TypeVar

from mirrorq.api.arguments import left_until
from mirrorq.waiting import Waiters, wait_among

__all__ = ["Signal", "Wait", "Waits", "in_thread", "wait_for_any"]

Result = TypeVar("Result")


class Signal:
    """Tells who waits that something has changed. Held by a handle; rung by its host's thread and
    by users' threads, and waited for by any thread, or by whoever listens."""

    def __init__(self) -> None:
        self._waiters = Waiters()
        self.listeners: list[Callable[[], None]] = []
        """Called at each `notify`: who waits without a thread."""

    @property
    def waiters(self) -> int:
        """How many threads wait."""
        return self._waiters.count

    def wait_for(self, condition: Callable[[], bool], timeout: float | None) -> bool:
        """Wait until the condition holds; it is looked at after each `notify`."""
        return self._waiters.wait_for(condition, timeout)

    def notify(self) -> None:
        """Have all who wait look."""
        if self._waiters.count:
            self._waiters.notify()
        for listener in self.listeners:
            listener()


def wait_for_any(
    signals: Collection[Signal], condition: Callable[[], bool], timeout: float | None
) -> bool:
    """Wait until the condition holds; it is looked at after each `notify` of any of these."""
    return wait_among([signal._waiters for signal in signals], condition, timeout)


class Wait(NamedTuple):
    """One wait of a call."""

    signal: Signal
    """What says that the condition may have come true."""
    condition: Callable[[], bool]
    until: float | None
    """When it is given up, as `time.monotonic` tells it; None: never."""


Waits = Generator[Wait, bool, Result]
"""A call that may wait: it yields waits and is sent whether each came true in time."""


def in_thread(call: Waits[Result]) -> Result:
    """Run a call on this thread, which waits."""
    try:
        wait = next(call)
        while True:
            came = wait.signal.wait_for(wait.condition, left_until(wait.until))
            wait = call.send(came)
    except StopIteration as end:
        result: Result = end.value
        return result
    finally:
        call.close()
