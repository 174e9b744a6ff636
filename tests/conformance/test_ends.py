"""Shutdown, close and delete: what each ends, for whom, and what the next call says."""

from __future__ import annotations

import copy
import logging
from typing import Any

import pytest

from conformance.faces import (
    ITEMS,
    ONE_RING,
    THREADS,
    WAIT_S,
    Stage,
    case,
    fill,
    got,
    raised,
    taken,
)
from mirrorq import (
    AckRefused,
    ConfirmUnknown,
    MirrorQError,
    PreconditionFailed,
    QueueNotFound,
    ShutDown,
)


@case(ITEMS)
def test_shutdown_lets_gets_go_on_until_the_queue_is_empty(stage: Stage) -> None:
    """As queue.Queue of 3.13: puts end at once, gets at the end of the queue. What is held can be
    acked, and other handles go on."""
    queue, other = stage.queue(), stage.queue()
    for body in (b"0", b"1"):
        queue.put(body)
    stage.until(lambda: other.qsize() == 2)
    queue.shutdown()
    for call in (lambda: queue.put(b"x"), lambda: queue.put_nowait(b"x")):
        with pytest.raises(ShutDown):
            call()
    messages = [queue.get(), queue.get_nowait()]
    assert [message.body for message in messages] == [b"0", b"1"]
    for call in (queue.get, queue.get_nowait):
        with pytest.raises(ShutDown):
            call()
    for message in messages:
        message.ack()
    other.put(b"of this handle only")
    stage.until(lambda: other.qsize() == 1)
    assert queue.get().body == b"of this handle only"


def test_put_many_ends_with_a_shutdown_too(stage: Stage, queue: Any) -> None:
    queue.shutdown()
    with pytest.raises(ShutDown):
        queue.put_many([b"x"])


@case(ITEMS, unconfirmed_count_max=1)
def test_shutdown_wakes_who_waits(stage: Stage) -> None:
    """A get that waits and a put that waits both end with ShutDown."""
    queue, other = stage.queue(), stage.queue()
    getting = stage.begin(raised, queue.get)
    stage.cluster.fill_disk("a", 5)
    other.put_nowait(b"1")
    putting = stage.begin(raised, other.put, b"2")
    assert (getting.is_done, putting.is_done) == (False, False)
    queue.shutdown(immediate=True)
    other.shutdown(immediate=True)
    assert isinstance(getting.result(1), ShutDown)
    if "messages" in stage.face.calls:
        assert isinstance(putting.result(1), ShutDown)
    stage.run(10)
    stage.until(lambda: stage.messages() >= 1)


@case(ITEMS)
def test_an_immediate_shutdown_deletes_nothing(stage: Stage) -> None:
    """Gets end at once; the messages are there for others, and what is held can be acked."""
    queue, other = stage.queue(), stage.queue()
    for number in range(5):
        queue.put(b"%d" % number)
    stage.until(lambda: other.qsize() == 5)
    message = queue.get(timeout=WAIT_S)
    queue.shutdown(immediate=True)
    for call in (queue.get, queue.get_nowait):
        with pytest.raises(ShutDown):
            call()
    message.ack()
    assert taken(other, 4) == [b"1", b"2", b"3", b"4"]


@case(ITEMS)
def test_a_deleted_queue_ends_its_handles(stage: Stage) -> None:
    """Whoever waits is told; nothing hangs. The name is free again, with sequences from 1."""
    queue, other = stage.queue(), stage.cluster.node("a").queue("orders")
    waiting = stage.begin(raised, queue.get)
    other.put(b"x").result(WAIT_S)
    stage.until(lambda: waiting.is_done)
    waiting = stage.begin(raised, queue.get)
    other.delete()
    assert isinstance(waiting.result(WAIT_S), ShutDown)
    for call in (queue.qsize, lambda: queue.put(b"y"), queue.get):
        with pytest.raises(ShutDown):
            call()
    with pytest.raises(QueueNotFound):
        stage.cluster.node("a").queue("orders", passive=True)
    again = stage.queue()
    again.put(b"new")
    assert again.get(timeout=WAIT_S).body == b"new"


@case(THREADS)
def test_what_is_gone_cannot_be_deleted(stage: Stage) -> None:
    """The host says so, where two delete a queue at once."""
    queue, number = stage.queue(), stage.queue()._handle.queue_id
    queue.delete()
    with pytest.raises(QueueNotFound):
        stage.host._delete_queue(number, if_empty=False, timeout=WAIT_S)


@case(ONE_RING)
def test_a_queue_that_is_being_deleted_is_not_opened(stage: Stage) -> None:
    """Its last message still goes to another queue, which has no room."""
    full = stage.queue("full", max_length=1)
    full.put(b"0").result(WAIT_S)
    queue = stage.queue("going", dead_letter_queue="full")
    queue.put(b"1").result(WAIT_S)
    queue.get(timeout=WAIT_S).nack(requeue=False).result(WAIT_S)
    queue.delete()
    stage.run(1)
    with pytest.raises(PreconditionFailed, match="is being deleted"):
        stage.queue("going", dead_letter_queue="full")
    with pytest.raises(QueueNotFound, match="is being deleted"):
        stage.queue("going", passive=True)
    full.purge()
    stage.until(lambda: full.qsize() == 1)
    stage.until(lambda: "going" not in [row.name for row in stage.host.queues()])
    stage.queue("going", dead_letter_queue="full").put(b"2").result(WAIT_S)


def test_the_status_of_a_deleted_queue_has_its_name(stage: Stage) -> None:
    queue = stage.queue("short-lived")
    queue.delete()
    stage.until(lambda: queue.status().state == "down")
    assert queue.status().name == "short-lived"
    if stage.face.name != "sharded":
        assert queue.status().warnings == ("the queue was deleted",)


def test_closing_gives_back_what_is_held(stage: Stage) -> None:
    """Counted: its user may have begun to work on it. What was only fetched goes back uncounted."""
    queue, other = stage.queue(), stage.queue()
    fill(queue, 10)
    queue.get(timeout=WAIT_S)
    queue.close()
    assert [(message.sequence, message.delivery_count) for message in got(other, 10)] == [
        (1, 2),
        *((sequence, 1) for sequence in range(2, 11)),
    ]


def test_closing_tells_only_of_messages_that_nobody_acked(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    """An ack that has no answer yet is an ack."""
    caplog.set_level(logging.INFO, logger="mirrorq")
    queue = stage.queue()
    fill(queue, 3)
    held = got(queue, 3)
    stage.cluster.fill_disk("a", 60)
    ack = held[1].ack()
    queue.close()
    assert isinstance(ack.exception(0), ConfirmUnknown)
    told = [one.getMessage() for one in caplog.records if "nobody acked" in one.getMessage()]
    assert len(told) == 1
    assert "closed with 2 message(s)" in told[0]


@case(THREADS)
def test_what_was_on_its_way_to_a_closed_handle_is_not_counted(stage: Stage) -> None:
    """Nobody has seen it: workers that ack all they get, and close, leave no dead letters."""
    stage.host.set_policy("limit", "^orders$", {"delivery-limit": 0, "dead-letter-queue": "dead"})
    queue, dead = stage.queue(), stage.queue("dead")
    counts: list[int] = []

    def produce() -> None:
        for number in range(600):
            queue.put(b"%d" % number)
            stage.cluster.sleep(0.001)

    stage.begin(produce)
    while len(counts) < 600 and not dead.qsize():
        with stage.queue() as worker:
            for message in worker.get_many(20, timeout=1):
                counts.append(message.delivery_count)
                message.ack()
    assert counts == [1] * 600


@case(ITEMS)
def test_closing_ends_what_waits(stage: Stage, queue: Any) -> None:
    """A get that waits is told; a closed handle says so; twice is as once."""
    waiting = stage.begin(raised, queue.get)
    queue.close()
    queue.close()
    assert isinstance(waiting.result(WAIT_S), ShutDown)
    calls = (lambda: queue.put(b"x"), queue.get, queue.qsize, queue.get_nowait, queue.empty)
    for call in calls:
        with pytest.raises(ShutDown, match="is closed"):
            call()


def test_a_closed_handle_says_so_at_each_call(stage: Stage) -> None:
    queue, other = stage.queue(), stage.queue()
    other.put(b"0").result(WAIT_S)
    held = queue.get(timeout=WAIT_S)
    queue.close()
    calls: list[Any] = [
        lambda: queue.wait_for_confirms(),
        lambda: queue.put_many([b"x"]),
        lambda: queue.get_many(1),
        lambda: queue.consume(print),
        lambda: queue.browse(),
        lambda: queue.purge(),
        lambda: queue.transaction(),
        lambda: queue.redrive(),
        lambda: queue.delete(),
    ]
    for call in calls:
        with pytest.raises(ShutDown, match="is closed"):
            call()
    assert list(queue) == []
    assert isinstance(held.ack().exception(0), AckRefused)
    assert other.get(timeout=WAIT_S).body == b"0"


def test_a_closed_host_ends_its_handles(stage: Stage, queue: Any) -> None:
    """A client's messages go back; a node's are there after its next start."""
    fill(queue, 1)
    assert queue.get(timeout=WAIT_S).redelivered is False
    stage.host.close()
    stage.host.close()
    for call in (lambda: queue.put(b"two"), lambda: stage.host.queue("orders")):
        with pytest.raises(ShutDown):
            call()
    if stage.face.name in ("client", "aio"):
        again = stage.cluster.node("a").queue("orders").get(timeout=WAIT_S)
        assert (again.body, again.redelivered) == (b"0", True)


def test_a_host_that_closes_waits_for_what_is_on_its_way(stage: Stage, queue: Any) -> None:
    """The end of its `with` block loses no put and no ack that was made before."""
    fill(queue, 1)
    held = queue.get(timeout=WAIT_S)
    puts = [queue.put(b"%d" % number) for number in range(1, 100)]
    calls = [*puts, queue.put_many([b"100", b"101"]), held.ack()]
    stage.host.close()
    assert [call.exception(0) for call in calls] == [None] * 101


def test_a_copy_of_an_outcome_is_the_outcome(stage: Stage, queue: Any) -> None:
    """Another one would never end."""
    put = queue.put(b"x")
    assert copy.copy(put).result(WAIT_S) == put.result(WAIT_S)


def refusal(queue: Any) -> str:
    """Why a queue is not deleted as one that is used by nobody."""
    with pytest.raises(PreconditionFailed) as caught:
        queue.delete(if_unused=True)
    return str(caught.value)


def test_a_message_that_somebody_holds_keeps_the_queue(stage: Stage) -> None:
    """Another handle's or its own; when it is acked the queue may go. What a get() has fetched
    ahead is held by nobody."""
    queue, other = stage.queue(), stage.queue()
    fill(queue, 50)
    for handle in (other, queue):
        held = handle.get(timeout=WAIT_S)
        assert "is in use, it has " in refusal(queue)
        assert "message(s) that somebody holds: ack them or give them back" in refusal(queue)
        held.ack().result(WAIT_S)
        if handle is other:
            other.close()
    queue.delete(if_unused=True)
    with pytest.raises(ShutDown):
        queue.put(b"y").result(WAIT_S)


@pytest.mark.parametrize("whose", ["another's", "its own"])
def test_a_get_that_waits_keeps_the_queue(stage: Stage, whose: str, queue: Any) -> None:
    waits = stage.queue() if whose == "another's" else queue
    waiting = stage.begin(waits.get)
    assert "is in use, it has a get() that waits" in refusal(queue)
    queue.put(b"x").result(WAIT_S)
    waiting.result(WAIT_S).ack().result(WAIT_S)
    if waits is not queue:
        waits.close()
    queue.delete(if_unused=True)


def test_a_consumer_keeps_the_queue(stage: Stage, queue: Any) -> None:
    """Until it is cancelled."""
    consumer = queue.consume(lambda message: message.ack())
    assert "is in use, it has 1 consumer(s): cancel them first" in refusal(queue)
    consumer.cancel()
    queue.delete(if_unused=True)


def test_a_drained_queue_may_be_deleted(stage: Stage, queue: Any) -> None:
    """Calls of get() that have ended are no use of it; what was just put is in it."""
    queue.put(b"x").result(WAIT_S)
    with pytest.raises(PreconditionFailed, match=r"1 message\(s\): purge it first"):
        queue.delete(if_empty=True)
    queue.get(timeout=WAIT_S).ack().result(WAIT_S)
    with pytest.raises(MirrorQError, match="no message"):
        queue.get(timeout=0.01)
    queue.delete(if_empty=True, if_unused=True)


def test_a_deleted_queue_with_an_outbox_is_gone_when_delete_returns(stage: Stage) -> None:
    """Its name is free again, as that of any queue; its dead letters arrive."""
    dead = stage.queue("dead")
    stage.host.set_policy("letters", "^orders$", {"dead-letter-queue": "dead"})
    for turn in range(1, 4):
        queue = stage.queue()
        queue.put(b"one").result(WAIT_S)
        queue.get(timeout=WAIT_S).nack(requeue=False).result(WAIT_S)
        queue.delete()
        stage.until(lambda turn=turn: dead.qsize() == turn)
