"""Sharded queues on virtual time: declared while leaders die, and each shard over failovers."""

from __future__ import annotations

import pytest

from harness.cluster import SimulatedCluster
from mirrorq.cluster.catalog.sharding import ShardedRecord
from mirrorq.engine.events import Ask
from mirrorq.protocol.commands import DeclareShards, DeleteQueue

SHARDS = 6
DECLARE = DeclareShards("orders", SHARDS, True, "b", ())


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
