"""Copies that a policy dropped: they stay for a while, and go when nobody can need them."""

from __future__ import annotations

import pytest

from harness.cluster import SimulatedCluster
from harness.policy_faults import PolicyFaults
from mirrorq.engine.hosting import LEFTOVER_FACTOR
from mirrorq.protocol.commands import Synchronise

from .test_policies import ALL, COUNT, Placed, exactly, nodes

WAIT_MS = LEFTOVER_FACTOR * 1000
LATER_MS = 2 * WAIT_MS


def holds(cluster: SimulatedCluster, name: str, queue_id: int) -> bool:
    """Whether the node has anything of the queue, in memory or on its disk."""
    engine, disk = cluster.engine(name), cluster.nodes[name].disk
    in_memory = queue_id in engine.replicas or queue_id in engine.hosting.images
    assert in_memory == (queue_id in disk.queues)
    return in_memory


def holders(world: Placed) -> str:
    return "".join(n for n in world.cluster.running if holds(world.cluster, n, world.queue_id))


@pytest.fixture
def world() -> Placed:
    """Every node has a copy of some messages."""
    world = Placed()
    world.put("a", COUNT)
    return world


def test_a_dropped_copy_goes_after_a_while(world: Placed) -> None:
    """From memory and disk; asked to have one again the node gets all anew."""
    world.set_policy(exactly(1))
    world.until_shape("a")
    world.cluster.run(WAIT_MS // 2)
    assert holders(world) == "abc"
    world.cluster.run(LATER_MS)
    assert holders(world) == "a"
    world.clear_policy()
    world.until_shape("a", "bc")
    world.check_contents()
    world.finish()


def test_a_copy_that_is_wanted_soon_again_is_sent_a_delta(world: Placed) -> None:
    """Policies that flip faster than that drop nothing and send nothing twice."""
    old = [world.cluster.engine(name).replicas[world.queue_id] for name in "bc"]
    for _ in range(5):
        world.set_policy(exactly(1))
        world.until_shape("a")
        world.cluster.run(WAIT_MS // 2)
        world.set_policy(ALL)
        world.until_shape("a", "bc")
    assert [world.cluster.engine(name).replicas[world.queue_id] for name in "bc"] == old
    assert [replica.transfer.fetched_count for replica in old] == [0, 0]
    world.finish()


def test_26_flips_leak_no_store_space() -> None:
    """A queue wanders over the nodes while it is used: only members hold anything of it."""
    world = Placed("abcd")
    world.put("a", COUNT)
    for number, names in enumerate(("bc", "cd", "da", "ab", "c")):
        producer = world.producer("abcd"[number % 4], COUNT, f"t{number}")
        world.set_policy(nodes(*names))
        world.until_shape(names[0], names[1:])
        world.until(lambda p=producer: p.is_done)  # type: ignore[misc]
        world.cluster.run(LATER_MS)
        assert holders(world) == "".join(sorted(names))
        world.check_contents()
    world.finish()


def test_what_a_restarted_node_finds_on_its_disk_goes_too(world: Placed) -> None:
    """It was down when the policy dropped it, and is not wanted when it is back."""
    world.cluster.kill("c")
    world.until_shape("a", "b")
    world.set_policy(nodes("a", "b"))
    world.cluster.start("c")
    world.cluster.run(WAIT_MS // 2)
    assert holders(world) == "abc"
    world.cluster.run(LATER_MS)
    assert holders(world) == "ab"
    world.finish()


def test_a_restarted_node_that_is_wanted_keeps_its_data(world: Placed) -> None:
    """Its links are broken for long, so that it cannot join: nothing is dropped, and it is sent
    the difference only."""
    world.cluster.kill("c")
    world.until_shape("a", "b")
    world.cluster.cut("a", "c")
    world.cluster.start("c")
    world.cluster.run(2 * LATER_MS)
    assert world.shape == ("a", "b", "")
    assert holders(world) == "abc"
    world.cluster.heal_all()
    world.until_shape("a", "bc")
    assert world.cluster.engine("c").replicas[world.queue_id].transfer.fetched_count == 0
    world.finish()


def test_the_copy_stays_while_no_member_in_sync_runs() -> None:
    """The only member is down: what b still has may be all that is left of the queue."""
    world = Placed("abcd")
    world.put("a", COUNT)
    world.set_policy(exactly(1))
    world.until_shape("a")
    world.cluster.kill("a")
    world.cluster.run(2 * LATER_MS)
    assert holders(world) == "bcd"
    world.cluster.start("a")
    world.until(lambda: world.master == "a")
    world.cluster.run(2 * LATER_MS)
    assert holders(world) == "a"
    world.finish()


def test_the_copy_stays_until_the_wanted_ones_are_in_sync(world: Placed) -> None:
    """c is wanted, empty, and fetches nothing by itself: b's copy goes only when c has it all."""
    world.cluster.run(3000)
    world.set_policy(exactly(1))
    world.until_shape("a")
    world.cluster.kill("c")
    world.cluster.wipe("c")
    world.set_policy(nodes("a", "c") | {"ha-sync-mode": "manual"})
    world.cluster.start("c")
    world.until(lambda: world.shape == ("a", "", "c"))
    world.cluster.run(2 * LATER_MS)
    assert world.shape == ("a", "", "c")
    assert holders(world) == "abc"
    world.set_policy(nodes("a", "c"))
    world.until_shape("a", "c")
    world.cluster.run(LATER_MS)
    assert holders(world) == "ac"
    world.finish()


def test_a_new_copy_takes_no_write_of_the_old_one_for_its_own() -> None:
    """Writes of the old copy are still on their way when it is dropped: once they are synced
    nobody is told, so a new copy, which counts from 1 again, is not."""
    world = Placed()
    other = world.cluster.declare("a", "other")
    world.cluster.nodes["b"].commit_ms = 100
    world.producer("c", COUNT)
    engine = world.cluster.engine("b")
    rounds = engine.hosting.rounds

    def queues() -> set[int]:
        return {queue for waiting in rounds.waiting for queue, _ in waiting.writes}

    world.until(lambda: world.queue_id in queues())
    rounds.note_write(world.queue_id, 9)
    rounds.note_write(other, 8)
    engine.hosting.drop_copy(world.queue_id)
    rounds.close()
    assert queues() == {other}


@pytest.mark.parametrize("seed", range(6))
def test_policies_at_random_lose_nothing_and_leave_nothing(seed: int) -> None:
    """Slow enough that copies are dropped in between, with crashes; then only members hold it."""
    world = Placed("abcd", seed=seed)
    random = world.cluster.random
    faults = PolicyFaults(world.cluster, random, lambda: ("orders",))
    consumer = world.consumer("d")
    for number in range(6):
        world.producer("abcd"[number % 4], COUNT, f"t{number}")
        faults.change()
        world.cluster.run(random.randint(0, LATER_MS))
        victim = random.choice("abc")
        world.cluster.kill(victim)
        world.cluster.run(random.randint(0, LATER_MS))
        world.cluster.start(victim)
    faults.end()
    world.cluster.ask("d", Synchronise("orders", True))
    world.until_in_sync()
    world.set_policy(exactly(2))
    world.until(lambda: len(world.shape[1]) == 1 and not world.shape[2])
    world.cluster.run(2 * LATER_MS)
    assert holders(world) == "".join(sorted(world.shape[0] + world.shape[1]))
    assert consumer.is_alive
    world.finish()
