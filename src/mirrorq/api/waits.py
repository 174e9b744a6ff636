"""Calls that wait, each with a deadline, a condition and an error: for threads and for asyncio.

A call that may wait is a generator. It yields each `Wait`, is sent true if the condition came true
in time, and returns the result of the call. `in_thread` runs it with a thread that waits;
`mirrorq.aio` runs the same generator in a loop.

*Interrupts*: an exception in the waiting thread closes the generator, whose `finally` undoes the
call's begun work.
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
"""A longer wait is logged with its reason, in seconds."""
TOLD_S = 10.0
"""Among the waits at one handle, one is logged in so many seconds."""

NOTEBOOK = "ipykernel"
"""The module that a notebook runs in."""

Result = TypeVar("Result")


class Signal:
    """Notifies waiting threads and listeners of a change. Held by a handle. Notified by its host's
    thread and by users' threads; any thread may wait."""

    def __init__(self) -> None:
        self._waiters = Waiters()
        self.listeners: list[Callable[[], None]] = []
        """Called at each `notify`: waits without a thread."""
        self._told_at = -TOLD_S

    @property
    def waiters(self) -> int:
        """Number of waiting threads."""
        return self._waiters.count

    def wait_for(self, condition: Callable[[], bool], timeout: float | None) -> bool:
        """Wait until the condition holds; it is checked after each `notify`."""
        return self._waiters.wait_for(condition, timeout)

    def tell(self, text: Callable[[], str]) -> None:
        """Log the reason of a long wait, unless another was logged recently; "" logs nothing."""
        now = clock.monotonic()
        if now - self._told_at >= TOLD_S and (told := text()):
            self._told_at = now
            log.info("%s", told)

    def notify(self) -> None:
        """Have all waiting calls check their conditions."""
        if self._waiters.count:
            self._waiters.notify()
        for listener in self.listeners:
            listener()


def wait_for_any(
    signals: Collection[Signal], condition: Callable[[], bool], timeout: float | None
) -> bool:
    """Wait until the condition holds; it is checked after each `notify` of any signal."""
    return wait_among([signal._waiters for signal in signals], condition, timeout)


class Wait(NamedTuple):
    """One wait of a call."""

    signal: Signal
    """Notified when the condition may have come true."""
    condition: Callable[[], bool]
    until: float | None
    """Deadline by the clock `time.monotonic`; None: never."""
    is_short: bool = False
    """True: a thread with an event loop may wait, too: for a second at most, once a handle."""


Waits = Generator[Wait, bool, Result]
"""A call that may wait: it yields waits and is sent true for each condition met in time."""


def telling(wait: Wait, text: Callable[[], str]) -> Waits[bool]:
    """Wait; a long wait is logged with the text."""
    quiet_until = clock.monotonic() + QUIET_S
    if wait.until is None or wait.until > quiet_until:
        if (yield wait._replace(until=quiet_until)):
            return True
        wait.signal.tell(text)
    return (yield wait)


def check_no_loop() -> None:
    """Raise RuntimeError if an event loop runs on the calling thread: a wait would stop the loop.

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
    """Run a call on the calling thread, which waits.

    Raises:
        RuntimeError: it would have to wait, and an event loop runs on the thread.
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
