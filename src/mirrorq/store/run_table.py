"""One of the two tables of runs within one transaction.

A key is (queue, generation, number): the number is the last sequence of the run in `messages`, the
last lsn in `ops`. Sequences and lsns grow together, so both tables are in the order of the log, and
the end of the log is the end of both.
"""

from __future__ import annotations

from collections.abc import Iterable

import lmdb
from attrs import define
from msgspec import Struct

from mirrorq.containers.ranges import Range
from mirrorq.protocol.ops import Entry, Header
from mirrorq.store import runs
from mirrorq.store.records import Damaged, place_key, place_number, place_prefix
from mirrorq.wire import frames
from mirrorq.wire.frames import Frame

NUMBER_MAX = (1 << 64) - 1
"""Greater than every sequence and lsn."""


class Segment(Struct, frozen=True):
    """A part of a run with possible damage: a whole frame, or the bytes between whole frames."""

    first: int
    last: int
    """Numbers: sequences in `messages`, lsns in `ops`. Of damaged bytes: the possible numbers, by
    the neighbours and the run's key."""
    data: memoryview
    wrong: str = ""
    """Description of the damage, "" for a whole frame."""

    @property
    def header(self) -> Header:
        return frames.header(self.data)


class RunKey(Struct, frozen=True, gc=False):
    """Key of a run of messages in the table, and the run's sequences."""

    key: bytes
    first: int
    last: int


@define
class Hint:
    """End of the last read of a queue: the next read mostly goes on there.

    An outdated hint does no harm: `runs.read` checks the offset.
    """

    key: bytes = b""
    """Key of a run."""
    offset: int = 0
    """Offset of a frame in the run."""


@define
class Budget:
    """How much a transaction may still delete."""

    runs: int
    bytes: int

    @property
    def is_used(self) -> bool:
        """Return true if the budget is used up."""
        return self.runs <= 0 or self.bytes <= 0


def generations_of(
    txn: lmdb.Transaction[memoryview], table: lmdb._Database, queue_id: int
) -> list[int]:
    """The generations of which a queue has runs here."""
    cursor = txn.cursor(table)
    found: list[int] = []
    there = cursor.set_range(place_key(queue_id, 0, 0))
    while there and bytes(cursor.key())[:8] == place_prefix(queue_id, 0)[:8]:
        found.append(int.from_bytes(bytes(cursor.key())[8:16], "big"))
        there = cursor.set_range(place_key(queue_id, found[-1] + 1, 0))
    return found


class RunTable:
    """The runs of one queue in one table. `growth` is bytes put less bytes deleted."""

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

    def segments(self, key: bytes | memoryview, run: bytes | memoryview) -> list[Segment]:
        """Return all segments of the run at the cursor, whole or damaged, in order."""
        view, number = memoryview(run), place_number(key)
        parts = runs.pieces(view)
        spans = [None if wrong else self._span(view[a:b]) for a, b, wrong in parts]
        found: list[Segment] = []
        least = self._number_before(bytes(key)) + 1
        for index, (start, stop, wrong) in enumerate(parts):
            after = spans[index + 1] if index + 1 < len(spans) else None
            first, last = spans[index] or (least, after[0] - 1 if after else number)
            found.append(Segment(first, last, view[start:stop], wrong))
            least = last + 1
        return found

    def _span(self, frame: memoryview) -> Range:
        header = frames.header(frame)
        if self.name == "messages":
            return header.first_sequence, header.last_sequence
        return header.lsn, header.lsn

    def _number_before(self, key: bytes) -> int:
        """Return the number of the previous run, 0 without a run. The cursor stays in place."""
        there = self._cursor.set_key(key) and self._cursor.prev() and self._is_here()
        number = place_number(self._cursor.key()) if there else 0
        self._cursor.set_key(key)
        return number

    def entries_after(self, lsn: int) -> tuple[list[Entry], list[tuple[Range, Damaged]]]:
        """Return entries after `lsn`, in no order, and the numbers of damaged parts near them.

        Walks back from the end of the log, and touches only runs which reach past `lsn`
        and the run before.
        """
        entries: list[Entry] = []
        damaged: list[tuple[Range, Damaged]] = []
        there = self._seek_last()
        while there:
            key, run = self._cursor.item()
            try:
                whole = runs.split(self.name, key, run)
            except Damaged:
                segments = self.segments(key, run)
                damaged += [
                    ((one.first, one.last), Damaged(self.name, bytes(key), one.wrong))
                    for one in segments
                    if one.wrong
                ]
                whole = [one.data for one in segments if not one.wrong]
            after = [frame for frame in whole if frames.header(frame).lsn > lsn]
            entries.extend(runs.entry(self.name, key, frame) for frame in after)
            if len(after) < len(whole):
                break
            there = self._cursor.prev() and self._is_here()
        return entries, damaged

    def read(self, first: int, last: int, bytes_max: int, hint: Hint) -> list[memoryview]:
        """Return copies of the frames with sequences of [first, last], in order.

        Ends at the frame which reaches `bytes_max`, or before damage.

        Raises:
            Damaged: with its span; no whole frame comes before the damage.
        """
        found: list[memoryview] = []
        there = self._seek(first)
        while there and bytes_max > 0:
            key, run = self._cursor.item()
            start = hint.offset if hint.key == key else 0
            try:
                read = runs.read(self.name, key, run, first, last, bytes_max, start)
            except Damaged:
                if not found:
                    found = self._read_before_damage(key, run, first, last, bytes_max)
                break
            if read is None:
                break
            frames_read, hint.offset = read
            hint.key = bytes(key)
            found += frames_read
            bytes_max -= sum(map(len, frames_read))
            there = self._cursor.next() and self._is_here()
        return found

    def _read_before_damage(
        self, key: memoryview, run: memoryview, first: int, last: int, bytes_max: int
    ) -> list[memoryview]:
        found: list[memoryview] = []
        name = bytes(key)
        for one in self.segments(key, bytes(run)):
            if one.last < first:
                continue
            if one.first > last or bytes_max <= 0 or (one.wrong and found):
                break
            if one.wrong:
                raise Damaged(self.name, name, one.wrong, (one.first, one.last))
            found.append(one.data)
            bytes_max -= len(one.data)
        return found

    # --- The end ------------------------------------------------------------------------

    def put(self, number: int, run: list[Entry]) -> None:
        """Write a run of which `number` is the last."""
        self._put_value(number, runs.join(run))

    def _put_value(self, number: int, value: bytes) -> None:
        self._cursor.put(place_key(self._queue_id, self._generation, number), value)
        self.growth += len(value)

    def append(self, entries: Iterable[Entry]) -> None:
        """Write entries later than all present entries, as runs of bounded size."""
        for run in runs.cut_into_runs(entries, self._run_bytes_max):
            self.put(self._number(run[-1]), run)

    def truncate(self, lsn: int) -> None:
        """Delete every op after `lsn`; a run with both kinds is written anew.

        Damaged parts stay when they may hold an op up to `lsn`: a log must not end earlier
        unnoticed.
        """
        while self._seek_last():
            key, run = bytes(self._cursor.key()), bytes(self._cursor.value())
            parts = self._parts(key, run)
            kept = list(parts)
            while kept and self._is_after(lsn, key, kept):
                kept.pop()
            if len(kept) == len(parts):
                return
            self._cursor.set_key(key)
            self._delete_here()
            if kept:
                self._put_value(kept[-1].last, b"".join([one.data for one in kept]))
                return

    def _is_after(self, lsn: int, key: bytes, parts: list[Segment]) -> bool:
        """Return true if the last of the parts certainly holds ops after `lsn`."""
        for part in reversed(parts):
            if not part.wrong:
                # For damage behind a whole frame: lsns rise within a run.
                return part.header.lsn > lsn - (part is not parts[-1])
        there = self._cursor.set_key(key) and self._cursor.prev() and self._is_here()
        if not there:
            return False
        before = bytes(self._cursor.key()), bytes(self._cursor.value())
        return self._is_after(lsn - 1, before[0], self._parts(*before))

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
        """Return the number from which on runs hold nothing before `sequence`."""
        if not self._seek(sequence):
            return sequence
        key, run = self._cursor.item()
        try:
            first = runs.first_header(self.name, key, run, is_checked=True).first_sequence
        except Damaged:
            # The run may hold other messages: it stays, and readers get the error.
            first = 0
        return sequence if first >= sequence else place_number(key) + 1

    # --- Any place (messages only) ------------------------------------------------------

    def place_from(self, sequence: int) -> RunKey | None:
        """Return the first run which ends at or after `sequence`. Its first frame was checked: with
        damage there the run may begin right after the run before."""
        if not self._seek(sequence):
            return None
        key, run = self._cursor.item()
        name = bytes(key)
        try:
            first = runs.first_header(self.name, key, run, is_checked=True).first_sequence
        except Damaged:
            first = self._number_before(name) + 1
        return RunKey(name, first, place_number(name))

    def fill_in(self, entries: Iterable[Entry]) -> None:
        """Put publish frames at their sequences; present messages stay unchanged.

        Frames go together into new runs as long as no older run lies between them, and into an
        older run with a gap at the place.
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
        """Return true if the ordered entries overlap neither each other nor any present run."""
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

    def _merge(self, place: RunKey, entry: Entry, first: int, last: int) -> None:
        """Put the missing part of [first, last] of `entry` into the run around the range. The new
        frames also replace damaged parts of the run."""
        if not self._cursor.set_key(place.key):
            return
        old = bytes(self._cursor.value())
        kept: list[tuple[int, int, Frame]] = []
        added: list[tuple[int, int, Frame]] = []
        for one in self._parts(place.key, old):
            if one.wrong and one.first <= last and first <= one.last:
                continue
            kept.append((one.first, one.last, one.data))
            if one.last < first or first > last:
                continue
            if first < one.first:
                added.append(self._cut(entry, first, min(last, one.first - 1)))
            first = one.last + 1
        if first <= last:
            added.append(self._cut(entry, first, last))
        if added:
            merged = sorted(kept + added, key=lambda part: part[0])
            self._cursor.set_key(place.key)
            self._delete_here()
            self._put_value(merged[-1][1], b"".join([part[2] for part in merged]))

    def _cut(self, entry: Entry, first: int, last: int) -> tuple[int, int, Frame]:
        return first, last, runs.piece(entry, first, last).frame

    def _parts(self, key: bytes, run: bytes) -> list[Segment]:
        """As `segments`, quicker where nothing is damaged."""
        try:
            return [Segment(*self._span(f), f) for f in runs.split(self.name, key, run)]
        except Damaged:
            return self.segments(key, run)

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
        """Delete the run at the cursor; return true if the next run is the queue's."""
        self.growth -= len(self._cursor.value())
        return self._cursor.delete() and self._is_here()
