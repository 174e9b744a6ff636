"""The catalog's Raft log on disk, with the meaning that effects.py gives to each field."""

from __future__ import annotations

from pathlib import Path

import pytest

from mirrorq.errors import StoreFull
from mirrorq.protocol.effects import (
    QueueWrite,
    RaftEntry,
    RaftImage,
    RaftSnapshot,
    RaftState,
    RaftWrite,
)
from mirrorq.protocol.identities import StoreId

from .writing import QUEUE, Writer, open_store

VOTERS = (StoreId("a", 1), StoreId("b", (1 << 63) - 1))


def entry(index: int, term: int = 1) -> RaftEntry:
    return RaftEntry(index, term, index % 3, b"data %d" % index)


def after(path: Path, *writes: RaftWrite) -> RaftImage:
    """The image after these writes and a restart."""
    store = open_store(path)
    for write in writes:
        store.commit([], write)
    store.close()
    store = open_store(path)
    image = store.raft_image()
    store.close()
    return image


def test_state_snapshot_and_entries_come_back(path: Path) -> None:
    """All fields, over a restart; the state has vote and founding promise."""
    state = RaftState(5, VOTERS[1], b"promise")
    snapshot = RaftSnapshot(3, 2, VOTERS, b"catalog" * 1000)
    entries = tuple(entry(index) for index in range(4, 8))
    image = after(path, RaftWrite(state=state), RaftWrite(snapshot=snapshot, append=entries))
    assert image == RaftImage(state, snapshot, entries)


def test_truncation_comes_before_appending(path: Path) -> None:
    """Entries from an index on are replaced in one write."""
    old = tuple(entry(index) for index in range(1, 301))
    new = tuple(entry(index, 2) for index in range(250, 260))
    image = after(path, RaftWrite(append=old), RaftWrite(truncate_from=250, append=new))
    assert image.entries == old[:249] + new


def test_a_snapshot_of_the_own_log_keeps_what_follows(path: Path) -> None:
    """The log holds (index, term) of the snapshot: entries after it stay."""
    entries = tuple(entry(index) for index in range(1, 301))
    snapshot = RaftSnapshot(290, 1, VOTERS, b"s")
    image = after(path, RaftWrite(append=entries), RaftWrite(snapshot=snapshot))
    assert image.snapshot == snapshot
    assert image.entries == entries[290:]
    again = after(path, RaftWrite(snapshot=snapshot))
    assert again == image


def test_a_snapshot_of_another_history_replaces_the_log(path: Path) -> None:
    """Another term at its index, or no entry there: the whole log goes."""
    entries = tuple(entry(index) for index in range(1, 10))
    snapshot = RaftSnapshot(5, 2, VOTERS, b"s")
    assert after(path, RaftWrite(append=entries), RaftWrite(snapshot=snapshot)).entries == ()
    ahead = RaftSnapshot(50, 2, VOTERS, b"t")
    more = tuple(entry(index, 2) for index in range(6, 10))
    image = after(path, RaftWrite(append=more), RaftWrite(snapshot=ahead))
    assert (image.snapshot, image.entries) == (ahead, ())


def test_queues_and_catalog_are_one_transaction(path: Path) -> None:
    """A write that cannot be made takes nothing of the other with it to disk."""
    store = open_store(path, store_bytes_max=1 << 20)
    huge = QueueWrite(QUEUE, append=(Writer().publish([b"x" * (70 << 20)]),))
    with pytest.raises(StoreFull):
        store.commit([huge], RaftWrite(state=RaftState(9)))
    assert store.raft_image().state == RaftState()
    assert store.queue_ids() == []
    store.close()
