"""Elections one after the other: slow trips and disks, and nobody leads for long.

What random faults at any time hardly ever meet: two candidates of one term, voters that restart
between two requests for their votes, logs of several leaders that were never committed.
"""

from __future__ import annotations

from collections.abc import Callable
from unittest.mock import patch

from mirrorq.cluster.raft import snapshot_pages
from mirrorq.cluster.raft.messages import ProposeVoters
from mirrorq.protocol.identities import StoreId

from .cluster import Cluster, Node

ROUNDS = 60
SPANS_MS = (3, 10, 30, 60, 120, 250, 400)


class Storm:
    """One seed. Its checkers are those of `Cluster`."""

    trip_ms_max = 60
    is_fifo = True

    def __init__(self, seed: int, count: int) -> None:
        trips = {"trip_ms_max": self.trip_ms_max, "is_fifo": self.is_fifo}
        self.cluster = Cluster(seed, commit_ms_max=40, **trips)
        self.random = self.cluster.random
        stores = tuple(StoreId(name, 1) for name in "abcdefg"[:count])
        for store in stores:
            self.cluster.add(store, stores)
        self.number = 0

    def run(self) -> None:
        for _ in range(ROUNDS):
            self.random.choice(self.faults())()
            self.propose()
            self.cluster.run(self.random.choice(SPANS_MS))

    def faults(self) -> tuple[Callable[[], None], ...]:
        """One of these at a time; those that stand twice come twice as often."""
        return (self.bounce, self.bounce, self.end_leader, self.split, self.mend)

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


class Disorder(Storm):
    """Messages overtake each other, and old ones arrive when nobody expects them any more."""

    trip_ms_max = 150
    is_fifo = False


class Turnover(Storm):
    """Whoever believes to lead changes the voters all the time, alone or not."""

    def faults(self) -> tuple[Callable[[], None], ...]:
        return (*super().faults(), self.change, self.change, self.change)

    def change(self) -> None:
        for node in self.leaders():
            for _ in range(self.random.randint(1, 3)):
                voters = node.core.voters
                store = self.random.choice(list(self.cluster.nodes))
                new = [one for one in voters if one != store]
                if store not in voters:
                    new.append(store)
                self.number += 1
                if len(new) > 1:
                    self.cluster.step(node, ProposeVoters(self.number, tuple(new)))


class Copying(Storm):
    """One replica is left behind, and gets snapshots of many pages, a few at a time, while leaders
    change, make later snapshots, and it is restarted."""

    trip_ms_max = 20

    def run(self) -> None:
        with patch.object(snapshot_pages, "BYTES_IN_FLIGHT_MAX", 8):
            super().run()
            self.mend()
            self.cluster.run(5000)
        applied = {node.core.applied_index for node in self.cluster.running()}
        assert len(applied) == 1, f"a replica does not catch up: {applied}"

    def faults(self) -> tuple[Callable[[], None], ...]:
        return (self.leave_behind, self.leave_behind, self.mend, self.end_leader, self.bounce_one)

    def leave_behind(self) -> None:
        """All but one go on for a while, and throw away what it lacks."""
        behind = self.random.choice(list(self.cluster.nodes))
        others = [store for store in self.cluster.nodes if store != behind]
        self.cluster.cut.clear()
        self.cut([behind], others)
        for _ in range(3):
            self.propose()
            self.cluster.run(300)
            for node in self.cluster.running():
                self.cluster.compact(node)
        self.cluster.run(100)
        self.mend()
        self.cluster.loss = self.random.choice((0.0, 0.0, 0.1))

    def bounce_one(self) -> None:
        node = self.random.choice(self.cluster.running())
        self.cluster.crash(node.store)
        self.cluster.start(node.store)

    def mend(self) -> None:
        super().mend()
        self.cluster.loss = 0.0
