"""Nodes whose processes are given little time: each step is late, by hundreds of milliseconds."""

from __future__ import annotations

import pytest

from harness import checkers
from harness.cluster import SimulatedCluster
from mirrorq.engine.events import Ask
from mirrorq.protocol.commands import Rebalance

from .world import World

STARVED = ((100, 300), (300, 900), (200, 1000))


def leader(cluster: SimulatedCluster) -> str | None:
    """The node that a majority follows."""
    told = [cluster.engine(name).leader for name in cluster.running]
    named = max(told, key=told.count)
    return named if 2 * told.count(named) > len(cluster.nodes) else None


@pytest.mark.parametrize("late_ms", STARVED)
@pytest.mark.parametrize("names", ["abc", "abcde"])
def test_a_starved_cluster_keeps_its_leader_and_gets_on(
    names: str, late_ms: tuple[int, int]
) -> None:
    """Leaders lost their majority, and candidates their votes, because answers took longer than
    the wait for them: there was a leader for a tenth of the time, and hardly ever a long one."""
    world = World(names)
    cluster = world.cluster
    cluster.starve(*late_ms)
    producer = world.producer("b", 100)
    led = 0
    for _ in range(600):
        cluster.run(100)
        producer.publish()
        led += leader(cluster) is not None
    assert led > 500
    assert checkers.tally(world.journal).acknowledged == 100
    cluster.starve()
    assert cluster.run_until(lambda: leader(cluster) is not None, 5000)
    world.check()


@pytest.mark.parametrize("seed", range(3))
def test_a_starved_cluster_is_founded_and_elects_after_a_death(seed: int) -> None:
    """From empty stores, with every step late by 300 to 900 ms; then its leader dies."""
    cluster = SimulatedCluster(tuple("abcde"), seed=seed)
    cluster.starve(300, 900)
    cluster.start()
    assert cluster.run_until(lambda: leader(cluster) is not None, 20_000)
    first = leader(cluster)
    assert first is not None
    cluster.kill(first)
    assert cluster.run_until(lambda: leader(cluster) not in (None, first), 30_000)


def test_a_node_that_waits_for_a_leader_does_not_spin() -> None:
    """A catalog request that was open while no leader was known had the node step without a
    pause: all of a core, on each node, just when an election needs the time."""
    cluster = SimulatedCluster(seed=1)
    cluster.start("a")
    cluster.tell("a", Ask(1, Rebalance()))
    cluster.run(1000)
    engine = cluster.engine("a")
    now_ms = cluster.clock_ms(cluster.nodes["a"])
    wake_at_ms = engine.step(now_ms, 0, []).wake_at_ms
    assert wake_at_ms is not None
    assert wake_at_ms > now_ms
    assert cluster.onlooker.wrong == []
