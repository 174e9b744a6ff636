"""Extra time beyond the agreed, which a node takes and grants its clients. Pure.

A sign of life costs both processes some 0.8 ms, even without other work: 500 clients with four a
second would keep a core busy and half of another. So a crowd is heard less often. Where clients get
little time, late signs of life would make living clients look gone, which costs more time still. So
the node learns from late signs, and forgets when signs come in time again.
"""

from __future__ import annotations

CROWD = 100
"""With more clients a node asks each client for signs of life less often."""
PATIENCE_MAX = 1000
"""Percent: limit of the wait for any client."""
MARGIN = 2
"""Multiple of the longest recent silence of living clients: the next silence may be longer."""
CALM_MS = 10_000
"""The learned value halves after so long without an equally late client."""


class Patience:
    """A node's wait for its clients, in percent of the agreed: longer with many clients, or after
    living clients were late. Owned by the node thread."""

    def __init__(self) -> None:
        self._learned = 100
        self._late_ms = 0
        """When a client was last so late."""

    def percent(self, now_ms: int, clients: int) -> int:
        """For so many clients, now."""
        while self._learned > 100 and now_ms - self._late_ms >= CALM_MS:
            self._learned = max(self._learned // 2, 100)
            self._late_ms += CALM_MS
        return max(self._learned, min(100 * clients // CROWD, PATIENCE_MAX))

    def on_heard(self, now_ms: int, silence_ms: int, expiry_ms: int) -> None:
        """Note a living client after its silence.

        Args:
            silence_ms: time in which the node listened in vain.
            expiry_ms: silence agreed as too long.
        """
        needed = min(MARGIN * 100 * silence_ms // expiry_ms, PATIENCE_MAX)
        if needed > self._learned:
            self._learned = needed
        if needed * 2 > self._learned:
            self._late_ms = now_ms
