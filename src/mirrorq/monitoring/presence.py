"""Clients and consumers of a cluster, joined from the rolls of its nodes. Pure.

An entry node knows its clients. A queue's master knows which messages each consumer holds. Each
node reports both as its *roll*, and `join` finds the client of each consumer by the session.
Clients load this module too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec
from attrs import frozen

from mirrorq.errors import MALFORMED, ProtocolError
from mirrorq.protocol.shard_names import logical_name

SessionKey = tuple[str, int, int]
"""Node, incarnation and number of a handle's session."""


@frozen
class ClientStatus:
    """One client: a process other than a node, connected to one or more nodes."""

    name: str
    """Name of the client, for `disconnect`."""
    node: str
    """Name of the node to which the client connected first."""
    address: str = ""
    """Address of that connection, as host:port; "": an ipc connection, or not known."""
    since: float = 0.0
    """Time of that connection, in seconds since 1970 by the node's clock."""
    key: str = ""
    """Name of the client's key; "" without security."""
    role: str = ""
    """Role of the client's key."""
    handles: int = 0
    """Number of open queue handles."""
    nodes: tuple[str, ...] = ()
    """Names of the nodes that serve these handles: the masters of their queues, as a rule."""
    queues: tuple[str, ...] = ()
    """Names of the queues of the client's handles."""
    consumers: int = 0
    """Number of running `consume` calls."""
    messages_unacknowledged: int = 0
    """Messages that the client holds, in all queues. Messages fetched ahead are included."""


@frozen
class ConsumerStatus:
    """One consumer of one queue, as the queue's master knows the consumer."""

    queue: str
    """Name of the queue; for a sharded queue the shard's name."""
    tag: str
    """Name of the consumer, unique in the cluster, for `disconnect`."""
    client: str
    """Name of the consumer's client; "": the consumer is in a node's own process."""
    node: str
    """Name of the client's entry node, or of the node whose process has the consumer."""
    prefetch: int = 0
    """The most messages that the consumer may hold unacknowledged; 0: no bound."""
    messages_unacknowledged: int = 0
    """Messages that the consumer holds."""
    exclusive: bool = False
    """True: no other consumer may take from the queue."""
    auto_ack: bool = False
    """True: messages are acked before the callback is called."""
    active: bool = True
    """False: the consumer waits (single-active-consumer, or a job leases the queue)."""
    label: str = ""
    """Name given to the consumer: jobs that lease messages have a name."""


@frozen
class Attendance:
    """All clients and consumers of a cluster, as far as the nodes have answered."""

    clients: tuple[ClientStatus, ...]
    """Clients, sorted by node and name."""
    consumers: tuple[ConsumerStatus, ...]
    """Consumers, sorted by queue and tag."""
    unheard: tuple[str, ...] = ()
    """Names of nodes that run and did not answer in time. Their clients are missing here."""
    left_off: int = 0
    """Number of consumers that nodes left out, because a roll has a bound."""

    def of_queue(self, name: str) -> tuple[ConsumerStatus, ...]:
        """Return the consumers of one queue, for a sharded queue of all shards."""
        return tuple(
            each for each in self.consumers if name in (each.queue, logical_name(each.queue))
        )


@frozen
class Served:
    """A client, as one of its entry nodes knows the client."""

    name: str
    address: str
    since: float
    key: str
    role: str
    sessions: tuple[int, ...]
    """Numbers of the client's sessions at the entry node."""
    queues: tuple[str, ...]


Connection = tuple[str, Served]
"""A node, and a client as that node knows it."""


@frozen
class HeldConsumer:
    """Messages held by one consumer of one handle, as a master knows. Number 0 is get()."""

    queue: str
    session: SessionKey
    number: int
    unacknowledged: int
    prefetch: int = 0
    exclusive: bool = False
    auto_ack: bool = False
    active: bool = True
    label: str = ""


@frozen
class Roll:
    """The clients and consumers that one node serves, as the node tells another node."""

    node: str
    incarnation: int
    clients: tuple[Served, ...] = ()
    seats: tuple[HeldConsumer, ...] = ()
    left_off: int = 0

    def to_bytes(self) -> bytes:
        return msgspec.json.encode(self)

    @classmethod
    def from_bytes(cls, data: bytes) -> Roll:
        """Read the bytes of `to_bytes`.

        Raises:
            ProtocolError: the bytes are no roll.
        """
        try:
            return msgspec.json.decode(data, type=cls)
        except MALFORMED as error:
            raise ProtocolError(
                f"a list of clients of {len(data)} bytes cannot be read: {error}"
            ) from None


def join(rolls: Sequence[Roll], unheard: Iterable[str] = ()) -> Attendance:
    """Join the rolls of nodes.

    Args:
        unheard: names of nodes that run and did not answer.
    """
    owner: dict[SessionKey, str] = {}
    connections: dict[str, list[Connection]] = {}
    for roll in rolls:
        for client in roll.clients:
            connections.setdefault(client.name, []).append((roll.node, client))
            for number in client.sessions:
                owner[roll.node, roll.incarnation, number] = client.name
    held: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    consumers: list[ConsumerStatus] = []
    for consumer in (one for roll in rolls for one in roll.seats):
        whose = owner.get(consumer.session, "")
        held[whose] += consumer.unacknowledged
        counts[whose] += consumer.number != 0
        if consumer.number:
            consumers.append(_consumer(consumer, whose))
    clients = [_client(each, counts, held) for each in connections.values()]
    return Attendance(
        tuple(sorted(clients, key=lambda one: (one.node, one.name))),
        tuple(sorted(consumers, key=lambda one: (one.queue, one.tag))),
        tuple(sorted(unheard)),
        sum(roll.left_off for roll in rolls),
    )


def tag_of(session: SessionKey, number: int) -> str:
    """Return the tag of one consumer of one handle."""
    return ".".join(map(str, (*session, number)))


def parts_of_tag(tag: str) -> tuple[SessionKey, int] | None:
    """Return the handle and the consumer's number of a tag; None: the text is no tag."""
    node, *numbers = tag.rsplit(".", 3)
    if len(numbers) != 3 or not all(each.isascii() and each.isdecimal() for each in numbers):
        return None
    incarnation, number, consumer = map(int, numbers)
    return (node, incarnation, number), consumer


def _consumer(consumer: HeldConsumer, client: str) -> ConsumerStatus:
    return ConsumerStatus(
        queue=consumer.queue,
        tag=tag_of(consumer.session, consumer.number),
        client=client,
        node=consumer.session[0],
        prefetch=consumer.prefetch,
        messages_unacknowledged=consumer.unacknowledged,
        exclusive=consumer.exclusive,
        auto_ack=consumer.auto_ack,
        active=consumer.active,
        label=consumer.label,
    )


def _client(
    connections: list[Connection], counts: Counter[str], held: Counter[str]
) -> ClientStatus:
    """Return the entry of a client with these connections."""
    node, first = min(connections, key=lambda one: one[1].since)
    queues = {logical_name(queue) for _, served in connections for queue in served.queues}
    return ClientStatus(
        name=first.name,
        node=node,
        address=first.address,
        since=first.since,
        key=first.key,
        role=first.role,
        handles=sum(len(served.sessions) for _, served in connections),
        nodes=tuple(sorted(node for node, served in connections if served.sessions)),
        queues=tuple(sorted(queues)),
        consumers=counts[first.name],
        messages_unacknowledged=held[first.name],
    )
