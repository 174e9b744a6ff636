"""A node that is older than what the catalog holds: it stops following, and comes back upgraded."""

from __future__ import annotations

from typing import Any

import pytest

from mirrorq.cluster.catalog.commands import LaterVersion
from mirrorq.engine import follower
from mirrorq.protocol.commands import SetPolicy
from mirrorq.protocol.effects import RaftEntry
from mirrorq.protocol.policy import parse, to_text

from .test_policies import ALL, Placed


class Older:
    """Nodes that do not know policies: `names`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, names: str) -> None:
        self.names = names
        apply, unpack = follower.Follower._apply_command, follower.unpack
        applying = ""

        def applied(here: follower.Follower, now_ms: int, entry: RaftEntry) -> int:
            nonlocal applying
            applying = here._context.me.node
            return apply(here, now_ms, entry)

        def unpacked(entry: RaftEntry) -> Any:
            found = unpack(entry)
            if applying in self.names and isinstance(found[1], SetPolicy):
                raise LaterVersion("catalog command 6 is of a later version: upgrade this node")
            return found

        monkeypatch.setattr(follower.Follower, "_apply_command", applied)
        monkeypatch.setattr(follower, "unpack", unpacked)


@pytest.mark.parametrize("old", ["a", "c"])
def test_an_older_node_stops_following_and_misses_nothing(
    monkeypatch: pytest.MonkeyPatch, old: str
) -> None:
    """The master (and the catalog's leader, as the case may be), or a mirror: it hands out and
    confirms nothing more by a catalog that lacks a command. Restarted with a version that knows
    the command it has it, and the queue goes on with all that was confirmed."""
    world = Placed("abc")
    cluster = world.cluster
    older = Older(monkeypatch, old)
    producer = world.producer("b", 100)
    world.begin("b", SetPolicy("p", to_text(parse("p", "", ALL))))
    engine = cluster.engine(old)
    world.until(lambda: engine.outdated != "" and engine.lease.paused)
    cluster.run(2000)
    assert "of a later version: upgrade this node" in engine.outdated
    assert engine.outdated in engine.waiting_text()
    assert engine.lease.until_ms <= cluster.now_ms
    assert not engine.catalog.policies()
    newer = [name for name in "abc" if name != old]
    assert all(cluster.engine(name).catalog.policies() for name in newer)

    cluster.kill(old)
    older.names = ""
    cluster.start()
    world.until(lambda: len(cluster.engine(old).catalog.policies()) == 1)
    assert cluster.engine(old).outdated == ""
    world.until(lambda: producer.is_done)
    world.finish()
