"""Rules of the rail that are left out: its marks, its log, and when it has a queue."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import harness.cluster
from harness.explore_process import Hears, _Work
from harness.mutations.registry import Patch, named
from harness.rail import RAW, RECEIVED, Handed, Rail
from mirrorq.node.ending import Ending, endings
from mirrorq.protocol.ring import JoinerDurable
from mirrorq.replication.events import ReplicaEvent
from mirrorq.replication.rail import RailGuard


@named("rail marks before its sync")
def _early_mark() -> Sequence[Patch]:
    real = _Work._hear

    def hear(self: _Work, event: Hears) -> None:
        real(self, event)
        process = self._process
        for queue_id, arm in process.rail.queues.items():
            mark = JoinerDurable(queue_id, arm.epoch, arm.after)
            self._send.append((arm.master.node, process.member, mark))

    return [(_Work, "_hear", hear)]


@named("rail's log cut before the files have it")
def _early_cut() -> Sequence[Patch]:
    real = _Work._take_over

    def take_over(self: _Work) -> None:
        real(self)
        self._process.records = []

    return [(_Work, "_take_over", take_over)]


@named("epoch begun while the rail has the queue")
def _unheld() -> Sequence[Patch]:
    def holds(self: RailGuard, event: ReplicaEvent) -> bool:
        return False

    return [(RailGuard, "holds", holds)]


@named("rail takes on while it is asked to stop")
def _takes_on() -> Sequence[Patch]:
    real = Rail.disarm

    def disarm(self: Rail, queue_id: int) -> None:
        arm = self.queues.get(queue_id)
        real(self, queue_id)
        if arm is not None:
            self.queues[queue_id] = arm

    return [(Rail, "disarm", disarm)]


@named("what is marked at receipt comes as any message")
def _unmarked() -> Sequence[Patch]:
    """It waits behind the view that has the rail's queue asked back, and is of the past then."""
    real = Rail.take

    def take(self: Rail) -> list[Handed]:
        return [one._replace(kind=RAW) if one.kind == RECEIVED else one for one in real(self)]

    return [(Rail, "take", take)]


@named("a failed node's close ends its logs")
def _ended_in_order() -> Sequence[Patch]:
    """What its rail has written, and it has not taken, is not read at the next start."""

    def as_in_order(has_failed: Callable[[], bool]) -> Iterator[Ending]:
        for step in endings(has_failed):
            yield Ending.CLOSE_STORE if step is Ending.ABANDON_STORE else step

    return [(harness.cluster, "endings", as_in_order)]
