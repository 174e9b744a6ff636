"""The leader's answer to catalog requests, before any command enters the log. Pure.

`Admission.admit` returns the command to propose, completed with the leader's knowledge, or an
answer with the refusal. The catalog checks each command again when its turn comes.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from mirrorq.cluster.catalog.records import QueueRecord, last_copy_text, set_back_text
from mirrorq.cluster.controller.failure_detector import Status
from mirrorq.cluster.controller.leases import Leading
from mirrorq.cluster.controller.node_states import NodeStates
from mirrorq.cluster.controller.placement import Spread, wanted_members
from mirrorq.cluster.controller.transfers import Transfers
from mirrorq.errors import PolicyError
from mirrorq.protocol import commands
from mirrorq.protocol.control import CatalogAnswer, CatalogRequest
from mirrorq.protocol.identities import MemberId, StoreId
from mirrorq.protocol.policy import from_text
from mirrorq.protocol.shard_names import shard_name
from mirrorq.protocol.validation import shards_error
from mirrorq.protocol.views import (
    View,
    arrange,
    find,
    in_sync_ids,
    is_in_sync,
    links,
    member_ids,
    order_error,
    promotable,
)


class Admission:
    """The leader's judgement of requests: commands to propose, completed by the leader, or
    refusals. Holds no state."""

    def __init__(self, node_states: NodeStates, moves: Transfers) -> None:
        self._nodes = node_states
        self._moves = moves

    def admit(
        self, request: CatalogRequest, leading: Leading | None
    ) -> commands.CatalogCommand | CatalogAnswer:
        """Return the command to propose for a request, or an answer with the refusal."""
        if leading is None or not leading.own_term_applied:
            return CatalogAnswer(request.number, 0, retry=True)
        if self._nodes.catalog.was_set_back(request.member):
            # The node was greeted while the local catalog was behind.
            text = set_back_text(request.member.node)
            return CatalogAnswer(request.number, 0, "PreconditionFailed", text)
        command = request.command
        known = self._nodes.catalog.repeated(request.member, request.number)
        if known is not None and known.error:
            return CatalogAnswer(request.number, 0, known.error, known.text)
        if known is not None:
            # The command changes nothing, and its outcome comes when the asker's catalog is as far.
            return command
        wrong = self._nodes.catalog.growth_error(command)
        if wrong:
            return CatalogAnswer(request.number, 0, "PreconditionFailed", wrong)
        match command:
            case commands.DeclareQueue():
                command = self.fill_members(command)
                if not command.members and self._nodes.catalog.queue_named(command.name) is None:
                    return CatalogAnswer(request.number, 0, retry=True)
                return command
            case commands.DeclareShards():
                command = self.fill_shards(command)
                if not all(command.members):
                    return CatalogAnswer(request.number, 0, retry=True)
                return command
            case commands.ChangeView():
                wrong = self._change_error(request.member, command)
            case commands.RemoveNode():
                return self._admit_removal(request.number, command, leading.voters)
            case commands.RegisterNode() | commands.NodeStopped():
                wrong = _registration_error(request.member, command)
            case commands.SetPolicy():
                try:
                    from_text(command.name, command.text)
                except PolicyError as error:
                    return CatalogAnswer(request.number, 0, "PolicyError", str(error))
                wrong = ""
            case commands.TransferMaster():
                return self._moves.admit_transfer(request, command)
            case commands.Rebalance():
                return self._moves.admit_rebalance(request)
            case commands.DropCopy():
                wrong = self._drop_error(request.member, command)
            case commands.DeleteQueue() | commands.NoteConsumers() | commands.NoteOutbox():
                wrong = ""
            case (
                commands.ClearPolicy()
                | commands.Synchronise()
                | commands.AcknowledgeLosses()
                | commands.NameCluster()
            ):
                wrong = ""
            case (
                commands.DeclareExchange()
                | commands.DeleteExchange()
                | commands.Bind()
                | commands.Unbind()
            ):
                wrong = ""
        if wrong:
            return CatalogAnswer(request.number, 0, "PreconditionFailed", wrong)
        return command

    def fill_members(self, command: commands.DeclareQueue) -> commands.DeclareQueue:
        """Return the declaration with a first view: running members, all in sync."""
        situation = self._nodes.situation()
        liveness = self._nodes.liveness
        steady = [member for member in situation.running if liveness.is_steady(member)]
        if command.exclusive:
            # On the owner's node, steady or not, and on no other.
            own = [member for member in situation.running if member.node == command.declarer]
            declarer = self._nodes.catalog.node(command.declarer)
            is_witness = declarer is not None and declarer.witness
            steady = steady if is_witness else own
        definition = self._nodes.catalog.definition_of(command.name)
        wanted = wanted_members(command, definition, steady, situation.loads)
        if not wanted:
            return replace(command, members=())
        in_sync, _ = arrange(wanted[0], wanted[1:], (), liveness.is_broken)
        return replace(command, members=in_sync)

    def fill_shards(self, command: commands.DeclareShards) -> commands.DeclareShards:
        """Return the declaration with the first view of each shard, existing shards included."""
        if shards_error(command.shards):
            return replace(command, members=())
        catalog, liveness = self._nodes.catalog, self._nodes.liveness
        situation = self._nodes.situation()
        steady = [member for member in situation.running if liveness.is_steady(member)]
        definition = catalog.definition_of(shard_name(command.name, 0))
        spread = Spread(definition, steady, situation.loads)
        known = catalog.sharded_named(command.name)
        for ring in () if known is None else known.rings:
            record = catalog.queue(ring)
            if record is not None:
                spread.count_shard(member_ids(record.view))
        views = []
        for shard in range(command.shards):
            wanted = spread.members(command, shard)
            if wanted:
                wanted, _ = arrange(wanted[0], wanted[1:], (), liveness.is_broken)
            views.append(wanted)
        return replace(command, members=tuple(views))

    def _change_error(self, asker: MemberId, command: commands.ChangeView) -> str:
        """R12: return why a change of a view is not the master's to make, "" if allowed."""
        queue = self._nodes.catalog.queue(command.queue_id)
        if queue is None or queue.view.epoch != command.replaces:
            return ""  # the apply refuses the command with the same text for every asker
        wrong = order_error(command.members)
        if wrong:
            return wrong
        if queue.view.members[0].id != asker or command.members[0].id != asker:
            return (
                f"{asker.node} is not the master of queue {queue.name!r} in both views: only "
                "the catalog's leader replaces a master"
            )
        proposed = View(command.replaces + 1, command.members)
        strangers = [one.node for one in member_ids(proposed) if find(queue.view, one) is None]
        if strangers or command.how:
            return f"a master adds no members and promotes nobody: {strangers}, {command.how!r}"
        return self._link_error(queue.view, proposed)

    def _link_error(self, view: View, proposed: View) -> str:
        """Return why a joiner may not be counted in beside a broken link, "" if allowed."""
        if all(is_in_sync(view, one) for one in in_sync_ids(proposed)):
            return ""
        for one, other in links(proposed):
            if self._nodes.liveness.is_broken(one, other):
                return f"the link between {one} and {other} is broken"
        return ""

    def _drop_error(self, asker: MemberId, command: commands.DropCopy) -> str:
        """Return why a copy outside the view must stay for now, "" if the node may drop it."""
        queue = self._nodes.catalog.queue(command.queue_id)
        if queue is None or queue.view.epoch != command.epoch:
            return ""  # the apply refuses the command with the same text for every asker
        if command.member != asker:
            return f"{asker.node} speaks for another node: {command.member.node}"
        if not self._nodes.is_serving(asker):
            return f"{asker.node} is about to stop: it may be wanted again when it is back"
        wanted = self._nodes.wanted(queue, self._nodes.situation())
        if asker in wanted:
            return f"{asker.node} is to have a copy of queue {queue.name!r} again"
        missing = [one.node for one in wanted if not is_in_sync(queue.view, one)]
        if missing or not any(self._nodes.is_alive(one) for one in in_sync_ids(queue.view)):
            return (
                f"the copy of queue {queue.name!r} on {asker.node} may be needed: "
                f"{', '.join(missing) or 'every other node'} is not in sync or does not run"
            )
        return ""

    def _admit_removal(
        self, number: int, command: commands.RemoveNode, voters: Sequence[StoreId]
    ) -> commands.CatalogCommand | CatalogAnswer:
        """Admit the removal of a stopped node, when none of its leases can still run.

        An admitted node which ended before it registered is known by its vote alone.
        """
        record = self._nodes.catalog.node(command.node)
        stores = [voter.store for voter in voters if voter.node == command.node]
        if record is not None:
            stores = [record.store, *(store for store in stores if store != record.store)]
        if not stores or command.store not in (0, stores[0]):
            names = ", ".join(node.name for node in self._nodes.catalog.nodes())
            text = f"the cluster has no node {command.node!r}: its nodes are {names}"
            return CatalogAnswer(number, 0, "PreconditionFailed", text)
        name = command.node
        if name == self._nodes.own.node or self._nodes.liveness.is_heard(name):
            text = f"node {name} is alive: stop it before it is forgotten"
            return CatalogAnswer(number, 0, "PreconditionFailed", text)
        if record is None:
            return replace(command, store=0, voters=tuple(stores))
        store = StoreId(record.name, record.store)
        last = self._nodes.catalog.held_last_by(store)
        if last and not command.force:
            text = last_copy_text(record.name, last)
            return CatalogAnswer(number, 0, "PreconditionFailed", text)
        is_unjudged = self._nodes.status(record.member) is Status.UNKNOWN
        if not self._nodes.catalog.was_stopped(record.member):
            is_unjudged |= self._nodes.liveness.may_come_back(name)
        queues = self._nodes.catalog.led_by(name)
        if is_unjudged or any(self._waits_for(queue, store) for queue in queues):
            return CatalogAnswer(number, 0, retry=True)
        return replace(command, store=record.store, voters=tuple(stores[1:]))

    def _waits_for(self, queue: QueueRecord, store: StoreId) -> bool:
        """Return true if the store's node is master and will be replaced soon, or may yet act."""
        master = queue.view.members[0].id
        if (master.node, master.store) != (store.node, store.store):
            return False
        promoted = (self._nodes.candidate(queue, one) for one in promotable(queue.view))
        can_follow = any(one is not None for one in promoted)
        can_follow = can_follow or self._nodes.unclean_head(queue) is not None
        return can_follow or not self._nodes.may_replace(master)


def _registration_error(
    asker: MemberId, command: commands.RegisterNode | commands.NodeStopped
) -> str:
    named = MemberId(command.node, command.store, command.incarnation)
    if named != asker:
        return f"{asker.node} speaks for another node: {named.node}"
    return ""
