"""One handle's waiting and calling back: a lock and a condition for all of its outcomes, and
one thread for all of its callbacks, started when the first is due."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from typing import Any

__all__ = ["Outcomes"]

log = logging.getLogger("mirrorq")


class Outcomes:
    """Shared by all confirmations and settlements of a handle."""

    def __init__(self, shard: int | None = None) -> None:
        self.shard = shard
        """The shard to whose handle they belong; None where that is none."""
        self.lock = threading.Lock()
        self._condition = threading.Condition(self.lock)
        self._waiters = 0
        self.listeners: list[Callable[[], None]] = []
        """Called at each `notify`, with the lock held: who waits without a thread."""
        self._calls: queue.SimpleQueue[tuple[Callable[..., object], tuple[Any, ...]] | None]
        self._calls = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._thread_lock = threading.Lock()

    def wait_for(self, condition: Callable[[], bool], timeout: float | None) -> bool:
        """Wait until the condition holds; it is looked at after each `notify`."""
        with self.lock:
            self._waiters += 1
            try:
                return self._condition.wait_for(condition, timeout)
            finally:
                self._waiters -= 1

    def notify(self) -> None:
        """Outcomes have come: with the lock held."""
        if self._waiters:
            self._condition.notify_all()
        for listener in self.listeners:
            listener()

    def call_back(self, callback: Callable[..., object], *arguments: Any) -> None:
        """Have a function called on the callback thread, in order."""
        with self._thread_lock:
            self._calls.put((callback, arguments))
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="mirrorq-callbacks", daemon=True
                )
                self._thread.start()

    def close(self, timeout: float) -> None:
        """Run what is due and end the thread; a later `call_back` starts another."""
        with self._thread_lock:
            thread = self._thread
            if thread is None:
                return
            self._calls.put(None)
        if thread is not threading.current_thread():
            thread.join(timeout)

    def _run(self) -> None:
        while True:
            call = self._calls.get()
            if call is None:
                with self._thread_lock:
                    if self._calls.empty():
                        self._thread = None
                        return
                continue
            callback, arguments = call
            try:
                callback(*arguments)
            except Exception:
                log.exception("a callback raised")
