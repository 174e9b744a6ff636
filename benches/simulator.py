"""How fast the simulator is: simulated seconds a second of one core, under a light load.

    python benches/simulator.py [SIMULATED_SECONDS]

Three nodes with their default times (heartbeat 250 ms) and one queue. A producer on one mirror
publishes a message each 400 ms and a consumer on the other acks it: 5 operations a second. CPU
time is measured, so that other work of the machine counts little.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from random import Random

# The harness is beside the tests.
sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from harness.cluster import SimulatedCluster
from harness.workload import Consumer, Journal, Producer

PUBLISH_MS = 400
WARM_UP_MS = 5000


class Eager(Random):
    """Always the least that may be chosen: one message a batch, acked at once."""

    def randint(self, low: int, high: int) -> int:
        return low

    def choice(self, choices):  # type: ignore[no-untyped-def]
        return choices[0]


def light_cluster() -> tuple[SimulatedCluster, int]:
    """A cluster under its load, and the id of its queue."""
    cluster = SimulatedCluster(seed=1, is_jittery=False)
    cluster.start()
    queue_id = cluster.declare("a", "orders")
    journal = Journal()
    producer = Producer(cluster, "b", queue_id, "p", Eager(), journal, 1_000_000_000)
    Consumer(cluster, "c", queue_id, "c", Eager(), journal, 0.0)

    def publish() -> None:
        producer.publish()
        cluster.after(PUBLISH_MS, publish)

    publish()
    return cluster, queue_id


def measure(simulated_s: int) -> tuple[float, float]:
    """Simulated seconds a second of CPU time, and the ops a simulated second."""
    cluster, queue_id = light_cluster()
    cluster.run(WARM_UP_MS)
    state = cluster.engine("a").replicas[queue_id].state
    applied, began = state.applied, time.process_time()
    cluster.run(simulated_s * 1000)
    took_s = time.process_time() - began
    return simulated_s / took_s, (state.applied - applied) / simulated_s


def main() -> None:
    simulated_s = int(sys.argv[1]) if len(sys.argv) > 1 else 600
    ratio, ops = measure(simulated_s)
    print(f"{ratio:.0f} simulated seconds a second of one core, at {ops:.1f} operations a second")


if __name__ == "__main__":
    main()
