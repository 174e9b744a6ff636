"""Faults of a swarm that change who is in the cluster: nodes join, stop for good, are forgotten,
and join again under the names that they had.

    changes = MembershipFaults(cluster, random)
    changes.join()          # a node with an empty disk joins through one that runs
    changes.forget()        # one of those is forgotten, through one that runs
    changes.retire()        # one that had joined is killed for good

Each does one random step of its kind, or nothing where there is none to do. What is refused is
as good as what is done: the checkers judge what comes of it. Only nodes that have joined are
retired; `is_settled` says whether everybody who is to be in the cluster is.
"""

from __future__ import annotations

from random import Random

from harness.cluster import SimulatedCluster
from mirrorq.engine.events import Ask
from mirrorq.protocol.commands import RemoveNode
from mirrorq.protocol.identities import StoreId

__all__ = ["MembershipFaults"]

NODES_MAX = 6
FIRST_TOKEN = 1 << 40
"""Of questions that nobody waits for."""


class MembershipFaults:
    """Joins and removals of one run."""

    def __init__(self, cluster: SimulatedCluster, random: Random) -> None:
        self._cluster = cluster
        self._random = random
        self._number = 0
        self._token = FIRST_TOKEN
        self._asked: dict[str, list[tuple[str, int, int]]] = {}
        """Retired node -> who was asked to forget it: (node, its life, token)."""
        self.retired: dict[str, None] = {}
        """Killed for good: not to be started again, forgotten or to be forgotten."""
        self.returned = 0
        """Nodes that joined under the name of one that was forgotten."""

    def join(self) -> bool:
        """A node with an empty disk joins through one or two that run, under the name of one that
        was forgotten if there is one. True: it was done."""
        cluster = self._cluster
        running = [name for name in cluster.running if name not in self.retired]
        if not running or len(cluster.nodes) - len(self.retired) >= NODES_MAX:
            return False
        name = self._free_name()
        through = self._random.sample(running, min(len(running), self._random.randint(1, 2)))
        cluster.add(name, *through, witness=self._random.random() < 0.2)
        cluster.start(name)
        return True

    def _free_name(self) -> str:
        """Of one that everybody has forgotten, and that nobody is still to forget; or a new one."""
        for name in self.retired:
            if not self._is_known(name) and not self._is_asked_for(name):
                del self.retired[name]
                self._cluster.remove(name)
                self.returned += 1
                return name
        self._number += 1
        return f"n{self._number}"

    def _is_known(self, name: str) -> bool:
        """Whether some node's disk may have it: one that does not run may come back with it."""
        cluster = self._cluster
        others = [one for one in cluster.nodes if one not in self.retired]
        return any(one not in cluster.running for one in others) or any(
            cluster.engine(one).catalog.node(name) is not None
            or any(voter.node == name for voter in cluster.engine(one).voters)
            for one in others
        )

    def _is_asked_for(self, name: str) -> bool:
        """Whether a request to forget it is still under way: it would meet who comes next."""
        nodes = self._cluster.nodes
        return any(
            node in nodes and nodes[node].life == life and token not in nodes[node].answers
            for node, life, token in self._asked.get(name, ())
        )

    def forget(self) -> bool:
        """Somebody asks for one that is gone for good to be forgotten. True: it was done."""
        if not (self._cluster.running and self.retired):
            return False
        self._ask(self._random.choice(tuple(self.retired)))
        return True

    def retire(self) -> bool:
        """One that had joined, in sync with others, is killed and will not come back. True: it
        was done."""
        cluster = self._cluster
        joined = [
            name
            for name in cluster.running
            if cluster.nodes[name].joins is not None and self._is_spare(name)
        ]
        if joined:
            name = self._random.choice(joined)
            cluster.kill(name)
            self.retired[name] = None
        return bool(joined)

    def press(self) -> None:
        """At the end of a run: ask again for all that are to be forgotten."""
        for name in self.retired:
            self._ask(name)

    def is_settled(self) -> bool:
        """Whether running nodes agree on a cluster of exactly those who are to be in it."""
        cluster = self._cluster
        wanted = {
            StoreId(name, node.disk.store)
            for name, node in cluster.nodes.items()
            if name not in self.retired
        }
        return all(
            set(cluster.engine(name).voters) == wanted
            and {node.name for node in cluster.engine(name).catalog.nodes()}
            == {store.node for store in wanted}
            for name in cluster.running
        )

    def _ask(self, name: str) -> None:
        through = [one for one in self._cluster.running if one not in self.retired]
        if through:
            self._token += 1
            node = self._random.choice(through)
            asked = (node, self._cluster.nodes[node].life, self._token)
            self._asked.setdefault(name, []).append(asked)
            self._cluster.tell(node, Ask(self._token, RemoveNode(name)))

    def _is_spare(self, name: str) -> bool:
        """Whether no queue has its only copy in sync there, and a majority is left without it:
        of the voters that anybody knows, for who has joined may not have heard of others yet."""
        cluster = self._cluster
        views = [cluster.view(record.id) for record in cluster.engine(name).catalog.queues()]
        only = any(
            all(member.id.node == name for member in view.members if member.in_sync)
            for view in views
            if view is not None
        )
        left = set(cluster.running) - {name}
        return not only and all(
            2 * sum(voter.node in left for voter in voters) > len(voters)
            for voters in (cluster.engine(one).voters for one in cluster.running)
        )
