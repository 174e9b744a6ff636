"""Idle queues: nobody looks at them, and who comes hears of them all the same."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from harness.cluster import SimulatedCluster
from mirrorq.protocol.effects import QueueWrite, RaftWrite, ReplicaEffects
from mirrorq.replication import writes as checkpoints
from mirrorq.replication.replica import Replica
from mirrorq.testing.disk import SimulatedDisk

from .world import World

PUTS = 20


def test_an_idle_queue_is_not_stepped_and_a_node_that_starts_hears_what_it_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Reports are made of queues that were stepped; a new incarnation of a node has heard none."""
    cluster = SimulatedCluster(seed=3)
    cluster.start()
    queues = [cluster.declare("a", f"q{number}") for number in range(4)]
    cluster.run(10_000)
    engine = cluster.engine("a")
    assert all(engine.replicas[queue_id].is_serving for queue_id in queues)
    steps: list[int] = []
    real = Replica.step

    def step(replica: Replica, *arguments: Any) -> ReplicaEffects:
        steps.append(replica.queue_id)
        return real(replica, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(Replica, "step", step)
        cluster.run(5000)
        assert not steps
    cluster.kill("c")
    cluster.run(3000)
    cluster.start("c")
    reports = cluster.engine("c").reports
    assert cluster.run_until(lambda: all(queue_id in reports for queue_id in queues))


@pytest.mark.parametrize(("cheap_bytes", "each_is_written"), [(1 << 20, True), (64, False)])
def test_a_large_state_is_not_written_after_each_put(
    monkeypatch: pytest.MonkeyPatch, cheap_bytes: int, each_is_written: bool
) -> None:
    """A put every two seconds into a queue whose state has a run for each message. A small state
    is written after each; a large one waits, but not for ever."""
    monkeypatch.setattr(checkpoints, "CHEAP_BYTES", cheap_bytes)
    world = World("a")
    written: list[int] = []
    real = SimulatedDisk.commit

    def commit(disk: SimulatedDisk, writes: Iterable[QueueWrite], raft: RaftWrite | None) -> None:
        known = list(writes)
        written.extend(len(each.state) for each in known if each.state is not None)
        real(disk, known, raft)

    monkeypatch.setattr(SimulatedDisk, "commit", commit)
    producer = world.producer("a", 3 * PUTS)
    assert world.cluster.run_until(lambda: producer.sent == producer.count)
    world.cluster.run(checkpoints.QUIET_MS_MAX + 2000)
    assert written, "quiet at last"
    written.clear()
    for number in range(PUTS):
        world.producer("a", 1, f"p{number}")
        world.cluster.run(2000)
    assert (len(written) >= PUTS) == each_is_written, written
    world.cluster.run(checkpoints.QUIET_MS_MAX + 2000)
    assert written, "quiet at last"
