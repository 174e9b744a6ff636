"""Random changes of policies and masters: a fault that a swarm can call, and its end.

faults = PolicyFaults(cluster, random, "orders")
faults.change()      # as often as wanted, in the safety phase
faults.end()         # after healing: no policy is left, copies go everywhere again
"""

from __future__ import annotations

from random import Random
from typing import Any

from mirrorq.engine_events import Ask
from mirrorq.messages import ClearPolicy, Rebalance, SetPolicy, TransferMaster
from mirrorq.policy import parse, to_text
from mirrorq.testing.cluster import SimulatedCluster

__all__ = ["PolicyFaults"]

NAMES = ("p1", "p2")
UNHEARD = 0
"""Token of an Ask whose answer nobody waits for."""
END_MS = 30_000


class PolicyFaults:
    """Sets, clears, transfers and rebalances, for one queue of a cluster."""

    def __init__(self, cluster: SimulatedCluster, random: Random, queue: str) -> None:
        self.changes = 0
        self._cluster = cluster
        self._random = random
        self._queue = queue

    def change(self) -> None:
        """Ask a node that runs for something; whether it comes about is left open."""
        running = self._cluster.running
        if running:
            self.changes += 1
            self._cluster.tell(self._random.choice(running), Ask(UNHEARD, self._command()))

    def _command(self) -> SetPolicy | ClearPolicy | TransferMaster | Rebalance:
        random = self._random
        kind = random.random()
        if kind < 0.45:
            policy = parse(random.choice(NAMES), "", self._definition(), random.randint(0, 1))
            return SetPolicy(policy.name, to_text(policy))
        if kind < 0.6:
            return ClearPolicy(random.choice(NAMES))
        if kind < 0.95:
            return TransferMaster(self._queue, random.choice(tuple(self._cluster.nodes)))
        return Rebalance()

    def _definition(self) -> dict[str, Any]:
        names = list(self._cluster.nodes)
        mode = self._random.choice(("all", "exactly", "nodes"))
        if mode == "exactly":
            return {"ha-mode": mode, "ha-params": self._random.randint(1, len(names))}
        if mode == "nodes":
            count = self._random.randint(1, len(names))
            return {"ha-mode": mode, "ha-params": self._random.sample(names, count)}
        return {"ha-mode": mode}

    def end(self) -> None:
        """Take every policy away; time passes until each running node knows."""
        cluster = self._cluster
        for name in NAMES:
            cluster.ask(cluster.running[0], ClearPolicy(name), END_MS)
        cluster.run_until(
            lambda: not any(cluster.engine(name).catalog.policies() for name in cluster.running),
            END_MS,
        )
