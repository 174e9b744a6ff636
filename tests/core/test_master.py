"""A term over one queue: producers, settling and delivery, on a ring of one member."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from mirrorq.config import Config
from mirrorq.protocol.codec import OpCodec
from mirrorq.protocol.effects import OutboxLoad, Persisted, QueueImage
from mirrorq.protocol.identities import SessionId
from mirrorq.protocol.ops import AckOp, RefusalOp
from mirrorq.protocol.sessions import (
    AckRange,
    Attach,
    Attached,
    Confirmed,
    Credit,
    Deliver,
    Delivery,
    Detached,
    Inquire,
    OpenProducer,
    Ping,
    Pong,
    ProducerOpened,
    ProducerUnknown,
    Publish,
    Purge,
    Purged,
    Recall,
    Recalled,
    Refused,
    Reply,
    Request,
    ResendNumber,
    SessionRequest,
    Settle,
    Settled,
    Subscribe,
)
from mirrorq.replication.events import LeaseChanged, Requested, SessionGone, Tick, ViewInstalled
from mirrorq.replication.master import settling
from mirrorq.replication.master.courier import Targets
from mirrorq.replication.master.term import Lease
from mirrorq.replication.replica import Replica
from mirrorq.testing.disk import QueueFiles

from .entries import CODEC, QUEUE, A, view

ONE = SessionId("a", 1, 1)
TWO = SessionId("a", 1, 2)
NOW_MS = 1000


class Queue:
    """One member in sync, master of its queue; everything written is synced on `sync`."""

    def __init__(
        self,
        files: QueueFiles | None = None,
        epoch: int = 1,
        config: Config | None = None,
        codec: OpCodec = CODEC,
        first: tuple[Any, ...] = (),
        wall_us: int = 0,
        targets: Targets | None = None,
    ) -> None:
        self.now_ms = NOW_MS
        self.wall_us = wall_us
        self.files = files or QueueFiles()
        self.lease = Lease(until_ms=1 << 60)
        image = self.files.image(QUEUE)
        self.replica = Replica(
            A, QUEUE, config or Config(), codec, image, self.lease, targets=targets
        )
        self.epoch = epoch
        self.requests: list[SessionRequest] = []
        """Of couriers, and what they want packed."""
        self.loads: list[OutboxLoad] = []
        self.replies: list[tuple[SessionId, Reply]] = []
        self.commands: list[object] = []
        """For the catalog."""
        self._writes: list[tuple[int, Any]] = []
        self._numbers: dict[SessionId, tuple[int, int]] = {}
        self.step(*first, ViewInstalled(view(epoch, "a", master_epoch=epoch)))

    def step(self, *events: Any) -> None:
        effects = self.replica.step(self.now_ms, self.wall_us, *events)
        self.wake_at_ms = effects.wake_at_ms
        self.sent = effects.send
        self.commands.extend(effects.commands)
        if effects.write is not None:
            self._writes.append((effects.write_number, effects.write))
        self.replies.extend((reply.session, reply.reply) for reply in effects.replies)
        self.requests.extend(effects.requests)
        self.loads.extend(effects.loads)

    def sync(self) -> None:
        """Everything on its way reaches the disk, and what follows from it too."""
        while self._writes:
            self.sync_one()

    def sync_one(self) -> None:
        """The next write reaches the disk."""
        number, write = self._writes.pop(0)
        self.files.apply(write)
        self.step(Persisted(number))

    def attach(
        self,
        session: SessionId,
        held: tuple[Delivery, ...] = (),
        producer: int = 0,
        *,
        owner: str = "",
        line: int = 0,
        turn: int = 0,
        connection: str = "",
    ) -> None:
        attachment = self._numbers.get(session, (0, 0))[0] + 1
        self._numbers[session] = (attachment, 0)
        self.ask(session, Attach(held, producer, owner, line, turn, connection))

    def ask(self, session: SessionId, request: Request, skip: int = 0) -> None:
        self.step(self.request(session, request, skip))

    def request(self, session: SessionId, request: Request, skip: int = 0) -> Requested:
        """The session's next request, as it comes to the queue."""
        attachment, number = self._numbers[session]
        number += 1 + skip
        self._numbers[session] = (attachment, number)
        return Requested(SessionRequest(QUEUE, self.epoch, session, attachment, number, request))

    def heard(self, session: SessionId = ONE) -> list[Reply]:
        """What this session was told since it was last asked."""
        found = [reply for to, reply in self.replies if to == session]
        self.replies = [(to, reply) for to, reply in self.replies if to != session]
        return found

    def open_producer(self) -> int:
        self.ask(ONE, OpenProducer())
        self.sync()
        (opened,) = [r for r in self.heard() if isinstance(r, ProducerOpened)]
        return opened.producer

    def publish(
        self, producer: int, first: int, count: int = 1, *, settled: int = 0, **terms: int
    ) -> None:
        frame = CODEC.frame(producer, first, count, settled, **terms)
        self.ask(ONE, Publish(frame, False))

    def consume(self, session: SessionId = ONE, credit: int = 100) -> None:
        self.ask(session, Subscribe(0, 1))
        self.ask(session, Credit(0, credit))
        self.sync()

    def pieces(self, session: SessionId = ONE) -> list[Delivery]:
        return [
            piece
            for reply in self.heard(session)
            if isinstance(reply, Deliver)
            for piece in reply.deliveries
        ]


@pytest.fixture
def queue() -> Queue:
    """A master whose promotion is applied, with one session attached."""
    made = Queue()
    made.sync()
    made.attach(ONE)
    assert made.heard() == [Attached()]
    return made


# --- Sessions -------------------------------------------------------------------------


def test_nothing_is_answered_before_the_promotion_is_applied() -> None:
    """4.4: requests wait until `promoted` is stable, and are served in order then."""
    queue = Queue()
    queue.attach(ONE)
    queue.ask(ONE, Ping())
    assert queue.heard() == []
    queue.sync()
    assert queue.heard() == [Attached(), Pong()]


def test_a_term_learned_from_a_later_view_begins_all_the_same() -> None:
    """A node that learns of its term from a snapshot installs a view of a later epoch."""
    queue = Queue()
    queue.replica = Replica(A, QUEUE, Config(), CODEC, QueueImage(QUEUE), Lease())
    queue.step(ViewInstalled(view(5, "a", master_epoch=4)))
    queue.sync()
    assert queue.replica.is_serving


def test_a_gap_in_requests_ends_the_attachment(queue: Queue) -> None:
    """Loss on the way is seen by the numbers: the session must attach again."""
    queue.ask(ONE, Ping(), skip=1)
    assert queue.heard() == [Detached()]


def test_a_request_of_another_term_is_dropped(queue: Queue) -> None:
    """What was meant for another master is not answered."""
    queue.epoch = 7
    queue.ask(ONE, Ping())
    assert queue.heard() == []


# --- A client's handle at another entry node ------------------------------------------


LINE = 77
"""Of one client's handle."""
LATER = SessionId("b", 1, 1)
"""Its session at the entry node after that of ONE."""


def queue_of_a_client(count: int, credit: int) -> tuple[Queue, list[Delivery]]:
    """A queue with messages, so many of them handed to a client's first session."""
    queue = Queue()
    queue.attach(ONE, line=LINE, turn=1)
    queue.sync()
    producer = queue.open_producer()
    queue.publish(producer, 1, count)
    queue.sync()
    queue.consume(credit=credit)
    return queue, queue.pieces()


def test_what_the_entry_node_before_had_comes_first() -> None:
    """P2: a client goes on at another entry node before anybody has taken its session at the
    last one for gone. What no call had returned there comes before all that is behind it: it was
    seen by nobody, so it is handed out as for the first time."""
    queue, (first,) = queue_of_a_client(10, 5)
    assert (first.first, first.last) == (1, 5)
    seen = Delivery(first.epoch, first.number, 1, 1, 1)
    queue.attach(LATER, held=(seen,), line=LINE, turn=2)
    queue.consume(LATER, 4)
    assert [(p.first, p.last, p.count) for p in queue.pieces(LATER)] == [(2, 5, 1)]
    queue.ask(LATER, Settle(1, "ack", (seen,)))
    queue.sync()
    assert queue.heard(LATER) == [Settled(1, (), "")]
    assert (queue.replica.state.live.first, queue.replica.state.live.count) == (2, 9)


def test_an_ack_of_the_session_before_is_not_refused() -> None:
    """It was taken and its answer was lost with the entry node: asked again it is done."""
    queue, pieces = queue_of_a_client(3, 3)
    queue.ask(ONE, Settle(1, "ack", tuple(pieces)))
    queue.sync()
    queue.attach(LATER, held=tuple(pieces), line=LINE, turn=2)
    queue.ask(LATER, Settle(1, "ack", tuple(pieces)))
    queue.sync()
    assert [r for r in queue.heard(LATER) if isinstance(r, Settled)] == [Settled(1, (), "")]


def test_an_exclusive_consumer_follows_its_client() -> None:
    """Its own place at the entry node before does not keep it out."""
    queue = Queue()
    queue.attach(ONE, line=LINE, turn=1)
    queue.sync()
    queue.ask(ONE, Subscribe(1, 1, exclusive=True))
    queue.attach(LATER, line=LINE, turn=2)
    queue.ask(LATER, Subscribe(1, 1, exclusive=True))
    queue.sync()
    assert queue.heard(LATER) == [Attached()]


def test_a_session_that_its_client_has_left_does_not_come_back() -> None:
    """What its entry node had still to pass on comes last: nothing is handed to it any more."""
    queue, (first,) = queue_of_a_client(10, 1)
    queue.attach(LATER, line=LINE, turn=2)
    queue.heard()
    queue.attach(ONE, held=(first,), line=LINE, turn=1)
    queue.consume()
    assert queue.heard() == [Detached(), Detached()]
    queue.consume(LATER, 10)
    assert [(p.first, p.last) for p in queue.pieces(LATER)] == [(1, 10)]


@pytest.mark.parametrize(("owner", "line"), [("another key", LINE), ("", LINE + 1), ("", 0)])
def test_nobody_takes_what_another_holds(owner: str, line: int) -> None:
    """A number that is another handle's, or another key's, names no session to go on with."""
    queue, (first,) = queue_of_a_client(10, 5)
    queue.attach(LATER, held=(first,), owner=owner, line=line, turn=2)
    queue.consume(LATER, 10)
    assert [(p.first, p.last) for p in queue.pieces(LATER)] == [(6, 10)]
    queue.ask(LATER, Settle(1, "ack", (first,)))
    queue.sync()
    (settled,) = queue.heard(LATER)
    assert isinstance(settled, Settled)
    assert settled.refused == (first,)


# --- Producers ------------------------------------------------------------------------


def test_a_confirm_comes_from_a_stable_op(queue: Queue) -> None:
    """R3: nothing is confirmed before it is on disk; then number and sequence are told."""
    producer = queue.open_producer()
    queue.publish(producer, 1, 3)
    assert queue.heard() == []
    queue.sync()
    assert queue.heard() == [Confirmed(producer, ((1, 3, 1),))]


def test_nothing_is_confirmed_in_a_pause(queue: Queue) -> None:
    """Without a majority confirms wait, and are told when it is back."""
    producer = queue.open_producer()
    queue.lease.paused = True
    queue.publish(producer, 1)
    queue.sync()
    assert queue.heard() == []
    queue.lease.paused = False
    queue.step(LeaseChanged())
    assert queue.heard() == [Confirmed(producer, ((1, 1, 1),))]


def test_a_batch_sent_again_is_confirmed_and_not_stored_again(queue: Queue) -> None:
    """P4: known numbers are told what became of them."""
    producer = queue.open_producer()
    queue.publish(producer, 1, 2)
    queue.sync()
    queue.heard()
    queue.publish(producer, 1, 2)
    assert queue.heard() == [Confirmed(producer, ((1, 2, 1),))]
    assert queue.replica.state.next_sequence == 3


def test_numbers_of_an_unstable_op_are_known(queue: Queue) -> None:
    """P4: dedupe looks at the whole log, not only at what is applied."""
    producer = queue.open_producer()
    queue.publish(producer, 1)
    queue.publish(producer, 1)
    queue.sync()
    assert queue.heard() == [Confirmed(producer, ((1, 1, 1),))]
    assert queue.replica.state.next_sequence == 2


@pytest.mark.parametrize("portion", [3, settling.PORTION])
def test_who_has_the_queue_alone_is_done_with_what_is_on_its_way_back(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, portion: int
) -> None:
    """A claim may begin, and ack, before the returns of a holder that is gone are stable: what it
    has browsed lives, and does not come again. (Swarm(3167, star=True, rail=True): it was told that
    nothing was left.)"""
    monkeypatch.setattr(settling, "PORTION", portion)
    queue.publish(queue.open_producer(), 1, 10)
    queue.sync()
    queue.attach(TWO)
    queue.consume(TWO)
    assert sum(piece.last - piece.first + 1 for piece in queue.pieces(TWO)) == 10
    queue.step(SessionGone(TWO))
    queue.ask(ONE, Subscribe(1, 1, exclusive=True, bare=True))
    queue.ask(ONE, AckRange(1, 1, 1, 10))
    queue.heard()
    queue.sync()
    assert queue.heard() == [Purged(1, 10)]
    assert not queue.replica.state.live


def test_a_late_publish_of_a_former_session_takes_no_confirm_away() -> None:
    """Another session goes on under the id and waits for its batch; then the same batch comes as
    the former one had sent it, and its goodbye. Who goes on was never told, and waited for ever."""
    queue = Queue()
    queue.attach(ONE)
    queue.sync()
    producer = queue.open_producer()
    queue.attach(TWO, producer=producer)
    queue.heard(TWO)
    queue.ask(TWO, Publish(CODEC.frame(producer, 1, 1, 0), False))
    queue.publish(producer, 1)
    queue.step(SessionGone(ONE))
    queue.sync()
    assert queue.heard(TWO) == [Confirmed(producer, ((1, 1, 1),))]
    assert queue.replica.state.next_sequence == 2


def test_a_late_publish_of_a_former_session_takes_no_refusal_away(queue: Queue) -> None:
    """The same where the batch is refused."""
    producer = queue.open_producer()
    queue.attach(TWO, producer=producer)
    queue.heard(TWO)
    master = queue.replica.master
    assert master is not None
    queue.publish(producer, 1)
    queue.ask(TWO, Publish(CODEC.frame(producer, 1, 2, 0), False))
    master.producers.refuse(CODEC.header(CODEC.frame(producer, 3, 1, 0)), "why")
    queue.step(Tick())
    queue.publish(producer, 1)
    queue.step(SessionGone(ONE))
    queue.sync()
    assert Refused(producer, 3, 1, "why") in queue.heard(TWO)


def test_a_batch_is_cut_at_its_first_new_number(queue: Queue) -> None:
    """What is known is confirmed as it was, and only the rest is stored."""
    producer = queue.open_producer()
    queue.publish(producer, 1, 2)
    queue.sync()
    queue.heard()
    queue.publish(producer, 2, 3)
    queue.sync()
    runs = [run for reply in queue.heard() if isinstance(reply, Confirmed) for run in reply.runs]
    assert runs == [(2, 1, 2), (3, 2, 3)]
    assert queue.replica.state.next_sequence == 5


def test_a_gap_in_numbers_is_asked_for(queue: Queue) -> None:
    """A number is never left out: the producer is told where to go on."""
    producer = queue.open_producer()
    queue.publish(producer, 2)
    assert queue.heard() == [ResendNumber(producer, 1)]
    assert queue.replica.ring.log.received == 2


def test_what_is_settled_is_dropped_unanswered(queue: Queue) -> None:
    """A batch whose outcomes nobody waits for is old, and makes no op."""
    producer = queue.open_producer()
    queue.publish(producer, 1, 2, settled=5)
    assert queue.heard() == []
    queue.publish(producer, 6, settled=5)
    queue.sync()
    assert queue.heard() == [Confirmed(producer, ((6, 1, 1),))]


def test_an_unknown_producer_may_not_go_on(queue: Queue) -> None:
    """An id that the table does not hold is no new one: the outcome is unknown."""
    queue.publish(77, 1)
    assert queue.heard() == [ProducerUnknown(77)]


def test_a_refusal_is_told_from_a_stable_op_and_stays(queue: Queue) -> None:
    """R3: also a no is an op, and a resend gets the same no."""
    producer = queue.open_producer()
    queue.attach(ONE, producer=producer)
    queue.heard()
    assert queue.replica.master is not None
    queue.replica.master.producers.refuse(CODEC.header(CODEC.frame(producer, 1, 2)), "full")
    queue.step()
    assert queue.heard() == []
    assert queue.replica.ring.log.entries[-1].payload == RefusalOp("full")
    queue.sync()
    assert queue.heard() == [Refused(producer, 1, 2, "full")]
    queue.publish(producer, 1, 2)
    assert queue.heard() == [Refused(producer, 1, 2, "full")]


# --- Delivery and settling ------------------------------------------------------------


def _filled(queue: Queue, count: int) -> None:
    producer = queue.open_producer()
    queue.publish(producer, 1, count)
    queue.sync()
    queue.heard()


def test_the_first_delivery_waits_for_a_stable_horizon(queue: Queue) -> None:
    """4.5: the op that moves the horizon is stable before anything is handed out."""
    _filled(queue, 2)
    queue.ask(ONE, Subscribe(0, 1))
    queue.ask(ONE, Credit(0, 5))
    assert queue.pieces() == []
    queue.sync()
    assert queue.pieces() == [Delivery(1, 1, 1, 2, 1)]
    assert queue.replica.state.horizon > 2


def test_nothing_is_handed_out_without_a_lease(queue: Queue) -> None:
    """4.5: when the lease has run out messages wait; confirms go on."""
    queue.lease.until_ms = NOW_MS
    _filled(queue, 1)
    queue.consume()
    assert queue.pieces() == []
    queue.lease.until_ms = NOW_MS + 1
    queue.step(LeaseChanged())
    assert len(queue.pieces()) == 1


def test_an_ack_is_told_when_it_is_stable(queue: Queue) -> None:
    """P3: the answer to an ack waits for its op."""
    _filled(queue, 2)
    queue.consume()
    (piece,) = queue.pieces()
    queue.ask(ONE, Settle(4, "ack", (piece,)))
    assert queue.heard() == []
    assert queue.replica.ring.log.entries[-1].payload == AckOp(((1, 2),))
    queue.sync()
    assert queue.heard() == [Settled(4, ())]
    assert not queue.replica.state.live


def test_a_return_comes_back_counted_when_it_is_applied(queue: Queue) -> None:
    """4.5: the message is ready again only when the op is applied, at its place."""
    _filled(queue, 2)
    queue.consume(credit=2)
    (piece,) = queue.pieces()
    queue.ask(ONE, Settle(1, "nack", (Delivery(1, piece.number, 1, 1, 1),)))
    queue.ask(ONE, Credit(0, 9))
    assert queue.pieces() == []
    queue.sync()
    assert [(p.first, p.last, p.count) for p in queue.pieces()] == [(1, 1, 2)]


def test_a_give_back_is_not_counted(queue: Queue) -> None:
    """What nobody has seen is handed out again as if for the first time, at once."""
    _filled(queue, 1)
    queue.consume()
    (piece,) = queue.pieces()
    queue.ask(ONE, Settle(1, "giveback", (piece,)))
    assert [p.count for p in queue.pieces()] == [1]


def test_what_a_session_no_longer_holds_goes_back_uncounted(queue: Queue) -> None:
    """An attachment names what users hold; the rest of its deliveries was seen by nobody."""
    _filled(queue, 3)
    queue.consume()
    (piece,) = queue.pieces()
    queue.attach(ONE, held=(Delivery(1, piece.number, 2, 2, 1),))
    queue.consume()
    assert [(p.first, p.last, p.count) for p in queue.pieces()] == [(1, 1, 1), (3, 3, 1)]
    queue.ask(ONE, Settle(1, "ack", (Delivery(1, piece.number, 2, 2, 1),)))
    queue.sync()
    assert queue.heard() == [Settled(1, ())]


def test_a_purge_leaves_what_is_held(queue: Queue) -> None:
    """Ready messages end; an unacknowledged one can still be acked."""
    _filled(queue, 3)
    queue.consume(credit=1)
    (piece,) = queue.pieces()
    queue.ask(ONE, Purge(8))
    queue.ask(ONE, Recalled(1))
    queue.sync()
    assert Purged(8, 2) in queue.heard()
    assert list(queue.replica.state.live) == [(piece.first, piece.last)]


def test_counts_are_those_of_now(queue: Queue) -> None:
    """Ready and unacknowledged are counted apart."""
    _filled(queue, 3)
    queue.consume(credit=1)
    queue.pieces()
    queue.ask(ONE, Inquire(2))
    (counts,) = queue.heard()
    assert (counts.ready, counts.unacknowledged, counts.next_sequence) == (2, 1, 4)  # type: ignore[union-attr]


# --- Consumers that hang --------------------------------------------------------------


def test_a_get_that_is_not_acked_in_time_loses_only_its_message() -> None:
    queue = Queue(config=Config(consumer_timeout_ms=5000))
    queue.sync()
    queue.attach(ONE)
    producer = queue.open_producer()
    queue.publish(producer, 1, 1)
    queue.consume(ONE, credit=2)
    assert len(queue.pieces()) == 1
    queue.now_ms += 5001
    queue.step(Tick())
    queue.sync()
    assert [p.count for p in queue.pieces()] == [2]


def test_a_purge_calls_back_what_no_call_has_seen() -> None:
    """Two handles have fetched ahead: nothing is handed out until both have given back what
    nobody saw; what a call has returned stays unacknowledged."""
    queue = Queue()
    queue.sync()
    queue.attach(ONE)
    queue.attach(TWO)
    queue.publish(queue.open_producer(), 1, 6)
    queue.sync()
    queue.consume(ONE, 2)
    queue.consume(TWO, 2)
    (mine,) = [r.deliveries for r in queue.heard(ONE) if isinstance(r, Deliver)]
    (other,) = [r.deliveries for r in queue.heard(TWO) if isinstance(r, Deliver)]
    queue.ask(ONE, Purge(7))
    assert queue.heard(TWO) == [Recall(0, 1)]
    assert [r for r in queue.heard(ONE) if isinstance(r, Recall)] == [Recall(0, 1)]
    queue.ask(TWO, Settle(0, "giveback", other))
    queue.ask(TWO, Recalled(1))
    queue.ask(TWO, Credit(0, 100))
    queue.sync()
    assert queue.heard(TWO) == []
    seen = replace(mine[0], last=mine[0].first)
    unseen = replace(mine[0], first=mine[0].first + 1)
    queue.ask(ONE, Settle(0, "giveback", (unseen,)))
    queue.ask(ONE, Recalled(1))
    queue.sync()
    assert [r for r in queue.heard(ONE) if isinstance(r, Purged)] == [Purged(7, 5)]
    master = queue.replica.master
    assert master is not None
    assert (master.dispatch.ready.levels.count, master.dispatch.open.unacknowledged) == (0, 1)
    assert list(queue.replica.state.live) == [(seen.first, seen.last)]


def test_a_purge_does_not_wait_for_a_handle_that_is_gone() -> None:
    """Closed or attached anew, it holds nothing unseen; silent, it keeps what it has."""
    for end in ("gone", "again"):
        queue = Queue()
        queue.sync()
        queue.attach(ONE)
        queue.attach(TWO)
        queue.publish(queue.open_producer(), 1, 3)
        queue.consume(TWO, 2)
        queue.sync()
        queue.ask(ONE, Purge(7))
        queue.sync()
        assert not [r for r in queue.heard(ONE) if isinstance(r, Purged)]
        if end == "gone":
            queue.step(SessionGone(TWO))
        else:
            queue.attach(TWO)
        queue.sync()
        assert [type(r) for r in queue.heard(ONE)] == [Purged]
    master = queue.replica.master
    assert master is not None
    assert not master.purging.open
    # All that is left: what was held is looked at again after consumer_timeout_ms.
    assert master.timers.next_ms == NOW_MS + Config().consumer_timeout_ms + 1
