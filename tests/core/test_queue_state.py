"""Applying ops: what lives, how often each message was delivered, and who produced it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from mirrorq.containers.ranges import RangeSet
from mirrorq.protocol.ops import (
    FLAG_TRANSIENT,
    AckOp,
    Entry,
    HorizonOp,
    ProducerOp,
    PromotedOp,
    PurgeOp,
    RefusalOp,
    ReturnLaterOp,
    ReturnOp,
)
from mirrorq.replication.history import HISTORY_COUNT, extend_history
from mirrorq.replication.state.producer import LOST, REFUSED, Producer
from mirrorq.replication.state.queue_state import QueueState

from .entries import PRODUCER, op, publish


def _applied(*entries: Entry) -> QueueState:
    state = QueueState()
    for entry in entries:
        state.apply(entry)
    return state


def test_a_publish_makes_its_messages_live() -> None:
    """A batch takes the next sequences, and they live until they are acked."""
    state = _applied(publish(1, 1, count=3), publish(2, 4))
    assert list(state.live) == [(1, 4)]
    assert (state.applied, state.next_sequence) == (2, 5)
    assert state.apply(op(3, AckOp(((2, 3),)))) == ((2, 3),)
    assert list(state.live) == [(1, 1), (4, 4)]


def test_a_purge_ends_messages_like_an_ack() -> None:
    """What a purge names is gone, and the next sequence stays."""
    state = _applied(publish(1, 1, count=3), op(2, PurgeOp(((1, 3),))))
    assert not state.live
    assert state.next_sequence == 4


def test_the_horizon_never_falls() -> None:
    """An older horizon changes nothing."""
    state = _applied(op(1, HorizonOp(10)), op(2, HorizonOp(5)))
    assert state.horizon == 10


def test_each_return_counts_once() -> None:
    """The delivery count is 1 at first and grows with each return of a message that lives."""
    state = _applied(publish(1, 1, count=2), op(2, ReturnOp(((1, 1),))), op(3, ReturnOp(((1, 2),))))
    assert [state.delivery_count(n) for n in (1, 2)] == [3, 2]
    state.apply(op(4, AckOp(((1, 1),))))
    assert state.apply(op(5, ReturnOp(((1, 1),)))) == ()
    assert 1 not in state.returned


MANY = 1_000_000


def test_what_came_back_together_is_one_range_however_many_messages_it_is() -> None:
    """A lease of a million whose holder is gone: in memory, and in the bytes of a checkpoint."""
    state = _applied(
        publish(1, 1, count=MANY),
        op(2, AckOp(((7, 7),))),
        op(3, ReturnOp(((1, MANY),))),
        op(4, ReturnLaterOp(((10, MANY),), 5_000_000)),
    )
    assert list(state.returned) == [(1, 6, (1, 3)), (8, 9, (1, 3)), (10, MANY, (2, 4))]
    assert list(state.resting) == [(10, MANY, (5_000_000,))]
    assert [state.count_run(first, MANY) for first in (1, 8, 10)] == [(2, 6), (2, 9), (3, MANY)]
    assert list(state.returned_often(RangeSet(((5, MANY),)), 2)) == [(10, MANY)]
    data = state.encode()
    assert len(data) < 1000
    again = QueueState.decode(data)
    assert again.encode() == data
    assert list(again.returned) == list(state.returned)
    assert list(again.resting) == list(state.resting)


def _returned(count: int) -> QueueState:
    return _applied(
        publish(1, 1, count=2 * count),
        op(2, ReturnOp(((1, count - 1),))),
        op(3, ReturnLaterOp(((count + 1, count + 1),), 5_000_000)),
    )


def test_the_size_of_a_state_is_known_before_it_is_written() -> None:
    """Of all that may be much: whether to write is not to be judged by half of it."""
    state = _applied(publish(1, 1, count=20_000))
    bare = state.bytes_about
    for number in range(1, 5000):
        state.apply(op(number + 1, ReturnOp(((2 * number, 2 * number),))))
        state.producers.add(number, Producer(used_us=1 << 50))
    size = len(state.encode())
    assert bare < 1000
    assert size // 2 < state.bytes_about < 2 * size


def test_a_promotion_counts_what_is_below_the_horizon() -> None:
    """All that may have been handed out is counted; what is above, or comes later, is not."""
    state = _applied(
        publish(1, 1, count=4), op(2, HorizonOp(3)), op(3, PromotedOp("clean"), epoch=2)
    )
    assert [state.delivery_count(n) for n in range(1, 5)] == [2, 2, 1, 1]
    assert [state.raised_by_promotion(n) for n in range(1, 5)] == [True, True, False, False]


def test_a_promotion_does_not_count_messages_to_come() -> None:
    """The horizon may be far ahead: a message published after the promotion starts at 1."""
    state = _applied(op(1, HorizonOp(100)), op(2, PromotedOp("clean"), epoch=2))
    state.apply(publish(3, 1, epoch=2))
    assert state.delivery_count(1) == 1


def test_a_return_after_a_promotion_was_the_last_raise() -> None:
    """An inherited ack counts only for what a promotion raised last."""
    state = _applied(publish(1, 1), op(2, HorizonOp(9)), op(3, PromotedOp("clean"), epoch=2))
    assert state.raised_by_promotion(1)
    state.apply(op(4, ReturnOp(((1, 1),)), epoch=2))
    assert not state.raised_by_promotion(1)


def test_count_runs_end_where_counts_change() -> None:
    """One delivery holds messages of one delivery count only."""
    state = _applied(
        publish(1, 1, count=6), op(2, HorizonOp(5)), op(3, PromotedOp("clean"), epoch=2)
    )
    state.apply(op(4, ReturnOp(((2, 2),)), epoch=2))
    runs = []
    first = 1
    while first <= 6:
        count, last = state.count_run(first, 6)
        runs.append((first, last, count))
        first = last + 1
    assert runs == [(1, 1, 2), (2, 2, 3), (3, 4, 2), (5, 6, 1)]


def test_a_cold_promotion_drops_transient_messages() -> None:
    """When nobody has run on, messages that were not persistent are gone, on all copies."""
    transient = publish(1, 1, count=2)
    transient = replace(transient, header=replace(transient.header, flags=FLAG_TRANSIENT))
    state = _applied(transient, publish(2, 3))
    assert state.apply(op(3, PromotedOp("cold"), epoch=2)) == ((1, 2),)
    assert list(state.live) == [(3, 3)]


def test_a_producer_is_known_from_its_op_to_its_end() -> None:
    """Its id is the lsn of its op; outcomes are kept above its settled mark."""
    state = QueueState()
    state.apply(op(1, ProducerOp("x/1")))
    for lsn in range(2, PRODUCER):
        state.apply(op(lsn, HorizonOp(lsn)))
    state.apply(op(PRODUCER, ProducerOp("x/2")))
    assert sorted(state.producers) == [1, PRODUCER]
    state.apply(publish(10, 1, count=2, number=1))
    state.apply(publish(11, 3, number=3))
    producer = state.producers[PRODUCER]
    assert producer.highest == 3
    assert producer.outcomes_of(2, 9) == [(2, 2, 2, "")]
    state.apply(op(12, ProducerOp("", (PRODUCER,))))
    assert sorted(state.producers) == [1]


def test_the_history_names_the_epoch_of_each_op() -> None:
    """epoch_span gives the first and the last epoch in which an op may have been made and the ops
    of which that is so, zeros when unknown."""
    history: list[tuple[int, int]] = []
    for lsn, epoch in enumerate([1, 1, 3, 3, 4], 1):
        extend_history(history, epoch, lsn, stable=0)
    assert history == [(1, 2), (3, 4), (4, 5)]
    state = QueueState()
    state.history = history
    spans = [state.epoch_span(lsn) for lsn in range(1, 7)]
    ones, threes = (1, 1, 0, 2), (3, 3, 2, 4)
    assert spans == [ones, ones, threes, threes, (4, 4, 4, 5), (0, 0, 0, 0)]


def test_a_history_keeps_the_newest_epochs() -> None:
    """A queue whose view has changed ten thousand times: what is older than the bound is told by
    the oldest that is kept, in bytes too; what is not stable is never left out."""
    state = QueueState()
    for lsn in range(1, 10_001):
        state.apply(op(lsn, HorizonOp(lsn), epoch=2 * lsn))
    assert len(state.history) == HISTORY_COUNT
    oldest = 10_001 - HISTORY_COUNT
    assert state.history[0] == (2 * oldest, oldest)
    assert state.epoch_span(5) == (0, 2 * oldest, 0, oldest)
    assert state.epoch_span(9999) == (19_998, 19_998, 9998, 9999)
    assert QueueState.decode(state.encode()).history == state.history
    history: list[tuple[int, int]] = []
    for lsn in range(1, 3001):
        extend_history(history, lsn, lsn, stable=min(lsn - 1, 100))
    assert history[0] == (100, 100)
    assert len(history) == 2901


OPS = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), st.integers(1, 4)),
        st.tuples(st.sampled_from(["ack", "return"]), st.integers(1, 12)),
        st.tuples(st.just("horizon"), st.integers(1, 20)),
        st.tuples(st.just("promoted"), st.integers(0, 0)),
    ),
    max_size=25,
)


@given(OPS)
def test_equal_ops_give_equal_states_over_any_checkpoint(ops: list[tuple[str, int]]) -> None:
    """Lemma 3: a state that was written and read in between is equal to one that was not,
    and counts agree with a plain count of returns and promotions."""
    plain, stored = QueueState(), QueueState()
    counts: dict[int, int] = {}
    horizon, epoch = 1, 1
    for lsn, (kind, value) in enumerate(ops, 1):
        if kind == "publish":
            first = plain.next_sequence
            entry = publish(lsn, first, epoch=epoch, count=value)
            counts.update((n, 1) for n in range(first, first + value))
        elif kind == "ack":
            entry = op(lsn, AckOp(((value, value),)), epoch=epoch)
            counts.pop(value, None)
        elif kind == "return":
            entry = op(lsn, ReturnOp(((value, value),)), epoch=epoch)
            if value in counts:
                counts[value] += 1
        elif kind == "horizon":
            entry = op(lsn, HorizonOp(value), epoch=epoch)
            horizon = max(horizon, value)
        else:
            epoch += 1
            entry = op(lsn, PromotedOp("clean"), epoch=epoch)
            counts = {n: count + (n < horizon) for n, count in counts.items()}
        plain.apply(entry)
        stored = QueueState.decode(stored.encode())
        stored.apply(entry)
        assert plain.encode() == stored.encode()
    live = [n for first, last in plain.live for n in range(first, last + 1)]
    assert live == sorted(counts)
    assert {n: plain.delivery_count(n) for n in live} == counts


@pytest.mark.parametrize("data", [b"", b"\x93", b"not a state", b"\x9a" + b"\0" * 10])
def test_bytes_that_are_no_state_are_refused(data: bytes) -> None:
    """A damaged state gives a ValueError, never a wrong state."""
    with pytest.raises(ValueError, match="state"):
        QueueState.decode(data)


def test_what_an_unclean_promotion_has_lost_is_no_longer_confirmed() -> None:
    """Who asks again what became of its numbers is told of each whether it was lost."""
    state = _applied(
        op(PRODUCER, ProducerOp("x/1")),
        publish(10, 1, count=3),
        publish(11, 4, count=3),
        op(12, RefusalOp("too long"), count=1, producer=PRODUCER, first_number=7, settled=0),
        publish(13, 7, number=8),
    )
    lost = ((2, 2), (5, 7))
    state.apply(op(14, PromotedOp("unclean", 1, 2, lost, 4), epoch=2))
    assert list(state.live) == [(1, 1), (3, 4)]
    found = [outcome[:3] for outcome in state.producers[PRODUCER].outcomes_of(1, 9)]
    assert found == [
        (1, 1, 1),
        (2, 1, LOST),
        (3, 2, 3),
        (5, 2, LOST),
        (7, 1, REFUSED),
        (8, 1, LOST),
    ]
    state.apply(publish(15, state.next_sequence, epoch=2, number=9))
    assert state.producers[PRODUCER].outcomes_of(9, 9)[0][2] == state.next_sequence - 1
    assert QueueState.decode(state.encode()).producers == state.producers


@given(st.sets(st.integers(1, 30)), st.lists(st.integers(1, 5), max_size=6))
def test_the_outcomes_of_lost_messages(lost: set[int], counts: list[int]) -> None:
    """Number by number, against the plain definition; numbers and sequences differ by ten."""
    producer, number = Producer(), 11
    for place, count in enumerate(counts):
        producer.record_outcome(number, count, REFUSED if place % 3 == 2 else number - 10, "", 0)
        number += count
    before = outcome_of_each(producer, number)
    producer.lose(RangeSet((one, one) for one in lost), "lost")
    for one, sequence in before.items():
        if sequence in lost:
            before[one] = LOST
    assert outcome_of_each(producer, number) == before


def outcome_of_each(producer: Producer, end: int) -> dict[int, int]:
    """Number -> sequence, REFUSED or LOST."""
    return {
        number: outcome[2]
        for number in range(11, end)
        for outcome in producer.outcomes_of(number, number)
    }
