"""The LMDB environment of one node: its files, its transactions, its errors.

One thread writes at a time and any thread may read. A read takes `_reading` while its transaction
is open, which is short: LMDB can neither move nor grow the map during a transaction. A transaction
left open would keep freed pages from reuse.

No write is refused for its content: a writer of messages asks for `room` first. `room` returns the
bytes of `store_bytes_max` and of the disk which the next commit can use for sure. The number is
below the free bytes: freed pages are reused one commit after the freeing commit, and large values
need adjacent pages. Draining writes (acks, checkpoints, releases, Raft) do not ask, and have a
reserve: of the map, and of blocks on the disk (`extent`). The map grows by doubling, as far as
messages, holes too small for messages, and the reserve may need.
"""

from __future__ import annotations

import errno
import os
import struct
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, TypeAlias, TypeVar

import lmdb
from attrs import frozen
from lmdb import verify as lmdb_verify

from mirrorq import system
from mirrorq.errors import StoreCorrupt, StoreError, StoreFull
from mirrorq.store.extent import Extent
from mirrorq.store.free_pages import Stretch, usable_stretches
from mirrorq.store.open_file import has_name
from mirrorq.store.pathlock import DATA_FILE, LMDB_LOCK_FILE, PathLock
from mirrorq.store.pathlock import FILE_NAME as LOCK_FILE
from mirrorq.store.records import Damaged, pack_u64, seal
from mirrorq.store.runs import RUN_BYTES_MAX

Result = TypeVar("Result")

MAP_BYTES_START = 64 << 20
"""The map is only address space, but a small map keeps the file of a small store small."""
ROOM_BYTES = 256 * 1024 * 1024
"""With more room left in the file, free pages are not counted."""
ENOUGH_BYTES = 64 << 20
"""With more room in adjacent free pages, the search for further pages ends."""
SLACK_BYTES = 64 << 20
"""The file may be so much larger than `store_bytes_max`, or twice as large, before a message waits
for space below the limit: two of the largest frames find adjacent pages in the extra space."""
MAP_RESERVE_BYTES = 64 << 20
"""Map beyond the file's limit, for draining writes. Only the used part is ever on the disk."""
RESERVE_TAIL_PART = 4
"""The reserve's part which always lies behind the last page, in one piece."""
RUN_BYTES_SMALL = 64 << 10
"""Limit of message runs while free pages are counted: small runs need few adjacent pages."""
READERS_MAX = 64
"""Slots in the lock file; mirrorq reads once at a time, backups and tools take the rest."""
LMDB_LOCK_BYTES = 8192
"""At least the size that LMDB gives its lock file for `READERS_MAX`."""
WALK_BYTES_MAX = 256 << 20
"""After an unclean end the pages of a file up to this size are walked before LMDB maps them: a few
milliseconds for messages in batches, two seconds for a commit for each message."""
TURN = b"turn"
"""Key of the value written by a commit without other content."""
NO_TXN = 1 << 64
"""Greater than the number of any transaction."""

OVERLOOKED = ("lost+found", ".gitignore", ".gitkeep", ".keep", ".DS_Store", ".snapshot")
"""A directory with only these entries counts as empty: a new file system makes the first in its
root, and empty directories kept in place hold another."""
ENTRIES_SHOWN = 3

_META = struct.Struct("<16xI20xI92xQQ")
"""Fields of a meta page: magic, size of a page, last page, transaction. The meta page of the later
transaction counts."""
_META_MAGIC = 0xBEEFC0DE

_FULL_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_DAMAGE = (
    lmdb.CorruptedError,
    lmdb.PageNotFoundError,
    lmdb.InvalidError,
    lmdb.BadValsizeError,
    lmdb.IncompatibleError,
)
_RENEW = (
    "Stop this node, move the directory away and start it again: "
    "it then takes its queues from the other members, or put a backup in its place"
)


def is_store(path: Path) -> bool:
    """Return true if the directory has an LMDB file."""
    try:
        with (path / DATA_FILE).open("rb") as file:
            head = file.read(_META.size)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return len(head) == _META.size and _META.unpack(head)[0] == _META_MAGIC


def open_to_look(path: Path) -> lmdb.Environment:
    """Open LMDB's files without a lock and without changes.

    Raises:
        lmdb.Error: The files are unreadable.
    """
    return lmdb.open(
        os.fsencode(path), readonly=True, lock=False, create=False, max_dbs=8, lib_version=0
    )


def _refuse_occupied(path: Path) -> None:
    """Refuse a directory with foreign files. With a mistyped path, or the parent of the data, both
    would lie together, and a removal of either would remove both.

    A store is known by its pages, or by its lock file, the first file made.

    Raises:
        StoreError: The directory has other files, and no store.
    """
    if is_store(path):
        return
    names = [name for name in os.listdir(path) if name not in OVERLOOKED]
    names.sort(key=lambda name: (name.startswith("."), name))
    if names and LOCK_FILE not in names:
        shown = ", ".join(names[:ENTRIES_SHOWN])
        more = f" and {len(names) - ENTRIES_SHOWN} more" if len(names) > ENTRIES_SHOWN else ""
        raise StoreError(
            f"directory {path} holds no store of mirrorq, and is not empty: {shown}{more}. Nothing "
            "was written there. Give the node a directory of its own: one that is empty, or that "
            f"is not there yet, as {path / 'mirrorq'}"
        )


class Space(NamedTuple):
    """Space for messages, usable in the next commit for sure."""

    bytes_left: int
    """Bytes in all; below 0 when the store holds more than its limit."""
    largest: int
    """Bytes of the largest frame: adjacent free pages."""
    advice: str
    """How to get more space, "" when there is plenty."""
    draining: int = 1 << 62
    """Bytes of the largest draining value, a checkpoint."""


Transaction: TypeAlias = "lmdb.Transaction[memoryview]"
"""A read or write transaction, for code which walks the tables."""


@frozen(eq=False)
class Tables:
    """The named databases of an environment: the tables of docs/disk-format.md."""

    meta: lmdb._Database
    queues: lmdb._Database
    messages: lmdb._Database
    ops: lmdb._Database
    garbage: lmdb._Database
    raft: lmdb._Database

    @classmethod
    def open(
        cls,
        environment: lmdb.Environment,
        txn: lmdb.Transaction[memoryview] | None,
    ) -> Tables:
        """Open or create the tables within `txn`; None: open them in a read-only environment."""
        names = ("meta", "queues", "messages", "ops", "garbage", "raft")
        create = txn is not None
        return cls(*(environment.open_db(name.encode(), txn, create=create) for name in names))

    def all(self) -> tuple[lmdb._Database, ...]:
        return (self.meta, self.queues, self.messages, self.ops, self.garbage, self.raft)


_CLOSED = (
    "this process has closed its files, as programs do that become daemons: open nodes and queues "
    "after that"
)


class Environment:
    """The LMDB environment at a path. The path is locked from construction to `close`, by one
    process. No write happens before `open`."""

    def __init__(self, path: Path, bytes_max: int) -> None:
        """Lock the path and check the files.

        Args:
            path: Directory; made if absent, else a store's or empty.
            bytes_max: Limit of bytes for messages.

        Raises:
            StoreLocked: The path is open already.
            StoreCorrupt: The files are not as LMDB wrote them.
            StoreError: The directory cannot be used.
        """
        self.path = path
        self._bytes_max = bytes_max
        self._pid = os.getpid()
        self._writing = threading.Lock()
        self._reading = threading.Lock()
        self._space: Space | None = None
        """Last result of `room`, until the next write."""
        self._is_counted = False
        """Space is short, so free pages were counted."""
        self._is_turned = False
        """All freed pages are usable: no write since `turn_over`."""
        self._file_bytes = 0
        """Bytes up to the last page in use, as of the last commit."""
        self._txn_id = 0
        """Number of the last begun write transaction."""
        self._is_open = False
        self._failure = ""
        """Error of a failed write, except a full disk: no write follows."""
        try:
            if path.exists() and not path.is_dir():
                raise StoreError(f"store {path} is a file: give a directory")
            system.make_private_directory(path)
            self._lock = PathLock(path)
        except OSError as error:
            raise self._unusable(error) from error
        try:
            _refuse_occupied(path)
            with self._translated("opening"):
                self._check_files()
        except BaseException:
            self._lock.release(is_clean=False)
            raise

    # --- Opening and closing ------------------------------------------------------------

    def _unusable(self, error: OSError) -> StoreError:
        return StoreError(
            f"store {self.path} cannot be used ({error}): give a directory that can be written"
        )

    def look(self, work: Callable[[Transaction, Tables], Result]) -> Result | None:
        """Run `work` on the files before `open`; None when no store was made yet.

        Raises:
            StoreCorrupt: The files are not as LMDB wrote them.
            StoreError: The files are not mirrorq's.
        """
        file = self.path / DATA_FILE
        if not file.exists() or not file.stat().st_size:
            return None
        with self._translated("opening"), open_to_look(self.path) as looked_at:
            with looked_at.begin(buffers=True) as txn:
                names = {bytes(name) for name in looked_at.dbs(txn)}
                entries = txn.stat()["entries"]
            if b"meta" not in names:
                if not entries:
                    return None
                raise StoreError(
                    f"store {self.path} holds an LMDB environment that mirrorq did not make: "
                    "give this node a path of its own"
                )
            # Not in the first transaction: handles would end with it.
            tables = Tables.open(looked_at, None)
            with looked_at.begin(buffers=True) as txn:
                return work(txn, tables)

    def open(self) -> None:
        """Open the files, made if absent. Writes are allowed from here on.

        Raises:
            StoreError: The files cannot be used.
        """
        try:
            self._lock.record_open()
        except OSError as error:
            raise self._unusable(error) from error
        with self._translated("opening"):
            self._open()
        self._is_open = True

    def _check_files(self) -> None:
        """Walk the pages when the file may be damaged.

        LMDB trusts the mapped file. A file shorter than its own records say, or a changed page
        number, ends the process with a signal instead of an error.
        """
        file = self.path / DATA_FILE
        size = file.stat().st_size if file.exists() else 0
        if size == 0:
            return
        whole = _whole_bytes(file)
        is_walk_due = not self._lock.was_clean and size <= WALK_BYTES_MAX
        if is_walk_due or whole is None or size < whole:
            problems, _ = walk(file)
            if problems:
                more = f" and {len(problems) - 1} more" if len(problems) > 1 else ""
                raise StoreCorrupt(
                    f"store {self.path}: {DATA_FILE} of {size} bytes is damaged: "
                    f"{problems[0]}{more}. {_RENEW}"
                )
        if whole is not None and size < whole:
            # Legal when the last pages are free and were never written. Otherwise a value now ends
            # in zeros, found by its checksum, instead of a SIGBUS.
            os.truncate(file, whole)

    def _reserve_lock_file(self) -> None:
        """Have the disk give the blocks of LMDB's lock file. LMDB writes the file through a map: on
        a full disk the process would end with SIGBUS."""
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        file = os.open(self.path / LMDB_LOCK_FILE, flags, system.PRIVATE_FILE)
        try:
            system.take_blocks(file, 0, LMDB_LOCK_BYTES)
        finally:
            os.close(file)

    def _open(self) -> None:
        self._reserve_lock_file()
        self._lmdb = lmdb.open(
            os.fsencode(self.path),
            map_size=min(MAP_BYTES_START, self._bytes_max + MAP_RESERVE_BYTES),
            max_dbs=8,
            max_readers=READERS_MAX,
            max_spare_txns=1,
            # Runs are large and read in order: let the kernel read ahead.
            readahead=True,
            # A stray write of the host process must not reach the file through the map.
            writemap=False,
            mode=system.PRIVATE_FILE,
            lib_version=0,
        )
        try:
            self._page_bytes = int(self._lmdb.stat()["psize"])
            self._measure_file()
            self._file_bytes_max = self._bytes_max + min(self._bytes_max, SLACK_BYTES)
            self._bytes_limit = max(self._file_bytes_max, self._file_bytes) + MAP_RESERVE_BYTES
            self._extent = Extent(self.path / DATA_FILE)
            self._extent.cover(self._file_bytes)
            with self._lmdb.begin(write=True, buffers=True) as txn:
                self.tables = Tables.open(self._lmdb, txn)
            self._descriptor = os.open(self.path / DATA_FILE, os.O_RDONLY | os.O_CLOEXEC)
            self._inode = os.fstat(self._descriptor).st_ino
        except BaseException:
            self._lmdb.close()
            raise

    def close(self, *, is_clean: bool = True) -> None:
        """Close the files and give up the lock. In a forked child: do nothing.

        Args:
            is_clean: nothing has failed; else the next start walks the pages, as after a crash.
        """
        if os.getpid() != self._pid:
            return
        with self._writing, self._reading:
            is_open, self._is_open = self._is_open, False
            if is_open:
                os.close(self._descriptor)
                self._lmdb.close()
            self._lock.release(is_clean=is_open and is_clean and not self._failure)

    def note_ending(self) -> None:
        """Note the owner as closed but busy with its disk: errors tell a second opener."""
        self._lock.note_ending()

    # --- Transactions -------------------------------------------------------------------

    def read(self, work: Callable[[lmdb.Transaction[memoryview]], Result]) -> Result:
        """Run `work` in a read transaction and return its result, free of views of the map."""
        self._check_process()
        with self._reading, self._translated("reading"):
            self._check_open()
            txn = self._lmdb.begin(buffers=True)
            try:
                return work(txn)
            except BaseException as error:
                # A kept error holds its frames, and the frames hold the transaction. The
                # transaction would occupy a reader slot until collected.
                traceback.clear_frames(error.__traceback__)
                raise
            finally:
                txn.abort()
                del txn

    def write(self, work: Callable[[lmdb.Transaction[memoryview]], Result]) -> Result:
        """Run `work` in a write transaction and sync. `work` runs again when the map has grown.

        Args:
            work: Makes the changes; must not keep state of a failed run.

        Raises:
            StoreFull: The disk or the map is full; nothing was changed.
            StoreError: The disk failed, now or at an earlier write. No write follows: only the next
                start can find out the state of the disk.
        """
        with self._writing_once():
            result = self._write(work)
            self._is_turned = False
            return result

    @contextmanager
    def _writing_once(self) -> Iterator[None]:
        """Allow one write at a time; after a failure no write follows."""
        self._check_process()
        with self._writing:
            self._check_open()
            self._check_sound()
            try:
                with self._translated("writing"):
                    self._check_file()
                    yield
            except StoreFull:
                raise
            except BaseException as error:
                self._failure = f"{type(error).__name__}: {error}"
                raise

    def _write(self, work: Callable[[lmdb.Transaction[memoryview]], Result]) -> Result:
        self._space = None
        is_turned = False
        while True:
            self._txn_id = NO_TXN
            try:
                result = self._write_once(work)
                self._measure_file()
                self._extent.cover(self._file_bytes)
                return result
            except lmdb.MapFullError:
                if not self._grow():
                    if is_turned:
                        raise self._map_full() from None
                    # Pages freed by the last commit may be enough, one commit later.
                    is_turned = True
                    self._turn()
            except lmdb.Error as error:
                self._recover()
                if self._lmdb.info()["last_txnid"] >= self._txn_id:
                    raise StoreError(
                        f"store {self.path}: the disk failed at the end of a commit ({error}), "
                        "which may be on disk or not: close the store and open it again"
                    ) from error
                raise

    def _write_once(self, work: Callable[[lmdb.Transaction[memoryview]], Result]) -> Result:
        txn = self._lmdb.begin(write=True, buffers=True)
        self._txn_id = txn.id()
        try:
            result = work(txn)
            txn.commit()
            return result
        except BaseException:
            txn.abort()
            raise

    def turn_over(self) -> bool:
        """Make the pages freed by the last commit usable, by a commit of almost nothing.

        Returns:
            True if a commit was needed.
        """
        with self._writing_once():
            if self._is_turned:
                return False
            self._space = None
            self._turn()
            return True

    def _turn(self) -> None:
        try:
            self._write_once(self._put_turn)
        except lmdb.MapFullError:
            raise self._map_full() from None
        self._measure_file()
        self._is_turned = True

    def _put_turn(self, txn: lmdb.Transaction[memoryview]) -> None:
        txn.put(TURN, seal(TURN, pack_u64(txn.id())), db=self.tables.meta)

    def _grow(self) -> bool:
        """Make room in the map for a commit without room; False when no room can be made."""
        if self._lmdb.reader_check():
            # A killed backup had kept freed pages from reuse.
            return True
        size = self._lmdb.info()["map_size"]
        if size >= self._bytes_limit:
            return False
        with self._reading:
            self._lmdb.set_mapsize(min(2 * size, self._bytes_limit))
        return True

    def _map_full(self) -> StoreFull:
        size = self._lmdb.info()["map_size"]
        return StoreFull(
            f"store {self.path} has no free pages left (map of {size} bytes, store_bytes_max "
            f"{self._bytes_max}): consume and ack messages, or raise store_bytes_max"
        )

    def _recover(self) -> None:
        """Open again when LMDB will not go on, as after a failed write of a meta page."""
        try:
            self._lmdb.begin().abort()
        except lmdb.Error:
            with self._reading:
                os.close(self._descriptor)
                self._lmdb.close()
                self._open()

    # --- Sizes --------------------------------------------------------------------------

    def used_bytes(self) -> int:
        """Bytes of all pages in use."""
        return self.read(self._used_bytes)

    @property
    def has_plenty(self) -> bool:
        """Return true if neither the disk nor the bound is anywhere near."""
        return self._extent.is_plenty and not self._is_counted

    @property
    def run_bytes_max(self) -> int:
        """Limit of bytes of message runs in the next commit."""
        return RUN_BYTES_SMALL if self._is_counted else RUN_BYTES_MAX

    def room(self, wanted: int = 0) -> Space:
        """Return the sure space for messages in the next commit, with no write before. Called by
        the writing thread.

        Args:
            wanted: Bytes which a caller waits for: a disk with little space is asked for them.
        """
        space = self._space
        if space is None or self._is_counted:
            space = self._space = self._find_room(wanted)
        return space

    def _find_room(self, wanted: int) -> Space:
        used = self._file_bytes
        on_disk = self._extent.room(used, wanted)
        free = min(on_disk, self._bytes_max - used)
        self._is_counted = free <= ROOM_BYTES
        if not self._is_counted:
            return Space(free, free, "")
        in_use = self.used_bytes()
        below_max, of_disk = self._bytes_max - in_use, used + on_disk - in_use
        advice = (
            "raise store_bytes_max"
            if below_max <= of_disk
            else f"make space on its disk, which has {self._extent.free_bytes} bytes free"
        )
        stretches = [count for _, count in self._usable()]
        behind = min(self._bytes_limit - used, on_disk + self._extent.reserve(used))
        # Half of the space behind the last page is for acks and Raft alone.
        draining = max(behind // 2, max(stretches, default=0) * self._page_bytes)
        whole, largest = self._placeable(stretches, free)
        if min(whole, largest) < wanted:
            # Enough is free, in pieces: the file may grow beyond the limit, and a part of the
            # reserve may lie in these pieces as well as behind the last page.
            behind = self._extent.end - used - self._extent.reserve(used) // RESERVE_TAIL_PART
            tail = min(max(on_disk, behind), self._file_bytes_max - used)
            whole, largest = self._placeable(stretches, tail)
        return Space(min(whole, below_max, of_disk), largest, advice, draining)

    def _placeable(self, stretches: list[int], tail: int) -> tuple[int, int]:
        """Return (bytes of runs, bytes of one large frame) for free pages and a `tail` behind.

        A run of many frames may leave the end of a stretch empty.
        """
        pages = [*stretches, max(tail, 0) // self._page_bytes]
        lost = RUN_BYTES_SMALL // self._page_bytes
        whole = sum(count - lost for count in pages if count > lost)
        return whole * self._page_bytes, max(pages) * self._page_bytes

    def _usable(self) -> list[Stretch]:
        """Return the free pages usable by the next commit."""
        self._lmdb.reader_check()
        before = int(self._lmdb.info()["last_txnid"])
        for line in self._lmdb.readers().splitlines():
            # process, thread, transaction: "-" for a reader without a transaction.
            words = line.split()
            if len(words) == 3 and words[2].isdigit():
                before = min(before, int(words[2]))
        return usable_stretches(
            self._descriptor, self._page_bytes, before, ENOUGH_BYTES // self._page_bytes
        )

    def _used_bytes(self, txn: lmdb.Transaction[memoryview]) -> int:
        pages = 2
        for stat in (txn.stat(), *(txn.stat(table) for table in self.tables.all())):
            pages += stat["branch_pages"] + stat["leaf_pages"] + stat["overflow_pages"]
        return pages * int(stat["psize"])

    def _measure_file(self) -> None:
        # Only once a commit, as LMDB's `info` builds a whole dictionary.
        self._file_bytes = (int(self._lmdb.info()["last_pgno"]) + 1) * self._page_bytes

    # --- Errors -------------------------------------------------------------------------

    def check(self) -> None:
        """Raise StoreError if no write is allowed: the store is closed, its file gone, its process
        forked, or a write has failed."""
        # Runs at each commit: the good case costs no method call.
        if os.getpid() != self._pid or not self._is_open or self._failure:
            self._check_process()
            self._check_open()
            self._check_sound()
        self._check_file()

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise StoreError(
                f"store {self.path} was opened by process {self._pid} and cannot be used by its "
                f"fork {os.getpid()}: open nodes and clients after the fork"
            )

    def _check_open(self) -> None:
        if not self._is_open:
            raise StoreError(f"store {self.path} is closed: open it again")

    def _check_sound(self) -> None:
        if self._failure:
            raise StoreError(
                f"store {self.path} takes nothing more, because an earlier write failed "
                f"({self._failure}): close it, look at the disk, then open it again"
            )

    def _check_file(self) -> None:
        """Raise if the file has no path any more: its content is lost after a restart."""
        try:
            is_there = has_name(self._descriptor, self._inode, self._lock.directory, DATA_FILE)
        except OSError as error:
            raise StoreError(f"store {self.path}: {_CLOSED}") from error
        if not is_there:
            raise StoreError(
                f"store {self.path}: its {DATA_FILE} was deleted while it was open, or "
                "replaced, so nothing more is confirmed here. End this process and start it again: "
                "an empty store gets its messages from the other nodes"
            )

    @property
    def is_at_path(self) -> bool:
        """Return true if the path still leads to the directory, which may have been moved."""
        return self._lock.is_at_path

    @contextmanager
    def _translated(self, doing: str) -> Iterator[None]:
        try:
            yield
        except Damaged as error:
            # A single frame is fetched from another member, without an operator.
            advice = "" if error.span else f". {_RENEW}"
            found = StoreCorrupt(f"store {self.path}: {error}{advice}")
            found.span = error.span
            raise found from error
        except lmdb.Error as error:
            raise self._error(error, doing) from error
        except OSError as error:
            what = f"store {self.path}, {doing}: {error}"
            if error.errno in _FULL_DISK:
                raise self._full(what) from error
            raise StoreError(f"{what}. Look at the disk") from error

    def _error(self, error: lmdb.Error, doing: str) -> StoreError:
        what = f"store {self.path}, {doing}: {error}"
        if isinstance(error, lmdb.DiskError) or self._is_disk_full(_code(error)):
            return self._full(what)
        if isinstance(error, _DAMAGE):
            return StoreCorrupt(f"{what}. {_RENEW}")
        if isinstance(error, lmdb.VersionMismatchError):
            return StoreError(f"{what}. Use the version of mirrorq and lmdb that made it")
        return StoreError(f"{what}. Nothing was changed: look at the disk, then start again")

    def _full(self, what: str) -> StoreFull:
        free = os.statvfs(self.path)
        return StoreFull(
            f"{what} ({free.f_bavail * free.f_frsize} bytes free on the disk). Nothing was "
            "changed: make space on the disk"
        )

    def _is_disk_full(self, code: int) -> bool:
        """Return true if an error means a lack of space.

        LMDB reports a write cut short as an I/O error, the first sign of a full disk. So the method
        tries to append one byte at the file's end, where no page is in use.
        """
        if code != errno.EIO:
            return code in _FULL_DISK
        try:
            with (self.path / DATA_FILE).open("ab", buffering=0) as file:
                file.write(b"\0")
        except OSError as error:
            return error.errno in _FULL_DISK
        return False


def _whole_bytes(file: Path) -> int | None:
    """Return a data file's length by its own records; None without valid records."""
    with file.open("rb") as opened:
        head = opened.read(_META.size)
        if len(head) < _META.size:
            return None
        magic, page_bytes, *first = _META.unpack(head)
        opened.seek(page_bytes)
        head = opened.read(_META.size)
    if magic != _META_MAGIC or len(head) < _META.size:
        return None
    last_page = max(first, _META.unpack(head)[2:], key=lambda meta: int(meta[1]))[0]
    return int((last_page + 1) * page_bytes)


def walk(file: Path) -> tuple[list[str], list[str]]:
    """Return the problems of a data file's pages, and its leaked pages. A leaked page is neither in
    use nor in a free list, and only costs space."""
    try:
        found = lmdb_verify.verify(str(file), subdir=False)  # type: ignore[no-untyped-call]
    except (lmdb_verify.VerifyError, OverflowError) as error:
        return [str(error)], []
    leaks = [problem for problem in found if "a leak" in problem]
    return [problem for problem in found if "a leak" not in problem], leaks


def _code(error: lmdb.Error) -> int:
    # Errors of the binding itself, unlike those of LMDB, carry no code.
    return getattr(error, "code", 0)
