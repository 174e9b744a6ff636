"""What gathers until it is staged: lists and columns make the same frames, cut alike."""

from __future__ import annotations

from array import array
from itertools import accumulate

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mirrorq.api.batching import MESSAGE_OVERHEAD
from mirrorq.bulk import staged_chunk
from mirrorq.bulk.staged_chunk import ArrowColumn, StagedChunk
from mirrorq.wire import frames

FIRST = b"what is asked"


def column_of(bodies: list[bytes], before: bytes) -> ArrowColumn:
    """These bodies as a slice of a larger column."""
    ends = accumulate(map(len, bodies), initial=len(before))
    return ArrowColumn.of(array("i", ends).tobytes(), before + b"".join(bodies) + b"behind")


def frame_of(chunk: StagedChunk) -> bytes:
    """The frame of what has gathered."""
    bodies, properties = chunk.emptied()
    said = None if properties is None else frames.pieces_of([b"", *properties])
    return frames.pack_pieces(bodies.count + 1, bodies.behind(FIRST), said)


def frames_by_lists(batches: list[list[bytes]]) -> list[bytes]:
    """The frames that batches of bodies make, put as lists."""
    chunk, made = StagedChunk(), []
    for bodies in batches:
        start = 0
        while start < len(bodies):
            start = chunk.add_messages(bodies, None, start)
            if chunk.is_full:
                made.append(frame_of(chunk))
    return [*made, frame_of(chunk)] if chunk.bodies.count else made


def frames_by_columns(batches: list[list[bytes]], before: bytes) -> list[bytes]:
    """The same, put as columns."""
    chunk, made = StagedChunk(), []
    for bodies in batches:
        column, start = column_of(bodies, before), 0
        while start < len(column):
            start = chunk.take_column(column, start)
            if chunk.is_full:
                made.append(frame_of(chunk))
    return [*made, frame_of(chunk)] if chunk.bodies.count else made


@settings(deadline=None)
@given(
    st.lists(st.lists(st.binary(max_size=40), max_size=12), max_size=5),
    st.binary(max_size=5),
    st.integers(1, 120),
    st.integers(1, 15),
)
def test_columns_make_the_frames_that_lists_make(
    batches: list[list[bytes]], before: bytes, size: int, count: int
) -> None:
    """With chunks as small as messages: none is missing, and each chunk is a sound frame."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(staged_chunk, "CHUNK_BYTES", size)
        patch.setattr(staged_chunk, "CHUNK_SLACK", size // 4)
        patch.setattr(staged_chunk, "CHUNK_COUNT", count)
        made = frames_by_columns(batches, before)
        assert made == frames_by_lists(batches)
    found = []
    for frame in made:
        frames.check(frame)
        first, *bodies = frames.split(frame)
        assert first == FIRST
        assert 1 <= len(bodies) <= count
        weight = sum(map(len, bodies)) + MESSAGE_OVERHEAD * len(bodies)
        heaviest = max(map(len, bodies)) + MESSAGE_OVERHEAD
        assert weight <= size + max(size // 4, heaviest)
        found += bodies
    assert found == [body for bodies in batches for body in bodies]


def test_properties_begin_in_the_middle_of_a_chunk() -> None:
    """Those before and behind have none."""
    chunk = StagedChunk()
    chunk.take_column(column_of([b"a", b"b"], b""), 0)
    chunk.add_messages([b"c"], [b"said"], 0)
    chunk.take_column(column_of([b"d"], b"x"), 0)
    chunk.add_messages([b"e"], None, 0)
    frame = frame_of(chunk)
    assert frames.split(frame) == [FIRST, b"a", b"b", b"c", b"d", b"e"]
    assert frames.split_properties(frame) == [b"", b"", b"", b"said", b"", b""]
