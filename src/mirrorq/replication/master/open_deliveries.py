"""Open deliveries, and times of their own for some of their messages. Pure.

The queue says how long a message may be held (`deliveries`). A holder may ask for another time for
a message, from now on, or for none. The term alone knows such a time: a new master knows no
delivery.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush

import msgspec

from mirrorq.containers.ranges import Range, RangeSet
from mirrorq.containers.timers import FOREVER_MS
from mirrorq.protocol.identities import SessionId

ConsumerKey = tuple[SessionId, int]

CLEAR_COUNT = 64
"""What holds no more is cleared away when there is as much of it as of the rest, and so much."""


class OpenDelivery(msgspec.Struct, gc=False):
    """What one consumer was handed together. A million of them may be open: Python's garbage
    collector looks at none."""

    key: ConsumerKey
    count: int
    first: int
    last: int
    rest: RangeSet | None = None
    """None: nobody has asked yet what is left of first to last."""
    handed_ms: int = 0
    is_suspect: bool = False
    """It may have killed a process that held it."""
    until: dict[int, int] | None = None
    """Sequence -> until when it may be held, FOREVER_MS: without end. None: of none of them."""

    @property
    def left(self) -> RangeSet:
        """What of it is neither settled nor returned."""
        if self.rest is None:
            self.rest = RangeSet(((self.first, self.last),))
        return self.rest

    @property
    def left_count(self) -> int:
        """How many messages that are."""
        return self.last - self.first + 1 if self.rest is None else self.rest.count

    def is_left(self, sequence: int) -> bool:
        """Whether it is held still."""
        return bool(self.left.within(sequence, sequence))

    @property
    def has_extended(self) -> bool:
        """Whether something of it that is held has a time of its own."""
        return self.until is not None and any(map(self.is_left, self.until))

    def others(self) -> list[Range]:
        """What is held and has no time of its own."""
        if self.until is None:
            return list(self.left)
        rest = self.left.copy()
        for sequence in self.until:
            rest.remove(sequence, sequence)
        return list(rest)


OpenDeliveries = dict[int, OpenDelivery]
"""By number."""


class Extensions:
    """Of the open deliveries of one term: which of their messages have a time of their own.

    Times stand in a heap. One that was given another time, or is held no more, stays there until
    it comes to the top, or there are as many of those as of others.
    """

    def __init__(self) -> None:
        self._due: list[tuple[int, int, int]] = []
        """A heap of (until_ms, number of a delivery, sequence)."""
        self._count_max = CLEAR_COUNT

    def set(self, open_: OpenDeliveries, number: int, ranges: list[Range], until_ms: int) -> None:
        """These of an open delivery may be held until then; FOREVER_MS: without end."""
        delivery = open_[number]
        until = {} if delivery.until is None else delivery.until
        for first, last in ranges:
            for sequence in range(first, last + 1):
                until[sequence] = until_ms
                if until_ms != FOREVER_MS:
                    heappush(self._due, (until_ms, number, sequence))
        delivery.until = until
        if len(self._due) > self._count_max:
            self._due = [entry for entry in self._due if _holds(open_, entry)]
            heapify(self._due)
            self._count_max = 2 * len(self._due) + CLEAR_COUNT

    def next_ms(self, open_: OpenDeliveries) -> int:
        """When the first of these times is over; FOREVER_MS: never."""
        while self._due and not _holds(open_, self._due[0]):
            heappop(self._due)
        return self._due[0][0] if self._due else FOREVER_MS

    def take_due(self, open_: OpenDeliveries, now_ms: int) -> dict[int, RangeSet]:
        """What may be held no longer, by the number of its delivery."""
        found: dict[int, RangeSet] = {}
        while self.next_ms(open_) <= now_ms:
            _, number, sequence = heappop(self._due)
            until = open_[number].until
            assert until is not None, "an entry that holds is of a delivery with times"
            del until[sequence]
            found.setdefault(number, RangeSet()).add(sequence, sequence)
        return found


def _holds(open_: OpenDeliveries, entry: tuple[int, int, int]) -> bool:
    """Whether this is still the time of a message that is held."""
    until_ms, number, sequence = entry
    delivery = open_.get(number)
    if delivery is None or delivery.until is None:
        return False
    return delivery.until.get(sequence) == until_ms and delivery.is_left(sequence)
