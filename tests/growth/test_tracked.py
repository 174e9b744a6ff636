"""What Python's garbage collector looks at does not grow with a queue.

Each of its full collections walks all that it tracks, in the middle of some step. So what there is
one of for each message, delivery, hole or producer is tracked by none: numbers in arrays, pages as
bytes, and records that take no part in cycles.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from functools import partial

import pytest

from core.test_producer_pages import deep_of
from mirrorq.protocol.policy import Definition
from mirrorq.replication.events import Defined

from .test_depth import (
    FEW,
    Deep,
    checkpoint,
    count_bytes,
    files_of,
    hold,
    lose_holder,
    nothing,
)

CACHED_MAX = 10_000
"""Objects of the pages that are kept in memory, however many there are."""


def _tracked(make: Callable[[], object]) -> int:
    """How many objects more are tracked for what is made."""
    gc.collect()
    before = len(gc.get_objects())
    made = make()
    gc.collect()
    found = len(gc.get_objects()) - before
    del made
    return found


def _lost(deep: Deep) -> None:
    """The holder of all is dead, and all of it has come back."""
    hold(deep)
    lose_holder(deep)
    deep.finish()
    assert deep.state.returned.count == deep.state.live.count


def _expiring(deep: Deep) -> None:
    deep.queue.step(Defined(Definition(message_ttl=1 << 40)))


@pytest.mark.parametrize("prepare", [nothing, hold, _lost, count_bytes, _expiring, checkpoint])
def test_no_more_is_tracked_of_a_deep_queue(prepare: Callable[[Deep], None]) -> None:
    """None of whose messages stands beside another: as many holes, and as many deliveries."""

    def made(count: int) -> Deep:
        deep = Deep(count)
        prepare(deep)
        return deep

    found = []
    for count in (FEW, 30 * FEW):
        files_of(count)
        found.append(_tracked(lambda: made(count)))  # noqa: B023
    assert found[1] < found[0] + CACHED_MAX


def _use_all(count: int) -> object:
    """Some of each page are looked up, then some publish, without a checkpoint."""
    many = deep_of(count)
    for number in range(1, count, 100):
        many.state.producers.find(number)
    for number in range(1, count, 100):
        many.publish(number)
    return many


def test_no_more_is_tracked_of_many_producers() -> None:
    few, many = (_tracked(partial(_use_all, count)) for count in (FEW, 20 * FEW))
    assert many < few + CACHED_MAX // 10
