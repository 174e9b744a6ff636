"""One queue at its master, with a past of some size, and the same work in hand whatever it was."""

from __future__ import annotations

from collections.abc import Callable

from core.entries import CODEC
from core.test_master import Queue
from mirrorq.messages import (
    Confirmed,
    Credit,
    Deliver,
    Detach,
    HandOut,
    ProducerOpened,
    Publish,
    SessionId,
    Settle,
    Subscribe,
)
from mirrorq.messages.sessions import OpenProducer

from .instructions import Work, work_of

__all__ = ["Past", "work_after"]

ROUNDS = 4
"""Of the work that is counted: what is done every few steps only is in it, or is not, at random."""
WARM_ROUNDS = 40
"""Before them: what the first few rounds after a past have to put in order is not each step's."""


class Past:
    """A queue of one member, and handles that use it."""

    def __init__(self) -> None:
        self.queue = Queue()
        self.queue.sync()
        self._sessions = 0
        self._settle = 0
        self.putter = self.session()
        self.producer = self.open_producer(self.putter)
        self.number = 0
        self.taker: SessionId | None = None
        self._asked = 0

    # --- What made the past ---------------------------------------------------------------

    def session(self) -> SessionId:
        """One more handle, attached."""
        self._sessions += 1
        made = SessionId("a", 1, self._sessions)
        self.queue.attach(made)
        self.queue.heard(made)
        return made

    def open_producer(self, session: SessionId) -> int:
        """A producer id of its own."""
        self.queue.ask(session, OpenProducer())
        self.queue.sync()
        (opened,) = (r for r in self.queue.heard(session) if isinstance(r, ProducerOpened))
        return opened.producer

    def leave(self, session: SessionId) -> None:
        """The handle is closed."""
        self.queue.ask(session, Detach())
        self.queue.sync()

    def put(self, count: int = 1) -> None:
        """Publish so many in one op, and wait until they are confirmed."""
        first = self.number + 1
        self.number += count
        frame = CODEC.frame(self.producer, first, count, first - 1)
        self.queue.ask(self.putter, Publish(frame, False))
        self.queue.sync()
        confirmed = [r for r in self.queue.heard(self.putter) if isinstance(r, Confirmed)]
        assert sum(run[1] for one in confirmed for run in one.runs) == count

    def consume(self, session: SessionId, total: int, number: int = 1) -> None:
        """A consumer that may be handed so many in all."""
        self.queue.ask(session, Subscribe(number, total))
        self.queue.ask(session, Credit(number, total))
        self.queue.sync()

    def settle(
        self, session: SessionId, pieces: list[HandOut], kind: str = "ack", target: int = 0
    ) -> None:
        """Settle what was handed out."""
        self._settle += 1
        self.queue.ask(session, Settle(self._settle, kind, tuple(pieces), target=target))
        self.queue.sync()

    def taken(self, session: SessionId) -> list[HandOut]:
        """What the session was handed since it was last asked."""
        return [
            piece
            for reply in self.queue.heard(session)
            if isinstance(reply, Deliver)
            for piece in reply.handouts
        ]

    # --- The work in hand -----------------------------------------------------------------

    def work(self) -> None:
        """One message is put, confirmed, handed to a waiting handle, and acked."""
        if self.taker is None:
            self.taker = self.session()
            self.queue.ask(self.taker, Subscribe(1, 1))
        self._asked += 1
        self.queue.ask(self.taker, Credit(1, self._asked))
        self.queue.sync()
        self.put()
        pieces = self.taken(self.taker)
        assert len(pieces) == 1
        self.settle(self.taker, pieces)


def work_after(make: Callable[[int], Past], size: int) -> Work:
    """What a master does for the same work after a past of this size."""
    past = make(size)
    for _ in range(WARM_ROUNDS):
        past.work()
    return work_of(lambda: [past.work() for _ in range(ROUNDS)])
