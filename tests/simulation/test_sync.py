"""Scenarios 13 to 17: how a mirror comes in sync, on virtual time."""

from __future__ import annotations

from typing import Any

from mirrorq.messages import SetPolicy
from mirrorq.policy import parse, to_text

from .world import World


def _set_policy(world: World, **definition: Any) -> None:
    """Keys are written with underscores here."""
    given = {key.replace("_", "-"): value for key, value in definition.items()}
    policy = parse("sync", "", given)
    answer = world.cluster.ask(world.cluster.running[0], SetPolicy("sync", to_text(policy)))
    assert not answer.error, answer.text


def _manual(names: str = "abw", witnesses: str = "w", **more: Any) -> World:
    """A cluster whose queue is synchronised by hand, its copies in sync so far."""
    world = World(names, witnesses=witnesses)
    _set_policy(world, ha_sync_mode="manual", **more)
    return world


def _in_sync(world: World) -> str:
    """Names of the mirrors that count as in sync, once nothing more happens."""
    world.cluster.run(5000)
    return "".join(name for name in world.cluster.in_sync(world.queue_id) if name != world.master)


def _missing(world: World, name: str) -> int:
    return world.cluster.engine(name).replicas[world.queue_id].transfer.missing.count


def _stop_b(world: World) -> None:
    world.cluster.kill("b")
    world.until_in_sync("a")


def test_13_natural_drain() -> None:
    """The trace: (ready-unacked at the master; is B in sync?)."""
    world = _manual()
    taker = world.taker("a", prefetch=1)
    _stop_b(world)
    (m1,) = world.put("a", 1, "m1")
    world.until(lambda: len(taker.held) == 1)
    world.cluster.start("b")
    assert _in_sync(world) == ""
    assert world.live("b") == 1
    world.put("a", 1, "m2")
    assert _in_sync(world) == ""
    assert world.live("b") == 2
    assert _missing(world, "b") == 1
    taker.prefetch = 0
    taker.settle(m1)
    assert _in_sync(world) == "b"
    assert world.cluster.engine("b").replicas[world.queue_id].transfer.fetched_count == 0
    world.check_copies()


def test_13_a_requeued_message_keeps_the_mirror_out() -> None:
    """It lacks the body still, wherever the message is; the ack brings it in."""
    world = _manual()
    taker = world.taker("a", prefetch=1)
    _stop_b(world)
    (m1,) = world.put("a", 1, "m1")
    world.until(lambda: len(taker.held) == 1)
    world.cluster.start("b")
    assert _in_sync(world) == ""
    taker.settle(m1, "nack")
    world.until(lambda: len(taker.seen) == 2)
    assert taker.seen == [(m1, False), (m1, True)]
    assert _in_sync(world) == ""
    taker.settle(m1)
    assert _in_sync(world) == "b"
    world.check_copies()


def test_13_a_restarted_joiner_counts_what_it_has() -> None:
    """B lacks m1 and has m2, which came along the ring: after a restart too, so the ack of m1
    alone brings it in."""
    world = _manual()
    taker = world.taker("a", prefetch=1)
    _stop_b(world)
    (m1,) = world.put("a", 1, "m1")
    world.until(lambda: len(taker.held) == 1)
    world.cluster.start("b")
    assert _in_sync(world) == ""
    world.put("a", 1, "m2")
    assert _in_sync(world) == ""
    _stop_b(world)
    world.cluster.start("b")
    assert _in_sync(world) == ""
    assert _missing(world, "b") == 1
    taker.prefetch = 0
    taker.settle(m1)
    assert _in_sync(world) == "b"
    world.check_copies()


def test_13_a_restarted_mirror_that_missed_nothing_is_in_sync() -> None:
    """Its data is on its disk: nothing was published or had to be fetched."""
    world = _manual()
    world.put("a", 20)
    _stop_b(world)
    world.cluster.start("b")
    assert _in_sync(world) == "b"
    world.check()


def test_13_a_policy_that_becomes_automatic_starts_the_transfer() -> None:
    """Manual until then; the mirror needs no restart and no new view."""
    world = _manual()
    _stop_b(world)
    world.put("a", 50)
    world.cluster.start("b")
    assert _in_sync(world) == ""
    assert _missing(world, "b") == 50
    _set_policy(world, ha_sync_mode="automatic")
    assert _in_sync(world) == "b"
    world.check()
