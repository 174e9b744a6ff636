"""Requests to move masters: `transfer_master` and `rebalance`, handled at the catalog's leader.

Askers repeat both requests until done. Each request becomes a wish for a queue's master
(`handover.HandOvers`). The judgement of the queue (`controller`) carries the wish out: it asks the
master for its promise and replaces the view. Pure.
"""

from __future__ import annotations

from mirrorq.cluster.catalog.records import QueueRecord
from mirrorq.cluster.controller.failure_detector import Status
from mirrorq.cluster.controller.handover import HandOvers, Rebalancing
from mirrorq.cluster.controller.node_states import NodeStates, Situation
from mirrorq.cluster.controller.placement import Levelling, QueueMaster
from mirrorq.protocol.commands import CatalogCommand, Rebalance, TransferMaster
from mirrorq.protocol.control import CatalogAnswer, CatalogRequest
from mirrorq.protocol.views import find_store, in_sync_ids, member_ids

LOOKS_AT_ONCE = 256
"""Queues that one request of a rebalance looks at."""
FOUND_AT_ONCE = 256
"""Moves of masters that one request of a rebalance finds."""


class Transfers:
    """Checks requests to move masters, and notes the wishes."""

    def __init__(self, node_states: NodeStates, handovers: HandOvers) -> None:
        self._nodes = node_states
        self._handovers = handovers
        self._wished: dict[int, None] = {}

    def take_wished(self) -> tuple[int, ...]:
        """Return, once, the queues with new wishes: they are to be judged."""
        wished = tuple(self._wished)
        self._wished.clear()
        return wished

    def admit_transfer(
        self, request: CatalogRequest, command: TransferMaster
    ) -> CatalogCommand | CatalogAnswer:
        """Wish for the new master; the command enters the log when the new master leads."""
        queue = self._nodes.catalog.queue_named(command.queue)
        sharded = self._nodes.catalog.sharded_named(command.queue)
        if sharded is not None:
            text = (
                f"queue {command.queue!r} has {len(sharded.rings)} shards, each with a master of "
                f"its own: name one of them, as {sharded.names()[0]!r}, or call rebalance"
            )
            return CatalogAnswer(request.number, 0, "PreconditionFailed", text)
        if queue is None:
            text = f"no queue is named {command.queue!r}: it was deleted or never made"
            return CatalogAnswer(request.number, 0, "QueueNotFound", text)
        master = queue.view.members[0].id
        if master.node == command.node and self._nodes.is_alive(master):
            return command
        wrong = self._transfer_error(queue, command.node, self._nodes.situation())
        if wrong:
            return CatalogAnswer(request.number, 0, "PreconditionFailed", wrong)
        self._wish(queue.id, command.node)
        return CatalogAnswer(request.number, 0, retry=True)

    def admit_rebalance(self, request: CatalogRequest) -> CatalogCommand | CatalogAnswer:
        """Begin, go on with, or end a rebalance; refuse a second rebalance."""
        asker = (request.member, request.number)
        under_way = self._handovers.rebalancing
        if under_way is not None and under_way.asker != asker:
            if self._nodes.now_ms < under_way.asked_ms + self._handovers.patience_ms:
                text = (
                    f"a rebalance that {under_way.asker[0].node} asked for is running, with "
                    f"{under_way.left} masters still to be moved: ask again when it is done"
                )
                return CatalogAnswer(request.number, 0, "PreconditionFailed", text)
            under_way = None
        situation = self._nodes.situation()
        if under_way is None:
            unseen = list(self._nodes.catalog.queue_ids())
            unseen.reverse()
            levelling = Levelling(member.node for member in situation.running)
            under_way = Rebalancing(asker, unseen, levelling)
            self._handovers.rebalancing = under_way
        under_way.asked_ms = self._nodes.now_ms
        if not under_way.is_found:
            self._find_moves(under_way, situation)
            return CatalogAnswer(request.number, 0, retry=True)
        self._count_moved(under_way, situation)
        while (move := under_way.next_move()) is not None:
            self._wish(*move)
        if not under_way.moving:
            self._handovers.rebalancing = None
            return Rebalance(under_way.moved)
        return CatalogAnswer(request.number, 0, retry=True)

    def _find_moves(self, under_way: Rebalancing, situation: Situation) -> None:
        """Look at a portion of the queues; when all are seen, find a portion of the moves."""
        for _ in range(min(LOOKS_AT_ONCE, len(under_way.unseen))):
            queue = self._nodes.catalog.queue(under_way.unseen.pop())
            if queue is not None:
                under_way.levelling.add(self._master_of(queue, situation))
        if not under_way.unseen:
            found = (under_way.levelling.lower() for _ in range(FOUND_AT_ONCE))
            under_way.is_found = not all(found)

    def _wish(self, queue_id: int, node: str) -> None:
        self._handovers.wish(self._nodes.now_ms, queue_id, node)
        self._wished[queue_id] = None

    def _transfer_error(self, queue: QueueRecord, name: str, situation: Situation) -> str:
        """Return why a node cannot become the queue's master now, with the remedy; "" if it can."""
        refused = f"{name} cannot become master of queue {queue.name!r}: "
        record = self._nodes.catalog.node(name)
        if record is None:
            known = ", ".join(node.name for node in self._nodes.catalog.nodes())
            return refused + f"no node has that name, the nodes are {known}"
        known_copy = find_store(queue.view, record.name, record.store)
        if known_copy is None:
            copies = ", ".join(one.node for one in member_ids(queue.view))
            return refused + f"it has no copy, {copies} have: change the policy, or choose one"
        is_dead = self._nodes.status(record.member) is Status.DEAD
        if is_dead or self._nodes.is_leaving(record.member):
            return refused + "it does not run, or is about to stop: start it first"
        if not known_copy.in_sync or known_copy.id != record.member:
            return refused + (
                "it is not in sync: wait until status().synchronised_mirrors names it "
                "(with ha-sync-mode manual call sync_queue)"
            )
        if record.member not in self._nodes.wanted(queue, situation):
            policy = self._nodes.catalog.policy_of(queue.name)
            why = "an exclusive queue stays" if policy is None else f"policy {policy.name!r} holds"
            return refused + f"{why}, by which no copy stays on it: change that first"
        return ""

    def _master_of(self, queue: QueueRecord, situation: Situation) -> QueueMaster:
        """Return a queue's master, and the members able to lead the queue at once."""
        master = queue.view.members[0].id
        wanted = self._nodes.wanted(queue, situation)
        in_sync = in_sync_ids(queue.view)
        others = tuple(m.node for m in in_sync if m != master and m in wanted)
        is_movable = not queue.exclusive and master in situation.running
        return QueueMaster(queue.id, master.node, others if is_movable else ())

    def _count_moved(self, under_way: Rebalancing, situation: Situation) -> None:
        """Drop done moves, and moves no longer possible, from the moves under way. Wish for the
        others again."""
        for queue_id, node in list(under_way.moving.items()):
            queue = self._nodes.catalog.queue(queue_id)
            is_done = queue is not None and queue.view.members[0].id.node == node
            under_way.moved += is_done
            if queue is None or is_done or self._transfer_error(queue, node, situation):
                del under_way.moving[queue_id]
            else:
                self._wish(queue_id, node)
