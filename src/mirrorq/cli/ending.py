"""Signals that ask a command to end."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

ENDING = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def sigterm_as_ctrl_c() -> Iterator[None]:
    """Have SIGTERM raise KeyboardInterrupt: what a Ctrl-C tells and cleans up, it does too."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def signals_counted(at_once: Callable[[], None] = lambda: None) -> Iterator[list[int]]:
    """Collect signals that ask for the end; the second signal ends the process at once.

    Args:
        at_once: called before the second signal ends the process.
    """
    signals: list[int] = []

    def on_signal(number: int, _frame: FrameType | None) -> None:
        signals.append(number)
        if len(signals) > 1:
            at_once()
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    before = [signal.signal(number, on_signal) for number in ENDING]
    try:
        yield signals
    finally:
        for number, handler in zip(ENDING, before, strict=True):
            signal.signal(number, handler)
