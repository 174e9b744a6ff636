"""The catalog's Raft log, hard state and snapshot in the `raft` table."""

from __future__ import annotations

import struct

import lmdb
import msgspec

from mirrorq.protocol.effects import RaftEntry, RaftImage, RaftSnapshot, RaftState, RaftWrite
from mirrorq.protocol.identities import StoreId
from mirrorq.store.records import Damaged, decoded, seal, unseal

TABLE = "raft"
_STATE_KEY = b"state"
_SNAPSHOT_KEY = b"snapshot"
_ENTRY_KEY = struct.Struct(">cQ")
_PAGE_KEY = struct.Struct(">cQI")
_ENTRY_HEAD = struct.Struct("<QI")


def _entry_key(index: int) -> bytes:
    return _ENTRY_KEY.pack(b"e", index)


def _page_key(index: int, number: int) -> bytes:
    return _PAGE_KEY.pack(b"p", index, number)


class _SnapshotRecord(msgspec.Struct, array_like=True):
    """A snapshot on disk without its pages."""

    index: int
    term: int
    voters: tuple[StoreId, ...]
    count: int
    """Number of pages."""


def _encode_entry(entry: RaftEntry) -> bytes:
    return _ENTRY_HEAD.pack(entry.term, entry.kind) + entry.data


def _decode_entry(index: int, data: bytes) -> RaftEntry:
    term, kind = _ENTRY_HEAD.unpack_from(data)
    return RaftEntry(index, term, kind, data[_ENTRY_HEAD.size :])


def _decode_state(data: bytes) -> RaftState:
    return msgspec.msgpack.decode(data, type=RaftState)


def _decode_snapshot(data: bytes) -> _SnapshotRecord:
    return msgspec.msgpack.decode(data, type=_SnapshotRecord)


class RaftLog:
    """The `raft` table within one transaction, which the caller begins and ends."""

    def __init__(self, txn: lmdb.Transaction[memoryview], table: lmdb._Database) -> None:
        self._txn = txn
        self._table = table

    def image(self) -> RaftImage:
        """Everything, for the start."""
        entries: list[RaftEntry] = []
        cursor = self._txn.cursor(self._table)
        there = cursor.set_range(_entry_key(0))
        while there and len(cursor.key()) == _ENTRY_KEY.size:
            entry = self._entry(cursor.key(), cursor.value())
            if entries and entry.index != entries[-1].index + 1:
                raise Damaged(TABLE, cursor.key(), f"entry {entries[-1].index + 1} is missing")
            entries.append(entry)
            there = cursor.next()
        return RaftImage(self._state(), self._snapshot(), tuple(entries))

    def apply(self, write: RaftWrite) -> None:
        """Carry out a write, in the order of its fields."""
        if write.state is not None:
            self._put(_STATE_KEY, msgspec.msgpack.encode(write.state))
        for page in write.pages:
            self._put(_page_key(page.index, page.number), page.data)
        if write.snapshot is not None:
            self._compact(write.snapshot)
        if write.truncate_from is not None:
            self._delete(write.truncate_from, None)
        for entry in write.append:
            self._put(_entry_key(entry.index), _encode_entry(entry))

    def _compact(self, snapshot: RaftSnapshot) -> None:
        agrees = self._term_at(snapshot.index) == snapshot.term
        self._delete(0, snapshot.index if agrees else None)
        self._delete_keys(_page_key(0, 0), _page_key(snapshot.index, 0))
        head = snapshot.index, snapshot.term, snapshot.voters, len(snapshot.pages)
        self._put(_SNAPSHOT_KEY, msgspec.msgpack.encode(_SnapshotRecord(*head)))

    def _term_at(self, index: int) -> int | None:
        key = _entry_key(index)
        value = self._txn.get(key, db=self._table)
        if value is not None:
            return self._entry(key, value).term
        before = self._record()
        return before.term if before is not None and before.index == index else None

    def _delete(self, first: int, last: int | None) -> None:
        """Delete the entries from `first` to `last`; None: to the end."""
        end = b"f" if last is None else _entry_key(last + 1)
        self._delete_keys(_entry_key(first), end)

    def _delete_keys(self, first: bytes, end: bytes) -> None:
        """Delete all keys from `first` up to `end`, exclusive."""
        cursor = self._txn.cursor(self._table)
        there = cursor.set_range(first)
        while there and bytes(cursor.key()) < end:
            there = cursor.delete() and bool(cursor.key())

    def _state(self) -> RaftState:
        value = self._txn.get(_STATE_KEY, db=self._table)
        return RaftState() if value is None else decoded(TABLE, _STATE_KEY, value, _decode_state)

    def _record(self) -> _SnapshotRecord | None:
        value = self._txn.get(_SNAPSHOT_KEY, db=self._table)
        return None if value is None else decoded(TABLE, _SNAPSHOT_KEY, value, _decode_snapshot)

    def _snapshot(self) -> RaftSnapshot | None:
        record = self._record()
        if record is None:
            return None
        pages = tuple(self._page(record.index, number) for number in range(record.count))
        return RaftSnapshot(record.index, record.term, record.voters, pages)

    def _page(self, index: int, number: int) -> bytes:
        key = _page_key(index, number)
        value = self._txn.get(key, db=self._table)
        if value is None:
            raise Damaged(TABLE, key, f"page {number} of snapshot {index} is missing")
        return unseal(TABLE, key, value)

    def _entry(self, key: memoryview | bytes, value: memoryview) -> RaftEntry:
        index = _ENTRY_KEY.unpack(key)[1]
        return decoded(TABLE, key, value, lambda data: _decode_entry(index, data))

    def _put(self, key: bytes, data: bytes) -> None:
        self._txn.put(key, seal(key, data), db=self._table)
