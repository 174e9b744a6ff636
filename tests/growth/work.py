"""How much work a call is: the lines of Python that it executes. No clock changes their number."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

__all__ = ["Work", "work_of"]

Rooms = tuple[str, ...]
NAMED_COUNT = 5
CORE = "/mirrorq/"
TESTS = "/testing/"


class Work:
    """What a call did."""

    def __init__(self, by_code: Counter[CodeType]) -> None:
        self._by_name: Counter[str] = Counter()
        for code, count in by_code.items():
            self._by_name[f"{code.co_filename.rpartition('/')[2]} {code.co_qualname}"] += count
        self.count = self._by_name.total()
        """Lines of the Python code that it ran in this thread."""

    def growth_text(self, before: Work) -> str:
        """Where it did more than another call did, the most first."""
        more = self._by_name - before._by_name
        return ", ".join(f"{name}: {count} more" for name, count in more.most_common(NAMED_COUNT))


def work_of(call: Callable[[], object], *, under: str = CORE, rooms: Rooms = ("",)) -> Work:
    """Count what a call does in files of this folder, what only tests use left out.

    Args:
        rooms: only in files of these folders, which costs less time.

    Each turn of a loop counts, also where the loop stands on one line. Loops within C (a copy of a
    list, a `min` of plain numbers) count as one line: they cost a hundredth of what the same loop
    costs in Python.
    """
    by_code: Counter[CodeType] = Counter()
    known: dict[CodeType, bool] = {}

    def is_counted(code: CodeType) -> bool:
        path = code.co_filename
        return under in path and TESTS not in path and any(room in path for room in rooms)

    def begin(frame: FrameType, event: str, argument: Any) -> Any:
        code = frame.f_code
        found = known.get(code)
        if found is None:
            found = known[code] = is_counted(code)
        return note if found else None

    def note(frame: FrameType, event: str, argument: Any) -> Any:
        if event == "line":
            by_code[frame.f_code] += 1
        return note

    before = sys.gettrace()
    sys.settrace(begin)
    try:
        call()
    finally:
        sys.settrace(before)
    return Work(by_code)
