"""Idle queues: nobody looks at them, and who comes hears of them all the same."""

from __future__ import annotations

from mirrorq.testing import SimulatedCluster


def test_an_idle_queue_is_not_stepped_and_a_node_that_starts_hears_what_it_counts() -> None:
    """Reports are made of queues that were stepped; a new life of a node has heard none."""
    cluster = SimulatedCluster(seed=3)
    cluster.start()
    queues = [cluster.declare("a", f"q{number}") for number in range(4)]
    cluster.run(10_000)
    engine = cluster.engine("a")
    steps: list[int] = []
    for queue_id in queues:
        replica = engine.replicas[queue_id]
        assert replica.is_serving
        real = replica.step

        def step(*arguments, queue_id=queue_id, real=real):  # type: ignore[no-untyped-def]
            steps.append(queue_id)
            return real(*arguments)

        replica.step = step  # type: ignore[method-assign]
    cluster.run(5000)
    assert not steps
    cluster.kill("c")
    cluster.run(3000)
    cluster.start("c")
    reports = cluster.engine("c").reports
    assert cluster.run_until(lambda: all(queue_id in reports for queue_id in queues))
