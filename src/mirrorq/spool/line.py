"""Numbers of one target's messages: messages on their way, and their producer ids. Pure.

A spool keeps the messages for a target in a local queue. The forwarder sends them in the order of
their local sequences, and a message's producer number *is* its local sequence. So the target's
master recognises a repeated message by (producer id, number).

An old copy of the store must not use a number again for another message. Therefore each opening of
a spool has a fresh random id for messages that were certainly never sent. A *mark* in the store
names the id and the last sequence that may have been sent under the id. A mark reaches ahead, so
that marks are seldom written. An opening therefore cuts the mark (`cut`) to the sequences that the
local queue has given by then, before any put: a copy of the store may use the id for the others.

Invariants: 1. `flights` stand in order of sequences. Only a prefix of them is ever taken out. 2. No
message is sent above `mark.last`, or under another id than the mark's. The mark is on
   the disk before.
3. The id changes only while no message is on its way and all before are acked on the disk. So one
   mark is enough.
4. The target's master learns that numbers are settled only up to `acked_to`: until their acks are
   on the disk a restart asks for their outcomes again.
5. An opening's own id is used for no message that was there before the opening and may have been
   sent, and the mark's id for no other.
6. A flight ends at the end of a frame of the local queue, in each opening. So a put_many is whole
   in one flight, and a frame that reaches beyond a mark was not sent under the mark.
7. A gap in the sequences (messages that ended here) is crossed only while no message is on its
   way: the next number is then given with all numbers before settled.
"""

from __future__ import annotations

from collections import deque
from enum import Enum, auto
from itertools import takewhile

from attrs import define, field, frozen

MARK_AHEAD = 1 << 20
"""A mark reaches this many sequences beyond the message that needed the mark."""


@frozen
class TargetMark:
    """Entry of a target in the store: see the module."""

    producer: int
    last: int


def cut(mark: TargetMark | None, next_sequence: int) -> TargetMark | None:
    """The mark that has to be on the disk before anything is put: the local queue gives
    `next_sequence` next."""
    if mark is None or mark.last < next_sequence:
        return mark
    return TargetMark(mark.producer, next_sequence - 1)


class Turn(Enum):
    """Work that comes before the next message is sent."""

    SEND = auto()
    """No other work."""
    WAIT = auto()
    """All messages on their way have to end and be acked."""
    WRITE_MARK = auto()
    """`mark_due` has to be on the disk."""
    BEGIN = auto()
    """A session under `producer` has to begin with the number of this message."""


@define(eq=False)
class Flight:
    """Neighbouring messages that were sent and are not acked locally."""

    first: int
    """Local sequence, and number, of the first message."""
    count: int
    left: int
    """Messages without an outcome."""
    stored: list[tuple[int, int, int]] = field(factory=list)
    """(index, count, first sequence) of messages that the target has."""
    failed: list[tuple[int, int, str, bool]] = field(factory=list)
    """(index, count, reason, true if the target may have had the messages) of failed messages."""
    is_told: bool = False
    """The outcome was reported."""
    payload: object = None
    """The caller's."""

    @property
    def last(self) -> int:
        """Local sequence of the last."""
        return self.first + self.count - 1


class Line:
    """One target's line.

    Args:
        first: the first local sequence that is not acked.
        mark: the store's mark, after `cut`; None: no message was ever sent.
        fresh: an unused producer id.
    """

    def __init__(self, first: int, mark: TargetMark | None, fresh: int) -> None:
        self.acked_to = self.read_to = first - 1
        """Sequences up to `acked_to` are acked on the disk; up to `read_to` sent, or ended here."""
        self.mark = mark
        self.flights: deque[Flight] = deque()
        self._fresh = fresh
        self._kept_to = 0 if mark is None else mark.last
        """Messages up to here may have been sent before this opening, under the mark's id."""
        self.sent_to = self._kept_to
        """Messages above this sequence were never sent."""
        self.producer = mark.producer if mark is not None and mark.last >= first else fresh
        self._next_number = 0
        """0: no session has begun."""

    def turn(self, first: int, count: int) -> Turn:
        """Return the work that comes before the next messages are sent."""
        if first + count - 1 > self._kept_to and self.producer != self._fresh:
            if self.flights:
                return Turn.WAIT
            self.producer, self._next_number = self._fresh, 0
        if first != self._next_number and self.flights:
            return Turn.WAIT
        if first != self._next_number:
            return Turn.BEGIN
        return Turn.SEND if first + count - 1 <= self._marked_to else Turn.WRITE_MARK

    @property
    def _marked_to(self) -> int:
        mark = self.mark
        return mark.last if mark is not None and mark.producer == self.producer else 0

    def mark_due(self, first: int, count: int) -> TargetMark:
        """Return the mark that messages from `first` on need."""
        return TargetMark(self.producer, first + count - 1 + MARK_AHEAD)

    def begin_session(self, first: int) -> None:
        """Note that a session has begun with number `first`; all earlier numbers are over."""
        assert not self.flights
        self._next_number = first
        self.acked_to = self.read_to = first - 1

    def send(self, first: int, count: int) -> Flight:
        """Note messages as on their way."""
        assert self.turn(first, count) is Turn.SEND
        flight = Flight(first, count, count)
        self.flights.append(flight)
        self.read_to = flight.last
        self.sent_to = max(self.sent_to, flight.last)
        self._next_number = self.read_to + 1
        return flight

    def pass_over(self, last: int) -> None:
        """Skip the next messages, up to `last`, which have ended here."""
        self.read_to = last

    def settled(self, told: int) -> int:
        """What a frame may say is settled, where the session has the outcomes up to `told`. From
        any thread."""
        return min(told, self.acked_to)

    def on_stored(self, flight: Flight, index: int, count: int, first_sequence: int) -> None:
        """Note that the target has confirmed a part of a flight."""
        flight.stored.append((index, count, first_sequence))
        flight.left -= count

    def on_failed(
        self, flight: Flight, index: int, count: int, reason: str, *, is_lost: bool
    ) -> None:
        """Note that the target has refused a part of a flight, or has lost stored messages."""
        flight.failed.append((index, count, reason, is_lost))
        flight.left -= count

    def ended(self) -> list[Flight]:
        """Return the flights at the front that have ended, to be acked locally now."""
        return list(takewhile(lambda flight: not flight.left, self.flights))

    def on_acked(self, flights: list[Flight]) -> None:
        """Their acks are on the disk."""
        for flight in flights:
            assert self.flights[0] is flight
            self.flights.popleft()
            self.acked_to = flight.last

    def begin_again(self) -> None:
        """Begin again after a lost session: unacked messages are resent under the same numbers."""
        self.flights.clear()
        self.read_to = self.acked_to
        self._next_number = 0

    def renew(self, fresh: int) -> None:
        """Take a new producer id: the target has settled numbers, so another copy of this store has
        used the id. Remaining messages go under the new id, and may be doubled."""
        self.begin_again()
        self._kept_to = 0
        self.producer = self._fresh = fresh
