"""Random changes of policies and masters: a fault that a swarm can call, and its end.

faults = PolicyFaults(cluster, random, lambda: ["orders"])
faults.change()      # as often as wanted, in the safety phase
faults.end()         # after healing: no policy is left, copies go everywhere again
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from harness.cluster import SimulatedCluster
from mirrorq.engine.events import Ask
from mirrorq.protocol.commands import (
    CatalogCommand,
    ClearPolicy,
    Rebalance,
    SetPolicy,
    Synchronise,
    TransferMaster,
)
from mirrorq.protocol.policy import parse, to_text

__all__ = ["PolicyFaults"]

NAMES = ("p1", "p2")
UNHEARD = 0
"""Token of an Ask whose answer nobody waits for."""
END_MS = 30_000
SHARE = 0.3
"""How often a policy says something of each group of keys."""


class PolicyFaults:
    """Sets, clears, transfers, synchronises and rebalances, for the queues of a cluster."""

    def __init__(
        self,
        cluster: SimulatedCluster,
        random: Random,
        queues: Callable[[], Sequence[str]],
        *,
        with_limits: bool = False,
        dead: str = "",
        may_lose: bool = False,
    ) -> None:
        """Begin with no policy.

        Args:
            queues: the names of the queues that there are.
            with_limits: policies also limit how many messages there are, and how long and how
                often they are there to be had.
            dead: a queue, matched by no policy, to which messages may go that end so.
            may_lose: most policies let a copy that is not in sync be promoted.
        """
        self.counts: Counter[str] = Counter()
        """What was asked for -> how often."""
        self.endings: dict[str, None] = {}
        """Words of `Onlooker.ended` that some policy of this run has allowed."""
        self._cluster = cluster
        self._random = random
        self._queues = queues
        self._with_limits = with_limits
        self._dead = dead
        self.may_lose = may_lose

    @property
    def changes(self) -> int:
        return self.counts.total()

    def change(self) -> None:
        """Ask a node that runs for something; whether it comes about is left open."""
        running = self._cluster.running
        if running:
            command = self._command()
            self.counts[type(command).__name__] += 1
            self._cluster.tell(self._random.choice(running), Ask(UNHEARD, command))

    def _command(self) -> CatalogCommand:
        random = self._random
        kind = random.random()
        if kind < 0.45:
            definition = self._definition()
            policy = parse(random.choice(NAMES), self._pattern(), definition, random.randint(0, 1))
            return SetPolicy(policy.name, to_text(policy))
        if kind < 0.6:
            return ClearPolicy(random.choice(NAMES))
        if kind < 0.7:
            return Synchronise(random.choice(self._queues()), random.random() < 0.7)
        if kind < 0.95:
            nodes = tuple(self._cluster.nodes)
            return TransferMaster(random.choice(self._queues()), random.choice(nodes))
        return Rebalance()

    def _pattern(self) -> str:
        return self._random.choice(("^q", *self._queues()))

    def _definition(self) -> dict[str, Any]:
        definition = self._copies()
        groups = [self._service]
        if self._with_limits:
            groups += [self._length, self._life]
        for group in groups:
            if self._random.random() < SHARE:
                definition |= group()
        if self.may_lose and self._random.random() < 0.8:
            definition["ha-promote-on-failure"] = "always"
        if self._dead and self._random.random() < 0.6:
            definition["dead-letter-queue"] = self._dead
            self.endings["sent on"] = None
        return definition

    def _copies(self) -> dict[str, Any]:
        random = self._random
        names = list(self._cluster.nodes)
        mode = random.choice(("all", "exactly", "nodes"))
        definition: dict[str, Any] = {"ha-mode": mode}
        if mode == "exactly":
            definition["ha-params"] = random.randint(1, len(names))
        elif mode == "nodes":
            definition["ha-params"] = random.sample(names, random.randint(1, len(names)))
        copies = definition.get("ha-params", names)
        count = copies if isinstance(copies, int) else len(copies)
        if count > 1 and random.random() < SHARE:
            definition["min-in-sync"] = random.randint(2, min(count, 3))
        if random.random() < (2 * SHARE if self.may_lose else SHARE):
            definition["ha-sync-mode"] = "manual"
        if random.random() < SHARE:
            definition["ha-sync-batch-size"] = random.choice((1, 20))
        return definition

    def _service(self) -> dict[str, Any]:
        return {"single-active-consumer": True}

    def _length(self) -> dict[str, Any]:
        random = self._random
        overflow = random.choice(("block", "reject-publish", "drop-head"))
        if overflow == "drop-head":
            self.endings["dropped"] = None
        key, least = random.choice((("max-length", 5), ("max-length-bytes", 60)))
        return {key: random.choice((least, 5 * least)), "overflow": overflow}

    def _life(self) -> dict[str, Any]:
        random = self._random
        if random.random() < 0.5:
            self.endings["expired"] = None
            return {"message-ttl": random.choice((0, 100, 2000))}
        self.endings["discarded"] = None
        return {"delivery-limit": random.randint(0, 3)}

    def end(self) -> None:
        """Take every policy away; time passes until each running node knows."""
        cluster = self._cluster
        # What was asked of a node that had no leader may be done as late as now (seed 2810).
        cluster.run_until(
            lambda: not any(cluster.engine(n).requests.is_open(SetPolicy) for n in cluster.running),
            END_MS,
        )
        for name in NAMES:
            cluster.ask(cluster.running[0], ClearPolicy(name), END_MS)
        cluster.run_until(
            lambda: not any(cluster.engine(name).catalog.policies() for name in cluster.running),
            END_MS,
        )
