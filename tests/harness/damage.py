"""Bytes that change on simulated disks, for a swarm.

A frame of messages changes on the disk of a running member: whoever reads it there must see that,
fetch it from a member that has it whole, and serve all in order. A checkpoint, or the log behind
it, changes while its node is down: it must lead nobody, and take the queue anew.

Never the last whole copy, as far as the simulator knows: there is then nothing that a checker
could ask for. So disks are replaced only while none is damaged (`Faults`), and runs in which
policies take copies away have none of this.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from random import Random

from harness.cluster import SimulatedCluster
from mirrorq.protocol.views import View

__all__ = ["ByteFaults"]

STEPS_MS = (20, 100, 400)
BROKEN_SHARE = 0.15
"""Of the changes: those to a copy that nobody can read then."""
DOWN_MS = (10, 500, 3000)


class ByteFaults:
    """Of one run.

    Args:
        queues: the ids of those that there are now.
        is_well: whether all nodes run and have all queues in sync.
        restart: starts a node again, unless it is not to.
    """

    def __init__(
        self,
        cluster: SimulatedCluster,
        random: Random,
        queues: Callable[[], Sequence[int]],
        counts: Counter[str],
        is_well: Callable[[], bool],
        restart: Callable[[str], None],
    ) -> None:
        self._cluster = cluster
        self._random = random
        self._queues = queues
        self._counts = counts
        self._is_well = is_well
        self._restart = restart
        self._is_over = False

    def start(self) -> None:
        self._tick()

    def stop(self) -> None:
        self._is_over = True

    def _tick(self) -> None:
        if self._is_over:
            return
        queues = self._queues()
        view = self._cluster.view(self._random.choice(queues)) if queues else None
        queue_id = next((q for q in queues if self._cluster.view(q) == view), 0)
        if view is not None and queue_id:
            if self._random.random() < BROKEN_SHARE:
                self._break_copy(queue_id, view)
            else:
                self._flip(queue_id, view)
        self._cluster.after(self._random.choice(STEPS_MS), self._tick)

    def _holders(self, view: View) -> list[str]:
        """The nodes in sync, on the disks that the view names."""
        nodes = self._cluster.nodes
        ids = [member.id for member in view.members if member.in_sync]
        return [one.node for one in ids if nodes[one.node].disk.store == one.store]

    def _flip(self, queue_id: int, view: View) -> None:
        """A frame changes that another member in sync has whole; none that is still to be applied
        at a start."""
        holders = self._holders(view)
        if len(holders) < 2:
            return
        victim, *others = self._random.sample(holders, len(holders))
        disks = {name: self._cluster.nodes[name].disk.queues.get(queue_id) for name in holders}
        files = disks[victim]
        if files is None:
            return
        keys = [
            key
            for key, entry in files.frames.items()
            if key not in files.damaged and entry.lsn <= files.state_lsn
        ]
        if not keys:
            return
        key = self._random.choice(keys)
        rest = [one for name in others if (one := disks[name]) is not None]
        rest = [one for one in rest if not one.image(queue_id).broken]
        if any(key in one.frames and key not in one.damaged for one in rest):
            self._counts["changed byte in a frame"] += 1
            self._cluster.damage(victim, queue_id, key)

    def _break_copy(self, queue_id: int, view: View) -> None:
        """A node ends, and starts again with a copy that it cannot read."""
        holders = self._holders(view)
        if len(holders) < 2 or self._cluster.is_damaged or not self._is_well():
            return  # what is whole here may be so nowhere else
        victim = self._random.choice(holders)
        self._cluster.kill(victim)
        files = self._cluster.nodes[victim].disk.queues.get(queue_id)
        if files is not None:
            tail = [key for key, one in files.frames.items() if one.lsn > files.state_lsn]
            if tail and self._random.random() < 0.5:
                self._cluster.damage(victim, queue_id, self._random.choice(tail))
            else:
                self._cluster.damage_state(victim, queue_id)
            self._counts["changed byte in a copy"] += 1
        self._cluster.after(self._random.choice(DOWN_MS), self._restart, victim)
