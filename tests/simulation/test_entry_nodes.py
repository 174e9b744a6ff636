"""P2 for one worker: a client that goes from entry node to entry node sees its queue's order.

Found from outside: a worker saw 221 before 121. What its handle had fetched through a node that was
killed stayed with that session, while its next one was handed what lies behind.
"""

from __future__ import annotations

from random import Random

import pytest

from harness import workload
from simulation.world import World

MESSAGES = 800
SEEDS = 4
LEAVE_SHARE = 0.3
"""The client leaves its node at so many of its looks."""
LOOK_MS = 20
KILL_MS = (50, 400)
DEAD_MS = 200


def overtaken(seed: int) -> list[str]:
    """What the only worker of a queue saw first behind something that comes later in the queue.

    It enters through `b` and `c`, which its client leaves and which are killed now and then; the
    queue's master, `a`, lives on.
    """
    random = Random(f"{seed} entry nodes")
    world = World(seed=seed)
    cluster = world.cluster
    worker = world.consumer(random.choice("bc"))
    worker.prefetch = random.choice((10, 40, 100))
    worker.be_of_client(1 + seed, random)
    producer = world.producer("a", MESSAGES)

    def kill() -> None:
        if worker.node != "a" and len(cluster.running) == 3:
            name = worker.node
            cluster.kill(name)
            cluster.after(DEAD_MS, cluster.start, name)
        cluster.after(random.randint(*KILL_MS), kill)

    cluster.after(random.randint(*KILL_MS), kill)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(workload, "LEAVE_SHARE", LEAVE_SHARE)
        patch.setattr(workload, "ENTRY_LOOK_MS", LOOK_MS)
        world.until(lambda: producer.is_done and world.live("a") == 0)
    assert worker._turn > 1, "it has hardly moved"
    return _not_in_order([one.sequence for one in world.journal.deliveries])


def _not_in_order(sequences: list[int]) -> list[str]:
    wrong, highest = [], 0
    for sequence in dict.fromkeys(sequences):
        if sequence < highest:
            wrong.append(f"overtaken: {sequence} after {highest}")
        highest = max(highest, sequence)
    return wrong


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_worker_sees_the_order_through_all_its_entry_nodes(seed: int) -> None:
    assert overtaken(seed) == []
