"""A second codec of frames, written from the layout table alone: slow, plain, no C.

It is the oracle of the tests beside it. It shares no line with mirrorq.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace
from itertools import pairwise

HEADER = "<4sBBHQQQQIIQQQqII"
PUBLISH = 1
FLAG_PROPERTIES = 1
FLAG_TERMS = 4
NUMBER_MAX = 2**63 - 1


class MalformedError(Exception):
    """These bytes are no frame."""


@dataclass(frozen=True)
class Fields:
    """What a frame says."""

    values: tuple[bytes, ...]
    kind: int = PUBLISH
    flags: int = 0
    queue_id: int = 0
    epoch: int = 0
    lsn: int = 0
    first_sequence: int = 0
    count: int = 1
    producer: int = 0
    first_number: int = 0
    settled: int = 0
    timestamp_us: int = 0
    properties: tuple[bytes, ...] | None = None
    terms: tuple[int, int] | None = None
    """(delay_ms, ttl_ms)."""


def crc32c(data: bytes) -> int:
    """CRC-32C, a bit at a time."""
    state = 0xFFFFFFFF
    for byte in data:
        state ^= byte
        for _ in range(8):
            state = (state >> 1) ^ (0x82F63B78 if state & 1 else 0)
    return state ^ 0xFFFFFFFF


def reseal(frame: bytes) -> bytes:
    """The same bytes with a checksum that is right."""
    return frame[:80] + struct.pack("<I", crc32c(frame[:80] + bytes(4) + frame[84:])) + frame[84:]


def _column(values: tuple[bytes, ...]) -> bytes:
    offsets = [0]
    for value in values:
        offsets.append(offsets[-1] + len(value))
    return struct.pack(f"<{len(offsets)}i", *offsets) + b"".join(values)


def _padded(data: bytes, unit: int) -> bytes:
    while len(data) % unit:
        data += b"\0"
    return data


def encode(fields: Fields) -> bytes:
    """The frame that says this."""
    columns = _column(fields.values)
    if fields.properties is not None:
        columns = _padded(columns, 4) + _column(fields.properties)
    columns = _padded(columns, 8)
    if fields.terms is not None:
        columns += struct.pack("<QQ", *fields.terms)
    header = struct.pack(
        HEADER, b"mqf1", 1, fields.kind, fields.flags, fields.queue_id, fields.epoch,
        fields.lsn, fields.first_sequence, fields.count, 88 + len(columns), fields.producer,
        fields.first_number, fields.settled, fields.timestamp_us, 0, 0,
    )  # fmt: skip
    return reseal(header + columns)


def _demand(condition: bool, what: str) -> None:
    if not condition:
        raise MalformedError(what)


def _read_column(frame: bytes, at: int, count: int) -> tuple[tuple[bytes, ...], int]:
    values_at = at + 4 * (count + 1)
    _demand(values_at <= len(frame), "offsets do not fit")
    offsets = struct.unpack_from(f"<{count + 1}i", frame, at)
    _demand(offsets[0] == 0, "first offset")
    _demand(all(a <= b for a, b in pairwise(offsets)), "offsets fall")
    _demand(values_at + offsets[-1] <= len(frame), "values do not fit")
    values = tuple(frame[values_at + a : values_at + b] for a, b in pairwise(offsets))
    return values, values_at + offsets[-1]


def _read_padding(frame: bytes, at: int, unit: int) -> int:
    end = at + -at % unit
    _demand(end <= len(frame) and not any(frame[at:end]), "padding")
    return end


def decode(frame: bytes) -> Fields:
    """What a frame says; MalformedError unless it is one, to the last bit."""
    _demand(len(frame) >= 96, "short")
    (
        magic, version, kind, flags, queue_id, epoch, lsn, first_sequence, count, length,
        producer, first_number, settled, timestamp_us, crc, reserved,
    ) = struct.unpack_from(HEADER, frame)  # fmt: skip
    _demand((magic, version, reserved) == (b"mqf1", 1, 0), "magic, version or reserved")
    _demand(length == len(frame) and length % 8 == 0 and length < 2**31, "length")
    _demand(count > 0, "count")
    numbers = (queue_id, epoch, lsn, producer, settled)
    _demand(all(number <= NUMBER_MAX for number in numbers), "number")
    _demand(first_sequence + count <= NUMBER_MAX, "last sequence")
    _demand(first_number + count <= NUMBER_MAX, "last number")
    has_properties = bool(flags & FLAG_PROPERTIES)
    _demand(kind == PUBLISH or not has_properties, "properties of no publish")
    terms = None
    if flags & FLAG_TERMS:
        _demand(kind == PUBLISH and length >= 96 + 16, "terms of no publish")
        terms = struct.unpack_from("<QQ", frame, length - 16)
        _demand(any(terms) and all(term <= NUMBER_MAX for term in terms), "terms")
        length -= 16
    value_count = count if kind == PUBLISH else 1
    values, end = _read_column(frame[:length], 88, value_count)
    properties = None
    if has_properties:
        properties, end = _read_column(
            frame[:length], _read_padding(frame[:length], end, 4), value_count
        )
    _demand(_read_padding(frame[:length], end, 8) == length, "end")
    _demand(crc == crc32c(frame[:80] + bytes(4) + frame[84:]), "crc")
    return Fields(
        values, kind, flags, queue_id, epoch, lsn, first_sequence, count, producer,
        first_number, settled, timestamp_us, properties, terms,
    )  # fmt: skip


def cut(fields: Fields, start: int, stop: int) -> Fields:
    """Messages [start, stop) alone."""
    return replace(
        fields,
        values=fields.values[start:stop],
        properties=None if fields.properties is None else fields.properties[start:stop],
        count=stop - start,
        first_sequence=fields.first_sequence and fields.first_sequence + start,
        first_number=fields.first_number and fields.first_number + start,
    )
