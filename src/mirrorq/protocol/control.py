"""Control messages between nodes."""

from __future__ import annotations

from msgspec import Struct

from mirrorq.protocol.commands import CatalogCommand
from mirrorq.protocol.identities import MemberId


class Hello(Struct, frozen=True, gc=False):
    """First message on each connection, both ways, and each sign of life after it.

    `unheard`: peers that this node has not heard for failure_ms (R11)."""

    node: str
    store: int
    incarnation: int
    founded: bool
    unheard: tuple[str, ...] = ()
    endpoint: str = ""
    """Where the sender is reached, "" when it listens nowhere."""
    cluster: int = 0
    """Id of its cluster, 0 while it knows none: stores of other clusters are kept out."""
    alarms: tuple[str, ...] = ()
    """Names of those that are raised at the sender, for `nodes()` elsewhere."""
    broken: tuple[int, ...] = ()
    """Queues whose copies on the sender's disk cannot be read: it must lead none of them."""
    spooled: tuple[int, ...] = ()
    """Messages that wait in the sender's spools, and how long the oldest has, in seconds; () for
    none. For `nodes()` elsewhere."""


class Directory(Struct, frozen=True, gc=False):
    """Who asks to join learns whom else to ask: (name, endpoint) of the cluster's nodes."""

    nodes: tuple[tuple[str, str], ...]


class Unwelcome(Struct, frozen=True, gc=False):
    """The sender keeps the receiver's store out of its cluster, and why."""

    text: str
    is_final: bool = False
    """No wait changes it: the store is no part of the cluster any more."""
    store: int = 0
    """The store that is kept out: an empty one may have come to its endpoint since. 0: any."""


class LeaseRequest(Struct, frozen=True, gc=False):
    """A node asks the catalog leader for its lease. Relayed by nobody here."""

    number: int
    member: MemberId


class LeaseAnswer(Struct, frozen=True, gc=False):
    """The leader grants the lease that was asked for under this number."""

    number: int
    term: int
    commit_index: int
    """The asker hands out only when its catalog has applied this index."""


class LeaseRelease(Struct, frozen=True, gc=False):
    """The node hands nothing out any more: its masters may be replaced at once."""

    member: MemberId
    number: int = 0
    """Newest request it gives up. A release that comes after a grant to a later one is void."""


class CatalogRequest(Struct, frozen=True, gc=False):
    """Ask the leader to propose `command` (members of DeclareQueue are filled in there)."""

    number: int
    member: MemberId
    command: CatalogCommand
    oldest: int = 0
    """Number of the oldest request that the member still waits for; 0: it does not say."""


class CatalogAnswer(Struct, frozen=True, gc=False):
    """`error`: "" or the name of an exception class of mirrorq.errors; `text` its message.
    `value`: DeclareQueue: the queue id. `retry`: not the leader, or no majority now."""

    number: int
    value: int
    error: str = ""
    text: str = ""
    retry: bool = False


class Yield(Struct, frozen=True, gc=False):
    """The leader asks a living master to hand out nothing more of a queue in this epoch."""

    queue_id: int
    epoch: int


class Yielded(Struct, frozen=True, gc=False):
    """The master's promise: until it has installed a newer view it hands out nothing of the
    queue. Repeated until then."""

    queue_id: int
    epoch: int
    member: MemberId


class QueueReport(Struct, frozen=True, gc=False):
    """A master tells all nodes what its queue counts, for `status()` there."""

    queue_id: int
    master_epoch: int
    ready: int
    unacknowledged: int
    consumers: int
    blocked_by: str = ""
    lost: int = 0
    """Messages that unclean promotions have lost, as far as known."""
    delayed: int = 0
    published: int = 0
    """This and what follows: totals since the master has its copy, for rates."""
    delivered: int = 0
    acked: int = 0
    next_sequence: int = 0
    """Of its next message; 0: it does not say."""
    paused: bool = False
    """The queue hands out nothing."""


class SyncReport(Struct, frozen=True, gc=False):
    """A joining member tells all nodes how far it is, for `status()` there."""

    queue_id: int
    messages: int
    """Live in its applied state."""
    messages_left: int
    """Of these not on its disk."""
    bytes_left: int
    """Of their frames, judged by those that have come; 0 before the first one."""
    ms_left: int
    """At the pace of the last seconds; 0 = not known."""


class NodeQuestion(Struct, frozen=True, gc=False):
    """Asked of every other node for somebody: who uses it, or to disconnect a client. See
    `node_queries`. Answered by NodeAnswer with the same number; one that is not known too."""

    number: int
    what: str
    subject: str = ""
    why: str = ""


class NodeAnswer(Struct, frozen=True, gc=False):
    """Answer to NodeQuestion, with its number: how many were found, and what was asked for, as
    bytes."""

    number: int
    count: int
    data: bytes


ControlMessage = (
    QueueReport
    | SyncReport
    | Hello
    | Directory
    | Unwelcome
    | LeaseRequest
    | LeaseAnswer
    | LeaseRelease
    | CatalogRequest
    | CatalogAnswer
    | Yield
    | Yielded
    | NodeQuestion
    | NodeAnswer
)
