"""Rules of the rail that are left out: its marks, its log, and when it has a queue."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import harness.cluster
from harness.explore_process import Hears, _Work
from harness.mutations.registry import Real, answer, instead
from harness.rail import RAW, RECEIVED, Rail
from mirrorq.node.ending import Ending, endings
from mirrorq.protocol.ring import JoinerDurable
from mirrorq.replication.rail import RailGuard


@instead("rail marks before its sync", _Work, "_hear")
def _early_mark(real: Real, self: _Work, event: Hears) -> None:
    real(self, event)
    process = self._process
    for queue_id, arm in process.rail.queues.items():
        mark = JoinerDurable(queue_id, arm.epoch, arm.after)
        self._send.append((arm.master.node, process.member, mark))


@instead("rail's log cut before the files have it", _Work, "_take_over")
def _early_cut(real: Real, self: _Work) -> None:
    real(self)
    self._process.records = []


answer("epoch begun while the rail has the queue", RailGuard, "holds", False)


@instead("rail takes on while it is asked to stop", Rail, "disarm")
def _takes_on(real: Real, self: Rail, queue_id: int) -> None:
    arm = self.queues.get(queue_id)
    real(self, queue_id)
    if arm is not None:
        self.queues[queue_id] = arm


@instead("what is marked at receipt comes as any message", Rail, "take")
def _unmarked(real: Real, self: Rail) -> Any:
    """It waits behind the view that has the rail's queue asked back, and is of the past then."""
    return [one._replace(kind=RAW) if one.kind == RECEIVED else one for one in real(self)]


@instead("a failed node's close ends its logs", harness.cluster, "endings")
def _ended_in_order(real: Real, has_failed: Callable[[], bool]) -> Iterator[Ending]:
    """What its rail has written, and it has not taken, is not read at the next start."""
    for step in endings(has_failed):
        yield Ending.CLOSE_STORE if step is Ending.ABANDON_STORE else step
