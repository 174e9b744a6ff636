"""Warnings that remote processes can cause: a limited number is written, the rest are counted.

Any process that reaches the endpoint can cause a warning with a few bytes, and a log that fills the
disk would harm everybody.
"""

from __future__ import annotations

import logging

from mirrorq import clock

PERIOD_MS = 10_000
LINES_MAX = 20
"""Lines in a period; one more line reports how many were left out."""


class LogLimit:
    """A log with a limited number of lines in each period.

    The driver owns the object. Node thread only.
    """

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._began_ms = clock.now_ms()
        self._count = 0

    def warn(self, text: str, *values: object) -> None:
        """Write a warning as `Logger.warning` does, or count it as left out."""
        now_ms = clock.now_ms()
        if now_ms - self._began_ms >= PERIOD_MS:
            left_out = self._count - LINES_MAX
            if left_out > 0:
                self._log.warning("%s more warnings of this kind were left out", left_out)
            self._began_ms, self._count = now_ms, 0
        self._count += 1
        if self._count <= LINES_MAX:
            self._log.warning(text, *values)
