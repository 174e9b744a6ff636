"""Requests to the catalog that are asked again: each takes effect once, over every failover."""

from __future__ import annotations

import pytest

from mirrorq.engine.events import Ask, FromPeer
from mirrorq.protocol.commands import ClearPolicy, DeclareQueue, SetPolicy
from mirrorq.protocol.control import CatalogRequest
from mirrorq.protocol.policy import parse, to_text

from .test_policies import Placed, exactly

ONE = to_text(parse("p", "", exactly(1)))


def follower(world: Placed) -> str:
    """A node that does not lead the catalog."""
    leader = world.cluster.engine("a").leader
    return next(name for name in "cba" if name != leader)


def policies(world: Placed) -> list[int]:
    """How many each running node knows."""
    cluster = world.cluster
    return [len(cluster.engine(name).catalog.policies()) for name in cluster.running]


@pytest.mark.parametrize("dies", [False, True])
def test_a_request_that_comes_late_changes_nothing(dies: bool) -> None:
    """It was long on its way: it was asked again, done, and undone since; by then another node
    leads, as the case may be."""
    world = Placed("abcde")
    cluster = world.cluster
    first = cluster.engine("a").leader
    assert first is not None
    followers = [name for name in "edcba" if name != first]
    late = {}
    for name in followers[:2]:
        assert not cluster.ask(name, SetPolicy("p", ONE)).error
        engine = cluster.engine(name)
        late[name] = CatalogRequest(engine.requests.newest, engine.me, SetPolicy("p", ONE), 1)
    assert not cluster.ask(followers[2], ClearPolicy("p")).error
    if dies:
        cluster.kill(first)
        world.until(lambda: cluster.engine(followers[3]).leader not in (None, first))
        cluster.run(1000)
    leader = cluster.engine(followers[3]).leader
    assert leader is not None
    name = next(name for name in late if name != leader)
    cluster.tell(leader, FromPeer(name, late[name].member.incarnation, late[name]))
    cluster.run(3000)
    assert policies(world) == [0] * len(cluster.running)
    world.finish()


def test_a_request_whose_answer_was_lost_is_not_done_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """b asks and is cut off. It is done, and undone by another; b learns of all that from a
    snapshot, in which its entry is no more, asks again, and is told that it was done."""
    monkeypatch.setattr("mirrorq.engine.follower.COMPACT_ENTRIES", 5)
    world = Placed()
    name = follower(world)
    others = [one for one in "abc" if one != name]
    leader = world.cluster.engine(name).leader
    assert leader is not None
    token = world.cluster.new_token()
    declared = world.cluster.new_token()
    world.cluster.tell(name, Ask(token, SetPolicy("p", ONE)))
    command = DeclareQueue("new", True, False, False, name, None, ())
    world.cluster.tell(name, Ask(declared, command))
    world.until(lambda: bool(world.cluster.engine(leader).catalog.policies()), 1000)
    for other in others:
        world.cluster.cut(name, other)
    assert token not in world.cluster.nodes[name].answers
    world.until(lambda: world.cluster.engine(leader).catalog.queue_named("new") is not None)
    made = world.cluster.engine(leader).catalog.queue_named("new")
    assert made is not None
    assert not world.cluster.ask(others[0], ClearPolicy("p")).error
    for number in range(40):
        assert not world.cluster.ask(others[1], ClearPolicy(f"p{number}")).error
    assert token not in world.cluster.nodes[name].answers
    world.cluster.heal_all()
    assert not world.answered(name, token).error
    assert world.answered(name, declared).value == made.id
    world.cluster.run(2000)
    assert policies(world) == [0, 0, 0]
    world.finish()
