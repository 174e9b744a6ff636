"""The applied state of one queue: live messages, their returns, outcomes of producers.

Every member applies the same stable ops in the same order, so states at the same lsn are equal on
all copies (Lemma 3). The state knows nothing of consumers: open deliveries belong to the master
(`dispatch`) and end with its term.

A message is *live* from its publish to its ack. Its delivery count is

    1 + its returns + promotions that happened while it was live and below the horizon

Promotions are kept as marks, (lsn, sequence). A mark counts for every message below its sequence,
so a promotion costs the same for ten messages and for ten million.

A *delayed* message is live and not ready. The DueOp that ends its delay gives the message a new
*place* behind all places of its level. Horizons and marks are about places. The place of a message
that was never delayed is its sequence.

Messages of a priority above 0 are members of a *level* with its own horizon and marks
(`priorities`). `horizon` and `marks` in this module belong to priority 0.

Invariants:
1. live sequences are below next_sequence.
2. `returned` holds live sequences only.
3. outcomes of a producer are above its settled mark, in order of number.
4. `delayed`, `places` and `resting` hold live sequences only. None is in both of the first two.
5. members of levels are live, each of one level only. A message without a level has priority 0.
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
"""An unclean promotion moves sequences and producer ids ahead to generation << 40. The lost past
cannot have reached so far, and there is room for eight million promotions."""


class Run(NamedTuple):
    """Neighbours in order of sequence that share a level and a shift."""

    priority: int
    first: int
    last: int
    shift: int = 0
    """Place = sequence + shift."""
    is_delayed: bool = False
    """True if the delay has not ended: the messages have no place yet."""

    @property
    def is_doubtful(self) -> bool:
        """True if, in this past, an unclean promotion came before the end of the delay. In the lost
        past the delay may have ended earlier, and the messages may have been delivered."""
        return self.first + self.shift >> GENERATION_BITS > self.first >> GENERATION_BITS


class Contents:
    """Result of all stable ops up to `applied`, and the queries on the result.

    Its owner is the copy (`replica`), on the node's thread.
    """

    # A dict of more than 29 fields is 1.6 kB, for each copy on a node: so this one is of the class.
    _awaited = (0, 0, 0, 0)
    """Numbers in the stored state's head that its pages must match, while they are read."""

    def __init__(self) -> None:
        self.applied = 0
        self.time_us = 0
        """Greatest timestamp of an op. The queue's time continues from here."""
        self.idle_since_us = 0
        """Queue time of the last use; 0: the queue is in use."""
        self.is_paused = False
        """True while the queue is paused: no message is delivered."""
        self.unique_window_ms = DEFAULT.unique_window
        """Time in ms for which a unique key is remembered when its put names no time."""
        self.repeats: dict[int, int] = {}
        """Last publish with unique keys: repeated message -> sequence of the message that has the
        key. Not part of the state."""
        self.next_sequence = 1
        self.horizon = 1
        """Messages below this place may be delivered."""
        self.live = RangeSet()
        self.transient = RangeSet()
        """Live messages that a cold promotion drops."""
        self.returned = RangeMap(2)
        """(returns, lsn of the last return) of returned messages. Neighbours that returned together
        and equally often share a range."""
        self.marks: list[tuple[int, int]] = []
        """Promotions: (lsn, sequence). Counts for live messages below sequence."""
        self.levels: dict[int, PriorityLevel] = {}
        """Levels of all priorities above 0 that were ever used."""
        self.delayed = Spans()
        """Messages published with a delay that has not ended, each with the end of its delay in
        microseconds since 1970."""
        self.places = Places()
        """Places of messages that were delayed."""
        self.resting = RangeMap(1)
        """Messages returned with a delay that has not ended, each with the end of its delay."""
        self._is_mixed = False
        """True if a message may have a level above 0, or a place other than its sequence."""
        self.outbox = Outbox()
        """Messages that ended here and are on their way to other queues."""
        self.staging = Staging()
        """Staged messages, and the origins of committed messages."""
        self.verdict = ""
        """Reason why the last op about staged messages was refused. Not part of the state."""
        self.history: list[tuple[int, int]] = []
        """(epoch, last lsn) of applied ops, the newest `HISTORY_COUNT` epochs, oldest first."""
        self.generation = 0
        """Number of unclean promotions in this past, or known from other pasts."""
        self.fence = 0
        """Term of the last unclean promotion. Deliveries of earlier terms cannot be acked."""
        self.lost = 0
        """Messages lost by unclean promotions, as far as the new masters could tell."""
        self.tables = {MESSAGES: Table(), PRODUCERS: Table(), COLUMNS: Table()}
        """Tables of the pages and their changes. Not part of the state."""
        self.snapshots: list[Snapshot] = []
        """Snapshots to be told before a change. Not part of the state."""
        self.columns = Columns(self.tables[COLUMNS], self)
        """Size, time and ttl of each live message."""
        self.producers = Producers(self.tables[PRODUCERS], self)
        self.is_paged = False
        """True if the state was read from pages, or is about to be."""

    def touch(self, kind: int, first: int, last: int) -> None:
        """Prepare a change of the stretch: make pages for snapshots, mark pages as changed."""
        if self.snapshots:
            for one in self.snapshots:
                one.before(kind, first, last)
        self.tables[kind].touch(first, last)

    def delivery_count(self, sequence: int) -> int:
        """Delivery count of the next delivery of this message."""
        if self._is_mixed:
            return self.count_run(sequence, sequence)[0]
        raised = sum(1 for _, mark in self.marks if mark > sequence)
        return 1 + raised + self.returned.at(sequence)[0]

    def count_run(self, first: int, last: int) -> Range:
        """(delivery count of `first`, end of the run within last that shares the count)."""
        marks, shift = self.marks, 0
        raised = 0
        if self._is_mixed:
            run = self.longest_run(first, last)
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
        """(returns of `first`, end of the run within last that returned equally often)."""
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
        """Producer id that a producer op at `lsn` creates. Ids of two pasts differ."""
        return lsn + (self.generation << GENERATION_BITS)

    def returned_often(self, ranges: RangeSet, limit: int) -> RangeSet:
        """Return the messages that one more return would bring above the delivery limit."""
        if limit == 0:
            return ranges.copy()
        often = RangeSet()
        for first, last in ranges:
            for low, high, (returns, _) in self.returned.walk(first, last):
                if returns >= limit:
                    often.add(low, high)
        return often

    def raised_by_promotion(self, sequence: int) -> bool:
        """Return true if a promotion, not a return, last raised this message's delivery count."""
        run = self.longest_run(sequence, sequence)
        place = sequence + run.shift
        promoted = int(run.is_doubtful)  # as if at lsn 1, before all known returns of this past
        promoted = max((lsn for lsn, mark in self._marks_of(run) if mark > place), default=promoted)
        return promoted > self.returned.at(sequence)[1]

    def _marks_of(self, run: Run) -> list[tuple[int, int]]:
        if run.is_delayed:
            return []
        return self.levels[run.priority].marks if run.priority else self.marks

    def longest_run(self, first: int, last: int) -> Run:
        """Return the longest run from `first` within `last` that shares level and shift."""
        if not self._is_mixed:
            return Run(0, first, last)
        priority = 0
        for other, level in self.levels.items():
            low, high = level.members.first_run(first, last)
            if low == first:
                priority, last = other, high
                break
            last = min(last, low - 1)
        waits = self.delayed.first_run(first, last)
        if waits is not None:
            if waits[0] == first:
                return Run(priority, first, waits[1], 0, True)
            last = waits[0] - 1
        stands = self.places.by_sequence.first_run(first, last)
        if stands is not None:
            if stands[0] == first:
                return Run(priority, first, stands[1], stands[2])
            last = stands[0] - 1
        return Run(priority, first, last)

    def runs(self, first: int, last: int) -> list[Run]:
        """Cut first to last where level or shift change, in order of sequence."""
        return list(self.each_run(first, last))

    def each_run(self, first: int, last: int) -> Iterator[Run]:
        """Yield the runs of `runs` lazily."""
        while first <= last:
            run = self.longest_run(first, last)
            yield run
            first = run.last + 1

    def needed(self, first: int, last: int) -> list[Range]:
        """Parts of first to last with bodies that a copy must have on its disk."""
        found = self.live.within(first, last)
        if self.outbox.kept:
            found = list(RangeSet((*found, *self.outbox.kept.within(first, last))))
        if self.staging:
            found = [*self.staging.plain(found), *self.staging.needed(first, last)]
            found = list(RangeSet(found))
        return found

    def needed_set(self, ranges: Iterable[Range]) -> RangeSet:
        """Return `needed` for several stretches, in order. Fast without outbox and staging."""
        found = RangeSet()
        for first, last in ranges:
            if self.outbox.kept or self.staging:
                for piece in self.needed(first, last):
                    found.add(*piece)
            else:
                found.extend(self.live.part(first, last))
        return found

    def carried(self, first: int, last: int) -> list[Range]:
        """Live messages that have their bodies under first to last (see `needed`)."""
        if not self.staging:
            return self.live.within(first, last)
        found = list(self.staging.plain(self.live.within(first, last)))
        for low, high, shift in self.staging.origins.by_sequence.within(first, last):
            found += self.live.within(low + shift, high + shift)
        return found

    def dead_around(self, ended: RangeSet) -> Iterator[Range]:
        """Widest ranges around ended messages that hold no needed body."""
        if not self.staging:
            for sequence, _ in ended:
                first, last = self.live.gap(sequence, 1, self.next_sequence - 1)
                yield self.outbox.kept.gap(sequence, first, last)
            return
        needed = RangeSet(self.needed(1, self.next_sequence - 1))
        for sequence, _ in ended:
            yield needed.gap(sequence, 1, self.next_sequence - 1)

    def latest_stamp_us(self) -> int:
        """Greatest timestamp visible in the state, in microseconds. For states of versions that did
        not keep the greatest timestamp."""
        used = (producer.used_us for producer in self.producers.values())
        latest_us = max(self.columns.latest_ms(self.live) * 1000, max(used, default=0))
        return min(latest_us, NUMBER_MAX)

    def epoch_span(self, lsn: int) -> tuple[int, int, int, int]:
        """Epochs in which the op at `lsn` may have been made: (first, last, after, upto). The two
        lsns bound the ops with the same answer. All are 0 when the epoch is unknown.

        First and last differ only at the oldest end of a history that has lost older epochs.
        """
        index = bisect_right(self.history, lsn - 1, key=lambda item: item[1])
        if index == len(self.history):
            return 0, 0, 0, 0
        epoch, upto = self.history[index]
        if index:
            return epoch, epoch, self.history[index - 1][1], upto
        return epoch if len(self.history) < HISTORY_COUNT else 0, epoch, 0, upto
