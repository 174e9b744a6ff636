"""Frames made and read: what comes out is what went in, and what the reference codec says."""

from __future__ import annotations

import struct
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import reference
from generated import anything, numbers, ops, publishes, times, values
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import FLAG_PROPERTIES, FLAG_TERMS, Fields

from mirrorq.errors import ProtocolError
from mirrorq.protocol.ops import Header
from mirrorq.wire import frames


def make(fields: Fields) -> bytes:
    """The frame of `fields`, made by mirrorq."""
    if fields.kind != reference.PUBLISH:
        return frames.pack_op(
            fields.kind,
            fields.values[0],
            queue_id=fields.queue_id,
            epoch=fields.epoch,
            lsn=fields.lsn,
            count=fields.count,
            producer=fields.producer,
            first_number=fields.first_number,
            settled=fields.settled,
            flags=fields.flags,
            timestamp_us=fields.timestamp_us,
        )
    delay_ms, ttl_ms = fields.terms or (0, 0)
    unstamped = frames.pack_publish(
        fields.values,
        fields.properties,
        producer=fields.producer,
        first_number=fields.first_number,
        settled=fields.settled,
        flags=fields.flags & ~(FLAG_PROPERTIES | FLAG_TERMS),
        delay_ms=delay_ms,
        ttl_ms=ttl_ms,
    )
    return frames.stamp(
        unstamped,
        queue_id=fields.queue_id,
        epoch=fields.epoch,
        lsn=fields.lsn,
        first_sequence=fields.first_sequence,
        timestamp_us=fields.timestamp_us,
    )


def header_of(fields: Fields, length: int) -> Header:
    """The header that mirrorq should find."""
    delay_ms, ttl_ms = fields.terms or (0, 0)
    return Header(
        kind=fields.kind,
        flags=fields.flags,
        queue_id=fields.queue_id,
        epoch=fields.epoch,
        lsn=fields.lsn,
        first_sequence=fields.first_sequence,
        count=fields.count,
        producer=fields.producer,
        first_number=fields.first_number,
        settled=fields.settled,
        timestamp_us=fields.timestamp_us,
        length=length,
        delay_ms=delay_ms,
        ttl_ms=ttl_ms,
    )


@given(anything)
def test_made_as_the_reference_makes_it(fields: Fields) -> None:
    """Each byte of a frame is what the layout table says."""
    assert make(fields) == reference.encode(fields)


@given(anything)
def test_read_as_it_was_made(fields: Fields) -> None:
    """Header, bodies, properties and payload come back as they went in."""
    frame = reference.encode(fields)
    assert frames.check(frame) == header_of(fields, len(frame))
    assert frames.header(frame) == header_of(fields, len(frame))
    if fields.kind == reference.PUBLISH:
        assert frames.split(frame) == list(fields.values)
        expected = None if fields.properties is None else list(fields.properties)
        assert frames.split_properties(frame) == expected
    else:
        assert frames.payload(frame) == fields.values[0]
        assert frames.split_properties(frame) is None


@given(publishes(), st.integers(1, 9))
def test_read_from_any_buffer_at_any_address(fields: Fields, shift: int) -> None:
    """A frame within something larger, at an odd address, is read as well as one alone."""
    frame = reference.encode(fields)
    view = memoryview(bytearray(shift) + frame)[shift:]
    assert frames.check(view) == frames.check(frame)
    assert frames.split(view) == frames.split(frame)
    assert frames.split_properties(view) == frames.split_properties(frame)
    stamp = {"queue_id": 1, "epoch": 2, "lsn": 3, "first_sequence": 4, "timestamp_us": 5}
    assert frames.stamp(view, **stamp) == frames.stamp(frame, **stamp)


@given(ops())
def test_payload_of_a_view_is_bytes(fields: Fields) -> None:
    """A payload is a copy of its own also when the frame is a view of a run."""
    assert frames.payload(memoryview(reference.encode(fields))) == fields.values[0]


@given(publishes(), numbers, numbers, numbers, numbers, times)
def test_stamping_again_changes_only_the_stamp(
    fields: Fields, queue_id: int, epoch: int, lsn: int, first_sequence: int, timestamp_us: int
) -> None:
    """A frame that bears a stamp takes another one, and nothing else of it changes."""
    stamp: dict[str, Any] = {
        "queue_id": queue_id,
        "epoch": epoch,
        "lsn": lsn,
        "first_sequence": first_sequence,
        "timestamp_us": timestamp_us,
    }
    frame = frames.stamp(reference.encode(fields), **stamp)
    assert frame == reference.encode(replace(fields, **stamp))


def test_stamping_leaves_the_frame_given_alone() -> None:
    """The caller's bytes are not written to."""
    frame = frames.pack_publish([b"body"])
    before = bytes(bytearray(frame))
    frames.stamp(frame, queue_id=1, epoch=1, lsn=1, first_sequence=1, timestamp_us=1)
    assert frame == before


def test_stamping_does_not_hide_damage() -> None:
    """A body that changed after the frame was sealed is found out behind a new stamp, too."""
    damaged = bytearray(frames.pack_publish([b"body" * 50]))
    damaged[150] ^= 1
    stamped = frames.stamp(damaged, queue_id=1, epoch=1, lsn=1, first_sequence=1, timestamp_us=1)
    with pytest.raises(ProtocolError, match="checksum"):
        frames.check(stamped)


@given(publishes(), st.data())
def test_cut_as_the_reference_cuts(fields: Fields, data: st.DataObject) -> None:
    """Any range of messages is a frame of its own, its numbers moved along."""
    start = data.draw(st.integers(0, fields.count - 1))
    stop = data.draw(st.integers(start + 1, fields.count))
    frame = reference.encode(fields)
    piece = frames.cut(frame, start, stop)
    assert piece == reference.encode(reference.cut(fields, start, stop))
    frames.check(piece)


def test_cut_of_everything_is_the_frame_itself() -> None:
    """The whole range costs no copy."""
    frame = frames.pack_publish([b"a", b"b"])
    assert frames.cut(frame, 0, 2) is frame


@pytest.mark.parametrize(("start", "stop"), [(0, 0), (1, 1), (2, 1), (0, 3), (-1, 1), (2, 3)])
def test_cut_outside_is_refused(start: int, stop: int) -> None:
    """An empty range and one that leaves the frame are the caller's error."""
    with pytest.raises(ValueError, match="no messages"):
        frames.cut(frames.pack_publish([b"a", b"b"]), start, stop)


def test_cut_of_another_kind_is_refused() -> None:
    """Only publish frames have messages."""
    with pytest.raises(ValueError, match="no messages"):
        frames.cut(frames.pack_op(2, b"", queue_id=1, epoch=1, lsn=1), 0, 1)


@given(st.lists(anything, max_size=6))
def test_runs_are_split_into_their_frames(several: list[Fields]) -> None:
    """Frames end to end come apart as they were, as views of the run."""
    each = [reference.encode(fields) for fields in several]
    run = b"".join(each)
    split = frames.split_run(run)
    assert split == each
    assert all(piece.obj is run for piece in split)


@settings(max_examples=20)
@given(st.lists(anything, min_size=1, max_size=4), st.data())
def test_damage_in_a_run_is_located(several: list[Fields], data: st.DataObject) -> None:
    """The error names the offset of the frame that is wrong, not only that one is."""
    each = [reference.encode(fields) for fields in several]
    bad = data.draw(st.integers(0, len(each) - 1))
    offset = sum(map(len, each[:bad]))
    run = bytearray(b"".join(each))
    run[offset + data.draw(st.integers(0, len(each[bad]) - 1))] ^= 0x10
    with pytest.raises(ProtocolError, match=f"at offset {offset} in a run"):
        frames.split_run(run)


@given(
    st.integers(1, 30),
    st.lists(st.sampled_from([0, 1, 100, 127, 1023, 1024, 1025, 5000]), min_size=1, max_size=30),
)
def test_every_way_of_splitting_gives_the_same(count: int, sizes: list[int]) -> None:
    """Few or many bodies, small or large: `split` chooses its way by these and none differs."""
    bodies = [bytes([index]) * sizes[index % len(sizes)] for index in range(count)]
    assert frames.split(frames.pack_publish(bodies)) == bodies
    assert frames.split_properties(frames.pack_publish([b""] * count, bodies)) == bodies


def test_bodies_may_be_any_flat_buffer() -> None:
    """bytes, bytearray and memoryview are the same to a frame."""
    frame = frames.pack_publish([b"ab", bytearray(b"cd"), memoryview(b"xefx")[1:3]])
    assert frames.split(frame) == [b"ab", b"cd", b"ef"]


@pytest.mark.parametrize("size", [1, 2, 3, 6])
def test_views_of_wide_items_are_refused(size: int) -> None:
    """A memoryview whose len() is not its bytes would shift all that follows."""
    wide = memoryview(struct.pack(f"<{size}i", *[0] * size)).cast("i")
    with pytest.raises(ValueError, match="lengths"):
        frames.pack_publish([wide])
    with pytest.raises(ValueError, match="lengths"):
        frames.pack_publish([b"body"], [wide])


@pytest.mark.parametrize("body", ["text", 5, None, [1]])
def test_what_is_no_buffer_is_refused(body: object) -> None:
    """Not bytes-like: TypeError, not a frame of something else."""
    with pytest.raises(TypeError):
        frames.pack_publish([b"fine", body])  # type: ignore[list-item]


def test_no_message_is_refused() -> None:
    """A publish frame has at least one message."""
    with pytest.raises(ValueError, match="count"):
        frames.pack_publish([])


def test_properties_must_match_the_bodies() -> None:
    """One property for each body."""
    with pytest.raises(ValueError, match="2 bodies and 1 properties"):
        frames.pack_publish([b"a", b"b"], [b"p"])


@pytest.mark.parametrize("number", [-1, 2**63, 2**64])
@pytest.mark.parametrize("field", ["producer", "first_number", "settled"])
def test_numbers_out_of_range_are_refused(field: str, number: int) -> None:
    """What would not fit the store's keys or Arrow never gets into a frame."""
    numbered: dict[str, Any] = {field: number}
    with pytest.raises(ValueError, match="frame"):
        frames.pack_publish([b"a"], **numbered)


@pytest.mark.parametrize("number", [-1, 2**63, 2**64])
@pytest.mark.parametrize("field", ["queue_id", "epoch", "lsn", "first_sequence"])
def test_stamps_out_of_range_are_refused(field: str, number: int) -> None:
    """Neither does it by a stamp."""
    stamp = {"queue_id": 1, "epoch": 1, "lsn": 1, "first_sequence": 1, "timestamp_us": 1}
    with pytest.raises(ValueError, match="stamped"):
        frames.stamp(frames.pack_publish([b"a"]), **{**stamp, field: number})


def test_publish_is_no_op() -> None:
    """pack_op makes no publish frames: their columns are bodies."""
    with pytest.raises(ValueError, match="pack_publish"):
        frames.pack_op(1, b"", queue_id=1, epoch=1, lsn=1)


@given(values)
def test_columns_are_arrow_arrays(bodies: tuple[bytes, ...]) -> None:
    """(offsets, bodies) can be read as an Arrow binary array where they lie."""
    frame = frames.pack_publish(bodies, [b"property"] * len(bodies))
    offsets = memoryview(frame)[88 : 88 + 4 * (len(bodies) + 1)].cast("i")
    data = memoryview(frame)[88 + 4 * (len(bodies) + 1) :]
    assert [bytes(data[a:b]) for a, b in pairwise(offsets)] == list(bodies)
