"""Inputs and outputs of an engine, exchanged with the driver or the simulator.

Pure data.
"""

from __future__ import annotations

from msgspec import Struct, field

from mirrorq.protocol import effects
from mirrorq.protocol.commands import CatalogCommand
from mirrorq.protocol.identities import SessionId
from mirrorq.protocol.ring import FetchFrames
from mirrorq.protocol.sessions import SessionReply, SessionRequest
from mirrorq.replication.events import ReplicaEvent

# --- Events ------------------------------------------------------------------------------


class FromPeer(Struct, frozen=True, gc=False):
    """A decoded message of another node. `incarnation` belongs to the message's connection."""

    node: str
    incarnation: int
    message: object


class FromSession(Struct, frozen=True, gc=False):
    """A request of a handle on the local node."""

    request: SessionRequest


class SessionOpened(Struct, frozen=True, gc=False):
    """A handle on the local node has opened a queue."""

    session: SessionId
    queue_id: int


class SessionClosed(Struct, frozen=True, gc=False):
    """The handle is closed. Its deliveries are released; its exclusive queue ends."""

    session: SessionId
    queue_id: int


class LinkUp(Struct, frozen=True, gc=False):
    """The connections to another node are up: messages that may have been lost are sent again."""

    node: str


class LinkDown(Struct, frozen=True, gc=False):
    """The connections to another node are down: the node may be dead or unreachable."""

    node: str


class Probed(Struct, frozen=True, gc=False):
    """The outcome of a requested probe: a plain TCP connect to the node."""

    node: str
    refused: bool


class Ask(Struct, frozen=True, gc=False):
    """A user of the node requests a catalog command. `Answer` with the same token replies."""

    token: int
    command: CatalogCommand


class Forget(Struct, frozen=True, gc=False):
    """The caller of a token has stopped waiting for the answer."""

    token: int


class Committed(Struct, frozen=True, gc=False):
    """The writes of a round, and of all rounds before, are on disk."""

    round: int


class ToCopy(Struct, frozen=True, gc=False):
    """An event of the driver for the copy of a queue: a delivery that was not sent (its lease had
    run out), a damaged frame, ops of the rail or the rail's end, messages for another queue."""

    queue_id: int
    event: ReplicaEvent


class Release(Struct, frozen=True, gc=False):
    """The node is closing: release the lease and deliver nothing more."""


class WriteAll(Struct, frozen=True, gc=False):
    """The node's last round: all deferred writes go to the disk."""


EngineEvent = (
    FromPeer
    | FromSession
    | SessionOpened
    | SessionClosed
    | LinkUp
    | LinkDown
    | Probed
    | Ask
    | Forget
    | Committed
    | ToCopy
    | WriteAll
    | Release
)

# --- Effects -----------------------------------------------------------------------------


class Answer(Struct, frozen=True, gc=False):
    """Outcome of a command. `error`: "" or the name of an exception; `text`: its message."""

    token: int
    value: int
    error: str
    text: str


class MasterChange(Struct, frozen=True, gc=False):
    """For handles on the local node: the queue's master. `master_epoch` 0: the queue is deleted."""

    queue_id: int
    master_epoch: int
    available: bool
    sessions: tuple[SessionId, ...] = ()
    """New handles: the others know already. Empty: all handles of the queue."""


class MasterLinkLost(Struct, frozen=True, gc=False):
    """For handles on the local node: messages on the way to the master may be lost."""

    queue_id: int


class EngineEffects(Struct):
    """The effects of one round, in the order in which the driver carries them out."""

    send_first: list[tuple[str, object]] = field(default_factory=list)
    """Ring messages: frames leave before the local disk write (R1)."""
    replies: list[SessionReply] = field(default_factory=list)
    """Deliver and Browsed without frames, for sessions here and on other nodes. Their ops were
    stable before the round, so they do not wait for its writes."""
    changes: list[MasterChange | MasterLinkLost] = field(default_factory=list)
    writes: list[effects.QueueWrite] = field(default_factory=list)
    raft: effects.RaftWrite | None = None
    round: int = 0
    """The driver posts Committed(round) after the commit; 0: there is nothing to write."""
    send: list[tuple[str, object]] = field(default_factory=list)
    """Sent after the commit: Raft's messages rely on Raft's state on disk."""
    reads: list[tuple[str, FetchFrames]] = field(default_factory=list)
    loads: list[effects.OutboxLoad] = field(default_factory=list)
    """Each is answered by OutboxLoaded, for the copy (`outbox_packing`)."""
    answers: list[Answer] = field(default_factory=list)
    notices: list[effects.Notice] = field(default_factory=list)
    probes: list[str] = field(default_factory=list)
    contacts: dict[str, str] | None = None
    """Node -> endpoint: the complete set of connections from now on. The key of a process without a
    usable name is "?" and its endpoint. None: no change."""
    rail: list[tuple[int, effects.RailArm | effects.RailDisarm]] = field(default_factory=list)
    """Queues that the rail takes or gives back; carried out after the step, without waiting."""
    wake_at_ms: int | None = None

    @property
    def has_rest(self) -> bool:
        """Whether the driver has more to do after the commit than to send `send`."""
        return bool(self.answers or self.notices or self.probes or self.reads or self.loads)
