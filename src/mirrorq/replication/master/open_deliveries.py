"""Open deliveries, and extended times of their messages. Pure.

The queue limits how long a message may be held (`deliveries`). A holder may ask for another time
for a message, from now on, or for none. Only the term knows such times: a new master knows no
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
"""Stale entries are removed when the heap has doubled since, and grown by `CLEAR_COUNT`."""


class OpenDelivery(msgspec.Struct, gc=False):
    """Messages delivered together to one consumer. A million deliveries may be open: the garbage
    collector looks at none."""

    key: ConsumerKey
    count: int
    first: int
    last: int
    rest: RangeSet | None = None
    """Messages neither settled nor returned. None: all from first to last."""
    handed_ms: int = 0
    is_suspect: bool = False
    """True if a message of the delivery may have killed the process of its consumer."""
    until: dict[int, int] | None = None
    """Sequence -> end of its extended time, FOREVER_MS: without end. None: no extension."""

    @property
    def left(self) -> RangeSet:
        """Messages of the delivery that are neither settled nor returned."""
        if self.rest is None:
            self.rest = RangeSet(((self.first, self.last),))
        return self.rest

    @property
    def left_count(self) -> int:
        """Number of messages in `left`."""
        return self.last - self.first + 1 if self.rest is None else self.rest.count

    def is_left(self, sequence: int) -> bool:
        """Return true if the message is still held."""
        return bool(self.left.within(sequence, sequence))

    @property
    def has_extended(self) -> bool:
        """Return true if a held message has an extended time."""
        return self.until is not None and any(map(self.is_left, self.until))

    def others(self) -> list[Range]:
        """Held messages without an extended time."""
        if self.until is None:
            return list(self.left)
        rest = self.left.copy()
        for sequence in self.until:
            rest.remove(sequence, sequence)
        return list(rest)


OpenDeliveries = dict[int, OpenDelivery]
"""Open deliveries by number."""


class Extensions:
    """The extended times of messages in the open deliveries of a term.

    Times stand in a heap. A time is stale when its message was extended again or is not held. Stale
    times stay until they come to the top, or are half of the heap.
    """

    def __init__(self) -> None:
        self._due: list[tuple[int, int, int]] = []
        """A heap of (until_ms, number of a delivery, sequence)."""
        self._count_max = CLEAR_COUNT

    def set(self, open_: OpenDeliveries, number: int, ranges: list[Range], until_ms: int) -> None:
        """Let these messages of a delivery be held until then; FOREVER_MS: without end."""
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
        """End of the earliest extended time; FOREVER_MS: never."""
        while self._due and not _holds(open_, self._due[0]):
            heappop(self._due)
        return self._due[0][0] if self._due else FOREVER_MS

    def take_due(self, open_: OpenDeliveries, now_ms: int) -> dict[int, RangeSet]:
        """Messages that may be held no longer, by the number of the delivery. Ends their times."""
        found: dict[int, RangeSet] = {}
        while self.next_ms(open_) <= now_ms:
            _, number, sequence = heappop(self._due)
            until = open_[number].until
            assert until is not None, "an entry that holds is of a delivery with times"
            del until[sequence]
            found.setdefault(number, RangeSet()).add(sequence, sequence)
        return found


def _holds(open_: OpenDeliveries, entry: tuple[int, int, int]) -> bool:
    """Return true if the entry is the present time of a held message."""
    until_ms, number, sequence = entry
    delivery = open_.get(number)
    if delivery is None or delivery.until is None:
        return False
    return delivery.until.get(sequence) == until_ms and delivery.is_left(sequence)
