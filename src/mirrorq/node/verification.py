"""Checks a store for consistency: checksums, keys, orders, references.

`verify` walks a store that is not open and changes no byte. It continues after a problem, so that
one report names all problems (up to `PROBLEMS_MAX`).

Checks
  pages     LMDB's own: `lmdb.verify`, before the file is mapped
  meta      format, versions, name, identity
  queues    records, checkpoints (decoded), lists of missing messages
  messages  every frame's checksum, its queue, the key of its run, rising sequences and lsns
  ops       the same, and every payload
  a queue   no op missing after the checkpoint; no range acked that was never published; each
            body that the applied state needs is there, or listed as lacking
  garbage   the list of entries to delete
  the log   records that LMDB has not: complete, and in order behind LMDB's content
  raft      entries without a gap, terms that never fall, commands and the snapshot decoded
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from attrs import Factory, define, field

from mirrorq.cluster.catalog.catalog import Catalog
from mirrorq.cluster.catalog.proposals import unpack
from mirrorq.cluster.raft.messages import KIND_COMMAND, KIND_NOTHING, KIND_VOTERS, decode_voters
from mirrorq.containers.ranges import RangeSet
from mirrorq.errors import ProtocolError
from mirrorq.protocol.effects import RaftImage
from mirrorq.protocol.ops import Entry, OpKind, UnknownOp
from mirrorq.replication.state.image import NUMBER_MAX
from mirrorq.replication.state.queue_state import QueueState, next_sequence_of
from mirrorq.store import runs
from mirrorq.store.environment import TURN, Transaction
from mirrorq.store.log_mark import FORMAT, MARK, RAIL_MARK, check_format, left_in_log
from mirrorq.store.offline import OfflineStore
from mirrorq.store.queue_log import QueueLog, Record
from mirrorq.store.raft_log import RaftLog
from mirrorq.store.records import (
    PAGE_KEY_BYTES,
    Damaged,
    decoded,
    page_generation,
    place_key,
    queue_of,
    unpack_u64,
    unseal,
)
from mirrorq.store.write_ahead import LogDamaged
from mirrorq.wire import frames

PROBLEMS_MAX = 1000
"""Limit on problems in a report."""

_PLACE = struct.Struct(">QQQ")
_GARBAGE = struct.Struct(">cQQQ")
_QUEUE = struct.Struct(">Q")
_NUMBERS = (b"store id", b"incarnation", b"generation", TURN)
_TEXTS = (b"lmdb", b"node")


@define
class Report:
    """Content of a store, and its problems."""

    path: str
    node: str = ""
    store_id: int = 0
    incarnation: int = 0
    file_bytes: int = 0
    queues: int = 0
    messages: int = 0
    """Live messages by the logs, including messages of ops that were never stable."""
    messages_of: dict[int, int] = Factory(dict)
    """Live messages by queue id."""
    lacking_of: dict[int, int] = Factory(dict)
    """Messages that were still to be fetched from another member, by queue id."""
    frames: int = 0
    logged: int = 0
    """Frames in the write-ahead log only: the next start takes them in."""
    raft_entries: int = 0
    catalog_index: int = 0
    """Index of the last entry."""
    problems: list[str] = Factory(list)
    notes: list[str] = Factory(list)
    """Findings without damage: pages that cost space, copies with messages to be fetched."""

    @property
    def is_good(self) -> bool:
        return not self.problems


@define
class _Copy:
    """Findings about one queue."""

    record: Record
    held: RangeSet = field(factory=RangeSet)
    """Sequences of the publish frames in the store."""


def verify(store: OfflineStore, on_progress: Callable[[int, int], None] | None = None) -> Report:
    """Walk a store and return the report.

    Args:
        on_progress: Called with the number of values done and the total.
    """
    report = Report(str(store.path), file_bytes=store.file_bytes)
    report.problems += store.problems
    report.notes += store.leaks
    if not store.problems:
        store.read(lambda txn: _Walk(txn, store, report, on_progress).run())
    return report


class _Walk:
    """One walk, within one transaction."""

    def __init__(
        self,
        txn: Transaction,
        store: OfflineStore,
        report: Report,
        on_progress: Callable[[int, int], None] | None,
    ) -> None:
        self._txn = txn
        self._tables = tables = store.tables
        self._path = store.path
        self._report = report
        self._on_progress = on_progress
        self._total = sum(int(txn.stat(table)["entries"]) for table in tables.all())
        self._done = 0
        self._copies: dict[int, _Copy] = {}
        self._garbage: dict[tuple[bytes, int, int], RangeSet] = {}
        self._log = QueueLog(txn, tables)
        self._logged: dict[int, tuple[Entry, ...]] = {}
        """Ops in the write-ahead log that LMDB has not."""

    def run(self) -> None:
        for name, look in (
            ("meta", self._look_at_meta),
            ("garbage", self._look_at_garbage),
            ("queues", self._look_at_queue_value),
        ):
            for key, value in self._values(name):
                with _noted(self._report):
                    look(key, value)
        self._look_for_meta()
        with _noted(self._report):
            self._look_at_log()
        self._look_at_runs("messages")
        self._look_at_runs("ops")
        for queue_id, copy in self._copies.items():
            with _noted(self._report):
                self._look_at_copy(queue_id, copy)
        for _ in self._values("raft"):
            pass
        with _noted(self._report):
            self._look_at_raft(RaftLog(self._txn, self._tables.raft).image())

    def _values(self, name: str) -> Iterator[tuple[bytes, memoryview]]:
        for key, value in self._txn.cursor(getattr(self._tables, name)):
            yield bytes(key), value
            self._done += 1
            if self._on_progress is not None:
                self._on_progress(self._done, self._total)

    # --- Single values ------------------------------------------------------------------

    def _look_at_meta(self, key: bytes, value: memoryview) -> None:
        if key == FORMAT:
            check_format(self._txn, self._tables, self._path)
        elif key in _NUMBERS:
            number = decoded("meta", key, value, unpack_u64)
            if key == b"store id":
                self._report.store_id = number
            elif key == b"incarnation":
                self._report.incarnation = number
        elif key in _TEXTS:
            text = decoded("meta", key, value, bytes.decode)
            if key == b"node":
                self._report.node = text
        elif key in (MARK, RAIL_MARK) or key.startswith(b"value "):
            unseal("meta", key, value)
        else:
            raise Damaged("meta", key, "no such value is written")

    def _look_for_meta(self) -> None:
        for key in (b"format", b"lmdb", b"node", b"store id", b"incarnation"):
            if self._txn.get(key, db=self._tables.meta) is None:
                self._report.problems.append(str(Damaged("meta", key, "it is missing")))

    def _look_at_log(self) -> None:
        for write in left_in_log(self._txn, self._tables, self._path):
            if write.queue_id not in self._copies:
                raise LogDamaged(f"it holds ops of queue {write.queue_id}, which is not there")
            self._logged[write.queue_id] = write.append
            self._report.frames += len(write.append)
            self._report.logged += len(write.append)

    def _look_at_garbage(self, key: bytes, value: memoryview) -> None:
        last = decoded("garbage", key, value, unpack_u64)
        if len(key) != _GARBAGE.size or key[:1] not in (b"m", b"o", b"p"):
            raise Damaged("garbage", key, "no such key is written")
        code, queue_id, generation, first = _GARBAGE.unpack(key)
        self._garbage.setdefault((code, queue_id, generation), RangeSet()).add(first, last)

    def _look_at_queue_value(self, key: bytes, value: memoryview) -> None:
        unseal("queues", key, value)
        is_page = len(key) == PAGE_KEY_BYTES and key[8:9] == b"t"
        is_known = len(key) == _QUEUE.size + 1 and key[8:] in (b"q", b"s", b"l")
        if not is_page and not is_known:
            raise Damaged("queues", key, "no such key is written")
        queue_id = queue_of(key)
        if is_page and (b"p", queue_id, page_generation(key)) in self._garbage:
            return  # the page is being deleted
        if key[8:] == b"q":
            record = self._log.record(queue_id)
            assert record is not None
            self._copies[queue_id] = _Copy(record)
        elif self._txn.get(key[:8] + b"q", db=self._tables.queues) is None:
            raise Damaged("queues", key, f"queue {queue_id} has no record")

    # --- Runs ---------------------------------------------------------------------------

    def _look_at_runs(self, table: str) -> None:
        before: tuple[int, int, int] = (0, 0, 0)
        """Queue, generation, and last number of the previous run."""
        lsn = 0
        for key, run in self._values(table):
            with _noted(self._report):
                if len(key) != _PLACE.size:
                    raise Damaged(table, key, "no such key is written")
                place: tuple[int, int, int] = _PLACE.unpack(key)
                if place[:2] != before[:2]:
                    before, lsn = (*place[:2], 0), 0
                before, least = place, before[2] + 1
                if self._is_garbage(table, key, place):
                    continue
                lsn = self._look_at_run(table, key, run, least, lsn)

    def _is_garbage(self, table: str, key: bytes, place: tuple[int, int, int]) -> bool:
        """Return true if a run only waits to be deleted."""
        queue_id, generation, number = place
        listed = self._garbage.get((table[:1].encode(), queue_id, generation))
        if listed is not None and number in listed:
            return True
        copy = self._copies.get(queue_id)
        if copy is None or copy.record.generation != generation:
            raise Damaged(
                table, key, f"a run of generation {generation}, which queue {queue_id} has not"
            )
        return False

    def _look_at_run(
        self, table: str, key: bytes, run: memoryview, least: int, lsn_before: int
    ) -> int:
        """Check one run: all numbers are at least `least`. Return its last lsn."""
        queue_id, _, number = _PLACE.unpack(key)
        is_messages = table == "messages"
        lsn = lsn_before
        for frame in runs.split(table, key, run):
            header = frames.header(frame)
            first, last = header.lsn, header.lsn
            if is_messages:
                first, last = header.first_sequence, header.last_sequence
            if header.queue_id != queue_id or (header.kind == OpKind.PUBLISH) != is_messages:
                raise Damaged(
                    table, key, f"a frame of kind {header.kind} of queue {header.queue_id}"
                )
            if first < least or header.lsn < lsn:
                raise Damaged(
                    table,
                    key,
                    f"frame {first} to {last}, lsn {header.lsn}, after {least - 1}, lsn {lsn}",
                )
            least, lsn = last + 1, header.lsn
            if is_messages:
                self._copies[queue_id].held.add(first, last)
            self._report.frames += 1
        if least != number + 1:
            raise Damaged(table, key, f"the run ends with {least - 1}, its key says {number}")
        return lsn

    # --- A queue ------------------------------------------------------------------------

    def _look_at_copy(self, queue_id: int, copy: _Copy) -> None:
        self._report.queues += 1
        image = self._log.image(queue_id, next_sequence_of)
        key = place_key(queue_id, copy.record.generation, 0)
        try:
            state = QueueState.of_image(image)
        except ValueError as error:
            raise Damaged("queues", _QUEUE.pack(queue_id) + b"s", str(error)) from error
        if image.state is not None and state.applied != image.state_lsn:
            raise Damaged(
                "queues",
                _QUEUE.pack(queue_id) + b"s",
                f"the state is of lsn {state.applied}, the checkpoint says {image.state_lsn}",
            )
        self._look_for_bodies(queue_id, key, state, copy, RangeSet(image.lacking))
        end = image.entries[-1].lsn if image.entries else image.state_lsn
        for expected, entry in enumerate(self._logged.get(queue_id, ()), end + 1):
            if entry.lsn != expected:
                raise LogDamaged(f"op {expected} of queue {queue_id} is missing")
        for entry in (*image.entries, *self._logged.get(queue_id, ())):
            if isinstance(entry.payload, UnknownOp):
                why = entry.payload.why or "it is of a later version of mirrorq"
                text = f"queue {queue_id}: op {entry.lsn} cannot be read: {why}"
                self._report.notes.append(text)
                return
            self._apply(queue_id, key, state, entry)
        self._report.messages_of[queue_id] = state.live.count
        self._report.messages += state.live.count

    def _look_for_bodies(
        self, queue_id: int, key: bytes, state: QueueState, copy: _Copy, lacking: RangeSet
    ) -> None:
        missing = RangeSet(state.needed(1, NUMBER_MAX))
        for held in copy.held:
            missing.remove(*held)
        if missing and lacking:
            expected = sum(
                last - first + 1 for piece in lacking for first, last in missing.within(*piece)
            )
            if expected:
                self._report.lacking_of[queue_id] = expected
                self._report.notes.append(
                    f"queue {queue_id}: {expected} messages were still to be fetched from another "
                    "member"
                )
            for piece in lacking:
                missing.remove(*piece)
        if missing:
            first, last = missing.front()
            raise Damaged(
                "messages",
                key,
                f"{missing.count} messages of queue {queue_id} live and are not there, the first "
                f"ones {first} to {last}",
            )

    def _apply(self, queue_id: int, key: bytes, state: QueueState, entry: Entry) -> None:
        lsn, end = entry.lsn, state.next_sequence
        ranges = getattr(entry.payload or entry.step, "ranges", ())
        beyond = [piece for piece in ranges if piece[1] >= end]
        if beyond:
            raise Damaged(
                "ops", key, f"op {lsn} of queue {queue_id} names {beyond[0]}, beyond {end - 1}"
            )
        state.apply(entry)

    # --- Raft ---------------------------------------------------------------------------

    def _look_at_raft(self, image: RaftImage) -> None:
        index, term = 0, 0
        if image.snapshot is not None:
            index, term = image.snapshot.index, image.snapshot.term
            if image.snapshot.pages:
                _decode(b"snapshot", Catalog.restore, image.snapshot.pages)
        for entry in image.entries:
            key = b"e" + _QUEUE.pack(entry.index)
            if entry.index != index + 1:
                raise Damaged("raft", key, f"the entry before has index {index}")
            if not term <= entry.term <= image.state.term:
                raise Damaged(
                    "raft", key, f"term {entry.term} after {term}, of {image.state.term} in all"
                )
            index, term = entry.index, entry.term
            if entry.kind == KIND_COMMAND:
                try:
                    unpack(entry)
                except ProtocolError as error:
                    raise Damaged("raft", key, str(error)) from error
            elif entry.kind == KIND_VOTERS:
                if decode_voters(entry.data) is None:
                    raise Damaged("raft", key, "no list of voters")
            elif entry.kind != KIND_NOTHING:
                raise Damaged("raft", key, f"kind {entry.kind} is not known")
        self._report.raft_entries = len(image.entries)
        self._report.catalog_index = index


def _decode(key: bytes, decode: Callable[[Any], object], data: object) -> None:
    try:
        decode(data)
    except ProtocolError as error:
        raise Damaged("raft", key, str(error)) from error


@contextmanager
def _noted(report: Report) -> Iterator[None]:
    """Turn damage into a line of the report and continue the walk."""
    try:
        yield
    except Damaged as error:
        if len(report.problems) < PROBLEMS_MAX:
            report.problems.append(str(error))
