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
    """A node is being closed by its user: its end is a shutdown, not a failure."""

    node: str
    store: int
    incarnation: int


class DeclareQueue(Struct, frozen=True, gc=False):
    """Make a queue; one that is there must be equal."""

    name: str
    durable: bool
    exclusive: bool
    auto_delete: bool
    declarer: str
    """Name of the declaring node."""
    owner: SessionId | None
    """The handle that an exclusive queue belongs to."""
    members: tuple[MemberId, ...]
    """The first view, all in sync; the master first. Chosen by the leader's placement."""
    arguments: str = ""
    """`policy.arguments_text`."""


class DeclareShards(Struct, frozen=True, gc=False):
    """Make a sharded queue with all its rings at once; one that exists gets those that it lacks."""

    name: str
    shards: int
    durable: bool
    declarer: str
    """Name of the declaring node."""
    members: tuple[tuple[MemberId, ...], ...]
    """The first view of each shard, all in sync; the master first. Chosen by the leader."""
    arguments: str = ""
    """Each shard has them."""


class DeleteQueue(Struct, frozen=True, gc=False):
    """Delete a queue, or a sharded one with all its rings."""

    queue_id: int
    master_epoch: int = 0
    """Deletes only in this term: a master judged that its last consumer has gone. 0: always."""
    is_drained: bool = False
    """Its master says that its outbox is empty, and will stay so. Else a queue that may have one
    is only marked: its master empties the outbox first."""


class NoteConsumers(Struct, frozen=True, gc=False):
    """An auto-delete queue has had a consumer: from now on it goes with its last one."""

    queue_id: int


class NoteOutbox(Struct, frozen=True, gc=False):
    """A queue is about to send messages to other queues: before it is deleted it does."""

    queue_id: int


class ChangeView(Struct, frozen=True, gc=False):
    """Compare-and-set: fails when the queue's epoch is not `replaces`."""

    queue_id: int
    replaces: int
    members: tuple[Member, ...]
    how: str = ""
    settled: bool = False
    """The master of a settling view says: all that was confirmed in memory is on the disks of
    these members in sync."""


class RemoveNode(Struct, frozen=True, gc=False):
    """Forget a node: its store is none of the cluster's any more, for ever."""

    node: str
    store: int = 0
    """0 in a request: the leader puts in the one that is registered."""
    force: bool = False
    """Though it has the last copy in sync of a queue: that queue is deleted."""
    voters: tuple[int, ...] = ()
    """Other stores of that name, which vote and have not registered: the leader puts them in."""


class NameCluster(Struct, frozen=True, gc=False):
    """The first leader gives the cluster its id. Later ones of these change nothing."""

    cluster: int


class SetPolicy(Struct, frozen=True, gc=False):
    """Makes the policy of this name, or replaces it."""

    name: str
    text: str
    """The rest of the policy: `policy.to_text`."""


class ClearPolicy(Struct, frozen=True, gc=False):
    """Delete a policy; none of this name is no error."""

    name: str


class Synchronise(Struct, frozen=True, gc=False):
    """Have the joining members of a queue fetch what they lack, or have them stop."""

    queue: str
    """Its name."""
    on: bool


class AcknowledgeLosses(Struct, frozen=True, gc=False):
    """Somebody knows that so many messages of a queue were lost: no warning of them any more."""

    queue: str
    """Its name, or a shard's."""
    lost: int
    """Of the queue, since it was made."""


class DeclareExchange(Struct, frozen=True, gc=False):
    """Make an exchange; one that is there must be equal."""

    name: str
    kind: str
    alternate: str = ""


class DeleteExchange(Struct, frozen=True, gc=False):
    """Delete an exchange with its bindings."""

    name: str
    if_unused: bool = False
    """Only when nothing is bound to it."""


class Bind(Struct, frozen=True, gc=False):
    """Bind a queue to an exchange; what is bound already stays so."""

    exchange: str
    queue: str
    key: str
    arguments: str
    """`routing.arguments_text`."""


class Unbind(Struct, frozen=True, gc=False):
    """End one binding, named by all that it was made with."""

    exchange: str
    queue: str
    key: str
    arguments: str


class TransferMaster(Struct, frozen=True, gc=False):
    """Changes nothing: the leader proposes it when the queue's master is that node, so that who
    asked learns of it when the node that was asked knows the view."""

    queue: str
    node: str


class Rebalance(Struct, frozen=True, gc=False):
    """As TransferMaster, for all queues: `moved` is filled in by the leader at the end."""

    moved: int = 0


class DropCopy(Struct, frozen=True, gc=False):
    """A node asks whether it may drop its copy of a queue: applied, it does. Changes nothing
    else; fails when the queue's view is of another epoch, or names the member's store."""

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
"""Commands that a client may have its entry node ask for."""
