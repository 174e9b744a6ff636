"""When an auto-delete queue has lost its last consumer."""

from __future__ import annotations

from mirrorq.config import Config
from mirrorq.protocol.commands import DeleteQueue, NoteConsumers
from mirrorq.protocol.sessions import (
    ConsumerRefused,
    Credit,
    Detach,
    Purge,
    Purged,
    Subscribe,
    Unsubscribe,
)
from mirrorq.replication.events import Declared, LinkLost, NodeGone, SessionGone
from mirrorq.replication.master.auto_delete import AutoDelete

from .entries import QUEUE
from .test_master import ONE, TWO, Queue


def auto_delete(*, was_consumed: bool = False) -> AutoDelete:
    one = AutoDelete(QUEUE, 3)
    one.declare(auto_delete=True, was_consumed=was_consumed)
    return one


def test_a_queue_without_consumers_lives_until_it_has_had_one() -> None:
    """Then it is deleted in its term, once."""
    one = auto_delete()
    assert one.judge(0, 0) is None
    assert one.wake_at_ms() is None
    assert one.judge(1, 2) == NoteConsumers(QUEUE)
    assert one.judge(2, 1) is None
    assert one.judge(3, 0) == DeleteQueue(QUEUE, 3)
    assert one.is_ending
    assert one.judge(4, 0) is None


def test_another_queue_is_left_alone() -> None:
    """Without auto_delete nothing is ever asked for."""
    one = AutoDelete(QUEUE, 1)
    assert [one.judge(ms, consumers) for ms, consumers in enumerate((0, 1, 0))] == [None] * 3
    assert one.wake_at_ms() is None


def test_consumers_of_before_get_time_to_come_back() -> None:
    """A new master knows from the catalog that there were some."""
    one = auto_delete(was_consumed=True)
    one.expect(100)
    assert one.judge(50, 0) is None
    assert one.wake_at_ms() == 100
    assert one.judge(60, 1) is None
    one.expect(90)
    assert one.judge(99, 0) is None
    assert one.judge(100, 0) == DeleteQueue(QUEUE, 3)


def declared(how: Declared) -> tuple[Queue, list[object]]:
    """A master of a queue that was declared so, and what it asks the catalog for."""
    queue = Queue()
    queue.commands.clear()
    queue.sync()
    queue.step(how)
    return queue, queue.commands


def consumed() -> tuple[Queue, list[object]]:
    """A master of an auto-delete queue with one consumer, and what it asks the catalog for."""
    queue, asked = declared(Declared(True, False))
    queue.attach(ONE)
    queue.ask(ONE, Subscribe(1, 10))
    assert asked == [NoteConsumers(QUEUE)]
    asked.clear()
    return queue, asked


def test_the_last_consumer_takes_the_queue_along() -> None:
    """By leaving, or by the end of its handle; get is no consumer."""
    for last in (Unsubscribe(1), None):
        queue, asked = consumed()
        queue.attach(TWO)
        queue.ask(TWO, Subscribe(0, 10))
        assert asked == []
        if last is None:
            queue.step(SessionGone(ONE))
        else:
            queue.ask(ONE, last)
        assert asked == [DeleteQueue(QUEUE, 1)]


def test_who_comes_after_the_deletion_was_asked_for_is_not_seated() -> None:
    """It may be done at any moment: a consumer would lose its queue unheard."""
    queue, asked = consumed()
    queue.ask(ONE, Unsubscribe(1))
    queue.attach(TWO)
    queue.ask(TWO, Subscribe(1, 10))
    queue.ask(TWO, Credit(1, 10))
    master = queue.replica.master
    assert master is not None
    assert not master.dispatch.consumers.by_key
    assert asked == [DeleteQueue(QUEUE, 1)]


WAIT_MS = Config().consumer_return_ms


def test_a_consumer_that_was_lost_is_waited_for() -> None:
    """Its client went silent, or its entry node died: the queue, with what comes into it, is there
    when it is back; when it never comes, the queue goes after a while."""
    for how in (Detach(is_lost=True), NodeGone(ONE.node, None)):
        queue, asked = consumed()
        queue.attach(ONE, owner="key", line=7, turn=1)
        queue.ask(ONE, Subscribe(1, 10))
        if isinstance(how, Detach):
            queue.ask(ONE, how)
        else:
            queue.step(how)
        assert asked == []
        queue.now_ms += WAIT_MS - 1
        queue.attach(TWO, owner="key", line=7, turn=2)
        queue.ask(TWO, Subscribe(1, 10))
        queue.now_ms += 10 * WAIT_MS
        queue.step()
        assert asked == []
        queue.ask(TWO, Detach(is_lost=True))
        assert queue.wake_at_ms is not None
        assert queue.wake_at_ms <= queue.now_ms + WAIT_MS
        queue.now_ms += WAIT_MS
        queue.step()
        assert asked == [DeleteQueue(QUEUE, 1)]


def test_a_consumer_that_was_lost_is_waited_for_though_another_leaves() -> None:
    """And when it is back and leaves too, nobody waits for anything."""
    queue, asked = consumed()
    queue.attach(TWO, owner="key", line=7, turn=1)
    queue.ask(TWO, Subscribe(1, 10))
    queue.ask(TWO, Detach(is_lost=True))
    queue.ask(ONE, Unsubscribe(1))
    assert asked == []
    queue.attach(TWO, owner="key", line=7, turn=2)
    queue.ask(TWO, Subscribe(1, 10))
    queue.now_ms += Config().failure_ms
    queue.ask(TWO, Unsubscribe(1))
    assert asked == [DeleteQueue(QUEUE, 1)]


def test_consumers_behind_a_link_that_broke_get_time_to_attach() -> None:
    """A new master knows nobody by name, so one that has come does not end the wait for those on a
    node whose link breaks or comes anew."""
    queue, asked = consumed()
    queue.now_ms += 10 * Config().failure_ms
    queue.step(LinkLost("elsewhere"))
    queue.ask(ONE, Unsubscribe(1))
    queue.now_ms += 2 * Config().failure_ms - 1
    queue.step()
    assert asked == []
    queue.now_ms += 1
    queue.step()
    assert asked == [DeleteQueue(QUEUE, 1)]


def test_handles_that_were_lost_are_not_kept_for_ever() -> None:
    """A consumer that stays, and many that come and are lost: those that were given up are
    forgotten."""
    one = auto_delete()
    for number in range(1000):
        one.lose(number, number, 10)
        assert len(one._away) <= 10


# --- Exclusive queues -----------------------------------------------------------------------


OWNED = Declared(False, False, connection="client-1")


def owned() -> tuple[Queue, list[object]]:
    """A master of an exclusive queue whose owner has a handle on it, and what it asks for."""
    queue, asked = declared(OWNED)
    queue.attach(ONE, line=7, connection="client-1")
    return queue, asked


def test_an_exclusive_queue_goes_with_the_last_handle_of_its_connection() -> None:
    """Whoever else has one; nothing is asked for before."""
    queue, asked = owned()
    queue.attach(TWO, line=8, connection="client-2")
    queue.now_ms += 10 * WAIT_MS
    queue.step()
    assert asked == []
    queue.ask(ONE, Detach())
    assert asked == [DeleteQueue(QUEUE, 1)]


def test_an_exclusive_queue_waits_for_its_connection() -> None:
    """One that was lost, and one that has declared it and not yet come: for a while."""
    queue, asked = owned()
    queue.ask(ONE, Detach(is_lost=True))
    queue.now_ms += WAIT_MS - 1
    queue.attach(TWO, line=7, turn=2, connection="client-1")
    queue.now_ms += 10 * WAIT_MS
    queue.step()
    assert asked == []
    queue, asked = declared(OWNED)
    queue.now_ms += WAIT_MS - 1
    queue.step()
    assert asked == []
    queue.now_ms += 1
    queue.step()
    assert asked == [DeleteQueue(QUEUE, 1)]


def test_nobody_else_takes_from_an_exclusive_queue() -> None:
    """A consumer, a get and a purge of another connection are refused; a publish is not."""
    queue, _ = owned()
    queue.attach(TWO, line=8, connection="client-2")
    queue.heard(TWO)
    for number in (0, 1):
        queue.ask(TWO, Subscribe(number, 1))
    queue.ask(TWO, Purge(5))
    first, second, third = queue.heard(TWO)
    assert isinstance(first, ConsumerRefused)
    assert isinstance(second, ConsumerRefused)
    assert isinstance(third, Purged)
    assert all("belongs to connection client-1" in one.why for one in (first, second, third))
    queue.ask(ONE, Subscribe(1, 1))
    assert queue.replica.master is not None
    assert [key[0] for key in queue.replica.master.dispatch.consumers.by_key] == [ONE]


def test_a_nodes_own_handles_are_of_one_connection() -> None:
    """Of one incarnation of it: its name and incarnation."""
    queue, _ = declared(Declared(False, False, connection=f"{ONE.node}/{ONE.incarnation}"))
    queue.attach(ONE)
    queue.ask(ONE, Subscribe(1, 1))
    assert queue.replica.master is not None
    assert queue.replica.master.dispatch.consumers.by_key
