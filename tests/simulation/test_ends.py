"""How processes end. What a mirror's rail has told the master to be on its disk is there at the
mirror's next start: it was killed, closed, closed in a commit that hangs, or has failed."""

from __future__ import annotations

import pytest
from attrs import evolve

from harness import checkers
from harness.cluster import SimulatedCluster
from harness.mutations.registry import mutation
from harness.swarm import Swarm
from mirrorq.config import Config

from .world import World

FIRST, COUNT = 5, 20
HANG_MS = 300


def railed(seed: int = 1) -> World:
    """The rail of the mirror b has the queue; c votes only, and is away."""
    config = evolve(Config(), star=True, rail=True)
    cluster = SimulatedCluster(tuple("abc"), seed=seed, witnesses=("c",), config=config)
    world = World("abc", witnesses="c", cluster=cluster)
    cluster.kill("c")
    cluster.run(500)
    world.put("a", FIRST, "first")
    rail = cluster.nodes["b"].rail
    assert rail is not None
    assert world.queue_id in rail.queues
    return world


def promoted_without_its_master(how: str) -> World:
    """Messages are confirmed while b is in a commit that hangs, in which b ends; then a dies, and
    with c back b is promoted."""
    world = railed()
    cluster, mirror = world.cluster, world.cluster.nodes["b"]
    mirror.hang_ms = HANG_MS
    mirror.fails_once = how == "failure"
    producer = world.producer("a", COUNT)
    world.until(lambda: producer.is_done)
    rail = mirror.rail
    assert rail is not None
    assert len(rail.out) > 1, "its thread has not taken what its rail has told of"
    if how == "kill":
        cluster.kill("b")
    elif how == "stop":
        cluster.stop("b")
    world.until(lambda: mirror.engine is None)
    cluster.kill("a")
    cluster.start("b", "c")
    world.until(lambda: world.master == "b")
    return world


@pytest.mark.parametrize("how", ["kill", "stop", "failure"])
def test_what_was_confirmed_is_there_however_a_mirror_has_ended(how: str) -> None:
    world = promoted_without_its_master(how)
    assert world.cluster.onlooker.wrong == []
    assert world.live("b") == FIRST + COUNT
    world.check()


def test_mutation_a_failed_nodes_close_that_ends_its_logs_is_noticed() -> None:
    with mutation("a failed node's close ends its logs"):
        world = promoted_without_its_master("failure")
        wrong = world.cluster.onlooker.wrong
        assert wrong[0].startswith("promise broken")
        assert world.live("b") < FIRST + COUNT, "and messages are lost by it"
        world.cluster.start()
        world.until_in_sync()
        world.consumer("b")
        world.until(lambda: world.live("b") == 0)
        lost = checkers.all_of(world.journal, world.cluster, world.queue_id)
        assert any(text.startswith("lost") for text in lost), lost


def test_a_node_that_is_to_start_while_it_ends_starts_when_it_has_ended() -> None:
    world = railed()
    mirror = world.cluster.nodes["b"]
    mirror.hang_ms = HANG_MS
    producer = world.producer("a", COUNT)
    world.until(lambda: bool(mirror.commits))
    world.cluster.stop("b")
    life = mirror.life
    world.cluster.start("b")
    world.until(lambda: mirror.engine is not None and mirror.life > life)
    world.cluster.start()
    world.until(lambda: producer.is_done)
    world.check()


@pytest.mark.parametrize("seed", [3, 4])
def test_nothing_is_lost_however_processes_end(seed: int) -> None:
    report = Swarm(seed, star=True, rail=True, ends=True, is_short=True).run()
    assert report.wrong == []
