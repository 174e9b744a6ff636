"""One of the two tables of runs within one transaction.

A key is (queue, generation, number): the number is the last sequence of the run in `messages`,
its last lsn in `ops`. Sequences and lsns grow together, so both tables are in the order of the
log, and its end is their end.
"""

from __future__ import annotations

from collections.abc import Iterable

import lmdb
from attrs import define
from msgspec import Struct

from mirrorq.messages import Entry
from mirrorq.store import runs
from mirrorq.store.records import Damaged, place_key, place_number, place_prefix
from mirrorq.wire import frames

NUMBER_MAX = (1 << 64) - 1
"""Greater than every sequence and lsn."""


class Place(Struct, frozen=True, gc=False):
    """Where a run of messages lies."""

    key: bytes
    first: int
    last: int


@define
class Hint:
    """Where the last read of a queue ended: the next one mostly goes on there.

    It may be out of date: `runs.read` makes sure that it does no harm.
    """

    key: bytes = b""
    """Of a run."""
    offset: int = 0
    """Of a frame in it."""


@define
class Budget:
    """How much a transaction may still delete."""

    runs: int
    bytes: int

    @property
    def is_used(self) -> bool:
        """Whether it has come to its end."""
        return self.runs <= 0 or self.bytes <= 0


class RunTable:
    """The runs of one queue in one table. `growth` counts bytes put less bytes deleted."""

    def __init__(
        self,
        name: str,
        txn: lmdb.Transaction[memoryview],
        table: lmdb._Database,
        queue_id: int,
        generation: int,
        run_bytes_max: int = runs.RUN_BYTES_MAX,
    ) -> None:
        self.name = name
        self.growth = 0
        self._queue_id = queue_id
        self._generation = generation
        self._prefix = place_prefix(queue_id, generation)
        self._run_bytes_max = run_bytes_max
        self._cursor = txn.cursor(table)

    # --- Reading ------------------------------------------------------------------------

    def last_number(self) -> int:
        """The number of the last run, 0 when there is none."""
        return place_number(self._cursor.key()) if self._seek_last() else 0

    def entries_after(self, lsn: int) -> list[Entry]:
        """Entries after `lsn`, in no order.

        Walks back from the end of the log, and touches no run but those that reach past `lsn`
        and the one before them.
        """
        entries: list[Entry] = []
        there = self._seek_last()
        while there:
            key, run = self._cursor.item()
            split = runs.split(self.name, key, run)
            after = [frame for frame in split if frames.header(frame).lsn > lsn]
            entries.extend(runs.entry(self.name, key, frame) for frame in after)
            if len(after) < len(split):
                break
            there = self._cursor.prev() and self._is_here()
        return entries

    def read(self, first: int, last: int, bytes_max: int, hint: Hint) -> list[memoryview]:
        """Copies of the frames that hold sequences of [first, last], in order.

        Frames after the one that reaches `bytes_max` are left out.
        """
        found: list[memoryview] = []
        there = self._seek(first)
        while there and bytes_max > 0:
            key, run = self._cursor.item()
            start = hint.offset if hint.key == key else 0
            read = runs.read(self.name, key, run, first, last, bytes_max, start)
            if read is None:
                break
            frames_read, hint.offset = read
            hint.key = bytes(key)
            found += frames_read
            bytes_max -= sum(map(len, frames_read))
            there = self._cursor.next() and self._is_here()
        return found

    # --- The end ------------------------------------------------------------------------

    def put(self, number: int, run: list[Entry]) -> None:
        """Write a run of which `number` is the last."""
        value = runs.join(run)
        self._cursor.put(place_key(self._queue_id, self._generation, number), value)
        self.growth += len(value)

    def append(self, entries: Iterable[Entry]) -> None:
        """Write entries that come after all that are there, as runs of bounded size."""
        for run in runs.cut_into_runs(entries, self._run_bytes_max):
            self.put(self._number(run[-1]), run)

    def truncate(self, lsn: int) -> None:
        """Delete every op after `lsn`; a run that has some is written anew without them."""
        while self._seek_last():
            key, run = self._cursor.item()
            split = runs.split(self.name, key, run)
            if frames.header(split[-1]).lsn <= lsn:
                return
            kept = [
                runs.entry(self.name, key, frame)
                for frame in split
                if frames.header(frame).lsn <= lsn
            ]
            self._delete_here()
            if kept:
                self.put(self._number(kept[-1]), kept)
                return

    def delete(self, first: int, last: int, budget: Budget) -> bool:
        """Delete the runs with first <= number <= last; False when the budget ends before."""
        there = self._seek(first)
        while there and place_number(self._cursor.key()) <= last:
            if budget.is_used:
                return False
            budget.runs -= 1
            budget.bytes -= len(self._cursor.value())
            there = self._delete_here()
        return True

    def first_whole_from(self, sequence: int) -> int:
        """From where on runs hold nothing before `sequence`."""
        if not self._seek(sequence):
            return sequence
        key, run = self._cursor.item()
        try:
            first = runs.first_header(self.name, key, run, is_checked=True).first_sequence
        except Damaged:
            # Who knows what else is in it: it stays, and whoever reads it is told.
            first = 0
        return sequence if first >= sequence else place_number(key) + 1

    # --- Any place (messages only) ------------------------------------------------------

    def place_from(self, sequence: int) -> Place | None:
        """The first run that ends at or after `sequence`. Its first frame was checked."""
        if not self._seek(sequence):
            return None
        key, run = self._cursor.item()
        first = runs.first_header(self.name, key, run, is_checked=True).first_sequence
        return Place(bytes(key), first, place_number(key))

    def fill_in(self, entries: Iterable[Entry]) -> None:
        """Put publish frames at their sequences; what is there already stays as it is.

        Frames go together into new runs as long as no older run lies between them, and into an
        older run when it has a gap there.
        """
        fresh: list[Entry] = []
        in_order = sorted(entries, key=lambda entry: entry.header.first_sequence)
        if self._is_free(in_order):
            self.append(in_order)
            return
        for entry in in_order:
            at, last = entry.header.first_sequence, entry.header.last_sequence
            if fresh and fresh[-1].header.last_sequence >= at:
                self._put_fresh(fresh)
            while at <= last:
                place = self.place_from(at)
                if place is not None and place.first <= at:
                    stop = min(last, place.last)
                    self._merge(place, entry, at, stop)
                else:
                    stop = last if place is None else min(last, place.first - 1)
                    if fresh and self._is_run_between(fresh[-1], at):
                        self._put_fresh(fresh)
                    fresh.append(runs.piece(entry, at, stop))
                at = stop + 1
        self._put_fresh(fresh)

    def _is_free(self, entries: list[Entry]) -> bool:
        """Whether these, in order, overlap neither each other nor any run that is there."""
        end = -1
        for entry in entries:
            if entry.header.first_sequence <= end:
                return False
            end = entry.header.first_sequence + entry.header.count - 1
        place = self.place_from(entries[0].header.first_sequence) if entries else None
        return place is None or place.first > end

    def _put_fresh(self, fresh: list[Entry]) -> None:
        self.append(fresh)
        fresh.clear()

    def _is_run_between(self, before: Entry, sequence: int) -> bool:
        place = self.place_from(before.header.last_sequence + 1)
        return place is not None and place.first < sequence

    def _merge(self, place: Place, entry: Entry, first: int, last: int) -> None:
        """Put what [first, last] of `entry` adds to the run that spans it into that run."""
        if not self._cursor.set_key(place.key):
            return
        old = self._cursor.value()
        there = [runs.entry(self.name, place.key, f) for f in runs.split(self.name, place.key, old)]
        added = []
        for held in there:
            start = held.header.first_sequence
            if first < start:
                added.append(runs.piece(entry, first, min(last, start - 1)))
            first = max(first, held.header.last_sequence + 1)
            if first > last:
                break
        if added:
            self.growth -= len(old)
            merged = sorted(there + added, key=lambda entry: entry.header.first_sequence)
            self.put(place.last, merged)

    # --- The cursor ---------------------------------------------------------------------

    def _number(self, entry: Entry) -> int:
        return entry.header.last_sequence if self.name == "messages" else entry.lsn

    def _is_here(self) -> bool:
        return self._cursor.key()[:16] == self._prefix

    def _seek(self, number: int) -> bool:
        """Go to the first run of the queue at or after `number`."""
        key = place_key(self._queue_id, self._generation, number)
        return self._cursor.set_range(key) and self._is_here()

    def _seek_last(self) -> bool:
        """Go to the last run of the queue."""
        key = place_key(self._queue_id, self._generation, NUMBER_MAX)
        there = self._cursor.prev() if self._cursor.set_range(key) else self._cursor.last()
        return there and self._is_here()

    def _delete_here(self) -> bool:
        """Delete the run at the cursor; return whether the next one is the queue's."""
        self.growth -= len(self._cursor.value())
        return self._cursor.delete() and self._is_here()
