"""Limits of a queue: which put waits, which is refused, which message is dropped."""

from __future__ import annotations

from typing import Any

import pytest

from conformance.faces import ITEMS, WAIT_S, Stage, case, fill, got, raised, taken
from mirrorq import Full, NotConfirmed, QueueDown, ShutDown


def limit(stage: Stage, **definition: Any) -> None:
    """Have such a policy hold for the queue."""
    named = {name.replace("_", "-"): value for name, value in definition.items()}
    stage.host.set_policy("limit", "^orders$", named)


@case(ITEMS)
def test_put_waits_on_a_full_queue(stage: Stage) -> None:
    """As on queue.Queue(maxsize=3): without a look at any confirmation."""
    limit(stage, max_length=3, overflow="block")
    queue = stage.queue()
    for number in range(3):
        queue.put(b"%d" % number, timeout=WAIT_S)
    assert stage.is_full(queue)
    for call in (lambda: queue.put(b"x", timeout=0.05), lambda: queue.put_nowait(b"x")):
        with pytest.raises(Full):
            call()
    waiting = stage.begin(queue.put, b"3")
    assert not waiting.is_done
    message = queue.get(timeout=WAIT_S)
    if "messages" in stage.face.calls:
        waiting.result(WAIT_S)  # A held message takes no room.
    message.ack()
    waiting.result(WAIT_S)
    stage.until(lambda: stage.is_full(queue) and stage.messages() == 3)
    assert taken(queue, 3) == [b"1", b"2", b"3"]


def test_a_full_queue_says_why(stage: Stage) -> None:
    """In the error, by put_many too, and in the status while a put waits."""
    limit(stage, max_length=1)
    queue, other = stage.queue(), stage.queue()
    queue.put(b"1").result(WAIT_S)
    with pytest.raises(Full, match=r"max-length|no room"):
        queue.put_many([b"x"], timeout=0)
    waiting = stage.begin(queue.put, b"2")
    stage.until(lambda: "max-length 1" in queue.status().blocked_by)
    other.get(timeout=WAIT_S).ack().result(WAIT_S)
    assert waiting.result(WAIT_S).result(WAIT_S) == 2
    taken(other, 1)
    stage.until(lambda: queue.status().blocked_by == "")


def test_a_handle_hears_of_little_new_room(stage: Stage) -> None:
    """Of less than twice as much as it knows, too: a put that needs it waits for a moment."""
    limit(stage, max_length=10)
    queue, other = stage.queue(), stage.queue()
    fill(queue, 6)
    for message in got(other, 2):
        message.ack().result(WAIT_S)
    stage.run(1)
    assert len(queue.put_many([b"x"] * 5, timeout=WAIT_S).result(WAIT_S)) == 5


def test_refused_and_repeated_messages_take_no_room(stage: Stage) -> None:
    """Of a limit in bytes: a handle goes on after messages that were not stored."""
    limit(stage, max_length_bytes=5000)
    queue = stage.queue()
    queue.put(b"1").result(WAIT_S)
    with pytest.raises(NotConfirmed, match="never fit"):
        queue.put(bytes(6000)).result(WAIT_S)
    queue.put(bytes(900), timeout=WAIT_S, unique="k").result(WAIT_S)
    for _ in range(12):
        assert queue.put(bytes(900), timeout=WAIT_S, unique="k").result(WAIT_S) == 2
    with pytest.raises(NotConfirmed, match="never fit"):
        queue.put_many([bytes(900)] * 6, timeout=WAIT_S).result(WAIT_S)
    queue.put(bytes(4000), timeout=WAIT_S).result(WAIT_S)
    stage.until(lambda: stage.messages() == 3)


def test_another_handle_fills_the_queue(stage: Stage) -> None:
    """A handle that has put nothing yet, or long ago, knows too."""
    limit(stage, max_length=4)
    one, two = stage.queue(), stage.queue()
    assert not two.full()
    fill(one, 4)
    stage.run(1)
    with pytest.raises(Full):
        two.put_nowait(b"y")
    one.get(timeout=WAIT_S)
    stage.run(1)
    two.put_nowait(b"y").result(WAIT_S)


def test_bytes_count_bodies_only(stage: Stage) -> None:
    """Headers do not; a body larger than the limit is refused, not waited for."""
    limit(stage, max_length_bytes=10)
    queue = stage.queue()
    queue.put(b"12345", headers={"long": "x" * 100}, timeout=WAIT_S)
    with pytest.raises(Full):
        queue.put(b"123456", timeout=0.05)
    queue.put(b"12345", timeout=WAIT_S).result(WAIT_S)
    refused = queue.put(b"x" * 11, timeout=WAIT_S).exception(WAIT_S)
    assert isinstance(refused, NotConfirmed)
    assert "never fit" in str(refused)


def test_a_batch_that_never_fits_is_refused_whole(stage: Stage) -> None:
    """put_many is all or none."""
    limit(stage, max_length=3)
    queue = stage.queue()
    error = queue.put_many([b"x"] * 4, timeout=WAIT_S).exception(WAIT_S)
    assert isinstance(error, NotConfirmed)
    assert error.refused == (range(4),)
    assert queue.put_many([b"x"] * 3, timeout=WAIT_S).result(WAIT_S) == range(1, 4)


def test_reject_publish_ends_the_confirmation(stage: Stage) -> None:
    """put does not wait; the message is not stored, and listeners of failures hear of it."""
    limit(stage, max_length=2, overflow="reject-publish")
    queue, heard = stage.queue(), []
    queue.add_confirm_listener(None, heard.append)
    ends = [queue.put(b"%d" % number, timeout=WAIT_S) for number in range(4)]
    errors = [end.exception(WAIT_S) for end in ends]
    assert errors[:2] == [None, None]
    assert all(isinstance(error, NotConfirmed) for error in errors[2:])
    assert [message.body for message in queue.browse()] == [b"0", b"1"]
    stage.until(lambda: heard == ends[2:])


@case(ITEMS)
def test_drop_head_keeps_the_newest(stage: Stage) -> None:
    """put does not wait; the oldest go."""
    limit(stage, max_length=2, overflow="drop-head")
    queue = stage.queue()
    for number in range(5):
        queue.put(b"%d" % number, timeout=WAIT_S)
    stage.until(lambda: stage.messages() == 2)
    assert taken(queue, 2) == [b"3", b"4"]


@case(ITEMS)
def test_a_policy_comes_and_goes_under_a_handle(stage: Stage, queue: Any) -> None:
    """A put that waits goes on when the limit is lifted."""
    for _ in range(5):
        queue.put(b"x")
    stage.until(lambda: stage.messages() == 5)
    limit(stage, max_length=2)
    stage.until(lambda: isinstance(raised(queue.put, b"y", timeout=0.05), Full))
    waiting = stage.begin(queue.put, b"z")
    stage.run(2)
    assert not waiting.is_done
    stage.host.clear_policy("limit")
    waiting.result(WAIT_S)


@case(nodes=3)
def test_a_full_queue_fails_over(stage: Stage) -> None:
    """What waited at the old master waits at the new one, and is stored once."""
    limit(stage, max_length=3)
    queue, other = stage.queue(), stage.queue()
    waiting = [handle.put(b"x", timeout=WAIT_S) for _ in range(2) for handle in (queue, other)]
    stage.until(lambda: sum(one.done() for one in waiting) == 3)
    stage.fail_over()
    assert raised(queue.put_nowait, b"y") is not None
    other.ack_many(got(other, 3)).result(WAIT_S)
    assert sorted(one.result(WAIT_S) for one in waiting) == [1, 2, 3, 4]
    stage.until(lambda: stage.messages() == 1)


@case(nodes=3)
def test_close_wakes_who_waits_for_room(stage: Stage) -> None:
    """A put on a full queue does not outlive its handle; a queue without a master says so."""
    limit(stage, max_length=1)
    stage.host.set_policy(
        "limit", "^orders$", {"max-length": 1, "ha-mode": "nodes", "ha-params": ["a"]}
    )
    queue = stage.alone()
    stage.host.set_policy(
        "limit", "^orders", {"max-length": 1, "ha-mode": "nodes", "ha-params": ["a"]}, 9
    )
    queue.put(b"x", timeout=WAIT_S).result(WAIT_S)
    stage.cluster.crash("a")
    stage.until(stage.is_down)
    with pytest.raises(QueueDown):
        queue.put(b"y", timeout=0.05)
    waiting = stage.begin(raised, queue.put, b"y")
    stage.until(lambda: bool(queue.status().blocked_by))
    queue.close()
    assert isinstance(waiting.result(WAIT_S), ShutDown)


def test_a_rate_delays_puts_and_ends_nothing(stage: Stage) -> None:
    """Puts beyond max-rate wait, in their order, and are confirmed."""
    limit(stage, max_rate=100, max_rate_bytes=1000)
    queue = stage.queue()
    began = stage.cluster.now
    puts = [queue.put(b"0123456789") for _ in range(310)]
    puts.append(queue.put_many([b"late"]))
    assert [put.result(WAIT_S) for put in puts] == [*range(1, 311), range(311, 312)]
    assert stage.cluster.now - began >= 1
    assert queue.status().blocked_by == ""


def test_arguments_of_a_queue_limit_it_as_a_policy_does(stage: Stage) -> None:
    """The lesser number holds; a queue without room says so to a put that does not wait."""
    limit(stage, max_length=1)
    queue = stage.queue(max_length=3, overflow="block")
    queue.put(b"one").result(WAIT_S)
    with pytest.raises(Full):
        queue.put(b"two", timeout=0.2)
    stage.host.clear_policy("limit")
    for body in (b"2", b"3"):
        queue.put(body).result(WAIT_S)
    with pytest.raises(Full):
        queue.put(b"four", timeout=0.2)


def test_rejected_and_expired_messages_become_dead_letters(stage: Stage) -> None:
    """Of a policy's queue; each says where it was and why."""
    dead = stage.queue("dead")
    limit(stage, dead_letter_queue="dead")
    queue = stage.queue()
    queue.put_many([b"rejected", b"returned"]).result(WAIT_S)
    queue.put(b"expired", ttl=1).result(WAIT_S)
    rejected, returned = got(queue, 2)
    rejected.nack(requeue=False).result(WAIT_S)
    returned.nack(requeue=False).result(WAIT_S)
    stage.until(lambda: dead.qsize() == 3)
    found = {message.body: message.headers for message in got(dead, 3)}
    assert set(found) == {b"rejected", b"returned", b"expired"}
    assert all(headers["x-death-count"] == 1 for headers in found.values())
    stage.until(lambda: stage.messages() == 0)


@pytest.mark.parametrize("is_policy", [True, False])
def test_a_dead_letter_queue_is_made_when_it_is_named(stage: Stage, is_policy: bool) -> None:
    """By a policy or by a declaration, so that nothing is lost by a forgotten one. One that is
    there stays as it is."""
    if is_policy:
        limit(stage, dead_letter_queue="dead")
        queue = stage.queue()
    else:
        queue = stage.queue(dead_letter_queue="dead")
    queue.put(b"x").result(WAIT_S)
    queue.get(timeout=WAIT_S).nack(requeue=False).result(WAIT_S)
    dead = stage.host.queue("dead", passive=True)
    assert dead.get(timeout=WAIT_S).body == b"x"
    dead.put(b"kept").result(WAIT_S)
    stage.queue("bills", dead_letter_queue="dead")
    assert dead.qsize() == 1


def test_a_delivery_limit_ends_a_message(stage: Stage) -> None:
    """After so many deliveries it is a dead letter."""
    dead = stage.queue("dead")
    limit(stage, delivery_limit=2, dead_letter_queue="dead")
    queue = stage.queue()
    fill(queue, 1)
    for _ in range(3):
        queue.get(timeout=WAIT_S).nack().result(WAIT_S)
    stage.until(lambda: stage.messages() == 0)
    assert dead.get(timeout=WAIT_S).body == b"0"
