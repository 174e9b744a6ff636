"""Messages that have ended in a queue and are on their way to other queues: applied state. Pure.

An OutboxOp ends messages here and makes them *parcels* for another queue, numbered without gaps
for each target. Bodies stay where they are, in the frames of this queue; a parcel names their
sequences, and frames with parcels are kept, and fetched by joining members, like those of live
messages. `courier` publishes parcels, with their numbers, at the target's master; an OutboxDoneOp
ends them when the target has confirmed.

The numbers belong to a producer id of their own, `producer_of`. An unclean promotion begins
another past, in which other messages may get the same numbers: so it has another id.

Invariants:
1. parcels of one target stand in order of number, without gaps, up to its `next_number`.
2. `kept` holds the sequences of all parcels; none of them is live, and none is in two parcels.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from attrs import define, evolve, field, frozen

from mirrorq.messages import Range
from mirrorq.ranges import RangeSet

__all__ = ["ERRAND", "PUT", "Outbox", "Outlet", "Parcel", "is_outbox", "producer_of"]

OUTBOX_BIT = 1 << 62
"""Of producer ids and of session numbers: no op gives such an id, no handle has such a number."""
GENERATION_SHIFT = 40
ERRAND = "errand"
"""Reason of a parcel that is no message but something said of staged ones: `staging` has it. It
has no sequence."""
PUT = "put"
"""Reason of a parcel that was published for its target: it did not end, it begins."""

Image = list[tuple[int, int, list[tuple[int, int, int, str, int]]]]
"""(target, next number, parcels) of each outlet."""


def producer_of(queue_id: int, generation: int) -> int:
    """The producer id under which a queue's parcels are published.

    Args:
        generation: unclean promotions of the queue so far: each one has an epoch of its own.
    """
    return OUTBOX_BIT | generation << GENERATION_SHIFT | queue_id


def is_outbox(producer: int) -> bool:
    """Whether a producer id is that of another queue."""
    return bool(producer & OUTBOX_BIT)


@frozen
class Parcel:
    """Neighbouring messages that ended together."""

    number: int
    """Of the first of them."""
    first: int
    last: int
    reason: str
    stamp_us: int
    """When they ended, microseconds since 1970-01-01 UTC at the master."""

    @property
    def last_number(self) -> int:
        return self.number + self.last - self.first


@define
class Outlet:
    """What is on its way to one queue."""

    next_number: int = 1
    parcels: deque[Parcel] = field(factory=deque)


class Outbox:
    """All parcels of one queue."""

    def __init__(self) -> None:
        self.outlets: dict[int, Outlet] = {}
        """By the id of the target. One stays when it is empty: its numbers go on."""
        self.kept = RangeSet()
        """Sequences of this queue whose bodies are needed yet."""
        self._errands = 0
        """Parcels that are no messages."""

    @property
    def count(self) -> int:
        """Messages and errands on their way."""
        return self.kept.count + self._errands

    def add(self, target: int, ranges: Iterable[Range], reason: str, stamp_us: int) -> None:
        """These have ended and are to be published in the target."""
        outlet = self.outlets.get(target)
        if outlet is None:
            outlet = self.outlets[target] = Outlet()
        for first, last in ranges:
            outlet.parcels.append(Parcel(outlet.next_number, first, last, reason, stamp_us))
            outlet.next_number += last - first + 1
            self.kept.add(first, last)

    def add_errand(self, target: int, stamp_us: int) -> int:
        """Something is to be said to the target; return its number."""
        outlet = self.outlets.get(target)
        if outlet is None:
            outlet = self.outlets[target] = Outlet()
        number = outlet.next_number
        outlet.parcels.append(Parcel(number, 0, 0, ERRAND, stamp_us))
        self._errands += 1
        outlet.next_number += 1
        return number

    def done(self, target: int, number: int) -> tuple[Range, ...]:
        """Parcels up to this number are no more; return the sequences that nobody needs now."""
        outlet = self.outlets.get(target)
        ended: list[Range] = []
        while outlet is not None and outlet.parcels and outlet.parcels[0].number <= number:
            parcel = outlet.parcels.popleft()
            last = min(parcel.last, parcel.first + number - parcel.number)
            if parcel.reason == ERRAND:
                self._errands -= 1
            else:
                ended.append((parcel.first, last))
            if last < parcel.last:
                rest = evolve(parcel, number=number + 1, first=last + 1)
                outlet.parcels.appendleft(rest)
        for first, last in ended:
            self.kept.remove(first, last)
        return tuple(ended)

    def forget(self, target: int) -> None:
        """The target is no more: its numbers are never asked for again."""
        outlet = self.outlets.get(target)
        if outlet is not None and not outlet.parcels:
            del self.outlets[target]

    def begin_anew(self, lost: Iterable[Range]) -> list[tuple[int, int, int]]:
        """An unclean promotion: these bodies are lost; numbers begin again under another id.

        Returns:
            (target, old number, new number) of each errand.
        """
        errands = []
        gone = RangeSet(lost)
        old, self.outlets, self.kept = self.outlets, {}, RangeSet()
        self._errands = 0
        for target, outlet in old.items():
            self.outlets[target] = Outlet()
            for parcel in outlet.parcels:
                if parcel.reason == ERRAND:
                    number = self.add_errand(target, parcel.stamp_us)
                    errands.append((target, parcel.number, number))
                    continue
                left = RangeSet(((parcel.first, parcel.last),))
                for first, last in gone.within(parcel.first, parcel.last):
                    left.remove(first, last)
                self.add(target, left, parcel.reason, parcel.stamp_us)
        return errands

    def image(self) -> Image:
        """The outbox as plain data; equal ones give equal data."""
        return [
            (
                target,
                outlet.next_number,
                [(p.number, p.first, p.last, p.reason, p.stamp_us) for p in outlet.parcels],
            )
            for target, outlet in sorted(self.outlets.items())
        ]

    @classmethod
    def restore(cls, image: Image, next_sequence: int) -> Outbox:
        """Read what `image` gave. Raises ValueError when it breaks an invariant."""
        made = cls()
        for target, next_number, parcels in image:
            outlet = made.outlets[target] = Outlet(next_number)
            number = parcels[0][0] if parcels else next_number
            for fields in parcels:
                parcel = Parcel(*fields)
                is_errand = parcel.reason == ERRAND
                is_sound = parcel.number == number and parcel.first <= parcel.last < next_sequence
                if is_errand != (parcel.last == 0):
                    is_sound = False
                if not is_sound or made.kept.within(parcel.first, parcel.last):
                    raise ValueError(f"an outbox for queue {target} with a wrong parcel {parcel}")
                if is_errand:
                    made._errands += 1
                else:
                    made.kept.add(parcel.first, parcel.last)
                outlet.parcels.append(parcel)
                number = parcel.last_number + 1
            if number != next_number:
                raise ValueError(f"an outbox for queue {target} whose next number is {number}")
        made.outlets = dict(sorted(made.outlets.items()))
        return made
