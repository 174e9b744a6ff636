"""Users' functions that receive events of a node or a client."""

from __future__ import annotations

from collections.abc import Callable, Collection

from mirrorq.api.arguments import check_callable
from mirrorq.api.completion import Callbacks
from mirrorq.protocol.effects import Notice


class Listeners:
    """The listeners of one node or client, called in order on a thread of their own. Every method
    may be called from any thread."""

    def __init__(self) -> None:
        self._functions: list[Callable[[Notice], None]] = []
        self.start_thread()

    def start_thread(self) -> None:
        """Begin in the current process: the callback thread of a parent does not exist here."""
        self._callbacks = Callbacks()

    def add(self, on_event: Callable[[Notice], None]) -> None:
        """Add a listener.

        Raises:
            TypeError: it cannot be called with a Notice.
        """
        if on_event is None:
            raise TypeError("on_event is None: give a function that takes a Notice")
        check_callable("on_event", on_event)
        self._functions.append(on_event)

    def tell(self, notice: Notice) -> None:
        """Have all listeners called."""
        for function in self._functions:
            self._callbacks.call(function, notice)

    def close(self, timeout: float, callers: Collection[int] = ()) -> None:
        """Run due calls and end the thread, without a wait for the threads in `callers`."""
        self._callbacks.close(timeout, callers)
