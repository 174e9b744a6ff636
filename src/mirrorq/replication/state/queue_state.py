"""The applied state of one queue: the effect of each op on its `contents`."""

from __future__ import annotations

from attrs import define, field

from mirrorq.containers.ranges import Range, RangeSet
from mirrorq.protocol import ops
from mirrorq.protocol.identities import is_key
from mirrorq.protocol.staged import AbortOp, AskOp, CommitOp, SealOp, Stage
from mirrorq.replication.history import extend_history
from mirrorq.replication.state.contents import GENERATION_BITS
from mirrorq.replication.state.image import NUMBER_MAX
from mirrorq.replication.state.outbox import PUT, needs_no_op
from mirrorq.replication.state.pages import COLUMNS, MESSAGES, PRODUCERS, changed_by
from mirrorq.replication.state.paging import PagedContents
from mirrorq.replication.state.priorities import PriorityLevel
from mirrorq.replication.state.producer import REFUSED, Producer, Producers
from mirrorq.replication.state.staging import StagingResult
from mirrorq.replication.state.unique_keys import REPEATED, hold_key, holder_of

MARKS_TRIM_COUNT = 8
"""With more promotion marks, marks that count for no message are removed."""

OFFSET_SIZE = 4
"""Bytes of an offset in a frame."""


@define
class Search:
    """Search for the producers whose stored messages an unclean promotion loses. The search reads
    the state before the op."""

    op: ops.PromotedOp
    lsn: int
    """Lsn of the op."""
    lost: RangeSet
    is_over: bool
    losers: list[int] = field(factory=list)
    least: int = 0
    """Id at which the search continues."""

    def look_further(self, producers: Producers) -> None:
        """Search a few more pages."""
        found, self.least = producers.losers(self.lost, self.least)
        self.losers += found
        self.is_over = not self.least


class QueueState(PagedContents):
    """The contents, changed by one op after another, equally on every copy."""

    _search: Search | None = None
    """Search that the next op needs, if any."""

    def is_ready_for(self, entry: ops.Entry) -> bool:
        """Return true if an op can be applied: its search is over, and snapshots have the pages
        that the op changes. Each call searches a few pages, or makes a few for snapshots. After
        false, call again in a later step."""
        payload = entry.payload
        if type(payload) is ops.PromotedOp and payload.how == "unclean":
            search = self._search_for(payload, entry.header.lsn)
            if not search.is_over:
                search.look_further(self.producers)
            if not search.is_over:
                return False
        if not self.snapshots:
            return True
        changes, tail = changed_by(entry), self.tables[COLUMNS].firsts[-1]
        if type(payload) is ops.ProducerOp and not payload.expired:
            given = self.producer_id(entry.header.lsn)
            changes.append((PRODUCERS, given, given))
        if any(kind == MESSAGES and last >= tail for kind, _, last in changes):
            changes += [(COLUMNS, tail, tail), (MESSAGES, tail, tail)]
        return all(one.prepare(changes) for one in self.snapshots)

    @property
    def is_full(self) -> bool:
        """Return true if a snapshot has no room for pages until the disk has taken some."""
        return any(one.is_full for one in self.snapshots)

    def apply(self, entry: ops.Entry) -> tuple[Range, ...]:
        """Apply the next op; return the ranges with bodies that are not needed any more."""
        return self.staging.freed(self._apply(entry))

    def _apply(self, entry: ops.Entry) -> tuple[Range, ...]:
        header = entry.header
        self.applied = header.lsn
        self.time_us = max(self.time_us, header.timestamp_us)
        extend_history(self.history, header.epoch, header.lsn, header.lsn)
        payload = entry.payload
        if payload is None:
            if isinstance(entry.step, Stage):
                return self._stage(entry, entry.step)
            self._publish(entry)
            repeated = self._end_repeats() if entry.keys else ()
            if entry.step is not None:
                return (*repeated, *self._take_step(entry, entry.step))
            return repeated
        if isinstance(payload, ops.DropHeadOp) and self.outbox.kept:
            # The op was judged on the whole log: messages may have moved to the outbox since.
            live = (piece for one in payload.ranges for piece in self.live.within(*one))
            return self._end(tuple(live))
        if isinstance(
            payload, ops.AckOp | ops.PurgeOp | ops.DropHeadOp | ops.ExpiryOp | ops.DiscardOp
        ):
            return self._end(payload.ranges)
        if isinstance(payload, SealOp | CommitOp | AbortOp | AskOp):
            return self._decide(entry, payload)
        if isinstance(payload, ops.OutboxOp):
            self._send_off(payload, header.timestamp_us)
        elif isinstance(payload, ops.OutboxDoneOp):
            return self._outbox_done(payload)
        elif isinstance(payload, ops.ReturnOp):
            self._return(payload.ranges, header.lsn)
        elif isinstance(payload, ops.HorizonOp):
            self.horizon = max(self.horizon, payload.sequence)
        elif isinstance(payload, ops.DueOp):
            self._enter(payload)
        elif isinstance(payload, ops.ReturnLaterOp):
            self._return_later(payload, header.lsn)
        elif isinstance(payload, ops.HorizonsOp):
            self._move_horizons(payload)
        elif isinstance(payload, ops.IdleOp):
            self.idle_since_us = payload.since_us
        elif isinstance(payload, ops.UniqueWindowOp):
            self.unique_window_ms = payload.window_ms
        elif isinstance(payload, ops.PauseOp):
            self.is_paused = payload.is_paused
        elif isinstance(payload, ops.PromotedOp):
            return self._promote(payload, header.lsn)
        elif isinstance(payload, ops.ProducerOp):
            self._producer(payload, header.lsn, header.timestamp_us)
        elif header.kind == ops.OpKind.REFUSAL:
            self._refuse(entry)
        return ()

    def _publish(self, entry: ops.Entry) -> None:
        header = entry.header
        first, last = header.first_sequence, header.first_sequence + header.count - 1
        self.touch(MESSAGES, first, last)
        self.live.add(first, last)
        stamp_ms = max(header.timestamp_us, 0) // 1000
        self.columns.publish(first, entry.offsets, header.count, stamp_ms, header.ttl_ms)
        self.next_sequence = last + 1
        if header.flags & ops.FLAG_TRANSIENT:
            self.transient.add(first, last)
        if header.flags & ops.FLAG_PRIORITY:
            self._level(header.priority).members.add(first, last)
        if header.delay_ms:
            due_us = min(header.timestamp_us + header.delay_ms * 1000, NUMBER_MAX)
            self.delayed.add(first, last, due_us)
            self._is_mixed = True
        if entry.keys:
            self._hold_keys(entry)
        producer = self._producer_of(header.producer)
        if producer is not None:
            producer.used_us = header.timestamp_us
            if entry.keys:
                self._note_each(producer, header)
            else:
                producer.record_outcome(
                    header.first_number, header.count, first, "", header.settled
                )

    def _hold_keys(self, entry: ops.Entry) -> None:
        """Remember the unique keys of a publish. Note repeated messages in `repeats`."""
        header, self.repeats = entry.header, {}
        if isinstance(entry.step, ops.Step) and entry.step.target:
            return  # The target queue checks the keys of its messages.
        for sequence, key in enumerate(entry.keys, header.first_sequence):
            if key is None:
                continue
            holder = holder_of(self.producers, key, header.timestamp_us)
            if holder:
                self.repeats[sequence] = holder
            else:
                window_ms = key.window_ms or self.unique_window_ms
                until_us = header.timestamp_us + window_ms * 1000
                hold_key(self.producers, key, sequence, until_us)

    def _note_each(self, producer: Producer, header: ops.Header) -> None:
        for index in range(header.count):
            sequence = header.first_sequence + index
            holder = self.repeats.get(sequence)
            outcome, why = (sequence, "") if holder is None else (holder, REPEATED)
            producer.record_outcome(header.first_number + index, 1, outcome, why, header.settled)

    def _end_repeats(self) -> tuple[Range, ...]:
        """End repeated messages: they are never live."""
        return self._end(tuple((sequence, sequence) for sequence in self.repeats))

    def _note(self, header: ops.Header, sequence: int, why: str) -> None:
        """Note the outcome of an op about staged messages for its producer."""
        self.verdict = why
        producer = self._producer_of(header.producer)
        if producer is not None:
            producer.used_us = header.timestamp_us
            outcome = REFUSED if why else sequence
            producer.record_outcome(header.first_number, header.count, outcome, why, header.settled)

    def _stage(self, entry: ops.Entry, stage: Stage) -> tuple[Range, ...]:
        """Stage the bodies of a chunk. Its first body is no message."""
        header = entry.header
        first, last = header.first_sequence, header.last_sequence
        self.next_sequence = last + 1
        offsets, count = entry.offsets[OFFSET_SIZE:], header.count - 1
        why = self.staging.on_stage(stage, first + 1, offsets, count, header.timestamp_us)
        self._note(header, first, why)
        return ((first, last if why else first),)

    def _decide(
        self, entry: ops.Entry, payload: SealOp | CommitOp | AbortOp | AskOp
    ) -> tuple[Range, ...]:
        header = entry.header
        sequence = header.lsn
        outcome = StagingResult()
        if isinstance(payload, SealOp):
            outcome = self.staging.on_seal(payload, header.timestamp_us)
        elif isinstance(payload, AbortOp):
            outcome = self.staging.on_abort(payload)
        elif isinstance(payload, CommitOp):
            outcome = self.staging.on_commit(payload)
            sequence = payload.sequence
            self.next_sequence = max(self.next_sequence, sequence + payload.count + 1)
            self._become_visible(payload, outcome, max(header.timestamp_us, 0) // 1000)
        else:
            outcome = self.staging.on_ask(payload, header.queue_id)
        for target, task in outcome.tasks:
            number = self.outbox.add_task(target, header.timestamp_us)
            self.staging.tasks[target, number] = task
        self._note(header, sequence, outcome.why)
        return tuple(outcome.dropped)

    def _become_visible(self, op: CommitOp, outcome: StagingResult, stamp_ms: int) -> None:
        """Make staged messages live, behind the op's own sequence."""
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
        """Return the producer of this id. Add a producer of a queue or a spool on demand."""
        known = self.producers.change(number)
        if known is None and needs_no_op(number):
            known = self.producers.add(number, Producer())
        return known

    def _take_step(self, entry: ops.Entry, step: ops.Step) -> tuple[Range, ...]:
        """Apply the acks and the puts of one op. Its first body is no message."""
        header = entry.header
        first, last = header.first_sequence, header.last_sequence
        acked = tuple(piece for one in step.ranges for piece in self.live.within(*one))
        if step.target:
            self._end((*acked, (first, last)))
            put = ((first + 1, last),)
            self.outbox.add(step.target, put, PUT, header.timestamp_us)
            return (*acked, (first, first))
        return self._end((*acked, (first, first)))

    def _send_off(self, payload: ops.OutboxOp, stamp_us: int) -> None:
        ending = [piece for one in payload.ranges for piece in self.live.within(*one)]
        self._end(tuple(ending))
        self.outbox.add(payload.target, ending, payload.reason, stamp_us)

    def _outbox_done(self, payload: ops.OutboxDoneOp) -> tuple[Range, ...]:
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

    def _move_horizons(self, payload: ops.HorizonsOp) -> None:
        for priority, place in payload.horizons:
            if priority:
                level = self._level(priority)
                level.horizon = max(level.horizon, place)
            else:
                self.horizon = max(self.horizon, place)

    def _refuse(self, entry: ops.Entry) -> None:
        header = entry.header
        producer = self._producer_of(header.producer)
        if producer is not None:
            reason = getattr(entry.payload, "reason", "")
            producer.used_us = header.timestamp_us
            producer.record_outcome(
                header.first_number, header.count, REFUSED, reason, header.settled
            )

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
        self.places.forget(first, last)
        self.resting.remove(first, last)
        self._is_mixed = bool(self.levels or self.delayed or self.places or self.resting)

    def _enter(self, payload: ops.DueOp) -> None:
        """Apply the end of delays."""
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

    def _return_later(self, payload: ops.ReturnLaterOp, lsn: int) -> None:
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
        """Count another return of these live messages."""
        known = list(self.returned.walk(first, last))
        for low, high, (returns, _) in known:
            if first < low:
                self.returned.put(first, low - 1, 1, lsn)
            self.returned.put(low, high, returns + 1, lsn)
            first = high + 1
        if first <= last:
            self.returned.put(first, last, 1, lsn)

    def _promote(self, payload: ops.PromotedOp, lsn: int) -> tuple[Range, ...]:
        ended: tuple[Range, ...] = ()
        if payload.how != "clean" and self.transient:
            ended = self._end(tuple(self.transient))
        # Messages published later are not below the mark: a mark ends where the queue ends now.
        ends = self.next_sequence
        least = 0
        if payload.how == "unclean":
            ended += self._begin_anew(payload)
            # The last use in the lost past is not known either.
            self.idle_since_us = 0
            # The lost past may have delivered every message.
            least = ends
            self._skip_to(payload.generation << GENERATION_BITS)
        self.marks.append((lsn, max(min(self.horizon, ends), least)))
        for level in self.levels.values():
            level.marks.append((lsn, max(min(level.horizon, ends), least)))
        self._trim_marks()
        return ended

    def _skip_to(self, sequence: int) -> None:
        self.next_sequence = max(self.next_sequence, sequence)

    def _begin_anew(self, payload: ops.PromotedOp) -> tuple[Range, ...]:
        """Apply an unclean promotion: messages that the new master lacks are lost."""
        self.generation = max(self.generation, payload.generation)
        self.fence = max(self.fence, payload.master_epoch)
        self.lost += payload.lost_count
        reason = (
            f"it was stored, and lost by the unclean promotion of epoch {payload.master_epoch}: "
            "whether a consumer had it before is not known"
        )
        search = self._search_for(payload, self.applied)
        while not search.is_over:
            search.look_further(self.producers)
        for number in search.losers:
            loser = self.producers.change(number)
            assert loser is not None
            loser.lose(search.lost, reason)
        self._search = None
        lost = self.staging.lose(payload.lost)
        dropped = self.staging.lost_runs(payload.lost)
        self.staging.renumber(self.outbox.begin_anew(lost))
        return (*self._end(tuple(lost)), *dropped)

    def _search_for(self, op: ops.PromotedOp, lsn: int) -> Search:
        """Return the search for this op. A search for another op is discarded."""
        search = self._search
        if search is None or search.op is not op or search.lsn != lsn:
            lost = self.needed_set(op.lost)
            search = self._search = Search(op, lsn, lost, is_over=not lost)
        return search

    def _producer(self, payload: ops.ProducerOp, lsn: int, timestamp_us: int) -> None:
        for number in payload.expired:
            if not is_key(number) or self._is_over(number, timestamp_us):
                self.producers.remove(number)
        if not payload.expired:
            self.producers.add(self.producer_id(lsn), Producer(used_us=timestamp_us))

    def _is_over(self, number: int, time_us: int) -> bool:
        """Return true if the time of a unique key has ended. A put may have renewed the key since
        the master's decision."""
        known = self.producers.find(number)
        return known is not None and known.used_us <= time_us


def next_sequence_of(image: bytes | None) -> int:
    """Lower bound for the sequence after this encoded state; 0: no state, or malformed bytes."""
    try:
        return QueueState.decode(image).next_sequence if image is not None else 0
    except ValueError:
        return 0
