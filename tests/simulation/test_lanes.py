"""Priorities on whole clusters, across failovers and under random faults."""

from __future__ import annotations

import pytest

from mirrorq.testing.__main__ import describe
from mirrorq.testing.results import result_of
from mirrorq.testing.swarm import Swarm

from .world import World


def test_each_lane_keeps_its_order_and_its_counts_across_a_failover() -> None:
    """What was held comes again first of its priority; lanes that nobody was given stay new."""
    world = World()
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
    # The lowest lane was fetched by nobody: its horizon may be ahead, its messages are not held.
    assert all(redelivered for _, redelivered in after.seen[:3])
    world.check_copies()


@pytest.mark.parametrize("seed", range(12))
def test_nothing_is_lost_or_out_of_order_whatever_breaks(seed: int) -> None:
    """The swarm with several priorities: every checker is content, order per lane included."""
    result = result_of(Swarm(seed, priorities=(0, 0, 3, 31)).run(), "test")
    assert not result.wrong, describe(result)
