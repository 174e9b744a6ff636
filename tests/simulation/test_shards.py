"""Sharded queues on virtual time: declared while leaders die, and each shard over failovers."""

from __future__ import annotations

from collections import Counter

import pytest

from harness.cluster import SimulatedCluster
from harness.workload import Journal
from mirrorq.cluster.catalog.sharding import ShardedRecord
from mirrorq.engine.events import Ask
from mirrorq.protocol.commands import DeclareShards, DeleteQueue

from .world import World

SHARDS = 6
DECLARE = DeclareShards("orders", SHARDS, True, "b", ())


class Shard(World):
    """One shard of a queue that was declared before."""

    def __init__(self, cluster: SimulatedCluster, ring: int) -> None:
        self.cluster = cluster
        self.queue_id = ring
        self.data_nodes = tuple("abc")
        self.journal = Journal()


def record_at(cluster: SimulatedCluster, node: str) -> ShardedRecord | None:
    return cluster.engine(node).catalog.sharded_named("orders")


def started(seed: int) -> SimulatedCluster:
    cluster = SimulatedCluster(tuple("abc"), seed=seed)
    cluster.start()
    cluster.declare("a", "other")
    return cluster


def ring_counts(cluster: SimulatedCluster) -> list[int]:
    """How many rings of shards each running node's catalog has."""
    return [len(cluster.engine(name).catalog.queues()) - 1 for name in cluster.running]


@pytest.mark.parametrize("delay_ms", range(0, 14, 2))
def test_a_declaration_is_whole_whoever_dies(delay_ms: int) -> None:
    """The leader, or the asker's link to it, ends at any moment: no node ever has a part of the
    rings, and the one request makes all of them."""
    cluster = started(delay_ms)
    leader = next(n for n in cluster.running if cluster.engine(n).leader == n)
    asker = "b" if leader != "b" else "c"
    seen: list[int] = []
    token = cluster.new_token()
    cluster.tell(asker, Ask(token, DECLARE))
    cluster.after(delay_ms, lambda: cluster.kill(leader))

    def is_answered() -> bool:
        seen.extend(ring_counts(cluster))
        return token in cluster.nodes[asker].answers

    assert cluster.run_until(is_answered, 60_000)
    assert not cluster.nodes[asker].answers[token].error
    cluster.run(delay_ms)
    cluster.start()
    assert cluster.run_until(lambda: ring_counts(cluster) == [SHARDS] * 3, 60_000)
    assert set(seen) <= {0, SHARDS}
    again = cluster.ask("a", DECLARE)
    record = record_at(cluster, "a")
    assert record is not None
    assert again.value == record.id
    cluster.ask("c", DeleteQueue(record.id))
    assert cluster.run_until(lambda: ring_counts(cluster) == [0] * 3, 60_000)


@pytest.mark.parametrize("seed", range(2))
def test_every_shard_keeps_what_it_confirmed(seed: int) -> None:
    """Producers and consumers at all shards, two nodes killed one after the other: each shard has
    lost nothing, doubled nothing, kept its order; masters began spread, and stay on who runs."""
    cluster = started(seed)
    answer = cluster.ask("b", DECLARE)
    record = record_at(cluster, "b")
    assert record is not None
    assert answer.value == record.id
    shards = [Shard(cluster, ring) for ring in record.rings]
    assert cluster.run_until(lambda: all(s.master is not None for s in shards), 60_000)
    # Though a leads another queue.
    assert Counter(shard.master for shard in shards) == {"a": 2, "b": 2, "c": 2}
    assert all(set(cluster.in_sync(s.queue_id)) == set("abc") for s in shards)
    for number, shard in enumerate(shards):
        shard.consumer("bc"[number % 2])
        shard.producer("cb"[number % 2], 60, f"p{number}")
    cluster.run(30)
    cluster.kill("a")
    cluster.run(4000)
    assert {shard.master for shard in shards} == {"b", "c"}
    cluster.start()
    shards[0].until_in_sync()
    cluster.kill("b")
    cluster.run(500)
    for shard in shards:
        shard.check()
