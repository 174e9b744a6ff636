"""Priorities: each a lane with its own order, horizon and marks."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from mirrorq.delivery import ConsumerSeat, Delivery
from mirrorq.lanes import Horizons, Lane, ReadyLanes
from mirrorq.messages import (
    AckOp,
    Credit,
    HandOut,
    HorizonOp,
    HorizonsOp,
    PromotedOp,
    Purge,
    Purged,
    Recalled,
    ReturnOp,
    SessionId,
    Settle,
)
from mirrorq.queue_state import QueueState
from mirrorq.ranges import RangeSet

from .entries import op, publish
from .test_master import ONE, Queue

SESSION = SessionId("a", 1, 1)


def _state(*priorities: int) -> QueueState:
    """One message of each priority named, in this order, all below their horizons."""
    state = QueueState()
    for lsn, priority in enumerate(priorities, 1):
        state.apply(publish(lsn, lsn, priority=priority))
    moved = tuple((priority, 100) for priority in sorted(set(priorities)))
    state.apply(op(len(priorities) + 1, HorizonsOp(moved)))
    return state


def _handed(state: QueueState, epoch: int = 1, credit: int = 100) -> list[HandOut]:
    delivery = Delivery(state, epoch)
    delivery.subscribe(ConsumerSeat((SESSION, 0), 10))
    delivery.credit((SESSION, 0), credit)
    return [piece for _, deliver in delivery.hand_out() for piece in deliver.handouts]


# --- The applied state ------------------------------------------------------------------


def test_a_promotion_counts_what_is_below_the_horizon_of_its_lane() -> None:
    """Lane 7 was handed out up to sequence 3, lane 0 not at all: only lane 7 is counted."""
    state = QueueState()
    state.apply(publish(1, 1, count=2))
    state.apply(publish(2, 3, count=2, priority=7))
    state.apply(op(3, HorizonsOp(((7, 4),))))
    state.apply(op(4, PromotedOp("clean"), epoch=2))
    assert [state.delivery_count(n) for n in range(1, 5)] == [1, 1, 2, 1]
    assert [state.raised_by_promotion(n) for n in range(1, 5)] == [False, False, True, False]


def test_the_horizons_of_lanes_never_fall() -> None:
    """An older one changes nothing; lane 0 may be moved by either op."""
    state = QueueState()
    state.apply(op(1, HorizonsOp(((0, 9), (3, 5)))))
    state.apply(op(2, HorizonsOp(((0, 4), (3, 2), (5, 1)))))
    state.apply(op(3, HorizonOp(7)))
    assert (state.horizon, {p: lane.horizon for p, lane in state.lanes.items()}) == (
        9,
        {3: 5, 5: 1},
    )


def test_what_ended_is_in_no_lane() -> None:
    """An ack takes a message out of its lane; the lane and its horizon stay."""
    state = _state(4, 4, 0)
    state.apply(op(5, AckOp(((1, 3),))))
    assert not state.live
    assert not state.lanes[4].members
    assert state.lanes[4].horizon == 100


def test_runs_end_where_the_priority_changes() -> None:
    """lane_runs cuts a range at each change of priority, and count_run too."""
    state = _state(0, 0, 5, 5, 1, 0)
    assert state.lane_runs(1, 6) == [(0, 1, 2), (5, 3, 4), (1, 5, 5), (0, 6, 6)]
    assert state.lane_runs(2, 3) == [(0, 2, 2), (5, 3, 3)]
    assert [state.count_run(n, 6) for n in range(1, 7)] == [
        (1, 2), (1, 2), (1, 4), (1, 4), (1, 5), (1, 6),
    ]  # fmt: skip


def test_a_state_of_version_1_is_read() -> None:
    """A checkpoint of an older version is a state without lanes."""
    state = QueueState()
    state.apply(publish(1, 1, count=3))
    fields = msgspec.msgpack.decode(state.encode())
    assert fields[10] == []
    older = msgspec.msgpack.encode([1, *fields[1:10]])
    read = QueueState.decode(older)
    assert msgspec.msgpack.decode(read.encode())[:11] == fields[:11]
    assert (read.sizes.at(2), read.stamps.at(2)) == (0, 0)
    read.apply(publish(2, 4))
    assert QueueState.decode(read.encode()).encode() == read.encode()


# --- Delivery ---------------------------------------------------------------------------


def test_higher_priorities_come_first_each_in_its_order() -> None:
    """P2 per priority."""
    handed = _handed(_state(0, 3, 31, 0, 3, 1))
    assert [(piece.first, piece.last) for piece in handed] == [
        (3, 3), (2, 2), (5, 5), (6, 6), (1, 1), (4, 4),
    ]  # fmt: skip


def test_nothing_passes_a_higher_priority_that_waits_for_its_horizon() -> None:
    """Lower ones wait with it: it is one round trip."""
    state = QueueState()
    state.apply(publish(1, 1))
    state.apply(op(2, HorizonOp(100)))
    state.apply(publish(3, 2, priority=1))
    assert _handed(state) == []
    state.apply(op(4, HorizonsOp(((1, 3),))))
    assert [piece.first for piece in _handed(state)] == [2, 1]


def test_a_returned_message_goes_back_to_its_place_in_its_lane() -> None:
    """P2: before those behind it, and not before higher priorities."""
    state = _state(2, 2, 2, 9)
    state.apply(op(6, ReturnOp(((2, 2),))))
    handed = _handed(state)
    assert [(piece.first, piece.last, piece.count) for piece in handed] == [
        (4, 4, 1), (1, 1, 1), (2, 2, 2), (3, 3, 1),
    ]  # fmt: skip


def test_an_ack_across_a_promotion_finds_its_lane() -> None:
    """What users hold of several lanes at a failover is acked where it is ready again."""
    state = _state(0, 6, 0, 6)
    state.apply(op(6, PromotedOp("clean"), epoch=2))
    after = Delivery(state, 2)
    assert after.take(SESSION, HandOut(1, 1, 1, 3, 1)) == [(1, 1), (2, 2), (3, 3)]
    assert list(after.ready) == [(4, 4)]
    assert after.take(SESSION, HandOut(1, 2, 4, 4, 1)) == [(4, 4)]
    assert not after.ready


def test_ready_messages_are_counted_over_all_lanes() -> None:
    """qsize counts every priority, and they are listed in the order of hand-out."""
    ready = ReadyLanes(RangeSet(((1, 2),)))
    assert (ready.count, ready.top()[0], bool(ready)) == (2, 0, True)
    ready.add(5, 7, 9)
    ready.add(2, 4, 4)
    assert (ready.count, ready.top()[0], list(ready)) == (6, 5, [(7, 9), (4, 4), (1, 2)])
    ready.lane(5).remove(7, 9)
    ready.plain.remove(1, 2)
    assert (ready.count, ready.top()[0], bool(ready)) == (1, 2, True)
    assert not ready.lane(31)


# --- Horizons ---------------------------------------------------------------------------


def test_one_op_moves_the_horizons_of_all_lanes() -> None:
    """As many messages of each lane may pass as consumers are expected to take."""
    ready = ReadyLanes(RangeSet(((1, 1000),)))
    for place in range(2000, 4000, 2):
        ready.add(4, place, place)
    keeper = Horizons()
    due = keeper.due(ready, 1, {4: Lane(), 5: Lane()}, 5000, 10, 1)
    assert due == HorizonsOp(((4, 2531), (5, 5266)))
    assert keeper.due(ready, 1, {4: Lane()}, 5000, 10, 1) is None
    keeper.on_applied()
    assert keeper.due(ready, 1, {4: Lane(2531)}, 5000, 10, 1) is None
    assert keeper.due(ready, 1, {4: Lane(2200)}, 5000, 10, 1) == HorizonsOp(((4, 2531),))


def test_lanes_behind_enough_ready_messages_of_others_are_not_moved() -> None:
    """They would be counted at a promotion though nobody can have been given them."""
    ready = ReadyLanes(RangeSet(((1, 1000),)))
    ready.add(4, 2001, 2100)
    due = Horizons().due(ready, 1, {4: Lane()}, 5000, 10, 1)
    assert due == HorizonsOp(((0, 167), (4, 5166)))
    ready.add(4, 2001, 2200)
    due = Horizons().due(ready, 1, {4: Lane()}, 5000, 10, 1)
    assert due == HorizonsOp(((4, 5066),))


def test_a_priority_that_was_published_is_moved_before_it_is_applied() -> None:
    """The first message of a lane waits for no round trip of its own."""
    keeper = Horizons()
    keeper.announce(9)
    due = keeper.due(ReadyLanes(RangeSet()), 500, {}, 1, 1, 1)
    assert due == HorizonsOp(((9, 258),))


# --- A whole master ---------------------------------------------------------------------


def test_a_purge_ends_ready_messages_of_all_lanes() -> None:
    """Those that are held stay."""
    queue = Queue()
    queue.attach(ONE)
    producer = queue.open_producer()
    for number, priority in enumerate((0, 5, 0, 5), 1):
        queue.publish(producer, number, priority=priority)
    queue.sync()
    queue.consume(credit=1)
    assert [piece.first for piece in queue.pieces()] == [2]
    queue.ask(ONE, Purge(9))
    queue.ask(ONE, Recalled(1))
    queue.sync()
    assert Purged(9, 3) in queue.heard()
    assert list(queue.replica.state.live) == [(2, 2)]


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), st.sampled_from([0, 0, 1, 7, 31]), st.integers(1, 4)),
        st.tuples(st.just("get"), st.integers(1, 5), st.just(0)),
        st.tuples(st.sampled_from(["ack", "nack", "giveback"]), st.integers(0, 9), st.just(0)),
        st.tuples(st.just("failover"), st.just(0), st.just(0)),
    ),
    max_size=30,
)


class Oracle:
    """A priority queue as one would write it: a dict and a sort."""

    def __init__(self) -> None:
        self.queue = Queue()
        self.queue.attach(ONE)
        self.producer = self.queue.open_producer()
        self.number = 0
        self.credit = 0
        self.request = 0
        self.ready: dict[int, int] = {}
        """sequence -> priority."""
        self.held: dict[int, tuple[int, HandOut]] = {}
        """sequence -> (priority, its delivery)."""
        self.counts: dict[int, int] = {}
        """Highest delivery count seen."""
        self.may_be_raised = False
        """A failover may have counted messages that were never handed out."""
        self._consume()

    def _consume(self) -> None:
        self.credit = 0
        self.queue.consume(credit=0)

    def publish(self, priority: int, count: int) -> None:
        first = self.queue.replica.state.next_sequence
        self.queue.publish(self.producer, self.number + 1, count, priority=priority)
        self.number += count
        self.queue.sync()
        self.ready.update(dict.fromkeys(range(first, first + count), priority))

    def get(self, count: int, _: int) -> None:
        expected = sorted(self.ready, key=lambda n: (-self.ready[n], n))[:count]
        if not expected:
            return
        self.credit += len(expected)
        self.queue.ask(ONE, Credit(0, self.credit))
        self.queue.sync()
        pieces = self.queue.pieces()
        found = [n for piece in pieces for n in range(piece.first, piece.last + 1)]
        assert found == expected
        for piece in pieces:
            for sequence in range(piece.first, piece.last + 1):
                self._handed(sequence, piece)

    def _handed(self, sequence: int, piece: HandOut) -> None:
        before = self.counts.get(sequence, 0)
        if self.may_be_raised:
            assert piece.count > before
        else:
            assert piece.count == before + 1
        self.counts[sequence] = piece.count
        one = HandOut(piece.epoch, piece.number, sequence, sequence, piece.count)
        self.held[sequence] = (self.ready.pop(sequence), one)

    def settle(self, kind: str, index: int) -> None:
        if not self.held:
            return
        sequence = sorted(self.held)[index % len(self.held)]
        priority, piece = self.held.pop(sequence)
        self.request += 1
        self.queue.ask(ONE, Settle(self.request, kind, (piece,)))
        self.queue.sync()
        if kind == "ack":
            return
        self.ready[sequence] = priority
        if kind == "giveback":
            self.counts[sequence] -= 1

    def failover(self, *_: int) -> None:
        """A new reign on what is on disk; everything held is ready again, counted."""
        self.queue.sync()
        self.queue = Queue(self.queue.files, self.queue.epoch + 1)
        self.queue.attach(ONE, producer=self.producer)
        self.queue.sync()
        self.queue.heard()
        self.ready |= {sequence: priority for sequence, (priority, _) in self.held.items()}
        self.held.clear()
        self.may_be_raised = True
        self._consume()

    def check(self) -> None:
        replica = self.queue.replica
        assert replica.master is not None
        assert replica.master.delivery.ready.count == len(self.ready)
        assert replica.master.delivery.unacknowledged == len(self.held)
        assert replica.state.live.count == len(self.ready) + len(self.held)
        assert QueueState.decode(replica.state.encode()).encode() == replica.state.encode()


@given(STEPS)
def test_a_queue_with_priorities_does_what_a_sort_does(steps: list[tuple[str, int, int]]) -> None:
    """Order, counts and what is ready, over acks, returns, give-backs and failovers."""
    oracle = Oracle()
    for kind, one, two in steps:
        if kind in ("ack", "nack", "giveback"):
            oracle.settle(kind, one)
        else:
            getattr(oracle, kind)(one, two)
        oracle.check()
