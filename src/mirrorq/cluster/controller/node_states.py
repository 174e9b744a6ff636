"""Nodes as the catalog's leader sees them: living, leaving, and able to lead a queue. Pure.

Questions only, answered from the catalog and the heard signs of life. `controller` keeps the state
up to date. Consequences are drawn by `controller`, `admission` and `transfers`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from attrs import frozen

from mirrorq.cluster.catalog.catalog import Catalog
from mirrorq.cluster.catalog.records import QueueRecord
from mirrorq.cluster.controller.failure_detector import FailureDetector, Status
from mirrorq.cluster.controller.grace_periods import GracePeriods
from mirrorq.cluster.controller.leases import LeaseGrantor
from mirrorq.cluster.controller.placement import Loads, wanted_members
from mirrorq.protocol.identities import MemberId
from mirrorq.protocol.views import View, counts_incarnations, joining_ids, promotable


@frozen
class Leave:
    """A member released its lease, and with the lease its masters."""

    number: int
    """Number of the newest lease request at the release."""
    ends_ms: int


@frozen
class Situation:
    """State shared by all queues in one round of judgements."""

    running: tuple[MemberId, ...]
    """Living nodes with queues, except leaving nodes."""
    loads: Loads


class NodeStates:
    """A node's knowledge of the other nodes, used while the node leads the catalog."""

    def __init__(
        self,
        own: MemberId,
        catalog: Catalog,
        liveness: FailureDetector,
        grantor: LeaseGrantor,
        kept: GracePeriods,
        now_ms: int,
        own_broken: Callable[[], tuple[int, ...]] = tuple,
    ) -> None:
        self.catalog = catalog
        self.liveness = liveness
        self.kept = kept
        self.own = own
        self.leaving: dict[MemberId, Leave] = {}
        self.now_ms = now_ms
        self._own_broken = own_broken
        self._broken: dict[MemberId, tuple[int, ...]] = {}
        self._grantor = grantor
        self._statuses: dict[MemberId, Status] | None = None
        """Cache of one round of judgements: a thousand queues ask for the same few members."""

    def status(self, member: MemberId) -> Status:
        """Judge one incarnation, by the detector and the catalog."""
        if self._statuses is None:
            return self._judged(member)
        known = self._statuses.get(member)
        if known is None:
            known = self._statuses[member] = self._judged(member)
        return known

    def begin_round(self) -> None:
        """Begin a round of judgements: no input or commit comes until its end."""
        self._statuses = {}

    def end_round(self) -> None:
        self._statuses = None

    def _judged(self, member: MemberId) -> Status:
        if member != self.own and self.catalog.is_superseded(member):
            return Status.DEAD
        return self.liveness.status(member)

    def situation(self) -> Situation:
        """Return the state shared by all queues now."""
        running = tuple(
            node.member
            for node in self.catalog.nodes()
            if not node.witness
            and self.status(node.member) is Status.ALIVE
            and not self.is_leaving(node.member)
        )
        of_nodes = self.catalog.load_counts
        loads = Loads(_counted(of_nodes.masters), _counted(of_nodes.copies))
        return Situation(running, loads)

    def wanted(self, queue: QueueRecord, situation: Situation) -> tuple[MemberId, ...]:
        """Return the members wanted for the queue by the policy in force."""
        definition = self.catalog.definition_of(queue.name)
        lost = self.kept.lost(self.now_ms, queue.id)
        return wanted_members(queue, definition, situation.running, situation.loads, lost)

    def is_alive(self, member: MemberId) -> bool:
        """Return true if the incarnation is heard."""
        return self.status(member) is Status.ALIVE

    def stays(self, member: MemberId) -> bool:
        """Return true if a mirror may stay: alive, or not yet judged by a new leader."""
        return self.status(member) in (Status.ALIVE, Status.UNKNOWN)

    def is_leaving(self, member: MemberId) -> bool:
        """Return true if the member has released its lease, or its user closed the node."""
        return member in self.leaving or self.catalog.was_stopped(member)

    def is_serving(self, master: MemberId) -> bool:
        """Return true if the master can give a queue up: alive, and not leaving."""
        return self.is_alive(master) and not self.is_leaving(master)

    def present(self, known: MemberId) -> MemberId | None:
        """Return the living incarnation of a member's store, if fit to be master; else None."""
        if self.status(known) is Status.ALIVE:
            return known
        node = self.catalog.node(known.node)
        if node is None or node.store != known.store or node.witness:
            return None
        return node.member if self.status(node.member) is Status.ALIVE else None

    def note_broken(self, member: MemberId, queues: tuple[int, ...]) -> None:
        """Note the queues with unreadable copies on the member's disk."""
        if queues:
            self._broken[member] = queues
        else:
            self._broken.pop(member, None)

    def is_broken(self, member: MemberId, queue_id: int) -> bool:
        """Return true if the member's copy of the queue is unreadable."""
        own = self._own_broken() if member == self.own else ()
        return queue_id in own or queue_id in self._broken.get(member, ())

    def candidate(self, queue: QueueRecord, known: MemberId) -> MemberId | None:
        """Return the running incarnation of a member in sync, if fit to become master (R5)."""
        member = self.present(known)
        if member is not None and self.is_broken(member, queue.id):
            return None
        return None if counts_incarnations(queue.view) and member != known else member

    def is_one_coming_back(self, queue: QueueRecord) -> bool:
        """Return true if a member in sync was restarted with a readable copy: its new incarnation
        is heard, and is about to register."""
        for known in promotable(queue.view):
            later = self.liveness.later(known)
            if later is None or self.is_broken(later, queue.id):
                continue
            node = self.catalog.node(known.node)
            if node is None or node.store != known.store:
                continue
            if node.incarnation < later.incarnation:
                return True
        return False

    def unclean_head(self, queue: QueueRecord) -> MemberId | None:
        """Choose the oldest running mirror, where the policy in force lets a member out of sync
        become master. The catalog checks the choice again.

        With `durability: replicated` restarted members are out of sync. They come back as
        candidates under every policy, once no incarnation in sync can go on for certain.
        """
        may_lose = self.catalog.may_lose(queue)
        joining = joining_ids(queue.view) if may_lose else ()
        for known in (*self._restarted(queue.view, may_lose), *joining):
            member = self.present(known)
            is_same = member == known or queue.durable or known not in joining
            if member is not None and self.is_broken(member, queue.id):
                continue
            if member is not None and is_same and not self.is_leaving(member):
                return member
        return None

    def _restarted(self, view: View, may_lose: bool) -> tuple[MemberId, ...]:
        """Return members in sync with an ended incarnation, where incarnations count."""
        former = promotable(view)
        ended = may_lose or all(self.status(one) is Status.DEAD for one in former)
        return former if counts_incarnations(view) and ended else ()

    def may_replace(self, master: MemberId) -> bool:
        """Return true if none of the master's leases can still run, or the master is known dead."""
        return self.status(master) is Status.DEAD or self.now_ms >= self._grantor.free_at_ms(master)


def _counted(queues: Mapping[str, Collection[int]]) -> dict[str, int]:
    return {node: len(ids) for node, ids in queues.items()}
