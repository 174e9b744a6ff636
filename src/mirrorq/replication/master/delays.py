"""A master's term over delayed messages: due messages, and the op that ends their delays.

Delays end by the queue's time at its master alone, and by an op: every copy then knows the new
place of a message. Messages in the timetable are delayed in the applied state. Messages in an op on
its way have left the timetable.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from mirrorq.containers.ranges import Range, RangeSet
from mirrorq.containers.time_buckets import Timetable
from mirrorq.containers.timers import Timer
from mirrorq.protocol.ops import DueOp
from mirrorq.replication.state.queue_state import QueueState

ENTER_COUNT = 4096
"""Entries of the timetable for a single op."""
LOOK_MS = 60_000
"""Greatest delay of the next look: the queue's time may differ a little from the clock."""


class Delays:
    """Delayed messages of a term, made from the applied state.

    Args:
        look: wakes the master when a delay ends.
    """

    def __init__(self, state: QueueState, look: Timer) -> None:
        self._state = state
        self.look = look
        self._timetable = Timetable()
        self._leaving = RangeSet()
        """Sequences in ops that are not applied yet."""
        self._returning: dict[int, list[Range]] = {}
        """Messages returned in this step: due_us -> ranges."""

    def gather(self) -> Iterator[None]:
        """Put all delayed messages into the timetable, a few for each item of the iterator. The
        state must not change meanwhile."""
        for first, last, due_us in self._state.delayed:
            self._timetable.add(due_us, first, last)
            yield
        for first, last, (due_us,) in self._state.resting:
            self._timetable.add(due_us, first, last)
            yield

    @property
    def count(self) -> int:
        """Number of delayed messages."""
        return self._state.delayed.count + self._state.resting.count

    @property
    def is_waiting(self) -> bool:
        """Return true if a delay is to end by time."""
        return bool(self._timetable)

    def wait(self, first: int, last: int, due_us: int) -> None:
        """Add messages that an applied op delays."""
        self._timetable.add(due_us, first, last)

    @property
    def returning(self) -> Iterator[Range]:
        """Messages returned by consumers in this step."""
        return chain.from_iterable(self._returning.values())

    def give_back(self, ranges: list[Range], due_us: int) -> None:
        """Note that a consumer returns these messages with a delay until `due_us`."""
        self._returning.setdefault(due_us, []).extend(ranges)

    def returns(self) -> list[tuple[int, RangeSet]]:
        """Messages returned in this step, for each moment: (due_us, messages). Clears the list."""
        if not self._returning:
            return []
        found = [(due_us, RangeSet(ranges)) for due_us, ranges in sorted(self._returning.items())]
        self._returning.clear()
        return found

    def due(self, time_us: int, place: int) -> DueOp | None:
        """Return the op that ends due delays, or None. New places begin at `place`."""
        next_us = self._timetable.next_us()
        if next_us is None or next_us > time_us:
            return None
        entering: list[Range] = []
        returning = RangeSet()
        for due_us, first, last in self._timetable.take_due(time_us, ENTER_COUNT):
            for low, high, _ in self._state.delayed.within(first, last):
                if entering and entering[-1][1] + 1 == low:
                    entering[-1] = (entering[-1][0], high)
                else:
                    entering.append((low, high))
            for low, high in self._resting(first, last, due_us):
                returning.add(low, high)
        for first, last in [*entering, *returning]:
            self._leaving.add(first, last)
        if not entering and not returning:
            return None
        return DueOp(tuple(entering), place, tuple(returning))

    def _resting(self, first: int, last: int, due_us: int) -> RangeSet:
        """Parts of first to last that rest until exactly this moment."""
        walk = self._state.resting.walk(first, last)
        return RangeSet((low, high) for low, high, (until_us,) in walk if until_us == due_us)

    def on_entered(self, payload: DueOp) -> list[Range]:
        """Note the applied op; return the messages that are ready now."""
        ranges = [*payload.entering, *payload.returning]
        for first, last in ranges:
            self._leaving.remove(first, last)
        return ranges

    def take_out(self, first: int, last: int) -> list[Range]:
        """Delayed messages from first to last, without messages that are about to be ready."""
        taken = RangeSet((low, high) for low, high, _ in self._state.delayed.within(first, last))
        for low, high, _ in self._state.resting.walk(first, last):
            taken.add(low, high)
        for low, high in self._leaving:
            taken.remove(low, high)
        return list(taken)

    def set_timer(self, now_ms: int, time_us: int) -> None:
        """Set the timer to the next end of a delay, by the queue's time."""
        due_us = self._timetable.next_us()
        if due_us is None:
            self.look.clear()
            return
        left_ms = -((time_us - due_us) // 1000)
        self.look.set(now_ms + min(max(left_ms, 1), LOOK_MS))
