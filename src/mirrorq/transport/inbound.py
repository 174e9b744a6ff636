"""Results of `poll`."""

from __future__ import annotations

from attrs import field, frozen
from msgspec import Struct

CONTROL = 0
"""Signs of life, leases, the catalog: small messages which must not wait."""
DATA = 1
"""Frames, ring messages and sessions."""
RAIL = 2
"""Ops for a node's rail, and the rail's marks: see `wire.rail`. Only with `Config.rail`."""
PEER_MARK = b"N"
"""First byte of a peer's routing ids. A client's ids begin with any other byte; libzmq's own ids
begin with zero."""
CLIENT_MARK = b"C"
CLIENT_CONTROL_MARK = b"c"
"""First bytes of a client's routing ids, for its data and its control connection; the rest of the
ids is equal."""

Parts = list[bytes]
"""A message encoded by `wire.messages`."""


class PeerMessage(Struct, frozen=True, gc=False):
    """A message from another node, on one of its two connections. `incarnation` is the sender's
    incarnation."""

    peer: str
    incarnation: int
    channel: int
    parts: Parts


class RailMark(Struct, frozen=True, gc=False):
    """Another node's rail has the ops sent for a queue on disk, up to `lsn`."""

    peer: str
    incarnation: int
    queue_id: int
    epoch: int
    lsn: int


@frozen
class ClientMessage:
    """A message from a client process. `identity` is the address for `reply`."""

    identity: bytes
    parts: Parts
    channel: int = DATA
    key: str = ""
    """Public key of the sender, "" without security."""
    descriptor: int = field(default=-1, eq=False)
    """Descriptor of the connection, for `Transport.address_of`; below 0: not known."""


class ServerMessage(Struct, frozen=True, gc=False):
    """A message to a `ClientSocket`, from its connected node."""

    parts: Parts
    channel: int = DATA


class Connected(Struct, frozen=True, gc=False):
    """Both connections to the peer (a client: to the endpoint) stand."""

    peer: str


class Disconnected(Struct, frozen=True, gc=False):
    """A connection to the peer ended. Messages in flight may be lost."""

    peer: str


class SendLost(Struct, frozen=True, gc=False):
    """Messages to the connected peer were dropped, because its queue is full."""

    peer: str
    channel: int
    count: int
    size: int = 0
    """Bytes of their parts."""


class ReplyLost(Struct, frozen=True, gc=False):
    """Replies to the client were dropped. `gone`: the client is no longer connected."""

    identity: bytes
    count: int
    gone: bool
    size: int = 0
    """Bytes of their parts."""


class TooLarge(Struct, frozen=True, gc=False):
    """A reply to a client was not sent: its largest part exceeds the client's limit."""

    identity: bytes
    size: int


class ProbeResult(Struct, frozen=True, gc=False):
    """`refused`: no process listens at the peer's endpoint, though its host answers."""

    peer: str
    refused: bool


class HandshakeRefused(Struct, frozen=True, gc=False):
    """A handshake failed. `who`: the tried peer (a client: the endpoint), or the address of the
    connecting side. `by_key`: a key was not known; else the cause is uncertain."""

    who: str
    why: str
    by_key: bool = True


class Garbage(Struct, frozen=True, gc=False):
    """Bytes which are no message of mirrorq. `source` names the sender as far as known."""

    source: str
    why: str


Inbound = (
    PeerMessage
    | RailMark
    | ClientMessage
    | Connected
    | Disconnected
    | SendLost
    | ReplyLost
    | TooLarge
    | ProbeResult
    | HandshakeRefused
    | Garbage
)
ClientInbound = ServerMessage | Connected | Disconnected | SendLost | HandshakeRefused | Garbage
