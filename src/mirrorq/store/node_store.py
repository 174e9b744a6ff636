"""`Store`: the disk state of one node."""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import lmdb
from attrs import define, field
from msgspec.structs import replace

from mirrorq.config import Config
from mirrorq.errors import StoreCorrupt, StoreError, StoreFull
from mirrorq.protocol.effects import QueueImage, QueueWrite, RaftImage, RaftWrite
from mirrorq.protocol.identities import first_incarnation, incarnation_after
from mirrorq.store.environment import Environment, Space, Tables
from mirrorq.store.log_mark import (
    FORMAT,
    FORMAT_VERSION,
    RAIL_MARK,
    check_format,
    end_log,
    left_in_log,
    put_mark,
    take_in,
)
from mirrorq.store.queue_log import NextSequence, QueueLog, Record, none_may
from mirrorq.store.raft_log import RaftLog
from mirrorq.store.rail_log import HALF_BYTES, RAIL_FILE, merged, surviving_rail
from mirrorq.store.records import Damaged, decoded, pack_u64, seal, unpack_u64
from mirrorq.store.run_table import Hint
from mirrorq.store.write_ahead import (
    LogFile,
    LogMark,
    Pending,
    Tail,
    is_append,
    is_stable_alone,
    packed,
    pieces_of,
    size_of,
)
from mirrorq.wire import frames

log = logging.getLogger("mirrorq")

Decoded = TypeVar("Decoded")

_LMDB = b"lmdb"
_NODE = b"node"
STORE_ID = b"store id"
INCARNATION = b"incarnation"
_VALUE = b"value "
"""Prefix of the names used by `put_meta`."""
_KNOWN_NAME = "known incarnation"
_KNOWN = _VALUE + _KNOWN_NAME.encode()


def _library() -> str:
    """The version of LMDB's format."""
    major, minor, _ = lmdb.version()
    return f"{major}.{minor}"


@define
class Rail:
    """The rail's log while in use."""

    file: LogFile
    salt: int
    taken: int = 0
    """The last record taken into memory."""
    lmdb_has: int = 0
    """The last record in LMDB."""
    bytes_behind: int = 0
    """Approximate bytes of the records between both."""
    ends: dict[int, int] = field(factory=dict)
    """Queue id -> last op logged by the rail, unless the queue was cut since."""
    failed: int = 0
    """Record with a failed write: the disk may have the record all the same."""


class Store:
    """One node's store. The path is locked from construction to `close`; `open_files` writes first.

    Threads: one thread at a time writes; any thread may read. Not to be used after a fork.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        node: str,
        config: Config,
        begin: bool = True,
        salvages: bool = False,
    ) -> None:
        """Lock the store's path, read its state, and `open_files`.

        Args:
            path: The node's directory; made if absent, else a store's or empty. On a local file
                system.
            node: The node's name. A store belongs to one node for good.
            config: `store_bytes_max` limits the bytes of messages.
            begin: False: the caller begins, when nothing else can refuse its start. Until then
                only `raft_image` is allowed, and no byte of the store is changed.
            salvages: The store is the only copy: damaged ops do not stop the use of the rest.

        Raises:
            StoreLocked: Another process, or another `Store` of this process, has the path open.
            StoreCorrupt: A stored value differs from the written value.
            StoreError: The store is another node's or another version's, or the directory
                cannot be used.
        """
        self.node = node
        self.path = Path(path)
        self._salvages = salvages
        self._records: dict[int, Record] = {}
        self._hints: dict[int, Hint] = {}
        self._file: LogFile | None = None
        self._tail: Tail | None = None
        """End of the log, once LMDB marks the log as in use."""
        self._pending = Pending()
        """Log records missing in LMDB. Replaced, never emptied: other threads may read them."""
        self._ends: dict[int, int] = {}
        """Queue id -> lsn of the last commit, where the commit was an append."""
        self._is_log_refused = False
        """The log cannot be made or has failed: all commits go to LMDB."""
        self._rail: Rail | None = None
        self._is_new = False
        self._found: RaftImage | None = RaftImage()
        """The catalog's Raft state on disk, until `open_files`."""
        self._environment = Environment(self.path, config.store_bytes_max)
        try:
            identity = self._environment.look(self._look)
            self.store_id, self.incarnation = identity or self._new_identity()
            if begin:
                self.open_files()
        except BaseException:
            self._environment.close()
            raise

    def open_files(self) -> None:
        """Open or make the files, and write the new incarnation to disk.

        Raises:
            StoreError: The files cannot be used.
        """
        self._environment.open()
        self._environment.write(self._begin)
        self._found = None

    def close(self) -> None:
        """Move all log records into LMDB, and close the files. May be called again; in a forked
        child a no-op.

        After a failed write the same as `abandon`.
        """
        if self._found is not None:
            self._environment.close()
            return
        self._put_back_logs()
        # A failing disk does not stop the close: all acknowledged data is in the logs.
        with suppress(StoreError):
            self._environment.write(self._end_logs)
        self._close_files()
        self._environment.close()

    def _end_logs(self, txn: lmdb.Transaction[memoryview]) -> None:
        log, rail = QueueLog(txn, self._environment.tables, self._records), self._rail
        writes = self._pending.writes()
        if rail is not None:
            # The rail has promised its written records, taken into memory or not.
            left = surviving_rail(self.path, LogMark(rail.salt, rail.taken))
            writes = merged(writes, [one for one in left if log.record(one.queue_id) is not None])
        for write in writes:
            log.apply(write)
        for queue_id, known in {**self._records, **log.changed}.items():
            if known is not None:
                log.put_record(queue_id, known)
        end_log(txn, self._environment.tables)

    def abandon(self) -> None:
        """Close the files without a write, like a killed process, after a failure of the owner. The
        next start takes in the log records."""
        self._put_back_logs()
        self._close_files()
        self._environment.close(is_clean=False)

    def _put_back_logs(self) -> None:
        if not self._environment.is_at_path:
            return  # The path may be another store's by now.
        for log_file in (self._file, None if self._rail is None else self._rail.file):
            if log_file is not None:
                with suppress(OSError):
                    log_file.put_back()

    def _close_files(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
        if self._rail is not None:
            self._rail.file.close()
            self._rail = None

    def note_ending(self) -> None:
        """Note the node as closed but busy with its disk: an error tells a second opener. From any
        thread."""
        self._environment.note_ending()

    # --- Identity -----------------------------------------------------------------------

    def _look(self, txn: lmdb.Transaction[memoryview], tables: Tables) -> tuple[int, int] | None:
        """Check the store's owner and read all of its start state. Return the identity and the new
        incarnation, None when no store was made yet."""
        if not any(txn.stat(table)["entries"] for table in tables.all()):
            return None
        check_format(txn, tables, self.path)
        written_by = self._get(txn, tables, _LMDB, bytes.decode)
        if written_by != _library():
            raise StoreError(
                f"store {self.path} was made by LMDB {written_by}, this is {_library()}: "
                "install the lmdb package that has that version"
            )
        owner = self._get(txn, tables, _NODE, bytes.decode)
        if owner != self.node:
            raise StoreError(
                f"store {self.path} belongs to node {owner!r}, not to {self.node!r}: "
                f"give the path of {self.node!r}, or start this node as {owner!r}"
            )
        try:
            left_in_log(txn, tables, self.path)
        except Damaged as error:
            if not self._salvages:
                raise
            log.error("store %s: %s. All records that are whole are used", self.path, error)
        self._found = RaftLog(txn, tables.raft).image()
        previous = self._get(txn, tables, INCARNATION, unpack_u64)
        known = None
        if txn.get(_KNOWN, db=tables.meta) is not None:
            known = self._get(txn, tables, _KNOWN, unpack_u64)
        store_id = self._get(txn, tables, STORE_ID, unpack_u64)
        return store_id, incarnation_after(previous, secrets.randbits(32), known)

    def _new_identity(self) -> tuple[int, int]:
        self._is_new = True
        store_id = secrets.randbelow((1 << 63) - 1) + 1
        return store_id, first_incarnation(store_id)

    def _begin(self, txn: lmdb.Transaction[memoryview]) -> None:
        if self._is_new:
            self._put(txn, FORMAT, pack_u64(FORMAT_VERSION))
            self._put(txn, _LMDB, _library().encode())
            self._put(txn, _NODE, self.node.encode())
            self._put(txn, STORE_ID, pack_u64(self.store_id))
        else:
            take_in(txn, self._environment.tables, self.path, salvages=self._salvages)
        self._put(txn, INCARNATION, pack_u64(self.incarnation))

    def _put(self, txn: lmdb.Transaction[memoryview], key: bytes, data: bytes) -> None:
        txn.put(key, seal(key, data), db=self._environment.tables.meta)

    def _get(
        self,
        txn: lmdb.Transaction[memoryview],
        tables: Tables,
        key: bytes,
        decode: Callable[[bytes], Decoded],
    ) -> Decoded:
        value = txn.get(key, db=tables.meta)
        if value is None:
            raise Damaged("meta", key, "it is missing")
        return decoded("meta", key, value, decode)

    # --- Start --------------------------------------------------------------------------

    def queue_ids(self) -> list[int]:
        """Return every queue with content in the store, in order."""
        return self._environment.read(lambda txn: self._log(txn).queue_ids())

    def load(
        self, queue_id: int, next_sequence: NextSequence = none_may, *, whole: bool = True
    ) -> QueueImage:
        """Return the image of a queue: checkpoint and all later ops; empty when unknown.

        Args:
            whole: with the data of all pages; else pages readable by `page` come without data.
            next_sequence: returns the next sequence after a checkpoint, so messages below may
                be damaged; by default no message may be damaged.

        Raises:
            StoreCorrupt: A value differs from the written value, or an op is missing.
        """
        behind = self._pending.of_queue(queue_id)
        image = self._environment.read(
            lambda txn: self._log(txn).image(
                queue_id, next_sequence, whole=whole, salvages=self._salvages
            )
        )
        if behind is None:
            return image
        stable = image.stable if behind.stable is None else behind.stable
        return replace(image, entries=image.entries + behind.append, stable=stable)

    def page(self, queue_id: int, kind: int, first: int, lsn: int) -> bytes:
        """Read a page of a checkpoint, which must still be on the disk.

        Raises:
            StoreCorrupt: The page is missing or changed.
        """

        def work(txn: lmdb.Transaction[memoryview]) -> bytes:
            data = self._log(txn).page(queue_id, kind, first, lsn)
            if data is None:
                raise Damaged("queues", b"", f"page {kind} {first} {lsn} of {queue_id} is missing")
            return data

        return self._environment.read(work)

    def raft_image(self) -> RaftImage:
        """Return the catalog's Raft state on disk.

        Raises:
            StoreCorrupt: A value differs from the written value.
        """
        if self._found is not None:
            return self._found
        return self._environment.read(
            lambda txn: RaftLog(txn, self._environment.tables.raft).image()
        )

    # --- Work ---------------------------------------------------------------------------

    def commit(self, queues: Sequence[QueueWrite], raft: RaftWrite | None = None) -> None:
        """Carry out all writes as one: small writes in a record of the log, else in one transaction
        with all pending log records.

        Durability: on return the whole commit is on disk. After StoreFull nothing is on disk, and
        the same writes may be tried again. After any other error the store takes no further write,
        and the state of the commit on disk is unknown until the next start.

        Raises:
            StoreFull: The disk or the map is full. Messages within `room` always fit; acks,
                checkpoints, releases and Raft fit within the reserve.
            StoreError: The disk failed, now or before.
            StoreCorrupt: A value read for the commit differs from the written value.
        """

        if self._rail is not None:
            queues = self._not_railed(self._rail, queues)
            if not queues and raft is None:
                return
        is_small = raft is None and is_append(queues) and self._follows(queues)
        # After a record of unknown fate, later writes must not go to the other log.
        is_small = is_small and (self._rail is None or self._rail.failed <= self._rail.lmdb_has)
        if is_small and self._append_to_log(queues):
            return
        begun = self._begun_log() if is_small and self._tail is None else None
        self._commit_to_lmdb(queues, raft, begun)

    def _commit_to_lmdb(
        self, queues: Sequence[QueueWrite], raft: RaftWrite | None, begun: Tail | None
    ) -> None:
        """Commit the writes, and all pending log records; `begun` puts a new log into use."""
        tail, rail = begun or self._tail, self._rail

        def work(txn: lmdb.Transaction[memoryview]) -> dict[int, Record | None]:
            log = QueueLog(
                txn, self._environment.tables, self._records, self._environment.run_bytes_max
            )
            for write in self._pending.writes():
                log.apply(write)
            for write in queues:
                log.apply(write)
            log.collect()
            if raft is not None:
                RaftLog(txn, self._environment.tables.raft).apply(raft)
            if tail is not None and (tail is begun or tail.is_ahead):
                put_mark(txn, self._environment.tables, tail.mark)
            if rail is not None and rail.taken > rail.lmdb_has:
                mark = LogMark(rail.salt, rail.taken)
                put_mark(txn, self._environment.tables, mark, key=RAIL_MARK)
            return log.changed

        self._keep(self._environment.write(work))
        self._note_ends(queues)
        if self._pending:
            self._pending = Pending()
        self._tail = tail
        if tail is not None:
            tail.cut()
        if rail is not None:
            rail.lmdb_has, rail.bytes_behind = rail.taken, 0

    # --- The log ------------------------------------------------------------------------

    def _follows(self, queues: Sequence[QueueWrite]) -> bool:
        """Return true if each write continues, op by op, a commit since the start. So a log record
        makes no new queue, and leaves no gap."""
        ends = self._ends
        return all(
            write.append and write.append[0].lsn - 1 == ends.get(write.queue_id) for write in queues
        )

    def _note_ends(self, queues: Sequence[QueueWrite]) -> None:
        for write in queues:
            if write.append:
                self._ends[write.queue_id] = write.append[-1].lsn
            elif write.reset or write.truncate_to is not None:
                self._ends.pop(write.queue_id, None)

    def _append_to_log(self, queues: Sequence[QueueWrite]) -> bool:
        """Make a small commit durable as a log record; False if the log cannot take the record."""
        tail, file = self._tail, self._file
        if tail is None or file is None or not self._environment.has_plenty:
            return False
        self._environment.check()
        payload = packed(queues)
        if not file.is_there:
            # The log file was deleted: LMDB gets all pending records, and a new log begins.
            file.close()
            self._file = self._tail = None
            return False
        if not tail.takes(len(payload)):
            return False
        try:
            file.write(tail.end, pieces_of(tail.next(), payload))
        except OSError as error:
            self._give_log_up(error)
            return False
        tail.appended(len(payload))
        self._pending.add(queues)
        self._note_ends(queues)
        return True

    def _begun_log(self) -> Tail | None:
        """A log to be used from the next commit to LMDB on; None where there is to be none."""
        if self._is_log_refused or not self._environment.has_plenty:
            return None
        self._environment.check()
        if not self._environment.is_at_path:
            return None
        try:
            if self._file is None:
                self._file = LogFile(self.path)
                self._file.go_past_cache()
        except OSError as error:
            self._give_log_up(error)
            return None
        return Tail(secrets.randbits(63), self._file.size)

    def _give_log_up(self, error: OSError) -> None:
        """Stop using the log. A record may be on disk or not: LMDB gets it, and all later ops."""
        log.warning("store %s: its log cannot be used, LMDB alone is slower: %s", self.path, error)
        self._is_log_refused = True
        if self._file is not None:
            self._file.close()
            self._file = None

    # --- The rail's log -----------------------------------------------------------------

    def begin_rail(self) -> Rail | None:
        """A log for the rail's thread; None where there is none to be had."""
        try:
            file = LogFile(self.path, RAIL_FILE)
        except OSError as error:
            log.warning("store %s: it has no room for the rail's log: %s", self.path, error)
            return None
        if not file.is_synced:
            file.close()
            return None
        rail = Rail(file, secrets.randbits(63))

        def work(txn: lmdb.Transaction[memoryview]) -> None:
            mark = LogMark(rail.salt, 0)
            tables = self._environment.tables
            put_mark(txn, tables, mark, key=RAIL_MARK)

        self._environment.write(work)
        self._rail = rail
        return rail

    def may_rail(self, queue_id: int, after: int) -> bool:
        """Return true if the rail's log may take the ops of a queue after lsn `after`. A commit
        since the start must end there, and the disk must have plenty."""
        return self._ends.get(queue_id) == after and self.has_plenty

    @property
    def has_plenty(self) -> bool:
        """Return true if the disk has enough room for logs."""
        return self._environment.has_plenty

    def take_railed(self, writes: Sequence[QueueWrite], number: int) -> None:
        """Note all records of the rail's log up to `number` as durable. The next commit to LMDB
        brings the ops there. The commit runs now if many bytes of the rail's log wait."""
        rail = self._rail
        assert rail is not None
        for write in writes:
            rail.bytes_behind += size_of(sum(len(entry.frame) for entry in write.append))
            if self._ends.get(write.queue_id) == write.append[0].lsn - 1:
                # Otherwise the queue was deleted meanwhile.
                self._pending.add([write])
                self._ends[write.queue_id] = rail.ends[write.queue_id] = write.append[-1].lsn
        rail.taken = number
        if rail.bytes_behind >= HALF_BYTES // 2:
            with suppress(StoreFull):
                self._commit_to_lmdb((), None, None)

    def end_rail(self, number: int) -> None:
        """Note the failure of the rail's log: its last record, `number`, may be on disk or not.
        From the next commit on, which goes to LMDB, the record does not count."""
        rail = self._rail
        assert rail is not None
        rail.failed = rail.taken = max(rail.taken, number)

    def _not_railed(self, rail: Rail, queues: Sequence[QueueWrite]) -> list[QueueWrite]:
        """Return the writes without ops logged by the rail, which are durable already."""
        rest: list[QueueWrite] = []
        for write in queues:
            if write.reset or write.truncate_to is not None:
                rail.ends.pop(write.queue_id, None)
            end = rail.ends.get(write.queue_id)
            if end is not None and write.append and write.append[0].lsn <= end:
                write = replace(write, append=write.append[end - write.append[0].lsn + 1 :])
                if not write.append and is_stable_alone(write):
                    self._pending.add([write])
                    continue
            rest.append(write)
        return rest

    def check(self) -> None:
        """Check the store's files in their place, for callers without a commit.

        Raises:
            StoreError: A file was deleted or replaced: the next start would miss its content.
        """
        self._environment.check()
        if self._rail is not None and not self._rail.file.is_there:
            raise StoreError(
                f"store {self.path}: its {RAIL_FILE} was deleted while it was open, so nothing "
                "more is confirmed here. End this process and start it again"
            )

    def collect(self) -> bool:
        """Delete a bounded part of the values left by deleted and purged queues.

        Each commit does so too; this method is for a node without commits.

        Returns:
            True if more is left.
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
        """Read the frames with messages of a range, live or not.

        Args:
            queue_id: The queue.
            first: First sequence of the range.
            last: Last sequence of the range.
            bytes_max: The frame which reaches the limit is the last.

        Returns:
            Whole checked frames in order of sequence: at least one frame, if any. The frames are
            copies; frames of one run share their memory.

        Raises:
            StoreCorrupt: A frame differs from the written frame.
        """

        # Taken first: records which leave `_pending` during the read are in LMDB.
        pending = self._pending
        edge = pending.first_sequence(queue_id)
        if edge is None or edge > last:
            return self._read_lmdb(queue_id, first, last, bytes_max)
        found: list[memoryview] = []
        left = max(bytes_max, 1)
        while first < edge and left > 0:
            try:
                read = self._read_lmdb(queue_id, first, edge - 1, left)
            except StoreCorrupt:
                if found:
                    return found
                raise
            if not read:
                break
            found += read
            left -= sum(map(len, read))
            first = frames.span(read[-1])[1] + 1
        for entry in pending.messages_from(queue_id, first):
            if left <= 0 or entry.header.first_sequence > last:
                break
            found.append(memoryview(entry.frame))
            left -= len(entry.frame)
        return found

    def _read_lmdb(self, queue_id: int, first: int, last: int, bytes_max: int) -> list[memoryview]:
        def work(txn: lmdb.Transaction[memoryview]) -> list[memoryview]:
            # Reads take turns, so the hint has one user at a time.
            hint = self._hints.setdefault(queue_id, Hint())
            return self._log(txn).read(queue_id, first, last, bytes_max, hint)

        return self._environment.read(work)

    def _log(self, txn: lmdb.Transaction[memoryview]) -> QueueLog:
        # A reader sees its own snapshot: the writer's records may be ahead.
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
        """Bytes in use in the store; the file may be larger, with free pages for reuse."""
        return self._environment.used_bytes()

    def room(self, wanted: int = 0) -> Space:
        """Return the space for messages in the next commit: see `Environment.room`."""
        space = self._environment.room(wanted)
        waits = self._pending.size
        if not waits:
            return space
        return Space(space.bytes_left - waits, space.largest, space.advice)

    def make_room(self) -> None:
        """Make pages of earlier commits and deletions usable, when there is nothing else to commit.
        A full disk is no error here, only no room."""
        with suppress(StoreFull):
            if not self._environment.turn_over():
                self.collect()

    def queue_bytes(self, queue_id: int) -> int:
        """Bytes of a queue's frames; after a crash an estimate."""
        record = self._records.get(queue_id)
        if record is None:
            record = self._environment.read(lambda txn: self._log(txn).record(queue_id))
        waits = self._pending.queue_bytes(queue_id)
        return waits if record is None else record.run_bytes + waits

    # --- Small values -------------------------------------------------------------------

    def note_known(self) -> None:
        """Note the cluster's registration of this incarnation; synced on return."""
        self.put_meta(_KNOWN_NAME, pack_u64(self.incarnation))

    def put_meta(self, name: str, value: bytes) -> None:
        """Keep a small value of the node under a name; synced on return."""
        key = _VALUE + name.encode()
        self._environment.write(lambda txn: self._put(txn, key, value))

    def get_meta(self, name: str) -> bytes | None:
        """Return the value under a name, None without a value.

        Raises:
            StoreCorrupt: The value differs from the written value.
        """
        key = _VALUE + name.encode()

        def work(txn: lmdb.Transaction[memoryview]) -> bytes | None:
            value = txn.get(key, db=self._environment.tables.meta)
            return None if value is None else decoded("meta", key, value, bytes)

        return self._environment.read(work)
