"""One handle's waiting and calling back: what all who wait for its outcomes are told by, and one
thread for all of its callbacks, started when the first is due.

*Threads*: outcomes are noted on the host's thread, which waits for nobody here; see `waiting`.
"""

from __future__ import annotations

import logging
import threading
from _thread import get_ident
from collections import deque
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any

from mirrorq.waiting import Latch, ProcessEnded, Waiters, begin_thread, new_mailbox

if TYPE_CHECKING:
    from mirrorq.api.message import Message
    from mirrorq.errors import AckRefused

__all__ = ["Outcomes", "call_user"]

log = logging.getLogger("mirrorq")


def call_user(callback: Callable[..., object], *arguments: Any) -> None:
    """Call what a user gave. Whatever it raises is logged, and ends nothing: `sys.exit()` and a
    cancellation of asyncio are no `Exception`, and would end the thread of all callbacks."""
    try:
        callback(*arguments)
    except ProcessEnded:
        raise
    except BaseException:
        log.exception("a callback raised")


class Outcomes:
    """Shared by all confirmations and settlements of a handle."""

    why_open: Callable[[bool], str] | None = None
    """Why a put (True), or an ack, has no outcome yet: asked when somebody has waited in vain."""

    def __init__(self, shard: int | None = None) -> None:
        self.shard = shard
        """The shard to whose handle they belong; None where that is none."""
        self._waiters = Waiters()
        self.listeners: list[Callable[[], None]] = []
        """Called at each `notify`: who waits without a thread."""
        self.ack_listeners: list[Callable[[Message, AckRefused], object]] = []
        """Called back with each message whose ack was refused."""
        self.callbacks: dict[object, deque[Callable[[Any], object]]] = {}
        """By outcome, what is to be called when it has ended."""
        self._calls = new_mailbox()
        """Pairs of a function and its arguments; None: the thread is to end."""
        self._seat = deque([None])
        """Whoever has taken what is in it runs the calls: one thread at most."""
        self._thread = 0
        """Which that is, while one does."""

    def wait_for(self, condition: Callable[[], bool], timeout: float | None) -> bool:
        """Wait until the condition holds; it is looked at after each `notify`."""
        return self._waiters.wait_for(condition, timeout)

    @property
    def waiters(self) -> int:
        """How many threads wait."""
        return self._waiters.count

    def notify(self) -> None:
        """Outcomes have come."""
        if self._waiters.count:
            self._waiters.notify()
        for listener in self.listeners:
            listener()

    def call_back(self, callback: Callable[..., object], *arguments: Any) -> None:
        """Have a function called on the callback thread, in order."""
        self._calls.put((callback, arguments))
        self._ensure_thread()

    def _ensure_thread(self) -> None:
        if self._seat:
            begin_thread(threading.Thread(target=self._run, name="mirrorq-callbacks", daemon=True))

    def close(self, timeout: float, callers: Collection[int] = ()) -> None:
        """Run what is due and end the thread; a later `call_back` starts another.

        Args:
            callers: threads that wait for this: they are not waited for.
        """
        if self._seat and self._calls.empty():
            return
        done = Latch()
        self._calls.put((done.set, ()))
        self._calls.put(None)
        self._ensure_thread()
        if self._thread not in (get_ident(), *callers):
            done.wait(timeout)

    def _run(self) -> None:
        try:
            self._seat.pop()
        except IndexError:
            return  # another thread was quicker
        self._thread = get_ident()
        while (call := self._calls.get()) is not None:
            callback, arguments = call
            call_user(callback, *arguments)
        self._thread = 0
        self._seat.append(None)
        if not self._calls.empty():
            # It was put before the seat was free, by somebody who saw that it was taken.
            self._run()
