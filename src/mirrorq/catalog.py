"""The replicated metadata: nodes, queues and each queue's view, as one state machine.

Raft gives every node the same commands in the same order; `Catalog.apply` turns each into
the same new state and the same result everywhere. It reads no clock and makes no choice:
what to propose is for the leader's `supervisor`, whether a change is still right when its
turn comes is decided here.

Guarantees
    1. A view changes by compare-and-set on its epoch, and each change adds exactly 1: of two
       proposals that name the same epoch one fails (R12).
    2. A new master was in sync in the view that it replaces (R5): by (node, store), or in the
       very incarnation where that view is not `fsync`. An `unclean` change makes another member
       of it master, alone in sync, and only where the policy in force allows that.
    3. Incarnations of a store only grow, and a queue id is never used again.
    4. Equal histories of commands give equal `snapshot()` bytes.
    5. A request of a node takes effect once, however often it stands in the log (`askers`).

It does not judge who is alive, and it does not know who proposed a command: that only the
master counts a joiner in is checked by the leader before the command enters the log.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec
from attrs import evolve, frozen
from msgspec.structs import replace

from mirrorq.askers import AskerRecord, Askers, Request
from mirrorq.census import Census
from mirrorq.errors import MALFORMED, PolicyError, ProtocolError
from mirrorq.messages import (
    Bind,
    CatalogCommand,
    ChangeView,
    ClearPolicy,
    DeclareExchange,
    DeclareQueue,
    DeclareShards,
    DeleteExchange,
    DeleteQueue,
    DropCopy,
    Member,
    MemberId,
    NameCluster,
    NodeStopped,
    NoteConsumers,
    NoteOutbox,
    Rebalance,
    RegisterNode,
    RemoveNode,
    SessionId,
    SetPolicy,
    StoreId,
    Synchronise,
    TransferMaster,
    Unbind,
    View,
)
from mirrorq.policy import DEFAULT, Definition, Policy, from_text, in_force, to_text
from mirrorq.routing import Binding, ExchangeRecord, binding_error, exchange_error
from mirrorq.sharding import ShardedRecord, Sharding, shards_error
from mirrorq.sharding import difference as sharded_difference
from mirrorq.shards import logical_name, shard_name, split_name
from mirrorq.view import (
    counts_lives,
    find_store,
    is_in_sync,
    joining_ids,
    next_durability,
    order_error,
)

__all__ = [
    "Catalog",
    "CatalogResult",
    "LaterVersion",
    "NodeRecord",
    "QueueRecord",
    "decode_command",
    "encode_command",
    "exclusive_text",
    "last_copy_text",
    "past_text",
]

SNAPSHOT_VERSION = 1
"""Raised when a snapshot can no longer be read by the version before."""


@frozen
class NodeRecord:
    """The newest known life of one node name."""

    name: str
    store: int
    incarnation: int
    endpoint: str
    witness: bool
    is_stopped: bool = False
    """This incarnation was closed by its user: when it ends, that was no failure."""

    @property
    def member(self) -> MemberId:
        return MemberId(self.name, self.store, self.incarnation)


@frozen
class QueueRecord:
    """One queue. Its master is the first member of the view, with its incarnation."""

    id: int
    name: str
    durable: bool
    exclusive: bool
    auto_delete: bool
    declarer: str
    owner: SessionId | None
    view: View
    owner_life: MemberId | None = None
    """The life of the node on which the owner of an exclusive queue is: it goes with it."""
    was_consumed: bool = False
    """An auto-delete queue has had a consumer."""
    told: tuple[tuple[MemberId, bool], ...] = ()
    """Joining members that were told to synchronise (True), or to stop (False)."""
    has_outbox: bool = False
    """It may have messages on their way to other queues, or has had."""
    is_ending: bool = False
    """It is being deleted: its master sees to it that its outbox becomes empty first."""


@frozen
class CatalogResult:
    """What one command did. The same on every node that applies it."""

    value: int = 0
    """DeclareQueue: the queue id. ChangeView, TransferMaster: the epoch. Synchronise: how many
    members it told. Rebalance: how many masters were moved. Of an exchange: its version.
    Else 0."""
    error: str = ""
    """Name of an exception class of mirrorq.errors, "" when the command took effect."""
    text: str = ""
    queues: tuple[int, ...] = ()
    """Ids of queues made, changed or deleted."""
    nodes: tuple[str, ...] = ()
    """Names of nodes added, changed or removed."""
    is_repeat: bool = False
    """The request was applied before, or is of the past: nothing changed."""


@frozen
class _Image:
    """The snapshot's content, after its version."""

    index: int
    next_queue_id: int
    nodes: tuple[NodeRecord, ...]
    queues: tuple[QueueRecord, ...]
    policies: tuple[tuple[str, str], ...] = ()
    """(name, text)."""
    exchanges: tuple[ExchangeRecord, ...] = ()
    cluster: int = 0
    past: tuple[StoreId, ...] = ()
    askers: tuple[AskerRecord, ...] = ()
    sharded: tuple[ShardedRecord, ...] = ()


class Catalog:
    """The catalog of one node, as far as it has applied the log."""

    def __init__(self) -> None:
        self.applied_index = 0
        """Index of the last command applied."""
        self._next_queue_id = 1
        self._nodes: dict[str, NodeRecord] = {}
        self._queues: dict[int, QueueRecord] = {}
        self._ids: dict[str, int] = {}
        self.census = Census()
        """What each node does for all queues."""
        self._policies: dict[str, Policy] = {}
        self._exchanges: dict[str, ExchangeRecord] = {}
        self.cluster = 0
        """Id of the cluster, 0 before its first leader has given it one."""
        self._past: dict[StoreId, None] = {}
        self._askers = Askers()
        self._sharding = Sharding()

    # --- Questions --------------------------------------------------------------------

    def node(self, name: str) -> NodeRecord | None:
        """Return the record of a node name, or None."""
        return self._nodes.get(name)

    def nodes(self) -> tuple[NodeRecord, ...]:
        """Return all nodes, sorted by name."""
        return tuple(self._nodes[name] for name in sorted(self._nodes))

    def is_past(self, store: StoreId) -> bool:
        """Say whether this store was a node's, and that was forgotten.

        One that was only replaced by an empty one may still have the last copy of a queue.
        """
        return store in self._past

    def repeated(self, member: MemberId, number: int) -> CatalogResult | None:
        """Return what a request gets that was applied before or is of the past; None when it
        is neither."""
        known = self._askers.outcome(member, number)
        if known is not None:
            return CatalogResult(known.value, known.error, known.text, is_repeat=True)
        store = StoreId(member.node, member.store)
        if self.is_past(store):
            text = past_text(member.node)
        elif self._askers.is_past(member, number):
            text = (
                f"request {number} of node {member.node}, incarnation {member.incarnation}, is of "
                "the past: that process has ended, has given it up, or has had many later ones "
                "done. Look what is so, then ask again"
            )
        else:
            return None
        return CatalogResult(error="PreconditionFailed", text=text, is_repeat=True)

    def held_last_by(self, store: StoreId) -> tuple[QueueRecord, ...]:
        """Return the queues that have no other copy in sync, and do not go with their owner."""
        return tuple(
            queue
            for queue in self._queues.values()
            if all(_is_on(one.id, store) for one in queue.view.members if one.in_sync)
            and not (queue.owner_life is not None and _is_on(queue.owner_life, store))
        )

    def queue(self, queue_id: int) -> QueueRecord | None:
        """Return a queue by its id, or None."""
        return self._queues.get(queue_id)

    def is_deleted(self, queue_id: int) -> bool:
        """Say whether a queue had this id once: not whether it is still to come."""
        is_there = queue_id in self._queues or self._sharding.get(queue_id) is not None
        return 0 < queue_id < self._next_queue_id and not is_there

    def is_ending(self, queue_id: int) -> bool:
        """Say whether this queue is being deleted, and still there."""
        record = self._queues.get(queue_id) or self._sharding.get(queue_id)
        return record is not None and record.is_ending

    def sharded(self, queue_id: int) -> ShardedRecord | None:
        """Return a sharded queue by its id, or None."""
        return self._sharding.get(queue_id)

    def sharded_named(self, name: str) -> ShardedRecord | None:
        """Return a sharded queue by its name, or None."""
        return self._sharding.named(name)

    def sharded_queues(self) -> tuple[ShardedRecord, ...]:
        """Return all sharded queues, in order of id."""
        return self._sharding.records()

    def name_of(self, queue_id: int) -> str:
        """Return the name that users know of a queue: of a shard its queue's; "" for none."""
        record = self._sharding.get(queue_id) or self._queues.get(queue_id)
        return "" if record is None else logical_name(record.name)

    def home_of(self, queue_id: int) -> ShardedRecord | None:
        """Return the sharded queue of which this one is a shard, or None."""
        return self._sharding.home_of(queue_id)

    def queue_named(self, name: str) -> QueueRecord | None:
        """Return a queue by its name, or None: one ring, a shard too; not a sharded queue."""
        queue_id = self._ids.get(name)
        return None if queue_id is None else self._queues[queue_id]

    def queues(self) -> tuple[QueueRecord, ...]:
        """Return all queues that are rings, shards too, in order of id."""
        return tuple(self._queues.values())

    def policies(self) -> tuple[Policy, ...]:
        """Return all policies, sorted by name."""
        return tuple(self._policies[name] for name in sorted(self._policies))

    def exchange(self, name: str) -> ExchangeRecord | None:
        """Return an exchange, or None."""
        return self._exchanges.get(name)

    def exchanges(self) -> tuple[ExchangeRecord, ...]:
        """Return all exchanges, sorted by name."""
        return tuple(self._exchanges[name] for name in sorted(self._exchanges))

    def policy_of(self, name: str) -> Policy | None:
        """Return the policy in force for a queue of this name, or None; a shard has its queue's."""
        return in_force(self._policies.values(), logical_name(name))

    def definition_of(self, name: str) -> Definition:
        """Return what holds for a queue of this name."""
        policy = self.policy_of(name)
        definition = DEFAULT if policy is None else policy.definition
        if definition.expires is not None and split_name(name) is not None:
            # Shards are used unequally: one that nobody needs now is no less a part of its queue.
            return evolve(definition, expires=None)
        return definition

    def synchronising(self, queue_id: int) -> tuple[MemberId, ...]:
        """Return the joining members of a queue that fetch what they lack: those that were
        told to, and with ha-sync-mode automatic all that were not told to stop."""
        record = self._queues.get(queue_id)
        if record is None:
            return ()
        told = dict(record.told)
        is_automatic = self.definition_of(record.name).ha_sync_mode == "automatic"
        joining = joining_ids(record.view)
        return tuple(member for member in joining if told.get(member, is_automatic))

    def is_superseded(self, member: MemberId) -> bool:
        """Say whether a newer incarnation of the member's store has been registered.

        Then the process of this incarnation has certainly ended: a store is locked by the
        process that has it open, and registers only after that.
        """
        record = self._nodes.get(member.node)
        return (
            record is not None
            and record.store == member.store
            and record.incarnation > member.incarnation
        )

    def was_stopped(self, member: MemberId) -> bool:
        """Say whether this incarnation was closed by its user: its end is a shutdown."""
        record = self._nodes.get(member.node)
        return record is not None and record.member == member and record.is_stopped

    def may_lose(self, queue: QueueRecord) -> bool:
        """Say whether a member that is not in sync may become master when no other can.

        `ha-promote-on-failure: when-synced` outranks `ha-promote-on-shutdown: always`; and as
        soon as one member in sync was shut down, both have to allow it.
        """
        told = self.definition_of(queue.name)
        stopped = any(m.in_sync and self.was_stopped(m.id) for m in queue.view.members)
        on_shutdown = told.ha_promote_on_shutdown == "always" or not stopped
        return told.ha_promote_on_failure == "always" and on_shutdown

    # --- Change -----------------------------------------------------------------------

    def apply(
        self, index: int, command: CatalogCommand, request: Request | None = None
    ) -> CatalogResult:
        """Apply the command at this index of the log; indexes only grow.

        Args:
            request: whose request it is; None: the leader's own, which may be applied again.
        """
        self.applied_index = index
        if request is None:
            return self._apply(command)
        known = self.repeated(request.member, request.number)
        if known is not None:
            return known
        result = self._apply(command)
        self._askers.note(request, result.value, result.error, result.text)
        return result

    def _apply(self, command: CatalogCommand) -> CatalogResult:
        match command:
            case RegisterNode():
                return self._on_register_node(command)
            case NodeStopped():
                return self._on_node_stopped(command)
            case DeclareQueue():
                return self._on_declare_queue(command)
            case DeclareShards():
                return self._on_declare_shards(command)
            case ChangeView():
                return self._on_change_view(command)
            case DeleteQueue():
                return self._on_delete_queue(command)
            case NoteConsumers():
                return self._on_note_consumers(command)
            case NoteOutbox():
                return self._on_note_outbox(command)
            case RemoveNode():
                return self._on_remove_node(command)
            case NameCluster():
                self.cluster = self.cluster or command.cluster
                return CatalogResult()
            case SetPolicy():
                return self._on_set_policy(command)
            case ClearPolicy():
                return self._on_clear_policy(command)
            case Synchronise():
                return self._on_synchronise(command)
            case DeclareExchange():
                return self._on_declare_exchange(command)
            case DeleteExchange():
                return self._on_delete_exchange(command)
            case Bind():
                return self._on_bind(command)
            case Unbind():
                return self._on_unbind(command)
            case TransferMaster():
                return self._on_transfer_master(command)
            case Rebalance():
                return CatalogResult(value=command.moved)
            case DropCopy():
                return self._on_drop_copy(command)

    def _on_register_node(self, command: RegisterNode) -> CatalogResult:
        if self.is_past(StoreId(command.node, command.store)):
            return CatalogResult(error="PreconditionFailed", text=past_text(command.node))
        known = self._nodes.get(command.node)
        if known is not None and known.store == command.store:
            if command.incarnation < known.incarnation:
                return CatalogResult(
                    error="PreconditionFailed",
                    text=f"node {command.node} is registered with incarnation "
                    f"{known.incarnation}; incarnation {command.incarnation} is of an older "
                    "process or a restored store: stop it",
                )
            if command.incarnation == known.incarnation:
                return CatalogResult()
        self._nodes[command.node] = NodeRecord(
            command.node, command.store, command.incarnation, command.endpoint, command.witness
        )
        return CatalogResult(nodes=(command.node,), queues=self._end_owned(command.node))

    def _on_node_stopped(self, command: NodeStopped) -> CatalogResult:
        known = self._nodes.get(command.node)
        named = MemberId(command.node, command.store, command.incarnation)
        if known is None or known.member != named or known.is_stopped:
            return CatalogResult()
        self._nodes[command.node] = evolve(known, is_stopped=True)
        return CatalogResult(nodes=(command.node,))

    def _on_remove_node(self, command: RemoveNode) -> CatalogResult:
        known = self._nodes.get(command.node)
        if known is not None and known.store in command.voters:
            text = f"node {command.node} is alive: stop it before it is forgotten"
            return CatalogResult(error="PreconditionFailed", text=text)
        unregistered = {StoreId(command.node, store): None for store in command.voters}
        if known is None or known.store != command.store:
            self._past.update(unregistered)
            return CatalogResult(nodes=(command.node,) if unregistered else ())
        store = StoreId(known.name, known.store)
        last = self.held_last_by(store)
        if last and not command.force:
            return CatalogResult(
                error="PreconditionFailed", text=last_copy_text(command.node, last)
            )
        del self._nodes[command.node]
        self._past.update({store: None, **unregistered})
        self._askers.forget(store)
        changed = self._end_owned(command.node)
        for queue in last:
            self._remove(queue.id)
        changed += tuple(queue.id for queue in last)
        changed += tuple(q.id for q in self.queues() if self._drop_member(q, store))
        return CatalogResult(nodes=(command.node,), queues=changed)

    def _drop_member(self, queue: QueueRecord, store: StoreId) -> bool:
        """Take a store out of a queue's view; return whether it was in it."""
        view = queue.view
        members = tuple(one for one in view.members if not _is_on(one.id, store))
        if members == view.members:
            return False
        epoch = view.epoch + 1
        stays = members[0].id == view.members[0].id
        how, reign = (view.how, view.reign) if stays else ("clean", epoch)
        after = replace(
            view,
            epoch=epoch,
            members=members,
            how=how,
            reign=reign,
            durability=self._next_durability(queue),
        )
        self._view(queue, evolve(queue, view=after))
        return True

    def _view(self, before: QueueRecord | None, after: QueueRecord) -> None:
        """A queue is new (before: None), or has another view."""
        if before is not None:
            self.census.leave(before.view)
        self.census.enter(after.view)
        self._queues[after.id] = after

    def _end_owned(self, node: str) -> tuple[int, ...]:
        """Delete the exclusive queues whose owners lived in a past life of this node."""
        ended = tuple(
            queue.id
            for queue in self._queues.values()
            if queue.owner_life is not None
            and queue.owner_life.node == node
            and not self._is_current(queue.owner_life)
        )
        for queue_id in ended:
            self._remove(queue_id)
        return ended

    def _is_current(self, member: MemberId) -> bool:
        record = self._nodes.get(member.node)
        return record is not None and record.member == member

    def _on_declare_queue(self, command: DeclareQueue) -> CatalogResult:
        sharded = self._sharding.named(command.name)
        if sharded is not None:
            difference = sharded_difference(sharded, command)
            if difference:
                return CatalogResult(error="PreconditionFailed", text=difference)
            return CatalogResult(value=sharded.id)
        known = self.queue_named(command.name)
        if known is not None:
            difference = _difference(known, command)
            if known.is_ending:
                difference = (
                    f"queue {known.name!r} is being deleted and still has messages for other "
                    "queues: declare it again when they have arrived"
                )
            if difference:
                return CatalogResult(error="PreconditionFailed", text=difference)
            return CatalogResult(value=known.id)
        members = tuple(Member(member, True) for member in command.members)
        wrong = order_error(members)
        if wrong:
            return CatalogResult(
                error="ProtocolError", text=f"queue {command.name!r} cannot be made: {wrong}"
            )
        owner_life = None
        if command.exclusive:
            owner_life = self._life_of(command.owner)
            if owner_life is None:
                return CatalogResult(
                    error="PreconditionFailed",
                    text=f"queue {command.name!r} cannot be exclusive: its owner "
                    f"{command.owner} is no handle on a node that runs",
                )
        queue_id = self._make(command, members, owner_life)
        return CatalogResult(value=queue_id, queues=(queue_id,))

    def _make(
        self, command: DeclareQueue, members: tuple[Member, ...], owner_life: MemberId | None = None
    ) -> int:
        queue_id = self._next_queue_id
        self._next_queue_id += 1
        self._ids[command.name] = queue_id
        definition = self.definition_of(command.name)
        made = QueueRecord(
            queue_id,
            command.name,
            command.durable,
            command.exclusive,
            command.auto_delete,
            command.declarer,
            command.owner,
            View(1, members, reign=1, durability=definition.durability),
            owner_life,
            has_outbox=bool(definition.dead_letter_queue),
        )
        self._view(None, made)
        return queue_id

    def _on_declare_shards(self, command: DeclareShards) -> CatalogResult:
        known = self._sharding.named(command.name)
        wrong = "" if known is None else sharded_difference(known, command)
        if known is None and self.queue_named(command.name) is not None:
            wrong = (
                f"queue {command.name!r} exists and is not sharded, not shards={command.shards}: "
                "declare it without shards, or under another name"
            )
        if wrong:
            return CatalogResult(error="PreconditionFailed", text=wrong)
        wrong = shards_error(command.shards)
        if wrong:
            return CatalogResult(error="ConfigError", text=wrong)
        rings = (0,) * command.shards if known is None else known.rings
        lacking = [shard for shard, ring in enumerate(rings) if ring not in self._queues]
        if known is not None and not lacking:
            return CatalogResult(value=known.id)
        views = [tuple(Member(member, True) for member in one) for one in command.members]
        wrong = "" if len(views) == command.shards else f"it has {len(views)} first views"
        for shard in lacking:
            taken = shard_name(command.name, shard) in self._ids
            wrong = wrong or order_error(views[shard]) or ("a shard's name is taken" * taken)
        if wrong:
            text = f"queue {command.name!r} cannot be made with {command.shards} shards: {wrong}"
            return CatalogResult(error="ProtocolError", text=text)
        if known is None:
            known = ShardedRecord(self._next_queue_id, command.name, command.durable, rings)
            self._next_queue_id += 1
        made = {shard: self._make_shard(command, shard, views[shard]) for shard in lacking}
        rings = tuple(made.get(shard, ring) for shard, ring in enumerate(rings))
        self._sharding.put(evolve(known, rings=rings))
        return CatalogResult(value=known.id, queues=tuple(made.values()))

    def _make_shard(self, command: DeclareShards, shard: int, members: tuple[Member, ...]) -> int:
        name = shard_name(command.name, shard)
        one = DeclareQueue(name, command.durable, False, False, command.declarer, None, ())
        return self._make(one, members)

    def _life_of(self, owner: SessionId | None) -> MemberId | None:
        """Return the life of a node in which this handle was made, if that goes on."""
        record = None if owner is None else self._nodes.get(owner.node)
        if owner is None or record is None or record.incarnation != owner.incarnation:
            return None
        return record.member

    def _on_delete_queue(self, command: DeleteQueue) -> CatalogResult:
        sharded = self._sharding.get(command.queue_id)
        if sharded is not None:
            return self._delete_sharded(sharded)
        known = self._queues.get(command.queue_id)
        if known is None:
            return _no_queue(command.queue_id)
        if command.reign and command.reign != known.view.reign:
            return CatalogResult(
                error="PreconditionFailed",
                text=f"queue {known.name!r} was to be deleted in reign {command.reign}, and is "
                f"in reign {known.view.reign}: its consumers may have come back",
            )
        self._end(known, is_drained=command.is_drained)
        return CatalogResult(queues=(known.id,))

    def _delete_sharded(self, sharded: ShardedRecord) -> CatalogResult:
        self._sharding.end(sharded)
        rings = tuple(ring for ring in sharded.rings if ring in self._queues)
        for ring in rings:
            self._end(self._queues[ring])
        return CatalogResult(queues=rings)

    def _end(self, known: QueueRecord, *, is_drained: bool = False) -> None:
        """Delete a queue; one that may have an outbox when that is empty."""
        if known.has_outbox and not is_drained:
            self._queues[known.id] = evolve(known, is_ending=True)
        else:
            self._remove(known.id)

    def _note_outboxes(self) -> None:
        """Policies have changed: who sends its dead letters elsewhere?"""
        for known in list(self._queues.values()):
            if not known.has_outbox and self.definition_of(known.name).dead_letter_queue:
                self._queues[known.id] = evolve(known, has_outbox=True)

    def _on_note_outbox(self, command: NoteOutbox) -> CatalogResult:
        known = self._queues.get(command.queue_id)
        if known is None:
            return _no_queue(command.queue_id)
        self._queues[known.id] = evolve(known, has_outbox=True)
        return CatalogResult(queues=(known.id,))

    def _remove(self, queue_id: int) -> None:
        record = self._queues.pop(queue_id)
        del self._ids[record.name]
        self.census.leave(record.view)
        self._unbind_all(queue_id)
        sharded = self._sharding.lose(queue_id, self._queues)
        if sharded is not None:
            self._unbind_all(sharded.id)

    def _unbind_all(self, queue_id: int) -> None:
        for exchange in list(self._exchanges.values()):
            kept = tuple(b for b in exchange.bindings if b.queue_id != queue_id)
            if len(kept) < len(exchange.bindings):
                self._rebind(exchange, kept)

    def _on_note_consumers(self, command: NoteConsumers) -> CatalogResult:
        known = self._queues.get(command.queue_id)
        if known is None:
            return _no_queue(command.queue_id)
        self._queues[known.id] = evolve(known, was_consumed=True)
        return CatalogResult(queues=(known.id,))

    def _on_change_view(self, command: ChangeView) -> CatalogResult:
        known = self._queues.get(command.queue_id)
        if known is None:
            return _no_queue(command.queue_id)
        if command.replaces != known.view.epoch:
            return CatalogResult(
                error="PreconditionFailed",
                text=f"the proposal replaces epoch {command.replaces} of queue "
                f"{known.name!r}, which is at epoch {known.view.epoch}: look again",
            )
        wrong = order_error(command.members)
        if not wrong and command.how == "unclean":
            wrong = self._loss_error(known, command)
        wrong = wrong or _promotion_error(known.view, command)
        if wrong:
            return CatalogResult(
                error="ProtocolError",
                text=f"queue {known.name!r} cannot go on from epoch {known.view.epoch}: {wrong}",
            )
        epoch = known.view.epoch + 1
        stays = command.members[0].id == known.view.members[0].id
        # How the reign began stays with it: a master may learn of its reign from a later view,
        # in a snapshot, and its first op says how it took over.
        how, reign = (known.view.how, known.view.reign) if stays else (command.how, epoch)
        generation = known.view.generation + (command.how == "unclean")
        durability = self._next_durability(known, settled=command.settled)
        view = View(epoch, command.members, how, reign, generation, durability)
        # Who drops out for a moment and comes back in the same life was told; who is in sync has
        # done what it was told.
        told = tuple(
            each
            for each in known.told
            if not is_in_sync(view, each[0]) and not self.is_superseded(each[0])
        )
        self._view(known, evolve(known, view=view, told=told))
        return CatalogResult(value=view.epoch, queues=(known.id,))

    def _next_durability(
        self, queue: QueueRecord, *, settled: bool = False
    ) -> Literal["fsync", "settling", "replicated"]:
        wanted = self.definition_of(queue.name).durability
        return next_durability(queue.view, wanted, settled=settled)

    def _loss_error(self, queue: QueueRecord, command: ChangeView) -> str:
        """Return why this unclean promotion must not be, "" when it may.

        A restarted member of a queue that is confirmed in memory needs no leave of the policy:
        by choosing that durability the user has accepted what is lost with a life.
        """
        head, *others = command.members
        before = find_store(queue.view, head.id.node, head.id.store)
        if before is None:
            return f"{head.id.node} has no copy of the queue"
        was_in_sync = before.in_sync and counts_lives(queue.view)
        if not was_in_sync and not self.may_lose(queue):
            return f"{head.id.node} is not in sync, and the policy in force says when-synced"
        if is_in_sync(queue.view, head.id):
            return f"{head.id.node} is in sync: nothing need be lost"
        if any(member.in_sync for member in others):
            return f"nobody is in sync with {head.id.node}, whose copy was not"
        return ""

    def _on_set_policy(self, command: SetPolicy) -> CatalogResult:
        try:
            policy = from_text(command.name, command.text)
        except PolicyError as error:
            return CatalogResult(error="PolicyError", text=str(error))
        before = self._definitions()
        self._policies[policy.name] = policy
        self._note_outboxes()
        return CatalogResult(queues=self._redefined(before))

    def _on_clear_policy(self, command: ClearPolicy) -> CatalogResult:
        before = self._definitions()
        self._policies.pop(command.name, None)
        self._note_outboxes()
        return CatalogResult(queues=self._redefined(before))

    def _on_synchronise(self, command: Synchronise) -> CatalogResult:
        known = self._rings_named(command.queue)
        if not known:
            return CatalogResult(
                error="QueueNotFound", text=f"no queue is named {command.queue!r}: declare it"
            )
        told = sum(self._synchronise(each, on=command.on) for each in known)
        return CatalogResult(value=told, queues=tuple(each.id for each in known))

    def _rings_named(self, name: str) -> tuple[QueueRecord, ...]:
        """Return the rings that a user means by a name: all shards of a sharded queue."""
        known, sharded = self.queue_named(name), self._sharding.named(name)
        rings = () if sharded is None else sharded.rings
        found = [self._queues[ring] for ring in rings if ring in self._queues]
        return tuple(found) if known is None else (known,)

    def _synchronise(self, known: QueueRecord, *, on: bool) -> int:
        """Tell the joining members of a ring; return how many were told."""
        told = dict(known.told)
        if on:
            changed = joining_ids(known.view)
            told.update(dict.fromkeys(changed, True))
        else:
            changed = self.synchronising(known.id)
            if self.definition_of(known.name).ha_sync_mode == "automatic":
                told.update(dict.fromkeys(changed, False))
            else:
                # Nobody told it: should the policy become automatic, it goes on.
                told = {member: is_on for member, is_on in told.items() if not is_on}
        self._queues[known.id] = evolve(known, told=tuple(told.items()))
        return len(changed)

    def _on_transfer_master(self, command: TransferMaster) -> CatalogResult:
        queue = self.queue_named(command.queue)
        if queue is None:
            return CatalogResult(
                error="QueueNotFound",
                text=f"no queue is named {command.queue!r}: it was deleted or never made",
            )
        master = queue.view.members[0].id.node
        if master != command.node:
            return CatalogResult(
                error="PreconditionFailed",
                text=f"the master of queue {command.queue!r} was {command.node} and is "
                f"{master} again: look at its status, then ask again",
            )
        return CatalogResult(value=queue.view.epoch)

    def _on_drop_copy(self, command: DropCopy) -> CatalogResult:
        queue = self._queues.get(command.queue_id)
        if queue is None:
            return _no_queue(command.queue_id)
        member = command.member
        is_member = find_store(queue.view, member.node, member.store) is not None
        if is_member or queue.view.epoch != command.epoch:
            where = "a" if is_member else "no"
            return CatalogResult(
                error="PreconditionFailed",
                text=f"{member.node} may not drop its copy of queue {queue.name!r} in epoch "
                f"{command.epoch}: the queue is at epoch {queue.view.epoch}, of which that store "
                f"is {where} member: look again",
            )
        return CatalogResult(value=queue.view.epoch)

    def _definitions(self) -> dict[int, Policy | None]:
        return {queue.id: self.policy_of(queue.name) for queue in self._queues.values()}

    def _redefined(self, before: dict[int, Policy | None]) -> tuple[int, ...]:
        return tuple(
            queue_id
            for queue_id, policy in self._definitions().items()
            if policy != before[queue_id]
        )

    def _on_declare_exchange(self, command: DeclareExchange) -> CatalogResult:
        wrong = exchange_error(command.name, command.kind, command.alternate)
        if wrong:
            return CatalogResult(error="ConfigError", text=wrong)
        known = self._exchanges.get(command.name)
        if known is None:
            known = ExchangeRecord(
                command.name, command.kind, command.alternate, self.applied_index
            )
            self._exchanges[command.name] = known
        elif (known.kind, known.alternate) != (command.kind, command.alternate):
            return CatalogResult(
                error="PreconditionFailed",
                text=f"exchange {known.name!r} exists with kind {known.kind!r} and alternate "
                f"{known.alternate!r}, not {command.kind!r} and {command.alternate!r}: declare "
                "it with equal properties, or under another name",
            )
        return CatalogResult(value=known.version)

    def _on_delete_exchange(self, command: DeleteExchange) -> CatalogResult:
        known = self._exchanges.get(command.name)
        if known is None:
            return _no_exchange(command.name)
        if command.if_unused and known.bindings:
            return CatalogResult(
                error="PreconditionFailed",
                text=f"exchange {known.name!r} has {len(known.bindings)} bindings: unbind them",
            )
        del self._exchanges[known.name]
        return CatalogResult(value=self.applied_index)

    def _on_bind(self, command: Bind) -> CatalogResult:
        known, queue = self._exchanges.get(command.exchange), self._bindable(command.queue)
        if known is None:
            return _no_exchange(command.exchange)
        if queue is None:
            return CatalogResult(
                error="QueueNotFound", text=f"no queue is named {command.queue!r}: declare it first"
            )
        binding = Binding(queue.id, command.key, command.arguments)
        wrong = binding_error(known, binding)
        if wrong:
            return CatalogResult(error="PreconditionFailed", text=wrong)
        if binding in known.bindings:
            return CatalogResult(value=known.version)
        return self._rebind(known, (*known.bindings, binding))

    def _bindable(self, name: str) -> QueueRecord | ShardedRecord | None:
        """Return what a binding to this name leads to: a sharded queue as a whole."""
        return self.queue_named(name) or self._sharding.named(name)

    def _on_unbind(self, command: Unbind) -> CatalogResult:
        known, queue = self._exchanges.get(command.exchange), self._bindable(command.queue)
        if known is None:
            return _no_exchange(command.exchange)
        if queue is None:
            return CatalogResult(value=known.version)
        binding = Binding(queue.id, command.key, command.arguments)
        kept = tuple(one for one in known.bindings if one != binding)
        if len(kept) == len(known.bindings):
            return CatalogResult(value=known.version)
        return self._rebind(known, kept)

    def _rebind(self, exchange: ExchangeRecord, bindings: tuple[Binding, ...]) -> CatalogResult:
        self._exchanges[exchange.name] = evolve(
            exchange, version=self.applied_index, bindings=bindings
        )
        return CatalogResult(value=self.applied_index)

    # --- Without the others -----------------------------------------------------------

    def outlive(
        self,
        survivor: NodeRecord,
        voters: Sequence[StoreId],
        cluster: int,
        views: Mapping[int, View],
    ) -> None:
        """Make this the catalog of another cluster, whose only node is the survivor.

        No command, and never on a node that runs: see `survivor`.

        Args:
            voters: all stores of the lost cluster; none of them is taken back.
            views: of the queues that go on; all others are deleted.
        """
        lost = [*voters, *(StoreId(node.name, node.store) for node in self.nodes())]
        self._past.update(dict.fromkeys(lost))
        self._nodes = {survivor.name: survivor}
        self._askers = Askers()
        self.cluster = cluster
        for queue in self.queues():
            if queue.id in views:
                self._view(queue, evolve(queue, view=views[queue.id], told=()))
            else:
                self._remove(queue.id)

    # --- Snapshots --------------------------------------------------------------------

    def snapshot(self) -> bytes:
        """Return the whole state. Equal states give equal bytes."""
        policies = tuple((policy.name, to_text(policy)) for policy in self.policies())
        image = _Image(
            self.applied_index,
            self._next_queue_id,
            self.nodes(),
            self.queues(),
            policies,
            self.exchanges(),
            self.cluster,
            tuple(self._past),
            self._askers.records(),
            self._sharding.records(),
        )
        return msgspec.msgpack.encode((SNAPSHOT_VERSION, image))

    @classmethod
    def restore(cls, data: bytes) -> Catalog:
        """Return the catalog that a snapshot holds.

        Raises:
            ProtocolError: the bytes are no snapshot, or one of another version.
        """
        image = _decode_image(data)
        try:
            policies = {name: from_text(name, text) for name, text in image.policies}
        except PolicyError as error:
            raise ProtocolError(f"the catalog snapshot holds no catalog: {error}") from error
        for queue in image.queues:
            wrong = order_error(queue.view.members)
            if wrong:
                raise ProtocolError(f"the catalog snapshot's queue {queue.name!r}: {wrong}")
        catalog = cls()
        catalog.applied_index = image.index
        catalog._next_queue_id = image.next_queue_id
        catalog._nodes = {node.name: node for node in image.nodes}
        for queue in image.queues:
            catalog._view(None, queue)
        catalog._ids = {queue.name: queue.id for queue in image.queues}
        catalog._policies = policies
        catalog._exchanges = {exchange.name: exchange for exchange in image.exchanges}
        catalog.cluster = image.cluster
        catalog._past = dict.fromkeys(image.past)
        catalog._askers = Askers(image.askers)
        catalog._sharding = Sharding(image.sharded)
        return catalog


def past_text(node: str) -> str:
    """Return what a node is told that was forgotten."""
    return (
        f"the store of node {node} is none of this cluster's any more: it was forgotten. Start "
        "it with an empty path to join anew, and keep the old directory if its messages matter"
    )


def last_copy_text(node: str, queues: Sequence[QueueRecord]) -> str:
    """Return the refusal to forget a node without which queues would be lost."""
    names = ", ".join(repr(queue.name) for queue in queues)
    return (
        f"node {node} has the last copy in sync of {names}: start it and let another node "
        "synchronise, or delete the queue, or lose it with force"
    )


def _is_on(member: MemberId, store: StoreId) -> bool:
    return member.node == store.node and member.store == store.store


def exclusive_text(record: QueueRecord) -> str:
    """Return the refusal for everybody but the owner of an exclusive queue."""
    where = "" if record.owner is None else f" on node {record.owner.node}"
    return (
        f"queue {record.name!r} is exclusive and belongs to another handle{where}: "
        "use another name or wait until that handle is closed"
    )


def _no_exchange(name: str) -> CatalogResult:
    return CatalogResult(
        error="QueueNotFound", text=f"no exchange is named {name!r}: declare it first"
    )


def _no_queue(queue_id: int) -> CatalogResult:
    return CatalogResult(
        error="QueueNotFound", text=f"no queue has the id {queue_id}: it was deleted or never made"
    )


def _difference(known: QueueRecord, command: DeclareQueue) -> str:
    """Return in words how a declaration differs from the queue, "" when it does not."""
    if known.exclusive and known.owner != command.owner:
        return exclusive_text(known)
    names = ("durable", "exclusive", "auto_delete")
    values = [(name, getattr(known, name), getattr(command, name)) for name in names]
    parts = [f"{name}={is_now}, not {asked}" for name, is_now, asked in values if is_now != asked]
    if not parts:
        return ""
    return (
        f"queue {known.name!r} exists with {', '.join(parts)}: "
        "declare it with equal properties, or passive=True, or under another name"
    )


def _promotion_error(view: View, command: ChangeView) -> str:
    """R5: only who was in sync in the last committed view may become master."""
    head = command.members[0].id
    if head == view.members[0].id or command.how == "unclean":
        return ""
    before = find_store(view, head.node, head.store)
    if before is None or not before.in_sync:
        return f"{head.node} was not in sync and cannot become master"
    if counts_lives(view) and before.id != head:
        return f"{head.node} was restarted, and what it had in memory may be lost"
    if command.how not in ("clean", "cold"):
        return f"a new master needs how=clean or cold, not {command.how!r}"
    return ""


# --- Commands as bytes ------------------------------------------------------------------

_COMMANDS: dict[int, Any] = {
    1: RegisterNode,
    2: DeclareQueue,
    3: DeleteQueue,
    4: ChangeView,
    5: RemoveNode,
    6: SetPolicy,
    7: ClearPolicy,
    20: NoteConsumers,
    23: NoteOutbox,
    12: Synchronise,
    30: DeclareExchange,
    31: DeleteExchange,
    32: Bind,
    33: Unbind,
    16: NodeStopped,
    8: TransferMaster,
    9: Rebalance,
    21: NameCluster,
    22: DropCopy,
    24: DeclareShards,
}
"""Tag of each command. The tags are in logs on disk and never change meaning."""

_TAGS: dict[Any, int] = {command: tag for tag, command in _COMMANDS.items()}


class LaterVersion(ProtocolError):
    """What other nodes apply and this one cannot: it must not go on as if it had."""


def encode_command(command: CatalogCommand) -> bytes:
    """Return the command as the data of a Raft entry."""
    return msgspec.msgpack.encode((_TAGS[type(command)], command))


def decode_command(data: bytes) -> CatalogCommand:
    """Return the command that `encode_command` wrote.

    Raises:
        ProtocolError: the bytes are no command, or one of a later version.
    """
    try:
        tag, raw = msgspec.msgpack.decode(data, type=tuple[int, msgspec.Raw])
        if tag not in _COMMANDS:
            raise LaterVersion(
                f"catalog command {tag} is of a later version: upgrade this node to go on"
            )
        command: CatalogCommand = msgspec.msgpack.decode(raw, type=_COMMANDS[tag])
    except MALFORMED as error:
        raise ProtocolError(f"{len(data)} bytes are no catalog command: {error}") from error
    return command


def _decode_image(data: bytes) -> _Image:
    try:
        version, raw = msgspec.msgpack.decode(data, type=tuple[int, msgspec.Raw])
        if version != SNAPSHOT_VERSION:
            raise LaterVersion(
                f"catalog snapshot has version {version}, this node reads {SNAPSHOT_VERSION}: "
                "run the version that wrote it"
            )
        return msgspec.msgpack.decode(raw, type=_Image)
    except MALFORMED as error:
        raise ProtocolError(f"{len(data)} bytes are no catalog snapshot: {error}") from error
