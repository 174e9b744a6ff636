"""What the cluster has agreed on is applied in portions.

Nothing is left out or applied twice, and no copy is stepped with an older view than the catalog's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from harness.cluster import SimulatedCluster
from harness.tiny_pages import tiny_pages
from mirrorq.engine import follower
from mirrorq.engine.engine import Engine
from mirrorq.engine.events import Ask, EngineEffects, WriteAll
from mirrorq.engine.follower import Follower
from mirrorq.protocol.commands import DeclareQueue, DeleteQueue, RemoveNode, SetPolicy
from mirrorq.protocol.effects import RaftEntry
from mirrorq.protocol.policy import parse, to_text

QUEUES = 24


@contextmanager
def watched() -> Iterator[Counter[str]]:
    """While it lasts, each step of an engine is judged, with portions of one; what is given counts
    pages that nodes have read."""
    step, apply, restore_page = Engine.step, Follower.apply, Follower.restore_page
    applied: list[int] = []
    counts: Counter[str] = Counter()

    def counted_page(self: Follower, now_ms: int) -> None:
        counts["pages"] += 1
        restore_page(self, now_ms)

    def judged_apply(self: Follower, now_ms: int, entry: RaftEntry) -> int:
        applied.append(entry.index)
        assert not self.is_restoring, "applied before the snapshot is read"
        assert self._applied in (0, entry.index - 1), f"applied {entry.index} after {self._applied}"
        return apply(self, now_ms, entry)

    def judged_step(
        self: Engine, now_ms: int, steady_us: int, events: Iterable[Any]
    ) -> EngineEffects:
        applied.clear()
        out = step(self, now_ms, steady_us, events)
        assert len(applied) <= follower.APPLIED_MAX, "a step applies more than a portion"
        for queue_id in self.hosting.stepped:
            record, copy = self.catalog.queue(queue_id), self.replicas.get(queue_id)
            if record is not None and copy is not None:
                assert copy.ring.view == record.view, "a copy is stepped with an old view"
        if self._follower.is_restoring:
            raft = self._consensus.raft
            assert self._follower.applied_max < raft.applied_index, "a lease counts too early"
        return out

    with pytest.MonkeyPatch.context() as patch, tiny_pages():
        patch.setattr(Engine, "step", judged_step)
        patch.setattr(Follower, "apply", judged_apply)
        patch.setattr(Follower, "restore_page", counted_page)
        yield counts


class Portions:
    """Three nodes, and changes of the catalog that some of them hear of late."""

    def __init__(self) -> None:
        self.cluster = SimulatedCluster(seed=4)
        self.cluster.start()
        self.cluster.run(2000)
        self.number = 0

    def tell(self, node: str, command: Any) -> None:
        self.cluster.tell(node, Ask(self.cluster.new_token(), command))

    def declare(self, *nodes: str) -> None:
        """So many queues, all at once."""
        for _ in range(QUEUES):
            self.number += 1
            node = nodes[self.number % len(nodes)]
            self.tell(node, DeclareQueue(f"q{self.number}", True, False, False, node, None, ()))

    def change(self, node: str) -> None:
        """Policies, and queues that go."""
        policy = parse("p", "", {"max-length": 100 + self.number})
        self.tell(node, SetPolicy("p", to_text(policy)))
        for queue_id in tuple(self.cluster.engine(node).catalog.queue_ids())[::5]:
            self.tell(node, DeleteQueue(queue_id))

    def other(self) -> str:
        """A node that does not lead the catalog."""
        leader = self.cluster.engine("a").leader
        return next(name for name in "abc" if name != leader)

    def check(self) -> None:
        """All nodes have one catalog, and each copy has the view and the policy in it."""
        self.cluster.run(20_000)
        engines = [self.cluster.engine(name) for name in self.cluster.running]
        images = {engine.catalog.snapshot() for engine in engines}
        assert len(images) == 1, "catalogs differ"
        for engine in engines:
            assert not engine.has_portions
            assert engine.replicas.keys() == set(engine.catalog.queue_ids()), "a copy was not told"
            for record in engine.catalog.queues():
                definition = engine.catalog.definition_of(record.name)
                copy = engine.replicas[record.id]
                assert copy.ring.view == record.view, "a copy was not told"
                assert copy.definition == definition, "a copy was not told"
                in_sync = sum(member.in_sync for member in record.view.members)
                assert in_sync == len(engines), "no progress"


def late(*, is_behind_snapshot: bool) -> None:
    """A node hears of many changes late: as entries, or as a snapshot and entries behind it."""
    with watched() as counts, pytest.MonkeyPatch.context() as patch:
        patch.setattr(follower, "COMPACT_ENTRIES", 20 if is_behind_snapshot else 2000)
        portions = Portions()
        cluster, name = portions.cluster, portions.other()
        portions.declare("a", "b", "c")
        cluster.run(3000)
        others = [other for other in "abc" if other != name]
        for other in others:
            cluster.cut(name, other)
        for _ in range(3 if is_behind_snapshot else 1):
            portions.declare(*others)
            cluster.run(1500)
            portions.change(others[0])
            cluster.run(1500)
        cluster.heal_all()
        # Each portion takes a while, and more is agreed on meanwhile.
        cluster.starve(1, 3)
        portions.declare(*others)
        for number in range(60):
            cluster.run(20)
            cluster.tell(name, WriteAll())
            if number % 5 == 0:
                portions.change(others[1])
        cluster.starve()
        portions.check()
        assert (counts["pages"] > QUEUES) is is_behind_snapshot


def restarted() -> None:
    """All nodes start again, with a snapshot and a log behind it, and one of them is forgotten."""
    with watched():
        portions = Portions()
        cluster, name = portions.cluster, portions.other()
        portions.declare("a", "b", "c")
        cluster.run(3000)
        portions.change(name)
        for one in "abc":
            cluster.kill(one)
        cluster.start()
        portions.declare("a", "b", "c")
        cluster.run(5000)
        store = cluster.nodes[name].store
        cluster.kill(name)
        cluster.run(3000)
        others = [other for other in "abc" if other != name]
        assert not cluster.ask(others[0], RemoveNode(name, store.store)).error
        portions.check()


def test_entries_that_come_late_are_applied_one_by_one() -> None:
    late(is_behind_snapshot=False)


def test_a_snapshot_that_comes_late_is_read_page_by_page_and_entries_wait_behind_it() -> None:
    late(is_behind_snapshot=True)


def test_the_log_at_a_start_and_a_node_that_is_forgotten() -> None:
    restarted()
