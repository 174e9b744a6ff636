"""The catalog of one node: answers questions, and applies commands in order."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain

from attrs import evolve

from mirrorq.cluster.catalog.declarations import Declarations
from mirrorq.cluster.catalog.deduplication import AskerRecord, Deduplication, Request
from mirrorq.cluster.catalog.exchanges import Exchanges, no_exchange
from mirrorq.cluster.catalog.image import (
    ImageHead,
    PolicyRecord,
    Record,
    SendingPattern,
    decode_page,
    encode_pages,
)
from mirrorq.cluster.catalog.load_counts import LoadCounts
from mirrorq.cluster.catalog.nodes import Nodes
from mirrorq.cluster.catalog.policies import Policies
from mirrorq.cluster.catalog.queues import Queues
from mirrorq.cluster.catalog.records import (
    CatalogResult,
    NodeRecord,
    QueueRecord,
    is_on,
    last_copy_text,
    no_queue,
    past_text,
    refused,
)
from mirrorq.cluster.catalog.sharding import ShardedRecord, Sharding
from mirrorq.cluster.catalog.size import CatalogSize
from mirrorq.cluster.catalog.view_changes import changed, loss_error, promotion_error, without
from mirrorq.errors import PolicyError, ProtocolError
from mirrorq.protocol import commands
from mirrorq.protocol.identities import MemberId, StoreId
from mirrorq.protocol.policy import Definition, Policy, from_text
from mirrorq.protocol.routing import Binding, ExchangeRecord
from mirrorq.protocol.shard_names import logical_name
from mirrorq.protocol.views import View, find_store, is_in_sync, joining_ids, order_error

LOST_IDS_MAX = 1 << 20
"""Ids skipped for queues perhaps declared without a survivor's knowledge."""


class Catalog:
    """The catalog of one node, up to the last applied entry of the log."""

    def __init__(self) -> None:
        self.applied_index = 0
        """Index of the last command applied."""
        self.cluster = 0
        """Id of the cluster, 0 until the first leader has named the cluster."""
        self._nodes = Nodes()
        self._queues = Queues()
        self._sharding = Sharding()
        self._policies = Policies()
        self._exchanges = Exchanges()
        self._deduplication = Deduplication()
        self._pages_taken = 0
        """Pages read so far of an image."""
        self.size = CatalogSize(
            self._queues.count,
            self._exchanges.count,
            self._exchanges.binding_count,
            self._policies.count,
        )
        self._declarations = Declarations(self._nodes, self._queues, self._sharding, self._policies)

    # --- Questions ------------------------------------------------------------------------

    def node(self, name: str) -> NodeRecord | None:
        """Return the record of a node name, or None."""
        return self._nodes.get(name)

    def nodes(self) -> tuple[NodeRecord, ...]:
        """Return all nodes, sorted by name."""
        return self._nodes.records()

    def is_past(self, store: StoreId) -> bool:
        """Return true if the store belonged to a node which was forgotten.

        A store merely replaced by an empty store may still have the last copy of a queue.
        """
        return self._nodes.is_past(store)

    def repeated(self, member: MemberId, number: int) -> CatalogResult | None:
        """Return the result of a request already applied or of the past; None for a new request."""
        known = self._deduplication.outcome(member, number)
        if known is not None:
            return CatalogResult(known.value, known.error, known.text, is_repeat=True)
        store = StoreId(member.node, member.store)
        if self.is_past(store):
            text = past_text(member.node)
        elif self._deduplication.is_past(member, number):
            text = (
                f"request {number} of node {member.node}, incarnation {member.incarnation}, is "
                "too old: that process has ended, has given it up, or has had many later ones "
                "done. Look at what is there now, then ask again"
            )
        else:
            return None
        return CatalogResult(error="PreconditionFailed", text=text, is_repeat=True)

    def held_last_by(self, store: StoreId) -> tuple[QueueRecord, ...]:
        """Return queues with no other copy in sync, except queues which end with their owner."""
        return tuple(
            queue
            for queue in self._queues.on_node(store.node)
            if all(is_on(one.id, store) for one in queue.view.members if one.in_sync)
            and not (queue.owner_incarnation is not None and is_on(queue.owner_incarnation, store))
        )

    def queue(self, queue_id: int) -> QueueRecord | None:
        """Return the queue with this id, or None."""
        return self._queues.records.get(queue_id)

    def is_deleted(self, queue_id: int) -> bool:
        """Return true if the id belonged to a queue now deleted; false for an unused id."""
        is_there = queue_id in self._queues.records or self._sharding.get(queue_id) is not None
        return 0 < queue_id < self._queues.next_id and not is_there

    def is_ending(self, queue_id: int) -> bool:
        """Return true if the queue is being deleted, and still there."""
        record = self._queues.records.get(queue_id) or self._sharding.get(queue_id)
        return record is not None and record.is_ending

    def sharded(self, queue_id: int) -> ShardedRecord | None:
        """Return the sharded queue with this id, or None."""
        return self._sharding.get(queue_id)

    def sharded_named(self, name: str) -> ShardedRecord | None:
        """Return the sharded queue with this name, or None."""
        return self._sharding.named(name)

    def sharded_queues(self) -> tuple[ShardedRecord, ...]:
        """Return all sharded queues, in order of id."""
        return self._sharding.records()

    def name_of(self, queue_id: int) -> str:
        """Return the name known to users: for a shard its sharded queue's; "" for no queue."""
        record = self._sharding.get(queue_id) or self._queues.records.get(queue_id)
        return "" if record is None else logical_name(record.name)

    def home_of(self, queue_id: int) -> ShardedRecord | None:
        """Return the sharded queue with this shard, or None."""
        return self._sharding.home_of(queue_id)

    def queue_named(self, name: str) -> QueueRecord | None:
        """Return the ring with this name, or None. A shard counts, a sharded queue does not."""
        return self._queues.named(name)

    def queues(self) -> tuple[QueueRecord, ...]:
        """Return all rings, shards too, in order of id."""
        return tuple(self._queues.records.values())

    def led_by(self, node: str) -> Iterator[QueueRecord]:
        """Give the queues with the node as master."""
        return map(self._queues.records.__getitem__, self.load_counts.masters.get(node, ()))

    def queue_ids(self) -> Collection[int]:
        """Return a live view of the ids of all rings."""
        return self._queues.records.keys()

    def policies(self) -> tuple[Policy, ...]:
        """Return all policies, sorted by name."""
        return self._policies.records()

    def exchange(self, name: str) -> ExchangeRecord | None:
        """Return an exchange, or None."""
        return self._exchanges.get(name)

    def exchanges(self) -> tuple[ExchangeRecord, ...]:
        """Return all exchanges, sorted by name."""
        return self._exchanges.records()

    def policy_of(self, name: str) -> Policy | None:
        """Return the policy in force for a queue name, or None. A shard has its queue's policy."""
        return self._policies.policy_of(name)

    def definition_of(self, name: str) -> Definition:
        """Return the definition in force for a queue name."""
        known = self._queues.named(name)
        return self._policies.definition_of(name, "" if known is None else known.arguments)

    def synchronising(self, queue_id: int) -> tuple[MemberId, ...]:
        """Return the joining members of a queue which fetch missing messages: members told to
        start. With `ha-sync-mode` automatic, all joining members not told to stop."""
        record = self._queues.records.get(queue_id)
        if record is None:
            return ()
        told = dict(record.told)
        is_automatic = self.definition_of(record.name).ha_sync_mode == "automatic"
        joining = joining_ids(record.view)
        return tuple(member for member in joining if told.get(member, is_automatic))

    def is_superseded(self, member: MemberId) -> bool:
        """Return true if a newer incarnation of the member's store has been registered.

        Then the process of the old incarnation has certainly ended. A process locks the store while
        open, and registers only with the lock.
        """
        return self._nodes.is_superseded(member)

    def was_set_back(self, member: MemberId) -> bool:
        """Return true if the incarnation goes on from an earlier copy of its store.

        The store may lack confirmed messages and its own votes.
        """
        return self._nodes.was_set_back(member)

    def was_stopped(self, member: MemberId) -> bool:
        """Return true if the user closed the incarnation: its end is a shutdown."""
        return self._nodes.was_stopped(member)

    def may_lose(self, queue: QueueRecord) -> bool:
        """Return true if a member out of sync may become master when no other can.

        `ha-promote-on-failure: when-synced` outranks `ha-promote-on-shutdown: always`. When a
        member in sync was shut down, both keys must allow the loss.
        """
        told = self.definition_of(queue.name)
        stopped = any(m.in_sync and self.was_stopped(m.id) for m in queue.view.members)
        on_shutdown = told.ha_promote_on_shutdown == "always" or not stopped
        return told.ha_promote_on_failure == "always" and on_shutdown

    def growth_error(self, command: commands.CatalogCommand) -> str:
        """Return why the catalog has no room for the command, "" if there is room."""
        replaces = isinstance(command, commands.SetPolicy) and self._policies.has(command.name)
        wrong = self.size.error(command, replaces=replaces)
        return "" if wrong and self._is_done(command) else wrong

    def _is_done(self, command: commands.CatalogCommand) -> bool:
        """Return true if the command adds nothing."""
        match command:
            case commands.DeclareQueue() | commands.DeclareShards():
                return self._bindable(command.name) is not None
            case commands.DeclareExchange():
                return self.exchange(command.name) is not None
            case commands.Bind():
                known, queue = self.exchange(command.exchange), self._bindable(command.queue)
                if known is None or queue is None:
                    return False
                return Binding(queue.id, command.key, command.arguments) in known.bindings
        return False

    @property
    def load_counts(self) -> LoadCounts:
        """Load of each node over all queues."""
        return self._queues.load_counts

    # --- Change ---------------------------------------------------------------------------

    def apply(
        self, index: int, command: commands.CatalogCommand, request: Request | None = None
    ) -> CatalogResult:
        """Apply the command at this index of the log; indexes only grow.

        Args:
            request: the request of the command; None: the leader's own, may be applied again.
        """
        self.applied_index = index
        if request is None:
            return self._apply_within(command)
        known = self.repeated(request.member, request.number)
        if known is not None:
            return known
        result = self._apply_within(command)
        self._deduplication.record_outcome(request, result.value, result.error, result.text)
        return result

    def _apply_within(self, command: commands.CatalogCommand) -> CatalogResult:
        wrong = self.growth_error(command)
        return refused(wrong) if wrong else self._apply(command)

    def _apply(self, command: commands.CatalogCommand) -> CatalogResult:
        match command:
            case commands.RegisterNode():
                return self._on_register_node(command)
            case commands.NodeStopped():
                return self._nodes.stop(command)
            case commands.DeclareQueue():
                return self._declarations.declare(command)
            case commands.DeclareShards():
                return self._declarations.declare_shards(command)
            case commands.ChangeView():
                return self._on_change_view(command)
            case commands.DeleteQueue():
                return self._on_delete_queue(command)
            case commands.NoteConsumers() | commands.NoteOutbox():
                return self._on_note(command)
            case commands.RemoveNode():
                return self._on_remove_node(command)
            case commands.NameCluster():
                self.cluster = self.cluster or command.cluster
                return CatalogResult()
            case commands.SetPolicy():
                return self._on_set_policy(command)
            case commands.ClearPolicy():
                return self._on_clear_policy(command)
            case commands.AcknowledgeLosses():
                return self._on_acknowledge_losses(command)
            case commands.Synchronise():
                return self._on_synchronise(command)
            case commands.DeclareExchange():
                return self._exchanges.declare(self.applied_index, command)
            case commands.DeleteExchange():
                return self._exchanges.delete(self.applied_index, command)
            case commands.Bind():
                return self._on_bind(command)
            case commands.Unbind():
                return self._on_unbind(command)
            case commands.TransferMaster():
                return self._on_transfer_master(command)
            case commands.Rebalance():
                return CatalogResult(value=command.moved)
            case commands.DropCopy():
                return self._on_drop_copy(command)

    # --- Nodes ----------------------------------------------------------------------------

    def _on_register_node(self, command: commands.RegisterNode) -> CatalogResult:
        result = self._nodes.register(command)
        return evolve(result, queues=self._end_owned(command.node)) if result.nodes else result

    def _on_remove_node(self, command: commands.RemoveNode) -> CatalogResult:
        known = self._nodes.get(command.node)
        if known is not None and known.store in command.voters:
            return refused(f"node {command.node} is alive: stop it before it is forgotten")
        unregistered = [StoreId(command.node, store) for store in command.voters]
        if known is None or known.store != command.store:
            self._nodes.bury(unregistered)
            return CatalogResult(nodes=(command.node,) if unregistered else ())
        store = StoreId(known.name, known.store)
        last = self.held_last_by(store)
        if last and not command.force:
            return refused(last_copy_text(command.node, last))
        self._nodes.remove(command.node)
        self._nodes.bury([store, *unregistered])
        self._deduplication.forget(store)
        ended = self._end_owned(command.node)
        for queue in last:
            self._remove(queue.id)
        ended += tuple(queue.id for queue in last)
        return CatalogResult(nodes=(command.node,), queues=ended + self._drop_store(store))

    def _drop_store(self, store: StoreId) -> tuple[int, ...]:
        """Take a store out of every view; return the ids of the queues with a changed view."""
        dropped = []
        for queue in self._queues.on_node(store.node):
            view = without(queue.view, store, self.definition_of(queue.name).durability)
            if view is not None:
                self._queues.change_view(queue, evolve(queue, view=view))
                dropped.append(queue.id)
        return tuple(dropped)

    def _end_owned(self, node: str) -> tuple[int, ...]:
        """Delete the exclusive queues of owners from past incarnations of the node."""
        known = self._nodes.get(node)
        past = f"{node}/"
        current = "" if known is None else f"{node}/{known.incarnation}"
        ended = tuple(
            queue.id
            for queue in self._queues.owned_on(node)
            if (queue.connection.startswith(past) and queue.connection != current)
            or (
                queue.owner_incarnation is not None
                and queue.owner_incarnation.node == node
                and not self._nodes.is_current(queue.owner_incarnation)
            )
        )
        for queue_id in ended:
            self._remove(queue_id)
        return ended

    # --- Queues ---------------------------------------------------------------------------

    def _on_note(self, command: commands.NoteConsumers | commands.NoteOutbox) -> CatalogResult:
        known = self.queue(command.queue_id)
        if known is None:
            return no_queue(command.queue_id)
        if isinstance(command, commands.NoteConsumers):
            self._queues.put(evolve(known, was_consumed=True))
        else:
            self._queues.put(evolve(known, has_outbox=True))
        return CatalogResult(queues=(known.id,))

    def _on_delete_queue(self, command: commands.DeleteQueue) -> CatalogResult:
        sharded = self._sharding.get(command.queue_id)
        if sharded is not None:
            return self._delete_sharded(sharded)
        known = self.queue(command.queue_id)
        if known is None:
            return no_queue(command.queue_id)
        if command.master_epoch and command.master_epoch != known.view.master_epoch:
            return refused(
                f"queue {known.name!r} was to be deleted in term {command.master_epoch}, and is "
                f"in term {known.view.master_epoch}: its consumers may have come back"
            )
        self._end(known, is_drained=command.is_drained)
        return CatalogResult(queues=(known.id,))

    def _delete_sharded(self, sharded: ShardedRecord) -> CatalogResult:
        self._sharding.mark_deleted(sharded)
        rings = self._rings_of(sharded)
        for ring in rings:
            self._end(ring)
        return CatalogResult(queues=tuple(ring.id for ring in rings))

    def _end(self, known: QueueRecord, *, is_drained: bool = False) -> None:
        """Delete a queue; with a possible outbox, only when the outbox is empty."""
        if not is_drained and self.may_have_outbox(known):
            self._queues.put(evolve(known, is_ending=True))
        else:
            self._remove(known.id)

    def _remove(self, queue_id: int) -> None:
        self._queues.remove(queue_id)
        self._exchanges.forget_queue(self.applied_index, queue_id)
        sharded = self._sharding.lose(queue_id, self._queues.records)
        if sharded is not None:
            self._exchanges.forget_queue(self.applied_index, sharded.id)

    def _rings_of(self, sharded: ShardedRecord) -> tuple[QueueRecord, ...]:
        """Return the existing shards of a sharded queue."""
        found = (self.queue(ring) for ring in sharded.rings)
        return tuple(ring for ring in found if ring is not None)

    # --- Views ----------------------------------------------------------------------------

    def _on_change_view(self, command: commands.ChangeView) -> CatalogResult:
        known = self.queue(command.queue_id)
        if known is None:
            return no_queue(command.queue_id)
        if command.replaces != known.view.epoch:
            return refused(
                f"the proposal replaces epoch {command.replaces} of queue "
                f"{known.name!r}, which is at epoch {known.view.epoch}: look again"
            )
        wrong = order_error(command.members)
        if not wrong and command.how == "unclean":
            wrong = loss_error(known, command, may_lose=self.may_lose(known))
        wrong = wrong or promotion_error(known.view, command)
        if wrong:
            return CatalogResult(
                error="ProtocolError",
                text=f"queue {known.name!r} cannot go on from epoch {known.view.epoch}: {wrong}",
            )
        view = changed(known.view, command, self.definition_of(known.name).durability)
        # A member which drops out for a moment and returns in the same incarnation keeps its order.
        # A member in sync has fulfilled its order.
        told = tuple(
            each
            for each in known.told
            if not is_in_sync(view, each[0]) and not self.is_superseded(each[0])
        )
        self._queues.change_view(known, evolve(known, view=view, told=told))
        return CatalogResult(value=view.epoch, queues=(known.id,))

    def _on_synchronise(self, command: commands.Synchronise) -> CatalogResult:
        known = self._rings_named(command.queue)
        if not known:
            return CatalogResult(
                error="QueueNotFound", text=f"no queue is named {command.queue!r}: declare it"
            )
        told = sum(self._synchronise(each, on=command.on) for each in known)
        return CatalogResult(value=told, queues=tuple(each.id for each in known))

    def _on_acknowledge_losses(self, command: commands.AcknowledgeLosses) -> CatalogResult:
        known = self.queue_named(command.queue)
        if known is None:
            return CatalogResult(
                error="QueueNotFound", text=f"no queue is named {command.queue!r}: declare it"
            )
        losses = max(known.losses_known, command.lost)
        self._queues.put(evolve(known, losses_known=losses))
        return CatalogResult(queues=(known.id,))

    def _rings_named(self, name: str) -> tuple[QueueRecord, ...]:
        """Return the rings behind a user's name: all shards of a sharded queue."""
        known, sharded = self.queue_named(name), self._sharding.named(name)
        if known is not None:
            return (known,)
        return () if sharded is None else self._rings_of(sharded)

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
                # No order is kept: if the policy becomes automatic, the synchronisation goes on.
                told = {member: is_on for member, is_on in told.items() if not is_on}
        self._queues.put(evolve(known, told=tuple(told.items())))
        return len(changed)

    def _on_transfer_master(self, command: commands.TransferMaster) -> CatalogResult:
        queue = self.queue_named(command.queue)
        if queue is None:
            return CatalogResult(
                error="QueueNotFound",
                text=f"no queue is named {command.queue!r}: it was deleted or never made",
            )
        master = queue.view.members[0].id.node
        if master != command.node:
            return refused(
                f"the master of queue {command.queue!r} was {command.node} and is "
                f"{master} again: look at its status, then ask again"
            )
        return CatalogResult(value=queue.view.epoch)

    def _on_drop_copy(self, command: commands.DropCopy) -> CatalogResult:
        queue = self.queue(command.queue_id)
        if queue is None:
            return no_queue(command.queue_id)
        member = command.member
        is_member = find_store(queue.view, member.node, member.store) is not None
        if is_member or queue.view.epoch != command.epoch:
            where = "a" if is_member else "no"
            return refused(
                f"{member.node} may not drop its copy of queue {queue.name!r} in epoch "
                f"{command.epoch}: the queue is at epoch {queue.view.epoch}, of which that store "
                f"is {where} member: look again"
            )
        return CatalogResult(value=queue.view.epoch)

    # --- Policies -------------------------------------------------------------------------

    def _on_set_policy(self, command: commands.SetPolicy) -> CatalogResult:
        try:
            policy = from_text(command.name, command.text)
        except PolicyError as error:
            return CatalogResult(error="PolicyError", text=str(error))
        self._policies.put(policy)
        return CatalogResult(redefines=True)

    def _on_clear_policy(self, command: commands.ClearPolicy) -> CatalogResult:
        is_there = self._policies.has(command.name)
        self._policies.clear(command.name)
        return CatalogResult(redefines=is_there)

    def may_have_outbox(self, queue: QueueRecord) -> bool:
        """Return true if a queue may have messages on their way to other queues, or has had."""
        return queue.has_outbox or self._policies.may_have_sent(queue.name)

    # --- Exchanges ------------------------------------------------------------------------

    def _on_bind(self, command: commands.Bind) -> CatalogResult:
        known, queue = self.exchange(command.exchange), self._bindable(command.queue)
        if known is None:
            return no_exchange(command.exchange)
        if queue is None:
            return CatalogResult(
                error="QueueNotFound", text=f"no queue is named {command.queue!r}: declare it first"
            )
        binding = Binding(queue.id, command.key, command.arguments)
        return self._exchanges.bind(self.applied_index, known, binding)

    def _on_unbind(self, command: commands.Unbind) -> CatalogResult:
        known, queue = self.exchange(command.exchange), self._bindable(command.queue)
        if known is None:
            return no_exchange(command.exchange)
        if queue is None:
            return CatalogResult(value=known.version)
        binding = Binding(queue.id, command.key, command.arguments)
        return self._exchanges.unbind(self.applied_index, known, binding)

    def _bindable(self, name: str) -> QueueRecord | ShardedRecord | None:
        """Return the target of a binding to a name: a sharded queue as a whole."""
        return self.queue_named(name) or self._sharding.named(name)

    # --- Without the others ---------------------------------------------------------------

    def outlive(
        self,
        survivor: NodeRecord,
        voters: Sequence[StoreId],
        cluster: int,
        views: Mapping[int, View],
    ) -> None:
        """Make the catalog another cluster's, with the survivor as only node.

        No command, and never called on a running node: see `force_boot`.

        Args:
            voters: all stores of the lost cluster; none may come back.
            views: views of the queues to keep; all other queues are deleted.
        """
        self._nodes.outlive(survivor, voters)
        self._queues.next_id += LOST_IDS_MAX
        self._deduplication = Deduplication()
        self.cluster = cluster
        for queue in self.queues():
            if queue.id in views:
                self._queues.change_view(queue, evolve(queue, view=views[queue.id], told=()))
            else:
                self._remove(queue.id)

    # --- Snapshots ------------------------------------------------------------------------

    def pages(self) -> Iterator[tuple[bytes, bool]]:
        """Give pages of the whole present state, each with true for the last page.

        Later commands do not change the pages. Equal states give equal pages.
        """
        parts: tuple[Iterable[Record], ...] = (
            (ImageHead(self._queues.next_id, self.cluster),),
            self.nodes(),
            self._nodes.past(),
            self._policies.image(),
            self.queues(),
            self._sharding.image(),
            self._exchanges.image(),
            self._deduplication.records(),
        )
        return encode_pages(self.applied_index, chain.from_iterable(parts))

    def snapshot(self) -> tuple[bytes, ...]:
        """Return all pages at once."""
        return tuple(page for page, _ in self.pages())

    @classmethod
    def read(cls, pages: Iterable[bytes]) -> Iterator[Catalog | None]:
        """Read a snapshot. Give None after each page but the last, then the catalog.

        Raises:
            ProtocolError: the pages are incomplete, out of order or of another version.
        """
        catalog = cls()
        for page in pages:
            if catalog.take_page(page):
                yield catalog
                return
            yield None
        raise ProtocolError(
            f"the catalog snapshot ends after page {catalog._pages_taken}, too early"
        )

    @classmethod
    def restore(cls, pages: Iterable[bytes]) -> Catalog:
        """Return the catalog of a snapshot; raise the errors of `read`."""
        return next(catalog for catalog in cls.read(pages) if catalog is not None)

    def take_page(self, data: bytes) -> bool:
        """Take the next page of a snapshot, from an empty catalog; return true after the last.

        Raises:
            ProtocolError: the bytes are no page, not the next page, or of another version.
        """
        page = decode_page(data)
        if page.number != self._pages_taken or (page.number and page.index != self.applied_index):
            raise ProtocolError(
                f"page {page.number} of the catalog snapshot {page.index} does not follow "
                f"{self._pages_taken} pages of snapshot {self.applied_index}"
            )
        self.applied_index = page.index
        self._pages_taken += 1
        for record in page.records:
            self._take(record)
        return page.is_last

    def _take(self, record: Record) -> None:
        match record:
            case ImageHead():
                self._queues.next_id, self.cluster = record.next_queue_id, record.cluster
            case NodeRecord():
                self._nodes.restore(record)
            case StoreId():
                self._nodes.bury((record,))
            case PolicyRecord() | SendingPattern():
                self._take_policy(record)
            case QueueRecord():
                wrong = order_error(record.view.members)
                if wrong:
                    raise ProtocolError(f"the catalog snapshot's queue {record.name!r}: {wrong}")
                self._queues.enter(record)
            case ShardedRecord():
                self._sharding.put(record)
            case ExchangeRecord():
                self._exchanges.restore(record)
            case AskerRecord():
                self._deduplication.restore(record)

    def _take_policy(self, record: PolicyRecord | SendingPattern) -> None:
        try:
            self._policies.restore(record)
        except PolicyError as error:
            raise ProtocolError(f"the catalog snapshot holds no catalog: {error}") from error
