"""SIGTERM and SIGINT end a call that waits for a majority, though the application handles them.

A handler as uvicorn's only notes the signal, and the application ends after its start-up: a call
that waits for a majority would delay the end. So during a call in the main thread, or in a loop
there, the handler is chained: it runs first, and then the call learns of the signal. The call
decides by itself: a call whose cluster has a majority goes on to its answer.

1. Only a handler is chained. The default disposition ends the process by itself, and an ignored
   signal stays ignored.
2. A handler that the application sets meanwhile keeps control: the chained handler is removed only
   if still installed. Kept by the application and called later, it calls the original handler.
3. Nothing is locked: a signal may come between any two bytecodes, and its handler may raise.

*Threads*: calls in threads other than the main thread, or in a loop there, learn of no signal. The
code that handles the signal closes the node or the client, which ends the calls.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from types import FrameType
from typing import Any, TypeVar

from mirrorq.waiting import Present, Waiters, wait_among

Result = TypeVar("Result")
Handler = Callable[[int, FrameType | None], Any]

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Interruptible:
    """One call, from its beginning to its end: a context manager."""

    def __init__(self) -> None:
        self.why = ""
        """Why the call must end its wait; "": it may wait."""

    def __enter__(self) -> Interruptible:
        if threading.current_thread() is threading.main_thread():
            _calls.add(self)
            _chain()
        return self

    def __exit__(self, *_: object) -> None:
        if threading.current_thread() is threading.main_thread():
            _calls.leave(self)
            if not _calls.all():
                _unchain()

    def end_wait(self, why: str) -> None:
        """End the call's wait. From any thread, and in a signal handler."""
        self.why = self.why or why
        _ended.notify()

    def run_part(self, function: Callable[[], Result]) -> Result:
        """Run a part of the call in the calling thread, while another thread waits for the call."""
        _here.call = self
        try:
            return function()
        finally:
            _here.call = None

    def wait_for(
        self, waiters: Waiters, condition: Callable[[], bool], timeout: float | None
    ) -> bool:
        """Wait as `Waiters.wait_for`; the condition is also checked after `end_wait`."""
        return wait_among((waiters, _ended), condition, timeout)


_calls: Present[Interruptible] = Present()
"""Calls that learn of a signal."""
_ended = Waiters()
_here = threading.local()


def interruptible() -> AbstractContextManager[Interruptible]:
    """Return the call of the calling thread, or else a new call."""
    call: Interruptible | None = getattr(_here, "call", None)
    return Interruptible() if call is None else nullcontext(call)


class _Chained:
    """A handler that calls the handler that it replaced. Each chain makes a new object, because the
    application may have chained an earlier object in its turn."""

    def __init__(self, before: Handler) -> None:
        self.before: Any = before

    def __call__(self, number: int, frame: FrameType | None) -> None:
        try:
            if callable(self.before):
                self.before(number, frame)
            elif self.before is signal.SIG_DFL:
                signal.signal(number, signal.SIG_DFL)
                os.kill(os.getpid(), number)
        finally:
            for call in _calls.all():
                call.end_wait(f"{signal.Signals(number).name} has come")


def handler_of(number: int) -> Any:
    """Return the application's handler, as `signal.getsignal`, also while it is chained."""
    handler = signal.getsignal(number)
    while isinstance(handler, _Chained):
        handler = handler.before
    return handler


def _chain() -> None:
    for number in SIGNALS:
        before = signal.getsignal(number)
        if not callable(before) or isinstance(before, _Chained):
            continue
        with suppress(ValueError):  # the main thread of a subinterpreter sets no handlers
            chained = _Chained(before)
            # A handler that ran just now may have set another handler.
            chained.before = signal.signal(number, chained)
            if not callable(chained.before):
                signal.signal(number, chained.before)


def _unchain() -> None:
    for number in SIGNALS:
        chained = signal.getsignal(number)
        if isinstance(chained, _Chained):
            signal.signal(number, chained.before)
