"""How much more time than agreed a node takes and grants its clients. Pure.

A sign of life costs both processes some 0.8 ms, however little there is to do: 500 clients with
four a second would keep one core busy and half of another. So a crowd is heard less often. And
where clients get so little time that their signs of life come late, those that live would be taken
for gone, which costs more time still: the node learns from those that come late, and forgets it
when they come in time again.
"""

from __future__ import annotations

CROWD = 100
"""With more clients than this a node has each of them give signs of life less often."""
PATIENCE_MAX = 1000
"""Percent: nobody is waited for longer than this."""
MARGIN = 2
"""So many times the longest silence of late of clients that live: the next one may be longer."""
CALM_MS = 10_000
"""What was learned is halved when nobody was that late for so long."""


class Patience:
    """How much longer than agreed one node waits for its clients, in percent: more when there are
    many, or when those that live were late. The node thread's."""

    def __init__(self) -> None:
        self._learned = 100
        self._late_ms = 0
        """When somebody was last so late."""

    def percent(self, now_ms: int, clients: int) -> int:
        """For so many clients, now."""
        while self._learned > 100 and now_ms - self._late_ms >= CALM_MS:
            self._learned = max(self._learned // 2, 100)
            self._late_ms += CALM_MS
        return max(self._learned, min(100 * clients // CROWD, PATIENCE_MAX))

    def on_heard(self, now_ms: int, silence_ms: int, expiry_ms: int) -> None:
        """A client lives, and had been silent for so long.

        Args:
            silence_ms: time in which this node listened to it in vain.
            expiry_ms: silence that was agreed to be too long.
        """
        needed = min(MARGIN * 100 * silence_ms // expiry_ms, PATIENCE_MAX)
        if needed > self._learned:
            self._learned = needed
        if needed * 2 > self._learned:
            self._late_ms = now_ms
