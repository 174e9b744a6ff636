"""Durations of a node's commits, and of *rounds*: from a master's step until its ops are stable.

Node thread only. The cost is one reading of the clock per commit and step.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from mirrorq import clock
from mirrorq.containers.histogram import Histogram
from mirrorq.replication.replica import Replica

OPEN_MAX = 256
"""Limit on rounds of one queue that are timed at once; further rounds are not timed."""


class Timings:
    """Two histograms of one node, and the open rounds. The driver owns the object."""

    def __init__(self) -> None:
        self.commits = Histogram()
        self.rings = Histogram()
        self.longest_commit_s = 0.0
        """Longest commit in seconds since `take_longest`."""
        self._open: dict[int, deque[tuple[int, float]]] = {}
        """Queue -> (last lsn of a step, when the step's ops left)."""

    def note_commit(self, began: float) -> None:
        """Note a finished commit that began at `began` (`clock.monotonic`), not a failed one."""
        took = clock.monotonic() - began
        self.commits.observe(took)
        self.longest_commit_s = max(self.longest_commit_s, took)

    def take_longest(self) -> float:
        """Return the longest commit since the last call, in seconds."""
        longest, self.longest_commit_s = self.longest_commit_s, 0.0
        return longest

    def note_steps(self, led: Iterable[Replica]) -> None:
        """Note a step of masters: ops have left, or have become stable."""
        now = clock.monotonic()
        for replica in led:
            queue_id = replica.queue_id
            if replica.master is None:
                self._open.pop(queue_id, None)
                continue
            stable, received = replica.ring.log.stable, replica.ring.log.received
            rounds = self._open.get(queue_id)
            while rounds and rounds[0][0] <= stable:
                self.rings.observe(now - rounds.popleft()[1])
            if received <= stable:
                continue
            if rounds is None:
                rounds = self._open[queue_id] = deque()
            if len(rounds) < OPEN_MAX and (not rounds or rounds[-1][0] < received):
                rounds.append((received, now))
