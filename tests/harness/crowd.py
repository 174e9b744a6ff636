"""Hundreds of small queues beside the others of a swarm: what a node does for all of them, it does
in portions.

A few of them get messages while faults go on. In the end all have a master and every copy in sync,
and each message that was confirmed is there.
"""

from __future__ import annotations

from collections import Counter
from random import Random

from harness.cluster import SimulatedCluster
from harness.load import Life
from harness.visits import Guest
from harness.workload import Consumer, Journal, Place
from mirrorq.engine.events import Ask
from mirrorq.protocol.commands import DeclareQueue

QUEUE_COUNTS = (60, 120, 250)
PUT_MS = 150
"""Between two queues that get messages."""
CONSUMER_MS = 2000
"""A consumer that has not ended its queue by then is replaced: its node may have died."""


class Crowd:
    """All of them."""

    def __init__(
        self, cluster: SimulatedCluster, random: Random, counts: Counter[str], nodes: list[str]
    ) -> None:
        self.cluster = cluster
        self.random = random
        self.lives: list[Life] = []
        """Of the queues that got messages."""
        self._used: dict[int, Life] = {}
        self._is_quiet = False
        self._handles: list[Consumer] = []
        self._ends: dict[int, tuple[Consumer, int]] = {}
        """Queue -> who empties it, since when."""
        self.count = random.choice(QUEUE_COUNTS)
        for number in range(self.count):
            node = random.choice(nodes)
            name = f"crowd-{number}"
            command = DeclareQueue(name, True, False, False, node, None, ())
            cluster.tell(node, Ask(cluster.new_token(), command))
        counts["queues of a crowd"] += self.count

    def start(self) -> None:
        """Messages come now and then."""
        if self._is_quiet:
            return
        running = self._nodes()
        ids = self.queue_ids()
        if running and ids:
            self._put(self.random.choice(running), self.random.choice(ids))
        self.cluster.after(PUT_MS, self.start)

    def _put(self, node: str, queue_id: int) -> None:
        life = self._used.get(queue_id)
        if life is None:
            life = self._used[queue_id] = Life(queue_id, Journal())
            self.lives.append(life)
        name = f"crowd {queue_id} at {self.cluster.now_ms}"
        guest = Guest(Place(self.cluster, node, queue_id, name, self.random), life.journal)
        guest.publish()
        self._handles.append(guest)

    def queue_ids(self) -> list[int]:
        """Return the ids of those that are declared, as a node that runs knows them."""
        for name in self.cluster.running:
            records = self.cluster.engine(name).catalog.queues()
            return [one.id for one in records if one.name.startswith("crowd-")]
        return []

    def quiet_down(self) -> None:
        """No more messages."""
        self._is_quiet = True

    def drain(self) -> None:
        """Have each queue that got messages emptied."""
        now_ms, running = self.cluster.now_ms, self._nodes()
        for handle in self._handles:
            if handle.is_open and not handle.is_alive:
                handle.die()
        for life in self.lives:
            known = self._ends.get(life.queue_id)
            if known is None or (now_ms > known[1] + CONSUMER_MS and not known[0].is_alive):
                node = self.random.choice(running)
                name = f"end of {life.queue_id} at {now_ms}"
                place = Place(self.cluster, node, life.queue_id, name, self.random)
                one = Consumer(place, life.journal, 0.0)
                self._ends[life.queue_id] = one, now_ms
                self._handles.append(one)

    def is_drained(self, copies: int) -> bool:
        """Whether all are empty, and have so many copies in sync."""
        self.drain()
        return all(self._is_empty(life) for life in self.lives) and all(
            len(self.cluster.in_sync(queue_id)) == copies for queue_id in self.queue_ids()
        )

    def _is_empty(self, life: Life) -> bool:
        master = self.cluster.master(life.queue_id)
        if master is None or any(a.state == "open" for a in life.journal.attempts.values()):
            return False
        return not self.cluster.engine(master).replicas[life.queue_id].state.live

    def situation(self) -> str:
        """Say what is left, for a complaint."""
        left = [life.queue_id for life in self.lives if not self._is_empty(life)]
        behind = {one: self.cluster.in_sync(one) for one in self.queue_ids()}
        return f"crowd: not empty {left[:5]}, in sync {list(behind.items())[:5]}"

    def _nodes(self) -> list[str]:
        nodes = self.cluster.nodes
        return [name for name in self.cluster.running if not nodes[name].witness]
