"""Ops: the payload of a frame other than a publish, and entries made of frames.

A payload is a MessagePack array of the op's fields, in the order of its class. A payload is taken
whole or refused: an array longer than this version knows is refused, because two members that
understood one op differently would no longer hold the same queue. The meaning of an op changes only
with a new kind. An unknown kind is an `UnknownOp`: its queue stops and says so
(docs/disk-format.md, Op payloads).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Literal

import msgspec
from attrs import frozen

from mirrorq.containers.ranges import Range
from mirrorq.errors import MALFORMED, ProtocolError
from mirrorq.protocol.ops import (
    FLAG_STAGED,
    FLAG_STEP,
    FLAG_UNIQUE,
    PRIORITY_MAX,
    UNIQUE_COUNT_MAX,
    AckOp,
    DiscardOp,
    DropHeadOp,
    DueOp,
    Entry,
    ExpiryOp,
    Header,
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
    Step,
    UniqueKey,
    UniqueWindowOp,
    UnknownOp,
)
from mirrorq.protocol.staged import AbortOp, AskOp, CommitOp, SealOp, Stage, Staging
from mirrorq.wire import frames
from mirrorq.wire.properties import key_of

NAME_LENGTH_MAX = 512
"""Limit for names of transactions and runs, and reasons: a queue keeps each for ever."""
_Number = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
"""Range that fits a frame's header, the store's keys and Arrow's int64."""
_Sequence = Annotated[int, msgspec.Meta(ge=1, le=2**63 - 1)]
_Priority = Annotated[int, msgspec.Meta(ge=0, le=PRIORITY_MAX)]
_Ranges = tuple[tuple[_Sequence, _Sequence], ...]
_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=NAME_LENGTH_MAX)]
_Winners = tuple[tuple[_Number, _Number, _Number, _Number], ...]
_Reason = Literal["expired", "maxlen", "rejected", "delivery_limit", "moved"]
_Outcome = Literal["confirmed", "cycle", "refused", "deleted"]


@frozen
class _Form:
    """The form of one kind of op on the wire."""

    kind: OpKind
    op: Any
    """The class of messages.py."""
    decoder: msgspec.msgpack.Decoder[Any]


def _form(kind: OpKind, op: Any, array: Any) -> _Form:
    return _Form(kind, op, msgspec.msgpack.Decoder(array))


_FORMS = (
    _form(OpKind.ACK, AckOp, tuple[_Ranges]),
    _form(OpKind.RETURN, ReturnOp, tuple[_Ranges]),
    _form(OpKind.HORIZON, HorizonOp, tuple[_Number]),
    _form(OpKind.HORIZONS, HorizonsOp, tuple[tuple[tuple[_Priority, _Number], ...]]),
    _form(OpKind.IDLE, IdleOp, tuple[_Number]),
    _form(OpKind.UNIQUE_WINDOW, UniqueWindowOp, tuple[_Number]),
    _form(OpKind.PAUSE, PauseOp, tuple[bool]),
    _form(OpKind.DUE, DueOp, tuple[_Ranges, _Number, _Ranges]),
    _form(OpKind.RETURN_LATER, ReturnLaterOp, tuple[_Ranges, _Number]),
    _form(
        OpKind.PROMOTED,
        PromotedOp,
        tuple[Literal["clean", "unclean", "cold"], _Number, _Number, _Ranges, _Number],
    ),
    _form(OpKind.REFUSAL, RefusalOp, tuple[str]),
    _form(OpKind.PURGE, PurgeOp, tuple[_Ranges]),
    _form(OpKind.DROP_HEAD, DropHeadOp, tuple[_Ranges]),
    _form(OpKind.EXPIRY, ExpiryOp, tuple[_Ranges]),
    _form(OpKind.DISCARD, DiscardOp, tuple[_Ranges, Literal["rejected", "delivery_limit"]]),
    _form(OpKind.OUTBOX, OutboxOp, tuple[_Ranges, _Sequence, _Reason]),
    _form(OpKind.OUTBOX_DONE, OutboxDoneOp, tuple[_Sequence, _Sequence, _Outcome]),
    _form(OpKind.PRODUCER, ProducerOp, tuple[str, tuple[_Number, ...]]),
    _form(OpKind.SEAL, SealOp, tuple[_Name, _Number, _Name, _Winners, _Sequence]),
    _form(
        OpKind.COMMIT,
        CommitOp,
        tuple[_Name, _Number, _Name, _Winners, _Number, _Number, tuple[_Sequence, ...], bool],
    ),
    _form(
        OpKind.ABORT,
        AbortOp,
        tuple[_Name, _Number, _Name, _Name, tuple[_Sequence, ...], bool],
    ),
    _form(OpKind.ASK, AskOp, tuple[_Name, _Number, _Name, _Sequence]),
)
_FORM_OF_KIND = {int(form.kind): form for form in _FORMS}
_FORM_OF_CLASS = {form.op: form for form in _FORMS}

_WITH_RANGES = (
    AckOp | ReturnOp | PurgeOp | DropHeadOp | ExpiryOp | DiscardOp | ReturnLaterOp | OutboxOp
)

_encoder = msgspec.msgpack.Encoder()


def _form_of(op: Payload) -> _Form:
    form = _FORM_OF_CLASS.get(type(op))
    if form is None:
        raise TypeError(f"{op!r} is no op that can be written")
    return form


def encode_payload(op: Payload) -> bytes:
    """Write an op's fields.

    Raises:
        TypeError: `op` is an UnknownOp, or None: publish frames have bodies instead.
    """
    if op is None or type(op) not in _FORM_OF_CLASS:
        raise TypeError(f"{op!r} is no op that can be written")
    return _encoder.encode(msgspec.structs.astuple(op))


def decode_payload(kind: int, payload: bytes) -> Payload:
    """Read an op's fields.

    Returns:
        The op; `UnknownOp` for a kind of a later version.

    Raises:
        ProtocolError: the payload does not match the kind.
    """
    form = _FORM_OF_KIND.get(kind)
    if form is None:
        return UnknownOp(kind)
    try:
        values = form.decoder.decode(payload)
    except MALFORMED as error:
        raise ProtocolError(
            f"the payload of {len(payload)} bytes of op {form.kind.name} is malformed: {error}"
        ) from None
    op: Payload = form.op(*values)
    if isinstance(op, _WITH_RANGES):
        _check_ranges(op.ranges)
    elif isinstance(op, DueOp):
        _check_ranges(op.entering)
        _check_ranges(op.returning)
        if op.next_place >= 2**63:
            raise ProtocolError(f"places after {op.place} would be above 2^63 - 1")
    elif isinstance(op, PromotedOp):
        _check_ranges(op.lost)
    elif isinstance(op, CommitOp) and op.sequence + op.count >= 2**63:
        raise ProtocolError(f"{op.count} messages after {op.sequence} would be above 2^63 - 1")
    return op


def _check_ranges(ranges: Iterable[Range]) -> None:
    for first, last in ranges:
        if first > last:
            raise ProtocolError(f"a range of an op ends before it begins: ({first}, {last})")


_STEP = msgspec.msgpack.Decoder(tuple[_Ranges, _Number])


def encode_step(step: Step) -> bytes:
    """Return the first body of a frame that carries this step."""
    return _encoder.encode((step.ranges, step.target))


_STAGE = msgspec.msgpack.Decoder(tuple[_Name, _Number, _Name, _Number, _Number, _Number])
_STAGED = msgspec.msgpack.Decoder(tuple[int, msgspec.Raw])


def encode_staged(asked: Stage | Staging) -> bytes:
    """The first body of a frame with FLAG_STAGED."""
    if isinstance(asked, Stage):
        return _encoder.encode((int(OpKind.STAGE), msgspec.structs.astuple(asked)))
    kind = int(_form_of(asked).kind)
    return _encoder.encode((kind, msgspec.Raw(encode_payload(asked))))


def staged_of(header: Header, frame: bytes) -> Stage | Staging:
    """Return the staged request in the first body of a checked frame with FLAG_STAGED.

    Raises:
        ProtocolError: the body is no staged request.
    """
    (body,) = frames.split(frames.cut(frame, 0, 1))
    try:
        kind, rest = _STAGED.decode(body)
        if kind == OpKind.STAGE:
            return Stage(*_STAGE.decode(rest))
    except MALFORMED as error:
        raise ProtocolError(f"what is asked of staged messages is malformed: {error}") from None
    op = decode_payload(kind, bytes(rest))
    if not isinstance(op, SealOp | CommitOp | AbortOp | AskOp):
        raise ProtocolError(f"op {kind} says nothing of staged messages")
    if header.count != 1:
        raise ProtocolError(f"a {type(op).__name__} comes with {header.count - 1} message(s)")
    return op


def step_of(header: Header, frame: bytes) -> Step | Stage | None:
    """Return the step that comes with the messages of a checked publish frame in the log, or None.

    Raises:
        ProtocolError: its first body is no step, or the frame has only a step for elsewhere.
    """
    if not header.flags & FLAG_STEP:
        return None
    if header.flags & FLAG_STAGED:
        staged = staged_of(header, frame)
        if not isinstance(staged, Stage):
            raise ProtocolError(f"a publish frame is no {type(staged).__name__}")
        return staged
    (body,) = frames.split(frames.cut(frame, 0, 1))
    try:
        ranges, target = _STEP.decode(body)
    except MALFORMED as error:
        raise ProtocolError(f"a step of {len(body)} bytes is malformed: {error}") from None
    _check_ranges(ranges)
    if target and header.count == 1:
        raise ProtocolError(f"a step has no message for queue {target}")
    return Step(ranges, target)


def keys_of(header: Header, frame: bytes) -> tuple[UniqueKey | None, ...]:
    """The unique keys of a checked publish frame's messages; () of a frame without FLAG_UNIQUE.

    Raises:
        ProtocolError: they cannot be read, or there are too many messages.
    """
    if not header.flags & FLAG_UNIQUE:
        return ()
    if header.count > UNIQUE_COUNT_MAX + 1:
        raise ProtocolError(
            f"{header.count} messages with unique keys: at most {UNIQUE_COUNT_MAX} go together"
        )
    return tuple(key_of(packed) for packed in frames.split_properties(frame) or ())


def _published(header: Header, frame: bytes) -> Entry:
    step, keys = step_of(header, frame), keys_of(header, frame)
    return Entry(header, None, frame, frames.offsets(frame), step, keys)


def _read(header: Header, frame: bytes) -> Entry:
    if header.kind == OpKind.PUBLISH:
        return _published(header, frame)
    return Entry(header, decode_payload(header.kind, frames.payload(frame)), frame)


def make_entry(frame: frames.Frame) -> Entry:
    """Check a frame and read its op. A view of a larger buffer is copied.

    Raises:
        ProtocolError: the frame or its payload is wrong.
    """
    frame = bytes(frame)
    return _read(frames.check(frame), frame)


def make_logged_entry(frame: frames.Frame) -> Entry:
    """Read an entry like `make_entry`, from a frame in a log. The log's writer, such as the rail,
    may have checked the frame alone: an unreadable payload stops its queue, and no other queue.

    Raises:
        ProtocolError: the frame is damaged.
    """
    frame = bytes(frame)
    header = frames.check(frame)
    try:
        return _read(header, frame)
    except ProtocolError as error:
        return Entry(header, UnknownOp(header.kind, str(error)), frame)


class FrameCodec:
    """Codec that the pure core gets to make entries (see mirrorq.protocol.codec.OpCodec)."""

    def header(self, frame: bytes) -> Header:
        """Return the header of a frame that has been checked before."""
        return frames.header(frame)

    def cut(self, frame: bytes, start: int, stop: int) -> bytes:
        """Return the publish frame with messages start to stop - 1 only."""
        return frames.cut(frame, start, stop)

    def offsets(self, frame: bytes) -> bytes:
        """Return the offsets of a checked publish frame's bodies, unchanged."""
        return frames.offsets(frame)

    def read_step(self, frame: bytes) -> Step | Stage | None:
        """Return the step that comes with the messages of a checked publish frame."""
        return step_of(frames.header(frame), frame)

    def keys(self, frame: bytes) -> tuple[UniqueKey | None, ...]:
        """Return the unique keys of a checked publish frame's messages."""
        return keys_of(frames.header(frame), frame)

    def staged(self, frame: bytes) -> Stage | Staging:
        """Return the staged request in the first body of a checked publish frame."""
        return staged_of(frames.header(frame), frame)

    def request(self, asked: Staging, *, producer: int, first_number: int, settled: int) -> bytes:
        """Return an unstamped frame with a request about staged messages."""
        return frames.pack_publish(
            [encode_staged(asked)],
            producer=producer,
            first_number=first_number,
            settled=settled,
            flags=FLAG_STEP | FLAG_STAGED,
        )

    def publish(
        self,
        frame: bytes,
        *,
        queue_id: int,
        epoch: int,
        lsn: int,
        first_sequence: int,
        timestamp_us: int,
    ) -> Entry:
        """Stamp a producer's frame, checked before, as the op at `lsn`."""
        stamped = frames.stamp(
            frame,
            queue_id=queue_id,
            epoch=epoch,
            lsn=lsn,
            first_sequence=first_sequence,
            timestamp_us=timestamp_us,
        )
        return _published(frames.header(stamped), stamped)

    def op(
        self,
        payload: Payload,
        *,
        queue_id: int,
        epoch: int,
        lsn: int,
        timestamp_us: int,
        count: int = 1,
        producer: int = 0,
        first_number: int = 0,
        settled: int = 0,
    ) -> Entry:
        """Return an entry of an op other than a publish, of the kind of the payload's class."""
        frame = frames.pack_op(
            _form_of(payload).kind,
            encode_payload(payload),
            queue_id=queue_id,
            epoch=epoch,
            lsn=lsn,
            count=count,
            producer=producer,
            first_number=first_number,
            settled=settled,
            timestamp_us=timestamp_us,
        )
        return Entry(frames.header(frame), payload, frame)
