"""max-length and max-length-bytes: judged by the master on the whole log (scenario 28)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from mirrorq.containers.run_length import Sizes
from mirrorq.protocol.policy import Definition
from mirrorq.protocol.sessions import Confirmed, Delivery, Flow, Publish, Refused, Settle
from mirrorq.replication.events import Defined, Tick
from mirrorq.replication.master import ready_bytes
from mirrorq.replication.master.limits import (
    NO_LIMIT,
    Depth,
    InLog,
    Limit,
    judge,
    judge_pieces,
    limit_of,
)
from mirrorq.testing.disk import QueueFiles
from mirrorq.wire import frames
from mirrorq.wire.ops import FrameCodec

from .test_master import ONE, TWO, Queue


class Bounded(Queue):
    """A queue with a limit, and one producer that remembers its numbers."""

    first_us = 0
    """What time it is at its beginning."""

    def __init__(self, files: QueueFiles | None = None, epoch: int = 1, **limits: Any) -> None:
        self.limits = limits
        first = (Defined(Definition(**limits)),)
        super().__init__(files, epoch, codec=FrameCodec(), first=first, wall_us=self.first_us)
        self.sync()
        self.attach(ONE)
        self.producer = self.open_producer()
        self.number = 0
        self.confirmed: dict[int, int] = {}
        self.refused: dict[int, str] = {}

    def define(self, **limits: Any) -> None:
        self.step(Defined(Definition(**limits)))

    def put(self, *sizes: int, whole: bool = False) -> list[int]:
        """Publish bodies of these sizes; return their numbers."""
        frame = frames.pack_publish(
            [bytes(size) for size in sizes],
            producer=self.producer,
            first_number=self.number + 1,
        )
        numbers = list(range(self.number + 1, self.number + 1 + len(sizes)))
        self.number = numbers[-1]
        self.ask(ONE, Publish(frame, whole))
        return numbers

    def outcomes(self) -> None:
        """Note what the producer was told."""
        for reply in self.heard():
            if isinstance(reply, Confirmed):
                for first, count, sequence in reply.runs:
                    for index in range(count):
                        self.confirmed[first + index] = sequence + index
            elif isinstance(reply, Refused):
                for index in range(reply.count):
                    self.refused[reply.first_number + index] = reply.reason

    def settle_all(self) -> None:
        self.sync()
        assert self.replica.master is not None
        while self.replica.master.length_limit.is_counting:
            assert self.wake_at_ms == self.now_ms
            self.step(Tick())
            self.sync()
        self.outcomes()

    @property
    def ready(self) -> list[int]:
        """Sequences that are ready."""
        assert self.replica.master is not None
        found = self.replica.master.dispatch.ready.levels
        return [s for first, last in found for s in range(first, last + 1)]

    def take(self, count: int) -> list[Delivery]:
        """Have another handle hold so many messages."""
        if TWO not in self._numbers:
            self.attach(TWO)
            self.taken = 0
        self.taken += count
        self.consume(TWO, self.taken)
        return self.pieces(TWO)

    def flows(self) -> list[Flow]:
        return [reply for reply in self.heard() if isinstance(reply, Flow)]


# --- Judging ------------------------------------------------------------------------------

SIZES = st.lists(st.integers(0, 6), min_size=1, max_size=8)


def _limit(count: int | None, size: int | None, overflow: Any) -> Limit:
    made = limit_of(Definition(max_length=count, max_length_bytes=size, overflow=overflow))
    assert made is not None
    return made


@given(
    st.one_of(st.none(), st.integers(0, 8)),
    st.one_of(st.none(), st.integers(0, 20)),
    st.sampled_from(["block", "reject-publish", "drop-head"]),
    st.integers(0, 10),
    st.integers(0, 25),
    st.lists(SIZES, min_size=1, max_size=4),
)
def test_a_commit_is_judged_as_its_messages_one_by_one(
    count: int | None,
    size: int | None,
    overflow: Any,
    depth_count: int,
    depth_size: int,
    chunks: list[list[int]],
) -> None:
    """By sums over its pieces, wherever these lie, with the same verdict."""
    limit = limit_of(Definition(max_length=count, max_length_bytes=size, overflow=overflow))
    assume(limit is not None)
    assert limit is not None
    pieces: list[tuple[int, int, Sizes]] = []
    column, first = Sizes(), 5
    for sizes in chunks:
        column.append_sizes(first, sizes)
        pieces.append((first, first + len(sizes) - 1, column))
        first += len(sizes) + 1
        column.append_sizes(first - 1, [9])
    flat = [one for sizes in chunks for one in sizes]
    depth = Depth(depth_count, depth_size)
    judged = judge_pieces(limit, depth, pieces, max(flat))
    expected = judge(limit, depth, flat, True)
    # Of two reasons why it never fits either is right.
    assert replace(judged, reason="") == replace(expected, reason="")
    assert bool(judged.reason) == bool(expected.reason)


def test_without_limits_there_is_none() -> None:
    """Most queues: nothing is judged."""
    assert limit_of(Definition()) is None
    assert _limit(3, None, "block").size == NO_LIMIT


@given(
    st.one_of(st.none(), st.integers(0, 8)),
    st.integers(0, 20),
    st.sampled_from(["block", "reject-publish", "drop-head"]),
    st.integers(0, 10),
    st.integers(0, 25),
    SIZES,
    st.booleans(),
)
def test_a_verdict_never_lets_too_much_in(
    count: int | None,
    size: int,
    overflow: Any,
    depth_count: int,
    depth_size: int,
    sizes: list[int],
    whole: bool,
) -> None:
    """What is stored fits, after the drop if there is one; a whole batch is never parted; and
    what could never fit does not wait."""
    limit = _limit(count, size, overflow)
    depth = Depth(depth_count, depth_size)
    verdict = judge(limit, depth, sizes, whole)
    assert 1 <= verdict.count <= len(sizes)
    if whole:
        assert verdict.count == len(sizes)
    taken = sizes[: verdict.count]
    if verdict.action == "store" and overflow == "drop-head":
        kept = taken[len(taken) - verdict.keep :]
        assert verdict.room == Depth(len(kept), sum(kept))
        assert len(kept) <= limit.count
        assert sum(kept) <= limit.size
        assert kept, "what cannot stay is refused"
    elif verdict.action == "store":
        assert depth_count + len(taken) <= limit.count
        assert depth_size + sum(taken) <= limit.size
    elif verdict.action == "refuse":
        assert verdict.reason
        assert overflow != "drop-head" or min(limit.count, 1) == 0 or max(taken) > limit.size
    else:
        assert overflow == "block"
        empty = judge(limit, Depth(0, 0), sizes, whole)
        assert empty.action == "store", "a batch that waits fits an empty queue"


# --- The three overflows ---------------------------------------------------------------------


def test_unstable_publishes_count() -> None:
    """The whole log is judged: what is not stable yet has its place."""
    queue = Bounded(max_length=3, overflow="reject-publish")
    queue.put(1, 1)
    queue.put(1, 1)
    queue.settle_all()
    assert (len(queue.confirmed), len(queue.refused)) == (3, 1)


def test_a_whole_batch_is_refused_or_stored_whole() -> None:
    """A put_many is all or none."""
    queue = Bounded(max_length=3, overflow="reject-publish")
    queue.put(1, 1)
    queue.put(1, 1, whole=True)
    queue.settle_all()
    assert (len(queue.confirmed), len(queue.refused)) == (2, 2)
    queue.put(1)
    queue.settle_all()
    assert len(queue.ready) == 3


def test_drop_head_keeps_the_newest() -> None:
    """28. Every put is confirmed; the oldest ready ones end, by an op before the publish."""
    queue = Bounded(max_length=3, overflow="drop-head")
    for _ in range(5):
        queue.put(1)
        queue.settle_all()
        assert len(queue.ready) <= 3
    assert (queue.ready, len(queue.confirmed), queue.refused) == ([3, 4, 5], 5, {})
    assert list(queue.replica.state.live) == [(3, 5)]


def test_drop_head_of_what_is_not_stable_yet() -> None:
    """Publishes that overtake each other in the log: the oldest go all the same."""
    queue = Bounded(max_length=3, overflow="drop-head")
    for _ in range(4):
        queue.put(1, 1)
    queue.settle_all()
    assert queue.ready == [6, 7, 8]
    assert list(queue.replica.state.live) == [(6, 8)]


def test_drop_head_of_a_batch_larger_than_the_limit() -> None:
    """Its newest stay, and everything before it goes."""
    queue = Bounded(max_length=3, overflow="drop-head")
    queue.put(1, 1)
    queue.put(*[1] * 5, whole=True)
    queue.settle_all()
    assert (queue.ready, len(queue.confirmed)) == ([5, 6, 7], 7)


def test_drop_head_of_a_batch_larger_than_the_limit_leaves_nothing_older() -> None:
    """Not even a message without a body, for whose sake a newer one would go."""
    queue = Bounded(max_length_bytes=3, overflow="drop-head")
    queue.put(0)
    queue.settle_all()
    queue.put(1, 3)
    queue.settle_all()
    assert queue.ready == [3]


def test_a_body_that_can_never_stay_is_refused_and_drops_nothing() -> None:
    """Dropping the whole queue for it would help nobody."""
    queue = Bounded(max_length_bytes=10, overflow="drop-head")
    queue.put(4, 4)
    queue.put(11, 2)
    queue.settle_all()
    assert (list(queue.confirmed), list(queue.refused)) == ([1, 2, 4], [3])
    assert queue.ready == [1, 2, 3]


def test_what_consumers_hold_does_not_count() -> None:
    """Ready messages are counted, as in RabbitMQ."""
    queue = Bounded(max_length=2, overflow="reject-publish")
    queue.put(1, 1)
    queue.settle_all()
    queue.take(1)
    queue.put(1, 1)
    queue.settle_all()
    assert (len(queue.confirmed), len(queue.refused)) == (3, 1)


@pytest.mark.parametrize("overflow", ["reject-publish", "drop-head", "block"])
def test_a_requeue_may_exceed_the_limit_and_keeps_its_place(overflow: str) -> None:
    """28. Returned to its place, above the limit; the next publish finds the queue full."""
    queue = Bounded(max_length=2, overflow=overflow)
    queue.put(1, 1)
    queue.settle_all()
    (piece,) = queue.take(1)
    queue.put(1)
    queue.settle_all()
    queue.ask(TWO, Settle(1, "nack", (piece,)))
    queue.settle_all()
    assert queue.ready == [1, 2, 3]
    queue.put(1)
    queue.settle_all()
    expected = [3, 4] if overflow == "drop-head" else [1, 2, 3]
    assert queue.ready == expected


def test_block_lets_a_publish_wait_until_there_is_room() -> None:
    """28. What fits goes in; the rest waits in order, and is confirmed when it is stored."""
    queue = Bounded(max_length=3, overflow="block")
    queue.put(*[1] * 5)
    queue.put(1)
    queue.settle_all()
    assert (len(queue.confirmed), queue.refused, queue.ready) == (3, {}, [1, 2, 3])
    assert queue.replica.master is not None
    assert "max-length 3" in queue.replica.master.blocked_by
    queue.take(1)
    queue.settle_all()
    assert (len(queue.confirmed), queue.ready) == (4, [2, 3, 4])
    queue.take(2)
    queue.settle_all()
    assert (len(queue.confirmed), queue.ready) == (6, [4, 5, 6])


def test_a_batch_larger_than_the_limit_does_not_wait_for_ever() -> None:
    """Of a put_many none could ever be stored; of single puts a body that is too large."""
    queue = Bounded(max_length=3, max_length_bytes=10, overflow="block")
    queue.put(*[1] * 4, whole=True)
    queue.put(11)
    queue.put(1)
    queue.settle_all()
    assert list(queue.refused) == [1, 2, 3, 4, 5]
    assert "never fit" in queue.refused[1]
    assert list(queue.confirmed) == [6]


def test_a_batch_that_waits_is_forgotten_with_its_attachment() -> None:
    """Another producer's message does not wait behind a handle that is gone."""
    queue = Bounded(max_length=3, overflow="block")
    queue.put(1, 1)
    queue.put(1, 1, whole=True)
    queue.settle_all()
    queue.attach(ONE, producer=queue.producer)
    queue.number = 2
    queue.put(1)
    queue.settle_all()
    assert queue.ready == [1, 2, 3]


def test_known_numbers_are_confirmed_though_the_queue_is_full() -> None:
    """A batch sent again asks for no room: a failover of a full queue stops nobody."""
    queue = Bounded(max_length=2, overflow="block")
    queue.put(1, 1)
    queue.settle_all()
    queue.confirmed.clear()
    queue.number = 0
    queue.put(1, 1, 1)
    queue.settle_all()
    assert list(queue.confirmed) == [1, 2]


def test_bytes_are_those_of_bodies() -> None:
    """max-length-bytes, with bodies of several sizes in one frame."""
    queue = Bounded(max_length_bytes=10, overflow="drop-head")
    queue.put(1, 2, 3, 4)
    queue.settle_all()
    assert queue.ready == [1, 2, 3, 4]
    queue.put(2)
    queue.settle_all()
    assert queue.ready == [3, 4, 5]
    queue.put(10)
    queue.settle_all()
    assert queue.ready == [6]


# --- Policies that change, and what is told ---------------------------------------------------


def test_a_lower_limit_holds_at_once() -> None:
    """drop-head: what is too much ends when the policy is set; the others only take no more."""
    for overflow, left in (("drop-head", [3, 4, 5]), ("reject-publish", [1, 2, 3, 4, 5])):
        queue = Bounded()
        queue.put(*[1] * 5)
        queue.settle_all()
        queue.define(max_length=3, overflow=overflow)
        queue.settle_all()
        assert queue.ready == left


def test_a_raised_limit_lets_in_what_waited() -> None:
    """And without a policy nothing waits."""
    queue = Bounded(max_length=1, overflow="block")
    queue.put(*[1] * 4)
    queue.settle_all()
    queue.define(max_length=3, overflow="block")
    queue.settle_all()
    assert queue.ready == [1, 2, 3]
    queue.define()
    queue.settle_all()
    assert queue.ready == [1, 2, 3, 4]


def test_a_handle_is_told_how_much_it_may_put() -> None:
    """Before its first put is confirmed, and when there is room again. What it puts itself uses
    that up without a word."""
    queue = Bounded(max_length=4, overflow="block")
    queue.put(1, 1)
    (flow,) = queue.flows()
    assert flow.count - (2 - flow.highest) == 2
    queue.put(1, 1)
    queue.sync()
    assert queue.flows() == []
    queue.take(1)
    (flow,) = queue.flows()
    assert (flow.count, flow.highest) == (1, 4)
    queue.define()
    assert queue.flows() == [Flow(False)]


def test_a_handle_that_attaches_is_told_before_it_is_attached() -> None:
    """So that its very first put knows the limit."""
    queue = Bounded(max_length=4, overflow="block")
    queue.attach(TWO)
    replies = queue.heard(TWO)
    assert [type(reply).__name__ for reply in replies] == ["Flow", "Attached"]


# --- Against an oracle, across failovers ------------------------------------------------------

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), SIZES, st.booleans()),
        st.tuples(st.just("sync")),
        st.tuples(st.just("take"), st.integers(1, 4)),
        st.tuples(st.just("return"), st.integers(0, 3)),
        st.tuples(st.just("ack"), st.integers(0, 3)),
        st.tuples(st.just("failover"), st.booleans()),
    ),
    max_size=25,
)


class Oracle:
    """A bounded queue as a list: what each producer's number became."""

    def __init__(self, count: int | None, size: int | None, overflow: str) -> None:
        self.count = NO_LIMIT if count is None else count
        self.size = NO_LIMIT if size is None else size
        self.overflow = overflow
        self.sequence = 0
        self.ready: dict[int, int] = {}
        self.held: dict[int, int] = {}
        self.waiting: list[tuple[list[int], bool]] = []
        self.refused = 0
        self.stored = 0

    def fits(self, sizes: Sequence[int]) -> bool:
        total = sum(self.ready.values()) + sum(sizes)
        return len(self.ready) + len(sizes) <= self.count and total <= self.size

    def never(self, sizes: Sequence[int]) -> bool:
        return len(sizes) > self.count or sum(sizes) > self.size

    def put(self, sizes: list[int], whole: bool) -> None:
        self.waiting += [(sizes, True)] if whole else [([size], False) for size in sizes]
        self.admit()

    def admit(self) -> None:
        while self.waiting:
            sizes, _ = self.waiting[0]
            if self.overflow == "drop-head":
                is_bad = any(self.never([size]) for size in sizes)
            else:
                is_bad = self.never(sizes)
            if is_bad or (self.overflow == "reject-publish" and not self.fits(sizes)):
                self.refused += len(sizes)
            elif self.overflow == "block" and not self.fits(sizes):
                return
            else:
                self.store(sizes)
            self.waiting.pop(0)

    def store(self, sizes: list[int]) -> None:
        for size in sizes:
            self.sequence += 1
            self.stored += 1
            self.ready[self.sequence] = size
        while self.overflow == "drop-head" and not self.fits([]):
            del self.ready[min(self.ready)]


@pytest.mark.parametrize("limits", [{}, {"max_length": 9}])
def test_a_count_that_a_policy_ends_wakes_the_queue_no_more(limits: dict[str, int]) -> None:
    """Swarm seed 6639 with the rail: the master stepped without end."""
    queue = Bounded()
    queue.put(*range(1, 9))
    queue.settle_all()
    # What lies in several stretches is counted in several steps.
    (piece,) = queue.take(8)
    returned = [replace(piece, first=sequence, last=sequence) for sequence in (1, 3, 5, 7)]
    queue.ask(TWO, Settle(1, "nack", tuple(returned)))
    queue.settle_all()
    assert queue.ready == [1, 3, 5, 7]
    with patch.object(ready_bytes, "COUNT_RANGES", 1):
        queue.define(max_length_bytes=1000)
        assert queue.replica.master is not None
        assert queue.replica.master.length_limit.is_counting
        queue.define(**limits)
    queue.settle_all()
    queue.step(Tick())
    assert queue.wake_at_ms is None or queue.wake_at_ms > queue.now_ms


@settings(max_examples=120, deadline=None)
@given(
    st.one_of(st.none(), st.integers(1, 6)),
    st.one_of(st.none(), st.integers(3, 15)),
    st.sampled_from(["block", "reject-publish", "drop-head"]),
    STEPS,
    st.sampled_from([1, ready_bytes.COUNT_RANGES]),
)
def test_against_a_bounded_list(
    count: int | None,
    size: int | None,
    overflow: Any,
    steps: list[tuple[Any, ...]],
    portion: int,
) -> None:
    """Any course of puts, takes, returns and acks ends as with a list; a restart of the whole
    queue in a new term changes nothing that was stable. However many are counted at a time."""
    with patch.object(ready_bytes, "COUNT_RANGES", portion):
        _against_a_list(count, size, overflow, steps)


def _against_a_list(
    count: int | None, size: int | None, overflow: Any, steps: list[tuple[Any, ...]]
) -> None:
    queue = Bounded(max_length=count, max_length_bytes=size, overflow=overflow)
    oracle = Oracle(count, size, overflow)
    held: dict[int, Delivery] = {}
    request = 0
    for what, *values in steps:
        if what == "put":
            queue.put(*values[0], whole=values[1])
            oracle.put(values[0], values[1])
        elif what == "take":
            # No more than there is: who waits for messages would get the next ones at once.
            if oracle.ready:
                _note(queue.take(min(values[0], len(oracle.ready))), oracle, held)
        elif what in ("return", "ack") and held:
            sequence = sorted(held)[values[0] % len(held)]
            piece = held.pop(sequence)
            request += 1
            queue.ask(TWO, Settle(request, "nack" if what == "return" else "ack", (piece,)))
            queue.settle_all()
            size_held = oracle.held.pop(sequence)
            if what == "return":
                oracle.ready[sequence] = size_held
                oracle.ready = dict(sorted(oracle.ready.items()))
        queue.settle_all()
        oracle.admit()
        assert queue.ready == sorted(oracle.ready), (what, values)
        assert len(queue.confirmed) == oracle.stored
        assert len(queue.refused) == oracle.refused
        assert queue.replica.master is not None
        dispatch = queue.replica.master.dispatch
        while not dispatch.ready.is_size_known:
            dispatch.ready.count_size()
        assert dispatch.ready.size == sum(oracle.ready.values())
        if what == "failover" and not oracle.waiting:
            queue, held = _fail_over(queue, oracle), {}


def _note(pieces: list[Delivery], oracle: Oracle, held: dict[int, Delivery]) -> None:
    """Deliveries that have come."""
    for piece in pieces:
        for sequence in range(piece.first, piece.last + 1):
            held[sequence] = Delivery(piece.epoch, piece.number, sequence, sequence, piece.count)
            oracle.held[sequence] = oracle.ready.pop(sequence)


def _fail_over(queue: Bounded, oracle: Oracle) -> Bounded:
    """The next master starts from the disk: what was held is ready again."""
    before = queue.replica.state.encode()
    following = Bounded(queue.files, queue.epoch + 1, **queue.limits)
    assert before
    oracle.ready = dict(sorted({**oracle.ready, **oracle.held}.items()))
    oracle.held = {}
    oracle.stored = oracle.refused = 0
    return following


def test_messages_in_the_log_are_forgotten_as_they_are_applied() -> None:
    """The judge keeps nothing of a message that is ready."""
    queue = Bounded(max_length_bytes=100)
    for _ in range(10):
        queue.put(3, 4)
        queue.settle_all()
    assert queue.replica.master is not None
    in_log = queue.replica.master.log.coming
    assert isinstance(in_log, InLog)
    assert len(in_log._sizes) == 0
    assert in_log.depth() == Depth(0, 0)
