"""What goes into an engine and what comes out: the driver's and the simulator's words.

Pure data.
"""

from __future__ import annotations

from msgspec import Struct, field

from mirrorq.protocol.commands import CatalogCommand
from mirrorq.protocol.effects import (
    Notice,
    OutboxLoad,
    OutboxLoaded,
    QueueWrite,
    RaftWrite,
    RailArm,
    RailDisarm,
)
from mirrorq.protocol.identities import SessionId
from mirrorq.protocol.ring import Data, FetchFrames
from mirrorq.protocol.sessions import SessionReply, SessionRequest

# --- Events ------------------------------------------------------------------------------


class FromPeer(Struct, frozen=True, gc=False):
    """A decoded message of another node. `incarnation` is that of its connection."""

    node: str
    incarnation: int
    message: object


class FromSession(Struct, frozen=True, gc=False):
    """A request of a handle that lives on this node."""

    request: SessionRequest


class SessionOpened(Struct, frozen=True, gc=False):
    """A handle on this node is open on a queue."""

    session: SessionId
    queue_id: int


class SessionClosed(Struct, frozen=True, gc=False):
    """It is closed: what it held goes back, and an exclusive queue of it ends."""

    session: SessionId
    queue_id: int


class LinkUp(Struct, frozen=True, gc=False):
    """The connections to another node stand: what may be gone on them is said again."""

    node: str


class LinkDown(Struct, frozen=True, gc=False):
    """They do not: it may be dead, or out of reach."""

    node: str


class Probed(Struct, frozen=True, gc=False):
    """The outcome of a probe that was asked for: a plain TCP connect to the node."""

    node: str
    refused: bool


class Ask(Struct, frozen=True, gc=False):
    """Somebody on this node wants a catalog command done; answered by Answer(token)."""

    token: int
    command: CatalogCommand


class Forget(Struct, frozen=True, gc=False):
    """Nobody waits for the answer to this token any more."""

    token: int


class Committed(Struct, frozen=True, gc=False):
    """The writes of this round, and all before, are on disk."""

    round: int


class FromRail(Struct, frozen=True, gc=False):
    """Ops that the rail has put on this disk. What it did not take comes as `FromPeer`."""

    message: Data


class RailLetGo(Struct, frozen=True, gc=False):
    """The rail has not taken this queue, or has given it back."""

    queue_id: int


class NotSent(Struct, frozen=True, gc=False):
    """A Deliver that the driver could not send in time (the lease had run out)."""

    reply: SessionReply


class Damaged(Struct, frozen=True, gc=False):
    """The driver has read a frame of a queue that is not as it was written."""

    queue_id: int
    first: int
    last: int
    text: str


class Release(Struct, frozen=True, gc=False):
    """The node is closing: give the lease up and hand nothing out any more."""


class WriteAll(Struct, frozen=True, gc=False):
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
    | FromRail
    | RailLetGo
    | NotSent
    | Damaged
    | OutboxLoaded
    | WriteAll
    | Release
)

# --- Effects -----------------------------------------------------------------------------


class Answer(Struct, frozen=True, gc=False):
    """What came of a command: `error` is "" or the name of an exception, `text` what that says."""

    token: int
    value: int
    error: str
    text: str


class MasterChange(Struct, frozen=True, gc=False):
    """For handles on this node: who serves the queue. `term` 0: the queue is deleted."""

    queue_id: int
    master_epoch: int
    available: bool


class MasterLinkLost(Struct, frozen=True, gc=False):
    """For handles on this node: what was on the way to the master may be gone."""

    queue_id: int


class EngineEffects(Struct):
    """What one round wants done, in the order of the fields."""

    send_first: list[tuple[str, object]] = field(default_factory=list)
    """Ring messages: frames leave before the own disk write (R1)."""
    replies: list[SessionReply] = field(default_factory=list)
    """Deliver and Browsed without frames; for sessions here and on other nodes. They tell of
    ops that were stable before this round, so they wait for no write of it."""
    changes: list[MasterChange | MasterLinkLost] = field(default_factory=list)
    writes: list[QueueWrite] = field(default_factory=list)
    raft: RaftWrite | None = None
    round: int = 0
    """Step Committed(round) after the commit, when there was anything to write."""
    send: list[tuple[str, object]] = field(default_factory=list)
    """After the commit: what Raft says rests on its disk."""
    reads: list[tuple[str, FetchFrames]] = field(default_factory=list)
    loads: list[OutboxLoad] = field(default_factory=list)
    """Answered by OutboxLoaded (`outbox_packing`)."""
    answers: list[Answer] = field(default_factory=list)
    notices: list[Notice] = field(default_factory=list)
    probes: list[str] = field(default_factory=list)
    contacts: dict[str, str] | None = None
    """Node -> endpoint: keep connections to just these from now on. A process whose name is not
    known or cannot be used is "?" and its endpoint. None: to whom it was before."""
    rail: list[tuple[int, RailArm | RailDisarm]] = field(default_factory=list)
    """Queues that the rail may have, or is to give back; after the step, without waiting."""
    wake_at_ms: int | None = None

    @property
    def has_rest(self) -> bool:
        """Whether there is anything to do after the commit but to send."""
        return bool(self.answers or self.notices or self.probes or self.reads or self.loads)
