"""Raising in a call at the n-th of its bytecodes, as a signal handler would."""

from __future__ import annotations

import dis
from collections.abc import Callable
from types import FrameType

from .bytecodes import watch

__all__ = ["Interrupt", "run_interrupted"]

_RETURNS = {dis.opmap[name] for name in ("RETURN_VALUE", "RETURN_CONST") if name in dis.opmap}


class Interrupt(BaseException):
    """What a signal handler raises."""


def _raise() -> None:
    raise Interrupt


def run_interrupted(
    call: Callable[[], object], at: int, handler: Callable[[], object] = _raise
) -> bool:
    """Call it, and raise before its bytecode number `at`, from 0, of all its frames in Python.

    Args:
        handler: what is called there instead.

    The return of the outermost frame is left out: CPython runs no handler between it and the
    caller's next bytecode, and who has a message then is the caller.

    Returns:
        Whether it was interrupted; False: it has ended before, as if nobody had watched.
    """
    code = getattr(call, "__func__", call).__code__  # type: ignore[attr-defined]
    count = 0
    was_raised = False

    def note(frame: FrameType, place: int) -> None:
        nonlocal count, was_raised
        is_own = frame.f_code is code
        is_outer = frame.f_back is not None and frame.f_back.f_code is code
        is_end = is_outer and frame.f_code.co_code[place] in _RETURNS
        if not is_own and not is_end:
            count += 1
            if count == at + 1:
                was_raised = True
                handler()

    try:
        watch(call, note)
    except Interrupt:
        assert was_raised
    return was_raised
