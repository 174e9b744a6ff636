"""`Store`: all that one node keeps on its disk."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import lmdb

from mirrorq.config import Config
from mirrorq.errors import StoreError, StoreFull
from mirrorq.protocol.effects import QueueImage, QueueWrite, RaftImage, RaftWrite
from mirrorq.protocol.identities import first_incarnation
from mirrorq.store.environment import Environment, Space
from mirrorq.store.queue_log import NextSequence, QueueLog, Record, none_may
from mirrorq.store.raft_log import RaftLog
from mirrorq.store.records import Damaged, decoded, pack_u64, seal, unpack_u64
from mirrorq.store.run_table import Hint

FORMAT_VERSION = 1
"""Of keys and values. Any change that an older mirrorq would misread raises it."""

Decoded = TypeVar("Decoded")

_FORMAT = b"format"
_LMDB = b"lmdb"
_NODE = b"node"
STORE_ID = b"store id"
INCARNATION = b"incarnation"
_VALUE = b"value "
"""Before the names of what `put_meta` keeps."""


class Store:
    """One node's store. Open from construction to `close`.

    Threads: one thread at a time writes; any thread may read. Not to be used after a fork.
    """

    def __init__(self, path: str | os.PathLike[str], *, node: str, config: Config) -> None:
        """Open the store, or make one, and begin a new incarnation, which is on disk then.

        Args:
            path: The node's directory; made if absent, else a store's or empty. On a local file
                system.
            node: The node's name. A store belongs to one node for good.
            config: `store_bytes_max` bounds what messages may fill.

        Raises:
            StoreLocked: Another process, or another `Store` of this one, has it open.
            StoreCorrupt: Something on disk is not what was written.
            StoreError: The store is another node's or another version's, or the directory
                cannot be used.
        """
        self.node = node
        self.path = Path(path)
        self._records: dict[int, Record] = {}
        self._hints: dict[int, Hint] = {}
        self._environment = Environment(self.path, config.store_bytes_max)
        try:
            self.store_id, self.incarnation = self._environment.write(self._begin)
        except BaseException:
            self._environment.close()
            raise

    def close(self) -> None:
        """Close the files. May be called again; in a forked child it does nothing."""

        def work(txn: lmdb.Transaction[memoryview]) -> None:
            log = self._log(txn)
            for queue_id, record in self._records.items():
                log.put_record(queue_id, record)

        # Estimates and hints: a disk that does not take them keeps nobody from closing.
        with suppress(StoreError):
            self._environment.write(work)
        self._environment.close()

    # --- Identity -----------------------------------------------------------------------

    def _begin(self, txn: lmdb.Transaction[memoryview]) -> tuple[int, int]:
        """Check whose store this is; return its identity and the new incarnation."""
        major, minor, _ = lmdb.version()
        library = f"{major}.{minor}"
        tables = self._environment.tables
        if not any(txn.stat(table)["entries"] for table in tables.all()):
            store_id = secrets.randbelow((1 << 63) - 1) + 1
            self._put(txn, _FORMAT, pack_u64(FORMAT_VERSION))
            self._put(txn, _LMDB, library.encode())
            self._put(txn, _NODE, self.node.encode())
            self._put(txn, STORE_ID, pack_u64(store_id))
            incarnation = first_incarnation(store_id)
            self._put(txn, INCARNATION, pack_u64(incarnation))
            return store_id, incarnation
        version = self._get(txn, _FORMAT, unpack_u64)
        if version != FORMAT_VERSION:
            raise StoreError(
                f"store {self.path} has format {version}, this mirrorq reads {FORMAT_VERSION}: "
                "use the mirrorq that made it, or give this node a path of its own"
            )
        written_by = self._get(txn, _LMDB, bytes.decode)
        if written_by != library:
            raise StoreError(
                f"store {self.path} was made by LMDB {written_by}, this is {library}: "
                "install the lmdb package that has that version"
            )
        owner = self._get(txn, _NODE, bytes.decode)
        if owner != self.node:
            raise StoreError(
                f"store {self.path} belongs to node {owner!r}, not to {self.node!r}: "
                f"give the path of {self.node!r}, or start this node as {owner!r}"
            )
        incarnation = self._get(txn, INCARNATION, unpack_u64) + 1
        self._put(txn, INCARNATION, pack_u64(incarnation))
        return self._get(txn, STORE_ID, unpack_u64), incarnation

    def _put(self, txn: lmdb.Transaction[memoryview], key: bytes, data: bytes) -> None:
        txn.put(key, seal(key, data), db=self._environment.tables.meta)

    def _get(
        self, txn: lmdb.Transaction[memoryview], key: bytes, decode: Callable[[bytes], Decoded]
    ) -> Decoded:
        value = txn.get(key, db=self._environment.tables.meta)
        if value is None:
            raise Damaged("meta", key, "it is missing")
        return decoded("meta", key, value, decode)

    # --- Start --------------------------------------------------------------------------

    def queue_ids(self) -> list[int]:
        """Every queue that has anything in this store, in order."""
        return self._environment.read(lambda txn: self._log(txn).queue_ids())

    def load(self, queue_id: int, next_sequence: NextSequence = none_may) -> QueueImage:
        """What is held of a queue: checkpoint and all ops after it; empty when unknown.

        Args:
            next_sequence: tells of a checkpoint which sequence comes next, so that messages which
                it covers may be damaged; without it none may.

        Raises:
            StoreCorrupt: One of them is not as it was written, or an op is missing.
        """
        return self._environment.read(lambda txn: self._log(txn).image(queue_id, next_sequence))

    def raft_image(self) -> RaftImage:
        """What is held of the catalog.

        Raises:
            StoreCorrupt: It is not as it was written.
        """
        return self._environment.read(
            lambda txn: RaftLog(txn, self._environment.tables.raft).image()
        )

    # --- Work ---------------------------------------------------------------------------

    def commit(self, queues: Sequence[QueueWrite], raft: RaftWrite | None = None) -> None:
        """Carry out all of these writes in one transaction.

        Durability: all of it is on disk when this returns. When it raises, nothing of it is,
        and the store can be used on: the same writes may be tried again.

        Raises:
            StoreFull: The disk or the map is full. Messages within `room` are taken, and acks,
                checkpoints, releases and Raft for as long as the reserve goes.
            StoreError: The disk failed.
            StoreCorrupt: Something that had to be read is not as it was written.
        """

        def work(txn: lmdb.Transaction[memoryview]) -> dict[int, Record | None]:
            log = QueueLog(
                txn, self._environment.tables, self._records, self._environment.run_bytes_max
            )
            for write in queues:
                log.apply(write)
            log.collect()
            if raft is not None:
                RaftLog(txn, self._environment.tables.raft).apply(raft)
            return log.changed

        self._keep(self._environment.write(work))

    def collect(self) -> bool:
        """Delete a bounded part of what deleted and purged queues have left behind.

        Each commit does so too; this is for a node that has nothing to commit.

        Returns:
            Whether more is left.
        """

        def work(txn: lmdb.Transaction[memoryview]) -> tuple[dict[int, Record | None], bool]:
            log = QueueLog(txn, self._environment.tables, self._records)
            log.collect()
            return log.changed, log.has_garbage()

        if not self._environment.read(lambda txn: self._log(txn).has_garbage()):
            return False
        changed, is_more = self._environment.write(work)
        self._keep(changed)
        return is_more

    def read(self, queue_id: int, first: int, last: int, bytes_max: int) -> list[memoryview]:
        """Read the frames that hold messages of a range, whether these still matter or not.

        Args:
            queue_id: The queue.
            first: First sequence of the range.
            last: Last sequence of the range.
            bytes_max: Frames after the one that reaches this are left out.

        Returns:
            Whole checked frames in order of sequence: at least one, if there is any. They are
            copies; those of one run share their memory.

        Raises:
            StoreCorrupt: A frame is not as it was written.
        """

        def work(txn: lmdb.Transaction[memoryview]) -> list[memoryview]:
            # Reads take turns, so the hint has one user at a time.
            hint = self._hints.setdefault(queue_id, Hint())
            return self._log(txn).read(queue_id, first, last, bytes_max, hint)

        return self._environment.read(work)

    def _log(self, txn: lmdb.Transaction[memoryview]) -> QueueLog:
        # A reader sees its own snapshot: what the writer knows may be ahead of it.
        return QueueLog(txn, self._environment.tables)

    def _keep(self, changed: dict[int, Record | None]) -> None:
        for queue_id, record in changed.items():
            if record is None:
                self._records.pop(queue_id, None)
                self._hints.pop(queue_id, None)
            else:
                self._records[queue_id] = record

    # --- Sizes --------------------------------------------------------------------------

    def store_bytes(self) -> int:
        """Bytes in use in the store; the file may be larger, and its free pages are reused."""
        return self._environment.used_bytes()

    def room(self, wanted: int = 0) -> Space:
        """What messages may take in the next commit: see `Environment.room`."""
        return self._environment.room(wanted)

    def make_room(self) -> None:
        """Make usable what earlier commits have freed or left to be deleted, where there is
        nothing else to be committed. A full disk is no error here: there is no room then."""
        with suppress(StoreFull):
            if not self._environment.turn_over():
                self.collect()

    def queue_bytes(self, queue_id: int) -> int:
        """Bytes of a queue's frames; after a crash an estimate."""
        record = self._records.get(queue_id)
        if record is None:
            record = self._environment.read(lambda txn: self._log(txn).record(queue_id))
        return 0 if record is None else record.run_bytes

    # --- Small values -------------------------------------------------------------------

    def put_meta(self, name: str, value: bytes) -> None:
        """Keep a small value of the node under a name; synced when this returns."""
        key = _VALUE + name.encode()
        self._environment.write(lambda txn: self._put(txn, key, value))

    def get_meta(self, name: str) -> bytes | None:
        """The value under a name, None when there is none.

        Raises:
            StoreCorrupt: It is not as it was written.
        """
        key = _VALUE + name.encode()

        def work(txn: lmdb.Transaction[memoryview]) -> bytes | None:
            value = txn.get(key, db=self._environment.tables.meta)
            return None if value is None else decoded("meta", key, value, bytes)

        return self._environment.read(work)
