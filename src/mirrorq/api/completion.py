"""Outcomes of a handle's calls: wakes the callers that wait, and runs callbacks on one thread.

The callback thread starts when the first callback is due.

*Threads*: outcomes are noted on the host's thread, which waits for no other thread here; see
`waiting`.
"""

from __future__ import annotations

import logging
import threading
from _thread import get_ident
from collections import deque
from collections.abc import Callable, Collection
from typing import Any

from mirrorq.api.waits import Signal
from mirrorq.errors import AckRefused
from mirrorq.waiting import Latch, ProcessEnded, begin_thread, new_mailbox

log = logging.getLogger("mirrorq")


def call_user(callback: Callable[..., object], *arguments: Any) -> None:
    """Call what a user gave. Whatever it raises is logged, and ends nothing: `sys.exit()` and a
    cancellation of asyncio are no `Exception`, and would end the thread of all callbacks."""
    try:
        callback(*arguments)
    except ProcessEnded:
        raise
    except BaseException:
        name = getattr(callback, "__qualname__", callback)
        log.exception("a callback of a put or an ack raised %s: its outcome stays as it is", name)


class Callbacks:
    """The thread on which users' functions are called, in order. Held by a handle's outcomes, or by
    a host's listeners; any thread may have something called."""

    def __init__(self) -> None:
        self._calls = new_mailbox()
        """Pairs of a function and its arguments; None: the thread is to end."""
        self._runner = deque([None])
        """Whoever has taken what is in it runs the calls: one thread at most."""
        self._thread = 0
        """Which that is, while one does."""

    def call(self, callback: Callable[..., object], *arguments: Any) -> None:
        """Have a function called on the callback thread, in order."""
        self._calls.put((callback, arguments))
        self._ensure_thread()

    def _ensure_thread(self) -> None:
        if self._runner:
            begin_thread(threading.Thread(target=self._run, name="mirrorq-callbacks", daemon=True))

    def close(self, timeout: float, callers: Collection[int] = ()) -> None:
        """Run what is due and end the thread; a later `call` starts another.

        Args:
            callers: threads that wait for this: they are not waited for.
        """
        if self._runner and self._calls.empty():
            return
        done = Latch()
        self._calls.put((done.set, ()))
        self._calls.put(None)
        self._ensure_thread()
        if self._thread not in (get_ident(), *callers):
            done.wait(timeout)

    def _run(self) -> None:
        try:
            self._runner.pop()
        except IndexError:
            return  # another thread was quicker
        self._thread = get_ident()
        while (call := self._calls.get()) is not None:
            callback, arguments = call
            call_user(callback, *arguments)
        self._thread = 0
        self._runner.append(None)
        if not self._calls.empty():
            # It was put before the runner was free, by somebody who saw that it was taken.
            self._run()


class Outcomes:
    """Shared by all confirmations and settlements of a handle, which holds it. Ended ones are noted
    on the host's thread; any thread may wait."""

    why_open: Callable[[bool], str] | None = None
    """Why a put (True), or an ack, has no outcome yet: asked when somebody has waited in vain."""

    def __init__(self, shard: int | None = None, whole: Outcomes | None = None) -> None:
        """With `whole`: those of a shard's handle, waited for and called back with the whole's."""
        self.shard = shard
        """The shard to whose handle they belong; None where that is none."""
        self.signal: Signal = Signal() if whole is None else whole.signal
        self.ack_listeners: list[Callable[[Any, AckRefused], object]]
        """Called back with each message whose ack was refused."""
        self.ack_listeners = [] if whole is None else whole.ack_listeners
        self.callbacks: dict[object, deque[Callable[[Any], object]]]
        """By outcome, what is to be called when it has ended."""
        self.callbacks = {} if whole is None else whole.callbacks
        self._thread: Callbacks = Callbacks() if whole is None else whole._thread
        self.wait_for = self.signal.wait_for
        self.notify = self.signal.notify
        self.call_back = self._thread.call
        self.close = self._thread.close

    def call_all(self, callbacks: deque[Callable[[Any], object]], ended: object) -> None:
        """Have these called with what has ended, each by whoever takes it."""
        while callbacks:
            try:
                callback = callbacks.popleft()
            except IndexError:
                return
            self.call_back(callback, ended)

    @property
    def waiters(self) -> int:
        """How many threads wait."""
        return self.signal.waiters
