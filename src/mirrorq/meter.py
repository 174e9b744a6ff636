"""How fast a transfer goes, and so how long it will take. Decides nothing."""

from __future__ import annotations

from collections import deque

WINDOW_MS = 5000
"""The pace is that of the last so many ms."""
SAMPLE_MS = 200


class Meter:
    """Counts what has come."""

    def __init__(self) -> None:
        self.messages = 0
        self.bytes = 0
        self._samples: deque[tuple[int, int]] = deque()
        """(time, messages) as they were then."""

    def begin(self, now_ms: int) -> None:
        """Something is asked for after nothing was: the pause before does not count."""
        self._samples.clear()
        self._samples.append((now_ms, self.messages))

    def add(self, now_ms: int, messages: int, size: int) -> None:
        self.messages += messages
        self.bytes += size
        samples = self._samples
        if not samples or now_ms - samples[-1][0] >= SAMPLE_MS:
            samples.append((now_ms, self.messages))
            while len(samples) > 2 and now_ms - samples[1][0] >= WINDOW_MS:
                samples.popleft()

    def bytes_of(self, messages: int) -> int:
        """What so many messages will come to, judged by those that have come."""
        return self.bytes * messages // self.messages if self.messages else 0

    def ms_for(self, now_ms: int, messages: int) -> int:
        """How long so many messages will take; 0 when that cannot be said."""
        if not self._samples:
            return 0
        began_ms, before = self._samples[0]
        came = self.messages - before
        gone_ms = now_ms - began_ms
        return max(messages * gone_ms // came, 1) if came > 0 and gone_ms > 0 else 0
