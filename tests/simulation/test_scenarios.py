"""Scenarios seen from outside, on virtual time: whole nodes that are killed, stopped, cut off."""

from __future__ import annotations

import pytest

from harness.cluster import SimulatedCluster
from mirrorq.config import Config

from .world import World

DETECTION_MS = 3000
"""Within this a silent or dead member is noticed and the queue goes on."""


@pytest.mark.parametrize("end", ["stopped", "killed"])
def test_1_the_master_goes_while_publishing_and_consuming(end: str, world: World) -> None:
    """Everything published through B is confirmed, and the consumer on C sees it all."""
    world.consumer("c")
    producer = world.producer("b", 2000)
    world.cluster.run(50)
    assert not producer.is_done
    if end == "stopped":
        world.stop("a")
    else:
        world.cluster.kill("a")
    world.until(lambda: producer.is_done)
    assert {a.state for a in world.journal.attempts.values()} == {"acknowledged"}
    world.check()


def test_2_a_confirm_means_that_the_mirrors_have_it(world: World) -> None:
    """The master is killed in the moment of the confirm: the message is on B."""
    world.put("a", 1)
    world.cluster.kill("a")
    world.until(lambda: world.master in ("b", "c"))
    assert world.live(world.master or "") == 1
    # The other one is told a moment later that it is stable.
    world.until(lambda: [world.live(name) for name in ("b", "c")] == [1, 1])
    world.check()


def test_3_unacked_messages_come_again_in_order_and_flagged() -> None:
    """With a witness as third: the survivor gets all six again, those it held flagged."""
    world = World("abw", witnesses="w")
    bodies = world.put("b", 6)
    taker = world.taker("b", prefetch=3)
    world.until(lambda: len(taker.held) == 3)
    world.cluster.kill("a")
    world.until(lambda: world.master == "b")
    taker.prefetch = 9
    world.until(lambda: len(taker.seen) == 9)
    again = taker.seen[3:]
    assert [body for body, _ in again] == bodies
    assert all(flag for _, flag in again[:3])
    world.check_copies()


def test_4_what_was_acked_never_comes_again() -> None:
    """Acks that had resolved before the kill hold after it."""
    world = World("abw", witnesses="w")
    bodies = world.put("b", 6)
    taker = world.taker("b", prefetch=3)
    world.until(lambda: len(taker.held) == 3)
    taker.prefetch = 1
    for body in bodies[:2]:
        taker.settle(body)
    world.until(lambda: len(taker.outcomes) == 2)
    seen = len(taker.seen)
    world.cluster.kill("a")
    world.until(lambda: world.master == "b")
    taker.prefetch = 20
    world.until(lambda: len(taker.seen) >= seen + 4)
    world.cluster.run(2000)
    assert [body for body, _ in taker.seen[seen:]] == bodies[2:]
    world.check_copies()


def test_5_an_old_ack_ends_its_own_message_or_none(world: World) -> None:
    """A delivery of before the failover is acked after it: that message is gone, no other."""
    bodies = world.put("b", 6)
    taker = world.taker("b", prefetch=3)
    world.until(lambda: len(taker.held) == 3)
    first, body = taker.held[0]
    world.cluster.kill("a")
    taker.settle(body)
    world.until(lambda: body in taker.outcomes)
    master = world.master
    assert master is not None
    left = world.cluster.engine(master).replicas[world.queue_id].state.live
    assert (first.first in left) != taker.outcomes[body]
    assert left.count == len(bodies) - taker.outcomes[body]
    world.check_copies()


@pytest.mark.parametrize("names", ["abc", "abcde"])
def test_6_the_next_master_is_killed_too(names: str) -> None:
    """Twice in a row, whoever is master: what was confirmed is there."""
    world = World(names)
    producer = world.producer(names[-1], 500)
    world.cluster.run(100)
    world.cluster.kill("a")
    if names == "abc":
        world.cluster.run(50)
        world.cluster.kill("b")
        world.cluster.run(500)
        world.cluster.start("a")
    else:
        world.until(lambda: world.master not in (None, "a"))
        second = world.master
        assert second is not None
        world.cluster.kill(second)
    world.until(lambda: producer.is_done)
    world.check()


@pytest.mark.parametrize("killed", ["a", "b"])
def test_7_the_left_neighbour_dies_after_its_last_op(killed: str) -> None:
    """All survivors have the op or none has: their states are equal at each moment of the kill."""
    for wait_ms in range(8):
        world = World(seed=wait_ms)
        world.put("c", 3)
        world.producer("c", 1, "last")
        world.cluster.run(wait_ms)
        world.cluster.kill(killed)
        world.until(lambda w=world: len(w.cluster.in_sync(w.queue_id)) == 2)  # type: ignore[misc]
        world.cluster.run(1000)
        assert len({world.live(name) for name in world.cluster.running}) == 1
        world.check()


def test_8_a_restarted_master_is_a_mirror_and_takes_a_delta(world: World) -> None:
    """It missed ten messages of two thousand: about ten come over, and it is not the master."""
    world.put("b", 2000)
    world.cluster.kill("a")
    world.until(lambda: world.master == "b")
    world.put("b", 10, "missed")
    fetched_before = world.cluster.entries_sent.get("a", 0)
    world.cluster.start("a")
    world.until_in_sync()
    assert world.master == "b"
    assert world.cluster.entries_sent["a"] - fetched_before < 60
    world.check()


def test_9_a_dead_member_of_an_idle_ring_is_noticed(world: World) -> None:
    """Without any traffic it is out of the view within the bound."""
    world.cluster.run(10_000)
    world.cluster.kill("c")
    world.until(lambda: world.cluster.in_sync(world.queue_id) == ("a", "b"), DETECTION_MS)
    world.check()


@pytest.mark.parametrize("stopped", ["a", "c"])
def test_10_a_stopped_member_stalls_nobody_for_long(stopped: str, world: World) -> None:
    """Confirms go on within the bound; when it wakes it finds itself out, and joins again."""
    world.put("b", 5, "before")
    world.cluster.pause(stopped, 30_000)
    producer = world.producer("b", 5, "during")
    world.until(lambda: producer.is_done, DETECTION_MS)
    world.cluster.run(30_000)
    world.until_in_sync()
    assert world.master != "a" or stopped != "a"
    world.check()


@pytest.mark.parametrize("pair", [("a", "b"), ("b", "a"), ("b", "c"), ("c", "a")])
def test_11_one_way_loss_is_repaired_or_someone_is_out(pair: tuple[str, str], world: World) -> None:
    """Packets vanish one way between two members: the third publishes on, nothing is lost."""
    world.cluster.cut(*pair, silent=True, one_way=True)
    third = next(name for name in "abc" if name not in pair)
    producer = world.producer(third, 20)
    world.until(lambda: producer.is_done, 4 * DETECTION_MS)
    world.check()


@pytest.mark.parametrize("order", ["abc", "cba", "bca"])
def test_12_all_stop_and_start_in_any_order(order: str, world: World) -> None:
    """One member in sync and a majority of nodes suffice; everything confirmed is there."""
    world.put("b", 50)
    for name in "abc":
        world.cluster.kill(name)
    for name in order[:2]:
        world.cluster.start(name)
        world.cluster.run(700)
    world.until(lambda: world.master is not None)
    assert world.live(order[0]) == 50
    world.check()


def test_a_node_that_was_shut_down_is_not_told_as_dead(world: World) -> None:
    """What needs somebody is a node that nobody stopped."""
    world.stop("a")
    world.cluster.run(3000)
    assert any("node a was shut down" in line for line in world.cluster.trace)
    assert not any("node a is silent or dead" in line for line in world.cluster.trace)
    world.cluster.kill("b")
    world.cluster.run(3000)
    assert any("c: node b is silent or dead" in line for line in world.cluster.trace)


# --- What resets connections and refuses new ones in a node's name --------------------------


def first_without_lease(world: World, old: str) -> bool:
    """Whether somebody else serves while the old master's lease still runs; at most 10 s on."""
    cluster = world.cluster

    def is_replaced() -> bool:
        return any(
            (replica := cluster.engine(name).replicas.get(world.queue_id)) is not None
            and replica.is_serving
            for name in cluster.running
            if name != old
        )

    cluster.run_until(is_replaced, 10_000)
    lease = cluster.engine(old).lease
    return is_replaced() and cluster.clock_ms(cluster.nodes[old]) < lease.until_ms


@pytest.mark.parametrize("seed", range(6))
def test_a_firewall_between_two_nodes_makes_no_living_master_dead(seed: int) -> None:
    """It ends the connections of master and leader, and refuses new ones: to these two it looks
    like a death. The third node hears both, so nobody takes over before the lease is over."""
    world = World(seed=seed)
    cluster = world.cluster
    master = world.master
    assert master is not None
    leader = cluster.engine("a").leader
    assert leader is not None
    wall = leader if leader != master else next(name for name in "abc" if name != master)
    consumer = world.consumer(master)
    producer = world.producer(wall, 200)
    cluster.run(100)
    cluster.cut(master, wall, refusing=True)
    cluster.run(20)
    for name in (wall, *(name for name in "abc" if name not in (master, wall))):
        assert cluster.engine(name).is_alive(cluster.engine(master).me)
    assert not first_without_lease(world, master)
    cluster.heal_all()
    world.until(lambda: producer.is_done)
    assert consumer.is_alive
    world.check()


@pytest.mark.parametrize("trusted", [True, False])
def test_a_firewall_around_a_master_is_what_trust_refused_is_about(*, trusted: bool) -> None:
    """All that the others can see is the same as when its process has died. By default they take it
    for that, so that a failover takes milliseconds; told that something in the network does this,
    they wait until the lease is over."""
    cluster = SimulatedCluster(seed=1, config=Config(trust_refused=trusted))
    world = World(cluster=cluster)
    world.consumer("a")
    world.producer("a", 500)
    cluster.run(500)
    assert cluster.engine("a").lease.until_ms > cluster.clock_ms(cluster.nodes["a"])
    for other in "bc":
        cluster.cut("a", other, refusing=True)
    assert first_without_lease(world, "a") is trusted


@pytest.mark.parametrize("seed", range(6))
def test_a_killed_master_is_replaced_before_its_lease_is_over(seed: int) -> None:
    """Where the others agree nobody waits for it."""
    world = World(seed=seed)
    cluster = world.cluster
    master = world.master
    assert master is not None
    world.consumer(master)
    world.producer(master, 500)
    cluster.run(500)
    cluster.kill(master)
    began_ms = cluster.now_ms
    world.until(lambda: world.master not in (None, master))
    assert cluster.now_ms - began_ms < cluster.config.lease_ms // 2
