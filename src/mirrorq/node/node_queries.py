"""Asks every node of the cluster for its clients and consumers, and has them disconnected.

A question goes to every other node that runs. Answers that came within `ANSWER_MS` count; the nodes
that did not answer are named. The caller looks until there is an outcome. Everything runs on the
node thread. An answer never raises, and no state is kept for another node's question.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol

from attrs import define, field

from mirrorq import clock
from mirrorq.errors import ProtocolError
from mirrorq.monitoring.presence import Attendance, HeldConsumer, Roll, join, parts_of_tag
from mirrorq.node.bans import consumer_text
from mirrorq.protocol.control import NodeAnswer, NodeQuestion
from mirrorq.protocol.identities import SessionId
from mirrorq.replication.events import SubscriptionExpelled

if TYPE_CHECKING:
    from mirrorq.engine.engine import Engine
    from mirrorq.monitoring.presence import Served
    from mirrorq.node.log_limit import LogLimit
    from mirrorq.replication.replica import Replica

log = logging.getLogger("mirrorq")

ANSWER_MS = 3000
"""Time for running nodes to answer, in milliseconds."""
ASKED_MAX = 64
"""Limit on open questions; the oldest is dropped, because its caller no longer looks."""
CONSUMERS_MAX = 10_000
"""Limit on consumers in one node's answer."""

ATTENDANCE = "attendance"
DISCONNECT = "disconnect"
"""Disconnect the client `subject`, or the consumer with the tag, because of `why`."""


@define(eq=False)
class _Question:
    until_ms: int
    waiting: dict[str, None]
    """Nodes that have not answered."""
    answers: list[NodeAnswer] = field(factory=list)


class ServesClients(Protocol):
    """The gateway, reduced to the questions about its clients."""

    def served(self) -> tuple[Served, ...]:
        """Return the entries of all clients."""

    def disconnect(self, name: str, why: str) -> int:
        """Disconnect the clients with a name and refuse the name. Return the number of clients."""


class Asking(Protocol):
    """The node thread, reduced to the needs of questions."""

    engine: Engine
    complaints: LogLimit

    @property
    def gateway(self) -> ServesClients | None:
        """The gateway; None: the node listens nowhere."""

    def tell(self, node: str, message: NodeQuestion | NodeAnswer) -> None:
        """Send a message to another node, without the engine."""


class NodeQueries:
    """The questions of one node. The driver owns the object. Node thread only."""

    def __init__(self, driver: Asking) -> None:
        self._driver = driver
        self._numbers = itertools.count(1)
        self._asked: dict[int, _Question] = {}

    # --- For those on this node -----------------------------------------------------------

    def ask_attendance(self) -> int:
        """Begin a question; `attendance` returns the outcome."""
        return self._ask(ATTENDANCE)

    def attendance(self, number: int) -> Attendance | None:
        """Return the cluster's clients and consumers; None: nodes may still answer."""
        asked = self._ended(number)
        if asked is None:
            return None
        rolls, unheard = [], list(asked.waiting)
        for answer in asked.answers:
            try:
                rolls.append(Roll.from_bytes(answer.data))
            except ProtocolError as error:
                self._driver.complaints.warn("dropped an answer of a node: %s", error)
        return join(rolls, unheard)

    def ask_disconnect(self, client: str, why: str) -> int:
        """Have a client disconnected on all nodes and refused; `disconnected` has the outcome."""
        return self._ask(DISCONNECT, client, why)

    def disconnected(self, number: int) -> tuple[int, tuple[str, ...]] | None:
        """Return the number of disconnected clients or consumers, and the nodes without an answer;
        None: nodes may still answer."""
        asked = self._ended(number)
        if asked is None:
            return None
        return sum(answer.count for answer in asked.answers), tuple(asked.waiting)

    def _ask(self, what: str, subject: str = "", why: str = "") -> int:
        number = next(self._numbers)
        question = NodeQuestion(number, what, subject, why)
        others = list(self._others())
        asked = _Question(clock.now_ms() + ANSWER_MS, dict.fromkeys(others))
        asked.answers.append(self._answer(question))
        self._asked[number] = asked
        while len(self._asked) > ASKED_MAX:
            del self._asked[next(iter(self._asked))]
        for node in others:
            self._driver.tell(node, question)
        return number

    def _others(self) -> Iterator[str]:
        engine = self._driver.engine
        for node in engine.catalog.nodes():
            if node.member != engine.me and engine.is_alive(node.member):
                yield node.name

    def _ended(self, number: int) -> _Question | None:
        asked = self._asked.get(number)
        if asked is None:
            return _Question(0, {})
        if asked.waiting and clock.now_ms() < asked.until_ms:
            return None
        del self._asked[number]
        return asked

    # --- Between nodes --------------------------------------------------------------------

    def on_message(self, node: str, incarnation: int, message: NodeQuestion | NodeAnswer) -> None:
        """Take a message of another process that uses a node's name."""
        record = self._driver.engine.catalog.node(node)
        if record is None or record.incarnation != incarnation:
            log.debug("dropped a %s of %s: no node of this cluster", type(message).__name__, node)
        elif isinstance(message, NodeQuestion):
            self._driver.tell(node, self._answer(message))
        else:
            asked = self._asked.get(message.number)
            if asked is not None and node in asked.waiting:
                del asked.waiting[node]
                asked.answers.append(message)

    def _answer(self, question: NodeQuestion) -> NodeAnswer:
        gateway = self._driver.gateway
        if question.what == ATTENDANCE:
            return NodeAnswer(question.number, 0, roll_of(self._driver).to_bytes())
        if question.what == DISCONNECT:
            count = expel_consumer(self._driver, question.subject, question.why)
            if not count and gateway is not None and parts_of_tag(question.subject) is None:
                count = gateway.disconnect(question.subject, question.why)
            return NodeAnswer(question.number, count, b"")
        # A question of a later version: answer that there is nothing here.
        return NodeAnswer(question.number, 0, b"")


def expel_consumer(driver: Asking, tag: str, why: str) -> int:
    """End the consumer of a tag, if a master here has it; return the number of ended consumers."""
    named = parts_of_tag(tag)
    if named is None:
        return 0
    session, number = SessionId(*named[0]), named[1]
    found = 0
    engine = driver.engine
    for queue_id, replica in engine.replicas.items():
        master = replica.master
        if master is None or not master.active:
            continue
        if (session, number) in master.dispatch.consumers.by_key:
            text = consumer_text(engine.me.node, why)
            engine.hosting.post(queue_id, SubscriptionExpelled(session, number, text))
            log.info("node %s: consumer %s %s", engine.me.node, tag, text)
            found += 1
    return found


def roll_of(driver: Asking) -> Roll:
    """Return the node's own clients, and the consumers of the queues mastered here."""
    engine, gateway = driver.engine, driver.gateway
    consumers = itertools.chain.from_iterable(
        _consumers_of(record.name, engine.replicas[record.id])
        for record in engine.catalog.queues()
        if record.id in engine.replicas
    )
    told = tuple(itertools.islice(consumers, CONSUMERS_MAX))
    me = engine.me
    served = () if gateway is None else gateway.served()
    return Roll(me.node, me.incarnation, served, told, sum(1 for _ in consumers))


def _consumers_of(name: str, replica: Replica) -> Iterator[HeldConsumer]:
    """Yield the consumers of one queue, if its master is here."""
    master = replica.master
    if master is None or not master.active:
        return
    dispatch, consumers = master.dispatch, master.dispatch.consumers
    held = dict.fromkeys(consumers.by_key, 0)
    for delivery in dispatch.open.by_number.values():
        held[delivery.key] = held.get(delivery.key, 0) + delivery.left_count
    first = consumers.claim() or (dispatch.active_subscription() if dispatch.is_single else None)
    for key, unacknowledged in held.items():
        session, number = key
        consumer = consumers.by_key.get(key)
        if number == 0 and not unacknowledged:
            continue
        yield HeldConsumer(
            name,
            (session.node, session.incarnation, session.number),
            number if consumer is not None else 0,
            unacknowledged,
            0 if consumer is None else consumer.prefetch,
            consumer is not None and consumer.exclusive,
            consumer is not None and consumer.auto_ack,
            first is None or first is consumer,
            "" if consumer is None else consumer.label,
        )
