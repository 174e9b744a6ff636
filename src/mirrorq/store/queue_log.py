"""Effects of a `QueueWrite`, and reading back, within one transaction.

A queue which begins anew (`reset`) gets another generation, a part of the keys of its runs. Earlier
runs are out of sight at once and are deleted step by step, as is any rest which one transaction
cannot release: millions of runs would make a transaction larger than LMDB allows and would delay
every other queue. The table `garbage` lists values still to be deleted.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from copy import copy

import lmdb
from msgspec import Struct
from msgspec.structs import astuple, replace

from mirrorq.containers.ranges import Range, RangeSet
from mirrorq.protocol.effects import LATER, PRODUCERS, Page, QueueImage, QueueWrite, sorted_out
from mirrorq.protocol.ops import Entry, OpKind
from mirrorq.store.environment import Tables
from mirrorq.store.records import (
    SEAL_BYTES,
    Damaged,
    decoded,
    lacking_key,
    pack_i64,
    pack_u64,
    page_generation,
    page_key,
    page_place,
    page_prefix,
    queue_of,
    record_key,
    seal,
    state_key,
    time_key,
    unpack_i64,
    unpack_u64,
    unseal,
)
from mirrorq.store.run_table import NUMBER_MAX, Budget, Hint, RunTable, generations_of
from mirrorq.store.runs import RUN_BYTES_MAX
from mirrorq.store.salvage import bridged

DELETED_RUNS_MAX = 4096
"""Runs deleted by one transaction: about 20 ms, and far from LMDB's 131,072 changed pages."""
DELETED_BYTES_MAX = 256 << 20
"""LMDB lists the deleted pages in one value, a 512th of the size: half a MiB."""

_RECORD = struct.Struct("<QQQ")
_STATE_HEAD = struct.Struct("<Q")
_GARBAGE_KEY = struct.Struct(">cQQQ")
_GENERATION_KEY = b"generation"
_TABLE_OF_CODE = {b"m": "messages", b"o": "ops"}


Wrong = list[tuple[Range, Damaged]]
NextSequence = Callable[[bytes | None], int]
"""Takes a checkpoint, returns the lowest possible sequence of the first message after it."""


def none_may(state: bytes | None) -> int:
    """Default without knowledge: no stored message may be damaged."""
    return 0


class Record(Struct):
    """The store's record of a queue, beside its runs and its checkpoint."""

    generation: int
    stable: int = 0
    run_bytes: int = 0
    """Bytes of all runs. Written with the next checkpoint or at the end: after a crash an
    estimate."""


def _decode_record(data: bytes) -> Record:
    return Record(*_RECORD.unpack(data))


def _decode_state(data: bytes) -> tuple[int, bytes]:
    return int(_STATE_HEAD.unpack_from(data)[0]), data[_STATE_HEAD.size :]


class QueueLog:
    """All queues within one transaction.

    `records` are the records of earlier transactions. `changed` has the changes of this transaction
    (None: the queue is gone), for the caller to keep after the commit.
    """

    def __init__(
        self,
        txn: lmdb.Transaction[memoryview],
        tables: Tables,
        records: dict[int, Record] | None = None,
        run_bytes_max: int = RUN_BYTES_MAX,
    ) -> None:
        self._run_bytes_max = run_bytes_max
        self._txn = txn
        self._tables = tables
        self._records = {} if records is None else records
        self._budget = Budget(DELETED_RUNS_MAX, DELETED_BYTES_MAX)
        self.changed: dict[int, Record | None] = {}

    # --- Reading ------------------------------------------------------------------------

    def queue_ids(self) -> list[int]:
        """Return every queue with content here, in order."""
        cursor = self._txn.cursor(self._tables.queues)
        found = []
        there = cursor.first()
        while there:
            queue_id = queue_of(cursor.key())
            if cursor.set_key(record_key(queue_id)):
                found.append(queue_id)
            # A queue may have a hundred thousand pages here.
            there = cursor.set_range(record_key(queue_id + 1)[:8])
        return found

    def record(self, queue_id: int) -> Record | None:
        """Return a queue's record as of this transaction."""
        if queue_id in self.changed:
            return self.changed[queue_id]
        if queue_id in self._records:
            return self._records[queue_id]
        key = record_key(queue_id)
        value = self._txn.get(key, db=self._tables.queues)
        return None if value is None else decoded("queues", key, value, _decode_record)

    def image(
        self,
        queue_id: int,
        next_sequence: NextSequence = none_may,
        *,
        whole: bool = True,
        salvages: bool = False,
    ) -> QueueImage:
        """Return the checkpoint and every later entry.

        Args:
            salvages: stand-ins replace damaged ops: see `salvage`.
            whole: with the data of all pages; else pages of later use come without data.
            next_sequence: lowest possible sequence of the first message after a checkpoint:
                damage below concerns no op to be applied.
        """
        record = self.record(queue_id)
        if record is None:
            return QueueImage(queue_id)
        state_lsn, state = 0, None
        key = state_key(queue_id)
        value = self._txn.get(key, db=self._tables.queues)
        if value is not None:
            state_lsn, state = decoded("queues", key, value, _decode_state)
        entries, damaged = self._runs("messages", queue_id, record).entries_after(state_lsn)
        ops, damaged_ops = self._runs("ops", queue_id, record).entries_after(state_lsn)
        entries += ops
        entries.sort(key=lambda entry: entry.lsn)
        wrong = _first_wrong(entries, damaged, damaged_ops, state_lsn, next_sequence(state))
        if wrong is not None and not salvages:
            raise wrong
        spoiled = [piece for piece, _ in damaged]
        if wrong is not None:
            last_of = [(lsn, 0) for (_, lsn), _ in damaged_ops] + [(0, last) for _, last in spoiled]
            end = tuple(map(max, *last_of, (record.stable, 0), (0, 0)))
            after = state_lsn, max(next_sequence(state), 1) - 1
            entries, lost = bridged(queue_id, entries, after, end)
            spoiled += lost
        key = lacking_key(queue_id)
        value = self._txn.get(key, db=self._tables.queues)
        lacking = RangeSet()
        if value is not None:
            lacking = decoded("queues", key, value, RangeSet.from_bytes)
        for piece in spoiled:
            lacking.add(*piece)
        pages, stale = sorted_out(self._pages(queue_id, record.generation, whole), state_lsn)
        return QueueImage(
            queue_id,
            state,
            state_lsn,
            tuple(entries),
            tuple(lacking),
            record.stable if wrong is None else entries[-1].lsn,
            self._time_ahead_us(queue_id),
            tuple(RangeSet(spoiled)),
            pages=pages,
            stale=stale,
            salvaged="" if wrong is None else str(wrong),
        )

    def page(self, queue_id: int, kind: int, first: int, lsn: int) -> bytes | None:
        """Return a page of the queue as of this transaction, or None."""
        record = self.record(queue_id)
        if record is None:
            return None
        key = page_key(queue_id, record.generation, kind, first, lsn)
        value = self._txn.get(key, db=self._tables.queues)
        return None if value is None else unseal("queues", key, value)

    def _pages(self, queue_id: int, generation: int, whole: bool) -> Iterator[Page]:
        cursor = self._txn.cursor(self._tables.queues)
        prefix = page_prefix(queue_id, generation)
        there = cursor.set_range(prefix)
        while there and bytes(cursor.key()[: len(prefix)]) == prefix:
            key = bytes(cursor.key())
            place, value = page_place(key), cursor.value()
            is_named = not whole and place[0] in LATER and len(value) > SEAL_BYTES
            # Outcomes of a producer's numbers must be right: such a page is at least checked.
            if not is_named or place[0] == PRODUCERS:
                data = unseal("queues", key, value)
            yield Page(*place, None if is_named else data)
            there = cursor.next()

    def _time_ahead_us(self, queue_id: int) -> int:
        key = time_key(queue_id)
        value = self._txn.get(key, db=self._tables.meta)
        return 0 if value is None else decoded("meta", key, value, unpack_i64)

    def read(
        self, queue_id: int, first: int, last: int, bytes_max: int, hint: Hint
    ) -> list[memoryview]:
        """Return frames with sequences of [first, last], in order, at least one frame if any."""
        record = self.record(queue_id)
        if record is None:
            return []
        messages = self._runs("messages", queue_id, record)
        return messages.read(first, last, max(bytes_max, 1), hint)

    def has_garbage(self) -> bool:
        """Return true if anything is left to be deleted."""
        return self._txn.cursor(self._tables.garbage).first()

    # --- Writing ------------------------------------------------------------------------

    def apply(self, write: QueueWrite) -> None:
        """Carry out a write, in the order of its fields."""
        if write.reset:
            self._reset(write.queue_id)
        if not _has_content(write):
            return
        old = self.record(write.queue_id)
        record = Record(self._next_generation()) if old is None else copy(old)
        self.changed[write.queue_id] = record
        messages = self._runs("messages", write.queue_id, record)
        ops = self._runs("ops", write.queue_id, record)
        if write.truncate_to is not None:
            messages.truncate(write.truncate_to)
            ops.truncate(write.truncate_to)
        _append(messages, ops, write.append)
        messages.fill_in(write.fetched)
        for page in write.pages:
            self._put_page(write.queue_id, record.generation, page)
        if write.state is not None:
            self._checkpoint(write.queue_id, record, ops, write.state, write.state_lsn)
        for first, last in write.release:
            self._release(write.queue_id, record, messages, first, last)
        record.run_bytes = max(0, record.run_bytes + messages.growth + ops.growth)
        if write.stable is not None:
            record.stable = write.stable
        if write.time_ahead_us is not None:
            self._put_time(write.queue_id, write.time_ahead_us)
        if write.lacking is not None:
            self._put_lacking(write.queue_id, write.lacking)
        # `stable` is a hint and `run_bytes` an estimate: both wait for another change.
        due = (write.lacking, write.truncate_to, write.state)
        if old is None or any(value is not None for value in due):
            self.put_record(write.queue_id, record)

    def collect(self) -> None:
        """Delete garbage of earlier transactions, up to the limit of one transaction."""
        cursor = self._txn.cursor(self._tables.garbage)
        there = cursor.first()
        while there and not self._budget.is_used:
            key = bytes(cursor.key())
            code, queue_id, generation, first = _GARBAGE_KEY.unpack(key)
            last = decoded("garbage", key, cursor.value(), unpack_u64)
            if code == b"p":
                if not self._collect_pages(queue_id, generation):
                    return
                there = cursor.set_key(key) and cursor.delete() and bool(cursor.key())
                continue
            record = self.record(queue_id)
            table = self._runs(_TABLE_OF_CODE[code], queue_id, Record(generation))
            is_done = table.delete(first, last, self._budget)
            if record is not None and record.generation == generation:
                run_bytes = max(0, record.run_bytes + table.growth)
                self.changed[queue_id] = replace(record, run_bytes=run_bytes)
            if not is_done:
                return
            there = cursor.delete() and bool(cursor.key())

    def _generations_of_pages(self, queue_id: int) -> list[int]:
        cursor = self._txn.cursor(self._tables.queues)
        found: list[int] = []
        there = cursor.set_range(page_prefix(queue_id, 0))
        while there and bytes(cursor.key()[:9]) == page_prefix(queue_id, 0)[:9]:
            found.append(page_generation(cursor.key()))
            there = cursor.set_range(page_prefix(queue_id, found[-1] + 1))
        return found

    def _has_pages(self, queue_id: int, generation: int) -> bool:
        return next(self._page_keys(queue_id, generation), None) is not None

    def _page_keys(self, queue_id: int, generation: int) -> Iterator[bytes]:
        """Keys of a generation's pages; each may be deleted before the next is asked for."""
        cursor = self._txn.cursor(self._tables.queues)
        prefix = page_prefix(queue_id, generation)
        while cursor.set_range(prefix) and bytes(cursor.key()[: len(prefix)]) == prefix:
            yield bytes(cursor.key())

    def _collect_pages(self, queue_id: int, generation: int) -> bool:
        """Delete pages of a past; return whether all are."""
        for key in self._page_keys(queue_id, generation):
            if self._budget.is_used:
                return False
            self._budget.runs -= 1
            self._txn.delete(key, db=self._tables.queues)
        return True

    def put_record(self, queue_id: int, record: Record) -> None:
        """Write a record, which may be ahead of the disk."""
        key = record_key(queue_id)
        data = _RECORD.pack(*astuple(record))
        self._txn.put(key, seal(key, data), db=self._tables.queues)

    def _runs(self, table: str, queue_id: int, record: Record) -> RunTable:
        database = self._tables.messages if table == "messages" else self._tables.ops
        return RunTable(
            table, self._txn, database, queue_id, record.generation, self._run_bytes_max
        )

    def _reset(self, queue_id: int) -> None:
        try:
            record = self.record(queue_id)
            if record is None:
                return
            generations = [record.generation]
        except Damaged:
            # The keys of stored values name the queue's generations.
            generations = generations_of(self._txn, self._tables.messages, queue_id)
            generations += generations_of(self._txn, self._tables.ops, queue_id)
            generations += self._generations_of_pages(queue_id)
        for generation in generations:
            self._discard(b"m", queue_id, generation, 0, NUMBER_MAX)
            self._discard(b"o", queue_id, generation, 0, NUMBER_MAX)
            if self._has_pages(queue_id, generation):
                self._discard(b"p", queue_id, generation, 0, NUMBER_MAX)
        self._txn.delete(record_key(queue_id), db=self._tables.queues)
        self._txn.delete(state_key(queue_id), db=self._tables.queues)
        self._txn.delete(lacking_key(queue_id), db=self._tables.queues)
        self._txn.delete(time_key(queue_id), db=self._tables.meta)
        self.changed[queue_id] = None

    def _put_page(self, queue_id: int, generation: int, page: Page) -> None:
        key = page_key(queue_id, generation, page.kind, page.first, page.lsn)
        if page.data is None:
            self._txn.delete(key, db=self._tables.queues)
        else:
            self._txn.put(key, seal(key, page.data), db=self._tables.queues)

    def _put_time(self, queue_id: int, ahead_us: int) -> None:
        key = time_key(queue_id)
        self._txn.put(key, seal(key, pack_i64(ahead_us)), db=self._tables.meta)

    def _put_lacking(self, queue_id: int, lacking: tuple[Range, ...]) -> None:
        key = lacking_key(queue_id)
        if lacking:
            data = RangeSet(lacking).to_bytes()
            self._txn.put(key, seal(key, data), db=self._tables.queues)
        else:
            self._txn.delete(key, db=self._tables.queues)

    def _checkpoint(
        self, queue_id: int, record: Record, ops: RunTable, state: bytes, lsn: int
    ) -> None:
        key = state_key(queue_id)
        data = _STATE_HEAD.pack(lsn) + state
        self._txn.put(key, seal(key, data), db=self._tables.queues)
        if not ops.delete(0, lsn, self._budget):
            self._discard(b"o", queue_id, record.generation, 0, lsn)

    def _release(
        self, queue_id: int, record: Record, messages: RunTable, first: int, last: int
    ) -> None:
        """Delete the runs wholly within [first, last]."""
        start = messages.first_whole_from(first)
        if not messages.delete(start, last, self._budget):
            self._discard(b"m", queue_id, record.generation, start, last)

    def _discard(self, code: bytes, queue_id: int, generation: int, first: int, last: int) -> None:
        """Have the runs with first <= number <= last deleted by later transactions."""
        key = _GARBAGE_KEY.pack(code, queue_id, generation, first)
        self._txn.put(key, seal(key, pack_u64(last)), db=self._tables.garbage)

    def _next_generation(self) -> int:
        value = self._txn.get(_GENERATION_KEY, db=self._tables.meta)
        last = 0 if value is None else decoded("meta", _GENERATION_KEY, value, unpack_u64)
        sealed = seal(_GENERATION_KEY, pack_u64(last + 1))
        self._txn.put(_GENERATION_KEY, sealed, db=self._tables.meta)
        return last + 1


def _has_content(write: QueueWrite) -> bool:
    """Return true if anything is written after the reset: a deleted queue leaves no record."""
    marks = (write.truncate_to, write.state, write.lacking, write.stable, write.time_ahead_us)
    has_items = write.append or write.fetched or write.pages
    return bool(has_items) or any(mark is not None for mark in marks)


def _first_wrong(
    entries: Sequence[Entry],
    damaged: Wrong,
    damaged_ops: Wrong,
    state_lsn: int,
    next_sequence: int,
) -> Damaged | None:
    """Return why the entries are not all ops after a checkpoint, None if complete."""
    for (_, last), error in damaged_ops:
        if last > state_lsn:
            return error
    for (_, last), error in damaged:
        if last >= next_sequence:
            return error
    for expected, entry in enumerate(entries, state_lsn + 1):
        if entry.lsn != expected:
            return Damaged("ops", b"", f"op {expected} of queue {entry.header.queue_id} is missing")
    return None


def _append(messages: RunTable, ops: RunTable, entries: tuple[Entry, ...]) -> None:
    publish = [entry for entry in entries if entry.header.kind == OpKind.PUBLISH]
    if publish and publish[0].header.first_sequence > messages.last_number():
        messages.append(publish)
    else:
        # Already written, by a commit with an unknown outcome.
        messages.fill_in(publish)
    ops.append(entry for entry in entries if entry.header.kind != OpKind.PUBLISH)
