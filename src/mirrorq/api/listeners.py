"""Users' functions that hear of events at a node or a client."""

from __future__ import annotations

from collections.abc import Callable, Collection

from mirrorq.api.arguments import check_callable
from mirrorq.api.completion import Callbacks
from mirrorq.protocol.effects import Notice


class Listeners:
    """The functions that one node or client was given, called in order on a thread of their own.
    Every method may be called from any thread."""

    def __init__(self) -> None:
        self._functions: list[Callable[[Notice], None]] = []
        self.begin()

    def begin(self) -> None:
        """In this process: the thread that told them before a fork is the parent's."""
        self._callbacks = Callbacks()

    def add(self, on_event: Callable[[Notice], None]) -> None:
        """Tell this one too, from now on.

        Raises:
            TypeError: it cannot be called with a Notice.
        """
        if on_event is None:
            raise TypeError("on_event is None: give a function that takes a Notice")
        check_callable("on_event", on_event)
        self._functions.append(on_event)

    def tell(self, notice: Notice) -> None:
        """Have all of them called."""
        for function in self._functions:
            self._callbacks.call(function, notice)

    def close(self, timeout: float, callers: Collection[int] = ()) -> None:
        """Tell what is due, and end the thread; `callers` wait for this, and are not waited for."""
        self._callbacks.close(timeout, callers)
