"""Python's garbage collector in a process that is a node and nothing else."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

FULL_EVERY = 100
"""Full collections come after so many of the middle generation; Python's own number is 10. At most
some 700,000 objects of garbage in cycles wait for one."""


@contextmanager
def rare_full_collections() -> Iterator[None]:
    """Keep full collections short and rare within the block.

    A full collection walks all objects in the middle of some step: 0.3 to 0.4 s with 5,000 queues.
    What the process has loaded stays and is walked no more. The death of a node, which makes many
    new objects for each queue, brings no full collection.
    """
    young, middle, full = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(young, middle, FULL_EVERY)
    try:
        yield
    finally:
        gc.set_threshold(young, middle, full)
        gc.unfreeze()
