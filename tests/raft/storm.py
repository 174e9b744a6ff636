"""Elections one after the other: slow trips and disks, and nobody leads for long.

What random faults at any time hardly ever meet: two candidates of one term, voters that restart
between two requests for their votes, logs of several leaders that were never committed.
"""

from __future__ import annotations

from mirrorq.messages import StoreId

from .cluster import Cluster, Node

ROUNDS = 60
SPANS_MS = (3, 10, 30, 60, 120, 250, 400)


class Storm:
    """One seed. Its checkers are those of `Cluster`."""

    def __init__(self, seed: int, count: int) -> None:
        self.cluster = Cluster(seed, commit_ms_max=40, trip_ms_max=60)
        self.random = self.cluster.random
        stores = tuple(StoreId(name, 1) for name in "abcdefg"[:count])
        for store in stores:
            self.cluster.add(store, stores)
        self.number = 0

    def run(self) -> None:
        for _ in range(ROUNDS):
            self.random.choice((self.bounce, self.bounce, self.end_leader, self.split, self.mend))()
            self.propose()
            self.cluster.run(self.random.choice(SPANS_MS))

    def bounce(self) -> None:
        """Some restart at once: what was not synced is lost, hardly any time is."""
        for node in self.cluster.running():
            if self.random.random() < 0.4:
                self.cluster.crash(node.store)
                self.cluster.start(node.store)

    def end_leader(self) -> None:
        """Whoever believes to lead is killed, or hears nobody from now on."""
        for node in self.leaders():
            if self.random.random() < 0.5:
                self.cluster.crash(node.store)
                self.cluster.start(node.store)
            else:
                others = [store for store in self.cluster.nodes if store != node.store]
                self.cut([node.store], others)

    def leaders(self) -> list[Node]:
        return [node for node in self.cluster.running() if node.core.is_leader]

    def split(self) -> None:
        stores = list(self.cluster.nodes)
        self.random.shuffle(stores)
        place = self.random.randint(1, len(stores) - 1)
        self.cluster.cut.clear()
        self.cut(stores[:place], stores[place:])

    def cut(self, one: list[StoreId], other: list[StoreId]) -> None:
        self.cluster.cut |= {pair for a in one for b in other for pair in ((a, b), (b, a))}

    def mend(self) -> None:
        self.cluster.cut.clear()

    def propose(self) -> None:
        for node in self.leaders():
            for _ in range(self.random.randint(0, 3)):
                self.number += 1
                self.cluster.propose(node, self.number)
