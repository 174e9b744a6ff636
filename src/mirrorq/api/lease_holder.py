"""`LeaseHolder`: messages that a handle holds by their names, without their bodies.

A lease and a claim (`mirrorq.bulk`) have one each. The handle steps it as it steps a consumer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from mirrorq.containers.ranges import RangeSet
from mirrorq.protocol.sessions import Delivery
from mirrorq.session.machine import Session


class LeaseHolder:
    """A consumer that gets names of messages, without bodies: what a lease holds. Owned by its
    lease or claim, and by the handle while it is subscribed; only the host's thread calls it."""

    def __init__(self, number: int, wanted: int) -> None:
        self.number = number
        self.wanted = wanted
        """How many it wants to hold in all."""
        self.refused = ""
        """Why the queue does not take it, "" while it does."""
        self.sequences = RangeSet()
        """What was taken at first; set once."""
        self.is_over = False
        """It wants nothing more: what still comes goes back."""
        self.pieces: dict[tuple[int, int], tuple[Delivery, RangeSet]] = {}
        """(epoch, delivery number) -> what of it is held."""
        self._settled: set[tuple[int, int]] = set()
        """Keys of pieces that were sent to be settled."""
        self._surplus: dict[int, int] = {}
        """By epoch: what was taken after a change of master and had not been held before."""
        self.is_complete = False
        """All that will be taken has been: later it is only taken again."""

    def held_in(self, epoch: int) -> int:
        """What stands against the credit in this term."""
        held = sum(left.count for piece, left in self.pieces.values() if piece.epoch == epoch)
        return held + self._surplus.get(epoch, 0)

    def take(self, session: Session, deliveries: Sequence[Delivery]) -> None:
        """Messages were handed out to it."""
        for piece in deliveries:
            span = RangeSet(((piece.first, piece.last),))
            if self.is_over:
                session.give_back((piece,))
                continue
            if self.is_complete:
                self._take_again(session, piece, span)
            else:
                self._name_anew(piece.epoch, piece.first, piece.last)
                self.pieces[piece.epoch, piece.number] = (piece, span)
                self.sequences.add(piece.first, piece.last)

    def _name_anew(self, epoch: int, first: int, last: int) -> None:
        """Names of earlier terms name these no more."""
        for older, left in self.pieces.values():
            if older.epoch < epoch:
                left.remove(first, last)

    def _take_again(self, session: Session, piece: Delivery, span: RangeSet) -> None:
        """After a failover: what it held is taken by its new name; the rest goes back."""
        known = RangeSet(self.sequences.within(piece.first, piece.last))
        for first, last in known:
            span.remove(first, last)
            self._name_anew(piece.epoch, first, last)
        if known:
            self.pieces[piece.epoch, piece.number] = (piece, known)
        for first, last in span:
            self._surplus[piece.epoch] = self._surplus.get(piece.epoch, 0) + last - first + 1
            session.give_back((replace(piece, first=first, last=last),))

    def settle(self, refused: Sequence[Delivery] | None = None) -> tuple[Delivery, ...]:
        """Return by name what is to be settled: all that is held.

        Args:
            refused: what the master did not take. Only those parts, where they are held by newer
                names now: the master had handed them out again before it got the older ones.
        """
        named = self._named() if refused is None else tuple(self._renamed(refused))
        self._settled.update((piece.epoch, piece.number) for piece in named)
        return named

    def _named(self) -> tuple[Delivery, ...]:
        return tuple(
            replace(piece, first=first, last=last)
            for piece, left in self.pieces.values()
            for first, last in left
        )

    def _renamed(self, refused: Sequence[Delivery]) -> Iterator[Delivery]:
        for piece, left in self.pieces.values():
            for old in refused:
                if old.epoch < piece.epoch:
                    for first, last in left.within(old.first, old.last):
                        yield replace(piece, first=first, last=last)

    def end(self, session: Session) -> None:
        """All is settled. What was handed to it since then, as to any consumer, goes back."""
        self.is_over = True
        self.wanted = 0
        session.unsubscribe(self.number)
        since = [one for one in self._named() if (one.epoch, one.number) not in self._settled]
        session.give_back(tuple(since))

    def refuse(self, why: str) -> None:
        self.refused = why
