"""The numbers of one queue's records: what is on its way, and what of it has ended. Pure.

A spool's records stand in the order in which they were put. They are sent in that order, each as
one batch, and get the producer's numbers as they are sent: a record's number is `base` and the
messages of all records before it. `base` is on the disk, and moves on in the same commit that
removes what has ended, so that after a restart each record that may have been sent has the number
that it had. A record that was certainly not sent may be dropped, and then takes no number.

Invariants:
1. `flights` stand in order of ordinals and of numbers, without gaps in the numbers, from `base` on.
2. only a prefix of them is ever taken out: what ended behind one that has not stays.
3. no record above `sent_to` was ever sent; `sent_to` is on the disk before one is.
4. the master is told that numbers are settled, and forgets what became of them, only when `base`
   on the disk is beyond them: until then a restart asks for their outcomes again.
"""

from __future__ import annotations

from collections import deque

from attrs import define, field


@define(eq=False)
class Flight:
    """A record that was sent and is still in the file."""

    ordinal: int
    """Its place in the file."""
    count: int
    number: int
    """The producer's number of its first message."""
    left: int
    """Messages without an outcome."""
    stored: list[tuple[int, int, int]] = field(factory=list)
    """(index, count, first sequence) of messages that the queue has."""
    failed: list[tuple[int, int, str]] = field(factory=list)
    """(index, count, reason) of those that it has refused, or has had and lost."""
    is_lost: bool = False
    """An unclean promotion has lost some that were stored."""


class Line:
    """One queue's line through a spool.

    Args:
        base: number of the first message in the file that may have been sent.
        sent_to: ordinal up to which records may have been sent.
    """

    def __init__(self, base: int, sent_to: int) -> None:
        self.base = base
        self.sent_to = sent_to
        self.kept_base = base
        """`base` as it is on the disk."""
        self.flights: deque[Flight] = deque()

    @property
    def next_number(self) -> int:
        """Of the next record that is sent."""
        if not self.flights:
            return self.base
        last = self.flights[-1]
        return last.number + last.count

    @property
    def last_sent(self) -> int:
        """Ordinal of the last record on its way; 0: none is."""
        return self.flights[-1].ordinal if self.flights else 0

    def settled(self, told: int) -> int:
        """What a frame may say is settled, where the session has the outcomes up to `told`. From
        any thread."""
        return min(told, self.kept_base - 1)

    def send(self, ordinal: int, count: int) -> Flight:
        """The next record is on its way from now on."""
        assert self.last_sent < ordinal <= self.sent_to, (self.last_sent, ordinal, self.sent_to)
        flight = Flight(ordinal, count, self.next_number, count)
        self.flights.append(flight)
        return flight

    def may_drop(self, ordinal: int) -> bool:
        """Whether this record was certainly never sent."""
        return ordinal > self.sent_to

    def on_stored(self, flight: Flight, index: int, count: int, first_sequence: int) -> None:
        """The queue has confirmed a part of it."""
        flight.stored.append((index, count, first_sequence))
        flight.left -= count

    def on_failed(
        self, flight: Flight, index: int, count: int, reason: str, *, is_lost: bool
    ) -> None:
        """The queue has refused a part of it, or has lost what it had stored."""
        flight.failed.append((index, count, reason))
        flight.is_lost |= is_lost
        flight.left -= count

    def ended(self) -> list[Flight]:
        """Take out those that have ended, up to the first that has not: `base` moves on. They go
        from the file in the commit that keeps the new `base`."""
        found = []
        while self.flights and not self.flights[0].left:
            flight = self.flights.popleft()
            self.base = flight.number + flight.count
            found.append(flight)
        return found

    def skip(self, count: int) -> None:
        """The first record of the file cannot be read and is set aside: its numbers are over.

        Nothing may be on its way.
        """
        assert not self.flights
        self.base += count

    def begin_again(self) -> None:
        """Nothing is known of what was on its way: all that is in the file is to be sent anew, from
        `base` on."""
        self.flights.clear()
