"""Open deliveries of one master's term, and extended times of their messages. Pure.

A *delivery* is one contiguous piece of messages given to one consumer. Its number is unique in the
term. Nothing here is replicated. A step looks at the deliveries that it makes or ends, and at the
deliveries of one session, never at all: a crowd of slow consumers holds tens of thousands.

The queue limits how long a message may be held (`deliveries`). A holder may ask for another time
for a message, from now on, or for none. Only the term knows such times: a new master knows no
delivery.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heapify, heappop, heappush

import msgspec

from mirrorq.containers.fifo import Fifo
from mirrorq.containers.ranges import Range, RangeSet
from mirrorq.containers.timers import FOREVER_MS
from mirrorq.protocol.identities import SessionId
from mirrorq.protocol.sessions import Delivery

ConsumerKey = tuple[SessionId, int]

BACK_COUNT = 16_384
"""Deliveries whose returned messages are remembered: some 4 MB. A late ack for an older delivery
counts as done when its message has ended since, for whatever reason."""
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


ByNumber = dict[int, OpenDelivery]


class OpenDeliveries:
    """All open deliveries of a term, by number and by session."""

    def __init__(self) -> None:
        self.by_number: ByNumber = {}
        """The oldest first."""
        self.unacknowledged = 0
        """Number of messages in open deliveries."""
        self.fetching: dict[ConsumerKey, None] = {}
        """Handles whose get() has fetched messages since their last recall, and that still hold
        messages."""
        self.leaving: Fifo[int] = Fifo()
        """Open deliveries of ended consumers. Their messages return by portions, and cannot be
        settled meanwhile."""
        self.last_number = 0
        self._held: dict[SessionId, dict[int, None]] = {}
        """Open deliveries of each session."""
        self._back: dict[int, bytes] = {}
        """Delivery number -> returned ranges, as from `RangeSet.to_bytes`. Other messages of a
        closed delivery that have ended were settled under its number: a repeated ack is answered
        with success."""
        self._extensions = Extensions()

    def add(self, key: ConsumerKey, count: int, first: int, last: int) -> OpenDelivery:
        """Open a delivery under the next number, which is `last_number` then."""
        delivery = OpenDelivery(key, count, first, last)
        self._number(delivery)
        if not key[1]:
            self.fetching[key] = None
        self.unacknowledged += last - first + 1
        return delivery

    def _number(self, delivery: OpenDelivery) -> None:
        self.last_number += 1
        self.by_number[self.last_number] = delivery
        self._held.setdefault(delivery.key[0], {})[self.last_number] = None

    # --- Looking ------------------------------------------------------------------------

    def is_held(self, number: int, session: SessionId) -> bool:
        """Return true if the session holds this open delivery, and the delivery does not leave."""
        return number in self._held.get(session, ())

    def held(self, session: SessionId, piece: Delivery) -> OpenDelivery | None:
        """The delivery of a piece, if the session holds it with the piece's count."""
        delivery = self.by_number.get(piece.number)
        if delivery is None or delivery.count != piece.count:
            return None
        return delivery if self.is_held(piece.number, session) else None

    def holdings(self, session: SessionId) -> list[tuple[int, OpenDelivery]]:
        """Open deliveries of one session, by number."""
        return [(number, self.by_number[number]) for number in self._held.get(session, ())]

    def has_any(self, key: ConsumerKey) -> bool:
        """Return true if the consumer holds a message."""
        return any(self.by_number[number].key == key for number in self._held.get(key[0], ()))

    def fetchers(self) -> list[ConsumerKey]:
        """Handles that hold messages fetched by `get()`."""
        return [(session, 0) for session in self._held if self.has_any((session, 0))]

    def returned(self, piece: Delivery) -> list[Range]:
        """Messages of a piece of this term that went back under its number, while remembered."""
        back = RangeSet.from_bytes(self._back.get(piece.number, b""))
        return back.within(piece.first, piece.last)

    def handed_before(self, at_ms: int) -> list[int]:
        """Open deliveries made before this time, the oldest first."""
        old = []
        for number, delivery in self.by_number.items():
            if delivery.handed_ms >= at_ms:
                break
            old.append(number)
        return old

    @property
    def oldest_ms(self) -> int | None:
        """Time of the oldest open delivery; None without any."""
        for delivery in self.by_number.values():
            return delivery.handed_ms
        return None

    # --- Closing ------------------------------------------------------------------------

    def close_piece(self, session: SessionId, piece: Delivery) -> list[Range]:
        """Close the open messages of a piece of this term; return their ranges, [] without any."""
        delivery = self.held(session, piece)
        return [] if delivery is None else self.close(piece.number, piece.first, piece.last)

    def close(self, number: int, first: int, last: int) -> list[Range]:
        """Close the open messages of a held delivery in this range; return their ranges."""
        delivery = self.by_number[number]
        found = delivery.left.within(first, last)
        for low, high in found:
            self.unacknowledged -= delivery.left.remove(low, high)
        if not delivery.left:
            del self.by_number[number]
            self._unhold(number, delivery.key[0])
        return found

    def _unhold(self, number: int, session: SessionId) -> None:
        held = self._held[session]
        del held[number]
        if not held:
            del self._held[session]
            self.fetching.pop((session, 0), None)

    def note_returned(self, number: int, ranges: Iterable[Range]) -> None:
        """Remember that messages of a delivery went back."""
        if not ranges:
            return
        back = RangeSet.from_bytes(self._back.get(number, b""))
        for first, last in ranges:
            back.add(first, last)
        self._back[number] = back.to_bytes()
        if len(self._back) > BACK_COUNT:
            del self._back[next(iter(self._back))]

    # --- Ended consumers ------------------------------------------------------------------

    def drop(self, number: int) -> None:
        """Let the open messages of a delivery leave: their holder is gone."""
        self._unhold(number, self.by_number[number].key[0])
        self.leaving.append(number)

    def leave(self, session: SessionId) -> None:
        """Let all that a session held leave: the session is gone."""
        for number in self._held.pop(session, ()):
            self.by_number[number].is_suspect = True
            self.leaving.append(number)
        self.fetching.pop((session, 0), None)

    def take_leaving(self, count: int) -> list[OpenDelivery]:
        """Close leaving deliveries of about `count` ranges, at least one; return them."""
        taken: list[OpenDelivery] = []
        while self.leaving:
            number = self.leaving[0]
            delivery = self.by_number[number]
            count -= len(delivery.left)
            if taken and count < 0:
                break
            self.leaving.popleft()
            del self.by_number[number]
            self.unacknowledged -= delivery.left.count
            self.note_returned(number, delivery.left)
            taken.append(delivery)
        return taken

    def rename(self, former: SessionId, session: SessionId) -> None:
        """Move all holdings of a session to another session."""
        held = self._held.pop(former, {})
        if held:
            self._held.setdefault(session, {}).update(held)
        for number in held:
            delivery = self.by_number[number]
            delivery.key = (session, delivery.key[1])
        if (former, 0) in self.fetching:
            del self.fetching[former, 0]
            self.fetching[session, 0] = None

    # --- Hold times ------------------------------------------------------------------------

    def extend(self, session: SessionId, piece: Delivery, until_ms: int) -> list[Range]:
        """Let the session hold messages of a piece of this term until then; return their ranges."""
        delivery = self.held(session, piece)
        found = [] if delivery is None else delivery.left.within(piece.first, piece.last)
        if found:
            self._extensions.set(self.by_number, piece.number, found, until_ms)
        return found

    @property
    def extended_ms(self) -> int:
        """End of the earliest extended time; FOREVER_MS: never."""
        return self._extensions.next_ms(self.by_number)

    def take_extended(self, now_ms: int) -> dict[int, RangeSet]:
        """Messages with an extended time that has ended, by the number of the delivery."""
        return self._extensions.take_due(self.by_number, now_ms)

    def has_extended(self, key: ConsumerKey) -> bool:
        """Return true if the consumer holds a message with an extended time."""
        held = (self.by_number[number] for number in self._held.get(key[0], ()))
        return any(delivery.has_extended for delivery in held if delivery.key == key)

    def part(self, number: int, ranges: list[Range]) -> int:
        """Split messages of an open delivery off as a new delivery; return its number. The holder
        cannot settle them by the old number."""
        whole = self.by_number[number]
        if list(whole.left) == ranges:
            return number
        for first, last in ranges:
            whole.left.remove(first, last)
        self.note_returned(number, ranges)
        ends = ranges[0][0], ranges[-1][1]
        self._number(OpenDelivery(whole.key, whole.count, *ends, RangeSet(ranges), whole.handed_ms))
        return self.last_number

    def renew(self, number: int, now_ms: int) -> None:
        """Treat a delivery as made now."""
        delivery = self.by_number.pop(number)
        delivery.handed_ms = now_ms
        self.by_number[number] = delivery


class Extensions:
    """The extended times of messages in the open deliveries of a term.

    Times stand in a heap. A time is stale when its message was extended again or is not held. Stale
    times stay until they come to the top, or are half of the heap.
    """

    def __init__(self) -> None:
        self._due: list[tuple[int, int, int]] = []
        """A heap of (until_ms, number of a delivery, sequence)."""
        self._count_max = CLEAR_COUNT

    def set(self, open_: ByNumber, number: int, ranges: list[Range], until_ms: int) -> None:
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

    def next_ms(self, open_: ByNumber) -> int:
        """End of the earliest extended time; FOREVER_MS: never."""
        while self._due and not _holds(open_, self._due[0]):
            heappop(self._due)
        return self._due[0][0] if self._due else FOREVER_MS

    def take_due(self, open_: ByNumber, now_ms: int) -> dict[int, RangeSet]:
        """Messages that may be held no longer, by the number of the delivery. Ends their times."""
        found: dict[int, RangeSet] = {}
        while self.next_ms(open_) <= now_ms:
            _, number, sequence = heappop(self._due)
            until = open_[number].until
            assert until is not None, "an entry that holds is of a delivery with times"
            del until[sequence]
            found.setdefault(number, RangeSet()).add(sequence, sequence)
        return found


def _holds(open_: ByNumber, entry: tuple[int, int, int]) -> bool:
    """Return true if the entry is the present time of a held message."""
    until_ms, number, sequence = entry
    delivery = open_.get(number)
    if delivery is None or delivery.until is None:
        return False
    return delivery.until.get(sequence) == until_ms and delivery.is_left(sequence)
