"""The file of a spool: what producers have put and their cluster has not confirmed yet.

An LMDB environment of its own, with three tables. A *line* is one queue's part of it.

    lines     line number                  -> `LineHead`
    records   line, ordinal, count (>QQI)  -> what was put together, as its user packs it
    aside     line, ordinal, count         -> reason and record, of what was refused or is damaged

Values are sealed (`records`). How many messages a record has stands in its key, so that a record
that cannot be read leaves no doubt about the numbers of those behind it.

*Threads*: one thread calls everything; others may call what reads, which `close` waits for:
LMDB's memory goes with it.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import lmdb
import msgspec
from attrs import define, field

from mirrorq import system
from mirrorq.errors import StoreCorrupt, StoreError, StoreFull, StoreLocked
from mirrorq.store.pathlock import PathLock
from mirrorq.store.records import Damaged, decoded, seal, unseal
from mirrorq.waiting import Latch, Present

SLACK_BYTES = 64 << 20
"""The file may be so much larger than its bound: LMDB's own pages, and what drains a full one."""
FORMAT = 1
"""Of the tables; a file of a later one is refused."""
FORMAT_KEY = b"format"
READERS_MAX = 126
"""Who reads at once. The spool's thread is one of them, and fails when it has no place."""
CLOSE_S = 5.0
"""Who reads longer than this is waited for no more."""
_KEY = struct.Struct(">QQI")
_LINE = struct.Struct(">Q")


class LineHead(msgspec.Struct):
    """What is known of one queue's line."""

    name: str
    """The queue's."""
    producer: int
    """The id under which it publishes."""
    base: int = 1
    sent_to: int = 0
    """See `spool.line`."""
    next_ordinal: int = 1
    count: int = 0
    """Messages in its records."""
    size: int = 0
    """Bytes of its records."""
    aside_count: int = 0
    """Messages set aside."""
    durable: bool = True
    """With `auto_delete`: how the queue is declared."""
    auto_delete: bool = False


class SpoolRecord(NamedTuple):
    """One record of a line."""

    ordinal: int
    messages: int
    size: int
    """Of the stored value, in bytes."""
    data: bytes | None
    """None: it is damaged."""


class Aside(msgspec.Struct):
    """What was set aside."""

    reason: str
    record: bytes
    """As it stood in the file."""
    is_damaged: bool = False


@define
class SpoolWrites:
    """What one commit brings."""

    puts: list[tuple[int, int, int, bytes]] = field(factory=list)
    """(line, ordinal, count, data)."""
    ended: list[tuple[int, int, int]] = field(factory=list)
    """(line, ordinal, count) of records that go."""
    aside: list[tuple[int, int, int, str, bytes]] = field(factory=list)
    """(line, ordinal, count, reason, data) of those that go aside."""
    damaged: list[tuple[int, int, int]] = field(factory=list)
    """Those that go aside as they are."""
    taken: list[tuple[int, int, int]] = field(factory=list)
    """Those that leave the table of what was set aside."""
    heads: dict[int, LineHead] = field(factory=dict)

    def __bool__(self) -> bool:
        return bool(self.puts or self.ended or self.aside or self.damaged or self.taken) or bool(
            self.heads
        )


def stored_size(data: bytes) -> int:
    """Bytes that a record takes of the spool's bound."""
    return len(data) + _KEY.size + 4


class _Reader:
    """Somebody who walks a table."""

    def __init__(self) -> None:
        self.is_over = Latch()


class SpoolFile:
    """One spool's file, open.

    Args:
        path: its directory; it is made when it is not there.
        bytes_max: of records; the file may have SLACK_BYTES more.

    Raises:
        StoreLocked: another process has it.
        StoreError: it cannot be opened, or a newer mirrorq has written it.
    """

    def __init__(self, path: Path, bytes_max: int) -> None:
        self.path = path
        self._readers: Present[_Reader] = Present()
        self._is_closing = False
        try:
            system.make_private_directory(path)
            self._lock = PathLock(path)
            self._lock.begin()
        except StoreLocked as error:
            pid = str(error).partition("(pid ")[2].partition(")")[0] or "unknown"
            raise StoreLocked(
                f"spool {path} is open in another process (pid {pid}): two processes never share "
                "one. Give each a path of its own"
            ) from error
        except OSError as error:
            raise StoreError(f"spool {path} cannot be opened: {error}") from error
        try:
            self._env: lmdb.Environment = lmdb.open(
                os.fsencode(path),
                map_size=bytes_max + SLACK_BYTES,
                max_dbs=3,
                subdir=True,
                metasync=True,
                sync=True,
                max_readers=READERS_MAX,
                mode=system.PRIVATE_FILE,
            )
            with self._env.begin(write=True) as txn:
                self._lines = self._env.open_db(b"lines", txn)
                self._records = self._env.open_db(b"records", txn)
                self._aside = self._env.open_db(b"aside", txn)
                self._check_format(txn)
        except lmdb.Error as error:
            self._lock.release(is_clean=False)
            raise StoreCorrupt(
                f"spool {path} cannot be opened: {error}. What is in it was accepted and not yet "
                "confirmed. Move the directory away to go on without it"
            ) from error
        except BaseException:
            self._lock.release(is_clean=False)
            raise

    def _check_format(self, txn: lmdb.Transaction[bytes]) -> None:
        value = txn.get(FORMAT_KEY)
        if value is None:
            txn.put(FORMAT_KEY, _LINE.pack(FORMAT))
        elif value != _LINE.pack(FORMAT):
            raise StoreError(
                f"spool {self.path} is of format {int.from_bytes(value, 'big')}, this mirrorq "
                f"writes {FORMAT}: use the version that has written it"
            )

    def close(self) -> None:
        """Close it, when nobody reads any more. Nothing is written any more."""
        self._is_closing = True
        for reader in self._readers.all():
            reader.is_over.wait(CLOSE_S)
        self._env.close()
        self._lock.release(is_clean=True)

    # --- Reading --------------------------------------------------------------------------

    def heads(self) -> dict[int, LineHead]:
        """All lines by their numbers.

        Raises:
            StoreCorrupt: one cannot be read.
        """
        found = {}
        with self._env.begin() as txn, txn.cursor(self._lines) as cursor:
            for key, value in cursor:
                try:
                    head = decoded("lines", key, value, _HEADS.decode)
                except Damaged as error:
                    raise StoreCorrupt(
                        f"spool {self.path}: {error}. Its records stay where they are: move the "
                        "directory away to go on without them"
                    ) from error
                found[_LINE.unpack(key)[0]] = head
        return found

    def after(self, line: int, ordinal: int, bytes_max: int) -> list[SpoolRecord]:
        """Records behind this one in order: one at least, if there is any, about `bytes_max`."""
        found: list[SpoolRecord] = []
        size = 0
        for key, value in self._walk(self._records, line, ordinal + 1):
            if found and size + len(value) > bytes_max:
                break
            _, place, count = _KEY.unpack(key)
            try:
                data: bytes | None = unseal("records", key, value)
            except Damaged:
                data = None
            found.append(SpoolRecord(place, count, len(value) + _KEY.size, data))
            size += len(value)
        return found

    def set_aside(self, line: int) -> list[tuple[int, int, Aside]]:
        """(ordinal, count, what) of everything that was set aside of a line."""
        found = []
        for key, value in self._walk(self._aside, line, 0):
            _, place, count = _KEY.unpack(key)
            try:
                one = decoded("aside", key, value, _ASIDES.decode)
            except Damaged as error:
                one = Aside(f"it is damaged: {error}", bytes(value), True)
            found.append((place, count, one))
        return found

    def first(self, line: int) -> int:
        """Ordinal of a line's first record, 0: it has none. Nothing of the record is read."""
        with self._cursor(self._records) as cursor:
            if not cursor.set_range(_KEY.pack(line, 0, 0)):
                return 0
            number, ordinal, _ = _KEY.unpack(cursor.key())
            return ordinal if number == line else 0

    def _walk(self, table: Any, line: int, ordinal: int) -> Iterator[tuple[bytes, bytes]]:
        with self._cursor(table) as cursor:
            if not cursor.set_range(_KEY.pack(line, ordinal, 0)):
                return
            prefix = _LINE.pack(line)
            for key, value in cursor:
                if key[: _LINE.size] != prefix:
                    return
                yield key, value

    @contextmanager
    def _cursor(self, table: Any) -> Iterator[lmdb.Cursor[bytes]]:
        reader = _Reader()
        self._readers.add(reader)
        try:
            # In this order: `close` looks at who reads after it has said that it closes.
            if self._is_closing:
                raise StoreError(f"spool {self.path} is closed")
            with self._env.begin() as txn, txn.cursor(table) as cursor:
                yield cursor
        except lmdb.Error as error:
            raise StoreError(f"spool {self.path} cannot be read: {error}") from error
        finally:
            self._readers.leave(reader)
            reader.is_over.set()

    # --- Writing --------------------------------------------------------------------------

    def commit(self, writes: SpoolWrites) -> None:
        """One transaction, synced when this returns: all of it is there after a crash, or nothing.

        Raises:
            StoreFull: the disk or the file has no room for it. Nothing was written.
            StoreError: the disk has failed.
        """
        try:
            with self._env.begin(write=True) as txn:
                self._write(txn, writes)
        except lmdb.MapFullError as error:
            raise StoreFull(
                f"spool {self.path} is full: raise spool_bytes_max, or wait until the cluster has "
                "taken what is in it"
            ) from error
        except lmdb.DiskError as error:
            raise StoreFull(f"the disk of spool {self.path} is full: {error}") from error
        except lmdb.Error as error:
            raise StoreError(f"spool {self.path} cannot be written: {error}") from error

    def _write(self, txn: lmdb.Transaction[bytes], writes: SpoolWrites) -> None:
        records, aside = self._records, self._aside
        for line, ordinal, count, data in writes.puts:
            key = _KEY.pack(line, ordinal, count)
            txn.put(key, seal(key, data), db=records, append=False)
        for place in _keys(writes.ended):
            txn.delete(place, db=records)
        for line, ordinal, count, reason, data in writes.aside:
            key = _KEY.pack(line, ordinal, count)
            txn.put(key, seal(key, _ENCODER.encode(Aside(reason, data))), db=aside)
            txn.delete(key, db=records)
        for key in _keys(writes.damaged):
            value = bytes(txn.get(key, b"", db=records))
            told = Aside("its bytes on the disk have changed", value, True)
            txn.put(key, seal(key, _ENCODER.encode(told)), db=aside)
            txn.delete(key, db=records)
        for key in _keys(writes.taken):
            txn.delete(key, db=aside)
        for line, head in writes.heads.items():
            key = _LINE.pack(line)
            txn.put(key, seal(key, _ENCODER.encode(head)), db=self._lines)


def _keys(places: Iterable[tuple[int, int, int]]) -> Iterator[bytes]:
    return (_KEY.pack(*place) for place in places)


_ENCODER = msgspec.msgpack.Encoder()
_HEADS = msgspec.msgpack.Decoder(LineHead)
_ASIDES = msgspec.msgpack.Decoder(Aside)
