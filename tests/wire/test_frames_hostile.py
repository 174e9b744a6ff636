"""Frames from elsewhere: whatever is wrong with them is found, and nothing worse happens.

tests/wire/sanitize.sh runs this with a C part that stops at any stray read or write.
"""

from __future__ import annotations

import struct
from itertools import pairwise

import pytest
import reference
from generated import anything, publishes
from hypothesis import example, given, settings
from hypothesis import strategies as st
from reference import Fields, MalformedError

from mirrorq._native import ffi, lib
from mirrorq.errors import ProtocolError
from mirrorq.wire import frames

SAMPLES = [
    reference.encode(Fields((b"hello", b"", b"you"), count=3, lsn=1)),
    reference.encode(Fields((b"a", b"bcd"), flags=1, count=2, properties=(b"pq", b""))),
    reference.encode(Fields((b"\x91\xa5clean",), kind=5, epoch=1, lsn=1)),
    reference.encode(Fields((b"late", b""), flags=4 | 9 << 8, count=2, terms=(1, 0))),
]


def agree(frame: bytes) -> None:
    """mirrorq takes these bytes if and only if the reference does, and reads the same."""
    try:
        fields = reference.decode(frame)
    except MalformedError:
        with pytest.raises(ProtocolError):
            frames.check(frame)
        return
    header = frames.check(frame)
    assert (header.kind, header.count, header.lsn) == (fields.kind, fields.count, fields.lsn)
    assert frames.split(frame) == list(fields.values)
    assert frames.split_properties(frame) == (
        None if fields.properties is None else list(fields.properties)
    )


@pytest.mark.parametrize("frame", SAMPLES)
def test_truncation_at_every_byte(frame: bytes) -> None:
    """A frame that lost its end, be it one byte, is refused."""
    for size in range(len(frame)):
        with pytest.raises(ProtocolError):
            frames.check(frame[:size])


@pytest.mark.parametrize("frame", SAMPLES)
def test_bytes_after_the_end(frame: bytes) -> None:
    """What follows the end is refused, too."""
    for more in (b"\0", bytes(8), frame):
        with pytest.raises(ProtocolError, match="after its end"):
            frames.check(frame + more)


@pytest.mark.parametrize("frame", SAMPLES)
def test_every_single_bit_flip(frame: bytes) -> None:
    """No single bit can change unnoticed, the checksum's own bits included."""
    for bit in range(8 * len(frame)):
        flipped = bytearray(frame)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(ProtocolError):
            frames.check(flipped)


@pytest.mark.parametrize("frame", SAMPLES)
def test_every_single_bit_flip_under_a_right_checksum(frame: bytes) -> None:
    """Who can compute a checksum gets no further than what the layout allows."""
    for bit in range(8 * len(frame)):
        flipped = bytearray(frame)
        flipped[bit // 8] ^= 1 << bit % 8
        agree(reference.reseal(bytes(flipped)))


HOSTILE_WORDS = st.sampled_from(
    [0, 1, 2, 7, 8, 88, 96, 2**16, 2**30 - 1, 2**30, 2**31 - 8, 2**31 - 1, 2**31, 2**32 - 8,
     2**32 - 1]
) | st.integers(0, 2**32 - 1)  # fmt: skip


@settings(max_examples=300)
@given(anything, st.data())
def test_hostile_words_under_a_right_checksum(fields: Fields, data: st.DataObject) -> None:
    """Lengths, counts and offsets of any value, at any place: taken only when all fits."""
    frame = bytearray(reference.encode(fields))
    for _ in range(data.draw(st.integers(1, 3))):
        at = 4 * data.draw(st.integers(0, len(frame) // 4 - 1))
        struct.pack_into("<I", frame, at, data.draw(HOSTILE_WORDS))
    agree(reference.reseal(bytes(frame)))


@given(publishes(), HOSTILE_WORDS)
@example(Fields((b"a", b"b"), count=2), 2**30 - 1)
@example(Fields((b"a", b"b"), count=2), 2**32 - 1)
def test_hostile_count(fields: Fields, count: int) -> None:
    """A count whose offsets would take 4 GiB and wrap to a few bytes is refused."""
    frame = bytearray(reference.encode(fields))
    struct.pack_into("<I", frame, 40, count)
    agree(reference.reseal(bytes(frame)))


@given(st.binary(max_size=300))
def test_garbage(data: bytes) -> None:
    """Bytes that are no frame at all."""
    agree(data)
    if data:
        with pytest.raises(ProtocolError, match="offset 0"):
            frames.split_run(data)


@given(st.binary(max_size=300))
def test_garbage_behind_a_right_beginning(data: bytes) -> None:
    """The same behind a magic, a version and a length that are right."""
    size = 96 + len(data) // 8 * 8
    frame = bytearray(struct.pack("<4sBB", b"mqf1", 1, 1) + data + bytes(size))[:size]
    struct.pack_into("<I", frame, 44, size)
    agree(reference.reseal(bytes(frame)))


@pytest.mark.parametrize(
    ("at", "form", "value", "text"),
    [
        (0, "<I", 0, "magic"),
        (4, "<B", 2, "version"),
        (40, "<I", 0, "count"),
        (40, "<I", 2**32 - 1, "offsets do not fit"),
        (44, "<I", 92, "no legal length"),
        (44, "<I", 97, "no legal length"),
        (44, "<I", 100, "no legal length"),
        (44, "<I", 2**31, "no legal length"),
        (44, "<I", 2**31 - 8, "ends before"),
        (84, "<I", 1, "reserved"),
        (32, "<Q", 2**63 - 3, "2\\^63"),
        (56, "<Q", 2**63 - 3, "2\\^63"),
        (88, "<i", 1, "rise"),
        (92, "<i", -1, "rise"),
        (100, "<i", 2**31 - 1, "rise"),
        (100, "<i", 7, "padding"),
    ],
)
def test_the_error_says_what_is_wrong(at: int, form: str, value: int, text: str) -> None:
    """Each code has its text, and the message has the values of the header."""
    frame = bytearray(SAMPLES[0])
    struct.pack_into(form, frame, at, value)
    with pytest.raises(ProtocolError, match=text) as caught:
        frames.check(reference.reseal(bytes(frame)))
    assert "lsn 1" in str(caught.value)


def test_properties_of_no_publish() -> None:
    """A second column that is well-formed is refused all the same where none may be."""
    frame = reference.encode(Fields((b"payload",), kind=2, flags=1, properties=(b"property",)))
    with pytest.raises(ProtocolError, match="a column is there that may not"):
        frames.check(frame)


@pytest.mark.parametrize(("delay_ms", "ttl_ms"), [(0, 0), (2**63, 0), (0, 2**64 - 1)])
def test_terms_that_say_nothing_or_too_much(delay_ms: int, ttl_ms: int) -> None:
    """There is one encoding of a content, and no number above 2^63 - 1."""
    frame = bytearray(SAMPLES[3])
    struct.pack_into("<QQ", frame, len(frame) - 16, delay_ms, ttl_ms)
    with pytest.raises(ProtocolError, match="terms"):
        frames.check(reference.reseal(bytes(frame)))


@pytest.mark.parametrize("offset", [10, 11, 2**16, 2**31 - 1, 2**31, 2**32 - 1])
@pytest.mark.parametrize("index", [0, 1, 4, 8])
def test_unchecked_offsets_do_no_harm(index: int, offset: int) -> None:
    """An offset beyond the bodies is an error to split and cut, not a read beyond them."""
    frame = bytearray(reference.encode(Fields((b"x",) * 9, count=9)))
    struct.pack_into("<I", frame, 88 + 4 * index, offset)
    bad = bytes(frame)
    with pytest.raises(ProtocolError, match="offsets"):
        frames.split(bad)
    out = bytes(200)
    assert lib.mq_cut_size(bad, len(bad), max(index - 1, 0), index or 9) < 0
    assert lib.mq_cut(bad, len(bad), max(index - 1, 0), index or 9, out, 200) < 0
    assert out == bytes(200)


@pytest.mark.parametrize(("index", "offset"), [(0, 1), (4, 0), (4, 2), (4, 9), (1, 9)])
def test_unchecked_offsets_that_fall_do_no_harm(index: int, offset: int) -> None:
    """Nor does one that is within the bodies, but before its predecessor or not 0."""
    frame = bytearray(reference.encode(Fields((b"x",) * 9, count=9)))
    struct.pack_into("<I", frame, 88 + 4 * index, offset)
    with pytest.raises(ProtocolError, match="offsets"):
        frames.split(bytes(frame))


@pytest.mark.parametrize("more", [*range(2, 8), 2**30, 2**32 - 3])
def test_sealing_a_count_that_does_not_fit(more: int) -> None:
    """Lengths that are not there are not turned into offsets, in either column."""
    for fields in (
        Fields((b"", b""), count=2),
        Fields((b"", b""), flags=1, count=2, properties=(b"", b"")),
    ):
        frame = bytearray(reference.encode(fields))
        struct.pack_into("<I", frame, 40, 2 + more)
        bad = bytes(frame)
        assert lib.mq_seal(bad, len(bad), 0, 0) < 0


def test_outputs_of_the_wrong_size() -> None:
    """What does not fit its output exactly is not written at all."""
    frame = SAMPLES[0]
    for size in (0, 95, 96, 111, 113, 200):
        out = bytes(size)
        assert lib.mq_cut(frame, len(frame), 0, 3, out, size) < 0
        assert lib.mq_list(frame, len(frame), 0, out, size) < 0
        assert out == bytes(size)


@given(publishes(), st.data())
def test_unchecked_bytes_do_no_harm(fields: Fields, data: st.DataObject) -> None:
    """Functions that expect a checked frame stay within the bytes of a damaged one."""
    frame = bytearray(reference.encode(fields))
    at = 4 * data.draw(st.integers(10, len(frame) // 4 - 1))
    struct.pack_into("<I", frame, at, data.draw(HOSTILE_WORDS))
    bad, size = bytes(frame), len(frame)
    out = bytes(size)
    lib.mq_stamp(bad, size, 1, 1, 1, 1, 1, out)
    start = data.draw(st.integers(0, fields.count))
    stop = data.draw(st.integers(0, fields.count + 1))
    cut_size = lib.mq_cut_size(bad, size, start, stop)
    assert cut_size <= 2 * size
    if cut_size > 0:
        lib.mq_cut(bad, size, start, stop, bytes(cut_size), cut_size)
    for column in (0, 1, 2):
        for list_size in (0, 5 + 5 * fields.count + data.draw(st.integers(0, size))):
            lib.mq_list(bad, size, column, bytes(list_size), list_size)
    sealed = bytes(frame)
    lib.mq_seal(sealed, size, data.draw(HOSTILE_WORDS), data.draw(HOSTILE_WORDS))


@pytest.mark.parametrize("size", range(97))
def test_short_inputs_of_every_call(size: int) -> None:
    """No call reads a header that is not there."""
    data, out = bytes(size), bytes(100)
    assert lib.mq_check(data, size) < 0
    assert lib.mq_check_first(data, size) < 0
    assert lib.mq_checked_prefix(data, size) == 0
    assert lib.mq_stamp(data, size, 1, 1, 1, 1, 1, out) < 0
    assert lib.mq_cut_size(data, size, 0, 1) < 0
    assert lib.mq_cut(data, size, 0, 1, out, 100) < 0
    assert lib.mq_list(data, size, 0, out, 100) < 0
    assert lib.mq_seal(data, size, 0, 0) < 0
    assert out == bytes(100)


@given(st.lists(st.integers(-(2**31), 2**31 - 1), min_size=1, max_size=9))
@example([0, 2**31 - 1, -(2**31)])
@example([-1, 0])
def test_lengths_between_any_offsets(numbers: list[int]) -> None:
    """Offsets that rise from 0 or more have lengths; all others are refused."""
    offsets = struct.pack(f"{len(numbers)}i", *numbers)
    if numbers[0] < 0 or numbers != sorted(numbers):
        with pytest.raises(ValueError, match="fall"):
            frames.lengths_between(offsets)
        return
    found = [to - start for start, to in pairwise(numbers)]
    made = struct.pack(f"{len(found)}i", *found)
    assert frames.lengths_between(offsets) == (made, max(found, default=0))
    with pytest.raises(ValueError, match="not offsets"):
        frames.lengths_between(offsets[:-1])


def test_header_of_too_few_bytes() -> None:
    """header() reads no checksum, but it reads no bytes that are not there either."""
    with pytest.raises(ProtocolError, match="87 bytes"):
        frames.header(SAMPLES[0][:87])


def test_every_code_has_a_text() -> None:
    """The table of codes has no hole, and what is no code says so."""
    texts = [ffi.string(lib.mq_error_text(-code)) for code in range(1, 17)]
    assert len(set(texts)) == 16
    assert b"no such error code" not in texts
    assert ffi.string(lib.mq_error_text(-17)) == b"no such error code"
    assert ffi.string(lib.mq_error_text(0)) == b"no such error code"
