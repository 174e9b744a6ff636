"""Acks whose answer was lost and that come again, and handles that go on through another node."""

from __future__ import annotations

import pytest

from mirrorq.protocol.identities import SessionId
from mirrorq.protocol.sessions import (
    Attached,
    Browse,
    Credit,
    Deliver,
    Delivery,
    Detached,
    Request,
    Settle,
    Settled,
    Subscribe,
)
from mirrorq.replication.events import SessionGone

from .test_master import ONE, Queue

TWO = SessionId("c", 1, 1)
"""The same client by way of another node."""
THREE = SessionId("b", 1, 3)


@pytest.fixture
def queue() -> Queue:
    """A master with three messages; the first handle holds them as one delivery."""
    made = Queue()
    made.sync()
    made.attach(ONE, line=7, turn=1)
    producer = made.open_producer()
    made.publish(producer, 1, 3)
    made.sync()
    made.consume()
    return made


def answered(queue: Queue, session: SessionId) -> list[Settled]:
    """The answers to settlements that this session has heard."""
    return [reply for reply in queue.heard(session) if isinstance(reply, Settled)]


@pytest.mark.parametrize("kind", ["ack", "reject", "nack"])
@pytest.mark.parametrize("is_stable", [True, False])
@pytest.mark.parametrize("is_gone", [True, False])
def test_what_took_effect_is_not_refused_when_it_comes_again(
    queue: Queue, kind: str, is_stable: bool, is_gone: bool
) -> None:
    """The entry node of a client dies with the answer to an ack. It comes again under another
    session, in the same term, before or after the op is stable and whether or not the master has
    heard of the death: it is told done, when it is stable."""
    (piece,) = queue.pieces()
    queue.ask(ONE, Settle(1, kind, (piece,)))
    if is_stable:
        queue.sync()
    if is_gone:
        queue.step(SessionGone(ONE))
    queue.attach(TWO, held=(piece,), line=7, turn=2)
    queue.ask(TWO, Settle(1, kind, (piece,)))
    if not is_stable:
        assert answered(queue, TWO) == []
    queue.sync()
    assert answered(queue, TWO) == [Settled(1, ())]


def test_an_ack_of_an_older_client_that_comes_again_is_not_refused(queue: Queue) -> None:
    """It names no line of its handle: what was settled is known by the delivery's name."""
    (piece,) = queue.pieces()
    queue.ask(ONE, Settle(1, "ack", (piece,)))
    queue.attach(TWO, held=(piece,))
    queue.ask(TWO, Settle(1, "ack", (piece,)))
    queue.sync()
    assert answered(queue, TWO) == [Settled(1, ())]


def test_parts_of_an_ack_that_comes_again_are_judged_each(queue: Queue) -> None:
    """One message was acked, one had gone back, one is acked only now."""
    (piece,) = queue.pieces()
    parts = [Delivery(1, piece.number, n, n, 1) for n in (1, 2, 3)]
    queue.ask(ONE, Credit(0, 0))
    queue.ask(ONE, Settle(1, "ack", parts[:1]))
    queue.ask(ONE, Settle(2, "nack", parts[1:2]))
    queue.attach(TWO, held=(piece,), line=7, turn=2)
    queue.ask(TWO, Settle(1, "ack", (piece,)))
    queue.sync()
    ((settled),) = answered(queue, TWO)
    assert settled.refused == (parts[1],)
    assert "gone back" in settled.why
    assert list(queue.replica.state.live) == [(2, 2)]


def test_acks_are_known_after_however_many_others() -> None:
    """More deliveries than were remembered once, each acked; all acks come again in the next
    attachment of the same session."""
    count = 5000
    queue = Queue()
    queue.sync()
    queue.attach(ONE)
    queue.publish(queue.open_producer(), 1, count)
    queue.sync()
    queue.ask(ONE, Subscribe(0, 1))
    pieces = []
    for number in range(count):
        queue.ask(ONE, Credit(0, number + 1))
        queue.sync()
        pieces += queue.pieces()
    assert len(pieces) == count
    queue.ask(ONE, Settle(1, "ack", tuple(pieces)))
    queue.sync()
    queue.heard()
    queue.attach(ONE, held=tuple(pieces))
    queue.ask(ONE, Settle(1, "ack", tuple(pieces)))
    queue.sync()
    assert answered(queue, ONE) == [Settled(1, ())]


def test_an_ack_across_a_failover_is_known_while_its_op_is_on_its_way(queue: Queue) -> None:
    """The new master has taken it; it comes again before that is stable."""
    (piece,) = queue.pieces()
    after = Queue(queue.files, epoch=2)
    after.sync()
    for number in (1, 2):
        session = (ONE, TWO)[number - 1]
        after.attach(session, held=(piece,), line=7, turn=number)
        after.ask(session, Settle(1, "ack", (piece,)))
    assert answered(after, TWO) == []
    after.sync()
    assert answered(after, TWO) == [Settled(1, ())]
    assert not after.replica.state.live


# --- Handles that go on through another node --------------------------------------------


def test_a_handle_keeps_what_it_holds(queue: Queue) -> None:
    """Its entry node is gone, the master lives: what users hold stays theirs, uncounted, and what
    no call has returned is handed out anew at once. The former session's end changes nothing."""
    (piece,) = queue.pieces()
    held = Delivery(1, piece.number, 1, 2, 1)
    queue.attach(TWO, held=(held,), line=7, turn=2)
    queue.consume(TWO)
    queue.step(SessionGone(ONE))
    queue.sync()
    replies = queue.heard(TWO)
    assert isinstance(replies[0], Attached) or isinstance(replies[1], Attached)
    assert [
        (p.first, p.last, p.count)
        for reply in replies
        if isinstance(reply, Deliver)
        for p in reply.deliveries
    ] == [(3, 3, 1)]
    queue.ask(TWO, Settle(1, "ack", (held,)))
    queue.sync()
    assert answered(queue, TWO) == [Settled(1, ())]
    assert list(queue.replica.state.live) == [(3, 3)]


@pytest.mark.parametrize(
    "request_", [Settle(1, "ack", (Delivery(1, 1, 1, 3, 1),)), Browse(1, 1, 1)]
)
def test_what_was_sent_the_former_way_is_void(queue: Queue, request_: Request) -> None:
    """A refusal must be final: an ack of the former session that is still on its way when the
    handle has gone on would end a message whose ack was refused."""
    queue.pieces()
    queue.attach(TWO, line=7, turn=2)
    queue.sync()
    queue.ask(ONE, request_)
    assert queue.heard(ONE)[-1] == Detached()
    assert queue.replica.state.live.count == 3


def test_an_attachment_that_comes_late_takes_nothing_away(queue: Queue) -> None:
    """The former way was slow: what it brings is older than the session that has gone on."""
    (piece,) = queue.pieces()
    queue.attach(TWO, held=(piece,), line=7, turn=3)
    queue.attach(THREE, line=7, turn=2)
    queue.ask(TWO, Settle(1, "ack", (piece,)))
    queue.sync()
    assert answered(queue, TWO) == [Settled(1, ())]


def test_a_handle_is_known_by_its_line_and_its_key(queue: Queue) -> None:
    """Who names another line, or has another key, takes nothing over."""
    (piece,) = queue.pieces()
    for session, line, owner in ((TWO, 8, ""), (THREE, 7, "a key")):
        queue.attach(session, held=(piece,), line=line, turn=9, owner=owner)
        queue.ask(session, Settle(1, "ack", (piece,)))
        queue.sync()
        assert [settled.refused for settled in answered(queue, session)] == [(piece,)]
    queue.ask(ONE, Settle(1, "ack", (piece,)))
    queue.sync()
    assert answered(queue, ONE) == [Settled(1, ())]
