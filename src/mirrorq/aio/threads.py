"""Calls that block and seldom happen, in a thread of the loop's default executor."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from mirrorq.api.termination import Interruptible

Result = TypeVar("Result")
CANCELLED = "it was cancelled"


def _close(opened: Any) -> None:
    opened.close()


async def in_thread(function: Callable[[], Result], *, surely: bool = False) -> Result:
    """Run a rare, blocking call. Cancelled, or after a signal, the call waits for no majority any
    more: the end of the loop waits for its thread.

    Args:
        surely: make the call also if the caller is cancelled before the thread begins.
    """
    with Interruptible() as call:
        begun = asyncio.get_running_loop().run_in_executor(None, call.run_part, function)
        try:
            return await (asyncio.shield(begun) if surely else begun)
        except asyncio.CancelledError:
            call.end_wait(CANCELLED)
            raise


async def closed(close: Callable[[], None]) -> None:
    """Close an object in a thread, in any case: anyio's scopes cancel at each wait."""
    await in_thread(close, surely=True)


async def opened(function: Callable[[], Result], close: Callable[[Any], object] = _close) -> Result:
    """Open an object in a thread. A cancelled call leaves nothing open behind."""
    loop = asyncio.get_running_loop()
    made: list[Result] = []
    # Taken by the first to finish: the thread with its opening, or the cancelled caller.
    first = threading.Lock()

    def open_in_thread() -> Result:
        made.append(function())
        if not first.acquire(blocking=False):
            # Here, as the loop may be ending: then its executor takes nothing new.
            close(made[0])
        return made[0]

    try:
        return await in_thread(open_in_thread)
    except asyncio.CancelledError:
        if not first.acquire(blocking=False):
            loop.run_in_executor(None, close, made[0])
        raise
