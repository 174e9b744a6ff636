"""A master of which many bodies are damaged: what a step does depends on what becomes of them in
it, never on how many there are."""

from __future__ import annotations

import pytest

from core.entries import QUEUE, B, publish, view
from core.test_master import ONE, TWO
from mirrorq.containers.ranges import RangeSet
from mirrorq.protocol.policy import Definition
from mirrorq.protocol.ring import FetchFrames, FrameChunk
from mirrorq.protocol.sessions import Browse, Browsed, Credit, Purge, Subscribe
from mirrorq.replication.events import (
    Defined,
    FrameDamaged,
    RingReceived,
    SessionGone,
    Tick,
    ViewInstalled,
)
from mirrorq.replication.transfer import FETCH_RETRY_MS, LOST_MS, REQUEST_RANGES

from .test_depth import FEW, GROWTH_MAX, MANY, Act, Deep, longest, nothing, put


def damaged(count: int, batch_size: int = 100) -> Deep:
    """Every message of a queue, none beside another; one member joins, and may have them."""
    deep = Deep(count)
    batch = Defined(Definition(ha_sync_batch_size=batch_size))
    deep.queue.step(batch, ViewInstalled(view(3, "a", "b", master_epoch=2)))
    deep.queue.step(FrameDamaged(1, 2 * count, "zeros"))
    deep.queue.sync()
    transfer = deep.queue.replica.transfer
    assert len(transfer.sought) == count
    assert list(transfer.lacking) == [(1, 2 * count - 1)]
    return deep


def given_up(deep: Deep) -> None:
    """The member that was asked does not answer: nobody has them."""
    deep.queue.now_ms += FETCH_RETRY_MS
    deep.queue.step(Tick())


def set_aside(deep: Deep) -> None:
    given_up(deep)
    deep.finish()
    dispatch = deep.queue.replica.master.dispatch
    assert dispatch.ready.aside.count == deep.queue.replica.transfer.missing.count
    assert not dispatch.ready.levels


def asked_again(deep: Deep) -> None:
    set_aside(deep)
    deep.queue.now_ms += LOST_MS
    deep.queue.step(Tick())


def requests(deep: Deep) -> list[FetchFrames]:
    """What the last step has asked for."""
    sent = [message for _, message in deep.queue.sent]
    return [message for message in sent if isinstance(message, FetchFrames)]


def one_comes(deep: Deep) -> None:
    """The member that joins has the first of all that was asked for."""
    queue = deep.queue
    asked = requests(deep)[0]
    span = asked.after_sequence, asked.upto_sequence
    chunk = FrameChunk(QUEUE, 3, asked.number, *span, (publish(1, 1),))
    queue.step(RingReceived(B, chunk))
    queue.sync()
    assert list(queue.replica.master.dispatch.ready.levels) == [(1, 1)]


def get(deep: Deep) -> None:
    deep.queue.ask(ONE, Subscribe(1, 1))
    deep.queue.ask(ONE, Credit(1, 1))
    deep.queue.sync()


def put_and_get(deep: Deep) -> None:
    put(deep)
    get(deep)
    (piece,) = deep.queue.pieces()
    assert piece.first == 2 * deep.state.live.count - 2


def browse(deep: Deep) -> None:
    deep.queue.ask(ONE, Browse(1, 2 * deep.state.live.count - 100, 100))
    (answer,) = (one for one in deep.queue.heard() if isinstance(one, Browsed))
    assert not answer.ranges


def browse_all(deep: Deep) -> None:
    """From the first one on: a portion a step, until nothing is left to look at."""
    deep.queue.ask(ONE, Browse(1, 1, 100))


def purge(deep: Deep) -> None:
    deep.queue.ask(ONE, Purge(1))


@pytest.mark.parametrize(
    ("prepare", "act"),
    [
        (nothing, put),
        (nothing, get),
        (nothing, browse),
        pytest.param(nothing, browse_all, marks=pytest.mark.slow),
        pytest.param(nothing, given_up, marks=pytest.mark.slow),
        (set_aside, put_and_get),
        pytest.param(set_aside, browse, marks=pytest.mark.slow),
        pytest.param(set_aside, purge, marks=pytest.mark.slow),
        pytest.param(asked_again, one_comes, marks=pytest.mark.slow),
    ],
)
def test_the_longest_step_is_the_same(prepare: Act, act: Act) -> None:
    """Of ten times as many messages that are damaged."""
    few, many = (longest(damaged(count), prepare, act) for count in (FEW, MANY))
    assert many < GROWTH_MAX * few


def test_a_request_spans_few_of_very_many_pieces() -> None:
    """However many small frames a chunk has place for: a step that asks for four chunks would walk
    forty thousand pieces. All of them are asked for all the same, and come."""
    deep = damaged(5 * REQUEST_RANGES, batch_size=1_000_000)
    asked_again(deep)
    missing = deep.queue.replica.transfer.missing
    open_requests = requests(deep)
    asked = RangeSet()
    while open_requests:
        request = open_requests.pop(0)
        span = request.after_sequence, request.upto_sequence
        pieces = missing.within(span[0] + 1, span[1])
        assert 0 < len(pieces) <= REQUEST_RANGES
        for piece in pieces:
            asked.add(*piece)
        frames = tuple(publish(first // 2 + 1, first) for first, _ in pieces)
        chunk = FrameChunk(QUEUE, 3, request.number, *span, frames)
        deep.queue.step(RingReceived(B, chunk))
        open_requests += requests(deep)
    assert asked.count == 5 * REQUEST_RANGES
    deep.finish()
    assert not deep.queue.replica.transfer.missing


def test_a_browse_finds_what_is_whole_behind_many_that_are_damaged() -> None:
    """Asked by two at once and by one of them again, as after a new attachment: once each."""
    deep = damaged(5 * FEW)
    put(deep)
    deep.finish()
    deep.queue.attach(TWO)
    for session in (ONE, TWO, ONE):
        deep.queue.ask(session, Browse(1, 1, 100))
    deep.finish()
    whole = deep.queue.replica.state.next_sequence - 1
    for session in (ONE, TWO):
        (answer,) = (one for one in deep.queue.heard(session) if isinstance(one, Browsed))
        assert answer == Browsed(1, ((whole, whole, 1),))


def test_a_browse_of_damaged_messages_ends_with_its_handle() -> None:
    """Nobody is told, and nothing is looked at any more; and one that finds nothing says so."""
    deep = damaged(5 * FEW)
    browse_all(deep)
    deep.queue.step(SessionGone(ONE))
    deep.finish()
    deep.queue.attach(TWO)
    deep.queue.ask(TWO, Browse(1, 1, 100))
    deep.finish()
    (answer,) = (one for one in deep.queue.heard(TWO) if isinstance(one, Browsed))
    assert answer == Browsed(1, ())


def test_a_purge_ends_all_that_is_set_aside() -> None:
    """By portions, and nothing is left of it on the disk."""
    deep = damaged(3 * FEW)
    set_aside(deep)
    purge(deep)
    deep.finish()
    transfer = deep.queue.replica.transfer
    assert not deep.state.live
    assert not transfer.missing
    assert not transfer.lacking
    assert deep.queue.replica.master.dispatch.ready.count == 0
