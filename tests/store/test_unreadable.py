"""Frames that C takes into the rail's log and Python cannot read: they stop their queue alone."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from fuzz.mutation import resealed, spoiled_bytes
from mirrorq.node.verification import verify
from mirrorq.protocol.ops import FLAG_STEP, Entry, Header, OpKind, UnknownOp
from mirrorq.store.offline import OfflineStore
from mirrorq.wire import frames

from .railed import Railed, begun
from .writing import NEIGHBOUR, QUEUE, Writer, open_store


def next_frame(writer: Writer, kind: int, payload: bytes) -> bytes:
    """An op of this queue, sealed, whose payload is whatever it is."""
    stamps = {"queue_id": QUEUE, "epoch": writer.epoch, "lsn": writer.lsn + 1, "timestamp_us": 1}
    if kind == OpKind.PUBLISH:
        frame = frames.pack_publish([payload], flags=FLAG_STEP)
        return frames.stamp(frame, first_sequence=writer.sequence + 1, **stamps)
    return frames.pack_op(kind, payload, **stamps)


def write(railed: Railed, writer: Writer, frame: bytes, header: Header) -> bool:
    """Whether the rail has logged it.

    Args:
        header: what it would be, were it not spoiled.
    """
    try:
        railed.write(Entry(header, None, frame))
    except AssertionError:
        return False
    writer.lsn, writer.sequence = header.lsn, max(writer.sequence, header.last_sequence)
    return True


@pytest.mark.parametrize("is_taken", [True, False])
@pytest.mark.parametrize("kind", [OpKind.ACK, OpKind.COMMIT, OpKind.PUBLISH])
def test_a_payload_that_cannot_be_read(tmp_path: Path, kind: OpKind, is_taken: bool) -> None:
    """Its op is there and not known; what comes after it, and other queues, are whole. So it is
    after a crash, from LMDB, and for who verifies."""
    path, crashed = tmp_path / "store", tmp_path / "crashed"
    writer, neighbour = Writer(), Writer(NEIGHBOUR)
    railed = begun(path, writer, neighbour)
    frame = next_frame(writer, kind, b"\xc1 nothing of MessagePack")
    assert write(railed, writer, frame, frames.header(frame))
    railed.write(writer.publish([b"after"]))
    railed.write(neighbour.publish([b"other"]))
    if is_taken:
        assert len(railed.take()) == 3
    railed.crash(path, crashed)
    with OfflineStore(crashed) as offline:
        report = verify(offline)
    assert report.problems == []
    assert any("op 2 cannot be read" in note for note in report.notes)
    for _ in range(2):
        store = open_store(crashed)
        entries = store.load(QUEUE).entries
        assert [entry.lsn for entry in entries] == [1, 2, 3]
        assert isinstance(entries[1].payload, UnknownOp)
        assert "malformed" in entries[1].payload.why
        assert len(store.load(NEIGHBOUR).entries) == 2
        store.close()
    railed.store.close()


@pytest.mark.parametrize("seed", range(20))
def test_what_c_takes_python_reads(tmp_path: Path, seed: int) -> None:
    """Ops with whatever payload, and frames spoiled anywhere under a right checksum: a store with
    all that the rail has logged opens, and has each of them."""
    chance, path, crashed = Random(seed), tmp_path / "store", tmp_path / "crashed"
    writer = Writer()
    railed = begun(path, writer)
    logged = taken = spoiled_count = 0
    for _ in range(60):
        kind = chance.choice((*OpKind, 200, 255))
        whole = frame = next_frame(writer, kind, chance.randbytes(chance.randrange(40)))
        if chance.random() < 0.5:
            frame = resealed(spoiled_bytes(chance, whole))
        if write(railed, writer, frame, frames.header(whole)):
            logged += 1
            spoiled_count += frame != whole
        else:
            # It may have let go of the queue.
            railed.native.disarm(QUEUE)
            taken += len(railed.take())
            railed.arm(writer)
    taken += len(railed.take())
    assert taken == logged > spoiled_count
    railed.crash(path, crashed)
    store = open_store(crashed)
    assert len(store.load(QUEUE).entries) == 1 + logged
    store.close()
    railed.store.close()
