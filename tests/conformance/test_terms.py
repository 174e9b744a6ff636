"""What a put says of its messages: priority, delay and ttl; and a nack, of its delay."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from conformance.faces import ONE_RING, WAIT_S, Stage, case, fill, got, raised, taken
from mirrorq import ConfigError, Empty, Message

LONG_S = 3600


def delayed(stage: Stage, name: str = "orders") -> int:
    stage.run(2)  # counts of a status are a moment old
    rows = stage.cluster.node(stage.cluster.running[-1]).queues()
    return sum(row.messages_delayed for row in rows if row.name == name)


def put_all(queue: Any, *messages: tuple[bytes, int]) -> None:
    for body, priority in messages:
        queue.put(body, priority=priority)
    queue.wait_for_confirms(WAIT_S)


# --- Priorities ---------------------------------------------------------------------------


def test_higher_priorities_come_first_each_in_order(stage: Stage, queue: Any) -> None:
    """31, then 5 in the order of puts, then 0."""
    put_all(queue, (b"a", 0), (b"b", 5), (b"c", 31), (b"d", 5), (b"e", 0))
    assert queue.qsize() == 5
    assert [queue.get(timeout=WAIT_S).body for _ in range(5)] == [b"c", b"b", b"d", b"a", b"e"]
    assert queue.empty()


def test_many_messages_of_one_priority_are_one_put(stage: Stage, queue: Any) -> None:
    """put_many takes a priority for all of them, and they are fetched together."""
    low, high = ([b"%s %d" % (name, n) for n in range(300)] for name in (b"low", b"high"))
    queue.put_many(low).result(WAIT_S)
    queue.put_many(high, priority=1).result(WAIT_S)
    assert taken(queue, 600) == [*high, *low]


def test_a_nack_goes_back_to_its_place_in_its_level(stage: Stage, queue: Any) -> None:
    """Before what is behind it in its priority, after all higher ones."""
    put_all(queue, (b"1", 3), (b"2", 3), (b"0", 0))
    first = queue.get(timeout=WAIT_S)
    assert first.body == b"1"
    put_all(queue, (b"urgent", 4))
    first.nack().result(WAIT_S)
    assert taken(queue, 4) == [b"urgent", b"1", b"2", b"0"]


@case(nodes=3)
def test_priorities_survive_a_failover(stage: Stage, queue: Any) -> None:
    """What was held comes again first, redelivered, and each level keeps its order."""
    put_all(queue, (b"low", 0), (b"high", 9), (b"higher", 10), (b"low 2", 0))
    held = queue.get(timeout=WAIT_S)
    assert (held.body, held.redelivered) == (b"higher", False)
    stage.fail_over()
    again = got(queue, 4)
    assert [message.body for message in again] == [b"higher", b"high", b"low", b"low 2"]
    assert (again[0].redelivered, again[0].delivery_count) == (True, 2)


def test_browse_shows_all_levels_in_order_of_sequence(stage: Stage, queue: Any) -> None:
    put_all(queue, (b"a", 0), (b"b", 5), (b"c", 0))
    assert [(m.sequence, m.body) for m in queue.browse()] == [(1, b"a"), (2, b"b"), (3, b"c")]
    assert queue.purge() == 3
    assert queue.browse() == []


def test_a_consumer_gets_higher_priorities_first(stage: Stage) -> None:
    """With a prefetch of 1 nothing lower is ahead of them in a buffer."""
    queue, seen = stage.queue(), []
    put_all(queue, *[(b"%d" % priority, priority) for priority in (0, 4, 2, 31, 2)])
    queue.consume(lambda message: (seen.append(message.body), message.ack()), prefetch=1)
    stage.until(lambda: len(seen) == 5)
    assert seen == [b"31", b"4", b"2", b"2", b"0"]


# --- Delays -------------------------------------------------------------------------------


def test_a_delayed_message_comes_when_it_is_due(stage: Stage, queue: Any) -> None:
    """Confirmed at once, counted as delayed, shown by browse; ready later, behind what is ready."""
    assert queue.put(b"later", delay=60).result(WAIT_S) == 1
    assert queue.empty()
    assert [message.body for message in queue.browse()] == [b"later"]
    assert delayed(stage) == 1
    assert isinstance(raised(queue.get, block=False), Empty)
    assert queue.get_many(5, timeout=0.01) == []
    queue.put(b"now").result(WAIT_S)
    stage.run(60)
    assert queue.qsize() == 2
    assert [queue.get(timeout=WAIT_S).body for _ in range(2)] == [b"now", b"later"]


def test_delays_end_in_the_order_of_their_times_each_in_its_level(stage: Stage, queue: Any) -> None:
    """The priority of a delayed message counts when it is due."""
    queue.put_many([b"2", b"3"], delay=20)
    queue.put(b"1", delay=10)
    queue.put(b"0", delay=timedelta(seconds=30), priority=1)
    queue.wait_for_confirms(WAIT_S)
    for ready in (1, 3, 4):
        assert queue.qsize() < ready
        stage.run(9.8)
        stage.until(lambda ready=ready: queue.qsize() == ready)
    assert [queue.get(timeout=WAIT_S).body for _ in range(4)] == [b"0", b"1", b"2", b"3"]


@case(nodes=3)
def test_delays_go_on_over_a_failover(stage: Stage, queue: Any) -> None:
    """The next master ends them, of puts and of nacks; what is due meanwhile is late, not lost."""
    queue.put_many([b"a", b"b"]).result(WAIT_S)
    queue.get(timeout=WAIT_S).nack(delay=LONG_S).result(WAIT_S)
    queue.put(b"soon", delay=1).result(WAIT_S)
    queue.put(b"never", delay=LONG_S).result(WAIT_S)
    stage.fail_over()
    assert queue.get(timeout=WAIT_S).body == b"b"
    message = queue.get(timeout=WAIT_S)
    assert (message.body, message.redelivered) == (b"soon", False)
    assert delayed(stage) == 2


def test_a_nack_with_a_delay_comes_again_at_its_place(stage: Stage, queue: Any) -> None:
    """Others are served meanwhile; then it comes before what is behind it, counted."""
    queue.put_many([b"a", b"b", b"c"]).result(WAIT_S)
    assert queue.get(timeout=WAIT_S).nack(delay=60).result(WAIT_S) is None
    other = queue.get(timeout=WAIT_S)
    assert other.body == b"b"
    stage.run(60)
    other.nack().result(WAIT_S)
    again = got(queue, 3)
    assert [(m.body, m.delivery_count) for m in again] == [(b"a", 2), (b"b", 2), (b"c", 1)]


def test_purge_ends_delayed_messages_too(stage: Stage, queue: Any) -> None:
    """Published or given back with a delay; what is held stays."""
    fill(queue, 3)
    queue.put(b"d", delay=LONG_S).result(WAIT_S)
    queue.get(timeout=WAIT_S).nack(delay=LONG_S).result(WAIT_S)
    held = queue.get(timeout=WAIT_S)
    assert queue.purge() == 3
    assert [message.sequence for message in queue.browse()] == [held.sequence]
    held.ack().result(WAIT_S)
    stage.until(lambda: stage.messages() == 0)


# --- Time to live -------------------------------------------------------------------------


def test_a_message_with_a_ttl_ends(stage: Stage, queue: Any) -> None:
    """Seconds, as every other time in Python; 0 ends at once. A holder keeps what it holds."""
    queue.put(b"held", ttl=60).result(WAIT_S)
    held = queue.get(timeout=WAIT_S)
    queue.put(b"for ever").result(WAIT_S)
    queue.put(b"gone", ttl=0).result(WAIT_S)
    queue.put_many([b"soon", b"soon"], ttl=0.01).result(WAIT_S)
    assert queue.get(timeout=WAIT_S).body == b"for ever"
    stage.run(61)
    assert stage.messages() == 2
    assert held.ack().result(WAIT_S) is None


@pytest.mark.parametrize(("ttl", "comes"), [(5, False), (LONG_S, True)])
def test_a_ttl_runs_from_the_put_on_through_the_delay(
    stage: Stage, ttl: float, comes: bool, queue: Any
) -> None:
    """What expires while it is delayed is never ready; what does not has the rest of its time."""
    queue.put(b"first", delay=10, ttl=ttl).result(WAIT_S)
    queue.put(b"second", delay=15).result(WAIT_S)
    bodies = [b"first", b"second"] if comes else [b"second"]
    assert [queue.get(timeout=WAIT_S).body for _ in bodies] == bodies
    assert delayed(stage) == 0
    assert queue.empty()


@case(nodes=3)
def test_a_ttl_goes_on_over_a_failover(stage: Stage, queue: Any) -> None:
    queue.put(b"ends", ttl=20).result(WAIT_S)
    queue.put(b"stays").result(WAIT_S)
    stage.fail_over()
    stage.run(20)
    assert queue.get(timeout=WAIT_S).body == b"stays"
    assert stage.messages() == 1


@case(ONE_RING)
def test_a_queue_that_expires_ends_when_nobody_uses_it(stage: Stage) -> None:
    stage.queue("brief", expires=10).close()
    with stage.queue("used", expires=10) as used:
        stage.run(8)
        used.get_many(1, timeout=0.01)
        stage.run(8)
        assert [row.name for row in stage.host.queues()] == ["used"]


def test_a_message_is_held_for_as_long_as_it_is_extended(stage: Stage) -> None:
    """Beyond the queue's consumer-timeout; what is not extended goes back."""
    queue, other = stage.queue(), stage.queue()
    queue.put_many([b"kept", b"late"]).result(WAIT_S)
    kept, late = got(queue, 2)
    kept.extend(timedelta(hours=1)).result(WAIT_S)
    stage.host.set_policy("short", "^orders$", {"consumer-timeout": 700})
    again: Message = other.get(timeout=WAIT_S)
    assert (again.body, again.redelivered) == (b"late", True)
    assert "not extended" in str(late.extend(5).exception(WAIT_S))
    assert kept.ack().result(WAIT_S) is None


# --- What is none -------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["delay", "ttl", "priority"])
def test_a_bad_term_sends_nothing(stage: Stage, name: str) -> None:
    """Refused with the value before anything is sent, by put, put_many, nack and extend."""
    times = [-1, -0.001, float("nan"), float("inf"), "1", True, 1e12, timedelta(seconds=-1)]
    queue = stage.queue()
    for wrong in [32, -1, "1", 2.5, True] if name == "priority" else times:
        with pytest.raises(ConfigError, match=f"{name} is"):
            queue.put(b"a", **{name: wrong})
        with pytest.raises(ValueError, match=f"{name} is"):
            queue.put_many([b"a"], **{name: wrong})
    queue.put(b"b").result(WAIT_S)
    message = queue.get(timeout=WAIT_S)
    for wrong in times if name == "delay" else ():
        with pytest.raises(ConfigError, match="delay is"):
            message.nack(delay=wrong)
        with pytest.raises(ConfigError, match="seconds is"):
            message.extend(wrong)
    message.ack().result(WAIT_S)
    stage.until(lambda: stage.messages() == 0)
