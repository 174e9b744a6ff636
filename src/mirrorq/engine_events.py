"""What goes into an engine and what comes out: the driver's and the simulator's words.

Pure data.
"""

from __future__ import annotations

from attrs import define, field, frozen

from mirrorq.courier import OutboxLoad, OutboxLoaded
from mirrorq.effects import QueueWrite, RaftWrite
from mirrorq.messages import (
    CatalogCommand,
    FetchFrames,
    SessionId,
    SessionReply,
    SessionRequest,
)
from mirrorq.notice import Notice

# --- Events ------------------------------------------------------------------------------


@frozen
class FromPeer:
    """A decoded message of another node. `incarnation` is that of its connection."""

    node: str
    incarnation: int
    message: object


@frozen
class FromSession:
    """A request of a handle that lives on this node."""

    request: SessionRequest


@frozen
class SessionOpened:
    session: SessionId
    queue_id: int


@frozen
class SessionClosed:
    session: SessionId
    queue_id: int


@frozen
class LinkUp:
    node: str


@frozen
class LinkDown:
    node: str


@frozen
class Probed:
    """The outcome of a probe that was asked for: a plain TCP connect to the node."""

    node: str
    refused: bool


@frozen
class Ask:
    """Somebody on this node wants a catalog command done; answered by Answer(token)."""

    token: int
    command: CatalogCommand


@frozen
class Forget:
    """Nobody waits for the answer to this token any more."""

    token: int


@frozen
class Committed:
    """The writes of this round, and all before, are on disk."""

    round: int


@frozen
class NotSent:
    """A Deliver that the driver could not send in time (the lease had run out)."""

    reply: SessionReply


@frozen
class Release:
    """The node is closing: give the lease up and hand nothing out any more."""


@frozen
class WriteAll:
    """The node's last round: what is written behind goes to the disk in it."""


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
    | NotSent
    | OutboxLoaded
    | WriteAll
    | Release
)

# --- Effects -----------------------------------------------------------------------------


@frozen
class Answer:
    token: int
    value: int
    error: str
    text: str


@frozen
class MasterChange:
    """For handles on this node: who serves the queue. `reign` 0: the queue is deleted."""

    queue_id: int
    reign: int
    available: bool


@frozen
class MasterLinkLost:
    """For handles on this node: what was on the way to the master may be gone."""

    queue_id: int


@define
class EngineEffects:
    """What one round wants done, in the order of the fields."""

    send_first: list[tuple[str, object]] = field(factory=list)
    """Ring messages: frames leave before the own disk write (R1)."""
    replies: list[SessionReply] = field(factory=list)
    """Deliver and Browsed without frames; for sessions here and on other nodes. They tell of
    ops that were stable before this round, so they wait for no write of it."""
    changes: list[MasterChange | MasterLinkLost] = field(factory=list)
    writes: list[QueueWrite] = field(factory=list)
    raft: RaftWrite | None = None
    round: int = 0
    """Step Committed(round) after the commit, when there was anything to write."""
    send: list[tuple[str, object]] = field(factory=list)
    """After the commit: what Raft says rests on its disk."""
    reads: list[tuple[str, FetchFrames]] = field(factory=list)
    loads: list[OutboxLoad] = field(factory=list)
    """Answered by OutboxLoaded (`outgoing`)."""
    answers: list[Answer] = field(factory=list)
    notices: list[Notice] = field(factory=list)
    probes: list[str] = field(factory=list)
    connects: list[tuple[str, str]] = field(factory=list)
    """(node, endpoint): keep a connection to it from now on, or to another endpoint. A process
    whose name is not known or cannot be used is "?" and its endpoint."""
    disconnects: list[str] = field(factory=list)
    """Close the connection to these, named as in `connects`."""
    wake_at_ms: int | None = None

    @property
    def has_rest(self) -> bool:
        """Whether there is anything to do after the commit but to send."""
        is_local = self.answers or self.notices or self.probes
        return bool(is_local or self.reads or self.loads)
