"""Control messages between nodes."""

from __future__ import annotations

from msgspec import Struct

from mirrorq.protocol.commands import CatalogCommand
from mirrorq.protocol.identities import MemberId


class Hello(Struct, frozen=True, gc=False):
    """First message on each connection, both ways, and each later sign of life. `unheard`: peers
    not heard by the sender for failure_ms (R11)."""

    node: str
    store: int
    incarnation: int
    founded: bool
    unheard: tuple[str, ...] = ()
    endpoint: str = ""
    """Endpoint of the sender, "" when the sender does not listen."""
    cluster: int = 0
    """Id of the sender's cluster, 0 while unknown: stores of other clusters are kept out."""
    alarms: tuple[str, ...] = ()
    """Names of the sender's raised alarms, for `nodes()` elsewhere."""
    broken: tuple[int, ...] = ()
    """Queues with unreadable copies on the sender's disk: the sender must not lead these."""
    spooled: tuple[int, ...] = ()
    """Number of messages in the sender's spools, and age of the oldest in seconds; () without
    messages. For `nodes()` elsewhere."""


class Directory(Struct, frozen=True, gc=False):
    """Nodes for a joiner to ask: (name, endpoint) of the cluster's nodes."""

    nodes: tuple[tuple[str, str], ...]


class Unwelcome(Struct, frozen=True, gc=False):
    """The sender keeps the receiver's store out of its cluster; `text` is the reason."""

    text: str
    is_final: bool = False
    """No wait helps: the store has left the cluster for good."""
    store: int = 0
    """The refused store: an empty store may have come to its endpoint since. 0: any."""


class LeaseRequest(Struct, frozen=True, gc=False):
    """A node asks the catalog leader for its lease. Never relayed."""

    number: int
    member: MemberId


class LeaseAnswer(Struct, frozen=True, gc=False):
    """The leader grants the lease requested under the number."""

    number: int
    term: int
    commit_index: int
    """The asker delivers only after its catalog has applied the index."""


class LeaseRelease(Struct, frozen=True, gc=False):
    """The node has stopped all deliveries: its masters may be replaced at once."""

    member: MemberId
    number: int = 0
    """Newest released request. A release is void after a grant to a later request."""


class CatalogRequest(Struct, frozen=True, gc=False):
    """Ask the leader to propose `command` (members of DeclareQueue are filled in there)."""

    number: int
    member: MemberId
    command: CatalogCommand
    oldest: int = 0
    """Number of the member's oldest request without an answer; 0: unknown."""


class CatalogAnswer(Struct, frozen=True, gc=False):
    """`error`: "" or the name of an exception class of mirrorq.errors; `text` is its message.
    `value`: DeclareQueue: the queue id. `retry`: not the leader, or no majority now."""

    number: int
    value: int
    error: str = ""
    text: str = ""
    retry: bool = False


class Yield(Struct, frozen=True, gc=False):
    """The leader asks a living master to stop the deliveries of a queue in the epoch."""

    queue_id: int
    epoch: int


class Yielded(Struct, frozen=True, gc=False):
    """The master's promise: no deliveries of the queue until a newer view is installed. Repeated
    until then."""

    queue_id: int
    epoch: int
    member: MemberId


class QueueReport(Struct, frozen=True, gc=False):
    """A master reports its queue's counts to all nodes, for `status()` there."""

    queue_id: int
    master_epoch: int
    ready: int
    unacknowledged: int
    consumers: int
    blocked_by: str = ""
    lost: int = 0
    """Messages lost by unclean promotions, as far as known."""
    delayed: int = 0
    published: int = 0
    """Here and below: totals since the master has its copy, for rates."""
    delivered: int = 0
    acked: int = 0
    next_sequence: int = 0
    """Sequence of the next message; 0: unknown."""
    paused: bool = False
    """The queue hands out nothing."""


class SyncReport(Struct, frozen=True, gc=False):
    """A joining member reports its progress to all nodes, for `status()` there."""

    queue_id: int
    messages: int
    """Live messages in its applied state."""
    messages_left: int
    """Live messages not on its disk."""
    bytes_left: int
    """Bytes of the missing frames, judged by received frames; 0 before the first."""
    ms_left: int
    """At the pace of the last seconds; 0 = not known."""


class NodeQuestion(Struct, frozen=True, gc=False):
    """Asks every other node for its clients and consumers, or to disconnect one (`node_queries`).
    NodeAnswer has the same number; unknown questions are answered too."""

    number: int
    what: str
    subject: str = ""
    why: str = ""


class NodeAnswer(Struct, frozen=True, gc=False):
    """Answer to NodeQuestion, with its number: the count of finds, and the result as bytes."""

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
