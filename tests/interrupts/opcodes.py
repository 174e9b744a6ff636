"""Raising in a call at the n-th of its bytecodes, as a signal handler would."""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

__all__ = ["Interrupt", "run_interrupted"]

_RETURN = dis.opmap["RETURN_VALUE"]


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

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal count, was_raised
        if event == "call":
            frame.f_trace_opcodes = True
            frame.f_trace_lines = False
        elif event == "opcode":
            is_own = frame.f_code is code
            is_outer = frame.f_back is not None and frame.f_back.f_code is code
            is_end = is_outer and frame.f_code.co_code[frame.f_lasti] == _RETURN
            if not is_own and not is_end:
                count += 1
                if count == at + 1:
                    was_raised = True
                    handler()
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    except Interrupt:
        assert was_raised
    finally:
        sys.settrace(before)
    return was_raised
