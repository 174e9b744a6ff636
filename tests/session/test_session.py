"""A session against a real master: what survives lost messages, lost links and failovers."""

from __future__ import annotations

import pytest
from world import CONFIG, QUEUE_ID, User, World, put_of, started

from mirrorq.protocol.sessions import (
    Attach,
    Attached,
    Confirmed,
    ConsumerRefused,
    Counts,
    Credit,
    Deliver,
    Delivery,
    Detached,
    Extend,
    OpenProducer,
    Ping,
    ProducerOpened,
    ProducerUnknown,
    Publish,
    Purged,
    Refused,
    Request,
    ResendNumber,
    SessionReply,
    Settled,
    Subscribe,
)
from mirrorq.session.calls import (
    EXTEND,
    Closed,
    DropBuffered,
    Failed,
    LinkLost,
    MasterChanged,
    Query,
    QueryDone,
    ReplyArrived,
    SettleCall,
    SettleDone,
    Stored,
    inquire_request,
    purge_request,
)
from mirrorq.session.machine import Session
from mirrorq.wire import frames


def bodies_of(requests: list[Request]) -> list[Publish]:
    """The publishes among requests."""
    return [request for request in requests if isinstance(request, Publish)]


class Scripted:
    """A session whose master is the test itself."""

    def __init__(self) -> None:
        self.world = World()
        self.user = User(self.world, 1)
        self.session: Session = self.user.session
        self.now_ms = 0
        self.replies = 0
        self.epoch = 1

    def step(self, *events: object) -> list[object]:
        """One step; returns the outputs and notes the requests."""
        outputs = self.session.step(self.now_ms, events)  # type: ignore[arg-type]
        for output in outputs:
            if isinstance(output, DropBuffered):
                self.session.drop(())
        self.session.complete_attach()
        self.requests = list(self.session.flush(self.now_ms))
        if any(isinstance(request.request, Attach) for request in self.requests):
            self.replies = 0
        return list(outputs)

    @property
    def sent(self) -> list[Request]:
        """Requests of the last step, out of their envelopes."""
        return [request.request for request in self.requests]

    def attachment(self) -> int:
        """The session's present attachment, as its last request named it."""
        return self.session._attachment

    def reply(self, *bodies: object, attachment: int | None = None) -> list[object]:
        """Replies that arrive in one step."""
        events = []
        for body in bodies:
            self.replies += 1
            number = attachment if attachment is not None else self.attachment()
            events.append(
                ReplyArrived(
                    SessionReply(
                        QUEUE_ID,
                        self.epoch,
                        self.session.session,
                        number,
                        self.replies,
                        body,  # type: ignore[arg-type]
                    )
                )
            )
        return self.step(*events)

    def attach(self) -> None:
        """Up to a producer id."""
        self.step(MasterChanged(self.epoch, True))
        self.reply(Attached())


@pytest.fixture
def script() -> Scripted:
    """A session that is attached."""
    script = Scripted()
    script.attach()
    return script


def test_an_extension_is_asked_for_anew_in_each_attachment() -> None:
    script = Scripted()
    held = Delivery(1, 1, 1, 3, 1)
    script.attach()
    script.reply(Deliver(0, (held,)))
    script.session.settle(SettleCall("longer", EXTEND, (held,), 500))
    script.step()
    assert script.sent[-1] == Extend(1, (held,), 500)
    script.step(LinkLost())
    assert next(one for one in script.sent if isinstance(one, Attach)).held == (held,)
    assert script.sent[-1] == Extend(1, (held,), 500)
    script.reply(Attached())
    assert script.reply(Settled(1, ())) == [SettleDone("longer", (), "")]
    assert script.session.is_idle


def test_nothing_is_sent_while_there_is_no_master() -> None:
    """Puts, settlements and questions wait for a master; the first request is Attach."""
    script = Scripted()
    script.session.put(put_of([], [b"x"]))
    script.session.query(Query("q", inquire_request))
    script.step()
    assert script.sent == []
    script.step(MasterChanged(1, False))
    assert script.sent == []
    script.step(MasterChanged(1, True))
    assert isinstance(script.sent[0], Attach)
    assert [request.number for request in script.requests] == [*range(1, len(script.requests) + 1)]


def test_a_put_waits_for_a_producer_id_and_numbers_have_no_gaps(script: Scripted) -> None:
    """OpenProducer goes out once, at the first put; then numbers count from 1."""
    assert OpenProducer() not in script.sent
    script.session.put(put_of("one", [b"1"]))
    script.session.put(put_of("two", [b"2", b"3"]))
    script.step()
    assert script.sent == [OpenProducer()]
    script.session.put(put_of("three", [b"4"]))
    script.step()
    assert script.sent == []
    script.reply(ProducerOpened(9))
    headers = [frames.header(publish.frame) for publish in bodies_of(script.sent)]
    assert [(h.producer, h.first_number, h.count) for h in headers] == [
        (9, 1, 1),
        (9, 2, 2),
        (9, 4, 1),
    ]


def test_confirms_end_puts_once_and_settled_rides_on_the_next_batch(script: Scripted) -> None:
    """A run may cover parts of several batches; a number is told once, however often it comes."""
    script.session.put(put_of("one", [b"1", b"2"]))
    script.session.put(put_of("two", [b"3", b"4"]))
    script.step()
    script.reply(ProducerOpened(9))
    outputs = script.reply(Confirmed(9, ((1, 3, 100),)))
    assert outputs == [Stored("one", 0, 2, 100), Stored("two", 0, 1, 102)]
    outputs = script.reply(Confirmed(9, ((2, 3, 101),)))
    assert outputs == [Stored("two", 1, 1, 103)]
    assert script.session.unconfirmed_count == script.session.unconfirmed_bytes == 0
    script.session.put(put_of("three", [b"5"]))
    script.step()
    assert frames.header(bodies_of(script.sent)[0].frame).settled == 4


def test_what_was_stored_and_lost_ends_unknown(script: Scripted) -> None:
    """Somebody may have had it: it is neither confirmed nor certainly not stored."""
    script.session.put(put_of("one", [b"1"]))
    script.step()
    script.reply(ProducerOpened(9))
    lost = Refused(9, 1, 1, "lost", is_lost=True)
    assert script.reply(lost) == [Failed("one", 0, 1, "lost", True, True)]


def test_replies_of_another_attachment_or_epoch_are_dropped(script: Scripted) -> None:
    """What an earlier attachment or master says is not believed."""
    script.session.put(put_of("one", [b"1"]))
    script.step()
    script.reply(ProducerOpened(9))
    old = script.attachment()
    script.step(LinkLost())
    assert script.attachment() == old + 1
    assert script.reply(Confirmed(9, ((1, 1, 5),)), attachment=old) == []
    script.step(MasterChanged(2, True))
    assert script.reply(Confirmed(9, ((1, 1, 5),))) == []
    script.epoch = 2
    script.replies = 0
    assert script.reply(Attached(), Confirmed(9, ((1, 1, 5),))) == [Stored("one", 0, 1, 5)]


def test_an_older_master_is_not_listened_to(script: Scripted) -> None:
    """News of a lower epoch come late and change nothing."""
    script.step(MasterChanged(5, True))
    attachment = script.attachment()
    script.step(MasterChanged(4, True), MasterChanged(4, False))
    assert (script.session.epoch, script.session.available) == (5, True)
    assert script.attachment() == attachment


def test_news_that_change_nothing_disturb_nobody(script: Scripted) -> None:
    """A repeated MasterChanged of an attached session drops no messages and attaches nothing."""
    assert script.step(MasterChanged(1, True)) == []
    assert script.sent == []


def test_a_reply_gap_attaches_again(script: Scripted) -> None:
    """A reply that is missing may have been anything: attach, and say all that is open again."""
    script.session.put(put_of("one", [b"1"]))
    script.step()
    script.reply(ProducerOpened(9))
    attachment = script.attachment()
    script.replies += 1
    outputs = script.reply(Confirmed(9, ((1, 1, 5),)))
    assert outputs == [DropBuffered(False)]
    assert script.attachment() == attachment + 1
    assert script.sent[0] == Attach((), 9)
    assert frames.header(bodies_of(script.sent)[0].frame).first_number == 1


def test_detached_attaches_again(script: Scripted) -> None:
    """The master has forgotten this attachment."""
    attachment = script.attachment()
    assert script.reply(Detached()) == [DropBuffered(False)]
    assert script.attachment() == attachment + 1
    assert isinstance(script.sent[0], Attach)


def test_resend_number_sends_from_there(script: Scripted) -> None:
    """Batches wholly below the number are not sent again."""
    for token in ("one", "two", "three"):
        script.session.put(put_of(token, [b"1", b"2"]))
    script.step()
    script.reply(ProducerOpened(9))
    script.reply(ResendNumber(9, 3))
    firsts = [frames.header(publish.frame).first_number for publish in bodies_of(script.sent)]
    assert firsts == [3, 5]


def test_a_confirmed_number_that_the_master_misses_is_called_settled(script: Scripted) -> None:
    """An unclean promotion has lost it: what is open goes on after it."""
    for token in ("one", "two"):
        script.session.put(put_of(token, [b"1", b"2"]))
    script.step()
    script.reply(ProducerOpened(9))
    script.reply(Confirmed(9, ((1, 2, 1),)))
    script.reply(ResendNumber(9, 2))
    headers = [frames.header(publish.frame) for publish in bodies_of(script.sent)]
    assert [(header.first_number, header.settled) for header in headers] == [(3, 2)]


def test_an_expired_producer_leaves_what_was_sent_unknown_and_what_waits_goes_on() -> None:
    """ProducerUnknown ends what is open under the id; later puts get a new id, from 1."""
    script = Scripted()
    script.attach()
    script.session.put(put_of("one", [b"1"]))
    script.step()
    script.reply(ProducerOpened(9))
    outputs = script.reply(ProducerUnknown(9), ProducerUnknown(9))
    assert [(o.token, o.unknown) for o in outputs if isinstance(o, Failed)] == [("one", True)]
    script.session.put(put_of("two", [b"2"]))
    script.step()
    assert script.sent == [OpenProducer()]
    script.reply(ProducerOpened(12))
    header = frames.header(bodies_of(script.sent)[0].frame)
    assert (header.producer, header.first_number, header.settled) == (12, 1, 0)


def test_silence_is_asked_after_and_then_attaches_again(script: Scripted) -> None:
    """failure_ms without a word: a Ping; as long again: a new attachment, sent in that step."""
    script.session.query(Query("q", inquire_request))
    script.step()
    assert script.session.wake_at_ms() == CONFIG.failure_ms
    script.now_ms = CONFIG.failure_ms
    script.step()
    assert script.sent == [Ping()]
    wake_ms = script.session.wake_at_ms()
    assert wake_ms == 2 * CONFIG.failure_ms
    attachment = script.attachment()
    script.now_ms = wake_ms
    script.step()
    assert script.attachment() == attachment + 1
    assert isinstance(script.sent[0], Attach)


def test_a_handle_that_asked_for_nothing_takes_no_silence_for_an_end(script: Scripted) -> None:
    """The first request after an hour waits as long for its answer as any other."""
    script.now_ms = 3_600_000
    script.step()
    script.session.query(Query("q", inquire_request))
    script.step()
    attachment = script.attachment()
    assert script.session.wake_at_ms() == script.now_ms + CONFIG.failure_ms
    script.now_ms += 1
    script.step()
    assert script.sent == []
    assert script.attachment() == attachment


def test_the_end_of_a_master_makes_what_is_buffered_void(script: Scripted) -> None:
    """A buffered message may be handed to somebody else by the next master: it is dropped as
    soon as its master is known to be gone, not only when there is another."""
    assert DropBuffered(False) in script.step(MasterChanged(1, False))
    assert script.step(MasterChanged(2, False)) == []
    assert DropBuffered(True) in script.step(MasterChanged(2, True))


def test_credit_is_renewed_in_halves_and_starts_again_with_the_attachment(script: Scripted) -> None:
    """Few requests for many messages; a new attachment counts from 0."""
    session = script.session
    session.subscribe(1, 100, False, False)
    session.want(1, 0, 100)
    script.step()
    assert Credit(1, 100) in script.sent
    script.reply(Deliver(1, (Delivery(1, 1, 1, 30, 1),)))
    session.want(1, 0, 100)
    script.step()
    assert script.sent == []
    script.reply(Deliver(1, (Delivery(1, 2, 31, 60, 1),)))
    session.want(1, 0, 100)
    script.step()
    assert script.sent == [Credit(1, 160)]
    script.step(LinkLost())
    assert Subscribe(1, 100, False, False) in script.sent
    session.want(1, 40, 100)
    script.step()
    assert script.sent == [Credit(1, 60)]


def test_an_answer_to_a_forgotten_question_is_dropped(script: Scripted) -> None:
    """A caller whose patience has ended is not told."""
    script.session.query(Query("kept", inquire_request))
    script.session.query(Query("gone", purge_request))
    script.step()
    script.session.forget_query("gone")
    outputs = script.reply(Counts(1, 0, 0, 0, 1, 0), Purged(2, 0))
    assert outputs == [QueryDone("kept", Counts(1, 0, 0, 0, 1, 0))]


def test_a_refused_consumer_is_gone(script: Scripted) -> None:
    """It is not subscribed again by itself."""
    script.session.subscribe(1, 10, True, False)
    script.step()
    script.reply(ConsumerRefused(1, "another one"))
    script.step(LinkLost())
    assert [s.number for s in script.sent if isinstance(s, Subscribe)] == [0]


def test_closing_ends_everything_open_as_unknown(script: Scripted) -> None:
    """What was accepted and has no outcome is unknown, whether it was sent or not."""
    session = script.session
    session.put(put_of("sent", [b"1"]))
    script.step()
    script.reply(ProducerOpened(9))
    session.settle(SettleCall("ack", "ack", (Delivery(1, 1, 1, 1, 1),)))
    session.query(Query("q", inquire_request))
    script.step()
    script.step(MasterChanged(1, False))
    session.put(put_of("waiting", [b"2"]))
    outputs = script.step(Closed("the node is closed"))
    failed = [(o.token, o.unknown) for o in outputs if isinstance(o, Failed)]
    assert failed == [("sent", True), ("waiting", True)]
    assert [o.token for o in outputs if isinstance(o, SettleDone)] == ["ack"]
    assert QueryDone("q", None) in outputs
    assert session.is_idle
    assert script.step(MasterChanged(2, True)) == []
    assert script.sent == []


def test_puts_survive_a_failover_that_lost_them() -> None:
    """The first master dies before its disk write; the second gets the batch again, once."""
    world, user = started()
    user.put(3)
    world.settle_all(until=lambda: user.session._producer != 0)
    user.step()
    world.carry_requests(user)
    world.kill()
    world.serve()
    world.settle_all()
    assert [sent.outcome for sent in user.sent] == ["stored"] * 3
    assert [sent.sequence for sent in user.sent] == [1, 2, 3]


def test_puts_that_were_stored_before_a_failover_make_no_duplicate() -> None:
    """P4: the batch is on disk, the confirm is not told; the resent one is known."""
    world, user = started()
    user.put(1)
    world.settle_all()
    user.put(3)
    user.step()
    world.carry_requests(user)
    assert world.write()
    world.kill()
    world.serve()
    world.settle_all()
    assert [sent.sequence for sent in user.sent] == [1, 2, 3, 4]
    assert world.replica is not None
    assert world.replica.state.live.count == 4


def test_an_ack_whose_answer_was_lost_is_taken_when_it_comes_again() -> None:
    """The master took it; the link broke before the answer: it is not refused."""
    world, user = started()
    user.put(2)
    user.demand = 2
    world.settle_all(until=lambda: len(user.buffer) == 2)
    user.demand = 0
    first, second = user.take(2)
    user.settle("ack", [first])
    user.step()
    world.carry_requests(user)
    world.break_link(user)
    world.settle_all()
    assert first.settled == "ok"
    user.settle("ack", [second])
    user.step()
    world.carry_requests(user)
    assert world.write()
    world.break_link(user)
    world.settle_all()
    assert second.settled == "ok"


def test_an_ack_that_was_lost_on_the_way_is_taken_when_it_comes_again() -> None:
    """And nobody else is handed the message meanwhile as a first delivery."""
    world, user = started()
    other = world.open()
    user.put(1)
    user.demand = 1
    world.settle_all(until=lambda: bool(user.buffer))
    user.demand = 0
    messages = user.take()
    other.demand = 1
    world.settle_all()
    user.settle("ack", messages)
    user.step()
    world.break_link(user)
    world.settle_all()
    assert messages[0].settled == "ok"
    assert not other.buffer


def test_an_ack_across_a_failover_is_taken() -> None:
    """It is still the same message's, raised only by the promotion."""
    world, user = started()
    user.put(1)
    user.demand = 1
    world.settle_all(until=lambda: bool(user.buffer))
    user.demand = 0
    messages = user.take()
    world.kill()
    world.serve()
    user.settle("ack", messages)
    world.settle_all()
    assert messages[0].settled == "ok"
    assert world.replica is not None
    assert world.replica.state.live.count == 0


def test_what_was_buffered_goes_back_uncounted_after_a_broken_link() -> None:
    """Seen by nobody: the next delivery is again the first."""
    world, user = started()
    user.put(2)
    user.demand = 2
    world.settle_all(until=lambda: len(user.buffer) == 2)
    user.take(1)
    user.demand = 0
    world.break_link(user)
    assert not user.buffer
    user.demand = 1
    world.settle_all(until=lambda: bool(user.buffer))
    (again,) = user.take()
    assert (again.sequence, again.piece.count) == (2, 1)


def test_a_recall_sends_back_what_no_call_has_returned() -> None:
    """A waiting consumer gets what another handle has fetched ahead."""
    world, user = started()
    other = world.open()
    user.put(4)
    user.demand = 4
    world.settle_all(until=lambda: len(user.buffer) == 4)
    user.take(1)
    user.demand = 0
    other.demand = 2
    world.settle_all(until=lambda: len(other.buffer) >= 2)
    assert [message.sequence for message in other.take(2)] == [2, 3]
    assert all(message.piece.count == 1 for message in other.taken)
