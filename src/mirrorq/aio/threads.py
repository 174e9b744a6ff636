"""Calls that block and seldom happen, in a thread of the loop's default executor."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
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
    future = asyncio.get_running_loop().run_in_executor(None, function)
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        future.add_done_callback(partial(_close_unwanted, close))
        raise


def _close_unwanted(close: Callable[[Any], object], opened: asyncio.Future[Any]) -> None:
    if not opened.cancelled() and opened.exception() is None:
        opened.get_loop().run_in_executor(None, close, opened.result())
