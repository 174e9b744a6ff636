"""Records of nodes and queues in the catalog, results of commands, and texts of refusals."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import frozen

from mirrorq.protocol.commands import DeclareQueue
from mirrorq.protocol.identities import MemberId, SessionId, StoreId
from mirrorq.protocol.policy import (
    CLIENT_HANDLE,
    CONNECTION,
    arguments_of,
    client_handle_of,
    owner_of,
)
from mirrorq.protocol.views import View

NAMED_MAX = 20
"""Limit of queue names in a refusal."""


@frozen
class NodeRecord:
    """The newest known incarnation of a node name."""

    name: str
    store: int
    incarnation: int
    endpoint: str
    witness: bool
    is_stopped: bool = False
    """The user closed the incarnation: its end was no failure."""

    @property
    def member(self) -> MemberId:
        return MemberId(self.name, self.store, self.incarnation)


@frozen
class QueueRecord:
    """One queue. Its master is the first member of the view, in the incarnation given there."""

    id: int
    name: str
    durable: bool
    exclusive: bool
    auto_delete: bool
    declarer: str
    owner: SessionId | None
    view: View
    owner_incarnation: MemberId | None = None
    """Node incarnation of an exclusive queue's owner: the queue ends with the incarnation."""
    was_consumed: bool = False
    """An auto-delete queue has had a consumer."""
    told: tuple[tuple[MemberId, bool], ...] = ()
    """Joining members told to synchronise (True), or to stop (False)."""
    has_outbox: bool = False
    """The queue may have, or have had, messages on their way to other queues."""
    is_ending: bool = False
    """The queue is being deleted: the master first empties the outbox."""
    arguments: str = ""
    """Arguments of the declaration: `policy.arguments_text`."""
    losses_known: int = 0
    """Messages lost by unclean promotions and acknowledged by a user."""

    @property
    def connection(self) -> str:
        """Connection of an exclusive queue's owner, "" for any other queue."""
        return owner_of(self.arguments)

    @property
    def client_handle(self) -> str:
        """The client's handle which owns an exclusive queue, "" for any other queue."""
        return client_handle_of(self.arguments)


@frozen
class CatalogResult:
    """Result of one command. The same on every node."""

    value: int = 0
    """DeclareQueue: the queue id. ChangeView, TransferMaster: the epoch. Synchronise: number of
    members told. Rebalance: number of masters moved. Command of an exchange: the version. Else 0.
    """
    error: str = ""
    """Name of an exception class of mirrorq.errors, "" when the command took effect."""
    text: str = ""
    queues: tuple[int, ...] = ()
    """Ids of queues made, changed or deleted."""
    redefines: bool = False
    """Something else may hold for any queue: policies have changed."""
    nodes: tuple[str, ...] = ()
    """Names of nodes added, changed or removed."""
    is_repeat: bool = False
    """The request was applied before, or is of the past: nothing changed."""


def is_on(member: MemberId, store: StoreId) -> bool:
    """Return true if the member has the store, in any incarnation."""
    return member.node == store.node and member.store == store.store


def refused(text: str) -> CatalogResult:
    """Return the result of a command which does not fit the present state."""
    return CatalogResult(error="PreconditionFailed", text=text)


def no_queue(queue_id: int) -> CatalogResult:
    """Return the result of a command for a deleted queue."""
    return CatalogResult(
        error="QueueNotFound", text=f"no queue has the id {queue_id}: it was deleted or never made"
    )


def set_back_text(node: str) -> str:
    """Return the refusal for a node with an earlier copy of its own store."""
    return (
        f"the store of node {node} is an earlier copy of itself: this cluster knows a later start "
        "of it, and what was confirmed since is not in the copy. Start the node with an empty "
        "path, and the others send it all they have; keep the old directory if its messages matter"
    )


def past_text(node: str) -> str:
    """Return the refusal for a forgotten node."""
    return (
        f"the store of node {node} does not belong to this cluster any more: it was forgotten. "
        "Start it with an empty path to join again, and keep the old directory if its messages "
        "matter"
    )


def last_copy_text(node: str, queues: Sequence[QueueRecord]) -> str:
    """Return the refusal to forget a node without which queues would be lost."""
    names = ", ".join(repr(queue.name) for queue in queues[:NAMED_MAX])
    more = f" and {len(queues) - NAMED_MAX} more queues" if len(queues) > NAMED_MAX else ""
    return (
        f"node {node} has the last copy in sync of {names}{more}: start it and let another node "
        "synchronise, or delete the queue, or lose it with force"
    )


def exclusive_text(record: QueueRecord) -> str:
    """Return the refusal for everybody but the owner of an exclusive queue."""
    if record.connection:
        return (
            f"queue {record.name!r} is exclusive and belongs to connection "
            f"{record.connection}: use another name, or passive=True to put into it"
        )
    where = "" if record.owner is None else f" on node {record.owner.node}"
    return (
        f"queue {record.name!r} is exclusive and belongs to another handle{where}: "
        "use another name or wait until that handle is closed"
    )


def arguments_differing(known: str, asked: str) -> list[str]:
    """Return in words which arguments of a declaration differ from the queue's. Arguments absent
    from the declaration match."""
    is_now, wanted = arguments_of(known), arguments_of(asked)
    owner, asker = is_now.pop(CONNECTION, ""), wanted.pop(CONNECTION, "")
    is_now.pop(CLIENT_HANDLE, None)
    wanted.pop(CLIENT_HANDLE, None)
    parts = [f"exclusive={bool(owner)}, not {bool(asker)}"] if owner != asker else []
    return parts + [
        f"{key}={is_now.get(key)!r}, not {value!r}"
        for key, value in wanted.items()
        if is_now.get(key) != value
    ]


def difference(known: QueueRecord, command: DeclareQueue) -> str:
    """Return in words how a declaration differs from the queue, "" without a difference."""
    if known.exclusive and known.owner != command.owner:
        return exclusive_text(known)
    if known.connection and known.connection != owner_of(command.arguments):
        return exclusive_text(known)
    names = ("durable", "exclusive", "auto_delete")
    values = [(name, getattr(known, name), getattr(command, name)) for name in names]
    parts = [f"{name}={is_now}, not {asked}" for name, is_now, asked in values if is_now != asked]
    parts += arguments_differing(known.arguments, command.arguments)
    if not parts:
        return ""
    return (
        f"queue {known.name!r} exists with {', '.join(parts)}: "
        "declare it with equal properties, or passive=True, or under another name"
    )
