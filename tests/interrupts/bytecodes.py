"""A call, watched at each of its bytecodes.

CPython 3.11 tells them by `sys.settrace`. Later versions lose some there (a code's first run, and
what other threads run meanwhile), so `sys.monitoring` tells them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from threading import get_ident
from types import CodeType, FrameType
from typing import Any

__all__ = ["watch"]

Note = Callable[[FrameType, int], object]
"""The frame and the place of the bytecode that comes next, in bytes."""

if sys.version_info >= (3, 12):
    _TOOL = sys.monitoring.DEBUGGER_ID
    _INSTRUCTION = sys.monitoring.events.INSTRUCTION

    def watch(call: Callable[[], object], note: Note) -> None:
        """Call it, and `note` before each bytecode of the frames below, on this thread.

        What `note` raises comes out of that bytecode.
        """
        thread = get_ident()
        monitoring = sys.monitoring

        def on_instruction(code: CodeType, offset: int) -> object:
            if get_ident() == thread and code is not watch.__code__:
                note(sys._getframe(1), offset)
            return None

        monitoring.use_tool_id(_TOOL, "mirrorq's tests")
        monitoring.register_callback(_TOOL, _INSTRUCTION, on_instruction)
        monitoring.restart_events()
        monitoring.set_events(_TOOL, _INSTRUCTION)
        try:
            call()
        finally:
            monitoring.set_events(_TOOL, 0)
            monitoring.register_callback(_TOOL, _INSTRUCTION, None)
            monitoring.free_tool_id(_TOOL)

else:

    def watch(call: Callable[[], object], note: Note) -> None:
        """Call it, and `note` before each bytecode of the frames below, on this thread.

        What `note` raises comes out of that bytecode.
        """

        def trace(frame: FrameType, event: str, argument: Any) -> Any:
            if event == "call":
                frame.f_trace_opcodes = True
                frame.f_trace_lines = False
            elif event == "opcode":
                note(frame, frame.f_lasti)
            return trace

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            call()
        finally:
            sys.settrace(before)
