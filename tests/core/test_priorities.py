"""Priorities: each a level with its own order, horizon and marks."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import msgspec
import pytest
from attrs import define
from hypothesis import given, settings
from hypothesis import strategies as st

from mirrorq.containers.ranges import RangeSet
from mirrorq.protocol.identities import SessionId
from mirrorq.protocol.ops import AckOp, DueOp, HorizonOp, HorizonsOp, PromotedOp, ReturnOp
from mirrorq.protocol.sessions import Credit, Delivery, Purge, Purged, Recalled, Settle, Subscribe
from mirrorq.replication.events import Tick
from mirrorq.replication.master import ready_messages, term
from mirrorq.replication.master.consumers import Subscription
from mirrorq.replication.master.dispatch import Dispatch
from mirrorq.replication.state.contents import Run
from mirrorq.replication.state.priorities import Horizons, PriorityLevel, ReadyLevels
from mirrorq.replication.state.queue_state import QueueState

from .entries import all_whole, op, publish
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


def _handed(state: QueueState, epoch: int = 1, credit: int = 100) -> list[Delivery]:
    made = Dispatch(state, epoch, all_whole())
    deque(made.ready.sort_in(), 0)
    made.subscribe(Subscription((SESSION, 0), 10))
    made.consumers.credit((SESSION, 0), credit)
    return [piece for _, deliver in made.deliver() for piece in deliver.deliveries]


# --- The applied state ------------------------------------------------------------------


def test_a_promotion_counts_what_is_below_the_horizon_of_its_level() -> None:
    """Level 7 was handed out up to sequence 3, level 0 not at all: only level 7 is counted."""
    state = QueueState()
    state.apply(publish(1, 1, count=2))
    state.apply(publish(2, 3, count=2, priority=7))
    state.apply(op(3, HorizonsOp(((7, 4),))))
    state.apply(op(4, PromotedOp("clean"), epoch=2))
    assert [state.delivery_count(n) for n in range(1, 5)] == [1, 1, 2, 1]
    assert [state.raised_by_promotion(n) for n in range(1, 5)] == [False, False, True, False]


def test_the_horizons_of_levels_never_fall() -> None:
    """An older one changes nothing; level 0 may be moved by either op."""
    state = QueueState()
    state.apply(op(1, HorizonsOp(((0, 9), (3, 5)))))
    state.apply(op(2, HorizonsOp(((0, 4), (3, 2), (5, 1)))))
    state.apply(op(3, HorizonOp(7)))
    assert (state.horizon, {p: level.horizon for p, level in state.levels.items()}) == (
        9,
        {3: 5, 5: 1},
    )


def test_what_ended_is_in_no_level() -> None:
    """An ack takes a message out of its level; the level and its horizon stay."""
    state = _state(4, 4, 0)
    state.apply(op(5, AckOp(((1, 3),))))
    assert not state.live
    assert not state.levels[4].members
    assert state.levels[4].horizon == 100


def test_runs_end_where_the_priority_changes() -> None:
    """A range is cut at each change of priority, for counts too."""
    state = _state(0, 0, 5, 5, 1, 0)
    runs = [Run(0, 1, 2), Run(5, 3, 4), Run(1, 5, 5), Run(0, 6, 6)]
    assert state.runs(1, 6) == runs
    assert state.runs(2, 3) == [Run(0, 2, 2), Run(5, 3, 3)]
    assert [state.count_run(n, 6) for n in range(1, 7)] == [
        (1, 2), (1, 2), (1, 4), (1, 4), (1, 5), (1, 6),
    ]  # fmt: skip


def test_a_state_of_version_1_is_read() -> None:
    """A checkpoint of an older version is a state without levels."""
    state = QueueState()
    state.apply(publish(1, 1, count=3))
    fields = msgspec.msgpack.decode(state.encode())
    assert fields[10] == []
    older = msgspec.msgpack.encode([1, *fields[1:10]])
    read = QueueState.decode(older)
    assert msgspec.msgpack.decode(read.encode())[:11] == fields[:11]
    assert (read.columns.size(2), read.columns.stamp_ms(2)) == (0, 0)
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


def test_a_returned_message_goes_back_to_its_place_in_its_level() -> None:
    """P2: before those behind it, and not before higher priorities."""
    state = _state(2, 2, 2, 9)
    state.apply(op(6, ReturnOp(((2, 2),))))
    handed = _handed(state)
    assert [(piece.first, piece.last, piece.count) for piece in handed] == [
        (4, 4, 1), (1, 1, 1), (2, 2, 2), (3, 3, 1),
    ]  # fmt: skip


def test_an_ack_across_a_promotion_finds_its_level() -> None:
    """What users hold of several levels at a failover is acked where it is ready again."""
    state = _state(0, 6, 0, 6)
    state.apply(op(6, PromotedOp("clean"), epoch=2))
    after = Dispatch(state, 2, all_whole())
    deque(after.ready.sort_in(), 0)
    assert after.close_piece(SESSION, Delivery(1, 1, 1, 3, 1)) == [(1, 1), (2, 2), (3, 3)]
    assert list(after.ready.levels) == [(4, 4)]
    assert after.close_piece(SESSION, Delivery(1, 2, 4, 4, 1)) == [(4, 4)]
    assert not after.ready.levels


def test_what_was_delayed_at_an_unclean_promotion_may_have_been_handed_out() -> None:
    """P3: the lost past may have ended its delay; what comes next is flagged, one that was
    published since is not."""
    state = QueueState()
    state.apply(publish(1, 1, delay_ms=5))
    state.apply(op(2, PromotedOp("unclean", generation=1, master_epoch=2), epoch=2))
    state.apply(publish(3, state.next_sequence, epoch=2, delay_ms=5))
    later = state.next_sequence - 1
    entering = ((1, 1), (later, later))
    state.apply(op(4, DueOp(entering, state.next_sequence, ()), epoch=2))
    assert [state.delivery_count(sequence) for sequence in (1, later)] == [2, 1]
    assert state.raised_by_promotion(1)
    state.apply(op(5, ReturnOp(((1, 1),)), epoch=2))
    assert state.delivery_count(1) == 3
    assert not state.raised_by_promotion(1)


# --- Horizons ---------------------------------------------------------------------------


def test_one_op_moves_the_horizons_of_all_levels() -> None:
    """As many messages of each level may pass as consumers are expected to take."""
    ready = ReadyLevels(RangeSet(((1, 1000),)))
    for place in range(2000, 4000, 2):
        ready.add(4, place, place)
    keeper = Horizons()
    due = keeper.due(ready, 1, {4: PriorityLevel(), 5: PriorityLevel()}, 5000, 10, 1)
    assert due == HorizonsOp(((4, 2531), (5, 5266)))
    assert keeper.due(ready, 1, {4: PriorityLevel()}, 5000, 10, 1) is None
    keeper.on_applied()
    assert keeper.due(ready, 1, {4: PriorityLevel(2531)}, 5000, 10, 1) is None
    assert keeper.due(ready, 1, {4: PriorityLevel(2200)}, 5000, 10, 1) == HorizonsOp(((4, 2531),))


def test_levels_behind_enough_ready_messages_of_others_are_not_moved() -> None:
    """They would be counted at a promotion though nobody can have been given them."""
    ready = ReadyLevels(RangeSet(((1, 1000),)))
    ready.add(4, 2001, 2100)
    due = Horizons().due(ready, 1, {4: PriorityLevel()}, 5000, 10, 1)
    assert due == HorizonsOp(((0, 167), (4, 5166)))
    ready.add(4, 2001, 2200)
    due = Horizons().due(ready, 1, {4: PriorityLevel()}, 5000, 10, 1)
    assert due == HorizonsOp(((4, 5066),))


def test_a_priority_that_was_published_is_moved_before_it_is_applied() -> None:
    """The first message of a level waits for no round trip of its own."""
    keeper = Horizons()
    keeper.announce(9)
    due = keeper.due(ReadyLevels(RangeSet()), 500, {}, 1, 1, 1)
    assert due == HorizonsOp(((9, 258),))


# --- A whole master ---------------------------------------------------------------------


def test_a_purge_ends_ready_messages_of_all_levels() -> None:
    """Those that are held stay."""
    queue = Queue()
    queue.attach(ONE)
    producer = queue.open_producer()
    for number, priority in enumerate((0, 5, 0, 5), 1):
        queue.publish(producer, number, priority=priority)
    queue.sync()
    queue.ask(ONE, Subscribe(1, 1))
    queue.ask(ONE, Credit(1, 1))
    queue.sync()
    assert [piece.first for piece in queue.pieces()] == [2]
    queue.ask(ONE, Purge(9))
    queue.ask(ONE, Recalled(1))
    queue.sync()
    assert Purged(9, 3) in queue.heard()
    assert list(queue.replica.state.live) == [(2, 2)]


DELAYS_MS = st.sampled_from([0, 5, 2000])
PRIORITIES = st.sampled_from([0, 0, 7])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), st.integers(1, 4), PRIORITIES, DELAYS_MS),
        st.tuples(st.just("get"), st.integers(1, 5)),
        st.tuples(st.sampled_from(["ack", "giveback"]), st.integers(0, 9)),
        st.tuples(st.just("nack"), st.integers(0, 9), DELAYS_MS),
        st.tuples(st.just("pass"), st.sampled_from([4, 5000])),
        st.tuples(st.sampled_from(["failover", "purge"])),
    ),
    min_size=5,
    max_size=25,
)


@define
class Told:
    """One message, as one would keep it in a list."""

    priority: int
    place: int
    count: int = 0
    """Highest delivery count seen."""
    due_ms: int | None = None
    """While it is delayed."""
    is_new: bool = True
    """Its delay is that of its publish: it has no place yet."""
    held: Delivery | None = None
    may_be_raised: bool = False
    """A failover may have counted it though it was never handed out: it had a place."""


class Oracle:
    """A priority queue with delays as one would write it: a dict and a sort."""

    def __init__(self) -> None:
        self.queue = Queue()
        self.queue.attach(ONE)
        self.producer = self.queue.open_producer()
        self.now_ms = 0
        self.number = 0
        self.place = 0
        self.credit = 0
        self.request = 0
        self.messages: dict[int, Told] = {}
        """By sequence."""
        self.queue.ask(ONE, Subscribe(1, 1))

    def _ready(self) -> list[int]:
        ready = [n for n, m in self.messages.items() if m.due_ms is None and m.held is None]
        return sorted(ready, key=lambda n: (-self.messages[n].priority, self.messages[n].place))

    def publish(self, count: int, priority: int, delay_ms: int) -> None:
        first = self.queue.replica.state.next_sequence
        self.queue.publish(
            self.producer, self.number + 1, count, priority=priority, delay_ms=delay_ms
        )
        self.number += count
        self.queue.sync()
        for sequence in range(first, first + count):
            self.place += 1
            due_ms = self.now_ms + delay_ms if delay_ms else None
            self.messages[sequence] = Told(priority, self.place, due_ms=due_ms)

    def get(self, count: int) -> None:
        expected = self._ready()[:count]
        if not expected:
            return
        self.credit += len(expected)
        self.queue.ask(ONE, Credit(1, self.credit))
        self.queue.sync()
        pieces = self.queue.pieces()
        assert [n for piece in pieces for n in range(piece.first, piece.last + 1)] == expected
        for piece in pieces:
            for sequence in range(piece.first, piece.last + 1):
                self._handed(self.messages[sequence], sequence, piece)

    def _handed(self, message: Told, sequence: int, piece: Delivery) -> None:
        if message.may_be_raised:
            assert piece.count > message.count
        else:
            assert piece.count == message.count + 1
        message.may_be_raised = False
        message.count = piece.count
        message.held = Delivery(piece.epoch, piece.number, sequence, sequence, piece.count)

    def _settle(self, kind: str, index: int, delay_ms: int = 0) -> None:
        held = [n for n, message in self.messages.items() if message.held is not None]
        if not held:
            return
        sequence = held[index % len(held)]
        message = self.messages[sequence]
        assert message.held is not None
        self.request += 1
        self.queue.ask(ONE, Settle(self.request, kind, (message.held,), delay_ms))
        self.queue.sync()
        message.held = None
        if kind == "ack":
            del self.messages[sequence]
        elif kind == "giveback":
            message.count -= 1
        elif delay_ms:
            message.due_ms, message.is_new = self.now_ms + delay_ms, False

    def ack(self, index: int) -> None:
        self._settle("ack", index)

    def giveback(self, index: int) -> None:
        self._settle("giveback", index)

    def nack(self, index: int, delay_ms: int) -> None:
        self._settle("nack", index, delay_ms)

    def _pass(self, duration_ms: int) -> None:
        """Time passes; what is due then enters in the order of its time, then of sequence."""
        self.now_ms += duration_ms
        self.queue.wall_us = self.now_ms * 1000
        self.queue.step(Tick())
        self.queue.sync()
        self._end_delays()

    def _end_delays(self) -> None:
        due = [n for n, m in self.messages.items() if m.due_ms is not None]
        for sequence in sorted(due, key=lambda n: (self.messages[n].due_ms, n)):
            message = self.messages[sequence]
            assert message.due_ms is not None
            if message.due_ms > self.now_ms:
                break
            message.due_ms = None
            if message.is_new:
                self.place += 1
                message.place = self.place

    def purge(self) -> None:
        self.request += 1
        self.queue.ask(ONE, Purge(self.request))
        self.queue.sync()
        kept = {n: message for n, message in self.messages.items() if message.held is not None}
        assert Purged(self.request, len(self.messages) - len(kept)) in self.queue.heard()
        self.messages = kept

    def failover(self) -> None:
        """A new term on what is on disk; everything held is ready again, counted."""
        self.queue.sync()
        self.queue = Queue(self.queue.files, self.queue.epoch + 1, wall_us=self.now_ms * 1000)
        self.queue.attach(ONE, producer=self.producer)
        self.queue.sync()
        while not self.queue.replica.is_serving:
            assert self.queue.wake_at_ms == self.queue.now_ms
            self.queue.step(Tick())
        self.queue.heard()
        for message in self.messages.values():
            message.held = None
            message.may_be_raised |= message.due_ms is None or not message.is_new
        self.credit = 0
        self.queue.ask(ONE, Subscribe(1, 1))

    def check(self) -> None:
        replica = self.queue.replica
        assert replica.master is not None
        ready = len(self._ready())
        held = sum(message.held is not None for message in self.messages.values())
        assert replica.master.dispatch.ready.levels.count == ready
        assert replica.master.dispatch.open.unacknowledged == held
        assert replica.master.delays.count == len(self.messages) - ready - held
        assert replica.state.live.count == len(self.messages)
        assert QueueState.decode(replica.state.encode()).encode() == replica.state.encode()
        wakes = [m.due_ms for m in self.messages.values() if m.due_ms is not None]
        if wakes:
            wake_ms = replica.master.delays.look.at_ms - self.queue.now_ms
            assert wake_ms <= max(min(wakes) - self.now_ms, 1)


@pytest.mark.slow
@settings(max_examples=400)
@given(STEPS, st.sampled_from([1, 2, term.BEGIN_COUNT]))
def test_a_queue_with_levels_and_delays_does_what_a_sort_does(
    steps: list[tuple[Any, ...]], portion: int
) -> None:
    """Order, counts and what is ready, over acks, returns, delays, purges and failovers, whatever a
    term sorts in at a time."""
    with sorted_in_by(portion):
        play(steps)


def play(steps: Iterable[tuple[Any, ...]]) -> None:
    oracle = Oracle()
    for kind, *values in steps:
        getattr(oracle, "_pass" if kind == "pass" else kind)(*values)
        oracle.check()


@contextmanager
def sorted_in_by(portion: int) -> Iterator[None]:
    """While it lasts, the beginning of a term takes many steps."""
    with (
        patch.object(term, "BEGIN_COUNT", portion),
        patch.object(ready_messages, "STRETCH_RANGES", min(portion, ready_messages.STRETCH_RANGES)),
        patch.object(ready_messages, "STRETCH_WEIGHT", 1),
    ):
        yield


def test_nobody_is_served_before_all_is_sorted_in() -> None:
    """One message of a priority comes before all others, and one that is delayed does not come."""
    with sorted_in_by(1):
        play(
            [
                ("publish", 2, 0, 0), ("publish", 1, 0, 9), ("publish", 1, 5, 0), ("failover",),
                ("get", 4),
            ]
        )  # fmt: skip


def test_a_promotion_does_not_count_what_was_delayed_then() -> None:
    """Its sequence is below the horizon's past, its place is not."""
    oracle = Oracle()
    for kind, *values in [
        ("publish", 1, 0, 0), ("publish", 2, 0, 5), ("get", 1), ("failover",), ("_pass", 5),
        ("get", 3),
    ]:  # fmt: skip
        getattr(oracle, kind)(*values)
        oracle.check()
    assert [message.count for message in oracle.messages.values()] == [2, 1, 1]
    state = oracle.queue.replica.state
    assert [state.longest_run(n, 3).shift for n in (1, 2, 3)] == [0, 2, 2]
