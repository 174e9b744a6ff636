"""What a donor reads for a joining member, and what the joiner makes of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from mirrorq.errors import ProtocolError
from mirrorq.node.frame_reader import FrameReader, chunk_of, unpacked
from mirrorq.protocol.effects import QueueWrite
from mirrorq.protocol.ring import FetchFrames, PackedChunk
from mirrorq.store.node_store import Store
from mirrorq.wire.messages import decode, encode

from .writing import QUEUE, Writer, open_store

ALL = 1 << 20


@pytest.fixture
def store(path: Path) -> Store:
    """Ten frames of ten messages, in several runs."""
    store = open_store(path)
    writer = Writer()
    for _ in range(5):
        entries = tuple(writer.publish([b"x" * 100] * 10) for _ in range(2))
        store.commit([QueueWrite(QUEUE, append=(*entries, writer.ack(1, 1)))])
    return store


def spans(store: Store, first: int, last: int, size: int = ALL, more: bool = False) -> object:
    """Sequences of the frames that come over the wire, and up to where they answer."""
    fetch = FetchFrames(QUEUE, 3, 7, first - 1, last, size, more)
    (packed,) = [decode([bytes(part) for part in encode(chunk_of(FrameReader(store, {}), fetch))])]
    assert isinstance(packed, PackedChunk)
    chunk = unpacked(packed)
    assert (chunk.queue_id, chunk.epoch, chunk.number) == (QUEUE, 3, 7)
    assert chunk.after_sequence == first - 1
    assert all(entry.payload is None for entry in chunk.entries)
    found = [(e.header.first_sequence, e.header.last_sequence) for e in chunk.entries]
    return found, chunk.upto_sequence


def test_whole_frames_come(store: Store) -> None:
    """Frames across the edges too: what is sent is what lies on the disk."""
    assert spans(store, 1, 20) == ([(1, 10), (11, 20)], 20)
    assert spans(store, 15, 32) == ([(11, 20), (21, 30), (31, 40)], 32)
    assert spans(store, 101, 200) == ([], 200)
    store.close()


def test_a_request_that_goes_on_has_no_frame_twice(store: Store) -> None:
    """What begins before the span is in the answer to the request before."""
    assert spans(store, 15, 32, more=True) == ([(21, 30), (31, 40)], 32)
    assert spans(store, 15, 18, more=True) == ([], 18)
    assert spans(store, 21, 30, more=True) == ([(21, 30)], 30)
    store.close()


def test_an_answer_that_is_large_enough_says_where_it_ends(store: Store) -> None:
    """At least one frame comes, though the first one read is left out."""
    assert spans(store, 1, 100, size=1500) == ([(1, 10), (11, 20)], 20)
    assert spans(store, 15, 100, size=1, more=True) == ([(21, 30)], 30)
    assert spans(store, 95, 100, size=1) == ([(91, 100)], 100)
    store.close()


def test_all_of_a_transfer_comes_once(store: Store) -> None:
    """Requests that go on from each other, of any size, bring each frame once."""
    for step in (1, 7, 10, 33):
        found: list[tuple[int, int]] = []
        for first in range(1, 101, step):
            last = min(first + step - 1, 100)
            found += spans(store, first, last, more=first > 1)[0]  # type: ignore[index]
        assert found == [(n, n + 9) for n in range(1, 101, 10)]
    store.close()


def test_what_is_no_run_of_publish_frames_is_refused(writer: Writer) -> None:
    """Damage, a cut, and an op that publishes nothing: none of it reaches the core."""
    publish, ack = writer.publish([b"x"]), writer.ack(1, 1)
    for run in (publish.frame[:-1], b"?" * 100, publish.frame + b"\0", publish.frame + ack.frame):
        with pytest.raises(ProtocolError):
            unpacked(PackedChunk(QUEUE, 1, 1, 0, 9, run))
    flipped = bytearray(publish.frame)
    flipped[-1] ^= 1
    with pytest.raises(ProtocolError):
        unpacked(PackedChunk(QUEUE, 1, 1, 0, 9, bytes(flipped)))
