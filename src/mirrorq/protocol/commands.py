"""Commands of the catalog, replicated by Raft."""

from __future__ import annotations

from msgspec import Struct

from mirrorq.protocol.identities import MemberId, SessionId
from mirrorq.protocol.views import Member


class RegisterNode(Struct, frozen=True, gc=False):
    """A node came up. An older incarnation of the same (node, store) is known dead."""

    node: str
    store: int
    incarnation: int
    endpoint: str
    witness: bool


class NodeStopped(Struct, frozen=True, gc=False):
    """The user closes a node: its end is a shutdown, not a failure."""

    node: str
    store: int
    incarnation: int


class DeclareQueue(Struct, frozen=True, gc=False):
    """Make a queue; an existing queue must be equal."""

    name: str
    durable: bool
    exclusive: bool
    auto_delete: bool
    declarer: str
    """Name of the declaring node."""
    owner: SessionId | None
    """The handle which owns an exclusive queue."""
    members: tuple[MemberId, ...]
    """The first view, all in sync; the master first. Chosen by the leader's placement."""
    arguments: str = ""
    """`policy.arguments_text`."""


class DeclareShards(Struct, frozen=True, gc=False):
    """Make a sharded queue with all its rings at once, or an existing queue's lacking rings."""

    name: str
    shards: int
    durable: bool
    declarer: str
    """Name of the declaring node."""
    members: tuple[tuple[MemberId, ...], ...]
    """The first view of each shard, all in sync; the master first. Chosen by the leader."""
    arguments: str = ""
    """Arguments of each shard."""


class DeleteQueue(Struct, frozen=True, gc=False):
    """Delete a queue, or a sharded queue with all its rings."""

    queue_id: int
    master_epoch: int = 0
    """Delete only in this term: a master judged its last consumer as gone. 0: always."""
    is_drained: bool = False
    """The master reports the outbox as empty for good. Otherwise a queue with a possible outbox is
    only marked: its master empties the outbox first."""


class NoteConsumers(Struct, frozen=True, gc=False):
    """An auto-delete queue has had a consumer: the queue ends with its last consumer."""

    queue_id: int


class NoteOutbox(Struct, frozen=True, gc=False):
    """A queue is about to send messages to other queues; a deletion must wait for the outbox."""

    queue_id: int


class ChangeView(Struct, frozen=True, gc=False):
    """Compare-and-set: fails when the queue's epoch is not `replaces`."""

    queue_id: int
    replaces: int
    members: tuple[Member, ...]
    how: str = ""
    settled: bool = False
    """The master of a settling view reports: all messages confirmed in memory are on the disks of
    the members in sync."""


class RemoveNode(Struct, frozen=True, gc=False):
    """Forget a node: its store never belongs to the cluster again."""

    node: str
    store: int = 0
    """0 in a request: the leader fills in the registered store."""
    force: bool = False
    """Delete queues with their last copy in sync on the node, instead of a refusal."""
    voters: tuple[int, ...] = ()
    """Further stores of the name with votes and no registration, filled in by the leader."""


class NameCluster(Struct, frozen=True, gc=False):
    """The first leader gives the cluster its id. Later commands change nothing."""

    cluster: int


class SetPolicy(Struct, frozen=True, gc=False):
    """Make the policy with the name, or replace an old policy."""

    name: str
    text: str
    """The rest of the policy: `policy.to_text`."""


class ClearPolicy(Struct, frozen=True, gc=False):
    """Delete a policy; an unknown name is no error."""

    name: str


class Synchronise(Struct, frozen=True, gc=False):
    """Let the joining members of a queue fetch missing messages, or stop the fetching."""

    queue: str
    """Name of the queue."""
    on: bool


class AcknowledgeLosses(Struct, frozen=True, gc=False):
    """An operator knows of so many lost messages of a queue: no further warning."""

    queue: str
    """Name of the queue, or of a shard."""
    lost: int
    """Lost messages of the queue, since its declaration."""


class DeclareExchange(Struct, frozen=True, gc=False):
    """Make an exchange; an existing exchange must be equal."""

    name: str
    kind: str
    alternate: str = ""


class DeleteExchange(Struct, frozen=True, gc=False):
    """Delete an exchange with its bindings."""

    name: str
    if_unused: bool = False
    """Only without a binding."""


class Bind(Struct, frozen=True, gc=False):
    """Bind a queue to an exchange; an existing binding stays."""

    exchange: str
    queue: str
    key: str
    arguments: str
    """`routing.arguments_text`."""


class Unbind(Struct, frozen=True, gc=False):
    """Remove one binding, named by all values of its Bind."""

    exchange: str
    queue: str
    key: str
    arguments: str


class TransferMaster(Struct, frozen=True, gc=False):
    """Changes nothing. The leader proposes the command when the queue's master is the node, so the
    asker gets the answer when its node knows the view."""

    queue: str
    node: str


class Rebalance(Struct, frozen=True, gc=False):
    """As TransferMaster, for all queues: `moved` is filled in by the leader at the end."""

    moved: int = 0


class DropCopy(Struct, frozen=True, gc=False):
    """Ask to drop a node's copy of a queue: the node drops the copy after the commit. Changes
    nothing else; fails when the queue's view has another epoch, or the member's store."""

    queue_id: int
    epoch: int
    member: MemberId


CatalogCommand = (
    RegisterNode
    | NodeStopped
    | DeclareQueue
    | DeclareShards
    | DeleteQueue
    | NoteConsumers
    | NoteOutbox
    | ChangeView
    | DropCopy
    | RemoveNode
    | NameCluster
    | SetPolicy
    | ClearPolicy
    | Synchronise
    | AcknowledgeLosses
    | DeclareExchange
    | DeleteExchange
    | Bind
    | Unbind
    | TransferMaster
    | Rebalance
)

Administrative = (
    SetPolicy
    | ClearPolicy
    | TransferMaster
    | Rebalance
    | RemoveNode
    | Synchronise
    | AcknowledgeLosses
    | DeclareExchange
    | DeleteExchange
    | Bind
    | Unbind
)
"""Commands which a client may request through its entry node."""
