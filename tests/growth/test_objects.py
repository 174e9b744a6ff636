"""How many objects an idle queue is. Python's garbage collector walks over all of them at once, and
nothing else runs meanwhile: with 130 objects for each, 5,000 queues silenced a node for a second
while they were declared, and the others took it for dead.
"""

from __future__ import annotations

import gc

from .test_catalog import Large

FEW, MANY = 30, 90
COPIES = 3
OBJECTS_MAX = 55
"""Of one copy, a third of which are masters; with what the simulator keeps of each."""


def objects_of(queues: int) -> int:
    large = Large(queues)
    gc.collect()
    count = len(gc.get_objects())
    assert len(large.cluster.engine("a").catalog.queues()) == queues
    return count


def test_an_idle_queue_is_few_objects() -> None:
    objects_of(FEW)  # what is made once
    few = objects_of(FEW)
    copies = COPIES * (MANY - FEW)
    assert objects_of(MANY) - few <= OBJECTS_MAX * copies
