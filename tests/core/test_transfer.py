"""R7: what a joining member asks for, and which answers count."""

from __future__ import annotations

from mirrorq.effects import ReplicaEffects
from mirrorq.messages import (
    AckOp,
    FetchFrames,
    FrameChunk,
    TransferRequest,
    TransferState,
)
from mirrorq.queue_state import QueueState
from mirrorq.transfer import AGAIN_MS, COMPLETE, RETRY_MS, Transfer

from .entries import QUEUE, C, op, publish, view

VIEW = view(2, "ab", "c")


def _state(count: int = 3) -> QueueState:
    state = QueueState()
    for lsn in range(1, count + 1):
        state.apply(publish(lsn, lsn))
    return state


def _pursue(transfer: Transfer, now_ms: int = 0, has_state: bool = True) -> list[object]:
    out = ReplicaEffects()
    transfer.pursue(now_ms, VIEW, has_state, out)
    return [message for _, message in out.send]


def _asked_state() -> tuple[Transfer, int]:
    transfer = Transfer(C, QUEUE, 1 << 20)
    (request,) = _pursue(transfer, has_state=False)
    assert isinstance(request, TransferRequest)
    return transfer, request.number


def _asked_frames(complete: int = 0) -> tuple[Transfer, FetchFrames]:
    transfer = Transfer(C, QUEUE, 1 << 20)
    transfer.begin(_state(), complete)
    (request,) = _pursue(transfer)
    assert isinstance(request, FetchFrames)
    return transfer, request


def test_a_mirror_is_asked_before_the_master() -> None:
    """The master is spared; who does not answer is not asked again at once."""
    transfer = Transfer(C, QUEUE, 1 << 20)
    out = ReplicaEffects()
    transfer.pursue(0, VIEW, False, out)
    assert [to.node for to, _ in out.send] == ["b"]
    assert _pursue(transfer, RETRY_MS - 1, has_state=False) == []
    assert len(_pursue(transfer, RETRY_MS, has_state=False)) == 1


def test_a_state_is_taken_once_under_its_number_and_epoch() -> None:
    """Answers to another number, of another epoch, or that come again do not count."""
    transfer, number = _asked_state()
    data = _state().encode()
    for wrong in (
        TransferState(QUEUE, 2, number - 1, 3, data),
        TransferState(QUEUE, 1, number, 3, data),
    ):
        assert transfer.accept_state(0, wrong, 2, 0) is None
    right = TransferState(QUEUE, 2, number, 3, data)
    state = transfer.accept_state(0, right, 2, 0)
    assert state is not None
    assert state.encode() == data
    assert transfer.accept_state(0, right, 2, 0) is None


def test_a_state_below_the_own_log_is_dropped_and_asked_for_again() -> None:
    """S may not be below what the joiner has."""
    transfer, number = _asked_state()
    early = TransferState(QUEUE, 2, number, 3, _state().encode())
    assert transfer.accept_state(0, early, 2, 4) is None
    assert _pursue(transfer, AGAIN_MS - 1, has_state=False) == []
    assert len(_pursue(transfer, AGAIN_MS, has_state=False)) == 1


def test_a_damaged_state_is_asked_for_elsewhere() -> None:
    """Bytes that are no state change nothing; another member is asked."""
    transfer, number = _asked_state()
    assert transfer.accept_state(0, TransferState(QUEUE, 2, number, 3, b"?"), 2, 0) is None
    out = ReplicaEffects()
    transfer.pursue(RETRY_MS, VIEW, False, out)
    assert len(out.send) == 1


def test_only_what_is_missing_is_fetched() -> None:
    """A delta: messages up to the complete sequence are on the own disk."""
    transfer, request = _asked_frames(complete=2)
    assert list(transfer.missing) == [(3, 3)]
    assert (request.after_sequence, request.upto_sequence) == (2, 3)


def test_a_copy_is_complete_when_its_frames_are_written() -> None:
    """R7: frames in a write that is on its way are still missing."""
    transfer, request = _asked_frames()
    entries = (publish(1, 1), publish(2, 2), publish(3, 3))
    chunk = FrameChunk(QUEUE, 2, request.number, 0, 3, entries)
    assert transfer.accept_chunk(0, chunk, 2, _state()) == entries
    assert transfer.on_writing(7, entries) == COMPLETE
    transfer.on_written(6)
    assert not transfer.is_complete
    transfer.on_written(7)
    assert transfer.is_complete


def test_a_partial_chunk_moves_the_mark_and_the_rest_is_asked_for() -> None:
    """The mark on disk never passes a frame that has not come."""
    transfer, request = _asked_frames()
    chunk = FrameChunk(QUEUE, 2, request.number, 0, 1, (publish(1, 1),))
    taken = transfer.accept_chunk(0, chunk, 2, _state())
    assert taken is not None
    assert transfer.on_writing(1, taken) == 1
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
