"""What `poll` returns."""

from __future__ import annotations

from attrs import field, frozen
from msgspec import Struct

CONTROL = 0
"""Signs of life, leases, the catalog: small messages that must not wait."""
DATA = 1
"""Frames, ring messages and sessions."""
RAIL = 2
"""Ops that a node's rail takes, and its marks: see `wire.rail`. Only with `Config.rail`."""
PEER_MARK = b"N"
"""First byte of a peer's routing ids. A client's may begin with anything else; those that
libzmq makes up begin with zero."""
CLIENT_MARK = b"C"
CLIENT_CONTROL_MARK = b"c"
"""First bytes of a client's routing ids, of its data connection and of its control connection; the
rest is equal."""

Parts = list[bytes]
"""One message as `wire.messages` encodes it."""


class PeerMessage(Struct, frozen=True, gc=False):
    """A message from another node, on one of its two connections. `incarnation` says from which of
    its incarnations."""

    peer: str
    incarnation: int
    channel: int
    parts: Parts


class RailMark(Struct, frozen=True, gc=False):
    """Another node's rail has on disk what this node has sent it of a queue, up to `lsn`."""

    peer: str
    incarnation: int
    queue_id: int
    epoch: int
    lsn: int


@frozen
class ClientMessage:
    """From a process that is no node. `identity` is where `reply` sends."""

    identity: bytes
    parts: Parts
    channel: int = DATA
    key: str = ""
    """Public key of the sender, "" without security."""
    descriptor: int = field(default=-1, eq=False)
    """Of the connection, for `Transport.address_of`; below 0: not known."""


class ServerMessage(Struct, frozen=True, gc=False):
    """To a `ClientSocket`, from the node that it is connected to."""

    parts: Parts
    channel: int = DATA


class Connected(Struct, frozen=True, gc=False):
    """Both connections to the peer (a client: to this endpoint) stand."""

    peer: str


class Disconnected(Struct, frozen=True, gc=False):
    """A connection to the peer ended. Messages in flight may be lost."""

    peer: str


class SendLost(Struct, frozen=True, gc=False):
    """Messages to this peer were dropped: its connection is gone or its queue is full."""

    peer: str
    channel: int
    count: int
    size: int = 0
    """Bytes of their parts."""


class ReplyLost(Struct, frozen=True, gc=False):
    """Replies to this client were dropped. `gone`: it is not connected any more."""

    identity: bytes
    count: int
    gone: bool
    size: int = 0
    """Bytes of their parts."""


class TooLarge(Struct, frozen=True, gc=False):
    """A reply to a client was not sent: its largest part has more bytes than a client takes."""

    identity: bytes
    size: int


class ProbeResult(Struct, frozen=True, gc=False):
    """`refused`: nothing listens at the peer's endpoint, though its host answers."""

    peer: str
    refused: bool


class HandshakeRefused(Struct, frozen=True, gc=False):
    """A handshake came to nothing. `who`: the peer (a client: the endpoint) that was tried, or
    the address of who tried. `by_key`: a key was not known; else it is not certain why."""

    who: str
    why: str
    by_key: bool = True


class Garbage(Struct, frozen=True, gc=False):
    """Bytes that are no message of mirrorq. `source` names the sender as far as known."""

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
