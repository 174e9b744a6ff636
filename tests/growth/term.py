"""One queue at its master, with a past of some size, and the same work in hand whatever it was."""

from __future__ import annotations

from collections.abc import Callable

from core.entries import CODEC
from core.test_master import Queue
from mirrorq.protocol.effects import OutboxLoaded
from mirrorq.protocol.identities import SessionId
from mirrorq.protocol.sessions import (
    Attach,
    Attached,
    Confirmed,
    Credit,
    Deliver,
    Delivery,
    Detach,
    OpenProducer,
    ProducerOpened,
    Publish,
    Reply,
    Request,
    SessionReply,
    Settle,
    Subscribe,
)
from mirrorq.replication.events import CourierReplied, Declared, NeighboursChanged
from mirrorq.replication.master.courier import courier_number
from mirrorq.replication.state.outbox import producer_of

from .work import Work, work_of

__all__ = ["Past", "work_after"]

ROUNDS = 4
"""Of the work that is counted: what is done every few steps only is in it, or is not, at random."""
WARM_ROUNDS = 40
"""Before them: what the first few rounds after a past have to put in order is not each step's."""


class Others:
    """The other queues, as the catalog knows them: `courier.Targets`."""

    def __init__(self) -> None:
        self.deleted: dict[int, None] = {}
        self._counter = 0

    def find(self, name: str) -> int:
        return 0

    def serving(self, queue_id: int) -> tuple[int, bool] | None:
        return None if queue_id in self.deleted else (1, True)

    def name(self, queue_id: int) -> str:
        return ""

    def session_number(self, queue_id: int) -> int:
        self._counter += 1
        return courier_number(queue_id, self._counter)


class Past:
    """A queue of one member, and handles that use it."""

    def __init__(self) -> None:
        self.others = Others()
        self.queue = Queue(targets=self.others, first=(Declared(False, False, has_outbox=True),))
        self.queue.sync()
        self._sessions = 0
        self._settle = 0
        self.putter = self.session()
        self.producer = self.open_producer(self.putter)
        self.number = 0
        self.taker: SessionId | None = None
        self.sender: SessionId | None = None
        self._sent = 0
        self._replies: dict[SessionId, int] = {}
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
        self.queue.heard(session)

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
        self, session: SessionId, pieces: list[Delivery], kind: str = "ack", target: int = 0
    ) -> None:
        """Settle what was handed out."""
        self._settle += 1
        self.queue.ask(session, Settle(self._settle, kind, tuple(pieces), target=target))
        self.queue.sync()

    def taken(self, session: SessionId) -> list[Delivery]:
        """What the session was handed since it was last asked."""
        return [
            piece
            for reply in self.queue.heard(session)
            if isinstance(reply, Deliver)
            for piece in reply.deliveries
        ]

    # --- Other queues ---------------------------------------------------------------------

    def send(self, target: int) -> None:
        """A message is put, taken, and moved to another queue, whose master confirms it."""
        if self.sender is None:
            self.sender = self.session()
            self.queue.ask(self.sender, Subscribe(1, 1))
        self._sent += 1
        self.queue.ask(self.sender, Credit(1, self._sent))
        self.put()
        self.settle(self.sender, self.taken(self.sender), "move", target)
        while self.queue.loads or self.queue.requests:
            self._play_target()
        assert self.queue.replica.state.outbox.count == 0

    def _play_target(self) -> None:
        queue = self.queue
        loads, queue.loads = queue.loads, []
        for load in loads:
            count = load.entries[-1].last_number - load.number + 1
            frame = CODEC.frame(load.producer, load.number, count)
            queue.step(OutboxLoaded(load.queue_id, load.target, load.number, 0, count, frame))
        requests, queue.requests = queue.requests, []
        for request in requests:
            self._replies[request.session] = self._replies.get(request.session, 0) + 1
            answer = self._answer(request.request)
            if answer is not None:
                reply = SessionReply(
                    request.queue_id,
                    request.epoch,
                    request.session,
                    request.attachment,
                    self._replies[request.session],
                    answer,
                )
                queue.step(CourierReplied(reply))
        queue.sync()

    def _answer(self, request: Request) -> Reply | None:
        if isinstance(request, Attach):
            return Attached()
        if isinstance(request, Publish):
            header = CODEC.header(request.frame)
            return Confirmed(header.producer, ((header.first_number, header.count, 1),))
        return None

    def receive(self, sender: int) -> None:
        """Another queue's courier comes, brings a message, and goes."""
        courier = SessionId("b", 1, courier_number(sender, 1))
        producer = producer_of(sender, 0)
        self.queue.attach(courier, producer=producer)
        self.queue.ask(courier, Publish(CODEC.frame(producer, 1, 1, 0), False))
        self.queue.sync()
        assert any(isinstance(reply, Confirmed) for reply in self.queue.heard(courier))
        self.leave(courier)

    def delete(self, other: int) -> None:
        """The other queue is deleted."""
        self.others.deleted[other] = None
        self.queue.step(NeighboursChanged((other,)))
        self.queue.sync()

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
