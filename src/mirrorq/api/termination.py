"""SIGTERM and SIGINT end a call that waits for a majority, though the application handles them.

A handler as uvicorn's only notes the signal, and the application ends when its start-up is over: a
call that waits for a majority would keep it. So while a call is under way in the main thread, or in
a loop there, the handler is chained: it runs first, and then the call learns of the signal. What
the call makes of that is its own matter: one whose cluster has a majority goes on to its answer.

1. Only a handler is chained. The default disposition ends the process by itself, and an ignored
   signal stays ignored.
2. A handler that the application sets meanwhile stays in charge: ours is taken away only where it
   still stands. Kept by the application and called later it does what the chained one did.
3. Nothing is locked: a signal may come between any two bytecodes, and its handler may raise.

*Threads*: calls in other threads than the main one, or in a loop there, learn of no signal: who
handles it closes the node or the client, which ends them.
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
        """Why it is to wait no longer; "" while it may."""

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

    def end(self, why: str) -> None:
        """It is to wait no longer. From any thread, and in a signal handler."""
        self.why = self.why or why
        _ended.notify()

    def run(self, function: Callable[[], Result]) -> Result:
        """Run what this call does in the calling thread, which is not where it is waited for."""
        _here.call = self
        try:
            return function()
        finally:
            _here.call = None

    def wait_for(
        self, waiters: Waiters, condition: Callable[[], bool], timeout: float | None
    ) -> bool:
        """Wait as `Waiters.wait_for`; the condition is looked at after `end`, too."""
        return wait_among((waiters, _ended), condition, timeout)


_calls: Present[Interruptible] = Present()
"""Those that learn of a signal."""
_ended = Waiters()
_here = threading.local()


def interruptible() -> AbstractContextManager[Interruptible]:
    """The call that the calling thread is in, or else a new one."""
    call: Interruptible | None = getattr(_here, "call", None)
    return Interruptible() if call is None else nullcontext(call)


class _Chained:
    """A handler that calls the one that it took the place of. Each has one of its own: the
    application may have chained an earlier one in its turn."""

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
                call.end(f"{signal.Signals(number).name} has come")


def handler_of(number: int) -> Any:
    """The application's handler, as `signal.getsignal`, also while it is chained."""
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
            # A handler that ran just now may have set another one.
            chained.before = signal.signal(number, chained)
            if not callable(chained.before):
                signal.signal(number, chained.before)


def _unchain() -> None:
    for number in SIGNALS:
        chained = signal.getsignal(number)
        if isinstance(chained, _Chained):
            signal.signal(number, chained.before)
