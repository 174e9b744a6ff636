"""Events of a replica."""

from __future__ import annotations

from msgspec import Struct

from mirrorq.protocol.effects import OutboxLoaded, Persisted
from mirrorq.protocol.identities import MemberId, SessionId
from mirrorq.protocol.policy import Definition
from mirrorq.protocol.ring import Data, RingMessage
from mirrorq.protocol.sessions import Deliver, SessionReply, SessionRequest
from mirrorq.protocol.views import View

DAMAGE = "damage"
MENDED = "mended"
SET_ASIDE = "set aside"
"""Kinds of notices about damaged frames."""


class ViewInstalled(Struct, frozen=True, gc=False):
    view: View


class Defined(Struct, frozen=True, gc=False):
    """Definition of the policy in force for this queue."""

    definition: Definition


class Declared(Struct, frozen=True, gc=False):
    """Declaration of the queue in the catalog, without its view and its policy."""

    auto_delete: bool
    was_consumed: bool
    is_ending: bool = False
    """True while the queue is being deleted."""
    has_outbox: bool = False
    """True if the queue may send messages to other queues."""
    connection: str = ""
    """Owner of an exclusive queue (see `connection_of`), or ""."""


class CourierReplied(Struct, frozen=True, gc=False):
    """Reply of another queue's master to this queue's courier."""

    reply: SessionReply


class NeighboursChanged(Struct, frozen=True, gc=False):
    """Queues that send to this queue, or receive from it, have other masters now, or are
    deleted."""

    queues: tuple[int, ...] | None
    """None: perhaps all of them."""


class TargetLinkLost(Struct, frozen=True, gc=False):
    """Messages to or from the master of another queue may be lost."""

    target: int


class FrameDamaged(Struct, frozen=True, gc=False):
    """A frame on this disk, with the sequences `first` to `last`, is damaged."""

    first: int
    last: int
    text: str
    """Description of the damage."""


class Fetching(Struct, frozen=True, gc=False):
    """Permission for a joining copy to fetch missing bodies."""

    allowed: bool


class RingReceived(Struct, frozen=True, gc=False):
    sender: MemberId
    message: RingMessage


class Railed(Struct, frozen=True, gc=False):
    """Ops of the star that the rail has taken: to this disk, or to memory in a `replicated` view.
    The master knows of them, unless the rail had been asked to stop."""

    message: Data


class RailStopped(Struct, frozen=True, gc=False):
    """The rail has refused the queue, or has given the queue back after its last ops."""


class Requested(Struct, frozen=True, gc=False):
    request: SessionRequest


class LinkLost(Struct, frozen=True, gc=False):
    """The connection to a node ended or came back: messages on the way may be lost."""

    node: str


class NodeGone(Struct, frozen=True, gc=False):
    """Handles of a node are gone: all (None), or those of incarnations below `incarnation`."""

    node: str
    incarnation: int | None = None


class SessionGone(Struct, frozen=True, gc=False):
    session: SessionId


class SubscriptionExpelled(Struct, frozen=True, gc=False):
    """An operator has disconnected a consumer."""

    session: SessionId
    consumer: int
    why: str


class LeaseChanged(Struct, frozen=True, gc=False):
    """The node's lease, shared by its queues, has changed, or a pause has begun or ended."""


class Undelivered(Struct, frozen=True, gc=False):
    session: SessionId
    deliver: Deliver


class Tick(Struct, frozen=True, gc=False):
    pass


class WriteAll(Struct, frozen=True, gc=False):
    """The node is about to end: all writes go to the disk at once."""


class YieldAsked(Struct, frozen=True, gc=False):
    """The catalog's leader asks the master to deliver nothing more in this epoch."""

    epoch: int


ReplicaEvent = (
    ViewInstalled
    | Defined
    | Declared
    | Fetching
    | FrameDamaged
    | RingReceived
    | Railed
    | RailStopped
    | Requested
    | Persisted
    | LinkLost
    | NodeGone
    | SessionGone
    | SubscriptionExpelled
    | LeaseChanged
    | Undelivered
    | YieldAsked
    | CourierReplied
    | OutboxLoaded
    | NeighboursChanged
    | TargetLinkLost
    | WriteAll
    | Tick
)
