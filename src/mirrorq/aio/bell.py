"""Waits of a loop for other threads: the loop's version of `api.waits`, without a thread."""

from __future__ import annotations

import asyncio
import itertools
from bisect import insort
from collections import deque
from collections.abc import Callable
from typing import TypeVar
from weakref import WeakKeyDictionary

from mirrorq import clock
from mirrorq.api.waits import Signal, Waits

Result = TypeVar("Result")

OTHER_LOOP = (
    "this belongs to another event loop than the caller: open what is of "
    "mirrorq.aio in each loop that uses it (in tests by a fixture of the same loop), or use "
    "mirrorq.connect(), which knows no loops"
)
LOOK_S = 0.5
"""Interval in which a waiting call checks its condition by itself (for a lost majority)."""


class Bell:
    """Wakes tasks of one loop, in the order of their places, when another thread has changed
    something. Held by the loop's `Bells`, which alone waits; any thread may ring."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []
        """By place."""
        self._is_rung = False

    def ring(self) -> None:
        """Ring, from any thread; cheap without waiting tasks or if already rung."""
        if self._waiting and not self._is_rung:
            self._is_rung = True
            try:
                self.loop.call_soon_threadsafe(self._wake)
            except RuntimeError:
                self._is_rung = False  # the loop is closed: nobody waits any more

    def _wake(self) -> None:
        self._is_rung = False
        for _, future in self._waiting:
            _resolve(future)

    async def until(
        self, condition: Callable[[], bool], deadline: float | None, place: int = 0
    ) -> bool:
        """Wait until the condition holds, which is looked at whenever the bell rings.

        Args:
            condition: called in the loop.
            deadline: on the monotonic clock; None: never.
            place: tasks with a lower one look first, however often each has looked by itself.
        """
        while not condition():
            left = LOOK_S if deadline is None else min(LOOK_S, deadline - clock.monotonic())
            if left <= 0:
                return False
            await self.next(condition, left, place)
        return True

    async def next(self, condition: Callable[[], bool], timeout: float, place: int) -> None:
        """Wait for a ring, at most `timeout` seconds; do not wait if the condition holds."""
        future: asyncio.Future[None] = self.loop.create_future()
        insort(self._waiting, (place, future), key=lambda waiting: waiting[0])
        timer = self.loop.call_later(timeout, _resolve, future)
        try:
            # Checked again after joining the list: an earlier change rang for no task.
            if not condition():
                await future
        finally:
            timer.cancel()
            self._waiting.remove((place, future))


class Bells:
    """Runs the waiting calls of one loop, with a bell for each awaited signal. Objects used in the
    loop hold the bells; only the loop's thread may call."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._bells: WeakKeyDictionary[Signal, Bell] = WeakKeyDictionary()
        self._places = itertools.count(1)

    def check(self) -> None:
        """Raise RuntimeError if the caller is in another loop, or in none."""
        try:
            is_here = asyncio.get_running_loop() is self.loop
        except RuntimeError:
            is_here = False
        if not is_here:
            raise RuntimeError(OTHER_LOOP)

    async def run(self, call: Waits[Result]) -> Result:
        """Run a call like `api.waits.in_thread`, in the loop. Calls that wait for the same signal
        are served in the order of arrival. A call that is cancelled while waiting is over.

        Raises:
            RuntimeError: the caller is in another loop.
        """
        self.check()
        place = next(self._places)
        try:
            wait = next(call)
            while True:
                came = await self._bell_of(wait.signal).until(wait.condition, wait.until, place)
                wait = call.send(came)
        except StopIteration as end:
            result: Result = end.value
            return result
        finally:
            call.close()

    def _bell_of(self, signal: Signal) -> Bell:
        bell = self._bells.get(signal)
        if bell is None:
            bell = self._bells[signal] = Bell(self.loop)
            signal.listeners.append(bell.ring)
        return bell


class Line:
    """Calls of one loop, one at a time, in the order of arrival. For the loop's thread."""

    def __init__(self) -> None:
        self._is_taken = False
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def is_free(self) -> bool:
        """True if the line is empty: a new call overtakes no other call."""
        return not self._is_taken

    async def enter(self, deadline: float | None = None) -> None:
        """Wait until all earlier calls have left; the caller must call `leave` afterwards.

        Raises:
            TimeoutError: the deadline has passed.
        """
        if not self._is_taken:
            self._is_taken = True
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        left = None if deadline is None else max(deadline - clock.monotonic(), 0)
        try:
            async with asyncio.timeout(left):
                await future
        except BaseException:
            if future in self._waiting:
                self._waiting.remove(future)
            elif not future.cancelled():
                self.leave()  # its turn had come in this moment
            raise

    def leave(self) -> None:
        """Give the turn to the next call."""
        if self._waiting:
            future = self._waiting.popleft()
            if future.done():
                self.leave()  # who waited has been cancelled, and does not know yet
            else:
                future.set_result(None)
        else:
            self._is_taken = False


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
