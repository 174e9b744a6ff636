"""A small deterministic generator, so that nodes do not all stand for election at once."""

from __future__ import annotations

__all__ = ["Spread"]

_MASK = (1 << 64) - 1


class Spread:
    """SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators)."""

    def __init__(self, seed: int) -> None:
        self._state = seed & _MASK

    def below(self, bound: int) -> int:
        """Return the next number in 0 … bound - 1."""
        self._state = (self._state + 0x9E3779B97F4A7C15) & _MASK
        mixed = self._state
        mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
        return (mixed ^ (mixed >> 31)) % bound
