"""The broker of dramatiq: its calls here, its workers as processes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

dramatiq = pytest.importorskip("dramatiq")

from dramatiq.errors import (  # noqa: E402
    ConnectionClosed,
    ConnectionFailed,
    QueueJoinTimeout,
    QueueNotFound,
)
from shop import DEADLINE_S, DRAMATIQ, Shop  # noqa: E402
from tests.kit import until  # noqa: E402

import mirrorq  # noqa: E402
from mirrorq import bulk  # noqa: E402
from mirrorq.contrib.dramatiq import MirrorQBroker  # noqa: E402


@pytest.fixture
def broker(url: str) -> Iterator[MirrorQBroker]:
    made = MirrorQBroker(url, middleware=[])
    made.declare_queue("default")
    yield made
    made.close()


@pytest.fixture
def shop(url: str, tmp_path: Path) -> Iterator[Shop]:
    made = Shop(url, tmp_path)
    yield made
    made.end()


def message(number: object, **options: Any) -> Any:
    return dramatiq.Message(
        queue_name="default", actor_name="add", args=(number,), kwargs={}, options=options
    )


def taken(consumer: Any) -> Any:
    """The next one, which comes."""
    return next(one for one in consumer if one is not None)


def test_what_is_put_is_taken_and_acked(broker: MirrorQBroker) -> None:
    """No more than the prefetch; what is given back or not acked comes again."""
    for number in range(3):
        broker.enqueue(message(number))
    consumer = broker.consume("default", prefetch=2, timeout=50)
    first, second = taken(consumer), taken(consumer)
    assert [one.args[0] for one in (first, second)] == [0, 1]
    assert next(consumer) is None  # two are held
    consumer.ack(first)
    third = taken(consumer)
    assert third.args[0] == 2
    consumer.requeue([second])
    assert taken(consumer).args[0] == 1
    consumer.close()  # it and the third go back
    again = broker.consume("default", prefetch=5, timeout=50)
    rest = [taken(again), taken(again)]
    assert sorted(one.args[0] for one in rest) == [1, 2]
    for one in rest:
        again.ack(one)
    broker.join("default", timeout=int(DEADLINE_S * 1000))
    again.close()


def test_delays_are_the_queues_own(broker: MirrorQBroker, node: mirrorq.Node) -> None:
    """And priorities. A delayed message is on no worker, and none of its prefetch."""
    broker.enqueue(message(1), delay=3_600_000)
    broker.enqueue(message(2))
    broker.enqueue(message(3, broker_priority=5))
    dramatiq.actor(print, actor_name="urgent", broker=broker, broker_priority=6).send(4)
    consumer = broker.consume("default", prefetch=3, timeout=50)
    assert [taken(consumer).args[0] for _ in range(3)] == [4, 3, 2]
    consumer.close()
    # What goes back is in no count until its queue has it again.
    until(lambda: node.queue("default").status().messages == 4)
    with pytest.raises(QueueJoinTimeout):
        broker.join("default", timeout=1)
    broker.flush("default")
    broker.join("default", timeout=int(DEADLINE_S * 1000))


def test_what_has_failed_is_kept(broker: MirrorQBroker, node: mirrorq.Node) -> None:
    """In the queue of dead messages, with what nobody can read."""
    broker.enqueue(message(1))
    node.queue("default").put(b"no message of dramatiq").result(DEADLINE_S)
    consumer = broker.consume("default", timeout=50)
    consumer.nack(taken(consumer))
    assert [one for one in (next(consumer) for _ in range(3)) if one is not None] == []
    dead = node.queue("default.XQ")
    bodies = [dead.get(timeout=DEADLINE_S).body for _ in range(2)]
    assert dramatiq.Message.decode(bodies[0]).args == (1,)
    assert bodies[1] == b"no message of dramatiq"
    consumer.close()


def is_told_of_its_end(handle: mirrorq.MirroredQueue) -> bool:
    try:
        bulk.extent(handle)
    except mirrorq.ShutDown:
        return True
    except mirrorq.QueueDown:
        pass
    return False


def test_a_message_fails_though_its_dead_letter_queue_was_deleted(
    broker: MirrorQBroker, node: mirrorq.Node
) -> None:
    """The queue is declared again; and the consumer, which may hold one message, takes the next."""
    broker.enqueue(message(1))
    broker.enqueue(message(2))
    consumer = broker.consume("default", prefetch=1, timeout=50)
    first = taken(consumer)
    handle = broker._opened("default.XQ")
    node.queue("default.XQ").delete()
    until(lambda: is_told_of_its_end(handle))
    consumer.nack(first)
    dead = node.queue("default.XQ").get(timeout=DEADLINE_S)
    assert dramatiq.Message.decode(dead.body).args == (1,)
    assert taken(consumer).args == (2,)
    consumer.close()


@pytest.mark.parametrize("error", [mirrorq.QueueNotFound, mirrorq.ShutDown, ConnectionClosed])
def test_a_nack_that_raises_holds_nothing_up(
    broker: MirrorQBroker, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    """The message counts as held only where dramatiq calls again: after a ConnectionClosed."""
    for number in (1, 2):
        broker.enqueue(message(number))
    consumer = broker.consume("default", prefetch=1, timeout=50)
    first = taken(consumer)

    def fail(*_: object, **__: object) -> None:
        raise error("no majority")

    with monkeypatch.context() as patch:
        patch.setattr(mirrorq.Message, "ack_and_put", fail)
        with pytest.raises(error):
            consumer.nack(first)
    if error is ConnectionClosed:
        assert next(consumer) is None
        consumer.nack(first)
    assert taken(consumer).args == (2,)
    consumer.close()


def test_joining_an_empty_queue_takes_one_look(broker: MirrorQBroker) -> None:
    """However short the time-out is."""
    broker.join("default", timeout=0)
    broker.enqueue(message(1))
    with pytest.raises(QueueJoinTimeout):
        broker.join("default", timeout=0)


def test_a_wrong_argument_is_no_lost_connection(broker: MirrorQBroker) -> None:
    for wrong in ({"broker_priority": -1}, {"broker_priority": 1000}):
        with pytest.raises(mirrorq.ConfigError, match="priority"):
            broker.enqueue(message(1, **wrong))
    with pytest.raises(ValueError, match="bytes"):
        broker.enqueue(message("x" * (20 << 20)))


def test_queues_and_nodes_that_are_not_there(broker: MirrorQBroker, node: mirrorq.Node) -> None:
    """By dramatiq's own names; a queue that was deleted is made again."""
    other = dramatiq.Message(queue_name="other", actor_name="add", args=(), kwargs={}, options={})
    for call in (lambda: broker.enqueue(other), lambda: broker.consume("other")):
        with pytest.raises(QueueNotFound):
            call()
    broker.enqueue(message(1))
    node.queue("default").delete()
    broker.enqueue(message(2))
    consumer = broker.consume("default", prefetch=2, timeout=50)
    assert taken(consumer).args[0] == 2
    node.queue("default").delete()
    with pytest.raises(ConnectionClosed):
        until(lambda: next(consumer))
    nobody = MirrorQBroker("mirrorq://127.0.0.1:1?fail_fast=1")
    nobody.declare_queue("default")
    with pytest.raises(ConnectionFailed, match="no node listens"):
        nobody.enqueue(message(1))


def test_a_killed_worker(broker: MirrorQBroker, shop: Shop) -> None:
    """What it was at comes again, to the next one."""
    path = str(shop.path / "once")
    task = dramatiq.Message(
        queue_name="default", actor_name="hang", args=(path,), kwargs={}, options={}
    )
    broker.enqueue(task)
    assert shop.start(DRAMATIQ).wait(DEADLINE_S) == -9
    assert shop.done() == []
    shop.start(DRAMATIQ)
    until(lambda: shop.done() == [-1])
    broker.join("default", timeout=int(DEADLINE_S * 1000))
