"""Messages between a client and its entry node.

A client is a process without a node. The client numbers its sessions itself. Its entry node opens a
session of its own for each, with its own id in requests and the client's id in replies.
"""

from __future__ import annotations

from attrs import field, frozen
from msgspec import Struct

from mirrorq.protocol.commands import Administrative
from mirrorq.protocol.routing import ExchangeRecord


class ClientHello(Struct, frozen=True, gc=False):
    """First message of a connection, and again after the node's ClientUnknown. The node's state of
    the client ends, and the client's messages count from here on."""

    number: int
    """Grows with each hello of the client; the welcome repeats the number."""
    name: str
    expiry_ms: int = 0
    """Silence after which the client wants to count as gone, where longer than the node's
    `session_expiry_ms`. Up to a minute."""
    lineage: int = 0
    """Lineage of the client's cluster, 0 at first: nodes of other clusters refuse the client."""


class ClientWelcome(Struct, frozen=True, gc=False):
    """Answer to ClientHello: the node serves the client from now on."""

    number: int
    node: str
    session_expiry_ms: int
    """After so much silence the client is gone for the node."""
    lineage: int = 0
    """Lineage of the node's cluster, 0 while unknown: then a later pong has the lineage."""


class ClientUnknown(Struct, frozen=True, gc=False):
    """The node does not know the client (any more): repeat the hello."""


class ClientRefused(Struct, frozen=True, gc=False):
    """The node does not serve the client: go to another."""

    why: str
    final: bool = False
    """True: do not go to another node. A user has disconnected the client, which ends."""


class ClientOpen(Struct, frozen=True, gc=False):
    """Open session `session` (the client's own number) on the queue with the id."""

    session: int
    queue: int


class ClientClose(Struct, frozen=True, gc=False):
    """The session ends: its held messages go back."""

    session: int
    goes_on: bool = False
    """The handle goes on at another node: the messages wait for it as after a lost connection."""


class ClientMaster(Struct, frozen=True, gc=False):
    """The master of the session's queue: see session.MasterChanged."""

    session: int
    epoch: int
    available: bool
    straight: str = ""
    """Endpoint of the master's node, where it is another node."""


class ClientLinkLost(Struct, frozen=True, gc=False):
    """Between the node and the master something may be gone."""

    session: int


class ClientClosed(Struct, frozen=True, gc=False):
    """The session has ended: the queue is deleted, or the client's key lacks the right."""

    session: int
    reason: str
    refused: bool = False
    """The key lacks the right."""


class ClientRightLost(Struct, frozen=True, gc=False):
    """The client's key has lost one right to the queue; the session goes on with the rest."""

    session: int
    right: str
    reason: str


class ClientDeclare(Struct, frozen=True, gc=False):
    """A call: declare a queue, as `Node.queue` does."""

    name: str
    durable: bool
    exclusive: bool
    auto_delete: bool
    passive: bool
    session: int = 0
    """Exclusive: the client's own number of the session to own the queue."""
    shards: int = 0
    """To be made with so many; 0: nothing is said of shards."""
    arguments: str = ""
    """`policy.arguments_text`."""


class ClientDelete(Struct, frozen=True, gc=False):
    """A call: delete a queue."""

    queue: int
    if_empty: bool


class ClientLook(Struct, frozen=True, gc=False):
    """`what`: status (of `queue`), queues, shards (queues and their shards), nodes, policies or
    attendance; the answer's `data` is JSON. Queues come in pages: `text` is "" in the answer with
    the last page, and else what `after` is to be for the next one."""

    what: str
    queue: int = 0
    after: str = ""
    """Queues whose names are greater."""


class ClientWatch(Struct, frozen=True, gc=False):
    """Answered when the exchange has another version and the node's catalog has reached the index:
    `exchange_watch.Seen` as JSON."""

    exchange: str
    version: int
    index: int


class ClientAdminister(Struct, frozen=True, gc=False):
    """A call: have an administrative command done."""

    command: Administrative


class ClientRead(Struct, frozen=True, gc=False):
    """Read live messages from `first` to `last` in the node's own copy, after its op `applied`. The
    answer has (first, last, delivery count) as `data`, the frames, and as `value` the next sequence
    to read. With `bytes_max` 0 the answer has ranges only."""

    queue: int
    first: int
    last: int
    bytes_max: int
    applied: int


class ClientSeek(Struct, frozen=True, gc=False):
    """Find the first live sequence published at `stamp_ms` or later, as `value`; without one, the
    next sequence to be given. From the node's own copy, as ClientRead."""

    queue: int
    stamp_ms: int
    applied: int


class ClientDisconnect(Struct, frozen=True, gc=False):
    """Disconnect the client with the name, on any node."""

    name: str
    why: str


AnyCall = (
    ClientDeclare
    | ClientDelete
    | ClientLook
    | ClientAdminister
    | ClientWatch
    | ClientRead
    | ClientSeek
    | ClientDisconnect
)
"""Calls to a node, by a client or by its own process."""


class ClientCall(Struct, frozen=True, gc=False):
    """Answered by ClientAnswer with the same number; sent again to the next entry node."""

    number: int
    call: AnyCall


class ClientForget(Struct, frozen=True, gc=False):
    """The client no longer waits for the answer to the call."""

    number: int


class ClientAnswer(Struct, frozen=True, gc=False):
    """`error`: "" or the name of an exception class of mirrorq.errors; `text` is its message."""

    number: int
    value: int
    error: str
    text: str
    data: bytes
    frames: tuple[bytes, ...] = ()
    rings: tuple[int, ...] = ()
    """Answer to a declaration: ids of a sharded queue's shards, by shard number."""


class ClientPing(Struct, frozen=True, gc=False):
    """A sign of life, on the control connection."""

    received: int = 0
    """Data bytes received from the node since the Welcome."""


class ClientPong(Struct, frozen=True, gc=False):
    """Answer to ClientPing, and a sign of life of the node."""

    paused: bool
    """The node has no contact with a majority."""
    lost: bool
    """Messages to the client were dropped since the last pong."""
    received: int = 0
    """Data bytes received from the client since its Hello."""
    patience: int = 100
    """Percent of the agreed waits of each side for the other, and of the pause between signs of
    life. More while a node has many clients."""
    waits: str = ""
    """Reason why the node takes part in no cluster, and so knows no queue. "": none."""
    lineage: int = 0
    """Lineage of the node's cluster, as in ClientWelcome."""


class ClientBye(Struct, frozen=True, gc=False):
    """The client is closed, and the node's state of the client ends at once."""


ClientMessage = (
    ClientHello
    | ClientOpen
    | ClientClose
    | ClientCall
    | ClientForget
    | ClientPing
    | ClientBye
    | ClientWelcome
    | ClientUnknown
    | ClientRefused
    | ClientMaster
    | ClientLinkLost
    | ClientClosed
    | ClientRightLost
    | ClientAnswer
    | ClientPong
)


@frozen
class Seen:
    """The answer to a ClientWatch, as JSON."""

    version: int
    """Version of the exchange; 0 without an exchange."""
    index: int
    """Index of the catalog: no earlier change is missing."""
    record: ExchangeRecord | None = None
    names: dict[int, str] = field(factory=dict)
    """Names of the bound queues."""
    rings: dict[int, tuple[int, ...]] = field(factory=dict)
    """Ids of the shards of the sharded queues."""
