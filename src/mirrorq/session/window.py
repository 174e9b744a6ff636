"""How far ahead of its callers a handle's get() fetches. Pure."""

from __future__ import annotations

from attrs import define

IDLE_GIVEBACK_MS = 100
"""Messages fetched ahead that no call takes for this long go back."""
WINDOW_MAX_FACTOR = 16
"""get() under sustained consumption fetches ahead up to this many prefetches: more than a loop
takes while the host's thread waits for its turn in the interpreter (5 ms). With less it runs dry
and waits itself. No window holds much more than is taken in IDLE_GIVEBACK_MS: see `on_taken`."""

STREAK_MIN = 4
"""So often callers must come at once before anything is fetched ahead of them."""


@define
class Window:
    """Messages to have here beyond what calls wait for.

    It grows only while calls come as fast as messages do, and falls to nothing when they stop:
    messages in a handle that nobody asks for are messages that others wait for.
    """

    size_max: int
    size: int = 0
    arrived_ms: int = 0
    streak: int = 0
    """Times in a row that callers took all there was soon after it had come."""

    def bound(self, size_max: int) -> None:
        """It grows up to this from now on; what is above falls to it."""
        self.size_max = size_max
        self.size = min(self.size, size_max)

    def on_arrival(self, now_ms: int) -> None:
        """Messages have come. How long they were on their way says nothing of the callers."""
        self.arrived_ms = now_ms

    def on_taken(self, now_ms: int, buffer_empty: bool) -> None:
        """Callers have taken messages; were they all there were, and soon after they came?"""
        if not buffer_empty:
            return
        prompt = now_ms - self.arrived_ms < IDLE_GIVEBACK_MS
        self.streak = self.streak + 1 if prompt else 0
        if self.streak > STREAK_MIN:
            self.size = min(max(self.size * 2, 1), self.size_max)

    def on_idle(self) -> None:
        """Callers have stopped, or others wait."""
        self.size = self.streak = 0
