"""The applied state of one queue: which messages live, how often each came back, who produced.

Every member applies the same stable ops in the same order, so states at the same lsn are
equal on all copies (Lemma 3). The state knows nothing of consumers: who holds what now is
the master's own matter (`dispatch`) and ends with its term.

A message is *live* from its publish to its ack. Its delivery count is

    1 + returns of it + promotions that happened while it was live and below the horizon

Promotions are kept as marks, (lsn, sequence): each counts for every message below. That
makes a promotion cost the same for ten messages and for ten million.

A *delayed* message lives and is not ready; the DueOp that ends its delay gives it a new *place*
behind all that stand in its level. Horizons and marks are about places; a message that was never
delayed stands at its sequence.

Messages of a priority above 0 are members of a *level*, which has a horizon and marks of its own
(`priorities`); `horizon` and `marks` here are those of priority 0.

Invariants:
1. live sequences are below next_sequence.
2. `returned` holds live sequences only.
3. outcomes of a producer are above its settled mark, in order of number.
4. `delayed`, `places` and `resting` hold live sequences only, each of one of the first two at most.
5. members of levels are live, each of one level only; who is of none has priority 0.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import msgspec

from mirrorq.containers.range_map import Places, RangeMap, Spans
from mirrorq.containers.ranges import Range, RangeSet
from mirrorq.errors import MALFORMED
from mirrorq.protocol.effects import Page, QueueImage
from mirrorq.protocol.ops import (
    FLAG_PRIORITY,
    FLAG_TRANSIENT,
    AckOp,
    DiscardOp,
    DropHeadOp,
    DueOp,
    Entry,
    ExpiryOp,
    Header,
    HorizonOp,
    HorizonsOp,
    OpKind,
    OutboxDoneOp,
    OutboxOp,
    ProducerOp,
    PromotedOp,
    PurgeOp,
    ReturnLaterOp,
    ReturnOp,
    Step,
)
from mirrorq.protocol.staged import AbortOp, AskOp, CommitOp, SealOp, Stage
from mirrorq.replication.history import HISTORY_COUNT, extend_history
from mirrorq.replication.state.columns import Columns
from mirrorq.replication.state.image import (
    NUMBER_MAX,
    PAGED_VERSION,
    PLAIN_COUNT,
    PLAIN_VERSION,
    STATE_VERSION,
    MessagesPage,
    StateImage,
    block_of,
    image_of,
    ranges_of,
)
from mirrorq.replication.state.outbox import PUT, Outbox, needs_no_op
from mirrorq.replication.state.pages import (
    COLUMNS,
    END,
    MESSAGES,
    PRODUCERS,
    SMALL_MAX,
    PageCache,
    Snapshot,
    Table,
    changed_by,
)
from mirrorq.replication.state.priorities import PriorityLevel
from mirrorq.replication.state.producer import HELD_PAGES, REFUSED, Producer, Producers
from mirrorq.replication.state.staging import RUN_BYTES, Outcome, Staging

NUMBER_BYTES = 8
"""Of each number of a range."""
PLAIN_ITEM_BYTES = 24
"""Of an item of a plain list or dict: a producer, an outcome of it, an entry, a mark."""
PAGE_BYTES_ABOUT = 32 * 1024
"""Of a page, as a rule."""
GENERATION_BITS = 40
"""Each unclean promotion moves sequences and producer ids ahead to generation << 40: beyond
all that the lost past can have given out, and room for eight million of them."""
MARKS_TRIM_COUNT = 8
"""Promotion marks are looked through for dead ones when there are more than this."""

OFFSET_SIZE = 4
"""Bytes of an offset in a frame."""

HELD_BLOCKS = 64
"""Sealed blocks, some 80 KiB each, that wait in memory for a checkpoint: with more it is due."""


class Run(NamedTuple):
    """Neighbours in order of sequence that share a level."""

    priority: int
    first: int
    last: int
    shift: int = 0
    """Place = sequence + shift."""
    is_delayed: bool = False
    """They stand at no place yet."""

    @property
    def is_doubtful(self) -> bool:
        """An unclean promotion came before the end of their delay that this past knows: they may
        have had another one, and been handed out, in the past that was lost."""
        return self.first + self.shift >> GENERATION_BITS > self.first >> GENERATION_BITS


class QueueState:
    """What all stable ops up to `applied` have made of the queue."""

    def __init__(self) -> None:
        self.applied = 0
        self.time_us = 0
        """The greatest stamp of an op: the queue's time goes on from there."""
        self.next_sequence = 1
        self.horizon = 1
        """Messages below this sequence may be handed out."""
        self.live = RangeSet()
        self.transient = RangeSet()
        """Live messages that a cold promotion drops."""
        self.returned = RangeMap(2)
        """What has come back: (returns, lsn of the last return). What came back together, as often
        as its neighbours, is one range, however many messages it is."""
        self.marks: list[tuple[int, int]] = []
        """Promotions: (lsn, sequence). Counts for live messages below sequence."""
        self.levels: dict[int, PriorityLevel] = {}
        """Priorities above 0 that were ever used."""
        self.delayed = Spans()
        """Published with a delay that has not ended, each with the moment at which it will, in
        microseconds since 1970."""
        self.places = Places()
        """Of messages that were delayed."""
        self.resting = RangeMap(1)
        """Returned with a delay that has not ended: the moment at which it will."""
        self._is_mixed = False
        """Whether there may be a message of another level, or at another place than its own."""
        self.outbox = Outbox()
        """Messages that ended here and are on their way to other queues."""
        self.staging = Staging()
        """What is staged, and where bodies of committed messages lie."""
        self.verdict = ""
        """Why the last op about staged messages was refused. Not part of the state."""
        self.history: list[tuple[int, int]] = []
        """(epoch, last lsn) of applied ops, the newest `HISTORY_COUNT` epochs, oldest first."""
        self.generation = 0
        """How many unclean promotions this past has, or knows to have been in others."""
        self.fence = 0
        """Term of the last unclean promotion: no delivery of an earlier one can be acked."""
        self.lost = 0
        """Messages that unclean promotions have lost, as far as their masters could tell."""
        self.tables = {MESSAGES: Table(), PRODUCERS: Table(), COLUMNS: Table()}
        """Which pages there are, and what of them has changed. Not part of the state."""
        self.snapshots: list[Snapshot] = []
        """Whom to tell before something changes. Not part of the state."""
        self.columns = Columns(self.tables[COLUMNS], self)
        """Size, time and ttl of each live message."""
        self.producers = Producers(self.tables[PRODUCERS], self)
        self.is_paged = False
        """It was read from pages, or is to be."""
        self._awaited = (0, 0, 0, 0)
        """What its pages have to have, as the head says it."""

    def keep_in(self, cache: PageCache, queue_id: int) -> None:
        """What is on the disk needs not be in memory any more."""
        self.columns.keep_in(cache, queue_id)
        self.producers.keep_in(cache, queue_id)

    def release(self) -> None:
        """All that was given to the disk is there, and no checkpoint is being made."""
        self.columns.release()
        self.producers.release()

    # --- Queries ------------------------------------------------------------------------

    def delivery_count(self, sequence: int) -> int:
        """The count of the next delivery of this message."""
        if self._is_mixed:
            return self.count_run(sequence, sequence)[0]
        raised = sum(1 for _, mark in self.marks if mark > sequence)
        return 1 + raised + self.returned.at(sequence)[0]

    def count_run(self, first: int, last: int) -> Range:
        """(delivery count of `first`, end of the run within last that shares it)."""
        marks, shift = self.marks, 0
        raised = 0
        if self._is_mixed:
            run = self.run(first, last)
            marks, last, shift = self._marks_of(run), run.last, run.shift
            raised = int(run.is_doubtful)
        for _, mark in marks:
            if mark > first + shift:
                raised += 1
                last = min(last, mark - shift - 1)
        if not self.returned:
            return 1 + raised, last
        returns, last = self._returns_run(first, last)
        return 1 + raised + returns, last

    def _returns_run(self, first: int, last: int) -> Range:
        """(returns of `first`, end of the run within last that has come back as often)."""
        returns, upto = None, first - 1
        for low, high, (often, _) in self.returned.walk(first, last):
            if returns is None:
                returns = often if low == first else 0
            if returns != (often if low == upto + 1 else 0):
                return returns, upto
            if low > upto + 1:
                return returns, low - 1
            upto = high
        if returns:
            return returns, upto
        return 0, last

    def producer_id(self, lsn: int) -> int:
        """The id that a producer op at `lsn` gives: lsns come again in another past."""
        return lsn + (self.generation << GENERATION_BITS)

    def returned_often(self, ranges: RangeSet, limit: int) -> RangeSet:
        """Those of these messages that one more return would bring above a delivery limit."""
        if limit == 0:
            return ranges.copy()
        often = RangeSet()
        for first, last in ranges:
            for low, high, (returns, _) in self.returned.walk(first, last):
                if returns >= limit:
                    often.add(low, high)
        return often

    def raised_by_promotion(self, sequence: int) -> bool:
        """Whether the last raise of this message's count was a promotion."""
        run = self.run(sequence, sequence)
        place = sequence + run.shift
        promoted = int(run.is_doubtful)  # before all that was known of it in this past
        promoted = max((lsn for lsn, mark in self._marks_of(run) if mark > place), default=promoted)
        return promoted > self.returned.at(sequence)[1]

    def _marks_of(self, run: Run) -> list[tuple[int, int]]:
        if run.is_delayed:
            return []
        return self.levels[run.priority].marks if run.priority else self.marks

    def run(self, first: int, last: int) -> Run:
        """`first` and those after it, within `last`, that share its level."""
        if not self._is_mixed:
            return Run(0, first, last)
        priority = 0
        for other, level in self.levels.items():
            low, high = level.members.run(first, last)
            if low == first:
                priority, last = other, high
                break
            last = min(last, low - 1)
        waits = self.delayed.run(first, last)
        if waits is not None:
            if waits[0] == first:
                return Run(priority, first, waits[1], 0, True)
            last = waits[0] - 1
        stands = self.places.by_sequence.run(first, last)
        if stands is not None:
            if stands[0] == first:
                return Run(priority, first, stands[1], stands[2])
            last = stands[0] - 1
        return Run(priority, first, last)

    def runs(self, first: int, last: int) -> list[Run]:
        """first to last, cut where level or shift change, in order of sequence."""
        found = []
        while first <= last:
            found.append(self.run(first, last))
            first = found[-1].last + 1
        return found

    def needed(self, first: int, last: int) -> list[Range]:
        """The parts of first to last under which lie bodies that a copy must have on its disk."""
        found = self.live.within(first, last)
        if self.outbox.kept:
            found = list(RangeSet((*found, *self.outbox.kept.within(first, last))))
        if self.staging:
            found = [*self.staging.plain(found), *self.staging.needed(first, last)]
            found = list(RangeSet(found))
        return found

    def needed_set(self, ranges: Iterable[Range]) -> RangeSet:
        """The same of several stretches, in order: without a step of Python's for each part."""
        found = RangeSet()
        for first, last in ranges:
            if self.outbox.kept or self.staging:
                for piece in self.needed(first, last):
                    found.add(*piece)
            else:
                found.extend(self.live.part(first, last))
        return found

    def carried(self, first: int, last: int) -> list[Range]:
        """The live messages whose bodies lie under first to last (see `needed`)."""
        if not self.staging:
            return self.live.within(first, last)
        found = list(self.staging.plain(self.live.within(first, last)))
        for low, high, shift in self.staging.origins.by_sequence.within(first, last):
            found += self.live.within(low + shift, high + shift)
        return found

    def dead_around(self, ended: RangeSet) -> Iterator[Range]:
        """The widest ranges around what has ended under which no needed body lies."""
        if not self.staging:
            for sequence, _ in ended:
                first, last = self.live.gap(sequence, 1, self.next_sequence - 1)
                yield self.outbox.kept.gap(sequence, first, last)
            return
        needed = RangeSet(self.needed(1, self.next_sequence - 1))
        for sequence, _ in ended:
            yield needed.gap(sequence, 1, self.next_sequence - 1)

    def latest_stamp_us(self) -> int:
        """The greatest stamp that the state still shows, for one of a version that did not keep
        the greatest of all."""
        used = (producer.used_us for producer in self.producers.values())
        latest_us = max(self.columns.latest_ms(self.live) * 1000, max(used, default=0))
        return min(latest_us, NUMBER_MAX)

    def epoch_span(self, lsn: int) -> tuple[int, int, int, int]:
        """The epochs, from the first to the last possible one, in which the op at `lsn` was made,
        and the ops of which that is so: (first, last, after, upto); zeros when it is not known.

        It is one epoch, but at the oldest end of a history of which older epochs are not kept.
        """
        index = bisect_right(self.history, lsn - 1, key=lambda item: item[1])
        if index == len(self.history):
            return 0, 0, 0, 0
        epoch, upto = self.history[index]
        if index:
            return epoch, epoch, self.history[index - 1][1], upto
        return epoch if len(self.history) < HISTORY_COUNT else 0, epoch, 0, upto

    # --- Applying -----------------------------------------------------------------------

    def is_ready_for(self, entry: Entry) -> bool:
        """Whether the pages that an op changes have been made for who still wants them as they are.
        Where they are many some are made now, and the op is applied in a later step."""
        if not self.snapshots:
            return True
        changes, tail = changed_by(entry), self.tables[COLUMNS].firsts[-1]
        if any(kind == MESSAGES and last >= tail for kind, _, last in changes):
            changes += [(COLUMNS, tail, tail), (MESSAGES, tail, tail)]
        return all(one.prepare(changes) for one in self.snapshots)

    @property
    def is_full(self) -> bool:
        """Whether somebody keeps as many pages as he may, until the disk has taken some."""
        return any(one.is_full for one in self.snapshots)

    def apply(self, entry: Entry) -> tuple[Range, ...]:
        """Apply the next op; return the ranges under which bodies lay that nobody needs now."""
        return self.staging.freed(self._apply(entry))

    def _apply(self, entry: Entry) -> tuple[Range, ...]:
        header = entry.header
        self.applied = header.lsn
        self.time_us = max(self.time_us, header.timestamp_us)
        extend_history(self.history, header.epoch, header.lsn, header.lsn)
        payload = entry.payload
        if payload is None:
            if isinstance(entry.step, Stage):
                return self._stage(entry, entry.step)
            self._publish(entry)
            if entry.step is not None:
                return self._take_step(entry, entry.step)
        elif isinstance(payload, DropHeadOp) and self.outbox.kept:
            # It was judged on the whole log: some may have been on their way to other queues.
            live = (piece for one in payload.ranges for piece in self.live.within(*one))
            return self._end(tuple(live))
        elif isinstance(payload, AckOp | PurgeOp | DropHeadOp | ExpiryOp | DiscardOp):
            return self._end(payload.ranges)
        elif isinstance(payload, SealOp | CommitOp | AbortOp | AskOp):
            return self._decide(entry, payload)
        elif isinstance(payload, OutboxOp):
            self._send_off(payload, header.timestamp_us)
        elif isinstance(payload, OutboxDoneOp):
            return self._outbox_done(payload)
        elif isinstance(payload, ReturnOp):
            self._return(payload.ranges, header.lsn)
        elif isinstance(payload, HorizonOp):
            self.horizon = max(self.horizon, payload.sequence)
        elif isinstance(payload, DueOp):
            self._enter(payload)
        elif isinstance(payload, ReturnLaterOp):
            self._return_later(payload, header.lsn)
        elif isinstance(payload, HorizonsOp):
            self._move_horizons(payload)
        elif isinstance(payload, PromotedOp):
            return self._promote(payload, header.lsn)
        elif isinstance(payload, ProducerOp):
            self._producer(payload, header.lsn, header.timestamp_us)
        elif header.kind == OpKind.REFUSAL:
            self._refuse(entry)
        return ()

    def _publish(self, entry: Entry) -> None:
        header = entry.header
        first, last = header.first_sequence, header.first_sequence + header.count - 1
        self.touch(MESSAGES, first, last)
        self.live.add(first, last)
        stamp_ms = max(header.timestamp_us, 0) // 1000
        self.columns.publish(first, entry.offsets, header.count, stamp_ms, header.ttl_ms)
        self.next_sequence = last + 1
        if header.flags & FLAG_TRANSIENT:
            self.transient.add(first, last)
        if header.flags & FLAG_PRIORITY:
            self._level(header.priority).members.add(first, last)
        if header.delay_ms:
            due_us = min(header.timestamp_us + header.delay_ms * 1000, NUMBER_MAX)
            self.delayed.add(first, last, due_us)
            self._is_mixed = True
        producer = self._producer_of(header.producer)
        if producer is not None:
            producer.used_us = header.timestamp_us
            producer.note(header.first_number, header.count, first, "", header.settled)

    def _note(self, header: Header, sequence: int, why: str) -> None:
        """What became of an op about staged messages, for whoever asked for it."""
        self.verdict = why
        producer = self._producer_of(header.producer)
        if producer is not None:
            producer.used_us = header.timestamp_us
            outcome = REFUSED if why else sequence
            producer.note(header.first_number, header.count, outcome, why, header.settled)

    def _stage(self, entry: Entry, stage: Stage) -> tuple[Range, ...]:
        """The bodies of a chunk: messages later, if ever. Its first body is none."""
        header = entry.header
        first, last = header.first_sequence, header.last_sequence
        self.next_sequence = last + 1
        offsets, count = entry.offsets[OFFSET_SIZE:], header.count - 1
        why = self.staging.on_stage(stage, first + 1, offsets, count, header.timestamp_us)
        self._note(header, first, why)
        return ((first, last if why else first),)

    def _decide(
        self, entry: Entry, payload: SealOp | CommitOp | AbortOp | AskOp
    ) -> tuple[Range, ...]:
        header = entry.header
        sequence = header.lsn
        outcome = Outcome()
        if isinstance(payload, SealOp):
            outcome = self.staging.on_seal(payload, header.timestamp_us)
        elif isinstance(payload, AbortOp):
            outcome = self.staging.on_abort(payload)
        elif isinstance(payload, CommitOp):
            outcome = self.staging.on_commit(payload)
            sequence = payload.sequence
            self.next_sequence = max(self.next_sequence, sequence + payload.count + 1)
            self._come_forth(payload, outcome, max(header.timestamp_us, 0) // 1000)
        else:
            outcome = self.staging.on_ask(payload, header.queue_id)
        for target, task in outcome.tasks:
            number = self.outbox.add_task(target, header.timestamp_us)
            self.staging.tasks[target, number] = task
        self._note(header, sequence, outcome.why)
        return tuple(outcome.dropped)

    def _come_forth(self, op: CommitOp, outcome: Outcome, stamp_ms: int) -> None:
        """What was staged is messages from now on, behind the op's own sequence."""
        first = op.sequence + 1
        for low, high in outcome.pieces:
            self.staging.origins.enter(low, high, first)
            first += high - low + 1
        if first == op.sequence + 1:
            return
        self.touch(MESSAGES, op.sequence + 1, first - 1)
        self.live.add(op.sequence + 1, first - 1)
        self.columns.append_pieces(op.sequence + 1, outcome.sizes, stamp_ms)

    def _producer_of(self, number: int) -> Producer | None:
        """The producer of this id. Another queue's, or a spool's, needs no op to begin."""
        known = self.producers.change(number)
        if known is None and needs_no_op(number):
            known = self.producers.add(number, Producer())
        return known

    def _take_step(self, entry: Entry, step: Step) -> tuple[Range, ...]:
        """The acks and the puts of one op; its first body was no message."""
        header = entry.header
        first, last = header.first_sequence, header.last_sequence
        acked = tuple(piece for one in step.ranges for piece in self.live.within(*one))
        if step.target:
            self._end((*acked, (first, last)))
            put = ((first + 1, last),)
            self.outbox.add(step.target, put, PUT, header.timestamp_us)
            return (*acked, (first, first))
        return self._end((*acked, (first, first)))

    def _send_off(self, payload: OutboxOp, stamp_us: int) -> None:
        ending = [piece for one in payload.ranges for piece in self.live.within(*one)]
        self._end(tuple(ending))
        self.outbox.add(payload.target, ending, payload.reason, stamp_us)

    def _outbox_done(self, payload: OutboxDoneOp) -> tuple[Range, ...]:
        ended = self.outbox.done(payload.target, payload.number)
        self.staging.forget_tasks(payload.target, payload.number)
        if payload.outcome == "deleted":
            self.outbox.forget(payload.target)
        return ended

    def _level(self, priority: int) -> PriorityLevel:
        level = self.levels.get(priority)
        if level is None:
            level = self.levels[priority] = PriorityLevel()
            self.levels = dict(sorted(self.levels.items()))
            self._is_mixed = True
        return level

    def _move_horizons(self, payload: HorizonsOp) -> None:
        for priority, place in payload.horizons:
            if priority:
                level = self._level(priority)
                level.horizon = max(level.horizon, place)
            else:
                self.horizon = max(self.horizon, place)

    def _refuse(self, entry: Entry) -> None:
        header = entry.header
        producer = self._producer_of(header.producer)
        if producer is not None:
            reason = getattr(entry.payload, "reason", "")
            producer.used_us = header.timestamp_us
            producer.note(header.first_number, header.count, REFUSED, reason, header.settled)

    def _end(self, ranges: tuple[Range, ...]) -> tuple[Range, ...]:
        for first, last in ranges:
            self.touch(MESSAGES, first, last)
            self.live.remove(first, last)
            if self.transient:
                self.transient.remove(first, last)
            if self._is_mixed:
                self._leave(first, last)
            if self.returned:
                self.returned.remove(first, last)
        for first, _ in ranges:
            self.columns.forget(*self.live.gap(first, 1, self.next_sequence - 1))
        if len(self.marks) > MARKS_TRIM_COUNT:
            self._trim_marks()
        return ranges

    def _leave(self, first: int, last: int) -> None:
        for level in self.levels.values():
            level.members.remove(first, last)
        self.delayed.remove(first, last)
        self.places.end(first, last)
        self.resting.remove(first, last)
        self._is_mixed = bool(self.levels or self.delayed or self.places or self.resting)

    def _enter(self, payload: DueOp) -> None:
        """Delays have ended."""
        place = payload.place
        for first, last in payload.entering:
            self.touch(MESSAGES, first, last)
            for low, high, _ in self.delayed.within(first, last):
                self.places.enter(low, high, place + low - first)
            self.delayed.remove(first, last)
            place += last - first + 1
        self.next_sequence = max(self.next_sequence, place)
        for first, last in payload.returning:
            self.touch(MESSAGES, first, last)
            self.resting.remove(first, last)

    def _return_later(self, payload: ReturnLaterOp, lsn: int) -> None:
        self._return(payload.ranges, lsn)
        for first, last in payload.ranges:
            for low, high in self.live.within(first, last):
                self.resting.put(low, high, payload.due_us)
                self._is_mixed = True

    def _trim_marks(self) -> None:
        self.marks = self._needed(self.marks, self.live)
        for level in self.levels.values():
            level.marks = self._needed(level.marks, level.members)

    def _needed(self, marks: list[tuple[int, int]], members: RangeSet) -> list[tuple[int, int]]:
        least = members.first if members else self.next_sequence
        return [(lsn, mark) for lsn, mark in marks if mark > least]

    def _return(self, ranges: tuple[Range, ...], lsn: int) -> None:
        for first, last in ranges:
            self.touch(MESSAGES, first, last)
            for low, high in self.live.within(first, last):
                self._count_return(low, high, lsn)

    def _count_return(self, first: int, last: int, lsn: int) -> None:
        """These live messages have come back once more."""
        known = list(self.returned.walk(first, last))
        for low, high, (returns, _) in known:
            if first < low:
                self.returned.put(first, low - 1, 1, lsn)
            self.returned.put(low, high, returns + 1, lsn)
            first = high + 1
        if first <= last:
            self.returned.put(first, last, 1, lsn)

    def _promote(self, payload: PromotedOp, lsn: int) -> tuple[Range, ...]:
        ended: tuple[Range, ...] = ()
        if payload.how != "clean" and self.transient:
            ended = self._end(tuple(self.transient))
        # A message published later is not below the horizon's past: the mark ends where the
        # queue ends now.
        ends = self.next_sequence
        least = 0
        if payload.how == "unclean":
            ended += self._begin_anew(payload)
            # What the lost past has handed out is not known: it may have been everything.
            least = ends
            self._skip_to(payload.generation << GENERATION_BITS)
        self.marks.append((lsn, max(min(self.horizon, ends), least)))
        for level in self.levels.values():
            level.marks.append((lsn, max(min(level.horizon, ends), least)))
        self._trim_marks()
        return ended

    def _skip_to(self, sequence: int) -> None:
        self.next_sequence = max(self.next_sequence, sequence)

    def _begin_anew(self, payload: PromotedOp) -> tuple[Range, ...]:
        """An unclean promotion: what the new master lacks is lost, and older acks are void."""
        self.generation = max(self.generation, payload.generation)
        self.fence = max(self.fence, payload.master_epoch)
        self.lost += payload.lost_count
        reason = (
            f"it was stored, and lost by the unclean promotion of epoch {payload.master_epoch}: "
            "whether a consumer had it before is not known"
        )
        sequences = self.needed_set(payload.lost)
        for number in self.producers.losers(sequences):
            loser = self.producers.change(number)
            assert loser is not None
            loser.lose(sequences, reason)
        lost = self.staging.lose(payload.lost)
        dropped = self.staging.lost_runs(payload.lost)
        self.staging.renumber(self.outbox.begin_anew(lost))
        return (*self._end(tuple(lost)), *dropped)

    def _producer(self, payload: ProducerOp, lsn: int, timestamp_us: int) -> None:
        for number in payload.expired:
            self.producers.remove(number)
        if not payload.expired:
            self.producers.add(self.producer_id(lsn), Producer(used_us=timestamp_us))

    # --- Pages --------------------------------------------------------------------------

    def touch(self, kind: int, first: int, last: int) -> None:
        """What is known of this stretch is about to change."""
        if self.snapshots:
            for one in self.snapshots:
                one.before(kind, first, last)
        self.tables[kind].touch(first, last)

    @property
    def is_small(self) -> bool:
        """Whether it is one value on the disk, without pages."""
        return (
            self.count_within(MESSAGES, 0, END) <= SMALL_MAX[MESSAGES]
            and len(self.producers) <= SMALL_MAX[PRODUCERS]
            and self.columns.is_small(self.live, SMALL_MAX[COLUMNS])
        )

    def count_within(self, kind: int, first: int, last: int) -> int:
        """How many entries the page of this stretch has; 0: it holds nothing."""
        if kind == PRODUCERS:
            return self.producers.count_within(first, last)
        if kind == COLUMNS:
            return self.columns.count_of(first)
        count, blocks = self.live.count_within(first, last), self.columns.blocks(first, last)
        if not count:
            return blocks
        count += blocks
        if self.transient:
            count += self.transient.count_within(first, last)
        if self.returned:
            count += self.returned.count_within(first, last)
        if self._is_mixed:
            rest = (self.delayed, self.places.by_sequence, self.resting)
            count += sum(each.count_within(first, last) for each in rest)
            count += sum(level.members.count_within(first, last) for level in self.levels.values())
        return count

    def extent_within(self, first: int, last: int) -> Range:
        """The first and the last thing of messages in this stretch, which holds something."""
        blocks = self.columns.directory.extent(first, last)
        if not self.live.count_within(first, last):
            return blocks
        least, most = self.live.extent_within(first, last)
        return min(least, blocks[0]), max(most, blocks[1])

    def page(self, kind: int, first: int, last: int) -> bytes:
        """The page of this stretch, which holds something."""
        if kind == PRODUCERS:
            return self.producers.page(first, last)
        if kind == COLUMNS:
            return self.columns.page(first)
        return msgspec.msgpack.encode(
            MessagesPage(
                self.live.part(first, last),
                self.columns.directory.part(first, last),
                self.transient.part(first, last),
                self.delayed.part(first, last),
                self.places.by_sequence.part(first, last),
                self.returned.part(first, last),
                self.resting.part(first, last),
                [
                    (priority, members)
                    for priority, level in self.levels.items()
                    if (members := level.members.part(first, last))
                ],
            )
        )

    def add_page(self, page: Page) -> None:
        """A page of a state that is read, behind those of its kind before.

        Raises ValueError when it is no such thing.
        """
        if page.data == b"" or not self.is_paged:
            raise ValueError(f"a page from {page.first} that no state has")
        if page.kind == COLUMNS:
            self.columns.add_page(page)
            return
        if page.kind == PRODUCERS:
            self.producers.add_page(page)
            return
        if page.data is None:
            raise ValueError(f"a page from {page.first} that was not read")
        try:
            self._add_messages(msgspec.msgpack.decode(page.data, type=MessagesPage))
        except MALFORMED as error:
            raise ValueError(f"a page of {len(page.data)} bytes: {error}") from error
        self.tables[page.kind].load(page.first, page.lsn)

    def _add_messages(self, page: MessagesPage) -> None:
        self.live.extend(page.live)
        self.transient.extend(page.transient)
        self.columns.directory.extend(page.blocks)
        self.delayed.extend(page.delayed)
        self.places.by_sequence.extend(page.places)
        self.returned.extend(page.returned)
        self.resting.extend(page.resting)
        for priority, members in page.levels:
            if priority not in self.levels:
                raise ValueError(f"a page names a level {priority} that is not there")
            self.levels[priority].members.extend(members)

    def end_pages(self) -> None:
        """All pages of a state that is read have been added.

        Raises ValueError when some are missing, or tell what cannot be.
        """
        messages, producers, tail_end, seal = self._awaited
        if self.live.count != messages:
            raise ValueError(f"pages of {self.live.count} messages, not {messages}")
        self.producers.end_pages(producers, seal)
        self.columns.end_pages(tail_end, self.next_sequence)
        self.places = Places.from_bytes(self.places.by_sequence.to_bytes(), self.next_sequence)
        self._check()

    def note_unwritten(self) -> None:
        """No page of it is on the disk."""
        for table in self.tables.values():
            table.touch(0, END)

    def forget_pages(self) -> None:
        """All of it is one value on the disk."""
        for kind in self.tables:
            self.tables[kind] = Table()
            self.tables[kind].changed = {0: None}
        self.columns.collapse(self.tables[COLUMNS], self.live)
        self.producers.collapse(self.tables[PRODUCERS])

    def changed_pages(self) -> list[tuple[int, Range]]:
        """(kind, stretch) of what is not on the disk as it is; from now on it counts as written."""
        wanted = []
        for kind, table in self.tables.items():
            for first in sorted(table.changed):
                stretch = table.stretch(first)
                if self.count_within(kind, *stretch):
                    if first in table.gone:
                        table.renew(first)
                    wanted.append((kind, stretch))
                elif kind == COLUMNS:
                    table.clear(first)  # It is the last one, which stays.
                else:
                    if kind == PRODUCERS:
                        self.producers.drop(first)
                    table.drop(first)
            table.changed = {}
        self.producers.give()
        return wanted

    def all_pages(self) -> list[tuple[int, Range]]:
        """(kind, stretch) of every page."""
        return [
            (kind, stretch) for kind, table in self.tables.items() for stretch in table.stretches()
        ]

    @property
    def is_heavy(self) -> bool:
        """Whether much waits in memory for the next checkpoint."""
        held = self.columns.held_count >= HELD_BLOCKS
        return held or self.producers.held_count >= HELD_PAGES

    # --- Bytes --------------------------------------------------------------------------

    @property
    def bytes_about(self) -> int:
        """Of `encode`, without making it."""
        return self._bytes_but_columns + self.columns.bytes_about

    @property
    def _bytes_but_columns(self) -> int:
        runs = len(self.live) + len(self.transient)
        runs += sum(len(level.members) for level in self.levels.values())
        numbered = len(self.delayed) + len(self.places.by_sequence) + len(self.resting)
        size = RUN_BYTES * (runs + numbered + len(self.returned))
        size += NUMBER_BYTES * (numbered + 2 * len(self.returned))
        items = 2 * len(self.producers) + self.outbox.entry_count + len(self.outbox.idle)
        return size + PLAIN_ITEM_BYTES * items + self.staging.bytes_about

    @property
    def changed_bytes_about(self) -> int:
        """Of what the next checkpoint writes, or more."""
        changed = sum(len(self.tables[kind].changed) for kind in (MESSAGES, PRODUCERS))
        rest = min(self._bytes_but_columns, changed * PAGE_BYTES_ABOUT)
        return rest + self.columns.changed_bytes

    def encode_head(self) -> bytes:
        """What of the state is in no page."""
        image = StateImage(
            PAGED_VERSION,
            self.applied,
            self.next_sequence,
            self.horizon,
            b"",
            b"",
            {},
            self.marks,
            {},
            self.history,
            [
                (priority, level.horizon, level.marks, b"")
                for priority, level in self.levels.items()
            ],
            generation=self.generation,
            fence=self.fence,
            lost=self.lost,
            outbox=self.outbox.image(),
            staging=self.staging.image(),
            time_us=self.time_us,
            held=(self.live.count, len(self.producers), self.columns.tail_end),
            producer_pages=self.producers.seal(),
        )
        return msgspec.msgpack.encode(image)

    def encode(self, version: int = STATE_VERSION) -> bytes:
        """The whole state as bytes; equal states give equal bytes.

        Args:
            version: the newest that who reads it knows.
        """
        is_plain = version <= PLAIN_VERSION
        is_plain = is_plain or self.returned.count + self.resting.count <= PLAIN_COUNT
        returned = self.returned if is_plain else ()
        resting = self.resting if is_plain else ()
        columns = self.columns.merged(self.live)
        image = StateImage(
            PLAIN_VERSION if is_plain else STATE_VERSION,
            self.applied,
            self.next_sequence,
            self.horizon,
            self.live.to_bytes(),
            self.transient.to_bytes(),
            {n: (often, lsn) for a, b, (often, lsn) in returned for n in range(a, b + 1)},
            self.marks,
            dict(self.producers),
            self.history,
            [
                (priority, level.horizon, level.marks, level.members.to_bytes())
                for priority, level in self.levels.items()
            ],
            columns.sizes.to_bytes(),
            columns.stamps.to_bytes(),
            self.generation,
            self.fence,
            self.lost,
            columns.ttls.to_bytes(),
            self.delayed.to_bytes(),
            self.places.by_sequence.to_bytes(),
            {n: due_us for a, b, (due_us,) in resting for n in range(a, b + 1)},
            self.outbox.image(),
            self.staging.image(),
            self.time_us,
            b"" if is_plain else self.returned.to_bytes(),
            b"" if is_plain else self.resting.to_bytes(),
        )
        return msgspec.msgpack.encode(image)

    @classmethod
    def decode(cls, data: bytes) -> QueueState:
        """Read what `encode` wrote, or `encode_head`: then pages are to be added.

        Raises ValueError on anything else.
        """
        image = image_of(data)
        state = cls()
        state.is_paged = image.version == PAGED_VERSION
        state._awaited = (*image.held, image.producer_pages)
        for table in state.tables.values():
            table.changed = {}
        state.applied = image.applied
        state.next_sequence = image.next_sequence
        state.horizon = image.horizon
        state.live = RangeSet.from_bytes(image.live)
        state.transient = RangeSet.from_bytes(image.transient)
        for priority, horizon, marks, members in image.levels:
            state.levels[priority] = PriorityLevel(horizon, marks, RangeSet.from_bytes(members))
        state.delayed = Spans.from_bytes(image.delayed)
        state.places = Places.from_bytes(image.places, image.next_sequence)
        resting = {sequence: (due_us,) for sequence, due_us in image.resting.items()}
        state.resting = ranges_of(image.resting_ranges, resting, 1)
        state.outbox = Outbox.restore(image.outbox, image.next_sequence)
        state.staging = Staging.restore(image.staging, image.next_sequence)
        state.returned = ranges_of(image.returned_ranges, image.returned, 2)
        state.marks = image.marks
        state.history = image.history[-HISTORY_COUNT:]
        state._check()
        if not state.is_paged:
            state.columns.replace(state.tables[COLUMNS], block_of(image))
            state.note_unwritten()
        state.generation = image.generation
        state.fence = image.fence
        state.lost = image.lost
        state.producers.load(image.producers)
        state.time_us = image.time_us or state.latest_stamp_us()
        return state

    @classmethod
    def of_image(cls, image: QueueImage, cache: PageCache | None = None) -> QueueState:
        """The state of a copy's checkpoint. Raises ValueError when it is none.

        Args:
            cache: reads pages of this disk, of which the image has only the names.
        """
        state = cls() if image.state is None else cls.decode(image.state)
        if cache is not None:
            state.keep_in(cache, image.queue_id)
        if state.is_paged:
            for page in image.pages:
                state.add_page(page)
            state.end_pages()
        return state

    def _check(self) -> None:
        """What was read is of messages that the queue has given sequences to."""
        self._is_mixed = bool(self.levels or self.delayed or self.places or self.resting)
        sets = [self.live, self.transient, *(level.members for level in self.levels.values())]
        ends = [held.last for held in sets if held]
        ends += [held.last for held in (self.returned, self.resting) if held]
        if max(ends, default=0) >= self.next_sequence:
            raise ValueError(f"a queue's state holds {max(ends)} of {self.next_sequence - 1}")


def next_sequence_of(image: bytes | None) -> int:
    """What the first message after this encoded state has at least; 0: it cannot be read."""
    try:
        return QueueState.decode(image).next_sequence if image is not None else 0
    except ValueError:
        return 0
