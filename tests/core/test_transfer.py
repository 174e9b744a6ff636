"""R7: what a joining member asks for, and which answers count."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

import pytest
from msgspec.structs import replace

from harness.tiny_pages import tiny_pages
from mirrorq.containers.ranges import RangeSet
from mirrorq.protocol.effects import ReplicaEffects
from mirrorq.protocol.ops import AckOp, Entry
from mirrorq.protocol.ring import (
    FetchFrames,
    FrameChunk,
    RingMessage,
    TransferRequest,
    TransferState,
)
from mirrorq.replication import donor
from mirrorq.replication.donor import PARTS_AHEAD, Donor
from mirrorq.replication.state.pages import Snapshot
from mirrorq.replication.state.queue_state import QueueState
from mirrorq.replication.transfer import (
    AGAIN_MS,
    ANSWER_FACTOR,
    FETCH_RETRY_MS,
    FETCHES_MAX,
    RETRY_MS,
    Transfer,
)

from .entries import QUEUE, C, op, publish, view
from .random_ops import apply_one

VIEW = view(2, "ab", "c")


def _state(count: int = 3) -> QueueState:
    state = QueueState()
    for lsn in range(1, count + 1):
        state.apply(publish(lsn, lsn))
    return state


def _pursue(
    transfer: Transfer,
    now_ms: int = 0,
    has_state: bool = True,
    *,
    may_fetch: bool = True,
    count_max: int = 1000,
) -> list[RingMessage]:
    return [message for _, message in _sent(transfer, now_ms, has_state, may_fetch, count_max)]


def _sent(
    transfer: Transfer,
    now_ms: int = 0,
    has_state: bool = True,
    may_fetch: bool = True,
    count_max: int = 1000,
) -> list[tuple[str, RingMessage]]:
    out = ReplicaEffects()
    transfer.pursue(now_ms, VIEW, has_state, may_fetch, count_max, out)
    return [(to.node, message) for to, message in out.send]


def _asked_state() -> tuple[Transfer, int]:
    transfer = Transfer(C, QUEUE, 1 << 20)
    (request,) = _pursue(transfer, has_state=False)
    assert isinstance(request, TransferRequest)
    return transfer, request.number


def _lacking(first: int, last: int, count: int = 3) -> Transfer:
    """A copy with the state of `count` messages that lacks some of them."""
    transfer = Transfer(C, QUEUE, 1 << 20)
    transfer.compute_missing(_state(count), RangeSet([(first, last)]))
    return transfer


def _asked_frames(first: int = 1) -> tuple[Transfer, FetchFrames]:
    transfer = _lacking(first, 3)
    (request,) = _pursue(transfer)
    assert isinstance(request, FetchFrames)
    return transfer, request


def _spans(requests: list[RingMessage]) -> list[tuple[int, int]]:
    """First and last sequence of each request for frames."""
    found = []
    for request in requests:
        assert isinstance(request, FetchFrames)
        found.append((request.after_sequence + 1, request.upto_sequence))
    return found


def _answer(transfer: Transfer, request: RingMessage, *entries: Entry, upto: int = 0) -> None:
    """A chunk for this request comes, and is written at once."""
    assert isinstance(request, FetchFrames)
    upto = upto or request.upto_sequence
    chunk = FrameChunk(QUEUE, 2, request.number, request.after_sequence, upto, entries)
    taken = transfer.accept_chunk(0, chunk, 2, _state(1000))
    assert taken is not None
    if taken:
        transfer.on_writing(1, taken)
        transfer.on_written(1)


def test_a_mirror_is_asked_before_the_master() -> None:
    """The master is spared; who does not answer is not asked again at once."""
    transfer = Transfer(C, QUEUE, 1 << 20)
    assert [to for to, _ in _sent(transfer, 0, False)] == ["b"]
    assert _pursue(transfer, RETRY_MS - 1, has_state=False) == []
    assert len(_pursue(transfer, RETRY_MS, has_state=False)) == 1


def _given(state: QueueState, number: int) -> TransferState:
    """A state that is small enough for one part."""
    request = TransferRequest(QUEUE, 2, number, 1)
    given = Donor().answer(0, C, request, state)
    assert given is not None
    assert given.is_last
    return given


def test_a_state_is_taken_once_under_its_number_and_epoch() -> None:
    """Answers to another number, of another epoch, or that come again do not count."""
    transfer, number = _asked_state()
    right = _given(_state(), number)
    for wrong in (replace(right, number=number - 1), replace(right, epoch=1)):
        assert transfer.accept_state(0, wrong, 2, 0) is None
    state = transfer.accept_state(0, right, 2, 0)
    assert state is not None
    assert state.encode() == _state().encode()
    assert transfer.accept_state(0, right, 2, 0) is None


def test_a_state_below_the_own_log_is_dropped_and_asked_for_again() -> None:
    """S may not be below what the joiner has."""
    transfer, number = _asked_state()
    early = _given(_state(), number)
    assert transfer.accept_state(0, early, 2, 4) is None
    assert _pursue(transfer, AGAIN_MS - 1, has_state=False) == []
    assert len(_pursue(transfer, AGAIN_MS, has_state=False)) == 1


def test_a_damaged_state_is_asked_for_elsewhere() -> None:
    """Bytes that are no state change nothing; another member is asked."""
    transfer, number = _asked_state()
    assert transfer.accept_state(0, replace(_given(_state(), number), state=b"?"), 2, 0) is None
    assert len(_pursue(transfer, RETRY_MS, has_state=False)) == 1


def test_only_what_is_missing_is_fetched() -> None:
    """A delta: what lies outside of the lacking ranges is on the own disk."""
    transfer, request = _asked_frames(first=3)
    assert list(transfer.missing) == [(3, 3)]
    assert (request.after_sequence, request.upto_sequence) == (2, 3)


def test_a_copy_is_complete_when_its_frames_are_written() -> None:
    """R7: frames in a write that is on its way are still missing."""
    transfer, request = _asked_frames()
    entries = (publish(1, 1), publish(2, 2), publish(3, 3))
    chunk = FrameChunk(QUEUE, 2, request.number, 0, 3, entries)
    assert transfer.accept_chunk(0, chunk, 2, _state()) == entries
    transfer.on_writing(7, entries)
    assert transfer.take_lacking() == ()
    transfer.on_written(6)
    assert not transfer.is_complete
    transfer.on_written(7)
    assert transfer.is_complete


def test_a_partial_chunk_moves_the_mark_and_the_rest_is_asked_for() -> None:
    """What is noted on disk as lacking holds every frame that has not come."""
    transfer, request = _asked_frames()
    chunk = FrameChunk(QUEUE, 2, request.number, 0, 1, (publish(1, 1),))
    taken = transfer.accept_chunk(0, chunk, 2, _state())
    assert taken is not None
    transfer.on_writing(1, taken)
    assert transfer.take_lacking() == ((2, 3),)
    transfer.on_written(1)
    (again,) = _pursue(transfer)
    assert isinstance(again, FetchFrames)
    assert (again.after_sequence, again.upto_sequence) == (1, 3)


def test_a_chunk_of_a_cancelled_transfer_is_dropped() -> None:
    """A new epoch voids what was asked in the one before."""
    transfer, request = _asked_frames()
    transfer.forget()
    chunk = FrameChunk(QUEUE, 2, request.number, 0, 3, (publish(1, 1),))
    assert transfer.accept_chunk(0, chunk, 2, _state()) is None
    assert list(transfer.missing) == [(1, 3)]


def test_a_frame_of_another_history_is_not_taken() -> None:
    """Frames are named by (epoch, lsn): the same lsn of another epoch is another op."""
    transfer, request = _asked_frames()
    chunk = FrameChunk(QUEUE, 2, request.number, 0, 3, (publish(1, 1, epoch=9),))
    assert transfer.accept_chunk(0, chunk, 2, _state()) == ()


def test_a_late_body_revives_nothing() -> None:
    """Natural drain: what was acked before its body came is neither missing nor live."""
    transfer, request = _asked_frames()
    state = _state()
    transfer.on_ended(state.apply(op(4, AckOp(((1, 3),)))))
    assert transfer.is_complete
    chunk = FrameChunk(QUEUE, 2, request.number, 0, 3, (publish(1, 1),))
    assert transfer.accept_chunk(0, chunk, 2, state) == ()
    assert not state.live


def test_a_copy_that_lacks_nothing_stays_so() -> None:
    """The last hole drains: nothing is noted as lacking, so the next start, with whatever came
    along the ring since, misses nothing."""
    transfer = _lacking(1, 2, count=3)
    transfer.take_lacking()
    state = _state()
    transfer.on_ended(state.apply(op(4, AckOp(((1, 1),)))))
    assert transfer.take_lacking() is None
    assert list(transfer.missing) == [(2, 2)]
    transfer.on_ended(state.apply(op(5, AckOp(((2, 2),)))))
    assert transfer.is_complete
    assert transfer.take_lacking() == ()
    state.apply(publish(6, 4))
    again = Transfer(C, QUEUE, 1 << 20)
    again.compute_missing(state, RangeSet())
    assert again.is_complete
    transfer.on_ended(())
    assert transfer.take_lacking() is None


def test_what_came_along_the_ring_is_not_missing_after_a_restart() -> None:
    """A joiner with a hole at 1 has 2 and 3: only 1 is missing when it starts again."""
    assert list(_lacking(1, 1).missing) == [(1, 1)]


def test_who_may_not_fetch_asks_for_the_state_alone() -> None:
    """ha-sync-mode manual: bodies are not asked for until that is allowed."""
    transfer = Transfer(C, QUEUE, 1 << 20)
    assert len(_pursue(transfer, has_state=False, may_fetch=False)) == 1
    transfer = _lacking(1, 3)
    assert _pursue(transfer, may_fetch=False) == []
    assert _spans(_pursue(transfer)) == [(1, 3)]


def test_several_requests_are_open_at_once() -> None:
    """Once the size of messages is known, spans that follow each other are asked for together,
    and no request names more messages than it may."""
    transfer = _lacking(1, 1000, count=1000)
    (probe,) = _pursue(transfer, count_max=10)
    assert _spans([probe]) == [(1, 10)]
    _answer(transfer, probe, *(publish(n, n) for n in range(1, 11)))
    requests = _pursue(transfer, count_max=10)
    assert _spans(requests) == [(11, 20), (21, 30), (31, 40), (41, 50)]
    assert len(requests) == FETCHES_MAX
    assert [r.is_continued for r in requests if isinstance(r, FetchFrames)] == [True] * 4
    _answer(transfer, requests[2], *(publish(n, n) for n in range(31, 41)))
    assert transfer.take_lacking() == ((11, 30), (41, 1000))
    assert _spans(_pursue(transfer, count_max=10)) == [(51, 60)]


def test_what_is_on_the_way_is_bounded() -> None:
    """However large messages are and however many are missing: so many requests, of so many
    bytes each at most, are open, and no more while the answers are being written."""
    transfer = Transfer(C, QUEUE, 4096)
    transfer.compute_missing(_state(1000), RangeSet([(1, 1000)]))
    (probe,) = _pursue(transfer)
    _answer(transfer, probe, publish(1, 1), upto=1)
    requests = [probe, *_pursue(transfer), *_pursue(transfer), *_pursue(transfer, 10)][1:]
    assert len(requests) == FETCHES_MAX
    assert {r.bytes_max for r in requests if isinstance(r, FetchFrames)} == {ANSWER_FACTOR * 4096}


def test_what_an_answer_left_out_is_asked_for_next() -> None:
    """The donor stops where its answer is large enough."""
    transfer = _lacking(1, 1000, count=1000)
    (probe,) = _pursue(transfer, count_max=10)
    _answer(transfer, probe, *(publish(n, n) for n in range(1, 5)), upto=4)
    requests = _pursue(transfer, count_max=10)
    assert _spans(requests)[:2] == [(5, 10), (11, 20)]


def test_what_a_pass_left_over_is_asked_for_in_the_next() -> None:
    """A frame that the donor did not have is asked for again, at once while others come, after
    a moment when nothing does."""
    transfer, request = _asked_frames()
    _answer(transfer, request, publish(1, 1), publish(3, 3))
    (again,) = _pursue(transfer)
    assert _spans([again]) == [(2, 2)]
    _answer(transfer, again)
    assert _pursue(transfer) == []
    assert _pursue(transfer, AGAIN_MS - 1) == []
    assert _spans(_pursue(transfer, AGAIN_MS)) == [(2, 2)]


def test_a_silent_donor_is_replaced() -> None:
    """Everything that it was asked for is asked of the next member, the master last."""
    transfer = _lacking(1, 3)
    asked = []
    for now_ms in (0, FETCH_RETRY_MS - 1, *(n * FETCH_RETRY_MS for n in (1, 2, 3))):
        out = ReplicaEffects()
        transfer.pursue(now_ms, view(2, "abd", "c"), True, True, 10, out)
        asked += [(now_ms, to.node, *_spans([message])) for to, message in out.send]
    assert asked == [
        (0, "d", (1, 3)),
        (FETCH_RETRY_MS, "b", (1, 3)),
        (2 * FETCH_RETRY_MS, "a", (1, 3)),
        (3 * FETCH_RETRY_MS, "d", (1, 3)),
    ]


def test_a_lost_link_voids_what_was_asked_over_it() -> None:
    """The answer may be gone: it is not waited for. Another node's link does not matter."""
    transfer, request = _asked_frames()
    transfer.on_link_lost("a")
    assert _pursue(transfer) == []
    transfer.on_link_lost("b")
    (again,) = _pursue(transfer)
    assert _spans([again]) == [(1, 3)]
    chunk = FrameChunk(QUEUE, 2, request.number, 0, 3, (publish(1, 1),))
    assert transfer.accept_chunk(0, chunk, 2, _state()) is None


def test_frames_in_a_write_are_missing_and_not_asked_for_again() -> None:
    """Neither by the same pass nor by the next, and a new state does not take them for there."""
    transfer, request = _asked_frames()
    entries = (publish(1, 1), publish(2, 2), publish(3, 3))
    chunk = FrameChunk(QUEUE, 2, request.number, 0, 3, entries)
    taken = transfer.accept_chunk(0, chunk, 2, _state())
    assert taken is not None
    transfer.on_writing(7, taken)
    assert _pursue(transfer) == []
    transfer.compute_missing(_state(), transfer.lacking.copy())
    assert not transfer.is_complete
    assert _pursue(transfer) == []
    transfer.on_written(7)
    assert transfer.is_complete


def test_a_limit_on_the_pace() -> None:
    """So many bytes a second on average, asked for in small pieces: ten seconds' worth of
    messages takes ten seconds."""
    transfer = Transfer(C, QUEUE, 1 << 20, bytes_per_s=40_000)
    count = 4000
    state = QueueState()
    state.apply(publish(1, 1, count=count))
    transfer.compute_missing(state, RangeSet([(1, count)]))
    now_ms = came = 0
    while not transfer.is_complete:
        out = ReplicaEffects()
        wake = transfer.pursue(now_ms, VIEW, True, True, 1000, out)
        for _, request in out.send:
            assert isinstance(request, FetchFrames)
            assert request.bytes_max <= 2 * 5000
            first, last = request.after_sequence + 1, request.upto_sequence
            entries = tuple(_sized(publish(1, n), 100) for n in range(first, last + 1))
            came += sum(len(entry.frame) for entry in entries)
            chunk = FrameChunk(QUEUE, 2, request.number, first - 1, last, entries)
            taken = transfer.accept_chunk(now_ms, chunk, 2, state)
            assert taken is not None
            transfer.on_writing(1, taken)
            transfer.on_written(1)
        if not out.send:
            assert wake is not None
            now_ms = wake
    assert 9000 <= now_ms <= 10_000
    assert came == 400_000


def _sized(entry: Entry, size: int) -> Entry:
    return replace(entry, frame=bytes(size))


def _deep(count: int) -> QueueState:
    """A state of many pages: every second message was acked."""
    state = _state(2 * count)
    state.apply(op(2 * count + 1, AckOp(tuple((2 * n, 2 * n) for n in range(1, count + 1)))))
    return state


@pytest.fixture
def tiny() -> Iterator[None]:
    """Parts of a page or two, of a few messages each."""
    with tiny_pages(part_bytes=100):
        yield


def _parted(count: int) -> list[Any]:
    """All parts of a state that a donor gave under number 7, while the queue went on."""
    giver, state = Donor(), _deep(count)
    parts: list[Any] = []
    while not parts or not parts[-1].is_last:
        request = TransferRequest(QUEUE, 2, 7, len(parts) + 1)
        parts.append(giver.answer(0, C, request, state))
        state.apply(publish(state.applied + 1, state.next_sequence))
        state.apply(op(state.applied + 1, AckOp(((state.live.first, state.live.first + 1),))))
    assert not state.snapshots
    return parts


def test_a_state_comes_in_parts_below_a_bound(tiny: None) -> None:
    """It is the one of the first part, though more was applied meanwhile; a few are asked for
    ahead, none twice, and the donor keeps nothing of it behind the last one."""
    parts = _parted(40)
    assert len(parts) > PARTS_AHEAD
    assert all(len(part.state) <= 4 * donor.PART_BYTES for part in parts)
    transfer, number = _asked_state()
    disk = Disk()
    asked, state = [1], None
    for part in parts:
        assert state is None
        answer = replace(part, number=number)
        state = transfer.accept_state(0, answer, 2, 0)
        if state is None:
            disk.write(transfer)
            asked += [request.part for request in _pursue(transfer, has_state=False)]  # type: ignore[union-attr]
            assert len(asked) <= part.part + PARTS_AHEAD
    assert asked == list(range(1, len(asked) + 1))
    assert len(asked) >= len(parts)
    assert state is not None
    assert state.encode() == _deep(40).encode()


@pytest.mark.parametrize("wrong", ["skipped", "of another state", "changed"])
def test_a_part_that_does_not_follow_ends_the_transfer(tiny: None, wrong: str) -> None:
    """Nothing of it is taken; another member is asked, under another number."""
    parts, others = _parted(40), _parted(41)
    transfer, number = _asked_state()
    assert transfer.accept_state(0, replace(parts[0], number=number), 2, 0) is None
    second = {
        "skipped": parts[2],
        "of another state": others[1],
        "changed": replace(parts[1], state=bytes(len(parts[1].state))),
    }[wrong]
    assert transfer.accept_state(0, replace(second, number=number), 2, 0) is None
    for part in parts[1:]:
        assert transfer.accept_state(0, replace(part, number=number), 2, 0) is None
    (request,) = _pursue(transfer, RETRY_MS, has_state=False)
    assert isinstance(request, TransferRequest)
    assert request.part == 1
    assert request.number != number


def test_a_part_that_comes_again_counts_once(tiny: None) -> None:
    """The second time it is nothing."""
    parts = _parted(40)
    transfer, number = _asked_state()
    state = None
    for part in parts:
        for _ in range(2):
            state = state or transfer.accept_state(0, replace(part, number=number), 2, 0)
    assert state is not None
    assert state.encode() == _deep(40).encode()


def test_a_donor_gives_parts_of_what_it_keeps_only(tiny: None) -> None:
    """Not under another number, not out of turn, not in another epoch, not for ever."""
    state = _deep(40)

    def part(giver: Donor, number: int, part: int) -> object:
        return giver.answer(0, C, TransferRequest(QUEUE, 2, number, part), state)

    giver = Donor()
    assert part(giver, 7, 2) is None
    assert part(giver, 7, 1) is not None
    assert part(giver, 8, 2) is None
    assert part(giver, 7, 3) is None
    giver.on_tick(donor.KEPT_MS - 1)
    assert part(giver, 7, 2) is not None
    giver.on_tick(donor.KEPT_MS)
    assert part(giver, 7, 3) is None
    assert part(giver, 9, 1) is not None
    giver.forget()
    assert part(giver, 9, 2) is None
    assert not state.snapshots


def test_no_more_parts_are_asked_for_than_may_be_in_memory(tiny: None) -> None:
    """The next ones are when the first are on the disk; a disk that takes its time is no reason to
    ask another member."""
    parts = _parted(40)
    transfer, number = _asked_state()
    assert transfer.accept_state(0, replace(parts[0], number=number), 2, 0) is None
    asked = _pursue(transfer, has_state=False)
    for part in parts[1 : len(asked) + 1]:
        assert transfer.accept_state(0, replace(part, number=number), 2, 0) is None
    assert len(asked) + 1 == PARTS_AHEAD < len(parts)
    assert _pursue(transfer, 100 * RETRY_MS, has_state=False) == []
    assert transfer.is_receiving
    Disk().write(transfer, 100 * RETRY_MS)
    again = _pursue(transfer, 101 * RETRY_MS - 1, has_state=False)
    assert [request.part for request in again] == [5, 6, 7, 8]  # type: ignore[union-attr]
    assert {request.number for request in again} == {number}  # type: ignore[union-attr]


class Disk:
    """Takes pages of states that come."""

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}

    def write(self, transfer: Transfer, now_ms: int = 0) -> None:
        number, pages = transfer.take_pages()
        self._counts[number] = self._counts.get(number, 0) + len(pages)
        transfer.on_staged(now_ms, self._counts[number])


def _brought(own: QueueState, state: QueueState, chance: Random) -> tuple[QueueState | None, int]:
    """What a copy that has one state is given of another, and how many bytes came, while both the
    donor and (where it still may) the joiner go on."""
    joiner, giver, disk = Transfer(C, QUEUE, 1 << 20), Donor(), Disk()
    joiner.compute_missing(own, RangeSet())
    size, now_ms = 0, 0
    while now_ms < 100 * RETRY_MS:
        requests = _pursue(joiner, now_ms, has_state=False)
        now_ms += 0 if requests else RETRY_MS
        for request in requests:
            assert isinstance(request, TransferRequest)
            answer = giver.answer(now_ms, C, request, state)
            if answer is None:
                continue
            size += len(answer.state)
            found = joiner.accept_state(now_ms, answer, 2, 0)
            disk.write(joiner, now_ms)
            if found is not None:
                return found, size
        if chance.random() < 0.2:
            apply_one(chance, state)
        if chance.random() < 0.02:
            apply_one(chance, own)
    return None, size


@pytest.mark.parametrize("seed", range(40))
def test_a_copy_that_has_some_of_a_state_is_given_the_rest(tiny: None, seed: int) -> None:
    """Whatever it has, and however its pages are cut: what it stands on then is the donor's."""
    chance, own = Random(seed), QueueState()
    for _ in range(chance.randint(0, 80)):
        apply_one(chance, own)
    state = QueueState.decode(own.encode())
    for _ in range(chance.choice((0, 1, 5, 60))):
        apply_one(chance, state)
    for one in chance.sample((own, state), chance.randint(0, 2)):
        wanted = one.changed_pages()
        snapshot = Snapshot(one, one.applied, wanted, one.tables, is_awaited=True)
        assert len([*iter(snapshot.next_page, None)]) >= len(wanted)
    known: dict[int, bytes] = {}
    found, _ = _brought(own, state, Recorded(chance, state, known))
    assert found is not None
    assert found.encode() == known[found.applied]


class Recorded(Random):
    """Chance that notes what a state was before it goes on."""

    def __init__(self, chance: Random, state: QueueState, known: dict[int, bytes]) -> None:
        super().__init__(chance.random())
        self._state, self._known = state, known

    def random(self) -> float:
        self._known.setdefault(self._state.applied, self._state.encode())
        return super().random()


def test_what_a_copy_has_is_not_sent_again(tiny: None) -> None:
    """Of many pages two are others: little more than these comes."""
    own, state = _deep(400), _deep(400)
    _, whole = _brought(QueueState(), state, Random(0))
    state.apply(publish(state.applied + 1, state.next_sequence))
    state.apply(op(state.applied + 1, AckOp(((401, 401),))))
    wanted = state.encode()
    for one in (own, state):
        assert [*iter(_all_of(one).next_page, None)]
    found, size = _brought(own, state, Still())
    assert found is not None
    assert found.encode() == wanted
    assert size < whole / 5


class Still(Random):
    """Nothing happens by chance."""

    def random(self) -> float:
        return 1.0


def _all_of(state: QueueState) -> Snapshot:
    wanted = state.changed_pages()
    return Snapshot(state, state.applied, wanted, state.tables, is_awaited=True)


def test_a_page_that_is_no_more_as_it_was_said_ends_the_transfer(tiny: None) -> None:
    """What the donor took for the same has changed here meanwhile: nothing of it is taken."""
    own, state = _deep(40), _deep(40)
    for one in (own, state):
        assert [*iter(_all_of(one).next_page, None)]
    joiner, giver = Transfer(C, QUEUE, 1 << 20), Donor()
    joiner.compute_missing(own, RangeSet())
    (request,) = _pursue(joiner, has_state=False)
    assert isinstance(request, TransferRequest)
    answer = giver.answer(0, C, request, state)
    assert answer is not None
    own.apply(op(own.applied + 1, AckOp(((1, 1),))))
    assert joiner.accept_state(0, answer, 2, 0) is None
    assert _pursue(joiner, RETRY_MS - 1, has_state=False) == []
    (again,) = _pursue(joiner, RETRY_MS, has_state=False)
    assert isinstance(again, TransferRequest)
    assert (again.part, again.number != request.number) == (1, True)
