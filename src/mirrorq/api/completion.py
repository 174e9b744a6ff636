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
    """Call a user's function. Any exception is logged, and ends nothing: `sys.exit()` and a
    cancellation of asyncio are no `Exception`, and would end the thread of all callbacks."""
    try:
        callback(*arguments)
    except ProcessEnded:
        raise
    except BaseException:
        name = getattr(callback, "__qualname__", callback)
        log.exception("callback %s of a put or an ack raised: the outcome stays as it is", name)


class Callbacks:
    """The thread that calls users' functions, in order. Held by a handle's outcomes, or by a host's
    listeners. Calls may be added from any thread."""

    def __init__(self) -> None:
        self._calls = new_mailbox()
        """Pairs of a function and its arguments; None: the thread must end."""
        self._runner = deque([None])
        """A token: the thread that takes it runs the calls, so one thread at most."""
        self._thread = 0
        """Id of the thread that runs the calls; 0: none."""

    def call(self, callback: Callable[..., object], *arguments: Any) -> None:
        """Have a function called on the callback thread, in order."""
        self._calls.put((callback, arguments))
        self._ensure_thread()

    def _ensure_thread(self) -> None:
        if self._runner:
            begin_thread(threading.Thread(target=self._run, name="mirrorq-callbacks", daemon=True))

    def close(self, timeout: float, callers: Collection[int] = ()) -> None:
        """Run the due calls and end the thread; a later `call` starts another.

        Args:
            callers: threads that wait for the close; the close does not wait for them.
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
            # A call was added before the token was free, by a thread that saw it taken.
            self._run()


class Outcomes:
    """The outcomes of a handle, shared by its confirmations and settlements. The host's thread
    notes ended outcomes; any thread may wait."""

    why_open: Callable[[bool], str] | None = None
    """Returns why a put (True) or an ack has no outcome yet; called after a wait in vain."""

    def __init__(self, shard: int | None = None, whole: Outcomes | None = None) -> None:
        """With `whole`: the outcomes of a shard, signalled and called back with the whole's."""
        self.shard = shard
        """Shard of the handle; None: not a shard."""
        self.signal: Signal = Signal() if whole is None else whole.signal
        self.ack_listeners: list[Callable[[Any, AckRefused], object]]
        """Called back with each message whose ack was refused."""
        self.ack_listeners = [] if whole is None else whole.ack_listeners
        self.callbacks: dict[object, deque[Callable[[Any], object]]]
        """Callbacks by outcome, to be called at its end."""
        self.callbacks = {} if whole is None else whole.callbacks
        self._thread: Callbacks = Callbacks() if whole is None else whole._thread
        self.wait_for = self.signal.wait_for
        self.notify = self.signal.notify
        self.call_back = self._thread.call
        self.close = self._thread.close

    def call_all(self, callbacks: deque[Callable[[Any], object]], ended: object) -> None:
        """Have callbacks called with an ended outcome; several threads may take callbacks."""
        while callbacks:
            try:
                callback = callbacks.popleft()
            except IndexError:
                return
            self.call_back(callback, ended)

    @property
    def waiters(self) -> int:
        """Number of waiting threads."""
        return self.signal.waiters
