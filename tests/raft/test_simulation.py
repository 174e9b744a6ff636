"""Random runs of several cores: safety at every step, progress after the faults end."""

from __future__ import annotations

from itertools import pairwise

import pytest

from mirrorq.cluster.raft.messages import KIND_COMMAND, PeerDead, ProposeVoters
from mirrorq.protocol.identities import StoreId

from .cluster import Cluster, Node
from .storm import Copying

SEEDS_PER_CASE = 20
FAULT_STEPS = 35


class Run:
    """One seed: faults for a while, then healing."""

    def __init__(self, seed: int, count: int) -> None:
        # Every other run applies what is committed in portions of one.
        self.cluster = Cluster(seed, portion=1 if seed % 2 else 1000)
        self.random = self.cluster.random
        self.stores = tuple(StoreId(name, 1) for name in "abcdefg"[:count])
        for store in self.stores:
            self.cluster.add(store, self.stores)
        # Two that join and leave, and at most one store that is wiped for good.
        self.spares = (StoreId("x", 1), StoreId("y", 1))
        for store in self.spares:
            self.cluster.add(store)
        self.count_min = count
        self.wiped: StoreId | None = None
        self.number = 0

    def faults(self) -> None:
        faults = (
            self.crash,
            self.bounce,
            self.partition,
            self.isolate_leader,
            self.cut_one_way,
            self.lossy,
            self.compact,
            self.change_voters,
            self.change_voters,
            self.wipe,
        )
        for _ in range(FAULT_STEPS):
            self.random.choice(faults)()
            self.propose()
            self.cluster.run(self.random.choice((1, 5, 15, 40, 120, 400)))
            if self.random.random() < 0.35:
                self.heal_links()
            if self.random.random() < 0.5:
                self.restart()
            self.cluster.run(self.random.choice((1, 20, 100, 500)))

    def any_node(self) -> Node | None:
        running = self.cluster.running()
        return self.random.choice(running) if running else None

    def propose(self) -> None:
        leader = self.cluster.leader()
        for node in (leader, self.any_node()):
            for _ in range(self.random.randint(0, 5)):
                self.number += 1
                if node is not None:
                    self.cluster.propose(node, self.number)

    def crash(self) -> None:
        leader = self.cluster.leader()
        node = leader if leader is not None and self.random.random() < 0.5 else self.any_node()
        if node is None:
            return
        self.cluster.crash(node.store)
        for other in self.cluster.running():
            if self.random.random() < 0.5:
                self.cluster.step(other, PeerDead(node.store))

    def bounce(self) -> None:
        """Crash and restart at once: what was not synced is lost, hardly any time is."""
        node = self.any_node()
        if node is not None:
            self.cluster.crash(node.store)
            self.cluster.start(node.store)

    def isolate_leader(self) -> None:
        """A leader goes on alone, with proposals that no majority will hold."""
        leader = self.cluster.leader()
        if leader is None:
            return
        for store in self.cluster.nodes:
            if store != leader.store:
                self.cluster.cut |= {(leader.store, store), (store, leader.store)}
        self.propose()
        self.change_voters()

    def restart(self) -> None:
        for store, node in self.cluster.nodes.items():
            if node.raft is None and store != self.wiped and self.random.random() < 0.7:
                self.cluster.start(store)

    def partition(self) -> None:
        side = [store for store in self.cluster.nodes if self.random.random() < 0.5]
        others = [store for store in self.cluster.nodes if store not in side]
        self.cluster.cut = {(a, b) for a in side for b in others}
        self.cluster.cut |= {(b, a) for a in side for b in others}

    def cut_one_way(self) -> None:
        a, b = self.random.sample(list(self.cluster.nodes), 2)
        self.cluster.cut.add((a, b))

    def heal_links(self) -> None:
        self.cluster.cut.clear()
        self.cluster.loss = 0.0

    def lossy(self) -> None:
        self.cluster.loss = self.random.choice((0.05, 0.3))

    def compact(self) -> None:
        for node in self.cluster.running():
            if self.random.random() < 0.6:
                self.cluster.compact(node)

    def wipe(self) -> None:
        """A store is lost; the node comes back under its name with another one."""
        if self.wiped is not None or self.random.random() < 0.5:
            return
        self.wiped = self.random.choice(self.stores)
        if self.cluster.nodes[self.wiped].raft is not None:
            self.cluster.crash(self.wiped)
        self.cluster.add(StoreId(self.wiped.node, 2))

    def change_voters(self) -> None:
        leader = self.cluster.leader()
        if leader is None:
            return
        voters = leader.core.voters
        if self.wiped in voters and len(voters) >= self.count_min:
            # The old store first, then the new one, never in one step.
            self._propose_voters(leader, [v for v in voters if v != self.wiped])
            return
        joiners = [
            store for store in self.cluster.nodes if store not in voters and store != self.wiped
        ]
        if joiners and (len(voters) < self.count_min or self.random.random() < 0.5):
            self._propose_voters(leader, [*voters, self.random.choice(joiners)])
        elif len(voters) > self.count_min:
            leaver = self.random.choice(voters)
            self._propose_voters(leader, [v for v in voters if v != leaver])

    def _propose_voters(self, leader: Node, voters: list[StoreId]) -> None:
        self.cluster.step(leader, ProposeVoters(0, tuple(voters)))

    def heal(self) -> None:
        self.heal_links()
        for store, node in self.cluster.nodes.items():
            if node.raft is None and store != self.wiped:
                self.cluster.start(store)

    def check_progress(self) -> None:
        """A leader comes up, a new command reaches every voter, and the leader stays."""
        cluster = self.cluster
        assert cluster.run(20_000, self.has_ready_leader), "no leader after healing"
        cluster.run(1_000)
        leader = cluster.leader()
        assert leader is not None
        term = leader.core.term
        self.number += 1
        cluster.propose(leader, self.number)
        command = b"%d" % self.number

        def everywhere() -> bool:
            return all(
                cluster.nodes[voter].catalog.endswith(b";" + command + b";")
                or cluster.nodes[voter].catalog == command + b";"
                for voter in leader.core.voters
                if voter != self.wiped
            )

        assert cluster.run(5_000, everywhere), "a command does not reach every voter"
        cluster.run(2_500)
        is_same = leader.core.is_leader and leader.core.term == term
        assert is_same, "the leader does not stay"

    def has_ready_leader(self) -> bool:
        leader = self.cluster.leader()
        return leader is not None and leader.core.own_term_applied


@pytest.mark.parametrize("case", range(10))
@pytest.mark.parametrize("count", [3, 5])
def test_random_runs_keep_every_invariant_and_recover(count: int, case: int) -> None:
    """No fault breaks a safety property, and after the last one the cluster goes on."""
    for seed in range(case * SEEDS_PER_CASE // 2, (case + 1) * SEEDS_PER_CASE // 2):
        try:
            run = Run(seed, count)
            run.faults()
            run.heal()
            run.check_progress()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}, {count} nodes: {error}") from error


@pytest.mark.parametrize("count", [3, 5])
def test_replicas_that_were_left_behind_get_snapshots_page_by_page(count: int) -> None:
    """Leaders, snapshots and replicas end in the middle: each gets one whole catalog."""
    for seed in range(6):
        try:
            Copying(seed, count).run()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}, {count} nodes: {error}") from error


def test_the_same_seed_gives_the_same_run() -> None:
    """A failure can be replayed: two runs of one seed end in the same state."""
    ends = []
    for _ in range(2):
        run = Run(7, 3)
        run.faults()
        run.heal()
        run.check_progress()
        ends.append((run.cluster.now_ms, run.cluster.applied, run.cluster.leaders))
    assert ends[0] == ends[1]


def test_commands_are_applied_in_the_order_of_their_proposal() -> None:
    """What one leader was given in an order is applied in that order."""
    run = Run(3, 3)
    assert run.cluster.run(5_000, run.has_ready_leader)
    leader = run.cluster.leader()
    assert leader is not None
    for number in range(1, 50):
        run.cluster.propose(leader, number)
    run.cluster.run(1_000)
    numbers = [
        int(entry.data)
        for _, entry in sorted(run.cluster.applied.items())
        if entry.kind == KIND_COMMAND
    ]
    assert len(numbers) == 49
    assert all(a < b for a, b in pairwise(numbers))
