"""A master's term over delayed messages: which are due, and the op that says so.

Delays end by the queue's time at its master alone, and by an op: every copy then knows the place
that a message has got. What is in the timetable is delayed in the applied state; what is in an op
on its way is out of the timetable.
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
"""Entries of the timetable that one op ends."""
LOOK_MS = 60_000
"""The time is looked at again after this: it may go a little slower or faster than the clock."""


class Delays:
    """Made anew with each term, from the applied state.

    Args:
        look: wakes the master when something is due.
    """

    def __init__(self, state: QueueState, look: Timer) -> None:
        self._state = state
        self.look = look
        self._timetable = Timetable()
        self._leaving = RangeSet()
        """Sequences in ops that are not applied yet."""
        self._returning: dict[int, list[Range]] = {}
        """Returned in this step: due_us -> what."""

    def gather(self) -> Iterator[None]:
        """Put all that is delayed into the timetable, a little for each item that is asked for. The
        state does not change meanwhile."""
        for first, last, due_us in self._state.delayed:
            self._timetable.add(due_us, first, last)
            yield
        for first, last, (due_us,) in self._state.resting:
            self._timetable.add(due_us, first, last)
            yield

    @property
    def count(self) -> int:
        """How many messages are delayed."""
        return self._state.delayed.count + self._state.resting.count

    @property
    def is_waiting(self) -> bool:
        """Whether something is to end by time."""
        return bool(self._timetable)

    def wait(self, first: int, last: int, due_us: int) -> None:
        """An op that delays these is applied."""
        self._timetable.add(due_us, first, last)

    @property
    def returning(self) -> Iterator[Range]:
        """What consumers have returned in this step."""
        return chain.from_iterable(self._returning.values())

    def give_back(self, ranges: list[Range], due_us: int) -> None:
        """A consumer returns these until then."""
        self._returning.setdefault(due_us, []).extend(ranges)

    def returns(self) -> list[tuple[int, RangeSet]]:
        """What was returned in this step, for each moment: (due_us, messages)."""
        if not self._returning:
            return []
        found = [(due_us, RangeSet(ranges)) for due_us, ranges in sorted(self._returning.items())]
        self._returning.clear()
        return found

    def due(self, time_us: int, place: int) -> DueOp | None:
        """The op that ends what is due; its messages stand at `place` and after it."""
        next_us = self._timetable.next_us()
        if next_us is None or next_us > time_us:
            return None
        entering: list[Range] = []
        returning = RangeSet()
        for due_us, first, last in self._timetable.take(time_us, ENTER_COUNT):
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
        """What of it still rests until this moment."""
        walk = self._state.resting.walk(first, last)
        return RangeSet((low, high) for low, high, (until_us,) in walk if until_us == due_us)

    def on_entered(self, payload: DueOp) -> list[Range]:
        """The op is applied: these are ready."""
        ranges = [*payload.entering, *payload.returning]
        for first, last in ranges:
            self._leaving.remove(first, last)
        return ranges

    def take(self, first: int, last: int) -> list[Range]:
        """What is delayed from first to last ends, but for what is about to be ready."""
        taken = RangeSet((low, high) for low, high, _ in self._state.delayed.within(first, last))
        for low, high, _ in self._state.resting.walk(first, last):
            taken.add(low, high)
        for low, high in self._leaving:
            taken.remove(low, high)
        return list(taken)

    def set_timer(self, now_ms: int, time_us: int) -> None:
        """The step ends: look again when something is due, by the queue's time."""
        due_us = self._timetable.next_us()
        if due_us is None:
            self.look.clear()
            return
        left_ms = -((time_us - due_us) // 1000)
        self.look.set(now_ms + min(max(left_ms, 1), LOOK_MS))
