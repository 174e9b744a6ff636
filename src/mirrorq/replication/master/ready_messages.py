"""Ready messages of one master's term, and messages without a body. Pure.

Nothing here is replicated. Ready messages are made from the applied state when the term begins. A
message is *set aside* when no member that could be asked has its body. It is live, and is not
delivered.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from itertools import chain, compress
from operator import le

from mirrorq.containers.fifo import Fifo
from mirrorq.containers.ranges import Range, RangeSet
from mirrorq.protocol.sessions import Delivery
from mirrorq.replication.master.limits import Depth, oldest
from mirrorq.replication.master.ready_bytes import ReadyBytes
from mirrorq.replication.master.suspects import Suspects
from mirrorq.replication.state.contents import Run
from mirrorq.replication.state.priorities import ReadyLevels
from mirrorq.replication.state.queue_state import QueueState
from mirrorq.replication.transfer import Transfer

ASIDE_COUNT = 512
"""Most ranges of lost messages to be set aside in a step."""
DROP_COUNT = 1 << 62
"""No bound."""
STRETCH_RANGES = 64
"""Ranges of each priority that the beginning of a term sorts in at once."""
STRETCH_WEIGHT = 16
"""Cost of such a sort for each priority, as a number of ranges that are sorted in singly."""


class ReadyMessages:
    """Ready messages by priority, and messages that are set aside."""

    def __init__(self, state: QueueState, bodies: Transfer, suspects: Suspects) -> None:
        self._state = state
        self._bodies = bodies
        """Knows which bodies are missing on this disk."""
        self._suspects = suspects
        self.levels = ReadyLevels(state.live.copy())
        self.came_back: list[Range] = []
        """Messages that became ready again since the master last looked."""
        self.aside = RangeSet()
        """Live messages that are not delivered: no member that could be asked has their body."""
        self.losing: Fifo[RangeSet] = Fifo()
        """Bodies that no member has: their messages are still to be set aside."""
        self._bytes: ReadyBytes | None = None
        """None until the size is first asked for."""

    def sort_in(self) -> Iterator[None]:
        """Sort ready messages into their levels, a little for each item of the iterator. Until its
        end no other method may be called, and the state must not change."""
        return _sorting(self._state, self.levels)

    @property
    def count(self) -> int:
        """Number of messages that no consumer holds, including messages set aside."""
        return self.levels.count + self.aside.count

    def sequences(self) -> Iterator[Range]:
        """Ranges of ready sequences, in the order of delivery."""
        places = self._state.places
        for first, end in self.levels:
            while first <= end:
                last, shift = places.at(first, end) if places else (end, 0)
                yield first - shift, last - shift
                first = last + 1

    # --- Sizes --------------------------------------------------------------------------

    @property
    def size(self) -> int:
        """Bytes of the ready messages' bodies, as far as counted."""
        return 0 if self._bytes is None else self._bytes.total

    @property
    def is_size_known(self) -> bool:
        """Return true if all ready messages are counted."""
        return self._bytes is not None and self._bytes.is_whole

    def count_size(self) -> None:
        """Count a portion of the ready messages. Counts are kept up to date from then on."""
        if self._bytes is None:
            self._bytes = ReadyBytes(self._state, self.levels)
        self._bytes.count_portion()

    def _note(self, priority: int, first: int, last: int, shift: int, sign: int) -> None:
        """Note sequences, at places `shift` behind, that are ready now (1) or not now (-1)."""
        if self._bytes is not None:
            self._bytes.record_change(priority, first, last, shift, sign)

    # --- Messages that become ready --------------------------------------------------------

    def add(self, first: int, last: int, priority: int = 0) -> None:
        """Add new messages of a priority."""
        self._note(priority, first, last, 0, 1)
        if priority:
            self.levels.add(priority, first, last)
        else:
            self.levels.plain.add(first, last)

    def give_back(self, ranges: list[Range]) -> None:
        """Make messages ready again that were not seen, or were returned by an applied op."""
        for first, last in ranges:
            self.look_for_lost(first, last)
            for low, high in self._state.live.within(first, last):
                self.came_back.append((low, high))
                for run in self._state.runs(low, high):
                    if not run.is_delayed:
                        self._make_ready(run)

    def _make_ready(self, run: Run) -> None:
        first, last = run.first + run.shift, run.last + run.shift
        if self._bytes is not None:
            # Ready messages are counted already.
            for low, high in self.levels.level(run.priority).within(first, last):
                self._note(run.priority, low - run.shift, high - run.shift, run.shift, -1)
            self._note(run.priority, run.first, run.last, run.shift, 1)
        self.levels.add(run.priority, first, last)

    # --- Messages that are ready no more -----------------------------------------------------

    def front(self, level: RangeSet) -> tuple[int, int, int]:
        """(first, last, shift) of the first sequences in a level."""
        first, last = level.front()
        shift = 0
        if self._state.places:
            last, shift = self._state.places.at(first, last)
        return first - shift, last - shift, shift

    def take_front(
        self, priority: int, before: int, count: int, size: int | None
    ) -> tuple[int, int, int]:
        """Take the first messages of a priority out, all with one delivery count.

        Args:
            before: places from here on are left.
            count: most messages.
            size: bytes of bodies that are enough, None without a bound.

        Returns:
            (first, last, delivery count)
        """
        level = self.levels.level(priority)
        first, last = level.front()
        last = min(last, first + count - 1, before - 1)
        shift = 0
        if self._state.places:
            last, shift = self._state.places.at(first, last)
        first -= shift
        deliveries, last = self._state.count_run(first, last - shift)
        if size is not None:
            last, _ = oldest(self._state.columns, first, last, Depth(0, size))
        level.remove(first + shift, last + shift)
        self._note(priority, first, last, shift, -1)
        return first, last, deliveries

    def drop_oldest(self, excess: Depth, count_max: int = DROP_COUNT) -> tuple[list[Range], Depth]:
        """Take the oldest ready messages out, the lowest priority first, until the excess is gone
        or `count_max` ranges are out.

        Returns the ranges, and the rest of the excess.
        """
        dropped: list[Range] = []
        for priority in reversed(self.levels.priorities):
            level = self.levels.level(priority)
            while level and (excess.count or excess.size) and len(dropped) < count_max:
                first, last, shift = self.front(level)
                last, excess = oldest(self._state.columns, first, last, excess)
                level.remove(first + shift, last + shift)
                self._suspects.remove(first, last)
                self._note(priority, first, last, shift, -1)
                dropped.append((first, last))
        return dropped, excess

    def take_out(self, ranges: RangeSet) -> list[Range]:
        """Take the ready messages of these ranges out, of every priority; return them."""
        taken = RangeSet()
        for first, last in ranges:
            for low, high in self._named(first, last):
                self._take_out(low, high, taken)
        return list(taken)

    def _named(self, first: int, last: int) -> Iterable[Range]:
        """Messages among these numbers. With places, other numbers in the ranges are places, and
        would name the wrong messages."""
        return self._state.live.within(first, last) if self._state.places else ((first, last),)

    def _take_out(self, first: int, last: int, taken: RangeSet) -> None:
        for run in self._state.runs(first, last):
            level, shift = self.levels.level(run.priority), run.shift
            for low, high in level.within(run.first + shift, run.last + shift):
                level.remove(low, high)
                self._suspects.remove(low - shift, high - shift)
                self._note(run.priority, low - shift, high - shift, shift, -1)
                taken.add(low - shift, high - shift)

    def take_inherited(self, piece: Delivery) -> list[Range]:
        """Take an ack across a promotion: the count decides if the delivery is the message's last.

        Taken when the message is ready, last raised by a promotion, with the ack's count + 1.
        """
        taken: list[Range] = []
        for run, sequence in list(self.inherited(piece)):
            place = sequence + run.shift
            self.levels.level(run.priority).remove(place, place)
            self._note(run.priority, sequence, sequence, run.shift, -1)
            taken.append((sequence, sequence))
        return taken

    def inherited(self, piece: Delivery) -> Iterator[tuple[Run, int]]:
        """(run, sequence) of each message that `take_inherited` would take."""
        state = self._state
        if piece.epoch < state.fence:
            return  # counts of a past that was lost say nothing here
        runs = (state.runs(*named) for named in self._named(piece.first, piece.last))
        for run in chain.from_iterable(runs):
            level, shift = self.levels.level(run.priority), run.shift
            for low, high in level.within(run.first + shift, run.last + shift):
                for sequence in range(low - shift, high - shift + 1):
                    same = state.delivery_count(sequence) == piece.count + 1
                    if same and state.raised_by_promotion(sequence):
                        yield run, sequence

    # --- Missing bodies ------------------------------------------------------------------

    def whole(self, ranges: list[Range]) -> list[Range]:
        """Messages of these ranges with readable bodies on this disk."""
        missing = self._bodies.missing
        if not missing:
            return ranges
        found = RangeSet(ranges)
        for first, last in ranges:
            for low, high, shift in self._origins(first, last):
                for start, end in missing.within(low, high):
                    found.remove(start + shift, end + shift)
        return list(found)

    def _origins(self, first: int, last: int) -> Iterator[tuple[int, int, int]]:
        """Origins of these messages: (first, last, shift). A message's sequence is its origin plus
        shift."""
        staging = self._state.staging
        while first <= last:
            end, shift = staging.piece(first, last)
            yield first - shift, end - shift, shift
            first = end + 1

    def lose(self, bodies: RangeSet) -> None:
        """Note lost bodies. Their messages are set aside, a portion in each step."""
        self.losing.append(bodies)

    def look_for_lost(self, first: int, last: int) -> None:
        """Note messages that become ready: lost messages among them are to be set aside."""
        lost = self._bodies.lost
        if lost:
            origins = self._origins(first, last)
            found = RangeSet(one for low, high, _ in origins for one in lost.within(low, high))
            if found:
                self.lose(found)

    def set_lost_aside(self) -> bool:
        """Set a portion of lost messages aside; return true if more are left."""
        left = ASIDE_COUNT
        while self.losing and left > 0:
            bodies = self.losing[0]
            upto = bodies.reach(bodies.first, bodies.last, left)
            for piece in bodies.within(bodies.first, upto):
                left -= 1
                for lost in self._bodies.lost.within(*piece):
                    self._set_aside(RangeSet(self._state.carried(*lost)))
            bodies.remove(bodies.first, upto)
            if not bodies:
                self.losing.popleft()
        return bool(self.losing)

    def _set_aside(self, messages: RangeSet) -> None:
        for low, high in self.take_out(messages):
            self.aside.add(low, high)

    def find(self, bodies: RangeSet) -> None:
        """Make messages ready again if their bodies are not lost any more."""
        for piece in bodies:
            for first, last in self._state.carried(*piece):
                back = self.aside.within(first, last)
                self.aside.remove(first, last)
                self.give_back(back)

    def whole_to(self, level: RangeSet) -> int:
        """The first place of a level at or behind which no delivery is possible now: its body is
        missing here. Or the end of the level's first range, if that comes before."""
        first, last, place_shift = self.front(level)
        low, high, shift = next(self._origins(first, last))
        start, _ = self._bodies.missing.first_run(low, high)
        return start + shift + place_shift

    def set_front_aside(self, level: RangeSet) -> bool:
        """Set the first messages of a level aside if their bodies are lost. Returns true if so."""
        first, last, _ = self.front(level)
        low, high, shift = next(self._origins(first, last))
        start, end = self._bodies.lost.first_run(low, high)
        if start > low:
            return False
        self._set_aside(RangeSet(((first, end + shift),)))
        return True

    def take_aside(self, first: int, last: int) -> list[Range]:
        """End messages that are set aside; return their ranges."""
        taken = self.aside.within(first, last)
        self.aside.remove(first, last)
        return taken


def _sorting(state: QueueState, ready: ReadyLevels) -> Iterator[None]:
    """Sort all live messages without a delay to their places."""
    members = {priority: level.members for priority, level in state.levels.items()}
    if members:
        ready.plain = RangeSet()
        for priority, held in members.items():
            ready.add_level(priority, held.copy())
        for first, last in _stretches((state.live, *members.values()), state.next_sequence):
            others = [held.part(first, last) for held in members.values()]
            ready.plain.extend(_without(state.live.part(first, last), others))
            yield from (None for _ in range(STRETCH_WEIGHT * (1 + len(members))))
    for first, last, _ in state.delayed:
        if not members:
            ready.plain.remove(first, last)
            yield
            continue
        for run in state.each_run(first, last):
            ready.level(run.priority).remove(run.first, run.last)
            yield
    for first, last, shift in state.places.by_sequence:
        for run in state.each_run(first, last):
            ready.level(run.priority).remove(run.first, run.last)
            ready.add(run.priority, run.first + shift, run.last + shift)
            yield
    for first, last, _ in state.resting:
        for run in state.each_run(first, last):
            ready.level(run.priority).remove(run.first + run.shift, run.last + run.shift)
            yield


def _stretches(sets: Iterable[RangeSet], end: int) -> Iterator[Range]:
    """Cut all sequences below `end` into stretches with a bounded number of ranges in each set."""
    first = 1
    while first < end:
        last = min(held.reach(first, end - 1, STRETCH_RANGES) for held in sets)
        yield first, last
        first = last + 1


def _without(whole: bytes, others: Iterable[bytes]) -> bytes:
    """Remove ranges from `whole`, encoded as in `RangeSet.part`. The ranges of `others` are
    disjoint and all in `whole`. Takes no step of Python's for each range."""
    firsts, lasts = _edges(whole)
    for data in others:
        begins, ends = _edges(data)
        firsts += map((1).__add__, ends)
        lasts += map((-1).__add__, begins)
    # Kept ranges begin at an old begin or behind a removed range, and end alike.
    firsts.sort()
    lasts.sort()
    kept = list(map(le, firsts, lasts))
    return b"".join(array("Q", compress(edges, kept)).tobytes() for edges in (firsts, lasts))


def _edges(data: bytes) -> tuple[list[int], list[int]]:
    """Firsts and lasts of encoded ranges."""
    half = len(data) // 2
    return array("Q", data[:half]).tolist(), array("Q", data[half:]).tolist()
