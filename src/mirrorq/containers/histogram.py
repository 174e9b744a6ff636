"""Counts of durations in fixed buckets: an addition each, no lock, no memory. Pure."""

from __future__ import annotations

from bisect import bisect_left

from attrs import frozen

BOUNDS_S = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
"""Upper bounds of the buckets in seconds: from a commit to a fast disk to a disk that hangs."""


@frozen
class Observed:
    """Counts of one histogram at one moment. Frozen: any thread may read the counts."""

    counts: tuple[int, ...]
    """Count of each bucket. The last bucket has no upper bound."""
    seconds: float
    """The sum of all."""

    @property
    def count(self) -> int:
        return sum(self.counts)


class Histogram:
    """Counts durations by size. One thread observes; other threads read `observed()`."""

    def __init__(self) -> None:
        self._counts = [0] * (len(BOUNDS_S) + 1)
        self._seconds = 0.0

    def observe(self, seconds: float) -> None:
        """Count a duration; a bound belongs to the bucket below it."""
        self._counts[bisect_left(BOUNDS_S, seconds)] += 1
        self._seconds += seconds

    def observed(self) -> Observed:
        return Observed(tuple(self._counts), self._seconds)
