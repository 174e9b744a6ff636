"""The rail's decisions in C do what a plain model does, event by event; its thread is in
test_rail_thread.py."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import event, given, note, settings
from hypothesis import strategies as st
from rail_frames import batches_of, data_of, frame_of, run_of
from rail_model import (
    DISK,
    EPOCH,
    FRAME,
    FULL,
    GAP,
    LARGE,
    LOGGED,
    MESSAGES_MAX,
    RAW,
    RECEIPT_BYTES_MAX,
    STOPPED,
    URGENT_BYTES,
    Batch,
    RailModel,
)

_rail: Any = pytest.importorskip("mirrorq._native._rail", reason="this system has no rail")
ffi, lib = _rail.ffi, _rail.lib

SALT = 77
HALF = 8 << 10
GROUP = 2 << 10
QUEUES = st.integers(1, 3)
PEERS = st.sampled_from((*[1] * 19, 2))
EPOCHS = st.sampled_from((*[5] * 28, 4, 6))
KINDS = (
    *["data"] * 12,
    *["write"] * 5,
    *["arm", "begin", "end", "marks", "take"] * 2,
    *["spoiled", "garbage", "disarm", "disk", "cut"],
)
SPOILS = ("crc", "queue", "epoch", "order", "cut", "zero")


def spoiled(frames: bytes, how: str, queue_id: int, epoch: int, first: int) -> bytes:
    match how:
        case "crc":
            return frames[:-8] + bytes([frames[-8] ^ 1]) + frames[-7:]
        case "queue":
            return frames + frame_of(queue_id + 1, epoch, first)
        case "epoch":
            return frames + frame_of(queue_id, epoch + 1, first)
        case "order":
            return frames + frames
        case "cut":
            return frames[:-8]
        case _:
            return frame_of(queue_id, epoch, 0)


class Rail:
    """The C, with values of Python."""

    def __init__(self, half_bytes: int = HALF, group_bytes_max: int = GROUP) -> None:
        self.rail = lib.mq_rail_new(SALT, 1, half_bytes, group_bytes_max)
        assert self.rail != ffi.NULL

    def arm(self, queue_id: int, epoch: int, after: int, peer: int, at_receipt: bool) -> int:
        return lib.mq_rail_arm(self.rail, queue_id, epoch, after, peer, at_receipt)

    def disarm(self, queue_id: int) -> int:
        return lib.mq_rail_disarm(self.rail, queue_id)

    def on_message(self, peer: int, data: bytes) -> int:
        return lib.mq_rail_on_message(self.rail, peer, data, len(data))

    def begin_write(self) -> tuple[bytes, int] | None:
        out, offset = ffi.new("uint8_t[]", 1 << 18), ffi.new("uint64_t *")
        size = lib.mq_rail_begin_write(self.rail, out, 1 << 18, offset)
        return (bytes(ffi.buffer(out, size)), offset[0]) if size else None

    def end_write(self, ok: bool) -> None:
        assert lib.mq_rail_end_write(self.rail, ok) == 0

    def next_mark(self) -> tuple[bytes, int] | None:
        out, peer = ffi.new("uint8_t[]", 32), ffi.new("uint32_t *")
        size = lib.mq_rail_next_mark(self.rail, out, peer)
        return (bytes(ffi.buffer(out, size)), peer[0]) if size else None

    def take(self, size: int) -> list[Batch] | int:
        out = ffi.new("uint8_t[]", max(size, 1))
        taken = lib.mq_rail_take(self.rail, out, size)
        return taken if taken < 0 else batches_of(bytes(ffi.buffer(out, taken)))

    @property
    def waiting(self) -> int:
        return lib.mq_rail_waiting(self.rail)

    @property
    def is_urgent(self) -> bool:
        return bool(lib.mq_rail_is_urgent(self.rail))

    @property
    def counts(self) -> Any:
        counts = ffi.new("mq_rail_counts *")
        lib.mq_rail_count(self.rail, counts)
        return counts

    def cut(self, number: int) -> None:
        assert lib.mq_rail_cut(self.rail, number) == 0

    def close(self) -> None:
        lib.mq_rail_free(self.rail)


@contextmanager
def a_rail(half_bytes: int = HALF, group_bytes_max: int = GROUP) -> Iterator[Rail]:
    rail = Rail(half_bytes, group_bytes_max)
    try:
        yield rail
    finally:
        rail.close()


# --- Event by event ---------------------------------------------------------------------------


@st.composite
def events(draw: st.DrawFn) -> tuple[Any, ...]:
    """One thing that happens; numbers of ops are relative to what is next."""
    kind = draw(st.sampled_from(KINDS))
    match kind:
        case "arm":
            return kind, draw(QUEUES), draw(EPOCHS), draw(PEERS), draw(st.integers(0, 5)) == 0
        case "data":
            step = draw(st.sampled_from((*[0] * 20, -1, -3, 1)))
            count = draw(st.sampled_from((0, 1, 1, 1, 2, 3)))
            size = draw(st.sampled_from((8, 8, 100, 900)))
            return kind, draw(QUEUES), draw(EPOCHS), draw(PEERS), step, count, size
        case "spoiled":
            return kind, draw(QUEUES), draw(st.sampled_from(SPOILS))
        case "garbage":
            return kind, draw(st.binary(max_size=60)), draw(st.booleans())
        case "disarm":
            return kind, draw(QUEUES)
        case "disk":
            return kind, draw(st.integers(0, 5)) != 0
        case "take":
            return kind, draw(st.sampled_from((0, 100, 400, *[1 << 20] * 3)))
        case "cut":
            return kind, draw(st.integers(0, 4))
    return (kind,)


class Both:
    """C and model, told the same."""

    def __init__(self, rail: Rail) -> None:
        self.rail = rail
        self.model = RailModel(SALT, 0, HALF, GROUP)
        self.next = dict.fromkeys(range(1, 4), 1)

    def same(self, name: str, *arguments: Any) -> Any:
        mine, theirs = (getattr(one, name)(*arguments) for one in (self.rail, self.model))
        assert mine == theirs, name
        return mine

    def do(self, what: tuple[Any, ...]) -> None:
        match what:
            case ("arm", queue_id, epoch, peer, at_receipt):
                after = self.next[queue_id] - 1
                event(f"arm: {self.same('arm', queue_id, epoch, after, peer, at_receipt)}")
            case ("data", queue_id, epoch, peer, step, count, size):
                first = max(self.next[queue_id] + step, 1)
                frames = run_of(queue_id, epoch, first, count, size)
                self.give(peer, data_of(queue_id, epoch, frames, first, 9))
                lane = self.model.lanes.get(queue_id)
                if lane is not None:
                    self.next[queue_id] = lane.received + 1
            case ("spoiled", queue_id, how):
                lane = self.model.lanes.get(queue_id)
                epoch, peer = (lane.epoch, lane.peer) if lane else (5, 1)
                first = self.next[queue_id]
                frames = spoiled(run_of(queue_id, epoch, first, 1), how, queue_id, epoch, first)
                self.give(peer, data_of(queue_id, epoch, frames))
            case ("garbage", data, has_head):
                self.give(1, data_of(1 << 63, 5, b"") + data if has_head else data)
            case ("write",):
                self.do(("begin",))
                self.do(("end",))
            case ("disk", ok):
                self.do(("begin",))
                self.same("end_write", ok)
            case ("end",):
                self.same("end_write", True)
            case ("begin",):
                event(f"record: {self.same('begin_write') is not None}")
            case ("marks",):
                self.compare_marks()
            case ("cut", back):
                self.same("cut", max(self.model.number - back, 0))
            case (name, argument):
                self.same(name, argument)

    def give(self, peer: int, data: bytes) -> None:
        waits = self.same("on_message", peer, data)
        event(f"message waits: {waits}")

    def compare_marks(self) -> None:
        def all_of(one: Any) -> list[Any]:
            return sorted(iter(one.next_mark, None))

        marks = all_of(self.rail)
        assert marks == all_of(self.model)
        event(f"marks: {bool(marks)}")

    def compare(self) -> None:
        assert self.rail.waiting == self.model.waiting
        assert self.rail.counts.garbage == self.model.garbage
        assert lib.mq_rail_number(self.rail.rail) == self.model.number
        assert self.rail.is_urgent == self.model.is_urgent


@settings(max_examples=150, deadline=None)
@given(st.lists(events(), min_size=20, max_size=80))
def test_it_does_what_the_model_does(happening: list[tuple[Any, ...]]) -> None:
    with a_rail() as rail:
        both = Both(rail)
        for queue_id in (1, 2):
            both.do(("arm", queue_id, 5, 1, False))
        for what in happening:
            note(str(what))
            both.do(what)
            both.compare()
        both.compare_marks()
        for batch in both.same("take", 1 << 24):
            event(f"handed over: {batch.kind}")
            if batch.kind == STOPPED:
                event(f"stopped: {batch.stable}")


# --- One by one -------------------------------------------------------------------------------


def kinds_of(batches: list[Batch] | int) -> list[tuple[int, int]]:
    """Kind, and why something has stopped."""
    assert isinstance(batches, list)
    return [(batch.kind, batch.stable if batch.kind == STOPPED else 0) for batch in batches]


def write(rail: Rail, *, ok: bool = True) -> int:
    """Write the group; returns where."""
    record = rail.begin_write()
    assert record is not None
    rail.end_write(ok)
    return record[1]


def test_a_full_log_stops_its_queues_and_goes_on_where_lmdb_has_all() -> None:
    with a_rail() as rail:
        offsets = []
        assert rail.arm(1, 5, 0, 1, False) == 0
        for lsn in range(1, 5):
            assert rail.on_message(1, data_of(1, 5, run_of(1, 5, lsn, 1))) == 0
            offsets.append(write(rail))
        assert offsets == [0, 4096, HALF, HALF + 4096]
        rail.cut(1)
        assert rail.on_message(1, data_of(1, 5, run_of(1, 5, 5, 1))) == 0
        assert rail.begin_write() is None
        assert kinds_of(rail.take(1 << 20)) == [(LOGGED, 0)] * 4 + [(STOPPED, FULL), (RAW, 0)]
        rail.cut(2)
        assert rail.arm(1, 5, 4, 1, False) == 0
        assert rail.on_message(1, data_of(1, 5, run_of(1, 5, 5, 1))) == 0
        assert write(rail) == 0


def test_a_write_that_failed_ends_all_for_good() -> None:
    with a_rail() as rail:
        for queue_id in (1, 2):
            assert rail.arm(queue_id, 5, 0, 1, False) == 0
        assert rail.on_message(1, data_of(2, 5, run_of(2, 5, 1, 1))) == 0
        write(rail, ok=False)
        stops = [(STOPPED, DISK), (RAW, 0), (STOPPED, DISK)]
        taken = rail.take(1 << 20)
        assert kinds_of(taken) == stops
        assert isinstance(taken, list)
        assert [batch.queue_id for batch in taken] == [2, 2, 1]
        assert rail.next_mark() is None
        assert rail.arm(1, 5, 0, 1, False) == 1


def test_a_group_has_its_bounds() -> None:
    with a_rail() as rail:
        assert rail.arm(1, 5, 0, 1, False) == 0
        small = len(frame_of(1, 5, 1))
        fits = GROUP // small
        assert rail.on_message(1, data_of(1, 5, run_of(1, 5, 1, fits))) == 0
        more = data_of(1, 5, run_of(1, 5, fits + 1, 1))
        assert rail.on_message(1, more) == 1
        write(rail)
        assert rail.on_message(1, more) == 0
        large = data_of(1, 5, run_of(1, 5, fits + 2, fits + 1))
        assert rail.on_message(1, large) == 1
        write(rail)
        assert rail.on_message(1, large) == 0
        assert kinds_of(rail.take(1 << 20))[-2:] == [(STOPPED, LARGE), (RAW, 0)]


def test_a_group_has_so_many_messages() -> None:
    with a_rail(group_bytes_max=64 << 10, half_bytes=1 << 20) as rail:
        assert rail.arm(1, 5, 0, 1, False) == 0
        for lsn in range(1, MESSAGES_MAX + 1):
            assert rail.on_message(1, data_of(1, 5, run_of(1, 5, lsn, 1))) == 0
        assert rail.on_message(1, data_of(1, 5, run_of(1, 5, MESSAGES_MAX + 1, 1))) == 1
        write(rail)
        assert rail.counts.messages == MESSAGES_MAX
        assert rail.counts.records == 1


def test_many_queues_share_a_record() -> None:
    with a_rail(group_bytes_max=64 << 10, half_bytes=1 << 20) as rail:
        queues = range(1000, 1000 + 7 * MESSAGES_MAX, 7)
        for queue_id in queues:
            assert rail.arm(queue_id, 5, 0, 1, False) == 0
        for queue_id in queues:
            assert rail.on_message(1, data_of(queue_id, 5, run_of(queue_id, 5, 1, 1))) == 0
        for queue_id in queues[::2]:
            assert rail.disarm(queue_id) == 0
        write(rail)
        marks = list(iter(rail.next_mark, None))
        marked = [struct.unpack_from("<Q", mark, 8)[0] for mark, _ in marks]
        assert marked == list(queues[1::2])
        taken = rail.take(1 << 20)
        assert isinstance(taken, list)
        assert [batch.queue_id for batch in taken if batch.kind == STOPPED] == list(queues[::2])


def test_at_receipt_nothing_is_written_and_python_bounds_it() -> None:
    with a_rail(group_bytes_max=1 << 20, half_bytes=4 << 20) as rail:
        assert rail.arm(1, 5, 0, 1, True) == 0
        frames = frame_of(1, 5, 1, 1 << 10)
        size = 64 + len(frames)
        fits = RECEIPT_BYTES_MAX // size
        assert rail.on_message(1, data_of(1, 5, b"")) == 0
        assert rail.is_urgent
        assert kinds_of(rail.take(1 << 10)) == [(RAW, 0)]
        assert rail.on_message(1, data_of(1, 5, frames)) == 0
        assert not rail.is_urgent, "what is marked may be late"
        for lsn in range(2, fits + 1):
            assert rail.on_message(1, data_of(1, 5, frame_of(1, 5, lsn, 1 << 10))) == 0
        assert rail.begin_write() is None
        mark = rail.next_mark()
        assert mark is not None
        assert struct.unpack_from("<Q", mark[0], 24) == (fits,)
        assert rail.on_message(1, data_of(1, 5, frame_of(1, 5, fits + 1, 1 << 10))) == 0
        assert kinds_of(rail.take(8 << 20)) == [(RAW, 0)] * fits + [(STOPPED, LARGE), (RAW, 0)]


@pytest.mark.parametrize("count", [URGENT_BYTES // (64 + 1120), URGENT_BYTES // (64 + 1120) + 1])
def test_much_that_waits_is_urgent(count: int) -> None:
    with a_rail(group_bytes_max=64 << 10, half_bytes=4 << 20) as rail:
        assert rail.arm(1, 5, 0, 1, False) == 0
        for lsn in range(1, count + 1):
            frame = frame_of(1, 5, lsn, 1024)
            assert len(frame) == 1120
            assert rail.on_message(1, data_of(1, 5, frame)) == 0
            write(rail)
        assert rail.is_urgent == (count * (64 + 1120) > URGENT_BYTES)
        rail.take(1 << 20)
        assert not rail.is_urgent


@pytest.mark.parametrize(
    ("message", "why"),
    [
        (data_of(1, 4, run_of(1, 4, 1, 1)), EPOCH),
        (data_of(1, 5, run_of(1, 5, 2, 1)), GAP),
        (data_of(1, 5, spoiled(run_of(1, 5, 1, 1), "crc", 1, 5, 1)), FRAME),
    ],
)
def test_what_is_unusual_stops_the_queue_and_comes_behind_what_was_taken(
    message: bytes, why: int
) -> None:
    with a_rail() as rail:
        assert rail.arm(1, 5, 0, 1, False) == 0
        assert rail.on_message(1, message) == 0
        assert rail.arm(1, 5, 0, 1, False) == 1, "it was not taken yet"
        assert kinds_of(rail.take(1 << 20)) == [(STOPPED, why), (RAW, 0)]
        assert rail.arm(1, 5, 0, 1, False) == 0
