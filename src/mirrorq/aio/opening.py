"""What is to be opened: awaited, or entered as it is."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from contextlib import AbstractAsyncContextManager
from functools import wraps
from typing import Any, Generic, ParamSpec, TypeVar

Opened = TypeVar("Opened", bound="AbstractAsyncContextManager[Any, Any]", covariant=True)
Arguments = ParamSpec("Arguments")


class Opening(Coroutine[Any, Any, Opened], Generic[Opened]):
    """`await` it for what it opens, or `async with` it, which closes that at its end.

    A coroutine as any other, so that tasks may be made of it; as with those, nothing is opened
    before somebody waits for it.
    """

    def __init__(self, coroutine: Coroutine[Any, Any, Opened]) -> None:
        self._coroutine = coroutine

    def __await__(self) -> Generator[Any, Any, Opened]:
        return self._coroutine.__await__()

    async def __aenter__(self) -> Opened:
        self._opened = await self._coroutine
        await self._opened.__aenter__()
        return self._opened

    async def __aexit__(self, *error: Any) -> None:
        await self._opened.__aexit__(*error)

    # --- As a coroutine -------------------------------------------------------------------

    def send(self, value: Any) -> Any:
        return self._coroutine.send(value)

    def throw(self, *error: Any) -> Any:
        return self._coroutine.throw(*error)

    def close(self) -> None:
        self._coroutine.close()


def opening(
    function: Callable[Arguments, Coroutine[Any, Any, Opened]],
) -> Callable[Arguments, Opening[Opened]]:
    """Have a coroutine function return what can be entered as well."""

    @wraps(function)
    def call(*arguments: Arguments.args, **named: Arguments.kwargs) -> Opening[Opened]:
        return Opening(function(*arguments, **named))

    return call
