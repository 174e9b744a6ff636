"""Frames: one op of one queue as bytes. Pure functions over the C of `_native`.

A frame made here is sealed: its layout (wire.h, docs/disk-format.md) is whole and its CRC-32C
covers every byte. `check` verifies layout and checksum of bytes from elsewhere. All other functions
take a checked frame. An unchecked frame is safe: a function then raises or returns nonsense.

One C call handles a frame with any number of messages, because a call costs more than a message.
The interpreter does what it does best, `len` and `join`; C does the arithmetic.

Invariants:

1. A frame is a `bytes` object of its own. C writes only into an object that the same function
   made, that has at least 4 bytes, and that no other code has seen.
2. `stamp` updates the checksum by the changed bytes only: a body that was damaged after the
   frame was sealed is still detected.
3. Functions that make a frame raise ValueError or TypeError: the caller is wrong. Functions that
   read a frame raise ProtocolError: the sender is wrong.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn

import msgspec

from mirrorq._native import ffi, lib
from mirrorq.errors import ProtocolError
from mirrorq.protocol.ops import FLAG_PROPERTIES, FLAG_TERMS, Header, OpKind
from mirrorq.protocol.sessions import Publish, SessionRequest

if TYPE_CHECKING:
    from mirrorq._native._wire import Bytes


def check_publish(message: object) -> None:
    """Check a frame that a producer packed elsewhere, before any use of the frame.

    Raises:
        ProtocolError: the message has no sound publish frame.
    """
    if isinstance(message, SessionRequest) and isinstance(message.request, Publish):
        check(message.request.frame)


Frame = bytes | bytearray | memoryview
TwoBuffers = tuple[memoryview, memoryview]

MAGIC = b"mqf1"
VERSION = 1
HEADER_SIZE = 88
FRAME_SIZE_MIN = 96
"""The header and two offsets."""

_PUBLISH = int(OpKind.PUBLISH)

# magic, version, kind, flags, queue_id, epoch, lsn, first_sequence, count, length, producer,
# first_number, settled, timestamp_us, crc, reserved
_HEADER = struct.Struct("<4sBBHQQQQIIQQQqII")
_FIELDS = struct.Struct("<5xBHQQQQIIQQQq8x")
_SHAPE = struct.Struct("<5xBH32xI")
_LENGTH = struct.Struct("<44xI")
_SPAN = struct.Struct("<32xQI")
_OFFSET = struct.Struct("<i")
_TWO_OFFSETS = struct.Struct("<ii")
_TERMS = struct.Struct("<QQ")

_ZEROS = tuple(bytes(size) for size in range(8))

_values_decoder = msgspec.msgpack.Decoder(list[bytes])
_LIST_COUNT_MIN = 8
_LIST_VALUE_SIZE_MAX = 1024
"""Above `_LIST_COUNT_MIN` values of at most this mean size, a MessagePack list that C writes and
the decoder splits is quicker than slicing, although the values are copied twice."""


def _pointer(data: Frame) -> Bytes:
    return data if type(data) is bytes else ffi.from_buffer("uint8_t[]", data)


def _text(code: int) -> str:
    return ffi.string(lib.mq_error_text(code)).decode()


def _refuse(code: int, frame: Frame, what: str = "a frame") -> NoReturn:
    """Raise the error of `code` about `frame`, with the values of its header."""
    what = f"{what} of {len(frame)} bytes"
    if len(frame) < HEADER_SIZE:
        raise ProtocolError(f"{what} was refused: {_text(code)}")
    magic, version, kind, _, queue_id, epoch, lsn, _, count, length, *_ = _HEADER.unpack_from(frame)
    raise ProtocolError(
        f"{what} was refused: {_text(code)} (magic {magic!r}, version {version}, kind {kind}, "
        f"queue {queue_id}, epoch {epoch}, lsn {lsn}, count {count}, length {length})"
    )


# --- Making -------------------------------------------------------------------------------


Pieces = tuple[Sequence[Frame], int]
"""Parts of a column: the lengths of its values, then the values. With the number of bytes of the
values."""


def lengths_of(values: Sequence[Frame]) -> bytes:
    """Return the lengths of values as int32.

    Raises:
        ValueError: a value has more than 2^31 - 1 bytes.
    """
    found = list(map(len, values))
    first = found[0] if found else 0
    try:
        if found.count(first) == len(found):
            # Bodies of most producers have the same length.
            return _OFFSET.pack(first) * len(found)
        return struct.pack(f"{len(found)}i", *found)
    except struct.error as error:
        raise ValueError(f"no frame can be made of this: {error}") from None


def lengths_between(offsets: Frame) -> tuple[bytes, int]:
    """Return the lengths between offsets, int32 as in Arrow, and the largest length.

    Raises:
        ValueError: the offsets begin below 0 or fall, or are not whole int32 numbers.
    """
    count = len(offsets) // 4 - 1
    if count < 0 or len(offsets) % 4:
        raise ValueError(f"{len(offsets)} bytes are not offsets: int32, one more than values")
    made = bytes(4 * count)
    largest = lib.mq_lengths(_pointer(offsets), count, made)
    if largest < 0:
        raise ValueError(f"{count + 1} offsets begin below 0 or fall: they are no Arrow column's")
    return made, largest


def _seal(frame: bytes, body_size: int, properties_size: int) -> bytes:
    code = lib.mq_seal(frame, len(frame), body_size, properties_size)
    if code:
        raise ValueError(f"no frame can be made of this: {_text(code)}")
    return frame


def pieces_of(values: Sequence[Frame]) -> Pieces:
    """Return the pieces of a column whose values are objects."""
    column = b"".join(values)
    return (lengths_of(values), column), len(column)


def pack_publish(
    bodies: Sequence[Frame],
    properties: Sequence[Frame] | None = None,
    *,
    producer: int = 0,
    first_number: int = 0,
    settled: int = 0,
    flags: int = 0,
    delay_ms: int = 0,
    ttl_ms: int = 0,
) -> bytes:
    """Make an unstamped publish frame.

    Args:
        bodies: at least one; bytes-like.
        properties: one bytes-like for each body, b"" for none.
        producer: id of the producer, 0 for none.
        first_number: the producer's number of the first body, 0 for none.
        settled: the producer needs no outcome at or below this number.
        flags: FLAG_TRANSIENT or 0, and the priority in the bits of FLAG_PRIORITY.
        delay_ms, ttl_ms: of all its messages, 0 for none.

    Returns:
        The sealed frame. Queue, epoch, lsn, first sequence and timestamp are 0 until `stamp`.

    Raises:
        ValueError: no body, not one property for each body, a number below 0 or above
            2^63 - 1, a memoryview of items that are no single bytes, or more than 2^31 - 8
            bytes in all.
        TypeError: something is not bytes-like.
    """
    if properties is not None and len(properties) != len(bodies):
        raise ValueError(
            f"{len(bodies)} bodies and {len(properties)} properties: give as many of each"
        )
    return pack_pieces(
        len(bodies),
        pieces_of(bodies),
        None if properties is None else pieces_of(properties),
        producer=producer,
        first_number=first_number,
        settled=settled,
        flags=flags,
        delay_ms=delay_ms,
        ttl_ms=ttl_ms,
    )


def pack_pieces(
    count: int,
    bodies: Pieces,
    properties: Pieces | None = None,
    *,
    producer: int = 0,
    first_number: int = 0,
    settled: int = 0,
    flags: int = 0,
    delay_ms: int = 0,
    ttl_ms: int = 0,
) -> bytes:
    """Pack a frame like `pack_publish`, of columns that are not lists of objects: one join."""
    pieces, body_size = bodies
    # Input of the sealing C call: 0, then the lengths, which become offsets.
    joined: list[Frame] = [b"", _ZEROS[4], *pieces]
    properties_size = 0
    length = HEADER_SIZE + 4 * (count + 1) + body_size
    if properties is not None:
        flags |= FLAG_PROPERTIES
        pieces, properties_size = properties
        joined += (_ZEROS[-length & 3], _ZEROS[4], *pieces)
        length += (-length & 3) + 4 * (count + 1) + properties_size
    padding = -length & 7
    joined.append(_ZEROS[padding])
    length += padding
    try:
        if delay_ms or ttl_ms:
            flags |= FLAG_TERMS
            joined.append(_TERMS.pack(delay_ms, ttl_ms))
            length += _TERMS.size
        joined[0] = _HEADER.pack(
            MAGIC, VERSION, _PUBLISH, flags, 0, 0, 0, 0, count, length,
            producer, first_number, settled, 0, 0, 0,
        )  # fmt: skip
    except struct.error as error:
        raise ValueError(f"no frame can be made of this: {error}") from None
    return _seal(b"".join(joined), body_size, properties_size)


def pack_op(
    kind: int,
    payload: bytes,
    *,
    queue_id: int,
    epoch: int,
    lsn: int,
    count: int = 1,
    producer: int = 0,
    first_number: int = 0,
    settled: int = 0,
    flags: int = 0,
    timestamp_us: int = 0,
) -> bytes:
    """Make the frame of an op that is no publish.

    Raises:
        ValueError: a field does not fit, or `kind` is publish.
    """
    if kind == _PUBLISH:
        raise ValueError("publish frames are made by pack_publish")
    length = HEADER_SIZE + 8 + len(payload)
    padding = -length & 7
    try:
        head = _HEADER.pack(
            MAGIC, VERSION, kind, flags, queue_id, epoch, lsn, 0, count, length + padding,
            producer, first_number, settled, timestamp_us, 0, 0,
        )  # fmt: skip
        offsets = _TWO_OFFSETS.pack(0, len(payload))
    except struct.error as error:
        raise ValueError(f"no frame can be made of this: {error}") from None
    return _seal(b"".join((head, offsets, payload, _ZEROS[padding])), len(payload), 0)


def stamp(
    frame: Frame, *, queue_id: int, epoch: int, lsn: int, first_sequence: int, timestamp_us: int
) -> bytes:
    """Return a copy of a checked frame with these fields set and the checksum moved along.

    Raises:
        ValueError: a field is below 0 or above 2^63 - 1, or the frame was not checked.
    """
    size = len(frame)
    stamped = bytes(size)
    try:
        code = lib.mq_stamp(
            _pointer(frame), size, queue_id, epoch, lsn, first_sequence, timestamp_us, stamped
        )
    except OverflowError as error:
        raise ValueError(f"the frame cannot be stamped: {error}") from None
    if code:
        raise ValueError(f"the frame cannot be stamped: {_text(code)}")
    return stamped


def span(frame: Frame) -> tuple[int, int]:
    """Return first and last sequence of a checked publish frame."""
    first, count = _SPAN.unpack_from(frame)
    return first, first + count - 1


def cut(frame: bytes, start: int, stop: int) -> bytes:
    """Return a frame of messages [start, stop) of a checked publish frame.

    First sequence and first number move along, where there are any. The whole range returns
    the frame itself.

    Raises:
        ValueError: the range is empty or not within the frame, this is no publish frame, or
            the frame was not checked.
    """
    kind, _, count = _SHAPE.unpack_from(frame)
    if kind != _PUBLISH or not 0 <= start < stop <= count:
        raise ValueError(f"[{start}, {stop}) are no messages of {header(frame)}")
    if stop - start == count:
        return frame
    size = lib.mq_cut_size(frame, len(frame), start, stop)
    piece = bytes(max(size, 0))
    code = lib.mq_cut(frame, len(frame), start, stop, piece, len(piece))
    if code:
        raise ValueError(f"the frame cannot be cut: {_text(code)}")
    return piece


def shifted(frame: Frame, first: int, last: int, shift: int, timestamp_us: int) -> bytes:
    """Return a frame of messages first to last of a checked publish frame. Sequences are higher by
    `shift`, and the timestamp is new.

    Raises:
        ValueError: the frame holds none of the messages, or a sequence would exceed 2^63 - 1.
    """
    old = header(frame)
    start = max(first - old.first_sequence, 0)
    stop = min(last + 1 - old.first_sequence, old.count)
    return stamp(
        cut(bytes(frame), start, stop),
        queue_id=old.queue_id,
        epoch=old.epoch,
        lsn=old.lsn,
        first_sequence=old.first_sequence + start + shift,
        timestamp_us=timestamp_us,
    )


# --- Reading ------------------------------------------------------------------------------


def header(frame: Frame) -> Header:
    """Return the header of a frame that has been checked before.

    Raises:
        ProtocolError: there are too few bytes for a header.
    """
    try:
        (
            kind, flags, queue_id, epoch, lsn, first_sequence, count, length,
            producer, first_number, settled, timestamp_us,
        ) = _FIELDS.unpack_from(frame)  # fmt: skip
        delay_ms = ttl_ms = 0
        if flags & FLAG_TERMS:
            delay_ms, ttl_ms = _TERMS.unpack_from(frame, max(length - _TERMS.size, 0))
    except struct.error:
        raise ProtocolError(f"{len(frame)} bytes are too few for a frame's header") from None
    return Header(
        kind, flags, queue_id, epoch, lsn, first_sequence, count,
        producer, first_number, settled, timestamp_us, length, delay_ms, ttl_ms,
    )  # fmt: skip


def check(frame: Frame) -> Header:
    """Check every byte of one frame: layout, offsets, padding, checksum.

    Raises:
        ProtocolError: the bytes are not exactly one frame; the error names cause and values.
    """
    code = lib.mq_check(_pointer(frame), len(frame))
    if code:
        _refuse(code, frame)
    return header(frame)


def _column(frame: Frame, at: int, count: int) -> tuple[int, int]:
    """Return begin and end of the values of the column at `at`."""
    values_at = at + 4 * (count + 1)
    (size,) = _OFFSET.unpack_from(frame, values_at - 4)
    return values_at, values_at + size


def _values(frame: bytes, column: int, at: int, count: int) -> list[bytes]:
    """Return the list of one column's values; `at` is the position of its offsets."""
    values_at, end = _column(frame, at, count)
    size = end - values_at
    if count < _LIST_COUNT_MIN or size > count * _LIST_VALUE_SIZE_MAX:
        start = values_at
        offsets = struct.unpack_from(f"{count}i", frame, at + 4)
        return [frame[start : (start := values_at + offset)] for offset in offsets]
    listed = bytes(5 + 5 * count + size)
    code = lib.mq_list(frame, len(frame), column, listed, len(listed))
    if code:
        _refuse(code, frame)
    return _values_decoder.decode(listed)


def _shape(frame: Frame) -> tuple[int, int]:
    """Return the number of values in each column, and the flags."""
    kind, flags, count = _SHAPE.unpack_from(frame)
    return (count if kind == _PUBLISH else 1), flags


def split(frame: Frame) -> list[bytes]:
    """Return the bodies of a checked publish frame, in order."""
    if type(frame) is not bytes:
        frame = bytes(frame)
    count, _ = _shape(frame)
    return _values(frame, 0, HEADER_SIZE, count)


def split_properties(frame: Frame) -> list[bytes] | None:
    """Return each message's properties of a checked publish frame, or None without properties."""
    if type(frame) is not bytes:
        frame = bytes(frame)
    count, flags = _shape(frame)
    if not flags & FLAG_PROPERTIES:
        return None
    _, end = _column(frame, HEADER_SIZE, count)
    return _values(frame, 1, end + (-end & 3), count)


def offsets(frame: Frame) -> bytes:
    """Return the first column's offsets of a checked frame: int32, one more than values."""
    count, _ = _shape(frame)
    return bytes(frame[HEADER_SIZE : HEADER_SIZE + 4 * (count + 1)])


def columns(frame: bytes) -> tuple[TwoBuffers, TwoBuffers | None]:
    """Return (bodies, properties or None) of a checked publish frame, without a copy. Each is an
    Arrow binary array: (int32 offsets, values), views of the frame."""
    count, flags = _shape(frame)
    view = memoryview(frame)
    at, end = _column(frame, HEADER_SIZE, count)
    bodies = view[HEADER_SIZE:at], view[at:end]
    if not flags & FLAG_PROPERTIES:
        return bodies, None
    start = end + (-end & 3)
    at, end = _column(frame, start, count)
    return bodies, (view[start:at], view[at:end])


def payload(frame: Frame) -> bytes:
    """Return the payload of a checked frame other than a publish frame."""
    start, end = _column(frame, HEADER_SIZE, 1)
    return bytes(frame[start:end])


def split_run(run: Frame) -> list[memoryview]:
    """Split frames that stand end to end; one C call checks all frames.

    Returns:
        The frames, as views of `run`: the views keep `run` alive.

    Raises:
        ProtocolError: a frame is wrong; the error names the offset.
    """
    view = memoryview(run)
    size = len(view)
    checked = lib.mq_checked_prefix(_pointer(run), size)
    if checked != size:
        rest = view[checked:]
        code = lib.mq_check_first(_pointer(rest), len(rest))
        _refuse(code, rest, f"what stands at offset {checked} in a run")
    frames = []
    at = 0
    while at < size:
        (length,) = _LENGTH.unpack_from(run, at)
        frames.append(view[at : at + length])
        at += length
    return frames


def crc32c(data: Frame) -> int:
    """Return the CRC-32C (Castagnoli) of `data`."""
    return lib.mq_crc32c(_pointer(data), len(data))
