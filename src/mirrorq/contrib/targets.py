"""Handles with which an adapter of a framework publishes, by the names of their queues.

*Threads*: any thread may call. No lock is held while a handle is opened or closed.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

import mirrorq


class Closable(Protocol):
    """A handle on a queue or an exchange."""

    def close(self) -> None:
        """Close the handle."""


Handle = TypeVar("Handle", bound=Closable)
Result = TypeVar("Result")

TARGETS_MAX = 512
"""Handles that are kept: each producer has its own reply queue."""


class Targets(Generic[Handle]):
    """Handles by name, opened at first use. The least used is closed when there are many.

    Args:
        opened: opens a handle.
    """

    def __init__(self, opened: Callable[[str], Handle]) -> None:
        self._opened = opened
        self._handles: OrderedDict[str, Handle] = OrderedDict()
        self._lock = threading.RLock()

    def known(self, name: str) -> Handle | None:
        """Return the handle of this name, None if there is none."""
        with self._lock:
            if name in self._handles:
                self._handles.move_to_end(name)
            return self._handles.get(name)

    def get(self, name: str) -> Handle:
        """Return the handle of this name; open it if there is none."""
        handle = self.known(name)
        if handle is None:
            made = self._opened(name)
            with self._lock:
                handle = self._handles.setdefault(name, made)
            if handle is not made:
                made.close()  # another thread was first
            self._close_surplus()
        return handle

    def call(self, name: str, function: Callable[[Handle], Result]) -> Result:
        """Call a function with the handle of this name; once more if the queue of the handle was
        deleted, as another queue of the name may exist.

        Raises:
            ShutDown: the second handle has ended, too.
        """
        handle = self.get(name)
        try:
            return function(handle)
        except mirrorq.ShutDown:
            if self.known(name) is handle:
                self.drop(name)
            return function(self.get(name))

    def put(self, name: str, handle: Handle) -> None:
        """Keep a handle in place of an earlier one."""
        with self._lock:
            old = self._handles.pop(name, None)
            self._handles[name] = handle
        if old is not None:
            old.close()
        self._close_surplus()

    def _close_surplus(self) -> None:
        while True:
            with self._lock:
                if len(self._handles) <= TARGETS_MAX:
                    return
                _, old = self._handles.popitem(last=False)
            old.close()

    def drop(self, name: str) -> None:
        """Close a handle, if there is one."""
        with self._lock:
            handle = self._handles.pop(name, None)
        if handle is not None:
            handle.close()

    def close(self) -> None:
        """Close all handles."""
        with self._lock:
            handles = list(self._handles.values())
            self._handles.clear()
        for handle in handles:
            handle.close()
