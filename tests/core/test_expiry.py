"""Time to live, delivery-limit, rejections, single-active-consumer: decided by the master."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mirrorq.containers.ranges import RangeSet
from mirrorq.protocol.sessions import (
    Credit,
    Deliver,
    Delivery,
    Publish,
    Settle,
    Settled,
    Subscribe,
    Unsubscribe,
)
from mirrorq.replication.master.expiry import BLOCK_WEIGHT, PIECES, Expiry
from mirrorq.replication.state import pages
from mirrorq.replication.state.columns import Block, Columns
from mirrorq.replication.state.queue_state import QueueState
from mirrorq.testing.disk import QueueFiles
from mirrorq.wire import frames
from mirrorq.wire.ops import FrameCodec

from .test_limits import Bounded
from .test_master import ONE, TWO

START_MS = 1_700_000_000_000


class Timed(Bounded):
    """A queue whose master's steady time is told by the test."""

    def __init__(
        self,
        files: QueueFiles | None = None,
        epoch: int = 1,
        *,
        wall_ms: int = START_MS,
        **limits: Any,
    ) -> None:
        self.wall_ms, self.first_us = wall_ms, wall_ms * 1000
        super().__init__(files, epoch, **limits)

    def at(self, ms: int) -> None:
        """So many ms after the start, by both clocks of the master."""
        self.wall_ms = START_MS + ms
        self.now_ms = 1000 + ms
        self.tick()

    def tick(self) -> None:
        self.wall_us = self.wall_ms * 1000
        self.step()
        self.sync()

    def put_ttl(self, ttl_ms: int, count: int = 1) -> None:
        self.wall_us = self.wall_ms * 1000
        frame = frames.pack_publish(
            [b"x"] * count,
            producer=self.producer,
            first_number=self.number + 1,
            ttl_ms=ttl_ms,
        )
        self.number += count
        self.ask(ONE, Publish(frame, False))
        self.settle_all()

    @property
    def live(self) -> list[int]:
        return [s for first, last in self.replica.state.live for s in range(first, last + 1)]

    def again(self) -> Timed:
        """The next master, from what is on the disk."""
        self.sync()
        following = Timed(self.files, self.epoch + 1, wall_ms=self.wall_ms, **self.limits)
        following.now_ms = self.now_ms
        following.tick()
        return following


# --- Time to live -----------------------------------------------------------------------------


def test_a_policy_ends_messages_that_are_ready_for_too_long() -> None:
    """Not one ms before, by an op, and the master asks to be woken for it."""
    queue = Timed(message_ttl=500)
    queue.put_ttl(0)
    queue.at(200)
    queue.put_ttl(0)
    queue.at(499)
    assert queue.live == [1, 2]
    assert queue.wake_at_ms is not None
    assert queue.wake_at_ms <= 1500
    queue.at(500)
    assert queue.live == [2]
    queue.at(700)
    assert queue.live == []
    assert queue.replica.master is not None
    assert queue.replica.master.endings.counts == {"expired": 2}


def test_the_lesser_time_holds_and_ends_messages_behind_others() -> None:
    """A short-lived message behind one without end goes first."""
    queue = Timed(message_ttl=1000)
    queue.put_ttl(0)
    queue.put_ttl(100, count=2)
    queue.put_ttl(5000)
    queue.at(100)
    assert queue.live == [1, 4]
    queue.at(1000)
    assert queue.live == []


def test_without_a_policy_only_a_message_of_its_own_time_ends() -> None:
    """put(ttl=…) alone."""
    queue = Timed()
    queue.put_ttl(0)
    queue.put_ttl(100_000)
    queue.at(99_999)
    assert queue.live == [1, 2]
    queue.at(100_000)
    assert queue.live == [1]
    queue.at(10_000_000)
    assert queue.live == [1]


def test_what_a_consumer_holds_does_not_end_until_it_comes_back() -> None:
    """Then it ends at once, and nobody else gets it."""
    queue = Timed(message_ttl=100)
    queue.put_ttl(0)
    (piece,) = queue.take(1)
    queue.at(1000)
    assert queue.live == [1]
    queue.ask(TWO, Credit(0, 100))
    queue.ask(TWO, Settle(1, "nack", (piece,)))
    queue.sync()
    queue.tick()
    assert queue.live == []
    assert not [reply for reply in queue.heard(TWO) if isinstance(reply, Deliver)]


def test_a_message_is_never_handed_out_after_its_time() -> None:
    """Though the master was not woken in between."""
    queue = Timed(message_ttl=100)
    queue.put_ttl(0)
    queue.wall_ms += 100
    queue.wall_us = queue.wall_ms * 1000
    assert queue.take(1) == []
    assert queue.live == []


def test_the_next_master_knows_every_deadline() -> None:
    """Times and ttls are part of the applied state."""
    queue = Timed()
    queue.put_ttl(300)
    queue.put_ttl(0)
    queue.put_ttl(100)
    queue.at(50)
    queue = queue.again()
    queue.at(100)
    assert queue.live == [1, 2]
    queue = queue.again()
    queue.at(299)
    assert queue.live == [1, 2]
    queue.at(300)
    assert queue.live == [2]


def test_a_policy_that_changes_holds_at_once() -> None:
    """For what is in the queue."""
    queue = Timed()
    queue.put_ttl(0)
    queue.at(1000)
    queue.define(message_ttl=2000)
    queue.at(1999)
    assert queue.live == [1]
    queue.define()
    queue.at(3000)
    assert queue.live == [1]
    queue.define(message_ttl=10)
    queue.tick()
    assert queue.live == []


TTLS = st.sampled_from([0, 1, 50, 64, 1000, 70_000, 140_000])


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.tuples(TTLS, st.integers(0, 40_000), st.integers(1, 3)), max_size=12),
    st.one_of(st.none(), st.integers(0, 100_000)),
    st.lists(st.integers(0, 60_000), min_size=1, max_size=12),
)
def test_the_index_against_a_list_of_deadlines(
    puts: list[tuple[int, int, int]], policy_ms: int | None, steps: list[int]
) -> None:
    """Whatever the times: due() gives exactly those whose time is over, once; and next_ms is
    never after the next one."""
    codec = FrameCodec()
    state = QueueState()
    expected: dict[int, int] = {}
    index = Expiry(state)
    index.restart(policy_ms, ())
    for lsn, (ttl_ms, offset_ms, count) in enumerate(puts, 1):
        frame = frames.pack_publish([b"x"] * count, producer=1, first_number=1, ttl_ms=ttl_ms)
        first = state.next_sequence
        state.apply(
            codec.publish(
                frame,
                queue_id=1,
                epoch=1,
                lsn=lsn,
                first_sequence=first,
                timestamp_us=(START_MS + offset_ms) * 1000,
            )
        )
        index.add_ready(((first, first + count - 1),))
        lives = [ms for ms in (ttl_ms or None, policy_ms) if ms is not None]
        for sequence in range(first, first + count):
            if lives:
                expected[sequence] = START_MS + offset_ms + min(lives)
    now = START_MS
    for step in steps:
        now += step
        over = {s for first, last in index.due(now) for s in range(first, last + 1)}
        assert over == {sequence for sequence, deadline in expected.items() if deadline <= now}
        expected = {s: deadline for s, deadline in expected.items() if deadline > now}
        if expected:
            assert index.next_ms is not None
            assert now < index.next_ms <= min(expected.values()) or index.next_ms <= now + 1
        else:
            assert index.next_ms is None


# --- Returned too often, rejected ---------------------------------------------------------------


def _return(queue: Bounded, pieces: list[Delivery], kind: str = "nack") -> None:
    queue.ask(TWO, Settle(1, kind, tuple(pieces)))
    queue.settle_all()


@pytest.mark.parametrize("limit", [0, 2])
def test_a_message_returned_too_often_ends(limit: int) -> None:
    """delivery-limit N: delivered N + 1 times at most, then it ends by an op and is counted."""
    queue = Timed(delivery_limit=limit)
    queue.put(1, 1)
    queue.settle_all()
    for count in range(1, limit + 2):
        (piece,) = queue.take(1)
        assert (piece.first, piece.count) == (1, count)
        _return(queue, [piece])
    assert queue.live == [2]
    assert queue.replica.master is not None
    assert queue.replica.master.endings.counts == {"delivery_limit": 1}
    assert [r for r in queue.heard(TWO) if isinstance(r, Settled)][-1].refused == ()


def test_promotions_are_no_returns() -> None:
    """Three masters later it has been delivered four times, and has come back never."""
    queue = Timed(delivery_limit=1)
    queue.put(1)
    queue.settle_all()
    for count in range(1, 5):
        (piece,) = queue.take(1)
        assert piece.count == count
        queue = queue.again()
    (piece,) = queue.take(1)
    _return(queue, [piece])
    (piece,) = queue.take(1)
    _return(queue, [piece])
    assert queue.live == []


def test_a_rejected_message_ends_without_an_ack() -> None:
    """nack(requeue=False) is told when it is stable, as an ack is."""
    queue = Timed()
    queue.put(1, 1, 1)
    queue.settle_all()
    pieces = queue.take(3)
    queue.ask(TWO, Settle(1, "reject", (Delivery(1, pieces[0].number, 2, 2, 1),)))
    assert not queue.heard(TWO)
    queue.settle_all()
    assert [r for r in queue.heard(TWO) if isinstance(r, Settled)] == [Settled(1, ())]
    assert queue.live == [1, 3]
    assert queue.replica.master is not None
    assert queue.replica.master.endings.counts == {"rejected": 1}


# --- single-active-consumer ---------------------------------------------------------------------


def _consume(queue: Bounded, session: Any, number: int = 1) -> None:
    if session not in queue._numbers:
        queue.attach(session)
    queue.ask(session, Subscribe(number, 10))
    queue.ask(session, Credit(number, 10))
    queue.sync()


def test_one_consumer_is_served_and_the_next_takes_over() -> None:
    """In the order in which they came; a get() comes after every consumer."""
    queue = Bounded(single_active_consumer=True)
    _consume(queue, TWO, 0)
    _consume(queue, ONE, 1)
    _consume(queue, TWO, 1)
    queue.put(1, 1, 1)
    queue.sync()
    assert [(p.first, p.last) for p in queue.pieces(ONE)] == [(1, 3)]
    assert queue.pieces(TWO) == []
    queue.put(1)
    queue.sync()
    assert len(queue.pieces(ONE)) == 1
    queue.ask(ONE, Unsubscribe(1))
    queue.put(1)
    queue.sync()
    delivers = [r for r in queue.heard(TWO) if isinstance(r, Deliver)]
    assert [d.consumer for d in delivers] == [1]
    queue.ask(TWO, Unsubscribe(1))
    queue.put(1)
    queue.sync()
    delivers = [r for r in queue.heard(TWO) if isinstance(r, Deliver)]
    assert [d.consumer for d in delivers] == [0]


def test_a_get_that_neither_waits_nor_holds_keeps_nobody_waiting() -> None:
    """Only handles that call get() take part."""
    queue = Bounded(single_active_consumer=True)
    for session in (ONE, TWO):
        if session not in queue._numbers:
            queue.attach(session)
        queue.ask(session, Subscribe(0, 10))
    queue.put(1, 1)
    queue.settle_all()
    queue.ask(TWO, Credit(0, 1))
    queue.sync()
    (piece,) = queue.pieces(TWO)
    queue.ask(ONE, Credit(0, 1))
    queue.sync()
    assert queue.pieces(ONE) == [], "TWO holds a message"
    queue.ask(TWO, Settle(1, "ack", (piece,)))
    queue.sync()
    assert [p.first for p in queue.pieces(ONE)] == [2]


def test_files_are_those_of_the_first_master() -> None:
    """The helper `again` starts from a disk, not from nothing."""
    files = QueueFiles()
    queue = Timed(files)
    queue.put_ttl(0)
    assert queue.again().live == [1]


@pytest.mark.parametrize("policy_ms", [1000, None])
def test_a_step_looks_into_few_blocks_of_times(
    monkeypatch: pytest.MonkeyPatch, policy_ms: int | None
) -> None:
    """Messages of one time a block, which may have to be read from the disk: all of them end, and
    no step looks into more than a few blocks."""
    monkeypatch.setitem(pages.ENTRIES_MAX, pages.COLUMNS, 4)
    seen: set[int] = set()
    real = Columns._block

    def block(self: Columns, index: int) -> Block:
        seen.add(index)
        return real(self, index)

    state = QueueState()
    for number in range(1, 2001):
        ttl_ms = 0 if policy_ms else 1000
        state.columns.append(number, number, 1 + number % 7, START_MS, ttl_ms)
    state.live.add(1, 2000)
    assert len(state.columns.table.firsts) > 10 * PIECES // BLOCK_WEIGHT
    monkeypatch.setattr(Columns, "_block", block)
    index = Expiry(state)
    index.restart(policy_ms, ((1, 2000),))
    over, steps = RangeSet(), [len(seen)]
    while over.count < 2000:
        seen.clear()
        for piece in index.due(START_MS + 1000):
            over.add(*piece)
        steps.append(len(seen))
    assert max(steps) <= 3 * (PIECES // BLOCK_WEIGHT + 1)
    assert index.next_ms is None
