"""A large catalog travels and is written page by page, on virtual time."""

from __future__ import annotations

import pytest

from harness.cluster import SimulatedNode
from harness.tiny_pages import tiny_pages
from mirrorq.cluster.catalog import image
from mirrorq.cluster.raft.messages import COMMAND_BYTES_MAX
from mirrorq.config import Config
from mirrorq.engine import follower
from mirrorq.protocol.commands import DeclareExchange, SetPolicy
from mirrorq.protocol.policy import parse, to_text
from mirrorq.protocol.raft import RAFT_MESSAGES, InstallSnapshot
from mirrorq.transport.link import part_bytes_max
from mirrorq.wire.messages import encode

from .test_membership import joined
from .world import World

SMALLEST = Config(message_bytes_max=1, frame_bytes_max=4100)
"""With it a transport takes the smallest messages."""


class Seen:
    """The largest message of Raft that a cluster sends, and the largest part of a write."""

    def __init__(self, world: World) -> None:
        self.message_bytes = self.write_bytes = self.pages = 0
        cluster = world.cluster
        send, write = cluster._send, cluster._write_round

        def watched_send(node: SimulatedNode, messages: list[tuple[str, object]]) -> None:
            for _, message in messages:
                if isinstance(message, RAFT_MESSAGES):
                    size = sum(map(len, encode(message)))  # type: ignore[arg-type]
                    self.message_bytes = max(self.message_bytes, size)
                    self.pages += isinstance(message, InstallSnapshot)
            send(node, messages)

        def watched_write(node: SimulatedNode) -> None:
            raft = node.commits[0].raft
            if raft is not None:
                size = sum(len(page.data) for page in raft.pages)
                self.write_bytes = max(self.write_bytes, size)
            write(node)

        cluster._send = watched_send  # type: ignore[method-assign]
        cluster._write_round = watched_write  # type: ignore[method-assign]


def long_policy(number: int) -> SetPolicy:
    """A policy of nearly a megabyte."""
    nodes = [f"{number}-{place:0>240}" for place in range(3500)]
    policy = parse(f"p{number}", "^nothing$", {"ha-mode": "nodes", "ha-params": nodes})
    return SetPolicy(policy.name, to_text(policy))


@pytest.mark.slow
def test_a_node_joins_a_cluster_with_a_catalog_that_no_message_could_hold(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of 40 MB. No message of Raft is above what the smallest transport takes, and no commit has
    more of a snapshot than two pages."""
    monkeypatch.setattr(follower, "COMPACT_ENTRIES", 60)
    world = World()
    seen = Seen(world)
    for number in range(45):
        assert world.cluster.ask("a", long_policy(number)).text == ""
    for number in range(30):
        world.cluster.ask("a", DeclareExchange(f"x{number}", "topic"))
    world.cluster.run(5000)
    assert world.cluster.engine("a").catalog.size.policies.bytes > part_bytes_max(Config())
    world.cluster.add("d", "a")
    world.cluster.start("d")
    world.until(lambda: joined(world.cluster, "d"))
    assert seen.pages > 40
    assert seen.message_bytes < part_bytes_max(SMALLEST)
    assert 0 < seen.write_bytes < 2 * (COMMAND_BYTES_MAX + image.PAGE_BYTES)


def test_a_command_that_is_too_large_is_refused(world: World) -> None:
    """With its size, and what to do; the cluster goes on."""
    nodes = [f"{place:0>250}" for place in range(5000)]
    policy = parse("p", "^nothing$", {"ha-mode": "nodes", "ha-params": nodes})
    answer = world.cluster.ask("b", SetPolicy(policy.name, to_text(policy)))
    assert answer.error == "PreconditionFailed"
    assert f"at most {COMMAND_BYTES_MAX}" in answer.text
    world.put("a", 3)


@pytest.mark.parametrize("seed", range(6))
def test_a_node_joins_while_pages_are_lost_and_leaders_change(seed: int) -> None:
    """The catalog goes on changing, the leader dies in the middle of the pages, and so does the
    node that joins: all have one catalog in the end."""
    with tiny_pages():
        world = World(seed=seed)
        for number in range(60):
            world.cluster.ask("a", DeclareExchange(f"x{number}", "topic"))
        seen = Seen(world)
        world.cluster.add("d", "abc"[seed % 3])
        world.cluster.start("d")
        world.until(lambda: seen.pages > 2 + seed)
        victim = world.cluster.engine("a").leader
        assert victim is not None
        for name in (victim, "d") if seed % 2 else (victim,):
            world.cluster.kill(name)
        world.cluster.start("d")
        world.cluster.run(3000)
        for number in range(40):
            asker = "abc".replace(victim, "")[number % 2]
            world.cluster.ask(asker, DeclareExchange(f"y{number}", "topic"))
        world.cluster.start()
        world.until(lambda: joined(world.cluster, "d"))
        world.cluster.run(5000)
        catalogs = [world.cluster.engine(name).catalog for name in "abcd"]
        assert all(one.exchanges() == catalogs[0].exchanges() for one in catalogs)
        assert len(catalogs[0].exchanges()) == 100


@pytest.mark.parametrize("names", ["a", "abc"])
def test_a_queue_that_is_younger_than_the_snapshot_survives_a_restart(
    names: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its declaration stands in the log behind the snapshot: no node drops its copy meanwhile."""
    monkeypatch.setattr(follower, "COMPACT_ENTRIES", 20)
    world = World(names)
    for number in range(20):
        world.cluster.ask("a", DeclareExchange(f"x{number}", "topic"))
    world.cluster.run(2000)
    world.queue_id = world.cluster.declare("a", "young")
    world.put("a", 5)
    for name in names:
        world.cluster.kill(name)
    world.cluster.start()
    world.cluster.run(5000)
    assert set(world.cluster.in_sync(world.queue_id)) == set(names)
    assert world.live("a") == 5
