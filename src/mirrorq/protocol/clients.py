"""Between a client and its entry node.

A client is a process that is no node. It numbers its sessions itself; its entry node opens
a session of its own for each, puts that one's id into requests, and the client's into replies.
"""

from __future__ import annotations

from attrs import field, frozen
from msgspec import Struct

from mirrorq.protocol.commands import Administrative
from mirrorq.protocol.routing import ExchangeRecord


class ClientHello(Struct, frozen=True, gc=False):
    """First message of a connection, and again when the node says that it knows nothing of
    this client: what the node held of it ends. Its messages count from here on."""

    number: int
    """Grows with each hello of this client; the welcome repeats it."""
    name: str
    expiry_ms: int = 0
    """Silence after which it wants to be taken for gone, where that is longer than by the node's
    `session_expiry_ms`. Up to a minute."""
    lineage: int = 0
    """Of the cluster in which it has been served, 0 before: a node of another one refuses it."""


class ClientWelcome(Struct, frozen=True, gc=False):
    """Answer to ClientHello: the node serves this client from now on."""

    number: int
    node: str
    session_expiry_ms: int
    """The client is gone for the node when it is silent for so long."""
    lineage: int = 0
    """Of the node's cluster, 0 while it knows none: later it comes with a pong."""


class ClientUnknown(Struct, frozen=True, gc=False):
    """The node does not know this client (any more): say hello again."""


class ClientRefused(Struct, frozen=True, gc=False):
    """The node does not serve this client: go to another."""

    why: str
    final: bool = False
    """Or rather not: it was disconnected by somebody, and ends."""


class ClientOpen(Struct, frozen=True, gc=False):
    """Open session `session` (the client's own number) on the queue with this id."""

    session: int
    queue: int


class ClientClose(Struct, frozen=True, gc=False):
    """The session ends: what it holds goes back."""

    session: int


class ClientMaster(Struct, frozen=True, gc=False):
    """Who serves the queue of this session: see session.MasterChanged."""

    session: int
    epoch: int
    available: bool


class ClientLinkLost(Struct, frozen=True, gc=False):
    """Between the node and the master something may be gone."""

    session: int


class ClientClosed(Struct, frozen=True, gc=False):
    """The session is no more: the queue is deleted, or the client's key does not allow it."""

    session: int
    reason: str
    refused: bool = False
    """It is the key."""


class ClientRightLost(Struct, frozen=True, gc=False):
    """The client's key has lost one right to the queue; the session goes on with the others."""

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
    """Exclusive: the client's own number of the session that is to own the queue."""
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
    """Answered when the exchange's version is not this one and the node's catalog has come to
    this index at least: `exchange_watch.Seen` as JSON."""

    exchange: str
    version: int
    index: int


class ClientAdminister(Struct, frozen=True, gc=False):
    """A call: have an administrative command done."""

    command: Administrative


class ClientRead(Struct, frozen=True, gc=False):
    """What lives from `first` to `last` in the node's own copy, once that has applied the op
    `applied`. Answered with (first, last, delivery count) as `data`, their frames, and as
    `value` the sequence to go on from; with the ranges alone where `bytes_max` is 0."""

    queue: int
    first: int
    last: int
    bytes_max: int
    applied: int


class ClientSeek(Struct, frozen=True, gc=False):
    """The first sequence that lives and was published at `stamp_ms` or later, as `value`; where
    there is none, the next that will be given. From the node's own copy, as ClientRead."""

    queue: int
    stamp_ms: int
    applied: int


class ClientDisconnect(Struct, frozen=True, gc=False):
    """Disconnect the client of this name, on whichever node it is."""

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
"""What a node is asked, by a client or by its own process."""


class ClientCall(Struct, frozen=True, gc=False):
    """Answered by ClientAnswer with the same number; sent again to the next entry node."""

    number: int
    call: AnyCall


class ClientForget(Struct, frozen=True, gc=False):
    """Nobody waits for the answer to this call any more."""

    number: int


class ClientAnswer(Struct, frozen=True, gc=False):
    """`error`: "" or the name of an exception class of mirrorq.errors; `text` its message."""

    number: int
    value: int
    error: str
    text: str
    data: bytes
    frames: tuple[bytes, ...] = ()
    rings: tuple[int, ...] = ()
    """Of a declaration: ids of the shards of a sharded queue, by their number."""


class ClientPing(Struct, frozen=True, gc=False):
    """A sign of life, on the control connection."""

    received: int = 0
    """Bytes of data that have come from the node since the Welcome."""


class ClientPong(Struct, frozen=True, gc=False):
    """Answer to ClientPing, and a sign of life of the node."""

    paused: bool
    """The node has no contact with a majority."""
    lost: bool
    """Messages to this client were dropped since the last pong."""
    received: int = 0
    """Bytes of data that have come from this client since its Hello."""
    patience: int = 100
    """Percent of what was agreed: how long each side waits for the other, and between signs of
    life. More while a node has many clients."""
    waits: str = ""
    """What keeps the node from taking part in a cluster: it knows no queue. "": nothing."""
    lineage: int = 0
    """Of the node's cluster, as in ClientWelcome."""


class ClientBye(Struct, frozen=True, gc=False):
    """The client is closed, and what the node holds of it ends at once."""


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
    """Of the exchange; 0 when there is none."""
    index: int
    """Of the catalog: nothing that was told before it is missing."""
    record: ExchangeRecord | None = None
    names: dict[int, str] = field(factory=dict)
    """Names of the queues that are bound."""
    rings: dict[int, tuple[int, ...]] = field(factory=dict)
    """Ids of the shards of those that are sharded."""
