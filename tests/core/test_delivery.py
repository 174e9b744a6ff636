"""Who holds what: ready messages, hand-outs and what is taken from whom."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mirrorq.containers.run_length import Sizes
from mirrorq.protocol.identities import SessionId
from mirrorq.protocol.ops import AckOp, HorizonOp, PromotedOp, ReturnOp
from mirrorq.protocol.sessions import HandOut
from mirrorq.replication.master.delivery import BACK_COUNT, ConsumerSeat, Delivery
from mirrorq.replication.state.queue_state import QueueState

from .entries import op, publish

ONE = SessionId("a", 1, 1)
TWO = SessionId("b", 1, 1)


def _state(count: int, horizon: int = 100) -> QueueState:
    state = QueueState()
    state.apply(publish(1, 1, count=count))
    state.apply(op(2, HorizonOp(horizon)))
    return state


def _delivery(state: QueueState, *sessions: SessionId, credit: int = 100) -> Delivery:
    delivery = Delivery(state, 1)
    for session in sessions:
        assert delivery.subscribe(ConsumerSeat((session, 0), 10)) == ""
        delivery.credit((session, 0), credit)
    return delivery


def _pieces(delivery: Delivery) -> list[tuple[str, HandOut]]:
    return [
        (key[0].node, piece)
        for key, deliver in delivery.hand_out()
        for piece in deliver.handouts
    ]


def test_nothing_above_the_horizon_is_handed_out() -> None:
    """A message at the horizon waits until a stable op has moved it."""
    delivery = _delivery(_state(5, horizon=3), ONE)
    assert _pieces(delivery) == [("a", HandOut(1, 1, 1, 2, 1))]
    assert _pieces(delivery) == []
    assert list(delivery.ready) == [(3, 5)]


def test_credit_bounds_what_a_consumer_gets() -> None:
    """A consumer is handed what it asked for in all, and no more."""
    delivery = _delivery(_state(5), ONE, credit=2)
    assert _pieces(delivery) == [("a", HandOut(1, 1, 1, 2, 1))]
    delivery.credit((ONE, 0), 3)
    assert _pieces(delivery) == [("a", HandOut(1, 2, 3, 3, 1))]
    delivery.credit((ONE, 0), 1)
    assert _pieces(delivery) == []


def test_a_size_bounds_what_a_consumer_gets() -> None:
    """Bytes in a credit: the message that passes them still goes, what was not sent counts
    back, and the next credit begins anew."""
    state = _state(9)
    state.sizes = Sizes()
    state.sizes.append(1, 9, 10)
    delivery = _delivery(state, ONE, credit=0)
    delivery.credit((ONE, 0), 8, size=25)
    assert _pieces(delivery) == [("a", HandOut(1, 1, 1, 3, 1))]
    assert not delivery.hungry
    delivery.credit((ONE, 0), 8, size=5)
    assert _pieces(delivery) == [("a", HandOut(1, 2, 4, 4, 1))]
    delivery.unhand((ONE, 0), HandOut(1, 2, 4, 4, 1))
    assert _pieces(delivery) == [("a", HandOut(1, 3, 4, 4, 1))]
    delivery.credit((ONE, 0), 8, size=1000)
    assert _pieces(delivery) == [("a", HandOut(1, 4, 5, 8, 1))]
    delivery.credit((ONE, 0), 9)
    assert _pieces(delivery) == [("a", HandOut(1, 5, 9, 9, 1))], "no size changes nothing"


def test_consumers_share() -> None:
    """Few messages go round: each waiting consumer gets its part."""
    delivery = _delivery(_state(4), ONE, TWO)
    names = [name for name, _ in _pieces(delivery)]
    assert set(names) == {"a", "b"}
    assert delivery.unacknowledged == 4


def test_turns_go_round_whoever_comes_and_goes() -> None:
    """One message at a time: each of those that wait in turn, newcomers last, who left never."""
    sessions = [SessionId(node, 1, 1) for node in "abcd"]
    state = _state(99)
    delivery = _delivery(state, *sessions[:3])

    def served(count: int) -> str:
        names = ""
        for _ in range(count):
            seat = delivery._next_seat({})
            assert seat is not None
            names += seat.key[0].node
        return names

    assert served(4) == "abca"
    assert delivery.subscribe(ConsumerSeat((sessions[3], 7), 10)) == ""
    delivery.credit((sessions[3], 7), 100)
    assert served(5) == "bcadb"
    delivery.unsubscribe_session(sessions[0])
    assert served(4) == "cdbc"
    assert [delivery.has_consumer(one) for one in sessions] == [False, False, False, True]
    delivery.unsubscribe((sessions[3], 7))
    assert served(3) == "bcb"
    assert not delivery.has_consumer(sessions[3])
    assert delivery.subscribe(ConsumerSeat((sessions[0], 0), 10)) == ""
    delivery.credit((sessions[0], 0), 100)
    assert served(3) == "cba"


def test_a_crowd_attaches_in_steps_that_do_not_grow() -> None:
    """Who subscribes, and who attaches anew, looks at its own consumers and not at everybody's."""
    crowd = [SessionId("a", 1, number) for number in range(2000)]
    delivery = _delivery(_state(1))
    looked = 0

    class Watched(dict):  # type: ignore[type-arg]
        def __iter__(self) -> Iterator[object]:
            nonlocal looked
            looked += 1
            return super().__iter__()

        def items(self) -> Any:
            nonlocal looked
            looked += 1
            return super().items()

    delivery.consumers = Watched()
    for session in crowd:
        delivery.unsubscribe_session(session)
        assert delivery.subscribe(ConsumerSeat((session, 1), 10)) == ""
        assert delivery.has_consumer(session)
    assert len(delivery.consumers) == len(crowd)
    assert looked == 0


def test_an_exclusive_consumer_is_alone() -> None:
    """A second consumer is told who holds the queue."""
    delivery = _delivery(_state(1))
    assert delivery.subscribe(ConsumerSeat((ONE, 1), 1, exclusive=True)) == ""
    assert "node a" in delivery.subscribe(ConsumerSeat((TWO, 1), 1))
    delivery.unsubscribe((ONE, 1))
    assert delivery.subscribe(ConsumerSeat((TWO, 1), 1)) == ""
    assert "1 other" in delivery.subscribe(ConsumerSeat((ONE, 1), 1, exclusive=True))


def test_a_piece_is_taken_once_and_by_its_holder_only() -> None:
    """Number, count and session name a delivery; a second ack of it takes nothing."""
    delivery = _delivery(_state(3), ONE)
    ((_, piece),) = _pieces(delivery)
    other_count = HandOut(1, piece.number, 1, 3, 2)
    other_number = HandOut(1, piece.number + 1, 1, 3, 1)
    for session, wrong in ((TWO, piece), (ONE, other_count), (ONE, other_number)):
        assert delivery.take(session, wrong) == []
    assert delivery.take(ONE, HandOut(1, piece.number, 2, 2, 1)) == [(2, 2)]
    assert delivery.take(ONE, piece) == [(1, 1), (3, 3)]
    assert delivery.take(ONE, piece) == []
    assert delivery.unacknowledged == 0


def test_a_give_back_of_an_old_hand_out_is_void() -> None:
    """What came back and was handed out again is not given back by its first hand-out."""
    delivery = _delivery(_state(1), ONE)
    ((_, first),) = _pieces(delivery)
    delivery.give_back(delivery.take(ONE, first))
    ((_, second),) = _pieces(delivery)
    assert (second.count, second.number) == (1, first.number + 1)
    assert delivery.take(ONE, first) == []
    assert delivery.take(ONE, second) == [(1, 1)]


def test_what_was_not_sent_was_not_handed_out() -> None:
    """A hand-out that came too late to be sent is ready again, and costs no credit."""
    delivery = _delivery(_state(1), ONE, credit=1)
    ((_, piece),) = _pieces(delivery)
    delivery.unhand((ONE, 0), piece)
    assert [again.count for _, again in _pieces(delivery)] == [1]
    assert delivery.unacknowledged == 1


def _promoted(state: QueueState) -> Delivery:
    """The delivery of the next reign, 2."""
    state.apply(op(state.applied + 1, PromotedOp("clean"), epoch=2))
    return Delivery(state, 2)


def test_an_ack_across_a_promotion_is_taken_by_its_count() -> None:
    """The message is ready, a promotion raised it last, and the count is the ack's + 1."""
    state = _state(2)
    after = _promoted(state)
    assert after.take(ONE, HandOut(1, 1, 1, 1, 1)) == [(1, 1)]
    assert list(after.ready) == [(2, 2)]
    assert after.take(ONE, HandOut(1, 1, 2, 2, 2)) == []


def test_an_ack_of_what_was_returned_since_is_refused() -> None:
    """The same count by a return is somebody else's delivery."""
    state = _state(1)
    state.apply(op(3, ReturnOp(((1, 1),))))
    after = _promoted(state)
    assert after.take(ONE, HandOut(1, 1, 1, 1, 1)) == []
    assert after.take(ONE, HandOut(1, 2, 1, 1, 2)) == [(1, 1)]


def test_an_ack_across_a_promotion_is_refused_when_another_holds_it() -> None:
    """Handed out again, the message is its new holder's."""
    state = _state(1)
    after = _promoted(state)
    after.subscribe(ConsumerSeat((TWO, 0), 1))
    after.credit((TWO, 0), 1)
    assert [piece.count for _, piece in _pieces(after)] == [2]
    assert after.take(ONE, HandOut(1, 1, 1, 1, 1)) == []


def test_an_ack_that_was_applied_before_the_failover_is_known_to_be_done() -> None:
    """A resent ack of an earlier reign is told done for what no longer lives."""
    state = _state(3)
    state.apply(op(3, AckOp(((2, 2),))))
    after = _promoted(state)
    assert after.is_known(HandOut(1, 1, 1, 3, 1))
    assert list(after.unsettled(HandOut(1, 1, 1, 3, 1))) == [(1, 1), (3, 3)]


def test_no_message_that_never_was_is_known_to_be_done() -> None:
    """An ack of sequences that nobody has published, or of a hand-out that nobody was given."""
    delivery = _delivery(_state(1), ONE)
    _pieces(delivery)
    assert list(delivery.unsettled(HandOut(1, 1, 2, 9, 1))) == [(2, 9)]
    assert not delivery.is_known(HandOut(1, 2, 1, 1, 1))


def test_what_is_remembered_of_returns_is_bounded() -> None:
    """Whatever has gone back: of the newest so many hand-outs it is known, and an older one whose
    message somebody else has ended since counts as done."""
    state = _state(1)
    delivery = _delivery(state, ONE, credit=1 << 60)
    for _ in range(BACK_COUNT + 1):
        ((_, piece),) = _pieces(delivery)
        delivery.give_back(delivery.take_back(ONE, piece))
    assert len(delivery._back) == BACK_COUNT
    ((_, last),) = _pieces(delivery)
    assert delivery.take(ONE, last) == [(1, 1)]
    state.apply(op(3, AckOp(((1, 1),))))
    unsettled = [n for n in range(1, last.number + 1) if delivery.unsettled(HandOut(1, n, 1, 1, 1))]
    assert unsettled == list(range(2, last.number))


def test_only_what_lives_comes_back() -> None:
    """A give-back of a message that was acked meanwhile makes nothing ready."""
    state = _state(2)
    delivery = _delivery(state, ONE)
    _pieces(delivery)
    state.apply(op(3, AckOp(((1, 1),))))
    delivery.give_back([(1, 2)])
    assert list(delivery.ready) == [(2, 2)]


def test_beside_a_claim_nobody_is_handed_anything() -> None:
    """A claim is refused while others consume or hold; while it lasts, waiting get()s wait."""
    delivery = _delivery(_state(10), ONE, credit=2)
    assert len(delivery.hand_out()) == 1
    claim = ConsumerSeat((TWO, 1), 1, exclusive=True, bare=True, label="query 9")
    assert "holds messages unacknowledged, 1 the first" in delivery.subscribe(claim)
    for number, _ in delivery.holdings(ONE):
        delivery.drop(number)
    assert "holds messages unacknowledged" in delivery.subscribe(claim)
    assert delivery.unacknowledged == 2
    delivery.give_back(delivery.take_leaving(1))
    assert delivery.unacknowledged == 0
    assert delivery.subscribe(claim) == ""
    delivery.credit((ONE, 0), 8)
    assert delivery.hand_out() == []
    why = delivery.subscribe(ConsumerSeat((ONE, 3), 1))
    assert why == "query 9 on node b holds the queue exclusively"
    delivery.unsubscribe((TWO, 1))
    assert len(delivery.hand_out()) == 1


def test_a_bare_hand_out_has_no_byte_bound_and_can_be_renewed() -> None:
    """Who gets names only is not bounded in bytes; its hand-outs can count as made anew."""
    delivery = _delivery(_state(10))
    delivery.subscribe(ConsumerSeat((ONE, 1), 1, bare=True))
    delivery.credit((ONE, 1), 5, size=1)
    ((_, deliver),) = delivery.hand_out(100)
    assert deliver.bare
    assert [(piece.first, piece.last) for piece in deliver.handouts] == [(1, 5)]
    (number,) = delivery.handed_before(200)
    delivery.renew(number, 300)
    assert delivery.handed_before(200) == []
    assert delivery.oldest_ms == 300
