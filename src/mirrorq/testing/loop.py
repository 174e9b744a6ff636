"""An event loop of asyncio whose waits take virtual time.

The loop looks at its sockets without waiting. Between two looks the loop waits, as a task, for a
call from another task or a due timer. `asyncio.run` makes such a loop when a task calls it.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Mapping
from typing import Any, TypeVarTuple

from mirrorq.testing.schedule import Lock, Scheduler

Arguments = TypeVarTuple("Arguments")


class _Selector(selectors.BaseSelector):
    """A selector that waits for the loop's bell."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._inner = selectors.SelectSelector()
        self._bell = Lock(scheduler)
        self._bell.acquire()

    def ring(self) -> None:
        """End a `select`, or the next one."""
        if self._bell.locked():
            self._bell.release()

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = self._inner.select(0)
        if not ready:
            self._bell.acquire(True, -1 if timeout is None else max(timeout, 0))
            ready = self._inner.select(0)
        return ready

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._inner.register(fileobj, events, data)

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._inner.unregister(fileobj)

    def modify(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._inner.modify(fileobj, events, data)

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._inner.get_map()

    def close(self) -> None:
        self._inner.close()


class SimulatedLoop(asyncio.SelectorEventLoop):
    """One task's event loop."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._simulated_selector = _Selector(scheduler)
        self._scheduler = scheduler
        self._handled: set[int] = set()
        super().__init__(self._simulated_selector)

    def time(self) -> float:
        """Virtual seconds."""
        return self._scheduler.now_us / 1_000_000

    def add_signal_handler(
        self, sig: int, callback: Callable[[*Arguments], object], *args: *Arguments
    ) -> None:
        """Take the handler, and never call it: no signal comes in virtual time."""
        self._handled.add(sig)

    def remove_signal_handler(self, sig: int) -> bool:
        """Drop the handler; return whether there was one."""
        was_handled = sig in self._handled
        self._handled.discard(sig)
        return was_handled

    def _make_self_pipe(self) -> None:
        """None is needed: the bell of the selector wakes the loop."""

    def _close_self_pipe(self) -> None:
        """There is none."""

    def _write_to_self(self) -> None:
        self._simulated_selector.ring()
