"""Wall clocks that are wrong, and are set while nodes run; machines that are booted.

No duration of a queue may show anything of it (`Onlooker`: time; `checkers.early`). One thing
nobody can know is left out: a clock that is set while its machine is off.
"""

from __future__ import annotations

from collections import Counter
from random import Random

from harness.cluster import SimulatedCluster

__all__ = ["ClockFaults"]

SECOND_MS = 1000
HOUR_MS = 3600 * SECOND_MS
DAY_MS = 24 * HOUR_MS
AHEAD_MS = (0, 0, SECOND_MS, 7 * SECOND_MS, HOUR_MS, DAY_MS, 40 * DAY_MS)
"""By how much a wall clock is wrong, ahead or behind."""
STEPS_MS = (50, 300, 1000, 3000)
BOOT_SHARE = 0.3
"""Of the ticks: those at which a stopped node's machine is booted."""


class ClockFaults:
    """For one run, from `start` until `stop`."""

    def __init__(self, cluster: SimulatedCluster, random: Random, counts: Counter[str]) -> None:
        self._cluster = cluster
        self._random = random
        self._counts = counts
        self._is_over = False

    def begin(self) -> None:
        """Before the nodes start: some wall clocks have always been wrong."""
        for node in self._cluster.nodes.values():
            node.wall_ahead_ms = self._ahead_ms()

    def start(self) -> None:
        """Begin to set clocks."""
        self._tick()

    def stop(self) -> None:
        """No more."""
        self._is_over = True

    def _ahead_ms(self) -> int:
        return self._random.choice((1, -1)) * self._random.choice(AHEAD_MS)

    def _tick(self) -> None:
        if self._is_over:
            return
        cluster, random = self._cluster, self._random
        name = random.choice(tuple(cluster.nodes))
        if name in cluster.running:
            cluster.set_wall(name, self._ahead_ms())
            self._counts["wall clock set"] += 1
        elif random.random() < BOOT_SHARE and cluster.nodes[name].has_seen_wall:
            cluster.boot(name)
            self._counts["machine booted"] += 1
        cluster.after(random.choice(STEPS_MS), self._tick)
