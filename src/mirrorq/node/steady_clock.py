"""A node's steady clock: `steady_time` of the machine's clocks, kept in the node's store."""

from __future__ import annotations

import logging

from mirrorq import clock
from mirrorq.errors import StoreFull
from mirrorq.node.steady_time import SteadyTime
from mirrorq.store.node_store import Store

log = logging.getLogger("mirrorq")

_NAME = "steady time"
"""Name of the small value in the store."""
RETRY_US = 10_000_000
"""Delay in microseconds before a value that a full disk refused is written again."""
LOOK_US = 1_000_000
"""Interval of checks for a due write, in microseconds."""


class SteadyClock:
    """Steady clock of one life of a node. Node thread only."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._look_us = 0
        """Time of the next check for a due write."""
        kept = store.get_meta(_NAME)
        self._time = SteadyTime(1000 * clock.now_ms(), clock.wall_us(), clock.boot(), kept)
        self._keep()

    def us(self, now_ms: int) -> int:
        """Return microseconds since 1970-01-01 UTC: the wall clock without its steps."""
        now_us = 1000 * now_ms
        steady_us = self._time.read(now_us, clock.wall_us())
        if now_us >= self._look_us:
            self._look_us = now_us + (RETRY_US if self._time.is_due else LOOK_US)
            self._keep()
        return steady_us

    def _keep(self) -> None:
        """Store a step of the wall clock, or a boot of the machine, for the next life."""
        if not self._time.is_due:
            return
        try:
            self._store.put_meta(_NAME, self._time.image())
        except StoreFull as error:
            log.warning("what this node knows of its clocks is not kept: %s", error)
        else:
            self._time.on_kept()
