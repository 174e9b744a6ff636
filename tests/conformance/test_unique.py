"""Unique keys: within its window a queue stores one message of a key, whoever puts it, however
often, and whatever ends meanwhile."""

from __future__ import annotations

import datetime
from typing import Any

import pytest

from conformance.faces import AWAITED, ONE_RING, WAIT_S, Stage, case, fill, got, raised, taken
from mirrorq import ConfigError, Full, NotConfirmed


def bodies(queue: Any) -> list[bytes]:
    return [message.body for message in queue.browse()]


def outcome(confirmation: Any) -> tuple[int, bool]:
    return confirmation.result(WAIT_S), confirmation.is_duplicate


def test_a_second_put_of_a_key_stores_nothing(stage: Stage) -> None:
    """It ends with the sequence of the first, also on another handle, and says so."""
    queue, other = stage.queue(), stage.queue()
    first = queue.put(b"1", unique="order-17")
    assert not first.is_duplicate
    assert outcome(first) == (1, False)
    assert outcome(queue.put(b"1 again", unique="order-17")) == (1, True)
    assert outcome(other.put(b"1 and again", unique=b"order-17")) == (1, True)
    assert outcome(other.put(b"2", unique="order-18"))[1] is False
    assert outcome(queue.put(b"3"))[1] is False
    assert bodies(other) == [b"1", b"2", b"3"]
    assert taken(queue, 3) == [b"1", b"2", b"3"]


def test_keys_in_one_batch_are_looked_at_too(stage: Stage, queue: Any) -> None:
    puts = [queue.put(b"%d" % n, unique=f"k{n % 3}") for n in range(300)]
    outcomes = [outcome(put) for put in puts]
    assert [is_repeat for _, is_repeat in outcomes] == [n >= 3 for n in range(300)]
    assert outcomes[3:] == [(outcomes[n % 3][0], True) for n in range(3, 300)]
    assert bodies(queue) == [b"0", b"1", b"2"]
    assert queue.status().messages == 3


def test_the_key_outlives_its_message(stage: Stage, queue: Any) -> None:
    """The window counts from the put, whatever becomes of the message: taken, purged or expired."""
    queue.put(b"taken", unique="a").result(WAIT_S)
    assert taken(queue, 1) == [b"taken"]
    queue.put(b"purged", unique="b").result(WAIT_S)
    queue.purge()
    queue.put(b"expired", unique="c", ttl=1).result(WAIT_S)
    stage.run(5)
    stage.until(lambda: queue.qsize() == 0)
    assert all(outcome(queue.put(b"x", unique=key))[1] for key in "abc")
    assert bodies(queue) == []


@pytest.mark.parametrize("window", [20, "20s", datetime.timedelta(seconds=20)])
def test_the_key_is_free_after_its_window(stage: Stage, window: Any, queue: Any) -> None:
    queue.put(b"1", unique="k", unique_for=window).result(WAIT_S)
    stage.run(15)
    assert outcome(queue.put(b"2", unique="k", unique_for=window))[1] is True
    stage.run(10)
    assert outcome(queue.put(b"3", unique="k", unique_for=window))[1] is False
    assert bodies(queue) == [b"1", b"3"]


def test_the_policy_says_how_long_a_key_is_remembered(stage: Stage, queue: Any) -> None:
    """`unique-window`, where the put does not say it; an hour without a policy."""
    queue.put(b"1", unique="k").result(WAIT_S)
    stage.run(3500)
    assert outcome(queue.put(b"2", unique="k"))[1] is True
    stage.host.set_policy("short", "", {"unique-window": "1m"})
    stage.run(200)
    assert outcome(queue.put(b"3", unique="k"))[1] is False
    stage.run(50)
    assert outcome(queue.put(b"4", unique="k"))[1] is True
    stage.run(20)
    assert outcome(queue.put(b"5", unique="k"))[1] is False


@case(nodes=3)
def test_the_next_master_knows_the_keys(stage: Stage, queue: Any) -> None:
    queue.put(b"1", unique="k").result(WAIT_S)
    stage.fail_over()
    assert outcome(queue.put(b"2", unique="k")) == (1, True)
    assert bodies(queue) == [b"1"]


@case(ONE_RING, nodes=3)
def test_the_keys_move_with_the_master(stage: Stage, queue: Any) -> None:
    queue.put(b"1", unique="k").result(WAIT_S)
    stage.cluster.node("a").transfer_master("orders", "b")
    assert outcome(queue.put(b"2", unique="k")) == (1, True)


@case(nodes=3)
def test_a_put_whose_master_ends_is_stored_once(stage: Stage) -> None:
    """Its producer resends it, and another process asks again at once."""
    queue, other = stage.queue(), stage.queue()
    stage.cluster.crash("a")
    first, again = queue.put(b"1", unique="k"), other.put(b"2", unique="k")
    outcomes = {outcome(first), outcome(again)}
    assert len({sequence for sequence, _ in outcomes}) == 1
    assert {is_repeat for _, is_repeat in outcomes} == {False, True}
    assert len(bodies(queue)) == 1


def test_a_full_queue_still_answers_a_repeat(stage: Stage) -> None:
    """A limit bounds what is stored, and a repeat is not."""
    stage.host.set_policy("short", "", {"max-length": 2, "overflow": "reject-publish"})
    queue = stage.queue()
    queue.put(b"1", unique="a").result(WAIT_S)
    queue.put(b"2", unique="b").result(WAIT_S)
    assert isinstance(queue.put(b"3", unique="c").exception(WAIT_S), NotConfirmed)
    assert outcome(queue.put(b"1", unique="a"))[1] is True
    stage.host.set_policy("short", "", {"max-length": 2, "overflow": "drop-head"})
    stage.run(5)
    assert outcome(queue.put(b"1", unique="a"))[1] is True
    assert bodies(queue) == [b"1", b"2"]


def test_a_refused_message_leaves_its_key_free(stage: Stage) -> None:
    stage.host.set_policy("short", "", {"max-length": 1, "overflow": "reject-publish"})
    queue = stage.queue()
    queue.put(b"1").result(WAIT_S)
    assert isinstance(queue.put(b"2", unique="k").exception(WAIT_S), NotConfirmed)
    assert taken(queue, 1) == [b"1"]
    assert outcome(queue.put(b"2", unique="k"))[1] is False


def test_the_number_of_keys_is_bounded(stage: Stage) -> None:
    """Puts with new keys are refused at the bound, repeats are answered, and time makes room."""
    stage.host.set_policy("few", "", {"unique-max": 20})
    queue = stage.queue()
    ended = [queue.put(b"x", unique=f"k{n}", unique_for=30).exception(WAIT_S) for n in range(40)]
    refused = [error for error in ended if error is not None]
    assert 20 <= len(refused) < 40
    assert "unique-max 20" in str(refused[0])
    assert outcome(queue.put(b"x", unique="k0"))[1] is True
    stage.run(200)
    queue.put(b"y").result(WAIT_S)
    stage.run(5)
    assert outcome(queue.put(b"x", unique="new"))[1] is False


@case(ONE_RING)
def test_a_transaction_stores_what_is_new(stage: Stage, queue: Any) -> None:
    """Its acks count all the same, and its result names the sequence of each message."""
    fill(queue, 1)
    held = queue.get(timeout=WAIT_S)
    queue.put(b"1", unique="k").result(WAIT_S)
    with queue.transaction() as step:
        step.ack(held)
        step.put(b"1 again", unique="k")
        step.put(b"2", unique="l")
    assert tuple(step.confirmation.result(WAIT_S)) == (2, 5)
    assert not step.confirmation.is_duplicate  # one message is new
    with queue.transaction() as again:
        again.put(b"1 again", unique="k")
        again.put(b"2 again", unique="l")
    assert tuple(again.confirmation.result(WAIT_S)) == (2, 5)
    assert again.confirmation.is_duplicate
    assert bodies(queue) == [b"1", b"2"]


@case(ONE_RING)
def test_an_ack_and_put_brings_a_key_once(stage: Stage) -> None:
    """The other queue looks at the key when the message arrives there."""
    queue, other = stage.queue(), stage.queue("results")
    fill(queue, 2)
    for message in got(queue, 2):
        message.ack_and_put("results", b"result", unique="job-1").result(WAIT_S)
    stage.until(lambda: stage.messages("results") == 1 and stage.messages() == 0)
    stage.run(5)
    assert bodies(other) == [b"result"]
    assert outcome(other.put(b"result", unique="job-1"))[1] is True
    assert outcome(queue.put(b"own", unique="job-1"))[1] is False


@case(ONE_RING)
def test_a_dead_letter_is_no_repeat(stage: Stage) -> None:
    """What is moved by its queue keeps its key for that queue's use only."""
    queue = stage.queue("work", dead_letter_queue="dead")
    dead = stage.queue("dead")
    queue.put(b"1", unique="k").result(WAIT_S)
    queue.get(timeout=WAIT_S).nack(requeue=False).result(WAIT_S)
    stage.until(lambda: dead.qsize() == 1)
    assert dead.redrive() == 1
    stage.until(lambda: queue.qsize() == 1)
    assert outcome(queue.put(b"1", unique="k"))[1] is True
    assert bodies(queue) == [b"1"]


@case(AWAITED)
def test_a_put_that_waits_returns_the_first_sequence(stage: Stage, queue: Any) -> None:
    assert queue.awaiting("put", b"1", unique="k") == 1
    assert queue.awaiting("put", b"2", unique="k") == 1
    assert bodies(queue) == [b"1"]


def test_what_is_no_key_is_refused(stage: Stage, queue: Any) -> None:
    for error, words, options in (
        (TypeError, "unique is of type int", {"unique": 17}),
        (ConfigError, "unique is empty", {"unique": ""}),
        (ConfigError, "cannot be written as UTF-8", {"unique": "\ud800"}),
        (ConfigError, "there is no unique key", {"unique_for": 5}),
        (ConfigError, "must be above 0", {"unique": "k", "unique_for": 0}),
        (ConfigError, "a number of seconds", {"unique": "k", "unique_for": "soon"}),
    ):
        found = raised(queue.put, b"x", **options)
        assert type(found) is error, found
        assert words in str(found)
    found = raised(queue.put_many, [b"x"], unique="k")
    assert isinstance(found, TypeError)
    assert "call put() for each" in str(found)
    assert not isinstance(found, Full)
    stage.until(lambda: queue.qsize() == 0)
