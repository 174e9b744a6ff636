"""Between a client and its entry node.

A client is a process that is no node. It numbers its sessions itself; its entry node opens
a session of its own for each, puts that one's id into requests, and the client's into replies.
"""

from __future__ import annotations

from attrs import frozen

from mirrorq.messages.commands import Administrative


@frozen
class ClientHello:
    """First message of a connection, and again when the node says that it knows nothing of
    this client: what the node held of it ends. Its messages count from here on."""

    number: int
    """Grows with each hello of this client; the welcome repeats it."""
    name: str
    expiry_ms: int = 0
    """Silence after which it wants to be taken for gone, where that is longer than by the node's
    `session_expiry_ms`. Up to a minute."""


@frozen
class ClientWelcome:
    number: int
    node: str
    session_expiry_ms: int
    """The client is gone for the node when it is silent for so long."""


@frozen
class ClientUnknown:
    """The node does not know this client (any more): say hello again."""


@frozen
class ClientRefused:
    """The node does not serve this client: go to another."""

    why: str
    final: bool = False
    """Or rather not: it was disconnected by somebody, and ends."""


@frozen
class ClientOpen:
    """Open session `session` (the client's own number) on the queue with this id."""

    session: int
    queue: int


@frozen
class ClientClose:
    """The session ends: what it holds goes back."""

    session: int


@frozen
class ClientMaster:
    """Who serves the queue of this session: see session.MasterChanged."""

    session: int
    epoch: int
    available: bool


@frozen
class ClientLinkLost:
    """Between the node and the master something may be gone."""

    session: int


@frozen
class ClientClosed:
    """The session is no more: the queue is deleted, or the client's key does not allow it."""

    session: int
    reason: str
    refused: bool = False
    """It is the key."""


@frozen
class ClientDeclare:
    name: str
    durable: bool
    exclusive: bool
    auto_delete: bool
    passive: bool
    session: int = 0
    """Exclusive: the client's own number of the session that is to own the queue."""
    shards: int = 0
    """To be made with so many; 0: nothing is said of shards."""


@frozen
class ClientDelete:
    queue: int
    if_empty: bool
    if_unused: bool


@frozen
class ClientLook:
    """`what`: status (of `queue`), queues, shards (queues and their shards), nodes, policies or
    attendance; the answer's `data` is JSON."""

    what: str
    queue: int = 0


@frozen
class ClientWatch:
    """Answered when the exchange's version is not this one and the node's catalog has come to
    this index at least: `exchange_watch.Seen` as JSON."""

    exchange: str
    version: int
    index: int


@frozen
class ClientAdminister:
    command: Administrative


@frozen
class ClientRead:
    """What lives from `first` to `last` in the node's own copy, once that has applied the op
    `applied`. Answered with (first, last, delivery count) as `data`, their frames, and as
    `value` the sequence to go on from; with the ranges alone where `bytes_max` is 0."""

    queue: int
    first: int
    last: int
    bytes_max: int
    applied: int


@frozen
class ClientSeek:
    """The first sequence that lives and was published at `stamp_ms` or later, as `value`; where
    there is none, the next that will be given. From the node's own copy, as ClientRead."""

    queue: int
    stamp_ms: int
    applied: int


@frozen
class ClientDisconnect:
    """Disconnect the client of this name, on whichever node it is."""

    name: str
    why: str


@frozen
class ClientCall:
    """Answered by ClientAnswer with the same number; sent again to the next entry node."""

    number: int
    call: (
        ClientDeclare
        | ClientDelete
        | ClientLook
        | ClientAdminister
        | ClientWatch
        | ClientRead
        | ClientSeek
        | ClientDisconnect
    )


@frozen
class ClientForget:
    """Nobody waits for the answer to this call any more."""

    number: int


@frozen
class ClientAnswer:
    """`error`: "" or the name of an exception class of mirrorq.errors; `text` its message."""

    number: int
    value: int
    error: str
    text: str
    data: bytes
    frames: tuple[bytes, ...] = ()
    rings: tuple[int, ...] = ()
    """Of a declaration: ids of the shards of a sharded queue, by their number."""


@frozen
class ClientPing:
    """A sign of life, on the control connection."""

    received: int = 0
    """Bytes of data that have come from the node since the Welcome."""


@frozen
class ClientPong:
    paused: bool
    """The node has no contact with a majority."""
    lost: bool
    """Messages to this client were dropped since the last pong."""
    received: int = 0
    """Bytes of data that have come from this client since its Hello."""
    patience: int = 100
    """Percent of what was agreed: how long each side waits for the other, and between signs of
    life. More while a node has many clients."""


@frozen
class ClientBye:
    """The client is closed."""


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
    | ClientAnswer
    | ClientPong
)
