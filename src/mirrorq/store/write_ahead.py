"""The write-ahead log: small commits are durable in the log before LMDB has them.

A synced transaction of LMDB is two flushes of the disk and many pages. A commit of a few ops
appended to known queues is one log record instead: one write, durable on return. The ops stay in
memory (`Pending`), where reads find them, until the next commit to LMDB. A commit goes to LMDB when
large, when more than appends, or when the file is full. All queues of a node share the file, and so
one flush.

A change of a queue's past (a cut, a checkpoint, a new generation) goes to LMDB in one transaction
with all pending ops and the number of the last record. So LMDB always holds the records up to a
number and no later record. Each record is carried out once, and never after a later change.

The file begins anew (`Tail.cut`) only after the sync of a transaction with all its records. The
file is made whole, of zeros, before use: a full disk cannot refuse a record.

`Tail`, `Pending`, `packed` and `surviving` are pure. Layout: docs/disk-format.md.
"""

from __future__ import annotations

import errno
import mmap
import os
import struct
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from operator import attrgetter
from pathlib import Path

from attrs import define, frozen
from msgspec.structs import fields

from mirrorq import system
from mirrorq.errors import ProtocolError
from mirrorq.protocol.effects import QueueWrite
from mirrorq.protocol.ops import Entry, OpKind
from mirrorq.store.open_file import has_name
from mirrorq.store.records import Damaged
from mirrorq.wire.frames import crc32c, split_run
from mirrorq.wire.ops import make_logged_entry

FILE_NAME = "mirrorq.wal"
FILE_BYTES = 2 << 20
"""512 commits of one message; LMDB takes them in one commit, for which every 500th put waits."""
GROUP_BYTES_MAX = 64 << 10
"""Limit of a record's frames. A larger commit goes to LMDB alone: a second write costs too much."""
PAGE_BYTES = 4096
"""A record begins at a new page: a write cut short harms no earlier record."""
RECORD_BYTES_MAX = 2 * GROUP_BYTES_MAX
"""Limit of a write past the cache: frames, and the heads of a group's queues."""
MAGIC = b"mqw1"

_HEAD = struct.Struct("<4sIQQII")
"""Magic, checksum of the rest, salt, number, bytes of the payload, 0."""
_SUMMED = struct.Struct("<QQII")
_SUMMED_AT = 8
_PART = struct.Struct("<QQII")
"""Queue, stable, bytes of frames, 0."""
_NO_STABLE = (1 << 64) - 1
_ZEROS = bytes(PAGE_BYTES)


class LogDamaged(Damaged):
    """The file differs from the written file."""

    def __init__(self, why: str, name: str = FILE_NAME) -> None:
        Exception.__init__(self, f"{name}: {why}")
        self.span = None


@frozen
class LogMark:
    """LMDB's mark about the file."""

    salt: int
    """Salt of the valid records: other records are of an earlier use of the file."""
    number: int
    """Number of the last record in LMDB."""

    _LAYOUT = struct.Struct("<QQ")

    def to_bytes(self) -> bytes:
        return self._LAYOUT.pack(self.salt, self.number)

    @classmethod
    def from_bytes(cls, data: bytes) -> LogMark:
        return cls(*cls._LAYOUT.unpack(data))


# --- Records ----------------------------------------------------------------------------------


def size_of(payload_bytes: int) -> int:
    """Return the bytes of a record in the file."""
    return -(-(_HEAD.size + payload_bytes) // PAGE_BYTES) * PAGE_BYTES


def pieces_of(mark: LogMark, payload: bytes) -> list[bytes]:
    """Return a record's bytes in pieces: header, payload, zeros up to the end of its last page."""
    summed = _SUMMED.pack(mark.salt, mark.number, len(payload), 0)
    head = MAGIC + crc32c(summed + payload).to_bytes(4, "little") + summed
    return [head, payload, _ZEROS[: size_of(len(payload)) - len(head) - len(payload)]]


def _record_at(data: bytes, at: int, salt: int) -> tuple[int, bytes] | None:
    """Return number and payload of the whole record at `at`, for the present salt; else None."""
    if len(data) - at < _HEAD.size:
        return None
    magic, checksum, its_salt, number, length, _ = _HEAD.unpack_from(data, at)
    end = at + _HEAD.size + length
    if magic != MAGIC or its_salt != salt or end > len(data):
        return None
    if crc32c(data[at + _SUMMED_AT : end]) != checksum:
        return None
    return number, data[at + _HEAD.size : end]


def surviving(data: bytes, mark: LogMark) -> list[bytes]:
    """Return the payloads of records missing in LMDB, in order.

    Bytes after the last whole record are the torn end of a write without an answer, or older.

    Raises:
        LogDamaged: a durable record is not whole, or is missing.
    """
    found: list[bytes] = []
    at, last = 0, None
    while (here := _record_at(data, at, mark.salt)) is not None:
        number, payload = here
        if last is not None and number != last + 1:
            break
        if last is None and number > mark.number + 1:
            raise LogDamaged(
                f"it begins with record {number}, and LMDB has those up to {mark.number}"
            )
        if number > mark.number:
            found.append(payload)
        last = number
        at += size_of(len(payload))
    _refuse_hole(data, at, mark.salt, max(mark.number, last or 0))
    return found


def all_whole(data: bytes, mark: LogMark) -> list[bytes]:
    """As `surviving`, across damage between records."""
    records = (_record_at(data, at, mark.salt) for at in range(0, len(data), PAGE_BYTES))
    found = dict(record for record in records if record is not None and record[0] > mark.number)
    return [found[number] for number in sorted(found)]


def _refuse_hole(data: bytes, at: int, salt: int, last: int, name: str = FILE_NAME) -> None:
    """Raise if a later record is whole: the bytes before were durable, so they are damaged."""
    for later in range(at, len(data), PAGE_BYTES):
        here = _record_at(data, later, salt)
        if here is not None and here[0] > last:
            raise LogDamaged(
                f"at byte {at} record {last + 1} is not as it was written, and record {here[0]} is",
                name,
            )


def records_of(data: bytes, mark: LogMark, name: str) -> dict[int, bytes]:
    """Return payloads, by number, of the records at the start of `data` and missing in LMDB.

    Raises:
        LogDamaged: a durable record is not whole.
    """
    found: dict[int, bytes] = {}
    at = last = 0
    while (here := _record_at(data, at, mark.salt)) is not None and last in (0, here[0] - 1):
        last, payload = here
        if last > mark.number:
            found[last] = payload
        at += size_of(len(payload))
    _refuse_hole(data, at, mark.salt, max(mark.number, last), name)
    return found


def whole_prefix(data: bytes) -> bytes:
    """Return the whole records at the start of a file, then zeros: for a file under writes."""
    if len(data) < _HEAD.size:
        return bytes(len(data))
    salt = _HEAD.unpack_from(data)[2]
    at, last = 0, None
    while (here := _record_at(data, at, salt)) is not None and last in (None, here[0] - 1):
        last = here[0]
        at += size_of(len(here[1]))
    return data[:at].ljust(len(data), b"\0")


# --- Groups -----------------------------------------------------------------------------------


_ELSE = [
    one
    for one in fields(QueueWrite)
    if one.name not in ("queue_id", "append", "stable", "state_lsn")
]
_else_of = attrgetter(*(one.name for one in _ELSE))
"""Fields without a place in a record: future fields too."""
_NOTHING_ELSE = tuple(one.default for one in _ELSE)


def is_append(writes: Sequence[QueueWrite]) -> bool:
    """Return true if the writes only append, and little."""
    size = 0
    for write in writes:
        if _else_of(write) != _NOTHING_ELSE:
            return False
        for entry in write.append:
            size += len(entry.frame)
    return 0 < size <= GROUP_BYTES_MAX


def is_stable_alone(write: QueueWrite) -> bool:
    """Return true if the write appends nothing and sets at most `stable`."""
    return not write.append and _else_of(write) == _NOTHING_ELSE


def packed(writes: Sequence[QueueWrite]) -> bytes:
    """Return the payload of a record for a small commit."""
    pieces: list[bytes] = []
    for write in writes:
        run = b"".join([entry.frame for entry in write.append])
        stable = _NO_STABLE if write.stable is None else write.stable
        pieces += (_PART.pack(write.queue_id, stable, len(run), 0), run)
    return b"".join(pieces)


def unpacked(payload: bytes) -> list[QueueWrite]:
    """Return the writes of a payload of `packed`.

    Raises:
        LogDamaged: The payload is malformed.
    """
    writes: list[QueueWrite] = []
    at = 0
    try:
        while at < len(payload):
            queue_id, stable, size, _ = _PART.unpack_from(payload, at)
            at += _PART.size
            run = payload[at : at + size]
            if len(run) < size:
                raise ProtocolError("it ends early")
            entries = tuple(make_logged_entry(frame) for frame in split_run(run)) if run else ()
            known = None if stable == _NO_STABLE else stable
            writes.append(QueueWrite(queue_id, append=entries, stable=known))
            at += size
    except (ProtocolError, struct.error) as error:
        raise LogDamaged(f"a record holds no ops: {error}") from error
    return writes


class _Behind:
    """Pending ops of one queue."""

    __slots__ = ("entries", "messages", "stable")

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.messages: list[Entry] = []
        """Pending publish frames, with rising sequences."""
        self.stable: int | None = None


class Pending:
    """Log records missing in LMDB. One thread adds, any thread may read."""

    def __init__(self) -> None:
        self._queues: dict[int, _Behind] = {}
        self.size = 0
        """Bytes of frames."""

    def __bool__(self) -> bool:
        return bool(self._queues)

    def add(self, writes: Sequence[QueueWrite]) -> None:
        for write in writes:
            behind = self._queues.setdefault(write.queue_id, _Behind())
            for entry in write.append:
                behind.entries.append(entry)
                if entry.header.kind == OpKind.PUBLISH:
                    behind.messages.append(entry)
                self.size += len(entry.frame)
            if write.stable is not None:
                behind.stable = write.stable

    def writes(self) -> list[QueueWrite]:
        """Return all pending ops, one write a queue."""
        return [
            QueueWrite(queue_id, append=tuple(behind.entries), stable=behind.stable)
            for queue_id, behind in self._queues.items()
        ]

    def of_queue(self, queue_id: int) -> QueueWrite | None:
        """Return a queue's pending ops, or None."""
        behind = self._queues.get(queue_id)
        if behind is None:
            return None
        return QueueWrite(queue_id, append=tuple(behind.entries), stable=behind.stable)

    def queue_bytes(self, queue_id: int) -> int:
        """Return the bytes of a queue's pending frames."""
        behind = self._queues.get(queue_id)
        return 0 if behind is None else sum(len(entry.frame) for entry in behind.entries)

    def messages_from(self, queue_id: int, sequence: int) -> Iterator[Entry]:
        """Give a queue's pending publish frames which end at or after a sequence, in order."""
        behind = self._queues.get(queue_id)
        if behind is None:
            return
        entries = behind.messages
        start = bisect_left(entries, sequence, key=lambda one: one.header.last_sequence)
        for index in range(start, len(entries)):
            yield entries[index]

    def first_sequence(self, queue_id: int) -> int | None:
        """Return the first sequence of a queue's pending messages, or None."""
        behind = self._queues.get(queue_id)
        if behind is None or not behind.messages:
            return None
        return behind.messages[0].header.first_sequence


# --- The file ---------------------------------------------------------------------------------


@define
class Tail:
    """Place and number of the next record."""

    salt: int
    bytes_max: int
    number: int = 0
    """Number of the last record. After a failure the disk may have the record or not."""
    lmdb_has: int = 0
    end: int = 0

    def takes(self, payload_bytes: int) -> bool:
        return self.end + size_of(payload_bytes) <= self.bytes_max

    def next(self) -> LogMark:
        """Take the next record's number; return its mark."""
        self.number += 1
        return LogMark(self.salt, self.number)

    def appended(self, payload_bytes: int) -> None:
        """Note the last record as durable."""
        self.end += size_of(payload_bytes)

    @property
    def is_ahead(self) -> bool:
        """Return true if a record may be missing in LMDB."""
        return self.number > self.lmdb_has

    @property
    def mark(self) -> LogMark:
        """LMDB's mark once LMDB has all appended records."""
        return LogMark(self.salt, self.number)

    def cut(self) -> None:
        """Begin anew: LMDB has all records, and its transaction is synced."""
        self.lmdb_has = self.number
        self.end = 0


class LogFile:
    """The file, open for writing. Data of `write` is durable on return."""

    def __init__(self, path: Path, name: str = FILE_NAME) -> None:
        """Open the file; a missing or short file is first made whole, and synced.

        Raises:
            OSError: The disk has no room for the file.
        """
        synced = system.synced_writes()
        self._path = path / name
        self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | synced, 0o600)
        self.is_synced = bool(synced)
        """Every write is durable on return of its call."""
        self.size = FILE_BYTES
        self._pages: mmap.mmap | None = None
        """Buffer for writes past the kernel's cache; shared memory, so a fork moves no page. None:
        all writes go through the cache."""
        try:
            found = os.fstat(self._file)
            self._inode = found.st_ino
            missing = self.size - found.st_size
            if missing > 0:
                self.write(self.size - missing, [bytes(missing)])
                self._sync_made(self._file)
        except BaseException:
            os.close(self._file)
            raise

    def _sync_made(self, file: int) -> None:
        directory = os.open(self._path.parent, os.O_RDONLY | os.O_CLOEXEC)
        try:
            system.sync(file)
            system.sync(directory)
        finally:
            os.close(directory)

    def put_back(self) -> None:
        """Make a deleted file again, with its content, which the next start needs. Nothing is
        written to the file any more.

        Raises:
            OSError: The disk has no room, or another file has the name.
        """
        if self.is_there:
            return
        system.go_through_cache(self._file)
        with self._path.open("xb") as made:
            try:
                os.fchmod(made.fileno(), system.PRIVATE_FILE)
                made.write(os.pread(self._file, self.size, 0))
                made.flush()
                self._sync_made(made.fileno())
            except BaseException:
                self._path.unlink()
                raise

    @property
    def is_there(self) -> bool:
        """Return true if the file has a name: a deleted file's content ends with the process.

        Raises:
            OSError: other code closed the file's descriptor.
        """
        return has_name(self._file, self._inode)

    def go_past_cache(self) -> None:
        """Write whole pages past the kernel's cache from now on, where possible: a sixth less time.
        No other code may write to the descriptor then."""
        if self.is_synced and system.go_past_cache(self._file):
            self._pages = mmap.mmap(-1, RECORD_BYTES_MAX)

    def write(self, offset: int, pieces: Sequence[bytes]) -> None:
        """Write the pieces end to end."""
        if self._pages is not None and self._has_written(self._pages, offset, b"".join(pieces)):
            return
        done = os.pwritev(self._file, pieces, offset)
        if done < sum(map(len, pieces)):
            rest = b"".join(pieces)[done:]
            if not done:
                raise OSError("nothing was written")
            self.write(offset + done, [rest])
        elif not self.is_synced:
            system.sync(self._file)

    def _has_written(self, pages: mmap.mmap, offset: int, data: bytes) -> bool:
        """Write past the cache. False: the data, and all later data, must go through the cache."""
        size = len(data)
        if size % PAGE_BYTES == 0 and size <= len(pages):
            pages[:size] = data
            try:
                if os.pwritev(self._file, [memoryview(pages)[:size]], offset) == size:
                    return True
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
                # The disk's blocks are larger, or the file system refuses only now.
        self._pages = None
        system.go_through_cache(self._file)
        return False

    @property
    def descriptor(self) -> int:
        """Descriptor of the open file."""
        return self._file

    def close(self) -> None:
        os.close(self._file)


def contents(path: Path, name: str = FILE_NAME) -> bytes | None:
    """The file of a store; None when there is none."""
    try:
        return (path / name).read_bytes()
    except FileNotFoundError:
        return None


def left_in(path: Path, mark: LogMark, *, salvages: bool = False) -> list[QueueWrite]:
    """Return the records of a store's log missing in its LMDB, one write a queue.

    Args:
        salvages: all whole records count.

    Raises:
        LogDamaged: The log is missing, or changed.
    """
    data = contents(path)
    if data is None and not salvages:
        raise LogDamaged("it is missing, and the last commits may be in it")
    pending = Pending()
    for payload in all_whole(data or b"", mark) if salvages else surviving(data or b"", mark):
        pending.add(unpacked(payload))
    return pending.writes()
