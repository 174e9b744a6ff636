"""Calls that wait: until when, for which condition, and with which error. Written once for threads
and asyncio.

A call that may wait is a generator. It yields each `Wait`, is sent whether the condition came true
in time, and returns the result of the call. `in_thread` runs it with a thread that waits;
`mirrorq.aio` runs the same generator in a loop.

*Interrupts*: an exception in the waiting thread closes the generator, whose `finally` takes back
what the call had begun.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable, Collection, Generator
from typing import NamedTuple, TypeVar

from mirrorq import clock
from mirrorq.api.arguments import left_until
from mirrorq.waiting import Waiters, wait_among

log = logging.getLogger("mirrorq")

QUIET_S = 2.0
"""Who waits for longer than this is told for what."""
TOLD_S = 10.0
"""Of all who wait for one handle, one is told in this time."""

NOTEBOOK = "ipykernel"
"""The module of whatever runs a notebook."""

Result = TypeVar("Result")


class Signal:
    """Tells who waits that something has changed. Held by a handle; rung by its host's thread and
    by users' threads, and waited for by any thread, or by whoever listens."""

    def __init__(self) -> None:
        self._waiters = Waiters()
        self.listeners: list[Callable[[], None]] = []
        """Called at each `notify`: who waits without a thread."""
        self._told_at = -TOLD_S

    @property
    def waiters(self) -> int:
        """How many threads wait."""
        return self._waiters.count

    def wait_for(self, condition: Callable[[], bool], timeout: float | None) -> bool:
        """Wait until the condition holds; it is looked at after each `notify`."""
        return self._waiters.wait_for(condition, timeout)

    def tell(self, text: Callable[[], str]) -> None:
        """Say in the log for what somebody has been waiting, unless another one has just been
        told; "" says nothing."""
        now = clock.monotonic()
        if now - self._told_at >= TOLD_S and (told := text()):
            self._told_at = now
            log.info("%s", told)

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
    is_short: bool = False
    """Whether a thread with an event loop may wait, too: for a second at most, once a handle."""


Waits = Generator[Wait, bool, Result]
"""A call that may wait: it yields waits and is sent whether each came true in time."""


def telling(wait: Wait, text: Callable[[], str]) -> Waits[bool]:
    """Wait; who waits for long is told in the log what for, by this text."""
    quiet_until = clock.monotonic() + QUIET_S
    if wait.until is None or wait.until > quiet_until:
        if (yield wait._replace(until=quiet_until)):
            return True
        wait.signal.tell(text)
    return (yield wait)


def check_no_loop() -> None:
    """Raise RuntimeError if an event loop runs on this thread: a call that waits would stop it.

    A notebook runs its cells in an event loop that waits for each cell: no error is raised there.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    if NOTEBOOK not in sys.modules:
        raise RuntimeError(
            "this call would wait and stop the event loop of this thread: await a confirmation "
            "instead of asking for its result(), and await the calls of mirrorq.aio instead of "
            "mirrorq's; or call it by asyncio.to_thread()"
        )


def in_thread(call: Waits[Result]) -> Result:
    """Run a call on this thread, which waits.

    Raises:
        RuntimeError: it would have to wait, and an event loop runs on this thread.
    """
    try:
        wait = next(call)
        while True:
            left = left_until(wait.until)
            if left != 0 and not wait.is_short:
                check_no_loop()
            came = wait.signal.wait_for(wait.condition, left)
            wait = call.send(came)
    except StopIteration as end:
        result: Result = end.value
        return result
    finally:
        call.close()
