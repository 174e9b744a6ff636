"""Acks and puts that are one op: transactions, ack_and_put, redrive."""

from __future__ import annotations

from typing import Any

import pytest

from conformance.faces import THREADS, WAIT_S, Stage, case, fill, got, taken
from mirrorq import AckRefused, NoQuorum, NotConfirmed, QueueNotFound


def test_a_transaction_takes_effect_as_one(stage: Stage, queue: Any) -> None:
    fill(queue, 2)
    first, second = got(queue, 2)
    with queue.transaction() as step:
        step.ack(first)
        step.put(b"three", headers={"n": 3})
        step.put(b"four", message_id="m")
        step.ack(second)
        assert queue.qsize() == 0
    assert step.confirmation.result(WAIT_S) == range(4, 6)
    third, fourth = got(queue, 2)
    assert (third.body, third.sequence, third.headers) == (b"three", 4, {"n": 3})
    assert (fourth.body, fourth.message_id) == (b"four", "m")
    assert [message.sequence for message in queue.browse()] == [4, 5]


def test_an_exception_leaves_everything_as_it_was(stage: Stage, queue: Any) -> None:
    fill(queue, 1)
    message = queue.get(timeout=WAIT_S)
    step = queue.transaction()

    def fail() -> None:
        with step:
            step.ack(message)
            step.put(b"two")
            raise RuntimeError("no")

    with pytest.raises(RuntimeError):
        fail()
    assert [found.body for found in queue.browse()] == [b"0"]
    with pytest.raises(ValueError, match="no outcome"):
        _ = step.confirmation
    with pytest.raises(ValueError, match="over"):
        step.put(b"more")
    message.ack().result(WAIT_S)


@case(nodes=3)
def test_a_transaction_with_an_ack_that_is_not_taken_does_nothing(stage: Stage) -> None:
    """A failover, and somebody else has the message: the puts are refused with the acks."""
    queue, other = stage.queue(), stage.queue()
    fill(queue, 1)
    message = queue.get(timeout=WAIT_S)
    stage.fail_over()
    again = other.get(timeout=WAIT_S)
    assert again.redelivered
    with queue.transaction() as step:
        step.ack(message)
        step.put(b"two")
    with pytest.raises(AckRefused, match="nothing was done"):
        step.confirmation.result(WAIT_S)
    again.ack().result(WAIT_S)
    assert queue.qsize() == 0


@case(nodes=3)
def test_a_transaction_goes_on_over_a_failover(stage: Stage, queue: Any) -> None:
    """What is held was handed out by the master before: its ack is taken, once."""
    fill(queue, 1)
    message = queue.get(timeout=WAIT_S)
    stage.fail_over()
    with queue.transaction() as step:
        step.ack(message)
        step.put(b"two")
    assert len(step.confirmation.result(WAIT_S)) == 1
    assert [found.body for found in queue.browse()] == [b"two"]


@case(nodes=3)
def test_a_transaction_on_its_way_survives_the_master(stage: Stage, queue: Any) -> None:
    """Sent once more to the next master, done once."""
    fill(queue, 1)
    message = queue.get(timeout=WAIT_S)
    stage.cluster.fill_disk("a", 60)
    with queue.transaction() as step:
        step.ack(message)
        step.put(b"two")
    stage.run(0.1)
    assert not step.confirmation.done()
    stage.cluster.crash("a")
    assert len(step.confirmation.result(WAIT_S)) == 1
    assert [found.body for found in queue.browse()] == [b"two"]


def test_what_a_transaction_refuses(stage: Stage) -> None:
    queue, other = stage.queue(), stage.queue("other")
    fill(other, 1)
    fill(queue, 1)
    strange, message = other.get(timeout=WAIT_S), queue.get(timeout=WAIT_S)
    with queue.transaction() as step:
        with pytest.raises(ValueError, match="did not come from this handle"):
            step.ack(strange)
        step.ack(message)
        with pytest.raises(ValueError, match="settled already"):
            step.ack(message)
        step.put(b"two")
        with pytest.raises(ValueError, match="same persistence, priority, delay and ttl"):
            step.put(b"three", priority=2)
    assert len(step.confirmation.result(WAIT_S)) == 1
    with queue.transaction() as empty:
        pass
    assert empty.confirmation.result(WAIT_S) == range(0)
    with queue.transaction() as acks, pytest.raises(ValueError, match="settled already"):
        acks.ack(message)


def test_a_limit_holds_for_what_a_transaction_puts(stage: Stage) -> None:
    stage.host.set_policy("short", "^orders$", {"max-length": 2, "overflow": "reject-publish"})
    queue = stage.queue()
    fill(queue, 2)
    message = queue.get(timeout=WAIT_S)
    with queue.transaction() as step:
        step.ack(message)
        step.put(b"three", key=queue.browse()[0].key)
        step.put(b"four")
    with pytest.raises(NotConfirmed, match="max-length 2"):
        step.confirmation.result(WAIT_S)
    message.ack().result(WAIT_S)
    with queue.transaction() as step:
        step.put(b"three")
    assert len(step.confirmation.result(WAIT_S)) == 1


def test_ack_and_put(stage: Stage) -> None:
    """By name or handle, with properties and terms; what is settled or unknown is refused."""
    queue, done = stage.queue(), stage.queue("done")
    fill(queue, 3)
    put = queue.ack_and_put if stage.face.name == "aio" else None
    one, two, three = got(queue, 3)

    def move(message: object, *values: object, **named: object) -> object:
        if put is not None:
            return put(message, *values, **named)
        return message.ack_and_put(*values, **named).result(WAIT_S)  # type: ignore[attr-defined]

    properties = {"headers": {"n": 1}, "message_id": "m", "ttl": 60}
    assert move(one, "done", b"ONE", **properties) is None
    arrived = done.get(timeout=WAIT_S)
    assert (arrived.body, arrived.headers, arrived.message_id) == (b"ONE", {"n": 1}, "m")
    target = getattr(done, "handle", done) if stage.face.name == "sharded" else done
    with pytest.raises(ValueError, match="settled already"):
        move(one, target, b"again")
    with pytest.raises(QueueNotFound, match="no queue is named 'nowhere': declare it first"):
        move(two, "nowhere", b"x")
    with two:
        move(two, target, b"TWO")
    assert done.get(timeout=WAIT_S).body == b"TWO"
    if stage.face.name == "aio":
        with pytest.raises(ValueError, match="did not come from this handle"):
            done.ack_and_put(three, queue, b"x")
    three.ack().result(WAIT_S)
    assert queue.browse() == []


def test_ack_and_put_of_a_full_queue_does_not_wait(stage: Stage) -> None:
    stage.host.set_policy("short", "^orders$", {"max-length": 1})
    queue, done = stage.queue(), stage.queue("done")
    queue.put(b"one").result(WAIT_S)
    message = queue.get(timeout=WAIT_S)
    queue.put(b"two").result(WAIT_S)
    assert stage.is_full(queue)
    message.ack_and_put("done", b"ONE").result(WAIT_S)
    assert done.get(timeout=WAIT_S).body == b"ONE"


@case(nodes=3)
def test_a_failover_keeps_what_is_on_its_way(stage: Stage) -> None:
    """What ack_and_put has taken from a queue arrives once, though its master ends."""
    queue, done = stage.queue(), stage.queue("done")
    fill(queue, 20)
    for message in got(queue, 20):
        message.ack_and_put("done", b"<%s>" % message.body)
    stage.cluster.crash("a")
    stage.until(lambda: done.qsize() == 20)
    assert sorted(taken(done, 20)) == sorted(b"<%d>" % number for number in range(20))
    assert queue.browse() == []


def test_redrive(stage: Stage) -> None:
    """Dead letters go back to their own queues, oldest first, and what is none stays."""
    # Of a sharded queue's dead letters the oldest is any shard's.
    dead = stage.queue("dead", **({"shards": 1} if stage.face.name == "sharded" else {}))
    stage.host.set_policy("letters", "^(orders|bills)$", {"dead-letter-queue": "dead"})
    orders, bills = stage.queue("orders"), stage.queue("bills")
    for count, (queue, body) in enumerate(((orders, b"o1"), (bills, b"b1"), (orders, b"o2")), 1):
        queue.put(body, headers={"kept": True}).result(WAIT_S)
        queue.get(timeout=WAIT_S).nack(requeue=False).result(WAIT_S)
        stage.until(lambda count=count: dead.qsize() == count)
    dead.put(b"stranger").result(WAIT_S)
    assert dead.redrive(1) == 1
    back = orders.get(timeout=WAIT_S)
    assert (back.body, back.headers["kept"], back.headers["x-death-count"]) == (b"o1", True, 1)
    assert "x-death-path" not in back.headers
    back.nack(requeue=False).result(WAIT_S)
    stage.until(lambda: dead.qsize() == 4)
    last = dead.browse()[-1]
    assert (last.body, last.headers["x-death-count"]) == (b"o1", 2)
    assert dead.redrive() == 3
    stage.until(lambda: orders.qsize() == 2 and bills.qsize() == 1)
    assert sorted(message.body for message in orders.browse()) == [b"o1", b"o2"]
    assert [message.body for message in dead.browse()] == [b"stranger"]
    with pytest.raises(ValueError, match="count_max"):
        dead.redrive(-1)


def test_a_redrive_does_not_count_what_stays(stage: Stage) -> None:
    """Nobody has worked on it: a delivery limit for all queues ends nothing of it."""
    stage.host.set_policy("limit", ".", {"delivery-limit": 2})
    dead = stage.queue("dead")
    dead.put(b"stranger").result(WAIT_S)
    for _ in range(4):
        assert dead.redrive() == 0
        stage.until(lambda: dead.qsize() == 1)
    assert dead.get(timeout=WAIT_S).delivery_count == 1


@case(THREADS)
def test_a_redrive_that_fails_holds_nothing(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a queue is cannot be asked just now: what was taken to be moved comes again."""
    orders, bills, dead = (stage.queue(name) for name in ("orders", "bills", "dead"))
    stage.host.set_policy("letters", "^(orders|bills)$", {"dead-letter-queue": "dead"})
    for count, queue in enumerate((orders, bills), 1):
        fill(queue, 1)
        queue.get(timeout=WAIT_S).nack(requeue=False).result(WAIT_S)
        stage.until(lambda count=count: dead.qsize() == count)
    handle = dead._handle
    id_of = handle.id_of

    def lost(name: str) -> int:
        if name == "bills":
            raise NoQuorum("no majority")
        found: int = id_of(name)
        return found

    monkeypatch.setattr(handle, "id_of", lost)
    with pytest.raises(NoQuorum):
        dead.redrive()
    monkeypatch.undo()
    stage.until(lambda: dead.qsize() == 2)
    assert dead.redrive() == 2
    stage.until(lambda: orders.qsize() == bills.qsize() == 1)
