"""Finds Python code of the application that computes beside the node's thread.

Such code lets another thread have the interpreter only after a switch interval. Each confirm waits
for the interpreter several times.
"""

from __future__ import annotations

import sys
import time

from mirrorq import clock

SHORT_S = 0.001
"""The application has shortened the switch interval already."""
SHARE = 0.5
"""Other threads of the process use at least this share of one processor."""
LOOKS = 30
"""So many more looks find computing code than find none: a short computation is no reason for a
warning."""


class BusyHost:
    """Counts how often others hold the interpreter. Used by the node's thread only."""

    def __init__(self) -> None:
        self._found = 0
        self._is_told = False
        self._before = _times()

    def look(self, late_s: float) -> str:
        """Take note of the time since the last look.

        Args:
            late_s: the longest time by which the node's thread came late from a wait, in seconds.

        Returns:
            A warning, once; otherwise "".
        """
        before, self._before = self._before, _times()
        passed, whole, own = (new - old for new, old in zip(self._before, before, strict=True))
        interval_s = sys.getswitchinterval()
        # It comes late beside a busy processor too: then the others do not compute so much.
        is_found = whole - own >= SHARE * passed and late_s >= 0.8 * interval_s >= SHORT_S
        self._found = max(0, self._found + (1 if is_found else -1))
        if self._is_told or self._found < LOOKS:
            return ""
        self._is_told = True
        return (
            f"Python code of this process computes beside the node: {whole - own:.1f} s of CPU "
            f"time in the last {passed:.1f} s, and the node's thread came up to "
            f"{late_s * 1000:.0f} ms late from a wait. Each confirm waits several times so long. "
            "Call sys.setswitchinterval(0.0005), or give the node a process of its own "
            "(docs/deployment.md, Where the node runs)"
        )


def _times() -> tuple[float, float, float]:
    """Return the time, and the CPU time of the process and of this thread, in seconds."""
    return clock.monotonic(), time.process_time(), time.thread_time()
