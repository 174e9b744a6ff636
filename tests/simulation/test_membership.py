"""Nodes that join a running cluster and nodes that are forgotten, on virtual time."""

from __future__ import annotations

from copy import deepcopy
from itertools import pairwise
from random import Random

import pytest

from harness.cluster import SimulatedCluster
from harness.membership import MembershipFaults
from harness.rail import RailDisk
from mirrorq.cluster.bootstrap import AdmissionRequest
from mirrorq.engine import engine
from mirrorq.protocol.commands import RemoveNode
from mirrorq.protocol.identities import MemberId, StoreId

from .world import World


def joined(cluster: SimulatedCluster, name: str) -> bool:
    """Whether every running node has it as a voter and in the catalog, with the store it has."""
    store = StoreId(name, cluster.nodes[name].disk.store)
    return all(
        store in cluster.engine(one).voters
        and (record := cluster.engine(one).catalog.node(name)) is not None
        and record.store == store.store
        for one in cluster.running
    )


def forgotten(cluster: SimulatedCluster, name: str, *by: str) -> bool:
    return all(
        cluster.engine(one).catalog.node(name) is None
        and all(voter.node != name for voter in cluster.engine(one).voters)
        for one in by
    )


def forget(world: World, through: str, name: str, *, force: bool = False) -> str:
    """Returns the error's text."""
    return world.cluster.ask(through, RemoveNode(name, 0, force)).text


# --- Joining ------------------------------------------------------------------------------


@pytest.mark.parametrize("through", ["a", "b", "c"])
def test_a_node_joins_under_traffic_through_any_one_peer(through: str, world: World) -> None:
    """It becomes a voter, gets a copy of everything, and nothing is lost meanwhile."""
    world.put("a", 30)
    producer = world.producer("b", 300)
    world.cluster.add("d", through)
    world.cluster.start("d")
    world.until(lambda: joined(world.cluster, "d"))
    world.until(lambda: producer.is_done)
    world.data_nodes = tuple("abcd")
    world.check()


def test_a_standalone_node_becomes_a_cluster_node_by_node() -> None:
    """One that listens and was alone; all four then restart without join, and find each other."""
    world = World("a")
    world.put("a", 10)
    for name, through in (("b", "a"), ("c", "b"), ("d", "c")):
        world.cluster.add(name, through)
        world.cluster.start(name)
        world.until(lambda: joined(world.cluster, name))  # noqa: B023
    world.until_in_sync(*"abcd")
    for name in "abcd":
        world.cluster.kill(name)
        world.cluster.nodes[name].joins = ()
    world.cluster.start()
    world.until_in_sync(*"abcd")
    world.data_nodes = tuple("abcd")
    world.check()


def test_voters_whose_addresses_no_log_has_find_each_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They joined one through the other, and all stopped before what registers them was in a log
    that is left: each knows its neighbours, and tells them of these (seed 28, with unclean
    promotions, in which four of six stayed without a leader)."""
    world = World("a")
    names = "abcdefg"
    for through, name in pairwise(names):
        world.cluster.add(name, through)
        world.cluster.start(name)
        world.until(lambda: joined(world.cluster, name))  # noqa: B023
    world.until_in_sync(*names)
    for name in names:
        world.cluster.kill(name)
        world.cluster.nodes[name].joins = ()
    for place, name in enumerate(names):
        near = names[max(place - 1, 0) : place + 2]
        recorded = {one: f"sim://{one}" for one in near}
        monkeypatch.setattr(engine, "recorded_endpoints", lambda _: recorded)  # noqa: B023
        world.cluster.start(name)
    world.until(lambda: world.cluster.engine("g").leader is not None)
    world.until_in_sync(*names)
    world.data_nodes = tuple(names)
    world.check()


def test_a_joining_node_is_not_stopped_by_the_leaders_death() -> None:
    """The leader is killed at every moment of the joining; it is admitted all the same."""
    for moment_ms in (1, 3, 5, 10, 30, 300):
        world = World()
        leader = world.cluster.engine("a").leader
        assert leader is not None
        through = next(name for name in "abc" if name != leader)
        world.cluster.add("d", through)
        world.cluster.start("d")
        world.cluster.run(moment_ms)
        world.cluster.kill(leader)
        world.cluster.run(3000)
        world.cluster.start(leader)
        world.until(lambda: joined(world.cluster, "d"))  # noqa: B023
        world.data_nodes = tuple("abcd")
        world.check()


def test_a_node_that_a_cut_off_leader_took_in_joins_all_the_same() -> None:
    """It has the leader's log, with its own vote in it: nothing of that was ever committed, and the
    next leader has never heard of it (seed 1324)."""
    taken_in_by_a_cut_off_leader(is_restarted=False)


def test_so_does_one_that_is_restarted_meanwhile() -> None:
    taken_in_by_a_cut_off_leader(is_restarted=True)


def taken_in_by_a_cut_off_leader(*, is_restarted: bool) -> None:
    world = World("abcd")
    leader = world.cluster.engine("a").leader
    assert leader is not None
    others = [name for name in "abcd" if name != leader]
    world.cluster.add("e", leader)
    for other in others:
        world.cluster.cut(leader, other)
    world.cluster.start("e")
    world.cluster.run(500)
    assert world.cluster.engine("e").is_founded
    assert any(voter.node == "e" for voter in world.cluster.engine("e").voters)
    if is_restarted:
        world.cluster.kill("e")
        world.cluster.start("e")
    world.until(lambda: world.cluster.engine(others[0]).leader in others)
    world.cluster.heal_all()
    world.until(lambda: joined(world.cluster, "e"))
    world.data_nodes = tuple("abcde")
    world.check()


@pytest.mark.parametrize("silent", [False, True])
def test_a_newcomer_that_is_cut_off_as_it_is_taken_in_joins_when_the_cut_heals(
    *, silent: bool
) -> None:
    """It is a voter and not registered yet: both sides go on looking for each other (seed 3221)."""
    world = World()
    cluster = world.cluster
    leader = cluster.engine("a").leader
    assert leader is not None
    cluster.add("d", leader)
    cluster.start("d")
    world.until(lambda: cluster.engine("d").is_founded)
    for other in "abc":
        cluster.cut("d", other, silent=silent)
    cluster.run(5000)
    assert cluster.engine(leader).catalog.node("d") is None
    cluster.heal_all()
    world.until(lambda: joined(cluster, "d"))
    world.data_nodes = tuple("abcd")
    world.check()


def test_a_joining_node_that_is_restarted_without_join_still_joins(world: World) -> None:
    """Killed before it was admitted: it founds no cluster of its own."""
    world.cluster.add("d", "a")
    for other in "abc":
        world.cluster.cut(other, "d")
    world.cluster.start("d")
    world.cluster.run(3000)
    assert not world.cluster.engine("d").is_founded
    world.cluster.kill("d")
    world.cluster.nodes["d"].joins = ()
    world.cluster.start("d")
    world.cluster.run(3000)
    assert not world.cluster.engine("d").is_founded
    assert "waits to be admitted" in world.cluster.engine("d").waiting_text()
    world.cluster.heal_all()
    world.until(lambda: joined(world.cluster, "d"))


def test_a_witness_joins_and_holds_nothing() -> None:
    """It votes: two peers that had no majority without each other have one with it."""
    world = World("ab")
    world.cluster.add("w", "b", witness=True)
    world.cluster.start("w")
    world.until(lambda: joined(world.cluster, "w"))
    assert set(world.cluster.in_sync(world.queue_id)) == set("ab")
    world.cluster.kill("a")
    world.until(lambda: world.master == "b")
    world.put("b", 5)


def test_a_node_joins_while_another_is_dead(world: World) -> None:
    """Its vote is needed from the moment on in which it has one: the leader waits for it, and
    the queue goes on."""
    world.cluster.kill("c")
    world.cluster.run(3000)
    term = world.cluster.engine("a")._consensus.raft.term
    world.cluster.add("d", "b")
    world.cluster.start("d")
    world.until_in_sync(*"abd")
    assert world.cluster.engine("a")._consensus.raft.term == term
    world.cluster.start("c")
    world.data_nodes = tuple("abcd")
    world.check()


# --- Leaving ------------------------------------------------------------------------------


def test_a_stopped_node_is_forgotten() -> None:
    """Its vote and its copies go; two of the three left are a majority again."""
    world = World("abcd")
    world.put("a", 10)
    cluster = world.cluster
    assert "node d is alive" in forget(world, "b", "d")
    assert "no node 'x'" in forget(world, "b", "x")
    assert "alive" in forget(world, "b", cluster.engine("b").leader or "")
    cluster.kill("d")
    cluster.run(3000)
    assert forget(world, "b", "d") == ""
    world.until(lambda: forgotten(cluster, "d", *"abc"))
    assert len(cluster.engine("a").voters) == 3
    cluster.kill("a")
    world.until(lambda: world.master in ("b", "c"))
    world.put("b", 5)


def test_a_forgotten_node_that_comes_back_is_told_and_does_no_harm() -> None:
    """With its old store it is kept out by every node; with an empty one it joins anew."""
    world = World("abcd")
    cluster = world.cluster
    cluster.kill("d")
    cluster.run(3000)
    assert forget(world, "a", "d") == ""
    world.until(lambda: forgotten(cluster, "d", *"abc"))
    cluster.start("d")
    cluster.run(5000)
    assert forgotten(cluster, "d", *"abc")
    engine = cluster.engine("d")
    assert engine.leader is None
    assert "it was forgotten" in engine.waiting_text()
    world.put("b", 5)
    cluster.kill("d")
    cluster.wipe("d")
    cluster.start("d")
    world.until(lambda: joined(cluster, "d"))
    world.check()


def set_back(cluster: SimulatedCluster, name: str, copy: RailDisk) -> None:
    """Put an earlier copy in the place of a node's disk, which is opened again."""
    cluster.nodes[name].disk = deepcopy(copy)
    cluster.nodes[name].disk.chance = 1 << 19


@pytest.mark.parametrize("order", ["bac", "bca", "abc", "cab"])
@pytest.mark.parametrize("starts", [1, 3])
def test_a_store_that_was_set_back_is_kept_out(order: str, starts: int, world: World) -> None:
    """B was in sync when all went down, and an earlier copy of its disk is put in its place: it is
    told, however often it is started, and nothing that was confirmed is lost; emptied it joins
    again."""
    cluster = world.cluster
    world.put("a", 5)
    world.until_in_sync(*"abc")
    cluster.kill("b")
    copy = deepcopy(cluster.nodes["b"].disk)
    for _ in range(starts):
        cluster.kill("b")
        cluster.start("b")
        world.until_in_sync(*"abc")
    world.put("a", 5, "later")
    for name in "abc":
        cluster.kill(name)
    set_back(cluster, "b", copy)
    for name in order:
        cluster.start(name)
        cluster.run(5000)
    engine = cluster.engine("b")
    assert "is an earlier copy of itself" in engine.waiting_text()
    assert not engine.is_registered
    world.until(lambda: world.master in ("a", "c"))
    assert world.live(world.master or "") == 10
    world.put("a", 5, "last")
    for _ in range(3):
        cluster.kill("b")
        cluster.start("b")
        cluster.run(5000)
        engine = cluster.engine("b")
        assert "is an earlier copy of itself" in engine.waiting_text()
        assert not engine.is_registered
    cluster.kill("b")
    cluster.wipe("b")
    cluster.start("b")
    world.until(lambda: joined(cluster, "b"))
    world.check()


def test_a_master_that_was_set_back_since_its_start_is_told_of() -> None:
    """B has an earlier copy of its disk and has not started since that was made, so nobody knows
    one from the other. A, which has more of what was confirmed, says so as it drops that."""
    world = World("abw", witnesses="w")
    cluster = world.cluster
    world.put("a", 5)
    world.until_in_sync(*"ab")
    copy = deepcopy(cluster.nodes["b"].disk)
    world.put("a", 5, "later")
    for name in "abw":
        cluster.kill(name)
    set_back(cluster, "b", copy)
    cluster.start("b", "w")
    world.until(lambda: world.master == "b")
    assert world.live("b") == 5
    cluster.start("a")
    world.until_in_sync(*"ab")
    (told,) = (line for line in cluster.trace if "its store is an earlier copy" in line)
    assert "a: queue 'orders': node b is master of the queue without ops" in told
    assert "messages, is dropped and copied again" in told


def test_the_last_copy_is_not_forgotten_unless_forced() -> None:
    """Refused by name; with force the queue is gone, and its name free. What went with a handle
    of the node is no reason."""
    world = World("abw", witnesses="w")
    cluster = world.cluster
    owned = cluster.declare("a", "mine", owner=cluster.new_session("a"))
    cluster.kill("b")
    world.until_in_sync("a")
    world.put("a", 5)
    cluster.kill("a")
    cluster.start("b")
    cluster.run(5000)
    text = forget(world, "w", "a")
    assert "node a has the last copy in sync of 'orders'" in text
    assert cluster.engine("w").catalog.queue(owned) is None
    assert cluster.engine("b").catalog.node("a") is not None
    assert forget(world, "w", "a", force=True) == ""
    world.until(lambda: forgotten(cluster, "a", *"bw"))
    assert cluster.engine("b").catalog.queues() == ()
    assert cluster.in_sync(cluster.declare("b", "orders")) == ("b",)


def test_a_node_is_forgotten_while_others_with_copies_are_down() -> None:
    """B has a copy in sync and does not run: A may go, and B brings the queue back."""
    world = World("abuvw", witnesses="uvw")
    cluster = world.cluster
    world.put("a", 5)
    cluster.kill("a")
    cluster.kill("b")
    cluster.run(5000)
    assert forget(world, "w", "a") == ""
    world.until(lambda: forgotten(cluster, "a", *"uvw"))
    assert cluster.in_sync(world.queue_id) == ("b",)
    cluster.remove("a")
    cluster.start("b")
    world.until(lambda: world.master == "b")
    assert world.live("b") == 5
    world.data_nodes = ("b",)
    world.check()


def test_a_silent_master_is_forgotten_when_its_lease_is_over() -> None:
    """Cut off, it still runs: others have taken over before, and it confirms nothing more."""
    world = World("abcd")
    producer = world.producer("b", 200)
    cluster = world.cluster
    for other in "bcd":
        cluster.cut("a", other, silent=True)
    cluster.run(1500)
    assert forget(world, "b", "a") == ""
    world.until(lambda: forgotten(cluster, "a", *"bcd"))
    world.until(lambda: producer.is_done)
    cluster.heal_all()
    cluster.run(5000)
    assert "it was forgotten" in cluster.engine("a").waiting_text()
    assert forgotten(cluster, "a", *"bcd")
    cluster.kill("a")
    cluster.remove("a")
    world.data_nodes = tuple("bcd")
    world.check()


def test_what_handles_of_a_forgotten_node_hold_comes_back() -> None:
    """Silent to the leader only: the queue's master hears it until it is forgotten (seed 5157, in
    which a consumer of a node that was long dead kept its messages for ever)."""
    world = World("abcd")
    cluster = world.cluster
    leader = cluster.engine("a").leader
    assert leader is not None
    others = [name for name in "abcd" if name != leader]
    master, gone = others[0], others[-1]
    world.queue_id = cluster.declare(master, "more")
    bodies = world.put(master, 5)
    taker = world.taker(gone)
    world.until(lambda: len(taker.held) == 5)
    for other in "abcd":
        if other not in (master, gone):
            cluster.cut(gone, other, silent=True)
    cluster.run(1500)
    assert forget(world, master, gone) == ""
    again = world.taker(master)
    world.until(lambda: len(again.held) == 5)
    assert again.seen == [(body, True) for body in bodies]


def test_forgetting_goes_on_when_the_leader_dies_in_the_middle() -> None:
    """The vote is ended by whoever leads next."""
    for moment_ms in (0, 1, 2, 4, 8):
        world = World("abcde")
        cluster = world.cluster
        cluster.kill("e")
        cluster.run(3000)
        leader = cluster.engine("a").leader
        assert leader is not None
        through = next(name for name in "abcd" if name != leader)
        cluster.after(moment_ms, lambda: cluster.kill(leader))  # noqa: B023
        forget(world, through, "e")
        cluster.run(3000)
        cluster.start(leader)
        world.until(lambda: forgotten(cluster, "e", *"abcd"))  # noqa: B023


def test_stores_of_another_cluster_are_kept_out_by_every_node() -> None:
    """A node that was founded elsewhere, under a name of ours: nobody answers it, leader or not."""
    world = World("abc")
    cluster = world.cluster
    other = SimulatedCluster(("c",), seed=9)
    other.start()
    other.run(3000)
    assert other.engine("c").catalog.cluster != 0
    cluster.kill("c")
    cluster.run(3000)
    ours = cluster.nodes["c"].disk
    cluster.nodes["c"].disk = other.nodes["c"].disk
    cluster.start("c")
    cluster.run(5000)
    for name in "ab":
        said = [line for line in cluster.trace if f"{name}:" in line]
        assert any("does not belong to this cluster" in line for line in said)
    assert world.put("b", 5)
    cluster.kill("c")
    cluster.nodes["c"].disk = ours
    cluster.start("c")
    world.check()


def test_a_store_with_the_log_of_another_cluster_may_not_ask_to_be_a_voter() -> None:
    """One that has a log says whose voters it knows; an empty one knows none."""
    engine = World("abc").cluster.engine("a")
    stranger = MemberId("e", 3, 1)
    ours = tuple(voter.store for voter in engine.voters)
    for voters, may_ask in (((), True), (ours[:1], True), ((7, 8, 9), False)):
        assert engine._greetings.may_ask(stranger, AdmissionRequest(True, voters)) is may_ask


# --- Coming back under an old name --------------------------------------------------------


def replace(world: World, name: str, through: str) -> None:
    """Kill a node, forget it, and have it join with an empty disk under its old name."""
    cluster = world.cluster
    cluster.kill(name)
    left = cluster.running
    world.until(lambda: forget(world, through, name) == "")
    world.until(lambda: forgotten(cluster, name, *left))
    cluster.remove(name)
    cluster.add(name, through)
    cluster.start(name)
    world.until(lambda: joined(cluster, name))


def hear_each_other(cluster: SimulatedCluster) -> bool:
    """Whether every running node takes every other one for alive."""
    return all(
        cluster.engine(one).is_alive(cluster.engine(other).me)
        for one in cluster.running
        for other in cluster.running
    )


def test_who_joins_later_reaches_a_node_that_was_forgotten_and_came_back(world: World) -> None:
    """A newcomer's catalog has the node come, forgotten and come again, in one step: what it wants
    in the end is a connection. So has one that restarts and replays its log."""
    cluster = world.cluster
    replace(world, "c", "a")
    cluster.add("z", "a")
    cluster.start("z")
    world.until_in_sync(*"abcz")
    world.until(lambda: hear_each_other(cluster))
    cluster.kill("z")
    cluster.start("z")
    world.until_in_sync(*"abcz")
    world.until(lambda: hear_each_other(cluster))
    assert set(cluster.nodes["z"].contacts) >= set("abc")
    world.data_nodes = tuple("abcz")
    world.check()


def test_all_founders_are_replaced_in_turn_under_their_names(world: World) -> None:
    """Each by one with an empty disk, through another one each time, while messages are put; and
    once more, when no founder is left."""
    cluster = world.cluster
    world.put("a", 20)
    for turn, name in enumerate("abcabc"):
        world.until_in_sync(*"abc")
        through = "bca"["abc".index(name)]
        replace(world, name, through)
        world.until_in_sync(*"abc")
        world.until(lambda: hear_each_other(cluster))
        world.put(name, 3, f"turn {turn}")
    world.check()


# --- At random ----------------------------------------------------------------------------


class CutOff:
    """Nodes join while leaders are cut off from some of the others, and nodes are restarted."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.cluster = World(self.random.choice(("a", "ab", "abc", "abcd")), seed=seed).cluster
        self.faults = MembershipFaults(self.cluster, self.random)

    def run(self) -> None:
        for _ in range(12):
            self.faults.join()
            self.random.choice((self._cut, self._kill, lambda: None))()
            self.cluster.run(self.random.choice((3, 20, 100, 300, 1000, 2500)))
        self.cluster.run(5000)
        self.cluster.heal_all()
        self._restart()

    def _cut(self) -> None:
        cluster, random = self.cluster, self.random
        leaders = [name for name in cluster.running if cluster.engine(name).leader == name]
        for one in leaders:
            for other in cluster.nodes:
                if other != one and random.random() < 0.8:
                    cluster.cut(one, other, silent=random.random() < 0.5)
        cluster.after(random.choice((300, 1500, 4000)), cluster.heal_all)

    def _kill(self) -> None:
        if self.cluster.running:
            self.cluster.kill(self.random.choice(self.cluster.running))
            self.cluster.after(self.random.choice((5, 50, 1500, 4000)), self._restart)

    def _restart(self) -> None:
        for name in self.cluster.nodes:
            if name not in self.cluster.running:
                self.cluster.start(name)


@pytest.mark.parametrize("seed", [28, 33, 50, 73])
def test_whoever_joins_while_leaders_are_cut_off_is_in_the_cluster_at_the_end(seed: int) -> None:
    cut_off = CutOff(seed)
    cut_off.run()
    cluster = cut_off.cluster
    assert cluster.run_until(cut_off.faults.is_settled, 120_000), cluster.trace[-10:]


@pytest.mark.parametrize("seed", range(4))
def test_a_cluster_that_changes_all_the_time_loses_nothing(seed: int) -> None:
    """Nodes join, die for good and are forgotten while others are killed and cut off; then all
    agree on who is left, and every confirmed message is there."""
    random = Random(seed)
    world = World(seed=seed)
    cluster = world.cluster
    faults = MembershipFaults(cluster, random)
    producers = []
    for round_ in range(12):
        random.choice((faults.join, faults.join, faults.retire, faults.forget))()
        alive = [name for name in "abc" if name in cluster.running]
        if random.random() < 0.4 and len(alive) == 3:
            name = random.choice(alive)
            cluster.kill(name)
            cluster.after(random.choice((50, 1500)), lambda name=name: cluster.start(name))
        elif random.random() < 0.3:
            one, other = random.sample(tuple(cluster.nodes), 2)
            cluster.cut(one, other, silent=random.random() < 0.5)
            cluster.after(1500, cluster.heal_all)
        alive = [name for name in "abc" if name in cluster.running]
        if alive:
            producers.append(world.producer(random.choice(alive), 20, f"p{round_}"))
        cluster.run(random.choice((300, 2500)))
    cluster.heal_all()
    cluster.start(*(name for name in cluster.nodes if name not in faults.retired))

    def is_settled() -> bool:
        faults.press()
        cluster.run(500)
        return faults.is_settled()

    world.until(is_settled)
    for name in faults.retired:
        cluster.remove(name)
    for producer in producers:
        if producer.is_open and not producer.is_alive:
            producer.die()
    world.data_nodes = tuple(n for n, node in cluster.nodes.items() if not node.witness)
    world.check()


@pytest.mark.parametrize("seed", range(3))
def test_names_that_come_and_go_reach_everybody(seed: int) -> None:
    """Those that joined are killed, forgotten and replaced under their names, while others join,
    restart and replay it all: in the end everybody hears everybody."""
    random = Random(seed)
    world = World(seed=seed)
    cluster = world.cluster
    faults = MembershipFaults(cluster, random)
    for _ in range(12):
        faults.join()
        cluster.run(random.choice((300, 2500)))
        if random.random() < 0.5:
            faults.retire()
            cluster.run(2500)
            faults.press()
            cluster.run(500)
        if random.random() < 0.3:
            name = random.choice([name for name in cluster.nodes if name not in faults.retired])
            cluster.kill(name)
            cluster.run(random.choice((5, 2500)))
            cluster.start(name)

    def is_settled() -> bool:
        faults.press()
        cluster.run(500)
        return faults.is_settled() and hear_each_other(cluster)

    world.until(is_settled)
    assert faults.returned > 0
    for name in faults.retired:
        cluster.remove(name)
    world.data_nodes = tuple(n for n, node in cluster.nodes.items() if not node.witness)
    world.put("a", 5)
    world.check()
