"""Calls that block and seldom happen, in a thread of the loop's default executor."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any, TypeVar

__all__ = ["in_thread", "opened"]

Result = TypeVar("Result")


def _close(opened: Any) -> None:
    opened.close()


async def in_thread(function: Callable[[], Result]) -> Result:
    """Run what blocks, and seldom happens. Who is cancelled meanwhile does not end it."""
    return await asyncio.get_running_loop().run_in_executor(None, function)


async def opened(function: Callable[[], Result], close: Callable[[Any], object] = _close) -> Result:
    """What a thread opens. Who is cancelled meanwhile leaves nothing open behind."""
    loop = asyncio.get_running_loop()
    made: list[Result] = []
    # Taken by whoever is through first: the thread with its opening, or who is cancelled.
    first = threading.Lock()

    def open_in_thread() -> Result:
        made.append(function())
        if not first.acquire(blocking=False):
            # Here, as the loop may be ending: then its executor takes nothing new.
            close(made[0])
        return made[0]

    try:
        return await loop.run_in_executor(None, open_in_thread)
    except asyncio.CancelledError:
        if not first.acquire(blocking=False):
            loop.run_in_executor(None, close, made[0])
        raise
