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
    """A consumer that gets names of messages, without bodies, for a lease or claim. Owned by the
    lease or claim, and by the handle while subscribed; only the host's thread calls it."""

    def __init__(self, number: int, wanted: int) -> None:
        self.number = number
        self.wanted = wanted
        """Total number of messages to hold."""
        self.refused = ""
        """Why the queue refuses the consumer; "": not refused."""
        self.sequences = RangeSet()
        """Sequences taken until `is_complete`."""
        self.is_over = False
        """True: no more messages are wanted, and later deliveries are released."""
        self.pieces: dict[tuple[int, int], tuple[Delivery, RangeSet]] = {}
        """(epoch, delivery number) -> delivery and its held sequences."""
        self._settled: set[tuple[int, int]] = set()
        """Keys of pieces that were sent to be settled."""
        self._surplus: dict[int, int] = {}
        """By epoch: number of messages given back after `is_complete`, as they were not held."""
        self.is_complete = False
        """True: all messages have been taken; later deliveries only repeat them."""

    def held_in(self, epoch: int) -> int:
        """Return the number of messages that count against the credit in the term of this epoch."""
        held = sum(left.count for piece, left in self.pieces.values() if piece.epoch == epoch)
        return held + self._surplus.get(epoch, 0)

    def add_deliveries(self, session: Session, deliveries: Sequence[Delivery]) -> None:
        """Take deliveries."""
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
        """Remove a range from the deliveries of earlier terms."""
        for older, left in self.pieces.values():
            if older.epoch < epoch:
                left.remove(first, last)

    def _take_again(self, session: Session, piece: Delivery, span: RangeSet) -> None:
        """After a failover, take held messages by their new names; release the rest."""
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
        """Return the deliveries to settle: all that are held.

        Args:
            refused: deliveries that the master refused. Return only parts of them that are held by
                newer names: the master delivered them again before the request arrived.
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

    def end_lease(self, session: Session) -> None:
        """End after all is settled. Deliveries since then are released, as at any consumer."""
        self.is_over = True
        self.wanted = 0
        session.unsubscribe(self.number)
        since = [one for one in self._named() if (one.epoch, one.number) not in self._settled]
        session.give_back(tuple(since))

    def refuse(self, why: str) -> None:
        self.refused = why
