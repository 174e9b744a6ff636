"""The catalog's Raft log on disk, with the meaning that effects.py gives to each field."""

from __future__ import annotations

from pathlib import Path

import lmdb
import pytest

from mirrorq.errors import StoreCorrupt, StoreFull
from mirrorq.protocol.effects import (
    QueueWrite,
    RaftEntry,
    RaftImage,
    RaftSnapshot,
    RaftState,
    RaftWrite,
    SnapshotPage,
)
from mirrorq.protocol.identities import StoreId
from mirrorq.store.environment import Transaction

from .writing import QUEUE, Writer, open_store

VOTERS = (StoreId("a", 1), StoreId("b", (1 << 63) - 1))


def entry(index: int, term: int = 1) -> RaftEntry:
    return RaftEntry(index, term, index % 3, b"data %d" % index)


def write_of(snapshot: RaftSnapshot, append: tuple[RaftEntry, ...] = ()) -> RaftWrite:
    """A snapshot with all its pages."""
    pages = (SnapshotPage(snapshot.index, n, page) for n, page in enumerate(snapshot.pages))
    return RaftWrite(pages=tuple(pages), snapshot=snapshot, append=append)


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
    snapshot = RaftSnapshot(3, 2, VOTERS, (b"catalog" * 1000, b"more"))
    entries = tuple(entry(index) for index in range(4, 8))
    image = after(path, RaftWrite(state), write_of(snapshot, entries))
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
    snapshot = RaftSnapshot(290, 1, VOTERS, (b"s",))
    image = after(path, RaftWrite(append=entries), write_of(snapshot))
    assert image.snapshot == snapshot
    assert image.entries == entries[290:]
    again = after(path, write_of(snapshot))
    assert again == image


def test_pages_wait_for_their_snapshot(path: Path) -> None:
    """Of an earlier snapshot they go with the next one; of a later one they stay."""
    first = RaftSnapshot(3, 1, VOTERS, (b"one", b"two"))
    second = RaftSnapshot(9, 1, VOTERS, (b"three", b"four"))
    begun = RaftWrite(pages=(SnapshotPage(9, 0, b"three"),))
    image = after(path, begun, write_of(first))
    assert image.snapshot == first
    rest = RaftWrite(pages=(SnapshotPage(9, 1, b"four"),), snapshot=second)
    assert after(path, rest).snapshot == second
    store = open_store(path)
    environment = store._environment
    keys = environment.read(lambda txn: _keys(txn, environment.tables.raft))
    store.close()
    assert [key[:1] for key in keys] == [b"p", b"p", b"s"]


def _keys(txn: Transaction, table: lmdb._Database) -> list[bytes]:
    return [bytes(key) for key, _ in txn.cursor(table)]


def test_a_snapshot_whose_page_is_missing_is_named(path: Path) -> None:
    with pytest.raises(StoreCorrupt, match="page 1 of snapshot 3 is missing"):
        after(
            path,
            RaftWrite(
                pages=(SnapshotPage(3, 0, b"one"),),
                snapshot=RaftSnapshot(3, 1, VOTERS, (b"one", b"two")),
            ),
        )


def test_a_snapshot_of_another_history_replaces_the_log(path: Path) -> None:
    """Another term at its index, or no entry there: the whole log goes."""
    entries = tuple(entry(index) for index in range(1, 10))
    snapshot = RaftSnapshot(5, 2, VOTERS, (b"s",))
    assert after(path, RaftWrite(append=entries), write_of(snapshot)).entries == ()
    ahead = RaftSnapshot(50, 2, VOTERS, (b"t",))
    more = tuple(entry(index, 2) for index in range(6, 10))
    image = after(path, RaftWrite(append=more), write_of(ahead))
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
