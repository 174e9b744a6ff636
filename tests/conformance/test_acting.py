"""An operator acts: one message, or a range, ends or goes elsewhere; a queue pauses and resumes."""

from __future__ import annotations

from typing import Any

import pytest

from conformance.faces import ONE_RING, THREADS, WAIT_S, Stage, case, fill, got, raised, taken
from mirrorq import Empty, PreconditionFailed, QueueNotFound


def bodies(queue: Any) -> list[bytes]:
    return [message.body for message in queue.browse()]


# --- One message, or a range --------------------------------------------------------------


@case(ONE_RING)
def test_one_message_ends(stage: Stage) -> None:
    queue = stage.queue()
    fill(queue, 5)
    assert queue.delete_messages(3) == 1
    assert bodies(queue) == [b"0", b"1", b"3", b"4"]
    assert queue.delete_messages(3) == 0
    assert queue.delete_messages(4, 100) == 2
    assert taken(queue, 2) == [b"0", b"1"]


@case(ONE_RING)
def test_what_is_held_stays(stage: Stage) -> None:
    """Delayed messages and what another handle has fetched ahead go."""
    queue, other = stage.queue(), stage.queue()
    fill(queue, 3)
    (held,) = got(other, 1)
    queue.put(b"later", delay=1000).result(WAIT_S)
    assert queue.delete_messages(1, 4) == 3
    assert bodies(queue) == [b"0"]
    held.ack().result(WAIT_S)
    assert bodies(queue) == []


@case(ONE_RING)
def test_messages_move_with_what_they_carry(stage: Stage) -> None:
    queue, other = stage.queue(), stage.queue("other")
    for number in range(5):
        queue.put(b"%d" % number, headers={"n": number}, message_id=f"m{number}").result(WAIT_S)
    assert queue.move_messages(2, 3, to="other") == 2
    assert queue.move_messages(5, to="other") == 1
    stage.until(lambda: other.qsize() == 3)
    assert bodies(queue) == [b"0", b"3"]
    moved = got(other, 3)
    assert [(one.body, one.headers["n"], one.message_id) for one in moved] == [
        (b"1", 1, "m1"),
        (b"2", 2, "m2"),
        (b"4", 4, "m4"),
    ]


@case(THREADS)
def test_a_handle_names_the_other_queue(stage: Stage) -> None:
    queue, other = stage.queue(), stage.queue("other")
    fill(queue, 1)
    assert queue.move_messages(1, to=other) == 1
    stage.until(lambda: other.qsize() == 1)


@case(ONE_RING, nodes=3)
def test_a_range_moves_once_though_the_master_ends(stage: Stage) -> None:
    queue, other = stage.queue(), stage.queue("other")
    fill(queue, 50)
    moving = stage.begin(lambda: queue.move_messages(1, 40, to="other"))
    stage.cluster.crash("a")
    moving.result(WAIT_S)
    stage.until(lambda: other.qsize() == 40)
    stage.run(5)
    assert bodies(other) == [b"%d" % number for number in range(40)]
    assert bodies(queue) == [b"%d" % number for number in range(40, 50)]


@case(ONE_RING)
def test_what_is_no_range_is_refused(stage: Stage, queue: Any) -> None:
    fill(queue, 1)
    for given in ((0,), (5, 4), (1, 2**63)):
        assert isinstance(raised(queue.delete_messages, *given), ValueError)
    assert isinstance(raised(queue.delete_messages, "1"), TypeError)
    assert isinstance(raised(queue.move_messages, 1, to="nowhere"), QueueNotFound)
    assert isinstance(raised(queue.move_messages, 1, to="orders"), PreconditionFailed)
    assert bodies(queue) == [b"0"]


def test_sequences_are_of_one_shard(stage: Stage) -> None:
    if stage.face.name != "sharded":
        return
    queue = stage.queue()
    fill(queue, 3)
    assert isinstance(raised(queue.delete_messages, 1), PreconditionFailed)
    with queue.shard(0) as shard:
        assert shard.delete_messages(1, 2) == 2
    assert bodies(queue) == [b"2"]


# --- A pause ------------------------------------------------------------------------------


def test_a_paused_queue_takes_and_hands_out_nothing(stage: Stage) -> None:
    queue, other = stage.queue(), stage.queue()
    fill(queue, 2)
    queue.pause()
    stage.until(lambda: queue.status().deliveries_paused)
    fill(queue, 2)
    assert isinstance(raised(other.get, timeout=3), Empty)
    assert bodies(queue) == [b"0", b"1", b"0", b"1"]
    assert queue.qsize() == 4
    waiting = stage.begin(lambda: other.get(timeout=WAIT_S))
    queue.resume()
    assert waiting.result(WAIT_S).body == b"0"
    stage.until(lambda: not queue.status().deliveries_paused)


def test_who_consumes_hears_nothing_meanwhile(stage: Stage, queue: Any) -> None:
    heard: list[bytes] = []
    queue.pause()
    queue.resume()
    queue.pause()
    with queue.consume(lambda message: heard.append(message.body)):
        fill(queue, 3)
        stage.run(10)
        assert heard == []
        queue.resume()
        stage.until(lambda: len(heard) == 3)


def test_what_is_held_is_acked_in_a_pause(stage: Stage) -> None:
    queue, other = stage.queue(), stage.queue()
    fill(queue, 3)
    (held,) = got(other, 1)
    queue.pause()
    held.ack().result(WAIT_S)
    stage.run(5)
    # What `other` had fetched ahead has gone back.
    assert isinstance(raised(other.get, timeout=1), Empty)
    queue.resume()
    assert taken(other, 2) == [b"1", b"2"]


@case(nodes=3)
def test_a_pause_outlives_its_master(stage: Stage, queue: Any) -> None:
    fill(queue, 2)
    queue.pause()
    stage.fail_over()
    assert isinstance(raised(queue.get, timeout=3), Empty)
    assert queue.status().deliveries_paused
    queue.resume()
    assert taken(queue, 2) == [b"0", b"1"]


@case(ONE_RING)
@pytest.mark.parametrize("call", ["pause", "delete_messages"])
def test_an_exclusive_queue_obeys_its_owner(stage: Stage, call: str) -> None:
    queue = stage.queue("own", exclusive=True)
    fill(queue, 1)
    getattr(queue, call)(*((1,) if call == "delete_messages" else ()))
    assert bodies(queue) == ([] if call == "delete_messages" else [b"0"])


@case(ONE_RING)
def test_dead_letters_of_a_range_go_back(stage: Stage) -> None:
    """To where each came from; what somebody holds, and what has come from nowhere, stays."""
    dead = stage.queue("dead")
    queues = [stage.queue(name, dead_letter_queue="dead") for name in ("one", "two")]
    for number in range(6):
        queues[number % 2].put(b"%d" % number).result(WAIT_S)
        (held,) = got(queues[number % 2], 1)
        held.nack(requeue=False).result(WAIT_S)
        stage.until(lambda: dead.qsize() == number + 1)  # noqa: B023
    dead.put(b"from nowhere").result(WAIT_S)
    for wrong in ({"last": 3}, {"first": 2, "count_max": 1}, {"first": 3, "last": 2}):
        assert isinstance(raised(dead.redrive, **wrong), ValueError)
    (first,) = got(dead, 1)
    at = first.sequence
    assert dead.redrive(first=at, last=at + 2) == 2
    assert dead.redrive(first=at + 4, last=2**60) == 2
    stage.until(lambda: [queue.qsize() for queue in queues] == [2, 2])
    assert [bodies(queue) for queue in queues] == [[b"2", b"4"], [b"1", b"5"]]
    first.nack().result(WAIT_S)
    assert bodies(dead) == [b"0", b"3", b"from nowhere"]
