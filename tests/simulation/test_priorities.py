"""Priorities on whole clusters, across failovers and under random faults."""

from __future__ import annotations

import pytest

from harness.__main__ import describe
from harness.results import result_of
from harness.swarm import Swarm

from .world import World


def test_each_level_keeps_its_order_and_its_counts_across_a_failover(world: World) -> None:
    """What was held comes again first of its priority; levels that nobody was given stay new."""
    for name, priority in (("low", 0), ("mid", 4), ("high", 9)):
        world.put("b", 3, name, priority=priority)
    taker = world.taker("c", prefetch=4)
    world.until(lambda: len(taker.seen) == 4)
    order = [b"%s/%d" % (name, n) for name in (b"high", b"mid", b"low") for n in (1, 2, 3)]
    assert taker.seen == [(body, False) for body in order[:4]]
    taker.settle(order[0])
    world.until(lambda: taker.outcomes.get(order[0]) is True)
    world.cluster.kill("a")
    world.until(lambda: world.master == "b")
    taker.die()
    after = world.taker("c", prefetch=20)
    world.until(lambda: len(after.seen) == 8)
    assert [body for body, _ in after.seen] == order[1:]
    # The lowest level was fetched by nobody: its horizon may be ahead, its messages are not held.
    assert all(redelivered for _, redelivered in after.seen[:3])
    world.check_copies()


@pytest.mark.parametrize("seed", [0, 1, pytest.param(2, marks=pytest.mark.slow)])
def test_nothing_is_lost_or_out_of_order_whatever_breaks(seed: int) -> None:
    """The swarm with several priorities: every checker is content, order per level included."""
    result = result_of(Swarm(seed, priorities=(0, 0, 3, 31), chain=False, fan=False).run(), "test")
    assert not result.wrong, describe(result)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [100, pytest.param(101, marks=pytest.mark.soak)])
def test_nothing_is_lost_or_early_whatever_breaks(seed: int) -> None:
    """The same with delays on puts and on nacks, and clocks that differ."""
    delays_ms = (0, 0, 5, 300, 4000)
    swarm = Swarm(seed, priorities=(0, 0, 7), delays_ms=delays_ms, chain=False, fan=False)
    result = result_of(swarm.run(), "test")
    assert not result.wrong, describe(result)


def test_a_delayed_message_is_ended_by_the_next_master(world: World) -> None:
    """Published before the failover and due after it: it comes then, not redelivered; what was
    given back with a delay comes at its place."""
    (later,) = world.put("b", 1, "later", delay_ms=5000)
    bodies = world.put("b", 2, "now")
    taker = world.taker("c", prefetch=3)
    world.until(lambda: len(taker.seen) == 2)
    taker.settle(bodies[0], "nack", delay_ms=3000)
    world.until(lambda: taker.outcomes.get(bodies[0]) is True)
    taker.settle(bodies[1])
    world.until(lambda: taker.outcomes.get(bodies[1]) is True)
    world.cluster.kill("a")
    world.until(lambda: world.master == "b")
    world.cluster.run(500)
    assert [body for body, _ in taker.seen] == bodies
    world.until(lambda: len(taker.seen) == 4)
    assert taker.seen[2:] == [(bodies[0], True), (later, False)]
    world.check_copies()


def test_delays_go_on_after_a_stop_of_all(world: World) -> None:
    """The due time is on disk: a restart neither forgets nor begins it anew."""
    (body,) = world.put("a", 1, "later", delay_ms=20_000)
    began_ms = world.cluster.now_ms
    for name in "abc":
        world.cluster.kill(name)
    world.cluster.run(5000)
    world.cluster.start()
    world.until_in_sync()
    taker = world.taker("b")
    world.until(lambda: [seen for seen, _ in taker.seen] == [body])
    assert 19_000 <= world.cluster.now_ms - began_ms <= 22_000
    world.check_copies()
