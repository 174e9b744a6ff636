"""How long a node's commits take, and its queues' ops from the master round to stable.

Of the node thread alone; it costs a reading of the clock a commit and a step.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from mirrorq import clock
from mirrorq.containers.histogram import Histogram
from mirrorq.replication.replica import Replica

OPEN_MAX = 256
"""Rounds of one queue that are timed at once; while so many are open the next ones are not."""


class Timings:
    """Two histograms of one node, and what is under way. The driver has it."""

    def __init__(self) -> None:
        self.commits = Histogram()
        self.rings = Histogram()
        self.longest_commit_s = 0.0
        """Since `take_longest`."""
        self._open: dict[int, deque[tuple[int, float]]] = {}
        """Queue -> (last lsn of a step, when it left)."""

    def note_commit(self, began: float) -> None:
        """A commit that began then (`clock.monotonic`) is done; one that fails is none."""
        took = clock.monotonic() - began
        self.commits.observe(took)
        self.longest_commit_s = max(self.longest_commit_s, took)

    def take_longest(self) -> float:
        """The longest commit since the last call, in seconds."""
        longest, self.longest_commit_s = self.longest_commit_s, 0.0
        return longest

    def note_steps(self, led: Iterable[Replica]) -> None:
        """These were stepped: ops of masters have left, or have become stable."""
        now = clock.monotonic()
        for replica in led:
            queue_id = replica.queue_id
            if replica.master is None:
                self._open.pop(queue_id, None)
                continue
            stable, received = replica.ring.stable, replica.ring.received
            rounds = self._open.get(queue_id)
            while rounds and rounds[0][0] <= stable:
                self.rings.observe(now - rounds.popleft()[1])
            if received <= stable:
                continue
            if rounds is None:
                rounds = self._open[queue_id] = deque()
            if len(rounds) < OPEN_MAX and (not rounds or rounds[-1][0] < received):
                rounds.append((received, now))
