"""All but one are lost for good, under load, and that one goes on alone: `force-boot`."""

from __future__ import annotations

from random import Random

import pytest

from harness import checkers
from harness.survival import force_boot

from .world import World


def lose_all_but(world: World, name: str) -> None:
    """Everything is killed in the same moment; the others' disks are gone, too."""
    for other in world.cluster.running:
        world.cluster.kill(other)
    for other in world.cluster.nodes:
        if other != name:
            world.cluster.wipe(other)


def judge(world: World) -> list[str]:
    """Consume to the last message on all nodes, and judge what producers and consumers saw."""
    cluster, queue_id, journal = world.cluster, world.queue_id, world.journal
    world.until_in_sync()
    consumer = world.consumer(world.data_nodes[-1])
    world.until(lambda: world.master is not None and world.live(world.master) == 0)
    cluster.run(3000)
    assert consumer.is_alive
    journal.ended = cluster.onlooker.ended.get(queue_id, {})
    journal.unclean_ms = cluster.onlooker.uncleans.get(queue_id, [])
    assert len(journal.unclean_ms) == 1
    assert world.master is not None
    lost = cluster.engine(world.master).replicas[queue_id].state.lost
    return [
        *checkers.all_of_journal(journal),
        *checkers.uncounted(journal, lost),
        *checkers.unequal(cluster, queue_id),
        *checkers.undrained(cluster, queue_id),
        *cluster.onlooker.wrong,
    ]


@pytest.mark.parametrize("seed", [0, 1, 3])
def test_who_was_in_sync_goes_on_with_all_that_was_confirmed(seed: int) -> None:
    """Whichever it is, at any moment of a load: nothing that was confirmed is missing, nothing is
    twice, and the others join it with empty disks."""
    random = Random(seed)
    world = World("abc" if seed % 2 else "abcde", seed=seed)
    cluster = world.cluster
    for number, node in enumerate(world.data_nodes):
        world.producer(node, 100, f"p{number}")
    world.consumer("a", nack_share=0.2)
    cluster.run(random.randint(30, 250))
    name = random.choice(world.data_nodes)
    lose_all_but(world, name)
    (loss,) = force_boot(cluster, name)
    assert (loss.queue, loss.has_copy, loss.was_in_sync) == ("orders", True, True)
    cluster.start(name)
    world.until(lambda: world.master == name)
    cluster.start()
    assert judge(world) == []
    seen = {one.body for one in world.journal.deliveries}
    confirmed = [a.body for a in world.journal.attempts.values() if a.state == "acknowledged"]
    assert confirmed
    assert [body for body in confirmed if body not in seen] == []


def test_what_a_survivor_that_was_behind_lacks_is_counted(world: World) -> None:
    """It was out of the ring since before some were confirmed: these are lost, and said to be no
    fewer; all that it had is there."""
    before = world.put("a", 20, "before")
    world.cluster.kill("c")
    world.until(lambda: world.cluster.in_sync(world.queue_id) == ("a", "b"))
    after = world.put("a", 30, "after")
    lose_all_but(world, "c")
    force_boot(world.cluster, "c")
    world.cluster.start("c")
    world.until(lambda: world.master == "c")
    world.cluster.start()
    world.until_in_sync()
    consumer = world.consumer("b")
    world.until(lambda: world.master is not None and world.live(world.master) == 0)
    world.cluster.run(1000)
    assert consumer.is_alive
    seen = {one.body for one in world.journal.deliveries}
    assert set(before) <= seen
    assert not seen & set(after)
    assert world.cluster.onlooker.wrong == []


def test_one_of_the_lost_cluster_that_comes_back_is_a_stranger() -> None:
    """With its old disk it is kept out and keeps nobody from going on; emptied it joins."""
    world = World()
    cluster = world.cluster
    world.put("a", 10)
    for name in "abc":
        cluster.kill(name)
    force_boot(cluster, "a")
    cluster.start("a", "b")
    world.until(lambda: world.master == "a")
    world.put("a", 10, "alone")
    cluster.run(5000)
    assert cluster.in_sync(world.queue_id) == ("a",)
    assert cluster.engine("b").leader is None
    assert world.live("a") == 20
    cluster.kill("b")
    for name in "bc":
        cluster.wipe(name)
    cluster.start()
    assert judge(world) == []
