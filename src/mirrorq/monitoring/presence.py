"""Who uses a cluster: its clients and the consumers of its queues, put together of what nodes tell.

A client is known to its entry node, what it holds to the masters of its queues: each node tells
what it knows, its *roll*, and `join` finds by the sessions which consumer is whose. Pure, and
light: clients load this module too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
from attrs import frozen

from mirrorq.errors import MALFORMED, ProtocolError
from mirrorq.protocol.shard_names import logical_name

SessionKey = tuple[str, int, int]
"""Of a handle: node, incarnation, number."""


@frozen
class ClientStatus:
    """One client: a process that is no node, connected to one."""

    name: str
    """By which it can be disconnected."""
    node: str
    """That serves it."""
    address: str = ""
    """Of its connection, as host:port; "" where there is none (ipc) or it is not known."""
    since: float = 0.0
    """When it came to this node, in seconds since 1970 by that node's clock."""
    key: str = ""
    """Name of its key; "" without security."""
    role: str = ""
    """Of its key."""
    handles: int = 0
    """How many queue handles it has open."""
    queues: tuple[str, ...] = ()
    """Names of those it has handles on."""
    consumers: int = 0
    """How many `consume` calls of it run."""
    messages_unacknowledged: int = 0
    """What it holds, in all queues; what a `get` has fetched ahead included."""


@frozen
class ConsumerStatus:
    """One consumer of one queue, as the queue's master has it."""

    queue: str
    """Of a sharded queue: the shard."""
    tag: str
    """No other consumer of the cluster has it. By it, it can be disconnected."""
    client: str
    """Name of the client that it is part of, "" for a handle in a node's own process."""
    node: str
    """That its handle is on, or that serves its client."""
    prefetch: int = 0
    """The most messages it may hold unacknowledged; 0: no bound."""
    messages_unacknowledged: int = 0
    """Messages that it holds."""
    exclusive: bool = False
    """True: nobody else may consume the queue."""
    auto_ack: bool = False
    """True: its messages are acked before its callback is called."""
    active: bool = True
    """False: it waits for its turn (single-active-consumer, or a job leases the queue)."""
    label: str = ""
    """What it calls itself: a job that leases messages does."""


@frozen
class Attendance:
    """All clients and consumers, as far as the nodes have told."""

    clients: tuple[ClientStatus, ...]
    """By node and name."""
    consumers: tuple[ConsumerStatus, ...]
    """By queue and tag."""
    unheard: tuple[str, ...] = ()
    """Nodes that run and gave no answer in time: what is there is missing."""
    left_off: int = 0
    """Consumers beyond what one node tells."""

    def of_queue(self, name: str) -> tuple[ConsumerStatus, ...]:
        """Consumers of one queue; of a sharded one those of all its shards."""
        return tuple(
            each for each in self.consumers if name in (each.queue, logical_name(each.queue))
        )


@frozen
class Served:
    """A client, as its entry node knows it."""

    name: str
    address: str
    since: float
    key: str
    role: str
    sessions: tuple[int, ...]
    """Numbers of that node's sessions."""
    queues: tuple[str, ...]


@frozen
class HeldConsumer:
    """What one consumer of one handle has, as a master knows it. Number 0: what get() does."""

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
    """The clients and consumers that one node serves, as it tells another one."""

    node: str
    incarnation: int
    clients: tuple[Served, ...] = ()
    seats: tuple[HeldConsumer, ...] = ()
    left_off: int = 0

    def to_bytes(self) -> bytes:
        return msgspec.json.encode(self)

    @classmethod
    def from_bytes(cls, data: bytes) -> Roll:
        """What `to_bytes` wrote.

        Raises:
            ProtocolError: it is no roll.
        """
        try:
            return msgspec.json.decode(data, type=cls)
        except MALFORMED as error:
            raise ProtocolError(
                f"a list of clients of {len(data)} bytes cannot be read: {error}"
            ) from None


def join(rolls: Sequence[Roll], unheard: Iterable[str] = ()) -> Attendance:
    """Put together what nodes have told."""
    owner: dict[SessionKey, tuple[str, str]] = {}
    for roll in rolls:
        for client in roll.clients:
            for number in client.sessions:
                owner[roll.node, roll.incarnation, number] = (roll.node, client.name)
    held: dict[tuple[str, str], int] = {}
    counts: dict[tuple[str, str], int] = {}
    consumers: list[ConsumerStatus] = []
    for consumer in (one for roll in rolls for one in roll.seats):
        whose = owner.get(consumer.session)
        if whose is not None:
            held[whose] = held.get(whose, 0) + consumer.unacknowledged
            counts[whose] = counts.get(whose, 0) + (consumer.number != 0)
        if consumer.number:
            consumers.append(_consumer(consumer, "" if whose is None else whose[1]))
    clients = [
        _client(roll.node, client, counts, held) for roll in rolls for client in roll.clients
    ]
    return Attendance(
        tuple(sorted(clients, key=lambda one: (one.node, one.name))),
        tuple(sorted(consumers, key=lambda one: (one.queue, one.tag))),
        tuple(sorted(unheard)),
        sum(roll.left_off for roll in rolls),
    )


def tag_of(session: SessionKey, number: int) -> str:
    """The tag of one consumer of one handle."""
    return ".".join(map(str, (*session, number)))


def parts_of_tag(tag: str) -> tuple[SessionKey, int] | None:
    """The handle and the consumer's number that a tag names; None: it is no tag."""
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
    node: str,
    client: Served,
    counts: dict[tuple[str, str], int],
    held: dict[tuple[str, str], int],
) -> ClientStatus:
    whose = (node, client.name)
    return ClientStatus(
        name=client.name,
        node=node,
        address=client.address,
        since=client.since,
        key=client.key,
        role=client.role,
        handles=len(client.sessions),
        queues=tuple(sorted(dict.fromkeys(map(logical_name, client.queues)))),
        consumers=counts.get(whose, 0),
        messages_unacknowledged=held.get(whose, 0),
    )
