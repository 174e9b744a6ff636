"""Queues that go with somebody, for a swarm: what exclusive ones, auto-delete ones and those of one
connection have in common. `fleeting` and `owned` say who comes and goes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from random import Random

from harness.cluster import SimulatedCluster
from harness.load import Life
from harness.workload import Attempt, Consumer, SimulatedHandle, end_attempts, packer
from mirrorq.api.publish_options import PLAIN
from mirrorq.session.calls import Failed, Output, Put, Stored

__all__ = ["ANSWER_MS", "Guest", "Visits"]

LOOK_MS = 50
IN_FLIGHT_MAX = 10
ANSWER_MS = 10_000
"""Who has heard nothing of its declaration by then waits no longer."""


class Guest(Consumer):
    """One handle that puts and consumes."""

    open_count = 0
    """Puts without an outcome."""
    _sent = 0

    def publish(self) -> None:
        """Put a few more."""
        if not self.is_alive or self.open_count >= IN_FLIGHT_MAX:
            return
        size = self.random.randint(1, 4)
        bodies = [b"%s/%d" % (self.name.encode(), self._sent + i + 1) for i in range(size)]
        self._sent += size
        self.open_count += size
        now_ms = self.cluster.now_ms
        self.journal.attempts.update({body: Attempt(body, put_ms=now_ms) for body in bodies})
        pack = packer(bodies, PLAIN)
        self.session.put(Put(bodies, size, sum(map(len, bodies)), pack, False))
        self.poke()

    def take(self, outputs: list[Output]) -> None:
        super().take(outputs)
        for output in outputs:
            if isinstance(output, Stored | Failed):
                self.open_count -= output.count
                end_attempts(self.journal, output, self.cluster.now_ms)


class Visits:
    """All such queues of a run."""

    def __init__(
        self, cluster: SimulatedCluster, random: Random, counts: Counter[str], *, pace: int = 1
    ) -> None:
        self.cluster = cluster
        self.random = random
        self.lives: list[Life] = []
        self.wrong: list[str] = []
        self._counts = counts
        self._pace = pace
        self._is_quiet = False
        self._is_draining = False

    def start(self) -> None:
        self._tick()

    def quiet_down(self) -> None:
        """Nobody puts any more, and nobody comes."""
        self._is_quiet = True

    def drain(self) -> None:
        """All is well again: what is there is taken, then all leave."""
        self._is_draining = True

    @property
    def is_over(self) -> bool:
        """Every queue is gone, on all nodes, and nothing is asked for."""
        raise NotImplementedError

    def _tick(self) -> None:
        self._look()
        self.cluster.after(LOOK_MS * (1 if self._is_quiet else self._pace), self._tick)

    def _look(self) -> None:
        """At all queues, and whether another one comes."""
        raise NotImplementedError

    def _nodes(self) -> list[str]:
        """Where queues can be declared now."""
        nodes = self.cluster.nodes
        return [name for name in self.cluster.running if not nodes[name].witness]

    def _is_deleted(self, life: Life) -> bool:
        cluster = self.cluster
        return any(
            cluster.engine(name).catalog.is_deleted(life.queue_id) for name in cluster.running
        )

    def _is_clear(self, master: str, node: str) -> bool:
        """Whether nothing is in the way between a queue's master and a handle's node."""
        cluster, now_ms, network = self.cluster, self.cluster.now_ms, self.cluster.network
        if any(cluster.nodes[name].is_impaired(now_ms) for name in (master, node)):
            return False
        if master == node:
            return True
        links = (network.link(master, node), network.link(node, master))
        return not any(link.is_impaired(now_ms) for link in links)

    def _is_used_up(self, life: Life, master: str, handles: Iterable[SimulatedHandle]) -> bool:
        """Whether one of these can take from the queue, nothing is in it, and all is answered."""
        replica = self.cluster.engine(master).replicas[life.queue_id]
        sessions = [handle._session_id for handle in handles]
        is_seated = replica.master is not None and any(
            key[0] in sessions for key in replica.master.dispatch.consumers.by_key
        )
        has_open = any(a.state == "open" for a in life.journal.attempts.values()) or any(
            d.acked == "open" for d in life.journal.deliveries
        )
        return is_seated and not replica.state.live and not has_open
