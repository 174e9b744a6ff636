"""The log of one member of one queue's ring: which ops are here, on the disk, and stable. Pure.

Invariants:
1. the log holds the ops base + 1 … received, without a gap. Entries up to `base` are on the disk
   alone.
2. durable <= received. `durable` falls with a cut: other ops come in place of the cut.
3. an op at or below `stable` is on the disk of every member in sync (in a `replicated` view: in
   memory). `stable` is beyond `received` in a joining member only.

A cut and new entries wait for the write of the step, which `take_write` returns. The ring numbers
writes, and learns by `on_persisted` which of them are on the disk.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import cast

from mirrorq.containers.fifo import Fifo
from mirrorq.protocol.ops import Entry
from mirrorq.replication.disk_budget import cost
from mirrorq.replication.history import cut_history, extend_history
from mirrorq.replication.queue_time import QueueTime

MESSAGE_BYTES = 1 << 20
"""A resend is cut into messages of about this size, so that no message delays the next round."""

NO_ENTRIES = cast("deque[Entry]", ())
"""Stands in place of the entries while there are none: nothing can be put into this value."""


class RingLog:
    """Entries in memory, the marks of this member, and what waits to be written."""

    def __init__(self, time: QueueTime) -> None:
        self._time = time
        """Hears the stamps of entries."""
        self.entries = NO_ENTRIES
        self.bytes = 0
        """Bytes of the entries' frames."""
        self.base = 0
        """Lsn before the first entry that is kept in memory."""
        self.received = 0
        self.history: list[tuple[int, int]] = []
        """(epoch, last lsn) up to received, of the newest epochs (`extend_history`)."""
        self.durable = 0
        """Last lsn that is on the disk."""
        self.is_at_receipt = False
        """True in a `replicated` view: marks report received ops."""
        self.behind_bytes = 0
        """In a `replicated` view: bytes of the log beyond `durable`."""
        self.stable = 0
        """Last lsn known to be stable. Beyond `received` in a joining member only."""
        self.unstable_bytes = 0
        self._append: list[Entry] = []
        self.append_cost = 0
        """Room in the store for messages that are not given to the store yet."""
        self._truncate_to: int | None = None
        self._writes: Fifo[tuple[int, int]] = Fifo()
        self._write_number = 0

    def load(
        self,
        entries: Iterable[Entry],
        base: int,
        history: list[tuple[int, int]],
        stable: int = 0,
    ) -> None:
        """Load the end of the log from the disk: all entries after `base`, and its `stable`."""
        self.base = self.received = base
        self.history = list(history)
        for entry in entries:
            self._keep(entry)
        self.durable = self.received
        self.stable = stable
        self._recount_unstable()

    # --- Queries ------------------------------------------------------------------------

    def entry(self, lsn: int) -> Entry | None:
        """The entry at `lsn` if it is kept in memory."""
        index = lsn - self.base - 1
        return self.entries[index] if 0 <= index < len(self.entries) else None

    def batch_after(self, lsn: int) -> tuple[Entry, ...]:
        """The entries after `lsn`, for one message."""
        batch = []
        size = 0
        index = lsn - self.base
        while index < len(self.entries) and size < MESSAGE_BYTES:
            batch.append(self.entries[index])
            size += len(self.entries[index].frame)
            index += 1
        return tuple(batch)

    def behind(self, first: int, last: int) -> list[Entry]:
        """Entries that hold messages of a range and are not known to be on this disk."""
        found = []
        for index in range(max(self.durable - self.base, 0), len(self.entries)):
            entry = self.entries[index]
            if entry.payload is not None:
                continue
            if entry.header.first_sequence > last:
                break
            if entry.header.last_sequence >= first:
                found.append(entry)
        return found

    # --- Changes ------------------------------------------------------------------------

    def append(self, entry: Entry) -> None:
        """Append the next op; it goes to the disk in this step's write."""
        self._keep(entry)
        self._append.append(entry)
        if entry.payload is None:
            self.append_cost += cost(len(entry.frame))

    def _keep(self, entry: Entry) -> None:
        self.entries = self.entries or deque()
        self.entries.append(entry)
        size = len(entry.frame)
        self.bytes += size
        self.received = entry.lsn
        if entry.lsn > self.stable:
            self.unstable_bytes += size
        if self.is_at_receipt:
            self.behind_bytes += size
        self._time.record_stamp(entry.header.timestamp_us)
        extend_history(self.history, entry.epoch, entry.lsn, self.stable)

    def learn_stable(self, stable: int) -> bool:
        """Note that all ops up to this lsn are stable. Returns true if that is news."""
        if stable <= self.stable:
            return False
        index = max(self.stable - self.base, 0)
        until = min(stable, self.received) - self.base
        while index < until:
            self.unstable_bytes -= len(self.entries[index].frame)
            index += 1
        self.stable = stable
        return True

    def forget_lost_marks(self) -> None:
        """Reduce `stable` to the own log. After an unclean promotion, other ops come at lsns that
        were stable once, and must become stable again. (A joining member may know of such lsns.)"""
        self.stable = min(self.stable, self.received)

    def mark_at_receipt(self, *, is_at_receipt: bool) -> None:
        """Begin an epoch whose marks report received ops, or ops on the disk."""
        self.is_at_receipt = is_at_receipt
        self._recount_behind()

    def cut(self, lsn: int) -> None:
        """R6: cut the log in memory to `lsn`; the disk follows in this step's write."""
        if lsn >= self.received:
            return
        while self.entries and self.entries[-1].lsn > lsn:
            self.bytes -= len(self.entries.pop().frame)
        self._time.cut(self.entries[-1].header.timestamp_us if self.entries else 0)
        self.received = lsn
        self.base = min(self.base, lsn)
        self.history = cut_history(self.history, lsn)
        # Two epochs may cut in one step: the disk still has the ops of both cuts.
        self._truncate_to = lsn if self._truncate_to is None else min(self._truncate_to, lsn)
        self._append = [entry for entry in self._append if entry.lsn <= lsn]
        kept = (len(entry.frame) for entry in self._append if entry.payload is None)
        self.append_cost = sum(cost(size) for size in kept)
        # `durable` falls with a truncation: new ops in place of the cut are not on disk.
        self.durable = min(self.durable, lsn)
        self._writes = Fifo.of((number, min(end, lsn)) for number, end in self._writes)
        self._recount_unstable()
        self._recount_behind()

    def trim(self, applied: int, keep_bytes: int) -> None:
        """Forget applied entries that no member will request; keep so many bytes all the same."""
        if self.base >= applied:
            return
        limit = min(applied, self.stable, self.durable)
        while self.entries and self.base < limit and self.bytes > keep_bytes:
            entry = self.entries.popleft()
            self.bytes -= len(entry.frame)
            self.base = entry.lsn
        self.entries = self.entries or NO_ENTRIES

    def reset(self, lsn: int, history: list[tuple[int, int]]) -> None:
        """Begin the log at `lsn`, with a transferred state (R7)."""
        self.entries = NO_ENTRIES
        self.bytes = 0
        self._append.clear()
        self.append_cost = 0
        self._truncate_to = None
        self.base = self.received = lsn
        self.history = list(history)
        self.durable = 0
        self._writes.clear()
        self._recount_unstable()
        self._recount_behind()

    def _recount_unstable(self) -> None:
        self.unstable_bytes = sum(len(e.frame) for e in self.entries if e.lsn > self.stable)

    def _recount_behind(self) -> None:
        behind = (len(e.frame) for e in self.entries if e.lsn > self.durable)
        self.behind_bytes = sum(behind) if self.is_at_receipt else 0

    # --- Writes -------------------------------------------------------------------------

    @property
    def has_cut(self) -> bool:
        """Return true if a cut waits for this step's write."""
        return self._truncate_to is not None

    @property
    def has_append(self) -> bool:
        """Return true if entries wait to be given to the store."""
        return bool(self._append)

    @property
    def has_write(self) -> bool:
        """Return true if a cut or entries wait for this step's write."""
        return bool(self._append) or self._truncate_to is not None

    def take_write(self) -> tuple[int | None, tuple[Entry, ...]]:
        """The log's part of this step's write: (truncate to, appended entries)."""
        cut, entries = self._truncate_to, tuple(self._append)
        self._truncate_to = None
        self.append_cost = 0
        self._append.clear()
        return cut, entries

    def note_write(self, *, has_log: bool = True) -> int:
        """Number a write. Once the write with the log is persisted, everything received so far is
        durable."""
        self._write_number += 1
        self._writes.append((self._write_number, self.received if has_log else 0))
        return self._write_number

    def on_persisted(self, number: int) -> None:
        """Note that the writes up to this number are on the disk."""
        before = self.durable
        while self._writes and self._writes[0][0] <= number:
            self.durable = max(self.durable, min(self._writes.popleft()[1], self.received))
        if self.is_at_receipt:
            first, end = max(before - self.base, 0), self.durable - self.base
            self.behind_bytes -= sum(len(self.entries[i].frame) for i in range(first, end))
