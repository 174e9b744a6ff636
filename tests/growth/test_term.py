"""What a step of a queue costs: it grows with the work in hand, and with nothing else.

The same few messages are put, confirmed, handed out and acked after pasts that differ in one
dimension by a factor of fifty, and the lines they execute are counted.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from core.entries import CODEC
from core.test_master import ONE, Queue
from mirrorq.config import Config
from mirrorq.protocol.identities import SessionId
from mirrorq.protocol.sessions import (
    Attached,
    Detach,
    Ping,
    Pong,
    ProducerUnknown,
    Publish,
    Subscribe,
)
from mirrorq.replication.events import Tick
from mirrorq.replication.master.courier import IDLE_MS, courier_number
from mirrorq.replication.state.outbox import producer_of

from .term import Past, work_after

FEW, MANY = 50, 2_500
GROWTH_MAX = 1.5
"""A binary search or two in what is fifty times as large, and no walk of it."""


def depth(size: int) -> Past:
    """So many messages, of one op, are ready beside those of the work."""
    past = Past()
    past.put(size)
    return past


def open_deliveries(size: int) -> Past:
    """Consumers hold so many messages that came one at a time."""
    past = Past()
    takers = [past.session() for _ in range(10)]
    for taker in takers:
        past.consume(taker, size // len(takers))
    for _ in range(size):
        past.put()
    assert past.queue.replica.master.dispatch.open.unacknowledged == size
    return past


def fetched_ahead(size: int) -> Past:
    """A handle has fetched so many messages, one at a time, that no call of it has asked for."""
    past = Past()
    fetcher = past.session()
    past.consume(fetcher, size, number=0)
    for _ in range(size):
        past.put()
    assert past.queue.replica.master.dispatch.open.unacknowledged == size
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


def targets_deleted(size: int) -> Past:
    """A message went to each of so many queues, which were deleted then: replies to clients."""
    past = Past()
    for target in range(2, size + 2):
        past.send(target)
        past.delete(target)
    return past


def targets_idle(size: int) -> Past:
    """A message went to each of so many queues, which live."""
    past = Past()
    for target in range(2, size + 2):
        past.send(target)
    return past


def senders_deleted(size: int) -> Past:
    """A message came from each of so many queues, which were deleted then."""
    past = Past()
    for sender in range(2, size + 2):
        past.receive(sender)
        past.delete(sender)
    return past


def senders_idle(size: int) -> Past:
    """A message came from each of so many queues, which live."""
    past = Past()
    for sender in range(2, size + 2):
        past.receive(sender)
    return past


@pytest.mark.parametrize(
    "dimension",
    [
        depth,
        open_deliveries,
        fetched_ahead,
        seated_consumers,
        handles_gone,
        producers_gone,
        targets_deleted,
        targets_idle,
        senders_deleted,
        senders_idle,
    ],
)
def test_work_in_hand_costs_the_same(dimension: Callable[[int], Past]) -> None:
    """Fifty times as much of this leaves a step what it was."""
    few, many = work_after(dimension, FEW), work_after(dimension, MANY)
    assert many.count < GROWTH_MAX * few.count, f"{few.count} lines, {many.growth_text(few)}"


def test_nothing_is_kept_of_queues_that_are_deleted() -> None:
    """Neither numbers nor couriers of targets, nor ids of senders, on any copy: 50 of each."""
    bare = Past()
    for make in (targets_deleted, senders_deleted):
        past = make(50)
        replica = past.queue.replica
        assert replica.state.outbox.image() == []
        assert replica.master.departures.couriers.targets == []
        assert len(replica.state.producers) == len(bare.queue.replica.state.producers)
        assert not replica.master.has_neighbours


def test_a_courier_without_work_goes_and_another_goes_on() -> None:
    """Numbers for a target that lives have no gap, however long nothing went there."""
    past = targets_idle(50)
    couriers = past.queue.replica.master.departures.couriers
    assert len(couriers.targets) == 50
    past.queue.now_ms += 2 * IDLE_MS
    past.queue.step(Tick())
    assert couriers.targets == []
    assert {type(request.request) for request in past.queue.requests} == {Detach}
    past.queue.requests.clear()
    past.send(2)
    past.send(2)
    assert past.queue.replica.state.outbox.next_number(2) == 4
    assert couriers.targets == [2]


def test_what_a_deleted_queue_repeats_is_not_taken_again() -> None:
    """Its id is gone; a request that was on its way for long is no new message."""
    past = senders_deleted(1)
    courier, producer = SessionId("b", 1, courier_number(2, 2)), producer_of(2, 0)
    past.queue.attach(courier, producer=producer)
    past.queue.ask(courier, Publish(CODEC.frame(producer, 1, 1, 0), False))
    past.queue.sync()
    assert past.queue.heard(courier) == [Attached(), ProducerUnknown(producer)]
    assert past.queue.replica.state.live.count == 1


def test_what_is_said_again_does_not_pile_up_before_a_promotion() -> None:
    """A handle that hears nothing for minutes attaches and publishes again and again: what it said
    last is kept, and nothing of before."""
    queue = Queue()
    for _ in range(1000):
        queue.attach(ONE)
        queue.ask(ONE, Ping())
    master = queue.replica.master
    assert master is not None
    assert not master.active
    assert len(master.waiting) < 300
    queue.sync()
    assert queue.heard()[-2:] == [Attached(), Pong()]


def test_what_is_said_again_does_not_pile_up_while_publishes_wait() -> None:
    """The same while they wait for unstable ops: a handle whose link breaks time and again."""
    queue = Queue(config=Config(unstable_bytes_max=4096))
    queue.sync()
    queue.attach(ONE)
    producer = queue.open_producer()
    count = 0
    while queue.replica.ring.log.unstable_bytes < 4096:
        count += 1
        queue.publish(producer, count)
    for _ in range(1000):
        queue.attach(ONE, producer=producer)
        queue.publish(producer, count + 1)
    master = queue.replica.master
    assert master is not None
    assert 0 < len(master.intake.held) < 300
    queue.sync()
    assert queue.replica.state.live.count == count + 1
