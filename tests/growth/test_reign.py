"""What a step of a queue costs: it grows with the work in hand, and with nothing else.

The same few messages are put, confirmed, handed out and acked after pasts that differ in one
dimension by a factor of fifty, and their bytecodes are counted.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mirrorq.messages import Subscribe

from .reign import Past, work_after

FEW, MANY = 50, 2_500
GROWTH_MAX = 1.5
"""A binary search or two in what is fifty times as large, and no walk of it."""


def depth(size: int) -> Past:
    """So many messages, of one op, are ready beside those of the work."""
    past = Past()
    past.put(size)
    return past


def open_hand_outs(size: int) -> Past:
    """Consumers hold so many messages that came one at a time."""
    past = Past()
    takers = [past.session() for _ in range(10)]
    for taker in takers:
        past.consume(taker, size // len(takers))
    for _ in range(size):
        past.put()
    assert past.queue.replica.master.delivery.unacknowledged == size
    return past


def fetched_ahead(size: int) -> Past:
    """A handle has fetched so many messages, one at a time, that no call of it has asked for."""
    past = Past()
    fetcher = past.session()
    past.consume(fetcher, size, number=0)
    for _ in range(size):
        past.put()
    assert past.queue.replica.master.delivery.unacknowledged == size
    return past


def seated_consumers(size: int) -> Past:
    """So many consumers hold what they may, and wait for nothing."""
    past = Past()
    for _ in range(size):
        past.queue.ask(past.session(), Subscribe(1, 1))
    return past


def handles_gone(size: int) -> Past:
    """So many handles have come, taken and acked a message, and gone."""
    past = Past()
    for _ in range(size):
        one = past.session()
        past.consume(one, 1)
        past.put()
        past.settle(one, past.taken(one))
        past.leave(one)
    return past


def producers_gone(size: int) -> Past:
    """So many producers have opened an id, and gone."""
    past = Past()
    for _ in range(size):
        one = past.session()
        past.open_producer(one)
        past.leave(one)
    return past


@pytest.mark.parametrize(
    "dimension",
    [
        depth,
        open_hand_outs,
        fetched_ahead,
        seated_consumers,
        handles_gone,
        producers_gone,
    ],
)
def test_work_in_hand_costs_the_same(dimension: Callable[[int], Past]) -> None:
    """Fifty times as much of this leaves a step what it was."""
    few, many = work_after(dimension, FEW), work_after(dimension, MANY)
    assert many.count < GROWTH_MAX * few.count, f"{few.count} bytecodes, {many.growth_text(few)}"
