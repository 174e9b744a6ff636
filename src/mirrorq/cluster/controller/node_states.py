"""How the catalog's leader sees nodes: who lives, who is about to stop, who could lead what. Pure.

Questions only, answered from the catalog and from what was heard. `controller` keeps it up to
date; what it does about the answers, and what `admission` and `transfers` let others do, is theirs.
"""

from __future__ import annotations

from collections.abc import Callable

from attrs import frozen

from mirrorq.cluster.catalog.core import Catalog
from mirrorq.cluster.catalog.records import QueueRecord
from mirrorq.cluster.controller.failure_detector import FailureDetector, Status
from mirrorq.cluster.controller.grace_periods import GracePeriods
from mirrorq.cluster.controller.leases import LeaseGrantor
from mirrorq.cluster.controller.placement import Loads, wanted_members
from mirrorq.protocol.identities import MemberId
from mirrorq.protocol.views import View, counts_incarnations, joining_ids, promotable


@frozen
class Leave:
    """A member gave its lease up, and with it its masters."""

    number: int
    """Its newest request then."""
    ends_ms: int


@frozen
class Situation:
    """What holds for all queues in one round of judgements."""

    running: tuple[MemberId, ...]
    """Nodes that hold queues, are alive and are not about to leave."""
    loads: Loads


class NodeStates:
    """What one node knows of the others, of use while it leads the catalog."""

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
        """In a round of judgements: of a thousand queues it is asked for the same few members."""

    def status(self, member: MemberId) -> Status:
        """Judge one incarnation; what the catalog knows counts too."""
        if self._statuses is None:
            return self._judged(member)
        known = self._statuses.get(member)
        if known is None:
            known = self._statuses[member] = self._judged(member)
        return known

    def begin_round(self) -> None:
        """Nothing is heard or applied until the end of this round of judgements."""
        self._statuses = {}

    def end_round(self) -> None:
        self._statuses = None

    def _judged(self, member: MemberId) -> Status:
        if member != self.own and self.catalog.is_superseded(member):
            return Status.DEAD
        return self.liveness.status(member)

    def situation(self) -> Situation:
        """Return what holds for all queues now."""
        running = tuple(
            node.member
            for node in self.catalog.nodes()
            if not node.witness
            and self.status(node.member) is Status.ALIVE
            and not self.is_leaving(node.member)
        )
        load_counts = self.catalog.load_counts
        return Situation(running, Loads(dict(load_counts.masters), dict(load_counts.copies)))

    def wanted(self, queue: QueueRecord, situation: Situation) -> tuple[MemberId, ...]:
        """Return the members that the queue should have by the policy in force."""
        definition = self.catalog.definition_of(queue.name)
        lost = self.kept.lost(self.now_ms, queue.id)
        return wanted_members(queue, definition, situation.running, situation.loads, lost)

    def is_alive(self, member: MemberId) -> bool:
        """Say whether this incarnation is heard."""
        return self.status(member) is Status.ALIVE

    def stays(self, member: MemberId) -> bool:
        """Say whether a mirror may stay: alive, or not yet judged by a new leader."""
        return self.status(member) in (Status.ALIVE, Status.UNKNOWN)

    def is_leaving(self, member: MemberId) -> bool:
        """Say whether it has given its lease up, or was closed by its user."""
        return member in self.leaving or self.catalog.was_stopped(member)

    def is_serving(self, master: MemberId) -> bool:
        """Whether it can be asked to give a queue up: one that is leaving has given all up."""
        return self.is_alive(master) and not self.is_leaving(master)

    def present(self, known: MemberId) -> MemberId | None:
        """Return the living incarnation of a member's store, if it may be a master."""
        if self.status(known) is Status.ALIVE:
            return known
        node = self.catalog.node(known.node)
        if node is None or node.store != known.store or node.witness:
            return None
        return node.member if self.status(node.member) is Status.ALIVE else None

    def note_broken(self, member: MemberId, queues: tuple[int, ...]) -> None:
        """The copies of these queues on that node's disk cannot be read."""
        if queues:
            self._broken[member] = queues
        else:
            self._broken.pop(member, None)

    def is_broken(self, member: MemberId, queue_id: int) -> bool:
        """Say whether nothing can be made of what this member has of a queue."""
        own = self._own_broken() if member == self.own else ()
        return queue_id in own or queue_id in self._broken.get(member, ())

    def candidate(self, queue: QueueRecord, known: MemberId) -> MemberId | None:
        """Return the incarnation of this member in sync that may become master, if it runs (R5)."""
        member = self.present(known)
        if member is not None and self.is_broken(member, queue.id):
            return None
        return None if counts_incarnations(queue.view) and member != known else member

    def is_one_coming_back(self, queue: QueueRecord) -> bool:
        """Say whether a member in sync was restarted with a copy that it can read: its new
        incarnation is heard, and is about to register."""
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
        """Choose the oldest mirror that runs, where the policy in force lets one that is not
        in sync become master. The catalog checks that again.

        With `durability: replicated` restarted members are not in sync any more, and come back
        so under every policy, as soon as it is certain that no incarnation in sync goes on.
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
        """Return who was in sync in an incarnation that has ended, where incarnations count."""
        former = promotable(view)
        ended = may_lose or all(self.status(one) is Status.DEAD for one in former)
        return former if counts_incarnations(view) and ended else ()

    def may_replace(self, master: MemberId) -> bool:
        """Say whether no lease of this master can still run, or it is known dead."""
        return self.status(master) is Status.DEAD or self.now_ms >= self._grantor.free_at_ms(master)
