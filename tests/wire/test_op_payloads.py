"""Payloads of ops and entries: what comes out is what went in, and nothing else is taken."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirrorq.errors import ProtocolError
from mirrorq.protocol.codec import OpCodec
from mirrorq.protocol.ops import (
    FLAG_STAGED,
    FLAG_STEP,
    AckOp,
    DiscardOp,
    DropHeadOp,
    DueOp,
    ExpiryOp,
    HorizonOp,
    HorizonsOp,
    IdleOp,
    OpKind,
    OutboxDoneOp,
    OutboxOp,
    PauseOp,
    Payload,
    ProducerOp,
    PromotedOp,
    PurgeOp,
    RefusalOp,
    ReturnLaterOp,
    ReturnOp,
    UniqueWindowOp,
    UnknownOp,
)
from mirrorq.protocol.staged import AbortOp, AskOp, CommitOp, SealOp, Stage, Staging
from mirrorq.wire import frames, ops

NUMBER_MAX = 2**63 - 1

numbers = st.integers(0, NUMBER_MAX)
ranges = st.lists(
    st.tuples(st.integers(1, NUMBER_MAX), st.integers(1, NUMBER_MAX)).map(
        lambda pair: (min(pair), max(pair))
    ),
    max_size=5,
).map(tuple)
short_ranges = st.lists(
    st.tuples(st.integers(1, 2**40), st.integers(0, 99)).map(lambda p: (p[0], sum(p))), max_size=5
).map(tuple)
names = st.text(min_size=1, max_size=20)
small = st.integers(0, 2**40)
winners = st.lists(st.tuples(numbers, numbers, numbers, numbers), max_size=3).map(tuple)
queues = st.lists(st.integers(1, NUMBER_MAX), max_size=3).map(tuple)
staging = st.one_of(
    st.builds(SealOp, names, numbers, names, winners, st.integers(1, NUMBER_MAX)),
    st.builds(CommitOp, names, numbers, names, winners, small, small, queues, st.booleans()),
    st.builds(AbortOp, names, numbers, names, names, queues, st.booleans()),
    st.builds(AskOp, names, numbers, names, st.integers(1, NUMBER_MAX)),
)
stages = st.builds(Stage, names, numbers, names, numbers, numbers, numbers)
payloads: st.SearchStrategy[Payload] = st.one_of(
    st.builds(AckOp, ranges),
    st.builds(ReturnOp, ranges),
    st.builds(HorizonOp, numbers),
    st.builds(HorizonsOp, st.lists(st.tuples(st.integers(0, 31), numbers), max_size=4).map(tuple)),
    st.builds(IdleOp, numbers),
    st.builds(UniqueWindowOp, numbers),
    st.builds(PauseOp, st.booleans()),
    st.builds(DueOp, short_ranges, st.integers(0, 2**40), ranges),
    st.builds(ReturnLaterOp, ranges, numbers),
    st.builds(
        PromotedOp,
        st.sampled_from(["clean", "unclean", "cold"]),
        numbers,
        numbers,
        ranges,
        numbers,
    ),
    st.builds(RefusalOp, st.text(max_size=20)),
    st.builds(PurgeOp, ranges),
    st.builds(DropHeadOp, ranges),
    st.builds(ExpiryOp, ranges),
    st.builds(DiscardOp, ranges, st.sampled_from(["rejected", "delivery_limit"])),
    st.builds(
        OutboxOp,
        ranges,
        st.integers(1, NUMBER_MAX),
        st.sampled_from(["expired", "maxlen", "rejected", "delivery_limit", "moved"]),
    ),
    st.builds(
        OutboxDoneOp,
        st.integers(1, NUMBER_MAX),
        st.integers(1, NUMBER_MAX),
        st.sampled_from(["confirmed", "cycle", "refused", "deleted"]),
    ),
    st.builds(ProducerOp, st.text(max_size=20), st.lists(numbers, max_size=4).map(tuple)),
    staging,
)
KINDS = {
    AckOp: OpKind.ACK,
    ReturnOp: OpKind.RETURN,
    HorizonOp: OpKind.HORIZON,
    HorizonsOp: OpKind.HORIZONS,
    IdleOp: OpKind.IDLE,
    UniqueWindowOp: OpKind.UNIQUE_WINDOW,
    PauseOp: OpKind.PAUSE,
    DueOp: OpKind.DUE,
    ReturnLaterOp: OpKind.RETURN_LATER,
    PromotedOp: OpKind.PROMOTED,
    RefusalOp: OpKind.REFUSAL,
    PurgeOp: OpKind.PURGE,
    DropHeadOp: OpKind.DROP_HEAD,
    ExpiryOp: OpKind.EXPIRY,
    DiscardOp: OpKind.DISCARD,
    OutboxOp: OpKind.OUTBOX,
    OutboxDoneOp: OpKind.OUTBOX_DONE,
    ProducerOp: OpKind.PRODUCER,
    SealOp: OpKind.SEAL,
    CommitOp: OpKind.COMMIT,
    AbortOp: OpKind.ABORT,
    AskOp: OpKind.ASK,
}
STAMP = {"queue_id": 7, "epoch": 2, "lsn": 9, "timestamp_us": 1_000}


@given(payloads)
def test_round_trip(payload: Payload) -> None:
    """Every op comes back equal, through the kind of its class."""
    assert ops.decode_payload(KINDS[type(payload)], ops.encode_payload(payload)) == payload


@given(payloads)
def test_entries_are_read_as_they_were_made(payload: Payload) -> None:
    """What the master makes is what a mirror reads from the bytes, also out of a run."""
    made = ops.FrameCodec().op(payload, **STAMP, count=3, producer=4, first_number=5, settled=4)
    assert made.header.kind == KINDS[type(payload)]
    assert (made.lsn, made.epoch, made.payload) == (9, 2, payload)
    (view,) = frames.split_run(made.frame)
    for frame in (made.frame, view):
        read = ops.make_entry(frame)
        assert (read.header, read.payload, read.frame) == (made.header, payload, made.frame)
        assert type(read.frame) is bytes


def test_publish_entries() -> None:
    """A stamped publish frame is an entry without payload; its bodies stay in the frame."""
    codec = ops.FrameCodec()
    raw = frames.pack_publish([b"a", b"b", b"c"], producer=3, first_number=10, settled=9)
    entry = codec.publish(raw, **STAMP, first_sequence=100)
    assert entry.payload is None
    assert entry.header == codec.header(entry.frame) == frames.check(entry.frame)
    assert (entry.header.first_sequence, entry.header.last_sequence) == (100, 102)
    assert (entry.header.first_number, entry.header.last_number) == (10, 12)
    assert frames.split(codec.cut(entry.frame, 1, 3)) == [b"b", b"c"]
    read = ops.make_entry(entry.frame)
    assert (read.header, read.payload) == (entry.header, None)


@pytest.mark.parametrize("kind", sorted({0, 255, *OpKind} - {*KINDS.values(), OpKind.PUBLISH}))
def test_unknown_kinds(kind: int) -> None:
    """An op of a version to come is an UnknownOp that names its kind, whatever it holds."""
    frame = frames.pack_op(kind, b"\xc1 not even MessagePack", queue_id=1, epoch=1, lsn=1)
    assert ops.make_entry(frame).payload == UnknownOp(kind)


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (OpKind.ACK, []),
        (OpKind.ACK, [[[1, 5]], 0]),
        (OpKind.ACK, [[[1]]]),
        (OpKind.ACK, [[[1, 2, 3]]]),
        (OpKind.ACK, [[[0, 1]]]),
        (OpKind.ACK, [[[5, 4]]]),
        (OpKind.RETURN, [[[1, 2], [2, 1]]]),
        (OpKind.PURGE, [[[-1, 1]]]),
        (OpKind.PURGE, [[[1, 2**63]]]),
        (OpKind.HORIZON, [-1]),
        (OpKind.HORIZON, [2**64 - 1]),
        (OpKind.HORIZON, ["1"]),
        (OpKind.HORIZON, [True]),
        (OpKind.HORIZON, {"sequence": 1}),
        (OpKind.PROMOTED, ["clean"]),
        (OpKind.PROMOTED, ["rudely", 0, 0, [], 0]),
        (OpKind.PROMOTED, ["unclean", 1, 5, [[2, 1]], 0]),
        (OpKind.REFUSAL, [b"bytes"]),
        (OpKind.PRODUCER, ["session"]),
        (OpKind.PRODUCER, ["session", [-1]]),
        (OpKind.PRODUCER, [None, []]),
    ],
)
def test_malformed_payloads(kind: OpKind, fields: object) -> None:
    """Too few fields, too many, of another type or out of range: refused, and it says whose."""
    with pytest.raises(ProtocolError, match=r"op|range"):
        ops.decode_payload(kind, msgspec.msgpack.encode(fields))


@given(st.sampled_from(list(KINDS.values())), st.binary(max_size=40))
def test_garbage(kind: OpKind, payload: bytes) -> None:
    """Any bytes are an op that writes itself back, or a ProtocolError."""
    try:
        op = ops.decode_payload(kind, payload)
    except ProtocolError:
        return
    assert ops.decode_payload(kind, ops.encode_payload(op)) == op


@given(payloads, st.data())
def test_truncation(payload: Payload, data: st.DataObject) -> None:
    """A payload that lost its end, or got another byte, is refused."""
    kind, encoded = KINDS[type(payload)], ops.encode_payload(payload)
    size = data.draw(st.integers(0, len(encoded) - 1))
    for wrong in (encoded[:size], encoded + b"\0"):
        with pytest.raises(ProtocolError):
            ops.decode_payload(kind, wrong)


@pytest.mark.parametrize("payload", [None, UnknownOp(200)])
def test_what_cannot_be_written(payload: Payload) -> None:
    """A publish has bodies instead of a payload, and what is not known cannot be made."""
    with pytest.raises(TypeError, match="no op"):
        ops.encode_payload(payload)


def test_the_codec_is_what_the_core_asks_for() -> None:
    """FrameCodec has the methods of OpCodec, and a type checker holds it to their types."""
    codec: OpCodec = ops.FrameCodec()
    assert callable(codec.publish)


@given(stages, st.lists(st.binary(max_size=20), min_size=1, max_size=4))
def test_chunks(stage: Stage, bodies: list[bytes]) -> None:
    """A chunk is a publish frame whose first body says whose it is; the log's entry knows it."""
    raw = frames.pack_publish(
        [ops.encode_staged(stage), *bodies],
        producer=3,
        first_number=10,
        flags=FLAG_STEP | FLAG_STAGED,
    )
    codec = ops.FrameCodec()
    assert codec.staged(raw) == stage
    entry = codec.publish(raw, **STAMP, first_sequence=100)
    assert (entry.payload, entry.step) == (None, stage)
    assert ops.make_entry(entry.frame).step == stage


@given(staging)
def test_requests_about_staged_messages(asked: Staging) -> None:
    """What a driver asks comes back from the frame that asks it; it is no op of the log."""
    codec = ops.FrameCodec()
    raw = codec.request(asked, producer=3, first_number=10, settled=9)
    header = frames.check(raw)
    assert (header.producer, header.first_number, header.settled, header.count) == (3, 10, 9, 1)
    assert codec.staged(raw) == asked
    with pytest.raises(ProtocolError):
        codec.read_step(raw)


@pytest.mark.parametrize("body", [b"", b"\xc0", b"\x92\x0f\xc0", b"\x92\x01\x90", b"\x92\x13\xc0"])
def test_malformed_first_bodies(body: bytes) -> None:
    """What says nothing of staged messages is refused in words."""
    raw = frames.pack_publish([body, b"x"], flags=FLAG_STEP | FLAG_STAGED)
    with pytest.raises(ProtocolError):
        ops.FrameCodec().staged(raw)


def test_a_commit_brings_no_messages() -> None:
    """Beside a chunk nothing has bodies: they would be lost."""
    body = ops.encode_staged(CommitOp("t", 0, "r"))
    raw = frames.pack_publish([body, b"x"], flags=FLAG_STEP | FLAG_STAGED)
    with pytest.raises(ProtocolError, match="1 message"):
        ops.FrameCodec().staged(raw)
