"""Times at which a node without a leader stands for election."""

from __future__ import annotations

from mirrorq.config import Config

KNOWN_DEATH_MS_MAX = 20
"""After a known death all voters stand in turn within this time."""
RETRY_MS = 40
"""Wait after a failed election, doubled each time: a few round trips and disk writes."""
RETRY_DOUBLINGS_MAX = 10


class ElectionTimer:
    """Stand at `at_ms`. Each wait has a random part which differs between nodes."""

    def __init__(self, config: Config, seed: int) -> None:
        self.at_ms: int | None = None
        """None before the first step: no clock has been read."""
        self._config = config
        self._jitter = Jitter(seed)
        self._attempts = 0

    def is_due(self, now_ms: int) -> bool:
        return self.at_ms is not None and now_ms >= self.at_ms

    def wait_for_silence(self, now_ms: int) -> None:
        """A leader or a candidate was just heard of, or nothing ever was."""
        self._attempts = 0
        self.at_ms = now_ms + self._config.election_ms + self._spread_ms()

    def wait_for_turn(self, now_ms: int, turn: int, turns: int) -> None:
        """The leader is gone for certain: the voters stand in turn."""
        self._attempts = 0
        self.at_ms = now_ms + turn * KNOWN_DEATH_MS_MAX // max(1, turns - 1)

    def stand_now(self, now_ms: int) -> None:
        self.at_ms = now_ms

    def try_again_later(self, now_ms: int) -> None:
        """The election may fail: retry soon at first, then after doubled waits."""
        wait_ms = min(self._config.election_ms, RETRY_MS << self._attempts)
        self._attempts = min(self._attempts + 1, RETRY_DOUBLINGS_MAX)
        self.at_ms = now_ms + wait_ms + self._spread_ms()

    def postpone(self, by_ms: int) -> None:
        """Shift the election by the time in which this node could not hear any node."""
        if self.at_ms is not None:
            self.at_ms += by_ms

    def give_way(self, now_ms: int) -> None:
        """Let a rival try alone for a moment, so votes do not split."""
        alone_until_ms = now_ms + RETRY_MS + self._spread_ms()
        self.at_ms = max(self.at_ms or 0, alone_until_ms)

    def _spread_ms(self) -> int:
        return self._jitter.below(self._config.election_spread_ms)


_MASK = (1 << 64) - 1


class Jitter:
    """Random extra wait of each node, so nodes do not stand for election all at once.

    SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators).
    """

    def __init__(self, seed: int) -> None:
        self._state = seed & _MASK

    def below(self, bound: int) -> int:
        """Return the next number in 0 … bound - 1."""
        self._state = (self._state + 0x9E3779B97F4A7C15) & _MASK
        mixed = self._state
        mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
        return (mixed ^ (mixed >> 31)) % bound
