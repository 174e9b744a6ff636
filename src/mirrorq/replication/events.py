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
"""Kinds of notices about frames that are not as they were written."""


class ViewInstalled(Struct, frozen=True, gc=False):
    view: View


class Defined(Struct, frozen=True, gc=False):
    """What the policy in force says of this queue."""

    definition: Definition


class Declared(Struct, frozen=True, gc=False):
    """What the catalog says of the queue beside its view and its policy."""

    auto_delete: bool
    was_consumed: bool
    is_ending: bool = False
    """It is being deleted."""
    has_outbox: bool = False
    """It may send messages to other queues."""
    connection: str = ""
    """Whose an exclusive queue is: see `connection_of`."""


class CourierReplied(Struct, frozen=True, gc=False):
    """The master of another queue answers this one's courier."""

    reply: SessionReply


class NeighboursChanged(Struct, frozen=True, gc=False):
    """Other queues, to which this one sends or which send to it, have other masters now, or are
    no more."""

    queues: tuple[int, ...] | None
    """None: perhaps all of them."""


class TargetLinkLost(Struct, frozen=True, gc=False):
    """Between this node and the master of another queue something may be gone."""

    target: int


class FrameDamaged(Struct, frozen=True, gc=False):
    """A frame of these sequences was read from this disk, and is not there as it was written."""

    first: int
    last: int
    text: str
    """What was found."""


class Fetching(Struct, frozen=True, gc=False):
    """Whether this copy, when it joins, may fetch the bodies that it lacks."""

    allowed: bool


class RingReceived(Struct, frozen=True, gc=False):
    sender: MemberId
    message: RingMessage


class Railed(Struct, frozen=True, gc=False):
    """Ops of the star that the rail has put on this disk, and told the master of, unless it had
    been asked to stop."""

    message: Data


class RailStopped(Struct, frozen=True, gc=False):
    """The rail has not taken the queue, or has given it back: all that it took has come before."""


class Requested(Struct, frozen=True, gc=False):
    request: SessionRequest


class LinkLost(Struct, frozen=True, gc=False):
    """The connection to a node ended or came anew: what was on the way may be gone."""

    node: str


class NodeGone(Struct, frozen=True, gc=False):
    """A node's handles are gone: all (None) or those of incarnations before `incarnation`."""

    node: str
    incarnation: int | None = None


class SessionGone(Struct, frozen=True, gc=False):
    session: SessionId


class SubscriptionExpelled(Struct, frozen=True, gc=False):
    """Somebody has disconnected one consumer."""

    session: SessionId
    consumer: int
    why: str


class LeaseChanged(Struct, frozen=True, gc=False):
    """The lease shared with the node has come, gone, or the pause has begun or ended."""


class Undelivered(Struct, frozen=True, gc=False):
    session: SessionId
    deliver: Deliver


class Tick(Struct, frozen=True, gc=False):
    pass


class WriteAll(Struct, frozen=True, gc=False):
    """The node is about to end: nothing is held back from the disk any more."""


class YieldAsked(Struct, frozen=True, gc=False):
    """The catalog's leader asks the master to hand out nothing more in this epoch."""

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
