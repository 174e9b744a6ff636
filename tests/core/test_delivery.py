"""Who holds what: ready messages, deliveries and what is taken from whom."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mirrorq.containers.ranges import RangeSet
from mirrorq.protocol.identities import SessionId
from mirrorq.protocol.ops import AckOp, DueOp, HorizonOp, PromotedOp, ReturnOp
from mirrorq.protocol.sessions import Delivery
from mirrorq.replication.master.consumers import Subscription
from mirrorq.replication.master.dispatch import Dispatch
from mirrorq.replication.master.open_deliveries import BACK_COUNT
from mirrorq.replication.state.columns import Block
from mirrorq.replication.state.pages import COLUMNS
from mirrorq.replication.state.queue_state import QueueState

from .entries import all_whole, op, publish

ONE = SessionId("a", 1, 1)
TWO = SessionId("b", 1, 1)


def _state(count: int, horizon: int = 100) -> QueueState:
    state = QueueState()
    state.apply(publish(1, 1, count=count))
    state.apply(op(2, HorizonOp(horizon)))
    return state


def _dispatch(state: QueueState, *sessions: SessionId, credit: int = 100) -> Dispatch:
    dispatch = Dispatch(state, 1, all_whole())
    for session in sessions:
        assert dispatch.subscribe(Subscription((session, 0), 10)) == ""
        dispatch.consumers.credit((session, 0), credit)
    return dispatch


def _pieces(dispatch: Dispatch) -> list[tuple[str, Delivery]]:
    return [
        (key[0].node, piece) for key, deliver in dispatch.deliver() for piece in deliver.deliveries
    ]


def test_nothing_above_the_horizon_is_handed_out() -> None:
    """A message at the horizon waits until a stable op has moved it."""
    dispatch = _dispatch(_state(5, horizon=3), ONE)
    assert _pieces(dispatch) == [("a", Delivery(1, 1, 1, 2, 1))]
    assert _pieces(dispatch) == []
    assert list(dispatch.ready.levels) == [(3, 5)]


def test_credit_bounds_what_a_consumer_gets() -> None:
    """A consumer is handed what it asked for in all, and no more."""
    dispatch = _dispatch(_state(5), ONE, credit=2)
    assert _pieces(dispatch) == [("a", Delivery(1, 1, 1, 2, 1))]
    dispatch.consumers.credit((ONE, 0), 3)
    assert _pieces(dispatch) == [("a", Delivery(1, 2, 3, 3, 1))]
    dispatch.consumers.credit((ONE, 0), 1)
    assert _pieces(dispatch) == []


def test_a_size_bounds_what_a_consumer_gets() -> None:
    """Bytes in a credit: the message that passes them still goes, what was not sent counts
    back, and the next credit begins anew."""
    state = _state(9)
    state.columns.replace(state.tables[COLUMNS], Block())
    state.columns.append(1, 9, 10, 0, 0)
    dispatch = _dispatch(state, ONE, credit=0)
    dispatch.consumers.credit((ONE, 0), 8, size=25)
    assert _pieces(dispatch) == [("a", Delivery(1, 1, 1, 3, 1))]
    assert not dispatch.consumers.waiting
    dispatch.consumers.credit((ONE, 0), 8, size=5)
    assert _pieces(dispatch) == [("a", Delivery(1, 2, 4, 4, 1))]
    dispatch.unhand((ONE, 0), Delivery(1, 2, 4, 4, 1))
    assert _pieces(dispatch) == [("a", Delivery(1, 3, 4, 4, 1))]
    dispatch.consumers.credit((ONE, 0), 8, size=1000)
    assert _pieces(dispatch) == [("a", Delivery(1, 4, 5, 8, 1))]
    dispatch.consumers.credit((ONE, 0), 9)
    assert _pieces(dispatch) == [("a", Delivery(1, 5, 9, 9, 1))], "no size changes nothing"


def test_consumers_share() -> None:
    """Few messages go round: each waiting consumer gets its part."""
    dispatch = _dispatch(_state(4), ONE, TWO)
    names = [name for name, _ in _pieces(dispatch)]
    assert set(names) == {"a", "b"}
    assert dispatch.open.unacknowledged == 4


def test_turns_go_round_whoever_comes_and_goes() -> None:
    """One message at a time: each of those that wait in turn, newcomers last, who left never."""
    sessions = [SessionId(node, 1, 1) for node in "abcd"]
    state = _state(99)
    dispatch = _dispatch(state, *sessions[:3])

    def served(count: int) -> str:
        names = ""
        for _ in range(count):
            subscription = dispatch._next_subscription({}, None)
            assert subscription is not None
            names += subscription.key[0].node
        return names

    assert served(4) == "abca"
    assert dispatch.subscribe(Subscription((sessions[3], 7), 10)) == ""
    dispatch.consumers.credit((sessions[3], 7), 100)
    assert served(5) == "bcadb"
    dispatch.consumers.remove_session(sessions[0])
    assert served(4) == "cdbc"
    assert [dispatch.consumers.has_callback(one) for one in sessions] == [False, False, False, True]
    dispatch.consumers.remove((sessions[3], 7))
    assert served(3) == "bcb"
    assert not dispatch.consumers.has_callback(sessions[3])
    assert dispatch.subscribe(Subscription((sessions[0], 0), 10)) == ""
    dispatch.consumers.credit((sessions[0], 0), 100)
    assert served(3) == "cba"


def test_a_crowd_attaches_in_steps_that_do_not_grow() -> None:
    """Who subscribes, and who attaches anew, looks at its own consumers and not at everybody's."""
    crowd = [SessionId("a", 1, number) for number in range(2000)]
    dispatch = _dispatch(_state(1))
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

    dispatch.consumers.by_key = Watched()
    for session in crowd:
        dispatch.consumers.remove_session(session)
        assert dispatch.subscribe(Subscription((session, 1), 10)) == ""
        assert dispatch.consumers.has_callback(session)
    assert len(dispatch.consumers.by_key) == len(crowd)
    assert looked == 0


def test_an_exclusive_consumer_is_alone() -> None:
    """A second consumer is told who holds the queue."""
    dispatch = _dispatch(_state(1))
    assert dispatch.subscribe(Subscription((ONE, 1), 1, exclusive=True)) == ""
    assert "node a" in dispatch.subscribe(Subscription((TWO, 1), 1))
    dispatch.consumers.remove((ONE, 1))
    assert dispatch.subscribe(Subscription((TWO, 1), 1)) == ""
    assert "1 other" in dispatch.subscribe(Subscription((ONE, 1), 1, exclusive=True))


def test_a_piece_is_taken_once_and_by_its_holder_only() -> None:
    """Number, count and session name a delivery; a second ack of it takes nothing."""
    dispatch = _dispatch(_state(3), ONE)
    ((_, piece),) = _pieces(dispatch)
    other_count = Delivery(1, piece.number, 1, 3, 2)
    other_number = Delivery(1, piece.number + 1, 1, 3, 1)
    for session, wrong in ((TWO, piece), (ONE, other_count), (ONE, other_number)):
        assert dispatch.close_piece(session, wrong) == []
    assert dispatch.close_piece(ONE, Delivery(1, piece.number, 2, 2, 1)) == [(2, 2)]
    assert dispatch.close_piece(ONE, piece) == [(1, 1), (3, 3)]
    assert dispatch.close_piece(ONE, piece) == []
    assert dispatch.open.unacknowledged == 0


def test_what_was_not_sent_was_not_handed_out() -> None:
    """A delivery that came too late to be sent is ready again, and costs no credit."""
    dispatch = _dispatch(_state(1), ONE, credit=1)
    ((_, piece),) = _pieces(dispatch)
    dispatch.unhand((ONE, 0), piece)
    assert [again.count for _, again in _pieces(dispatch)] == [1]
    assert dispatch.open.unacknowledged == 1


def _promoted(state: QueueState) -> Dispatch:
    """The delivery of the next term, 2."""
    state.apply(op(state.applied + 1, PromotedOp("clean"), epoch=2))
    return Dispatch(state, 2, all_whole())


def test_an_ack_across_a_promotion_is_taken_by_its_count() -> None:
    """The message is ready, a promotion raised it last, and the count is the ack's + 1."""
    state = _state(2)
    after = _promoted(state)
    assert after.close_piece(ONE, Delivery(1, 1, 1, 1, 1)) == [(1, 1)]
    assert list(after.ready.levels) == [(2, 2)]
    assert after.close_piece(ONE, Delivery(1, 1, 2, 2, 2)) == []


def test_an_ack_of_what_was_returned_since_is_refused() -> None:
    """The same count by a return is somebody else's delivery."""
    state = _state(1)
    state.apply(op(3, ReturnOp(((1, 1),))))
    after = _promoted(state)
    assert after.close_piece(ONE, Delivery(1, 1, 1, 1, 1)) == []
    assert after.close_piece(ONE, Delivery(1, 2, 1, 1, 2)) == [(1, 1)]


def test_an_ack_across_a_promotion_is_refused_when_another_holds_it() -> None:
    """Handed out again, the message is its new holder's."""
    state = _state(1)
    after = _promoted(state)
    after.subscribe(Subscription((TWO, 0), 1))
    after.consumers.credit((TWO, 0), 1)
    assert [piece.count for _, piece in _pieces(after)] == [2]
    assert after.close_piece(ONE, Delivery(1, 1, 1, 1, 1)) == []


def test_an_ack_that_was_applied_before_the_failover_is_known_to_be_done() -> None:
    """A resent ack of an earlier term is told done for what no longer lives."""
    state = _state(3)
    state.apply(op(3, AckOp(((2, 2),))))
    after = _promoted(state)
    assert after.is_known(Delivery(1, 1, 1, 3, 1))
    assert list(after.unsettled(Delivery(1, 1, 1, 3, 1))) == [(1, 1), (3, 3)]


def test_no_message_that_never_was_is_known_to_be_done() -> None:
    """An ack of sequences that nobody has published, or of a delivery that nobody was given."""
    dispatch = _dispatch(_state(1), ONE)
    _pieces(dispatch)
    assert list(dispatch.unsettled(Delivery(1, 1, 2, 9, 1))) == [(2, 9)]
    assert not dispatch.is_known(Delivery(1, 2, 1, 1, 1))


def test_what_is_remembered_of_returns_is_bounded() -> None:
    """Whatever has gone back: of the newest so many deliveries it is known, and an older one whose
    message somebody else has ended since counts as done."""
    state = _state(1)
    dispatch = _dispatch(state, ONE, credit=1 << 60)
    for _ in range(BACK_COUNT + 1):
        ((_, piece),) = _pieces(dispatch)
        dispatch.ready.give_back(dispatch.take_back(ONE, piece))
    assert len(dispatch.open._back) == BACK_COUNT
    ((_, last),) = _pieces(dispatch)
    assert dispatch.close_piece(ONE, last) == [(1, 1)]
    state.apply(op(3, AckOp(((1, 1),))))
    unsettled = [
        n for n in range(1, last.number + 1) if dispatch.unsettled(Delivery(1, n, 1, 1, 1))
    ]
    assert unsettled == list(range(2, last.number))


def test_only_what_lives_comes_back() -> None:
    """A give-back of a message that was acked meanwhile makes nothing ready."""
    state = _state(2)
    dispatch = _dispatch(state, ONE)
    _pieces(dispatch)
    state.apply(op(3, AckOp(((1, 1),))))
    dispatch.ready.give_back([(1, 2)])
    assert list(dispatch.ready.levels) == [(2, 2)]


def test_beside_a_claim_nobody_is_handed_anything() -> None:
    """A claim is refused while others consume or hold; while it lasts, waiting get()s wait."""
    dispatch = _dispatch(_state(10), ONE, credit=2)
    assert len(dispatch.deliver()) == 1
    claim = Subscription((TWO, 1), 1, exclusive=True, bare=True, label="query 9")
    assert "holds messages unacknowledged, 1 the first" in dispatch.subscribe(claim)
    for number, _ in dispatch.open.holdings(ONE):
        dispatch.open.drop(number)
    assert "holds messages unacknowledged" in dispatch.subscribe(claim)
    assert dispatch.open.unacknowledged == 2
    dispatch.ready.give_back(dispatch.take_leaving(1))
    assert dispatch.open.unacknowledged == 0
    assert dispatch.subscribe(claim) == ""
    dispatch.consumers.credit((ONE, 0), 8)
    assert dispatch.deliver() == []
    why = dispatch.subscribe(Subscription((ONE, 3), 1))
    assert why == "query 9 on node b holds the queue exclusively"
    dispatch.consumers.remove((TWO, 1))
    assert len(dispatch.deliver()) == 1


def test_a_bare_delivery_has_no_byte_bound_and_can_be_renewed() -> None:
    """Who gets names only is not bounded in bytes; its deliveries can count as made anew."""
    dispatch = _dispatch(_state(10))
    dispatch.subscribe(Subscription((ONE, 1), 1, bare=True))
    dispatch.consumers.credit((ONE, 1), 5, size=1)
    ((_, deliver),) = dispatch.deliver(100)
    assert deliver.bare
    assert [(piece.first, piece.last) for piece in deliver.deliveries] == [(1, 5)]
    (number,) = dispatch.open.handed_before(200)
    dispatch.open.renew(number, 300)
    assert dispatch.open.handed_before(200) == []
    assert dispatch.open.oldest_ms == 300


def test_a_place_is_no_message_of_a_range() -> None:
    """Message 1 was delayed and stands at place 3: a range of numbers that has 3 in it, and not 1,
    takes nothing of it."""
    state = QueueState()
    state.apply(publish(1, 1, count=2, delay_ms=5))
    state.apply(op(2, DueOp(((1, 2),), 3, ())))
    state.apply(publish(3, 5))
    dispatch = Dispatch(state, 1, all_whole())
    list(dispatch.ready.sort_in())
    assert list(dispatch.ready.levels) == [(3, 5)]
    assert dispatch.ready.take_out(RangeSet(((2, 9),))) == [(2, 2), (5, 5)]
    assert list(dispatch.ready.levels) == [(3, 3)]
    assert dispatch.ready.take_out(RangeSet(((1, 1),))) == [(1, 1)]
    assert not dispatch.ready.levels


def _consuming(dispatch: Dispatch, *keys: tuple[SessionId, int]) -> None:
    for key in keys:
        assert dispatch.subscribe(Subscription(key, 10)) == ""
        dispatch.consumers.credit(key, 100)


def _dead(dispatch: Dispatch, session: SessionId) -> None:
    """A session ends with all that it holds, which comes back."""
    dispatch.consumers.remove_session(session)
    dispatch.leave(session)
    dispatch.ready.give_back(dispatch.take_leaving(1000))


def _handed(dispatch: Dispatch, now_ms: int) -> list[tuple[str, int, int, int]]:
    """(node, consumer, first, last) of what is handed out now."""
    return [
        (key[0].node, key[1], piece.first, piece.last)
        for key, deliver in dispatch.deliver(now_ms)
        for piece in deliver.deliveries
    ]


def test_messages_that_may_have_killed_a_process_go_one_at_a_time() -> None:
    """Each handle's callbacks are given one of them, and what comes behind them in pieces."""
    dispatch = _dispatch(_state(5))
    _consuming(dispatch, (ONE, 1))
    assert _handed(dispatch, 10) == [("a", 1, 1, 5)]
    _dead(dispatch, ONE)
    dispatch._state.apply(publish(3, 6, count=5))
    dispatch.ready.add(6, 10)
    again = SessionId("a", 2, 1)
    _consuming(dispatch, (again, 1), (again, 2), (TWO, 1))
    assert sorted(_handed(dispatch, 20)) == [("a", 1, 1, 1), ("b", 1, 2, 2)]
    assert (_handed(dispatch, 30), dispatch.again_ms) == ([], 1020)
    # One is settled: its handle is given the next one, a callback whichever.
    assert dispatch.close_piece(again, Delivery(1, 2, 1, 1, 1)) == [(1, 1)]
    assert [one[0::2] for one in _handed(dispatch, 40)] == [("a", 3)]
    # One is held for long: it has killed nobody.
    assert [one[0::2] for one in _handed(dispatch, 1030)] == [("b", 4)]
    assert dispatch.close_piece(again, Delivery(1, 4, 3, 3, 1)) == [(3, 3)]
    handed = _handed(dispatch, 1040)
    assert next(one[0::2] for one in handed) == ("a", 5)
    assert [(first, last) for _, _, first, last in handed[1:]] != []


def test_a_suspect_that_comes_back_unseen_is_one_still() -> None:
    """Whether it was not sent, or its callback was not given it."""
    dispatch = _dispatch(_state(2))
    _consuming(dispatch, (ONE, 1))
    _handed(dispatch, 10)
    _dead(dispatch, ONE)
    _consuming(dispatch, (TWO, 1))
    ((_, deliver),) = dispatch.deliver(20)
    (piece,) = deliver.deliveries
    dispatch.unhand((TWO, 1), piece)
    ((_, deliver),) = dispatch.deliver(20)
    (piece,) = deliver.deliveries
    assert (piece.first, piece.last) == (1, 1)
    dispatch.ready.give_back(dispatch.take_back(TWO, piece))
    assert _handed(dispatch, 30) == [("b", 1, 1, 1)]


def test_get_is_handed_what_it_asks_for() -> None:
    """A call for many takes many, whatever they did to others; what ended is no suspect."""
    dispatch = _dispatch(_state(6), ONE)
    _pieces(dispatch)
    _dead(dispatch, ONE)
    assert dispatch.ready.take_out(RangeSet(((5, 5),))) == [(5, 5)]
    assert dispatch.subscribe(Subscription((TWO, 0), 10)) == ""
    dispatch.consumers.credit((TWO, 0), 100)
    assert _handed(dispatch, 20) == [("b", 0, 1, 4), ("b", 0, 6, 6)]
    assert not dispatch._suspects.messages


def test_a_handle_that_goes_on_as_another_session_is_on_trial_still() -> None:
    """What it holds is the new session's, the one message that may have killed a process too."""
    dispatch = _dispatch(_state(2))
    _consuming(dispatch, (ONE, 1))
    _handed(dispatch, 10)
    _dead(dispatch, ONE)
    _consuming(dispatch, (TWO, 1))
    assert _handed(dispatch, 20) == [("b", 1, 1, 1)]
    dispatch.consumers.remove_session(TWO)
    again = SessionId("c", 1, 1)
    dispatch.rename(TWO, again)
    _consuming(dispatch, (again, 1))
    assert _handed(dispatch, 30) == []
    assert _handed(dispatch, 1020) == [("c", 1, 2, 2)]
