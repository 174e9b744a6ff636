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

from mirrorq.containers.range_map import Places, RangeMap, Spans
from mirrorq.containers.ranges import Range, RangeSet
from mirrorq.protocol.policy import DEFAULT
from mirrorq.replication.history import HISTORY_COUNT
from mirrorq.replication.state.columns import Columns
from mirrorq.replication.state.image import NUMBER_MAX
from mirrorq.replication.state.outbox import Outbox
from mirrorq.replication.state.pages import COLUMNS, MESSAGES, PRODUCERS, Snapshot, Table
from mirrorq.replication.state.priorities import PriorityLevel
from mirrorq.replication.state.producer import Producers
from mirrorq.replication.state.staging import Staging

GENERATION_BITS = 40
"""Each unclean promotion moves sequences and producer ids ahead to generation << 40: beyond
all that the lost past can have given out, and room for eight million of them."""


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


class Contents:
    """What all stable ops up to `applied` have made of the queue, and what may be asked of it.

    Its owner is the copy (`replica`), on the node's thread.
    """

    def __init__(self) -> None:
        self.applied = 0
        self.time_us = 0
        """The greatest stamp of an op: the queue's time goes on from there."""
        self.idle_since_us = 0
        """When the queue was used last, by its time; 0: it is in use."""
        self.is_paused = False
        """Nothing is handed out."""
        self.unique_window_ms = DEFAULT.unique_window
        """How long a unique key is remembered whose put does not say it."""
        self.repeats: dict[int, int] = {}
        """Of the last publish with unique keys: messages that repeat another one, and that one's
        sequence. Not part of the state."""
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

    def touch(self, kind: int, first: int, last: int) -> None:
        """What is known of this stretch is about to change."""
        if self.snapshots:
            for one in self.snapshots:
                one.before(kind, first, last)
        self.tables[kind].touch(first, last)

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
        return list(self.each_run(first, last))

    def each_run(self, first: int, last: int) -> Iterator[Run]:
        """The same, one after the other."""
        while first <= last:
            run = self.run(first, last)
            yield run
            first = run.last + 1

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
