"""How much work a call is: the bytecodes that it executes, which no clock and no load changes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from types import CodeType, FrameType

from tests.bytecodes import watch

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
        """Bytecodes of the Python code that it ran in this thread."""

    def growth_text(self, before: Work) -> str:
        """Where it did more than another call did, the most first."""
        more = self._by_name - before._by_name
        return ", ".join(f"{name}: {count} more" for name, count in more.most_common(NAMED_COUNT))


def work_of(call: Callable[[], object], *, under: str = CORE, rooms: Rooms = ("",)) -> Work:
    """Count what a call does in files of this folder, what only tests use left out.

    Args:
        rooms: only in files of these folders, which costs less time.

    Loops within C (a copy of a list, a `min` of plain numbers) count as one bytecode: they cost a
    hundredth of what the same loop costs in Python.
    """
    by_code: Counter[CodeType] = Counter()

    def note(frame: FrameType, place: int) -> None:
        by_code[frame.f_code] += 1

    watch(call, note, rooms)
    for code in list(by_code):
        if under not in code.co_filename or TESTS in code.co_filename:
            del by_code[code]
    return Work(by_code)
