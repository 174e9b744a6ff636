"""Producer ids that nobody uses any more."""

from __future__ import annotations

from random import Random

from harness.cluster import SimulatedCluster
from harness.workload import Journal, Place, Producer
from mirrorq.config import Config

EXPIRY_MS = 20_000


def test_an_idle_producer_goes_on_and_old_ids_are_forgotten() -> None:
    """A handle that was idle for long takes a new id, so that its next put is confirmed; the
    queue's table keeps only ids in use."""
    cluster = SimulatedCluster(config=Config(producer_expiry_ms=EXPIRY_MS))
    cluster.start()
    queue_id = cluster.declare("a", "orders")
    journal = Journal()
    producer = Producer(Place(cluster, "b", queue_id, "p", Random(1)), journal, 100)
    for _ in range(3):
        sent = producer.sent
        while producer.sent < sent + 5:
            producer.publish()
        assert cluster.run_until(lambda: producer.session.is_idle)
        cluster.run(EXPIRY_MS * 3)
    assert {attempt.state for attempt in journal.attempts.values()} == {"acknowledged"}
    master = cluster.master(queue_id)
    assert master is not None
    other = Producer(Place(cluster, "c", queue_id, "q", Random(2)), journal, 1)
    other.publish()
    assert cluster.run_until(lambda: other.is_done)
    cluster.run(EXPIRY_MS)
    assert len(cluster.engine(master).replicas[queue_id].state.producers) <= 2
