"""Number of messages that a handle fetches ahead of calls or of a callback. Pure."""

from __future__ import annotations

from attrs import define

IDLE_GIVEBACK_MS = 100
"""Messages fetched ahead go back after this time without a taker."""
STREAK_MIN = 4
"""Times in a row that all messages must be taken promptly before any is fetched ahead."""
AHEAD_BYTES = 32 << 20
"""A handle fetches no more than about this many bytes ahead, at any bound in messages."""
FIRST_BYTES = 64 << 10
"""Assumed size of a message for `AHEAD_BYTES` before the first message comes."""


@define
class Window:
    """Number of messages to buffer beyond the messages that callers wait for.

    The window begins at 0, doubles while messages are taken as fast as they come, and falls to 0
    otherwise: buffered messages are messages that other consumers wait for. So the window holds
    little more than is taken in `IDLE_GIVEBACK_MS`.
    """

    size_max: int
    size: int = 0
    arrived: int = 0
    """Messages that came minus messages that went back."""
    idle_at_ms: int | None = None
    """Time at which the buffered messages must go back."""
    _message_bytes: int = FIRST_BYTES
    """Recent size of a message in bytes."""
    _arrived_ms: int = 0
    _has_arrival: bool = False
    _taken: int = 0
    _streak: int = 0
    """Times in a row that all messages were taken soon after arrival."""

    def bound(self, size_max: int) -> None:
        """Set the maximum of the window; a larger window shrinks to the maximum."""
        self.size_max = size_max
        self.size = min(self.size, size_max)

    def room(self, ahead_bytes: int) -> int:
        """Return how many messages of recent size fit in `ahead_bytes`; 1 at least."""
        return max(ahead_bytes // max(self._message_bytes, 1), 1)

    def on_arrival(self, count: int, size: int) -> None:
        """So many messages of so many bytes have come."""
        each = size // max(count, 1)
        # Large messages count at once, small messages after a while: memory before speed.
        self._message_bytes = max(each, (self._message_bytes + each) // 2)
        self.arrived += count
        self._has_arrival = True

    def look(self, now_ms: int, here: int, *, is_waiting: bool) -> bool:
        """Change the size by the number of messages taken since the last look.

        Args:
            here: messages that came and were not taken.
            is_waiting: a caller would take a message at once.

        Returns:
            True if the buffered messages must go back: no caller has taken a message for long.
        """
        taken = self.arrived - here
        if taken != self._taken:
            self._taken = taken
            self._on_taken(now_ms, here == 0)
            self.idle_at_ms = None
        if self._has_arrival:
            # The travel time of messages says nothing about the speed of the callers.
            self._has_arrival = False
            self._arrived_ms = now_ms
        if not here:
            self.idle_at_ms = None
        elif self.idle_at_ms is None or (now_ms >= self.idle_at_ms and is_waiting):
            self.idle_at_ms = now_ms + IDLE_GIVEBACK_MS
        else:
            return now_ms >= self.idle_at_ms
        return False

    def _on_taken(self, now_ms: int, is_empty: bool) -> None:
        if not is_empty:
            return
        is_prompt = now_ms - self._arrived_ms < IDLE_GIVEBACK_MS
        self._streak = self._streak + 1 if is_prompt else 0
        if self._streak > STREAK_MIN:
            self.size = min(max(self.size * 2, 1), self.size_max)

    def on_idle(self) -> None:
        """Reset the window: no caller takes messages any more, or other consumers wait."""
        self.size = self._streak = 0
        self.idle_at_ms = None
