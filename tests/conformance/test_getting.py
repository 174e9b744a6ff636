"""get, get_many, browse, purge and iteration: which call has which message when."""

from __future__ import annotations

import queue as standard
import re
import textwrap
from pathlib import Path
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
from mirrorq import AckRefused, ConfigError, Empty, NoQuorum, QueueDown

PAGE = Path(__file__).parents[2] / "docs" / "start.md"


def test_messages_come_in_order_and_are_gone_when_acked(stage: Stage, queue: Any) -> None:
    fill(queue, 300)
    for number in range(300):
        message = queue.get(timeout=WAIT_S)
        assert (message.body, message.sequence) == (b"%d" % number, number + 1)
        assert (message.redelivered, message.delivery_count) == (False, 1)
        settlement = message.ack()
    assert settlement.result(WAIT_S) is None
    stage.until(lambda: stage.messages() == 0)


def test_get_many_returns_what_there_is(stage: Stage, queue: Any) -> None:
    """1 to count_max as soon as there is one; [] at the time-out."""
    assert queue.get_many(5, timeout=0.05) == []
    fill(queue, 25)
    found: list[Any] = []
    while len(found) < 25:
        some = queue.get_many(10, timeout=WAIT_S)
        assert 1 <= len(some) <= 10
        found += some
    assert [message.sequence for message in found] == [*range(1, 26)]
    queue.ack_many(found).result(WAIT_S)
    assert queue.ack_many([]).result(0) is None
    stage.until(lambda: stage.messages() == 0)


@case(ITEMS)
def test_an_empty_queue_is_empty(stage: Stage, queue: Any) -> None:
    """Both as mirrorq.Empty and as queue.Empty; a negative time-out is a mistake."""
    assert isinstance(raised(queue.get, timeout=0.02), Empty)
    for call in (queue.get_nowait, lambda: queue.get(block=False)):
        with pytest.raises(standard.Empty):
            call()
    with pytest.raises(ValueError, match="timeout"):
        queue.get(timeout=-1)
    assert queue.empty()
    for body in (b"0", b"1"):
        queue.put(body)
    stage.until(lambda: queue.qsize() == 2)
    assert not queue.empty()
    assert queue.get_nowait().body == b"0"
    assert queue.get(timeout=0).body == b"1"


@case(ITEMS)
def test_a_waiting_get_gets_what_is_published_later(stage: Stage) -> None:
    """Nothing is fetched for a call that has given up."""
    queue, other = stage.queue(), stage.queue()
    waiting = stage.begin(queue.get, timeout=WAIT_S)
    assert not waiting.is_done
    for body in (b"0", b"1", b"2"):
        other.put(body)
    assert waiting.result(WAIT_S).body == b"0"
    stage.until(lambda: other.qsize() == 2)
    assert [other.get(timeout=WAIT_S).body for _ in range(2)] == [b"1", b"2"]


@case(nodes=3)
def test_why_a_get_found_nothing_is_said(stage: Stage) -> None:
    """QueueDown and NoQuorum instead of Empty, when that is the reason; then it goes on."""
    queue = stage.alone()
    fill(queue, 1)
    stage.cluster.crash("a")
    stage.until(stage.is_down)
    # Of a client's node: the state that it has last heard is a moment old.
    stage.run(1)
    for call in (lambda: queue.get(timeout=0.02), lambda: queue.get_many(5, timeout=0.02)):
        with pytest.raises(QueueDown, match=r"has no master: .*start a"):
            call()
    with pytest.raises(QueueDown, match=r"has no master: .*start a"):
        queue.get_nowait()
    stage.cut_off()
    stage.run(5)
    with pytest.raises(NoQuorum):
        queue.get(timeout=0.02)
    stage.cluster.heal()
    stage.cluster.restart("a")
    assert queue.get(timeout=WAIT_S).body == b"0"


def test_a_nacked_message_comes_again_counted(stage: Stage, queue: Any) -> None:
    """At its place, before later ones; requeue=False ends it."""
    fill(queue, 3)
    queue.get(timeout=WAIT_S).nack().result(WAIT_S)
    again = queue.get(timeout=WAIT_S)
    assert (again.sequence, again.redelivered, again.delivery_count) == (1, True, 2)
    again.nack(requeue=False).result(WAIT_S)
    assert isinstance(again.ack().exception(WAIT_S), AckRefused)
    assert queue.get(timeout=WAIT_S).sequence == 2
    stage.until(lambda: stage.messages() == 2)
    with pytest.raises(ConfigError, match="does not come again"):
        again.nack(requeue=False, delay=1)


def test_a_message_settles_by_its_handle(stage: Stage, queue: Any) -> None:
    """The handle of a message settles it and closes; so for a handle that its user has dropped."""
    fill(queue, 2)
    message = queue.get(timeout=WAIT_S)
    message.handle.ack_many([message]).result(WAIT_S)
    held = stage.queue().get(timeout=WAIT_S)
    held.handle.ack_many([held]).result(WAIT_S)
    held.handle.close()
    stage.until(lambda: stage.messages() == 0)


def test_a_message_as_context_manager(stage: Stage, queue: Any) -> None:
    """Acked on a clean exit, given back on an exception, once settled left alone."""
    fill(queue, 2)
    with queue.get(timeout=WAIT_S) as message:
        assert message.body == b"0"
    stage.until(lambda: stage.messages() == 1)
    with pytest.raises(RuntimeError), queue.get(timeout=WAIT_S):
        raise RuntimeError
    again = queue.get(timeout=WAIT_S)
    assert (again.sequence, again.delivery_count) == (2, 2)
    with again:
        again.nack().result(WAIT_S)
    assert queue.get(timeout=WAIT_S).delivery_count == 3


def test_an_ack_is_refused_alone(stage: Stage, queue: Any) -> None:
    """Two acks travel together; only the one whose message was settled before is refused."""
    fill(queue, 2)
    one, two = got(queue, 2)
    one.nack().result(WAIT_S)
    settlements = [one.ack(), two.ack()]
    with pytest.raises(AckRefused, match="message"):
        settlements[0].result(WAIT_S)
    assert settlements[1].result(WAIT_S) is None
    assert isinstance(settlements[0].exception(), AckRefused)


@case(nodes=3)
def test_refused_acks_are_told_and_the_loop_goes_on(stage: Stage) -> None:
    """A worker holds messages over a failover, and another has some of them when it acks: its loop
    goes on, and it hears of each refused ack, however it acked. Of a nack it does not."""
    told: list[tuple[int, type]] = []
    queue, other = stage.queue(), stage.queue()
    queue.add_ack_listener(lambda message, error: told.append((message.sequence, type(error))))
    fill(other, 4)
    held = got(queue, 4)
    stage.fail_over()
    theirs = got(other, 3)
    assert [one.sequence for one in theirs] == [1, 2, 3]
    assert all(one.redelivered for one in theirs)
    with held[0]:
        pass
    queue.ack_many(held[1:2])
    assert isinstance(held[2].nack().exception(WAIT_S), AckRefused)
    settlements = [queue.ack_many(held[3:])]
    assert settlements[0].result(WAIT_S) is None
    fill(other, 1)
    assert taken(queue, 1) == [b"0"]
    stage.until(lambda: len(told) == 2)
    assert sorted(told) == [(1, AckRefused), (2, AckRefused)]
    other.ack_many(theirs).result(WAIT_S)
    stage.until(lambda: stage.messages() == 0)


@case(nodes=3)
def test_a_refused_part_of_a_round_refuses_nothing_else(stage: Stage) -> None:
    """After a failover one message is somebody else's: its ack is refused, the others' not."""
    queue, other = stage.queue(), stage.queue()
    fill(queue, 3)
    held = got(queue, 3)
    stage.fail_over()
    assert other.get(timeout=WAIT_S).sequence == 1
    settlements = [queue.ack_many(held[1:]), held[0].ack()]
    with pytest.raises(AckRefused, match="the ack of message 1 of queue"):
        settlements[1].result(WAIT_S)
    assert settlements[0].result(WAIT_S) is None


@case(THREADS, nodes=3)
def test_a_get_without_a_wait_asks_seldom_while_a_put_is_on_its_way(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits for the put's confirm, and does not ask the master again and again."""
    queue = stage.queue()
    fill(queue, 1)
    got(queue, 1)
    for other in "bc":
        stage.cluster.delay("a", other, 0.1)
    channel, asked = queue._handle, []
    counting = channel.counting
    monkeypatch.setattr(channel, "counting", lambda *left: asked.append(1) or counting(*left))
    queue.put(b"1")
    assert queue.get_nowait().body == b"1"
    assert 0 < len(asked) < 20


@case(nodes=3)
def test_the_documented_loop_outlives_a_refused_ack(stage: Stage) -> None:
    """The loop of docs/start.md: while it works on a job the master ends, and the job goes to
    another. Its ack is refused, and it goes on."""
    text = PAGE.read_text("utf-8")
    (code,) = re.findall(r"^    for message in jobs:\n(?:     .*\n)+", text, re.MULTILINE)
    done: list[int] = []
    refused: list[int] = []
    jobs, other = stage.queue(), stage.queue()
    jobs.add_ack_listener(lambda message, _: refused.append(message.sequence))

    def work(_: str, sequence: int, **options: bool) -> None:
        stage.cluster.sleep(20)
        done.append(sequence)

    loop = stage.begin(exec, textwrap.dedent(code), {"jobs": jobs, "print": work})
    fill(other, 1)
    stage.run(1)
    stage.fail_over()
    theirs = other.get(timeout=WAIT_S)
    stage.until(lambda: refused == [1])
    theirs.ack().result(WAIT_S)
    fill(other, 1)
    stage.until(lambda: done == [1, 2])
    assert not loop.is_done
    jobs.close()
    loop.result(WAIT_S)


@pytest.mark.parametrize("wrong", [None, "print"])
def test_a_listener_for_refused_acks_is_a_function(stage: Stage, wrong: object) -> None:
    with pytest.raises(TypeError):
        stage.queue().add_ack_listener(wrong)


def test_a_message_of_another_handle_is_not_acked_here(stage: Stage) -> None:
    """ack_many names deliveries of its own session: others are refused at the call."""
    one, other = stage.queue(), stage.queue()
    fill(one, 1)
    message = one.get(timeout=WAIT_S)
    with pytest.raises(ValueError, match="this handle"):
        other.ack_many([message])
    message.ack().result(WAIT_S)


def test_auto_ack_needs_no_ack(stage: Stage, queue: Any) -> None:
    """The message is gone soon after it was returned."""
    fill(queue, 1)
    assert queue.get(timeout=WAIT_S, auto_ack=True).body == b"0"
    stage.until(lambda: stage.messages() == 0)


@case(nodes=3)
def test_acks_survive_a_failover(stage: Stage, queue: Any) -> None:
    """The delivery is from the old master, the ack goes to the new one, and is not undone."""
    fill(queue, 3)
    held = got(queue, 2)
    stage.fail_over()
    queue.ack_many(held).result(WAIT_S)
    assert queue.get(timeout=WAIT_S).sequence == 3
    stage.until(lambda: stage.messages() == 1)


@case(nodes=3)
def test_what_was_fetched_ahead_is_void_after_a_failover(stage: Stage, queue: Any) -> None:
    """It comes again from the new master, in order, once."""
    fill(queue, 200)
    queue.ack_many(got(queue, 100)).result(WAIT_S)
    stage.fail_over()
    rest = got(queue, 100)
    assert [message.sequence for message in rest] == [*range(101, 201)]
    queue.ack_many(rest).result(WAIT_S)


@case(ITEMS, nodes=3)
def test_a_get_waits_on_over_a_failover(stage: Stage) -> None:
    """Held messages come again, marked, to another handle; the waiting call gets what follows."""
    queue, other = stage.queue(), stage.queue()
    queue.put(b"held", timeout=WAIT_S)
    stage.until(lambda: stage.messages() == 1)
    assert queue.get(timeout=WAIT_S).body == b"held"
    waiting = stage.begin(other.get)
    stage.fail_over()
    assert waiting.result(WAIT_S).body == b"held"
    stage.until(lambda: raised(queue.put, b"next", timeout=5) is None)
    assert taken(other, 1) == [b"next"]


@case(ITEMS)
def test_two_waiting_calls_do_not_take_a_message_from_each_other(stage: Stage) -> None:
    one, other = stage.queue(), stage.queue()
    calls = [stage.begin(queue.get) for queue in (one, other)]
    third = stage.queue()
    for body in (b"0", b"1"):
        third.put(body)
        stage.run(1)
    assert sorted(call.result(WAIT_S).body for call in calls) == [b"0", b"1"]


def test_what_no_call_takes_goes_back(stage: Stage) -> None:
    """A handle that has stopped calling holds nothing: another one gets all the rest, as first
    deliveries."""
    one, other = stage.queue(), stage.queue()
    fill(one, 500)
    one.ack_many(got(one, 200)).result(WAIT_S)
    stage.run(1)
    rest = got(other, 300)
    assert [message.sequence for message in rest] == [*range(201, 501)]
    assert not any(message.redelivered for message in rest)


def test_get_nowait_finds_what_another_handle_has_fetched_ahead(stage: Stage) -> None:
    """What no call has returned counts as ready."""
    one, other = stage.queue(), stage.queue()
    fill(one, 200)
    one.ack_many(got(one, 100)).result(WAIT_S)
    found = other.get_nowait()
    assert not found.redelivered
    stage.run(1)
    assert other.qsize() == 99


def test_browse_takes_nothing(stage: Stage, queue: Any) -> None:
    """Ready and unacknowledged ones, from a sequence on, bounded."""
    assert queue.browse() == []
    fill(queue, 2500)
    queue.get(timeout=WAIT_S)
    assert [message.sequence for message in queue.browse(count_max=2500)] == [*range(1, 2501)]
    assert [message.body for message in queue.browse(start=2499)] == [b"2498", b"2499"]
    assert len(queue.browse(start=10, count_max=5)) == 5
    assert queue.browse(start=9999) == queue.browse(count_max=0) == []
    with pytest.raises(AckRefused, match="browsed"):
        queue.browse(count_max=1)[0].ack().result(0)


def test_purge_leaves_unacknowledged_messages_alone(stage: Stage, queue: Any) -> None:
    """It returns how many it has ended; the held one can still be acked."""
    fill(queue, 10)
    held = queue.get(timeout=WAIT_S)
    assert queue.purge() == 9
    stage.until(lambda: stage.messages() == 1)
    held.ack().result(WAIT_S)
    assert queue.purge() == 0


def test_purge_ends_what_other_handles_have_fetched_ahead(stage: Stage) -> None:
    """A handle that got as fast as messages came has more of them than its calls have returned;
    those are ready. What a call has returned is not."""
    one, other = stage.queue(), stage.queue()
    fill(one, 2000)
    held = got(other, 100)
    assert one.purge() == 2000 - len(held)
    assert one.qsize() == other.qsize() == 0
    assert len(one.browse(count_max=3000)) == len(held)
    other.ack_many(held).result(WAIT_S)


def test_iteration_ends_on_close(stage: Stage) -> None:
    """`for message in queue` does not ack, and ends without an error."""
    queue, other = stage.queue(), stage.queue()
    fill(other, 3)
    seen: list[bytes] = []
    loop = stage.begin(lambda: seen.extend(message.body for message in queue))
    stage.until(lambda: seen == [b"0", b"1", b"2"])
    assert not loop.is_done
    queue.close()
    loop.result(WAIT_S)
    again = other.get(timeout=WAIT_S)
    assert (again.sequence, again.redelivered) == (1, True)


@case(ITEMS)
def test_many_threads_share_a_handle(stage: Stage, queue: Any) -> None:
    """Every message is returned to exactly one of them."""
    seen: list[bytes] = []

    def work() -> None:
        while not isinstance(raised(one), Empty):
            pass

    def one() -> None:
        message = queue.get(timeout=1)
        seen.append(message.body)
        message.ack()

    for number in range(200):
        queue.put(b"%d" % number)
    for task in [stage.begin(work) for _ in range(4)]:
        task.result(WAIT_S)
    assert sorted(seen) == sorted(b"%d" % number for number in range(200))
    stage.until(lambda: stage.messages() == 0)


@case(consumer_timeout_ms=1000)
def test_a_message_that_is_not_held_is_not_extended(stage: Stage) -> None:
    """It was settled, or has gone back: the settlement says so."""
    queue, other = stage.queue(), stage.queue()
    fill(queue, 2)
    first, late = got(queue, 2)
    first.extend(3600).result(WAIT_S)
    again = other.get(timeout=WAIT_S)
    assert (again.sequence, again.redelivered) == (2, True)
    refused = late.extend(10).exception(WAIT_S)
    assert isinstance(refused, AckRefused)
    assert "message 2 of queue" in str(refused)
    again.extend(0).result(WAIT_S)
    assert first.ack().result(WAIT_S) is None
    assert isinstance(first.extend(1).exception(WAIT_S), AckRefused)
    other.close()
    assert isinstance(again.extend(5).exception(WAIT_S), AckRefused)


@case(ONE_RING)
def test_who_gets_is_counted_as_a_consumer(stage: Stage) -> None:
    """While it works on a message, and while it waits for the next one."""
    queue, other = stage.queue(), stage.queue()
    fill(queue, 1)
    assert queue.status().consumers == 0
    held = other.get(timeout=WAIT_S)
    stage.until(lambda: queue.status().consumers == 1)
    held.ack().result(WAIT_S)
    stage.until(lambda: queue.status().consumers == 0)
    waiting = stage.begin(lambda: other.get(timeout=WAIT_S))
    stage.until(lambda: queue.status().consumers == 1)
    fill(queue, 1)
    waiting.result(WAIT_S).ack()
    stage.until(lambda: queue.status().consumers == 0)
