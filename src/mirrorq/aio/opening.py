"""Results of opening calls: awaited, or entered directly."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Generator
from contextlib import AbstractAsyncContextManager
from functools import wraps
from typing import Any, Generic, ParamSpec, Self, TypeVar


class Closing(ABC):
    """An object for one loop, which the end of `async with` closes."""

    @abstractmethod
    async def close(self) -> None:
        """Close the object."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


Opened = TypeVar("Opened", bound="AbstractAsyncContextManager[Any, Any]", covariant=True)
Arguments = ParamSpec("Arguments")


class Opening(Coroutine[Any, Any, Opened], Generic[Opened]):
    """`await` to open an object, or `async with` to open and finally close an object.

    A coroutine like any other, so that tasks may be made of an `Opening`. As with any coroutine, no
    call runs before the first wait.
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
    """Wrap a coroutine function so that its results can be entered as well."""

    @wraps(function)
    def call(*arguments: Arguments.args, **named: Arguments.kwargs) -> Opening[Opened]:
        return Opening(function(*arguments, **named))

    return call
