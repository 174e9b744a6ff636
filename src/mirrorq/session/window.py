"""How many messages a handle fetches ahead of its calls, or of a consumer's callback. Pure."""

from __future__ import annotations

from attrs import define

IDLE_GIVEBACK_MS = 100
"""Messages fetched ahead that are not taken for this long go back."""
STREAK_MIN = 4
"""So often all messages must be taken soon after they came before any is fetched ahead."""
AHEAD_BYTES = 32 << 20
"""A handle fetches no more than about this many bytes ahead, whatever its bound in messages."""
FIRST_BYTES = 64 << 10
"""Size of a message for that bound while none has come."""


@define
class Window:
    """Messages to have here beyond those that are waited for.

    The window begins at 0, doubles while messages are taken as fast as they come, and falls to 0
    when they are not: messages that lie here are messages that other consumers wait for. So it
    holds little more than is taken in `IDLE_GIVEBACK_MS`.
    """

    size_max: int
    size: int = 0
    arrived: int = 0
    """Messages that came, less those that went back."""
    idle_at_ms: int | None = None
    """When the messages that lie here are to go back."""
    _message_bytes: int = FIRST_BYTES
    """How large messages have been of late."""
    _arrived_ms: int = 0
    _has_arrival: bool = False
    _taken: int = 0
    _streak: int = 0
    """Times in a row that all messages were taken soon after they had come."""

    def bound(self, size_max: int) -> None:
        """The window grows up to this from now on, and falls to it if it is larger."""
        self.size_max = size_max
        self.size = min(self.size, size_max)

    def room(self, ahead_bytes: int) -> int:
        """How many messages of late sizes are in so many bytes; 1 at least."""
        return max(ahead_bytes // max(self._message_bytes, 1), 1)

    def on_arrival(self, count: int, size: int) -> None:
        """So many messages of so many bytes have come."""
        each = size // max(count, 1)
        # Large messages are noticed at once, small ones after a while: memory before speed.
        self._message_bytes = max(each, (self._message_bytes + each) // 2)
        self.arrived += count
        self._has_arrival = True

    def look(self, now_ms: int, here: int, *, is_waiting: bool) -> bool:
        """Change the size by what was taken since the last look.

        Args:
            here: messages that came and were not taken.
            is_waiting: somebody would take a message at once.

        Returns:
            Whether the messages that are here are to go back: nobody has taken one for long.
        """
        taken = self.arrived - here
        if taken != self._taken:
            self._taken = taken
            self._on_taken(now_ms, here == 0)
            self.idle_at_ms = None
        if self._has_arrival:
            # How long messages were on their way says nothing of whoever takes them.
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
        """Nobody takes messages any more, or others wait for them."""
        self.size = self._streak = 0
        self.idle_at_ms = None
