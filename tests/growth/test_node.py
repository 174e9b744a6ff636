"""What a node's steps cost: they grow with the work in hand, and with nothing that was or is idle.

Simulated clusters with pasts of two sizes; then the same few messages are put, taken and acked, and
a second goes by. All that the engines of the cluster execute meanwhile is counted.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from simulation.test_minority import minority
from simulation.world import Taker, World

from .work import work_of

GROWTH_MAX = 1.5
PUTS = 3
SETTLED_MS = 10_000
"""After this what was done is on all disks, as checkpoints too, and nobody repeats anything."""


def idle_queues(size: int) -> World:
    """So many queues beside the one that works."""
    world = World("a")
    for number in range(size):
        world.cluster.declare("a", f"idle-{number}")
    world.cluster.run(SETTLED_MS)
    return world


def handles_gone(size: int) -> World:
    """So many handles have come and gone, each with a producer id and a message."""
    world = World("a")
    for number in range(size):
        producer = world.producer("a", 1, f"gone-{number}")
        taker = world.taker("a", prefetch=1)
        world.until(lambda taker=taker: bool(taker.held))
        (body,) = (held for _, held in taker.held)
        taker.settle(body)
        world.until(lambda taker=taker, body=body: body in taker.outcomes)
        world.until(lambda producer=producer: producer.is_done)
        taker.close()
        producer.close()
    world.cluster.run(SETTLED_MS)
    return world


def seconds_without_leader(size: int) -> World:
    """The node that works was alone for so long."""
    world = World()
    world.cluster.kill("b")
    world.cluster.kill("c")
    world.cluster.run(1000 * size)
    world.cluster.start()
    world.until_in_sync()
    world.cluster.run(SETTLED_MS)
    return world


def views(size: int) -> World:
    """A mirror has gone and come back so many times, with a message between."""
    world = World()
    for number in range(size):
        world.cluster.kill("c")
        world.until(lambda: "c" not in world.cluster.in_sync(world.queue_id))
        world.put("a", 1, f"without-{number}")
        world.cluster.start("c")
        world.until_in_sync()
    world.cluster.run(SETTLED_MS)
    return world


def _work(world: World, taker: Taker, names: list[str]) -> None:
    for name in names:
        (body,) = world.put("a", 1, name)
        world.until(lambda body=body: any(held == body for _, held in taker.held))
        taker.settle(body)
    world.cluster.run(1000)


@pytest.mark.parametrize(
    ("past", "few", "many"),
    [
        (idle_queues, 10, 200),
        (handles_gone, 5, 100),
        (seconds_without_leader, 6, 600),
        (views, 2, 40),
    ],
)
def test_work_in_hand_costs_the_same(past: Callable[[int], World], few: int, many: int) -> None:
    """Whatever there was, and whatever rests beside it."""
    works = []
    for size in (few, many):
        world = past(size)
        taker = world.taker("a")
        while world.live("a"):
            world.until(lambda world=world, taker=taker: bool(taker.held) or not world.live("a"))
            for _, body in list(taker.held):
                taker.settle(body)
            world.cluster.run(10)
        _work(world, taker, ["warm-1", "warm-2"])
        works.append(work_of(lambda w=world, t=taker: _work(w, t, [f"m{i}" for i in range(PUTS)])))
    before, after = works
    assert after.count < GROWTH_MAX * before.count, (
        f"{before.count} lines, {after.growth_text(before)}"
    )


@pytest.mark.slow
def test_a_minority_that_is_heard_again_costs_the_same_however_long_it_was_alone() -> None:
    """Twenty seconds or four minutes, with a mirror that was ready to be counted in: what was
    wanted all the time was wanted once."""
    works = []
    for seconds in (20, 240):
        world, queues = minority(1)
        world.cluster.run(1000 * seconds)

        def heal(world: World = world, queues: list[int] = queues) -> None:
            world.cluster.heal_all()
            world.cluster.run(SETTLED_MS)
            assert all(set(world.cluster.in_sync(one)) == {"a", "b"} for one in queues)

        works.append(work_of(heal))
    before, after = works
    assert after.count < GROWTH_MAX * before.count, (
        f"{before.count} lines, {after.growth_text(before)}"
    )
