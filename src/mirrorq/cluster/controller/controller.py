"""Duties of the catalog's leader to every queue: a living master, and a ring which closes.

The machine runs on every node, so a new leader knows at once which nodes live. It proposes and
grants only while its node leads and has applied an entry of its own term. It reads the applied
catalog and changes nothing itself: all its wishes are in the `SupervisorEffects` of a step.

Guarantees
    1. A new master was in sync in the last committed view (R5): the candidates come from
       the catalog, and the proposal names the epoch to replace (R12).
    2. A master is replaced only when known dead, or when no lease by any leader can still
       run. From the proposal on the old master gets no lease, until the queue's epoch has
       changed: a proposal which seems lost may still be committed.
    3. Only the queue's master counts a joiner in (R12): supervised changes keep or
       shrink the set in sync, and `admit` refuses proposals from other nodes.
    4. Two removals need a word of the master in the same epoch, so no change includes both a
       removal and the promotion: a good copy goes as no longer wanted, or the last mirror
       goes, dead or not (R13). The master may have died a moment ago unnoticed. Then only
       these copies are left.
    5. The last copy in sync is never removed. A queue without a running member in sync
       stays down until one comes back, unless its policy lets the oldest running mirror
       go on. The catalog records how the last members in sync ended, by shutdown or by
       failure, so a new leader knows too.

State of nodes is in `node_states`, answers to requests in `admission` and `transfers`.

A queue is judged when its view, a node or a link of its ring has changed, and when a deadline has
come. A new node puts all queues on the agenda. Judgement runs in portions (`agenda`), on the state
at the queue's turn. A judgement chooses the master, then the members in sync beside the master,
then the joiners, then an order without broken links (R11). A difference from the view is proposed.
The queue gets no further proposal until the epoch has changed or the proposal seems lost.
"""

from __future__ import annotations

from collections.abc import Callable

from attrs import define

from mirrorq.cluster.catalog.catalog import Catalog
from mirrorq.cluster.catalog.records import QueueRecord
from mirrorq.cluster.controller.admission import Admission
from mirrorq.cluster.controller.agenda import Agenda
from mirrorq.cluster.controller.events import (
    CatalogChanged,
    CatalogReplaced,
    Event,
    Heard,
    LinkBroken,
    ProbeRefused,
    SupervisorEffects,
)
from mirrorq.cluster.controller.failure_detector import FailureDetector, LivenessNews, Status
from mirrorq.cluster.controller.grace_periods import GracePeriods
from mirrorq.cluster.controller.handover import HandOvers
from mirrorq.cluster.controller.join_throttle import JoinThrottle
from mirrorq.cluster.controller.leases import Leading, LeaseGrantor
from mirrorq.cluster.controller.node_states import Leave, NodeStates, Situation
from mirrorq.cluster.controller.transfers import Transfers
from mirrorq.config import Config
from mirrorq.containers.timers import earliest
from mirrorq.protocol import control
from mirrorq.protocol.commands import CatalogCommand, ChangeView, DeleteQueue
from mirrorq.protocol.identities import MemberId
from mirrorq.protocol.policy import Definition
from mirrorq.protocol.views import (
    Member,
    View,
    arrange,
    find,
    in_sync_ids,
    is_in_sync,
    joining_ids,
    make_view,
    member_ids,
    next_durability,
    promotable,
)

LEAVE_FACTOR = 5
"""A node which released its lease gets no copies for this many failure_ms: longer than a close may
last. A node heard for longer has changed its mind."""
KEEP_FACTOR = 3
"""The place of a lost member is kept for this many failure_ms: longer than a process restart, short
beside the time with a copy less."""
WISH_FACTOR = 2
"""A wish to move a master is dropped after this many failure_ms without repetition."""


@define
class _Proposal:
    """A proposal under way for a queue."""

    epoch: int
    """The epoch to replace."""
    sent_ms: int
    evicts: bool
    """This proposal, or an earlier one for the epoch, takes the queue from its master."""
    members: tuple[Member, ...]
    """Members after the change; () for a deletion."""
    round_number: int
    """Round of the judgement: see `Controller._round_number`."""
    definition: Definition
    is_stale: bool = False
    """A time, or a turn to take members in, has come for which the judgement waited."""


class Controller:
    """The leader's duties on one node. The module docstring has the rules."""

    def __init__(
        self,
        own: MemberId,
        catalog: Catalog,
        config: Config,
        now_ms: int,
        broken: Callable[[], tuple[int, ...]] = tuple,
    ) -> None:
        """Begin as a node without leadership.

        Args:
            broken: returns the queues with unreadable copies on this node.
        """
        self._retry_ms = config.failure_ms
        self._leave_ms = LEAVE_FACTOR * config.failure_ms
        self._detector = FailureDetector(own, config, now_ms)
        self._grantor = LeaseGrantor(config.lease_ms)
        self._handovers = HandOvers(WISH_FACTOR * config.failure_ms)
        self._kept = GracePeriods(KEEP_FACTOR * config.failure_ms)
        self._nodes = NodeStates(
            own, catalog, self._detector, self._grantor, self._kept, now_ms, broken
        )
        self._joins = JoinThrottle()
        self._moves = Transfers(self._nodes, self._handovers)
        self._admission = Admission(self._nodes, self._moves)
        self._term = 0
        """The term led by this node; 0: none."""
        self._proposals: dict[int, _Proposal] = {}
        self._evicting: dict[int, MemberId] = {}
        """Queue id -> master to be replaced, which gets no more leases."""
        self._keeping: dict[int, None] = {}
        """Queues with copies to remove on the master's word, by the last judgement."""
        self._lacking: dict[int, None] = {}
        """Queues which lack wanted members, by the last judgement."""
        self._agenda = Agenda()
        self._round_number = 0
        """Grows when the known state of nodes or links has changed."""

    # --- Questions --------------------------------------------------------------------

    def status(self, member: MemberId) -> Status:
        """Judge one incarnation, by the detector and the catalog."""
        return self._nodes.status(member)

    def unheard(self) -> tuple[str, ...]:
        """Return the cluster's nodes not heard here: for the own signs of life."""
        return self._detector.unheard(tuple(node.name for node in self._nodes.catalog.nodes()))

    def admit(
        self, request: control.CatalogRequest, leading: Leading | None
    ) -> CatalogCommand | control.CatalogAnswer:
        """Return the command to propose for a request, or an answer with the refusal."""
        admitted = self._admission.admit(request, leading)
        self._agenda.mark(self._moves.take_wished())
        return admitted

    @property
    def is_asked_for_leases(self) -> bool:
        """Return true if a request waits for an answer of the majority."""
        return self._grantor.is_asked

    # --- One step ---------------------------------------------------------------------

    def step(self, now_ms: int, event: Event, leading: Leading | None) -> SupervisorEffects:
        """Take one event. `leading`: None while the node does not lead the catalog."""
        self._nodes.now_ms = now_ms
        self._detector.advance(now_ms)
        self._on_leading(now_ms, leading)
        self._on_event(now_ms, event)
        if self._nodes.leaving:
            self._end_leaves(now_ms)
        probe = self._detector.probes()
        # A promise says nothing about nodes, and thousands may come at once.
        is_promise = type(event) is control.Yielded
        news = LivenessNews(of_all=False) if is_promise else self._detector.refresh()
        if news and self._term:
            self._on_news(news)
        propose: tuple[CatalogCommand, ...] = ()
        send: tuple[tuple[str, control.LeaseAnswer], ...] = ()
        wants_round = False
        if leading is not None:
            if leading.own_term_applied:
                propose = self._judge(now_ms)
            send = self._grant(now_ms, leading)
            wants_round = type(event) is control.LeaseRequest and self._grantor.is_asked
        return SupervisorEffects(
            propose,
            send,
            self._handovers.take_out(),
            wants_round,
            probe,
            self._detector.deaths(),
            self._wake_at_ms(leading),
            news,
        )

    def _on_leading(self, now_ms: int, leading: Leading | None) -> None:
        term = 0 if leading is None else leading.term
        if term == self._term:
            return
        self._term = term
        self._proposals.clear()
        self._evicting.clear()
        self._nodes.leaving.clear()
        self._handovers.clear()
        self._kept.clear()
        self._keeping.clear()
        self._lacking.clear()
        self._agenda.clear()
        self._grantor.elected(now_ms)
        if term:
            self._detector.on_elected()
            self._sweep()
            for node in self._nodes.catalog.nodes():
                if not self._nodes.is_alive(node.member):
                    self._mark_node(node.name)

    def _on_event(self, now_ms: int, event: Event) -> None:
        match event:
            case Heard():
                self._nodes.note_broken(event.member, event.broken)
                self._detector.on_heard(event.member, event.unheard)
            case LinkBroken():
                self._detector.on_link_down(event.node)
            case ProbeRefused():
                self._detector.on_probe_refused(event.node, event.number)
            case CatalogChanged() if self._term:
                self._agenda.mark(event.queues)
                for node in event.nodes:
                    self._mark_node(node)
                if event.nodes or event.redefines:
                    self._sweep()
            case CatalogReplaced():
                self._nodes.catalog = event.catalog
                if self._term:
                    self._sweep()
            case control.LeaseRequest() if self._term:
                self._on_lease_request(now_ms, event)
            case control.LeaseRelease() if self._term:
                self._on_lease_release(now_ms, event)
            case control.Yielded() if self._term:
                self._on_yielded(event)
            case _:
                pass

    def _on_yielded(self, promise: control.Yielded) -> None:
        queue = self._nodes.catalog.queue(promise.queue_id)
        if queue is not None:
            self._handovers.on_yielded(promise, queue.view)
            self._agenda.mark((queue.id,))

    # --- What is to be judged -----------------------------------------------------------

    def _on_news(self, news: LivenessNews) -> None:
        """Judge the queues of nodes and links with changed liveness."""
        own = self._nodes.own.node
        for one, other in news.links:
            self._mark_node(one)
            self._mark_node(other)
            if own in (one, other):
                # The other node is heard; the link decides between alive and silent.
                news.nodes[other if one == own else one] = None
        for node in news.nodes:
            self._mark_node(node)
        if news.of_all or any(map(self._detector.is_heard, news.nodes)):
            self._sweep()

    def _mark_node(self, node: str) -> None:
        """Judge the queues led, held or owned by a node, and queues which lack members."""
        self._round_number += 1
        of_nodes = self._nodes.catalog.load_counts
        self._agenda.hurry(of_nodes.masters.get(node, ()))
        self._agenda.hurry(of_nodes.owned.get(node, ()))
        self._agenda.mark(of_nodes.copies.get(node, ()))
        self._agenda.mark(self._lacking)

    def _sweep(self) -> None:
        """Judge every queue: any may want a node which counts anew."""
        self._round_number += 1
        self._agenda.sweep(self._nodes.catalog.queue_ids())
        self._agenda.sweep(self._proposals)

    def _on_lease_request(self, now_ms: int, request: control.LeaseRequest) -> None:
        self._grantor.on_request(now_ms, request)
        leave = self._nodes.leaving.get(request.member)
        if leave is not None and request.number > leave.number:
            del self._nodes.leaving[request.member]
            self._mark_node(request.member.node)
            self._sweep()

    def _on_lease_release(self, now_ms: int, release: control.LeaseRelease) -> None:
        if self._grantor.on_release(release):
            if release.member not in self._nodes.leaving:
                self._mark_node(release.member.node)
            self._nodes.leaving[release.member] = Leave(release.number, now_ms + self._leave_ms)

    def _end_leaves(self, now_ms: int) -> None:
        for member, leave in list(self._nodes.leaving.items()):
            if now_ms >= leave.ends_ms:
                del self._nodes.leaving[member]
                self._mark_node(member.node)
                self._sweep()

    def _grant(self, now_ms: int, leading: Leading) -> tuple[tuple[str, control.LeaseAnswer], ...]:
        if not self._grantor.is_asked:
            return ()
        for member in self._evicting.values():
            self._grantor.refuse(member)
        granted = self._grantor.answers(now_ms, leading)
        return tuple((member.node, answer) for member, answer in granted)

    def _wake_at_ms(self, leading: Leading | None) -> int | None:
        wake_at_ms = self._detector.wake_at_ms()
        if leading is None or not leading.own_term_applied:
            return wake_at_ms
        agenda_ms = self._agenda.wake_at_ms(self._nodes.now_ms)
        return earliest(wake_at_ms, agenda_ms, self._joins.wake_at_ms)

    # --- Judgement --------------------------------------------------------------------

    def _judge(self, now_ms: int) -> tuple[CatalogCommand, ...]:
        """Judge a portion of the changed queues; return the commands to propose."""
        may_begin = self._joins.take_due(now_ms)
        self._agenda.mark(may_begin)
        for queue_id in (*may_begin, *self._agenda.take_due(now_ms)):
            if queue_id in self._proposals:
                self._proposals[queue_id].is_stale = True
        ids = self._agenda.take_portion(now_ms)
        if not ids:
            return ()
        self._nodes.begin_round()
        situation = self._nodes.situation()
        commands = [self._judge_queue(now_ms, queue_id, situation) for queue_id in ids]
        self._nodes.end_round()
        return tuple(command for command in commands if command is not None)

    def _judge_queue(
        self, now_ms: int, queue_id: int, situation: Situation
    ) -> CatalogCommand | None:
        queue = self._nodes.catalog.queue(queue_id)
        under_way = self._proposals.get(queue_id)
        if queue is None or (under_way is not None and under_way.epoch != queue.view.epoch):
            self._proposals.pop(queue_id, None)
            self._evicting.pop(queue_id, None)
            self._agenda.retry(queue_id, None)
            if queue is not None and under_way is not None and self._is_as_judged(queue, under_way):
                return None
            under_way = None
        if queue is None:
            self._handovers.forget(queue_id)
            self._kept.forget(queue_id)
            self._keeping.pop(queue_id, None)
            self._lacking.pop(queue_id, None)
            self._agenda.forget(queue_id)
            return None
        if under_way is not None and now_ms < under_way.sent_ms + self._retry_ms:
            self._agenda.retry(queue_id, under_way.sent_ms + self._retry_ms)
            return None
        self._agenda.begin_judgement(queue_id)
        command, evicts = self._decide(now_ms, queue, situation)
        if under_way is not None and under_way.evicts:
            # An earlier proposal to replace the master may still be committed. The master gets
            # leases again only after a view of a newer epoch. If all is well now, propose the same
            # view, so the earlier proposal fails.
            evicts = True
            command = command or ChangeView(queue.id, queue.view.epoch, queue.view.members)
        if evicts:
            self._evicting[queue.id] = queue.view.members[0].id
        else:
            self._evicting.pop(queue.id, None)
        if command is not None:
            members = command.members if isinstance(command, ChangeView) else ()
            told = self._nodes.catalog.definition_of(queue.name)
            self._proposals[queue.id] = _Proposal(
                queue.view.epoch, now_ms, evicts, members, self._round_number, told
            )
            self._agenda.retry(queue.id, now_ms + self._retry_ms)
        return command

    def _is_as_judged(self, queue: QueueRecord, proposal: _Proposal) -> bool:
        """Return true if the queue has the proposed view and the judgement's inputs are unchanged:
        a new judgement would give the same result."""
        return (
            (queue.view.epoch, queue.view.members) == (proposal.epoch + 1, proposal.members)
            and proposal.round_number == self._round_number
            and not proposal.is_stale
            and proposal.definition == self._nodes.catalog.definition_of(queue.name)
            and queue.view.durability == proposal.definition.durability
            and not self._handovers.has_wish(queue.id)
            and queue.id not in self._keeping
        )

    def _decide(
        self, now_ms: int, queue: QueueRecord, situation: Situation
    ) -> tuple[CatalogCommand | None, bool]:
        """Return the change to propose, and true if the master is to go (now or after a wait)."""
        view = queue.view
        master = view.members[0].id
        if (
            queue.owner_incarnation is not None
            and self._nodes.status(queue.owner_incarnation) is Status.DEAD
        ):
            # The queue's only copy was on the dead node, so no node can empty an outbox.
            return DeleteQueue(queue.id, is_drained=True), False
        if self._nodes.status(master) is Status.UNKNOWN:
            return None, False
        self._kept.record_absent(now_ms, queue, situation.running)
        wanted = self._wanted(now_ms, queue, situation)
        follower = self._follower(now_ms, queue, wanted)
        head = master if follower == master.node else self._head(queue, wanted, follower)
        if head == master:
            members = self._ring(queue, head, wanted).members
            if queue.id in self._keeping:
                self._agenda.wait(queue.id, self._handovers.ask(now_ms, queue.id, view))
            # A master which gave up the epoch delivers again only in the next epoch.
            same = members == view.members and not self._handovers.has_yielded(queue.id, view)
            told = self._nodes.catalog.definition_of(queue.name).durability
            same = same and next_durability(view, told) == view.durability
            return (None if same else ChangeView(queue.id, view.epoch, members)), False
        if head is not None and not queue.exclusive and self._nodes.is_serving(master):
            return self._move(now_ms, queue, self._ring(queue, head, wanted)), False
        runs = [self._nodes.status(one) for one in promotable(view)]
        cold = Status.ALIVE not in runs
        how = "cold" if cold else "clean"
        if head is None:
            head, how = self._nodes.unclean_head(queue), "unclean"
            if head is None or (queue.durable and self._nodes.is_one_coming_back(queue)):
                return None, False
        if cold and Status.UNKNOWN in runs:
            return None, False  # one may still run, and spare the losses of a cold start
        if not self._nodes.may_replace(master):
            self._agenda.wait(queue.id, self._grantor.free_at_ms(master))
            return None, True
        is_restarted = how == "cold" or (how == "unclean" and head not in member_ids(view))
        if is_restarted and not queue.durable:
            # No valid copy is left, so no node can empty an outbox.
            return DeleteQueue(queue.id, is_drained=True), True
        ring = self._ring(queue, head, wanted, is_clean=how == "clean")
        return ChangeView(queue.id, view.epoch, ring.members, how), True

    def _wanted(
        self, now_ms: int, queue: QueueRecord, situation: Situation
    ) -> tuple[MemberId, ...]:
        ends_ms = self._kept.ends_ms(now_ms, queue.id)
        if ends_ms is not None:
            self._agenda.wait(queue.id, ends_ms)
        wanted = self._nodes.wanted(queue, situation)
        if all(find(queue.view, one) is not None for one in wanted):
            self._lacking.pop(queue.id, None)
        else:
            self._lacking[queue.id] = None
        return wanted

    def _follower(
        self, now_ms: int, queue: QueueRecord, wanted: tuple[MemberId, ...]
    ) -> str | None:
        """Return the node to follow a living master, by the policy or by a wish.

        The master's own name: the unwanted master stays for now.
        """
        master = queue.view.members[0].id
        in_sync = [one for one in wanted if is_in_sync(queue.view, one)]
        if master in wanted or not in_sync or not self._nodes.is_serving(master):
            self._handovers.end_linger(queue.id)
            return self._handovers.wished(now_ms, queue.id, queue.view)
        if in_sync[0] == wanted[0]:
            return wanted[0].node
        until_ms = self._handovers.lingers_ms(now_ms, queue.id)
        if now_ms >= until_ms:
            return in_sync[0].node
        self._agenda.wait(queue.id, until_ms)
        return master.node

    def _move(self, now_ms: int, queue: QueueRecord, ring: View) -> CatalogCommand | None:
        """Replace a living master, once the master has given the queue up in this epoch."""
        if self._handovers.has_yielded(queue.id, queue.view):
            return ChangeView(queue.id, queue.view.epoch, ring.members, "clean")
        self._agenda.wait(queue.id, self._handovers.ask(now_ms, queue.id, queue.view))
        return None

    def _head(
        self, queue: QueueRecord, wanted: tuple[MemberId, ...], wished: str | None
    ) -> MemberId | None:
        """Choose the master: R5, the first member in sync with a living store.

        A member without a restart comes first: it still has transient messages, and a restarted
        master comes back as a mirror. Leaving or unwanted members come last. A wished node goes
        first among equals.
        """
        best: tuple[tuple[bool, bool, bool, bool, int], MemberId] | None = None
        for place, known in enumerate(promotable(queue.view)):
            member = self._nodes.candidate(queue, known)
            if member is None:
                continue
            unwanted = (self._nodes.is_leaving(member), member not in wanted, member != known)
            key = (*unwanted, member.node != wished, place)
            if best is None or key < best[0]:
                best = (key, member)
        return None if best is None else best[1]

    def _ring(
        self,
        queue: QueueRecord,
        head: MemberId,
        wanted: tuple[MemberId, ...],
        *,
        is_clean: bool = True,
    ) -> View:
        """Return the view with the members beside the master, in order.

        Args:
            is_clean: the master goes on with all messages in sync; else it stands alone.
        """
        view = queue.view
        has_word = self._has_word(queue, head)
        spare = self._spare(view, head, wanted)
        mirrors = [
            one
            for one in in_sync_ids(view)
            if self._is_mirror(view, head, one) and not (has_word and one in spare)
        ]
        joining = [one for one in joining_ids(view) if self._nodes.stays(one) and one != head]
        joining = [one for one in joining if one in wanted or not self._nodes.is_alive(one)]
        known = [head, *mirrors, *joining]
        coming = [one for one in wanted if one not in known and self._detector.is_steady(one)]
        if coming and self._joins.may_begin(self._nodes.now_ms, queue.id):
            joining += coming
        in_sync, tail = (head, *mirrors), tuple(joining)
        if self._detector.knows_breaks:
            in_sync, tail = arrange(head, mirrors, joining, self._detector.is_broken)
        last = () if len(in_sync) > 1 else self._others(view, head)
        if last and is_clean and not has_word:
            names = [one.node for one in last]
            in_sync, tail = (head, *last), tuple(one for one in tail if one.node not in names)
        if (spare or last) and not has_word:
            self._keeping[queue.id] = None
        else:
            self._keeping.pop(queue.id, None)
        return make_view(view.epoch + 1, in_sync, tail)

    def _has_word(self, queue: QueueRecord, head: MemberId) -> bool:
        """Return true if the master has spoken in the present epoch, as master (R13)."""
        is_master = head == queue.view.members[0].id
        return is_master and self._handovers.has_yielded(queue.id, queue.view)

    def _is_mirror(self, view: View, head: MemberId, one: MemberId) -> bool:
        """Return true if a member stays in sync beside the master."""
        if one == head or not is_in_sync(view, one) or not self._nodes.stays(one):
            return False
        # While the master leaves as well, mirrors leaving with it stay.
        return self._nodes.is_leaving(head) or not self._nodes.is_leaving(one)

    def _spare(
        self, view: View, head: MemberId, wanted: tuple[MemberId, ...]
    ) -> tuple[MemberId, ...]:
        """Return the unwanted copies in sync, once all wanted copies are in sync.

        A mirror leaving with the master is no unwanted copy: all nodes may stop at once.
        """
        if not all(one == head or self._is_mirror(view, head, one) for one in wanted):
            return ()
        return tuple(
            one
            for one in in_sync_ids(view)
            if one not in (head, *wanted)
            and self._nodes.is_alive(one)
            and not self._nodes.is_leaving(one)
        )

    def _others(self, view: View, head: MemberId) -> tuple[MemberId, ...]:
        """Return all other promotable members of the view, running or not."""
        return tuple(one for one in promotable(view) if one.node != head.node)
