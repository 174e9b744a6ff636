"""Declarations of queues: a ring, or all rings of a sharded queue by one command."""

from __future__ import annotations

from attrs import evolve

from mirrorq.cluster.catalog.nodes import Nodes
from mirrorq.cluster.catalog.policies import Policies
from mirrorq.cluster.catalog.queues import Queues
from mirrorq.cluster.catalog.records import CatalogResult, QueueRecord, difference, refused
from mirrorq.cluster.catalog.sharding import ShardedRecord, Sharding
from mirrorq.cluster.catalog.sharding import difference as sharded_difference
from mirrorq.protocol import commands
from mirrorq.protocol.identities import MemberId
from mirrorq.protocol.policy import arguments_error
from mirrorq.protocol.shard_names import shard_name
from mirrorq.protocol.validation import shards_error
from mirrorq.protocol.views import Member, View, order_error


class Declarations:
    """Makes the queues of one catalog."""

    def __init__(
        self, nodes: Nodes, queues: Queues, sharding: Sharding, policies: Policies
    ) -> None:
        self._nodes = nodes
        self._queues = queues
        self._sharding = sharding
        self._policies = policies

    # --- One ring -------------------------------------------------------------------------

    def declare(self, command: commands.DeclareQueue) -> CatalogResult:
        """Make a queue. An existing queue must be equal, and its id is returned."""
        known = self._sharding.named(command.name) or self._queues.named(command.name)
        members = tuple(Member(member, True) for member in command.members)
        malformed = arguments_error(command.arguments)
        if known is not None and not malformed:
            wrong = _known_error(known, command)
            return refused(wrong) if wrong else CatalogResult(value=known.id)
        wrong = malformed or order_error(members)
        if wrong:
            return CatalogResult(
                error="ProtocolError", text=f"queue {command.name!r} cannot be made: {wrong}"
            )
        owner_incarnation = self._nodes.incarnation_of(command.owner) if command.exclusive else None
        if command.exclusive and owner_incarnation is None:
            return refused(
                f"queue {command.name!r} cannot be exclusive: its owner "
                f"{command.owner} is no handle on a node that runs"
            )
        queue_id = self._make(command, members, owner_incarnation)
        return CatalogResult(value=queue_id, queues=(queue_id,))

    def _make(
        self,
        command: commands.DeclareQueue,
        members: tuple[Member, ...],
        owner_incarnation: MemberId | None = None,
    ) -> int:
        definition = self._policies.definition_of(command.name, command.arguments)
        made = QueueRecord(
            self._queues.give_id(),
            command.name,
            command.durable,
            command.exclusive,
            command.auto_delete,
            command.declarer,
            command.owner,
            View(1, members, master_epoch=1, durability=definition.durability),
            owner_incarnation,
            has_outbox=bool(definition.dead_letter_queue),
            arguments=command.arguments,
        )
        self._queues.enter(made)
        return made.id

    # --- Shards ---------------------------------------------------------------------------

    def declare_shards(self, command: commands.DeclareShards) -> CatalogResult:
        """Make a sharded queue, or its lost rings."""
        known = self._sharding.named(command.name)
        wrong = arguments_error(command.arguments)
        if wrong:
            return CatalogResult(error="ConfigError", text=wrong)
        wrong = self._existing_error(known, command)
        if wrong:
            return refused(wrong)
        wrong = shards_error(command.shards)
        if wrong:
            return CatalogResult(error="ConfigError", text=wrong)
        rings = (0,) * command.shards if known is None else known.rings
        lacking = [shard for shard, ring in enumerate(rings) if ring not in self._queues.records]
        if known is not None and not lacking:
            return CatalogResult(value=known.id)
        views = [tuple(Member(member, True) for member in one) for one in command.members]
        wrong = self._views_error(command, lacking, views)
        if wrong:
            text = f"queue {command.name!r} cannot be made with {command.shards} shards: {wrong}"
            return CatalogResult(error="ProtocolError", text=text)
        if known is None:
            known = ShardedRecord(
                self._queues.give_id(),
                command.name,
                command.durable,
                rings,
                arguments=command.arguments,
            )
        made = {
            shard: self._make_shard(command, shard, views[shard], known.arguments)
            for shard in lacking
        }
        rings = tuple(made.get(shard, ring) for shard, ring in enumerate(rings))
        self._sharding.put(evolve(known, rings=rings))
        return CatalogResult(value=known.id, queues=tuple(made.values()))

    def _existing_error(self, known: ShardedRecord | None, command: commands.DeclareShards) -> str:
        """Return why an existing queue of the name conflicts, "" without a conflict."""
        if known is not None:
            return sharded_difference(known, command)
        if self._queues.named(command.name) is None:
            return ""
        return (
            f"queue {command.name!r} exists and is not sharded, not shards={command.shards}: "
            "declare it without shards, or under another name"
        )

    def _views_error(
        self, command: commands.DeclareShards, lacking: list[int], views: list[tuple[Member, ...]]
    ) -> str:
        """Return why the lacking shards cannot begin with the views, "" if they can."""
        if len(views) != command.shards:
            return f"it has {len(views)} first views"
        for shard in lacking:
            wrong = order_error(views[shard])
            if wrong:
                return wrong
            if self._queues.named(shard_name(command.name, shard)) is not None:
                return "a shard's name is taken"
        return ""

    def _make_shard(
        self,
        command: commands.DeclareShards,
        shard: int,
        members: tuple[Member, ...],
        arguments: str,
    ) -> int:
        name, declarer = shard_name(command.name, shard), command.declarer
        one = commands.DeclareQueue(
            name, command.durable, False, False, declarer, None, (), arguments
        )
        return self._make(one, members)


def _known_error(known: QueueRecord | ShardedRecord, command: commands.DeclareQueue) -> str:
    """Return why an existing queue of the name conflicts, "" without a conflict."""
    if isinstance(known, ShardedRecord):
        return sharded_difference(known, command)
    if known.is_ending:
        return (
            f"queue {known.name!r} is being deleted and still has messages for other "
            "queues: declare it again when they have arrived"
        )
    return difference(known, command)
