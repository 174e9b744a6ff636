"""What the catalog's leader owes every queue: a master that lives, and a ring that closes.

The machine runs on every node, so that it knows at once who is alive when its node comes to
lead; it proposes and grants only while its node leads and has applied an entry of its own
term. It reads the applied catalog, changes nothing itself, and all it wants done is in the
`SupervisorEffects` of a step.

Guarantees
    1. A new master was in sync in the last committed view (R5): the candidates are read from
       the catalog, and the proposal names the epoch that it replaces (R12).
    2. A master is replaced only when it is known dead, or when no lease that any leader
       granted it can still run. From the proposal on it gets no lease, until the queue's
       epoch has changed: a proposal that seems lost may still be committed.
    3. Nobody but the queue's master counts a joiner in (R12): supervised changes keep or
       shrink the set in sync, and `admit` refuses others' proposals.
    4. The last copy in sync is never removed. A queue none of whose members in sync runs
       stays as it is, down, until one comes back, unless its policy lets the oldest mirror
       that runs go on with what it has: how the last ones in sync ended, by shutdown or by
       failure, is in the catalog, so that a new leader knows it too.

A queue is judged when its view, a node or a link has changed, and when a wait is over. A
judgement first chooses the master, then who stays in sync beside it, then who joins, then an
order that needs no broken link (R11). If that differs from the view, it is proposed, and
nothing else for this queue until the epoch has changed or the proposal seems lost.
"""

from __future__ import annotations

from attrs import define, evolve, frozen

from mirrorq.catalog import Catalog, QueueRecord, last_copy_text
from mirrorq.config import Config
from mirrorq.errors import PolicyError
from mirrorq.handover import HandOvers, Rebalancing
from mirrorq.kept_places import KeptPlaces
from mirrorq.lease import Leading, LeaseGrantor
from mirrorq.liveness import Liveness, Probe, Status
from mirrorq.messages import (
    Bind,
    CatalogAnswer,
    CatalogCommand,
    CatalogRequest,
    ChangeView,
    ClearPolicy,
    DeclareExchange,
    DeclareQueue,
    DeleteExchange,
    DeleteQueue,
    DropCopy,
    LeaseAnswer,
    LeaseRelease,
    LeaseRequest,
    MemberId,
    NameCluster,
    NodeStopped,
    NoteConsumers,
    NoteOutbox,
    Rebalance,
    RegisterNode,
    RemoveNode,
    SetPolicy,
    StoreId,
    Synchronise,
    TransferMaster,
    Unbind,
    View,
    Yield,
    Yielded,
)
from mirrorq.placement import Loads, Seat, levelled, loads_of, wanted_members
from mirrorq.policy import from_text
from mirrorq.view import (
    arrange,
    counts_lives,
    find,
    find_store,
    in_sync_ids,
    is_in_sync,
    joining_ids,
    links,
    make_view,
    member_ids,
    next_durability,
    order_error,
    promotable,
)

__all__ = [
    "CatalogChanged",
    "CatalogReplaced",
    "Event",
    "Heard",
    "LinkDown",
    "ProbeRefused",
    "Supervisor",
    "SupervisorEffects",
    "Tick",
]

# --- Input and output -------------------------------------------------------------------


@frozen
class Tick:
    """Time has passed, or what `Leading` says has changed."""


@frozen
class Heard:
    """A sign of life (Hello) came from this incarnation."""

    member: MemberId
    unheard: tuple[str, ...] = ()


@frozen
class LinkDown:
    """The open control connection to this node ended."""

    node: str


@frozen
class ProbeRefused:
    """The endpoint of this node refused the probe of this number."""

    node: str
    number: int


@frozen
class CatalogChanged:
    """The catalog has applied commands: what their `CatalogResult` says was changed."""

    queues: tuple[int, ...] = ()
    nodes: tuple[str, ...] = ()


@frozen(eq=False)
class CatalogReplaced:
    """A snapshot took the place of the whole catalog."""

    catalog: Catalog


Event = (
    Tick
    | Heard
    | LinkDown
    | ProbeRefused
    | CatalogChanged
    | CatalogReplaced
    | LeaseRequest
    | LeaseRelease
    | Yielded
)


@frozen
class SupervisorEffects:
    """What a step wants done. Only `propose` and `send` need that this node leads."""

    propose: tuple[CatalogCommand, ...] = ()
    """To be put into Raft's log now. What is lost is proposed again."""
    send: tuple[tuple[str, LeaseAnswer], ...] = ()
    """(node name, message); the own name: to this node's own lease holder."""
    yields: tuple[tuple[str, Yield], ...] = ()
    """(node name, message); the own name: to this node's own queue."""
    wants_round: bool = False
    """A lease request waits for an answer of the majority: let Raft send a round now."""
    probe: tuple[Probe, ...] = ()
    """Try a TCP connection; tell `ProbeRefused` when it is refused, else nothing."""
    known_dead: tuple[MemberId, ...] = ()
    """Incarnations that have become known dead in this step: Raft need not wait for them."""
    wake_at_ms: int | None = None
    is_news: bool = False
    """Who is alive, or which links work, is judged differently from now on."""


LEAVE_FACTOR = 5
"""A node that gave its lease up is given no copies for this many failure_ms: longer than a
close may last. One that is heard longer than that has changed its mind."""


KEEP_FACTOR = 3
"""The place of a lost member is kept for this many failure_ms: longer than a process takes to
start again, short beside the time for which the queue goes on with one copy less."""
WISH_FACTOR = 2
"""A wish to move a master that nobody repeats is dropped after this many failure_ms."""


@frozen
class _Leave:
    """A member gave its lease up, and with it its masters."""

    number: int
    """Its newest request then."""
    ends_ms: int


@define
class _Proposal:
    """One that is under way for a queue."""

    epoch: int
    """The epoch that it replaces."""
    sent_ms: int
    evicts: bool
    """It, or one sent before it for this epoch, takes the queue from its master."""


@frozen
class _Situation:
    """What holds for all queues in one round of judgements."""

    running: tuple[MemberId, ...]
    """Nodes that hold queues, are alive and are not about to leave."""
    loads: Loads


class Supervisor:
    """The leader's duties on one node. See the module's text."""

    def __init__(self, own: MemberId, catalog: Catalog, config: Config, now_ms: int) -> None:
        self._catalog = catalog
        self._own = own
        self._retry_ms = config.failure_ms
        self._leave_ms = LEAVE_FACTOR * config.failure_ms
        self._liveness = Liveness(own, config, now_ms)
        self._grantor = LeaseGrantor(config.lease_ms)
        self._handovers = HandOvers(WISH_FACTOR * config.failure_ms)
        self._kept = KeptPlaces(KEEP_FACTOR * config.failure_ms)
        self._now_ms = now_ms
        self._term = 0
        """The term that this node leads; 0: none."""
        self._proposals: dict[int, _Proposal] = {}
        self._evicting: dict[int, MemberId] = {}
        """Queue id -> master that is to be replaced and gets no lease any more."""
        self._leaving: dict[MemberId, _Leave] = {}
        self._dirty: dict[int, None] = {}
        self._all_dirty = True
        self._judge_at_ms: int | None = None

    # --- Questions --------------------------------------------------------------------

    def status(self, member: MemberId) -> Status:
        """Judge one incarnation; what the catalog knows counts too."""
        if member != self._own and self._catalog.is_superseded(member):
            return Status.DEAD
        return self._liveness.status(member)

    def unheard(self) -> tuple[str, ...]:
        """Return the cluster's nodes that this one does not hear: for its signs of life."""
        return self._liveness.unheard(tuple(node.name for node in self._catalog.nodes()))

    # --- One step ---------------------------------------------------------------------

    def step(self, now_ms: int, event: Event, leading: Leading | None) -> SupervisorEffects:
        """Take one event in. `leading`: None while this node does not lead the catalog."""
        self._now_ms = now_ms
        self._liveness.advance(now_ms)
        self._on_leading(now_ms, leading)
        self._on_event(now_ms, event)
        self._end_leaves(now_ms)
        probe = self._liveness.probes()
        is_news = self._liveness.refresh()
        self._all_dirty |= is_news
        propose: tuple[CatalogCommand, ...] = ()
        send: tuple[tuple[str, LeaseAnswer], ...] = ()
        wants_round = False
        if leading is not None:
            if leading.own_term_applied:
                propose = self._judge(now_ms)
            send = self._grant(now_ms, leading)
            wants_round = isinstance(event, LeaseRequest) and bool(self._grantor.pending())
        return SupervisorEffects(
            propose,
            send,
            self._handovers.take_out(),
            wants_round,
            probe,
            self._liveness.deaths(),
            self._wake_at_ms(leading),
            is_news,
        )

    def _on_leading(self, now_ms: int, leading: Leading | None) -> None:
        term = 0 if leading is None else leading.term
        if term == self._term:
            return
        self._term = term
        self._proposals.clear()
        self._evicting.clear()
        self._leaving.clear()
        self._handovers.clear()
        self._kept.clear()
        self._all_dirty = True
        self._grantor.elected(now_ms)

    def _on_event(self, now_ms: int, event: Event) -> None:
        match event:
            case Heard():
                self._liveness.on_heard(event.member, event.unheard)
            case LinkDown():
                self._liveness.on_link_down(event.node)
            case ProbeRefused():
                self._liveness.on_probe_refused(event.node, event.number)
            case CatalogChanged():
                self._dirty.update(dict.fromkeys(event.queues))
                self._all_dirty |= bool(event.nodes)
            case CatalogReplaced():
                self._catalog = event.catalog
                self._all_dirty = True
            case LeaseRequest() if self._term:
                self._on_lease_request(now_ms, event)
            case LeaseRelease() if self._term:
                self._on_lease_release(now_ms, event)
            case Yielded() if self._term:
                self._on_yielded(event)
            case _:
                pass

    def _on_yielded(self, promise: Yielded) -> None:
        queue = self._catalog.queue(promise.queue_id)
        if queue is not None:
            self._handovers.on_yielded(promise, queue.view)
            self._dirty[queue.id] = None

    def _on_lease_request(self, now_ms: int, request: LeaseRequest) -> None:
        self._grantor.on_request(now_ms, request)
        leave = self._leaving.get(request.member)
        if leave is not None and request.number > leave.number:
            del self._leaving[request.member]
            self._all_dirty = True

    def _on_lease_release(self, now_ms: int, release: LeaseRelease) -> None:
        if self._grantor.on_release(release):
            self._all_dirty |= release.member not in self._leaving
            self._leaving[release.member] = _Leave(release.number, now_ms + self._leave_ms)

    def _end_leaves(self, now_ms: int) -> None:
        for member, leave in list(self._leaving.items()):
            if now_ms >= leave.ends_ms:
                del self._leaving[member]
                self._all_dirty = True

    def _grant(self, now_ms: int, leading: Leading) -> tuple[tuple[str, LeaseAnswer], ...]:
        for member in self._evicting.values():
            self._grantor.refuse(member)
        granted = self._grantor.answers(now_ms, leading)
        return tuple((member.node, answer) for member, answer in granted)

    def _wake_at_ms(self, leading: Leading | None) -> int | None:
        wake_at_ms = self._liveness.wake_at_ms()
        if leading is None or self._judge_at_ms is None:
            return wake_at_ms
        return self._judge_at_ms if wake_at_ms is None else min(wake_at_ms, self._judge_at_ms)

    # --- Requests of other nodes ---------------------------------------------------------

    def admit(
        self, request: CatalogRequest, leading: Leading | None
    ) -> CatalogCommand | CatalogAnswer:
        """Return the command to propose for a request, or the answer that refuses it."""
        if leading is None or not leading.own_term_applied:
            return CatalogAnswer(request.number, 0, retry=True)
        command = request.command
        known = self._catalog.repeated(request.member, request.number)
        if known is not None and known.error:
            return CatalogAnswer(request.number, 0, known.error, known.text)
        if known is not None:
            # It changes nothing, and gets its outcome when the asker's catalog has come so far.
            return command
        match command:
            case DeclareQueue():
                command = self.fill_members(command)
                if not command.members and self._catalog.queue_named(command.name) is None:
                    return CatalogAnswer(request.number, 0, retry=True)
                return command
            case ChangeView():
                wrong = self._change_error(request.member, command)
            case RemoveNode():
                return self._admit_removal(request.number, command)
            case RegisterNode() | NodeStopped():
                wrong = _registration_error(request.member, command)
            case SetPolicy():
                try:
                    from_text(command.name, command.text)
                except PolicyError as error:
                    return CatalogAnswer(request.number, 0, "PolicyError", str(error))
                wrong = ""
            case TransferMaster():
                return self._admit_transfer(request, command)
            case Rebalance():
                return self._admit_rebalance(request)
            case DropCopy():
                wrong = self._drop_error(request.member, command)
            case DeleteQueue() | NoteConsumers() | NoteOutbox():
                wrong = ""
            case ClearPolicy() | Synchronise() | NameCluster():
                wrong = ""
            case DeclareExchange() | DeleteExchange() | Bind() | Unbind():
                wrong = ""
        if wrong:
            return CatalogAnswer(request.number, 0, "PreconditionFailed", wrong)
        return command

    def fill_members(self, command: DeclareQueue) -> DeclareQueue:
        """Return the declaration with its first view: running members, all in sync."""
        situation = self._situation()
        steady = [member for member in situation.running if self._liveness.is_steady(member)]
        if command.exclusive:
            # On its owner's node, however that has been of late, and on no other.
            own = [member for member in situation.running if member.node == command.declarer]
            declarer = self._catalog.node(command.declarer)
            is_witness = declarer is not None and declarer.witness
            steady = steady if is_witness else own
        definition = self._catalog.definition_of(command.name)
        wanted = wanted_members(command, definition, steady, situation.loads)
        if not wanted:
            return evolve(command, members=())
        in_sync, _ = arrange(wanted[0], wanted[1:], (), self._liveness.is_broken)
        return evolve(command, members=in_sync)

    def _change_error(self, asker: MemberId, command: ChangeView) -> str:
        """R12: what a master may change in its own view, and nobody else."""
        queue = self._catalog.queue(command.queue_id)
        if queue is None or queue.view.epoch != command.replaces:
            return ""  # applying it says so in the same words to everybody
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
        """Refuse to count a joiner in at a place where its link is broken: it would flap."""
        if all(is_in_sync(view, one) for one in in_sync_ids(proposed)):
            return ""
        for one, other in links(proposed):
            if self._liveness.is_broken(one, other):
                return f"the link between {one} and {other} is broken"
        return ""

    def _drop_error(self, asker: MemberId, command: DropCopy) -> str:
        """Return why a copy that no view names must stay for now: it may be of use yet."""
        queue = self._catalog.queue(command.queue_id)
        if queue is None or queue.view.epoch != command.epoch:
            return ""  # applying it says so in the same words to everybody
        if command.member != asker:
            return f"{asker.node} speaks for another node: {command.member.node}"
        if not self._is_serving(asker):
            return f"{asker.node} is about to stop: it may be wanted again when it is back"
        wanted = self._wanted(self._now_ms, queue, self._situation())
        if asker in wanted:
            return f"{asker.node} is to have a copy of queue {queue.name!r} again"
        missing = [one.node for one in wanted if not is_in_sync(queue.view, one)]
        if missing or not any(self._is_alive(one) for one in in_sync_ids(queue.view)):
            return (
                f"the copy of queue {queue.name!r} on {asker.node} may be needed: "
                f"{', '.join(missing) or 'every other node'} is not in sync or does not run"
            )
        return ""

    def _admit_removal(self, number: int, command: RemoveNode) -> CatalogCommand | CatalogAnswer:
        """Forget a node that does not run, when no lease of it can still run either."""
        record = self._catalog.node(command.node)
        if record is None or command.store not in (0, record.store):
            names = ", ".join(node.name for node in self._catalog.nodes())
            text = f"the cluster has no node {command.node!r}: its nodes are {names}"
            return CatalogAnswer(number, 0, "PreconditionFailed", text)
        if record.name == self._own.node or self._liveness.is_heard(record.name):
            text = f"node {record.name} is alive: stop it before it is forgotten"
            return CatalogAnswer(number, 0, "PreconditionFailed", text)
        store = StoreId(record.name, record.store)
        last = self._catalog.held_last_by(store)
        if last and not command.force:
            text = last_copy_text(record.name, last)
            return CatalogAnswer(number, 0, "PreconditionFailed", text)
        is_unjudged = self.status(record.member) is Status.UNKNOWN
        if is_unjudged or any(self._waits_for(queue, store) for queue in self._catalog.queues()):
            return CatalogAnswer(number, 0, retry=True)
        return evolve(command, store=record.store)

    def _waits_for(self, queue: QueueRecord, store: StoreId) -> bool:
        """Whether a queue's master is on this store and will be replaced soon, or may yet act."""
        master = queue.view.members[0].id
        if (master.node, master.store) != (store.node, store.store):
            return False
        view = queue.view
        can_follow = any(self._candidate(view, one) is not None for one in promotable(view))
        return can_follow or not self._may_replace(self._now_ms, master)

    # --- Moving masters -----------------------------------------------------------------

    def _admit_transfer(
        self, request: CatalogRequest, command: TransferMaster
    ) -> CatalogCommand | CatalogAnswer:
        """Wish for the new master; the command goes into the log when it leads."""
        queue = self._catalog.queue_named(command.queue)
        if queue is None:
            text = f"no queue is named {command.queue!r}: it was deleted or never made"
            return CatalogAnswer(request.number, 0, "QueueNotFound", text)
        master = queue.view.members[0].id
        if master.node == command.node and self._is_alive(master):
            return command
        wrong = self._transfer_error(queue, command.node, self._situation())
        if wrong:
            return CatalogAnswer(request.number, 0, "PreconditionFailed", wrong)
        self._wish(queue.id, command.node)
        return CatalogAnswer(request.number, 0, retry=True)

    def _wish(self, queue_id: int, node: str) -> None:
        self._handovers.wish(self._now_ms, queue_id, node)
        self._dirty[queue_id] = None

    def _transfer_error(self, queue: QueueRecord, name: str, situation: _Situation) -> str:
        """Return why a node cannot become the queue's master now, and what to do about it."""
        refused = f"{name} cannot become master of queue {queue.name!r}: "
        record = self._catalog.node(name)
        if record is None:
            known = ", ".join(node.name for node in self._catalog.nodes())
            return refused + f"no node has that name, the nodes are {known}"
        known_copy = find_store(queue.view, record.name, record.store)
        if known_copy is None:
            copies = ", ".join(one.node for one in member_ids(queue.view))
            return refused + f"it has no copy, {copies} have: change the policy, or choose one"
        if self.status(record.member) is Status.DEAD or self._is_leaving(record.member):
            return refused + "it does not run, or is about to stop: start it first"
        if not known_copy.in_sync or known_copy.id != record.member:
            return refused + (
                "it is not in sync: wait until status().synchronised_mirrors names it "
                "(with ha-sync-mode manual call sync_queue)"
            )
        if record.member not in self._wanted(self._now_ms, queue, situation):
            policy = self._catalog.policy_of(queue.name)
            why = "an exclusive queue stays" if policy is None else f"policy {policy.name!r} holds"
            return refused + f"{why}, by which no copy stays on it: change that first"
        return ""

    def _admit_rebalance(self, request: CatalogRequest) -> CatalogCommand | CatalogAnswer:
        """Begin, go on with, or end a rebalance; refuse a second one."""
        asker = (request.member, request.number)
        under_way = self._handovers.rebalancing
        if under_way is not None and under_way.asker != asker:
            if self._now_ms < under_way.asked_ms + WISH_FACTOR * self._retry_ms:
                text = (
                    f"a rebalance that {under_way.asker[0].node} asked for is running, with "
                    f"{len(under_way.moves)} masters still to be moved: ask again when it is done"
                )
                return CatalogAnswer(request.number, 0, "PreconditionFailed", text)
            under_way = None
        situation = self._situation()
        if under_way is None:
            under_way = Rebalancing(asker, self._levelled(situation))
            self._handovers.rebalancing = under_way
        under_way.asked_ms = self._now_ms
        self._count_moved(under_way, situation)
        if not under_way.moves:
            self._handovers.rebalancing = None
            return Rebalance(under_way.moved)
        for queue_id, node in under_way.next_moves():
            self._wish(queue_id, node)
        return CatalogAnswer(request.number, 0, retry=True)

    def _levelled(self, situation: _Situation) -> dict[int, str]:
        """Which queues should move where: between members that could lead at once."""
        seats = []
        for queue in self._catalog.queues():
            master = queue.view.members[0].id
            wanted = self._wanted(self._now_ms, queue, situation)
            in_sync = in_sync_ids(queue.view)
            others = tuple(m.node for m in in_sync if m != master and m in wanted)
            is_movable = not queue.exclusive and master in situation.running
            seats.append(Seat(queue.id, master.node, others if is_movable else ()))
        return levelled(seats, [member.node for member in situation.running])

    def _count_moved(self, under_way: Rebalancing, situation: _Situation) -> None:
        """Take what is done off the list, and what can no longer be done."""
        for queue_id, node in list(under_way.moves.items()):
            queue = self._catalog.queue(queue_id)
            is_done = queue is not None and queue.view.members[0].id.node == node
            under_way.moved += is_done
            if queue is None or is_done or self._transfer_error(queue, node, situation):
                del under_way.moves[queue_id]

    # --- Judgement --------------------------------------------------------------------

    def _situation(self) -> _Situation:
        running = tuple(
            node.member
            for node in self._catalog.nodes()
            if not node.witness
            and self.status(node.member) is Status.ALIVE
            and not self._is_leaving(node.member)
        )
        return _Situation(running, loads_of(self._catalog.queues()))

    def _judge(self, now_ms: int) -> tuple[CatalogCommand, ...]:
        """Judge what may have changed; return what to propose."""
        if self._judge_at_ms is not None and now_ms >= self._judge_at_ms:
            self._all_dirty = True
        if self._all_dirty:
            self._judge_at_ms = None
            ids = dict.fromkeys(queue.id for queue in self._catalog.queues())
            ids.update(dict.fromkeys(self._proposals))
        else:
            ids = dict(self._dirty)
        self._all_dirty = False
        self._dirty.clear()
        if not ids:
            return ()
        situation = self._situation()
        commands = [self._judge_queue(now_ms, queue_id, situation) for queue_id in ids]
        return tuple(command for command in commands if command is not None)

    def _judge_queue(
        self, now_ms: int, queue_id: int, situation: _Situation
    ) -> CatalogCommand | None:
        queue = self._catalog.queue(queue_id)
        under_way = self._proposals.get(queue_id)
        if queue is None or (under_way is not None and under_way.epoch != queue.view.epoch):
            self._proposals.pop(queue_id, None)
            self._evicting.pop(queue_id, None)
            under_way = None
        if queue is None:
            self._handovers.forget(queue_id)
            self._kept.forget(queue_id)
            return None
        if under_way is not None and now_ms < under_way.sent_ms + self._retry_ms:
            self._wait(under_way.sent_ms + self._retry_ms)
            return None
        command, evicts = self._decide(now_ms, queue, situation)
        if under_way is not None and under_way.evicts:
            # A proposal that took the master's place was sent and may still be committed. The
            # master gets its leases back only after some view of a newer epoch: if all is
            # well now, the same view, which makes the one sent before fail.
            evicts = True
            command = command or ChangeView(queue.id, queue.view.epoch, queue.view.members)
        if evicts:
            self._evicting[queue.id] = queue.view.members[0].id
        else:
            self._evicting.pop(queue.id, None)
        if command is not None:
            self._proposals[queue.id] = _Proposal(queue.view.epoch, now_ms, evicts)
            self._wait(now_ms + self._retry_ms)
        return command

    def _wait(self, at_ms: int) -> None:
        """Judge everything again at that time."""
        self._judge_at_ms = at_ms if self._judge_at_ms is None else min(self._judge_at_ms, at_ms)

    def _decide(
        self, now_ms: int, queue: QueueRecord, situation: _Situation
    ) -> tuple[CatalogCommand | None, bool]:
        """Return what should change, and whether the master is to go (now or after a wait)."""
        view = queue.view
        master = view.members[0].id
        if queue.owner_life is not None and self.status(queue.owner_life) is Status.DEAD:
            return DeleteQueue(queue.id), False
        if self.status(master) is Status.UNKNOWN:
            return None, False
        self._kept.note(now_ms, queue, situation.running)
        wanted = self._wanted(now_ms, queue, situation)
        follower = self._follower(now_ms, queue, wanted)
        head = master if follower == master.node else self._head(view, wanted, follower)
        if head == master:
            members = self._ring(view, head, wanted).members
            # A master that gave this epoch up hands out again in the next one only.
            same = members == view.members and not self._handovers.has_yielded(queue.id, view)
            told = self._catalog.definition_of(queue.name).durability
            same = same and next_durability(view, told) == view.durability
            return (None if same else ChangeView(queue.id, view.epoch, members)), False
        if head is not None and not queue.exclusive and self._is_serving(master):
            return self._move(now_ms, queue, self._ring(view, head, wanted)), False
        runs = [self.status(one) for one in promotable(view)]
        cold = Status.ALIVE not in runs
        how = "cold" if cold else "clean"
        if head is None:
            head, how = self._unclean_head(queue), "unclean"
            if head is None:
                return None, False
        if cold and Status.UNKNOWN in runs:
            return None, False  # one that may still run would spare what a cold start drops
        if not self._may_replace(now_ms, master):
            self._wait(self._grantor.free_at_ms(master))
            return None, True
        is_restarted = how == "cold" or (how == "unclean" and head not in member_ids(view))
        if is_restarted and not queue.durable:
            return DeleteQueue(queue.id), True
        return ChangeView(queue.id, view.epoch, self._ring(view, head, wanted).members, how), True

    def _wanted(
        self, now_ms: int, queue: QueueRecord, situation: _Situation
    ) -> tuple[MemberId, ...]:
        definition = self._catalog.definition_of(queue.name)
        lost = self._kept.lost(now_ms, queue.id)
        ends_ms = self._kept.ends_ms(now_ms, queue.id)
        if ends_ms is not None:
            self._wait(ends_ms)
        return wanted_members(queue, definition, situation.running, situation.loads, lost)

    def _follower(
        self, now_ms: int, queue: QueueRecord, wanted: tuple[MemberId, ...]
    ) -> str | None:
        """Return which node is to follow a master that lives, by the policy or by a wish.

        The master's own name: it stays for now, though it is not wanted.
        """
        master = queue.view.members[0].id
        in_sync = [one for one in wanted if is_in_sync(queue.view, one)]
        if master in wanted or not in_sync or not self._is_serving(master):
            self._handovers.end_linger(queue.id)
            return self._handovers.wished(now_ms, queue.id, queue.view)
        if in_sync[0] == wanted[0]:
            return wanted[0].node
        until_ms = self._handovers.lingers_ms(now_ms, queue.id)
        if now_ms >= until_ms:
            return in_sync[0].node
        self._wait(until_ms)
        return master.node

    def _is_serving(self, master: MemberId) -> bool:
        """Whether it can be asked to give a queue up: one that is leaving has given all up."""
        return self._is_alive(master) and not self._is_leaving(master)

    def _move(self, now_ms: int, queue: QueueRecord, ring: View) -> CatalogCommand | None:
        """Replace a master that lives, once it has given this queue up in this epoch."""
        if self._handovers.has_yielded(queue.id, queue.view):
            return ChangeView(queue.id, queue.view.epoch, ring.members, "clean")
        self._wait(self._handovers.ask(now_ms, queue.id, queue.view))
        return None

    def _may_replace(self, now_ms: int, master: MemberId) -> bool:
        return self.status(master) is Status.DEAD or now_ms >= self._grantor.free_at_ms(master)

    def _head(
        self, view: View, wanted: tuple[MemberId, ...], wished: str | None
    ) -> MemberId | None:
        """Choose the master: R5, the first in order of those in sync whose store is alive.

        Who runs on comes before who was restarted: it still has transient messages, and a
        restarted master comes back as a mirror. Who is leaving or unwanted comes last. The one
        wished for is taken before all others if it is no worse.
        """
        best: tuple[tuple[bool, bool, bool, bool, int], MemberId] | None = None
        for place, known in enumerate(promotable(view)):
            member = self._candidate(view, known)
            if member is None:
                continue
            unwanted = (self._is_leaving(member), member not in wanted, member != known)
            key = (*unwanted, member.node != wished, place)
            if best is None or key < best[0]:
                best = (key, member)
        return None if best is None else best[1]

    def _unclean_head(self, queue: QueueRecord) -> MemberId | None:
        """Choose the oldest mirror that runs, where the policy in force lets one that is not
        in sync become master (DESIGN 4.4). The catalog checks that again.

        With `durability: replicated` restarted members are not in sync any more, and come back
        so under every policy, as soon as it is certain that no life in sync goes on.
        """
        may_lose = self._catalog.may_lose(queue)
        joining = joining_ids(queue.view) if may_lose else ()
        for known in (*self._restarted(queue.view, may_lose), *joining):
            member = self._present(known)
            is_same = member == known or queue.durable or known not in joining
            if member is not None and is_same and not self._is_leaving(member):
                return member
        return None

    def _restarted(self, view: View, may_lose: bool) -> tuple[MemberId, ...]:
        """Return who was in sync in a life that has ended, where lives count."""
        former = promotable(view)
        ended = may_lose or all(self.status(one) is Status.DEAD for one in former)
        return former if counts_lives(view) and ended else ()

    def _candidate(self, view: View, known: MemberId) -> MemberId | None:
        """Return the life in which this member in sync may become master, if it runs (R5)."""
        member = self._present(known)
        return None if counts_lives(view) and member != known else member

    def _is_leaving(self, member: MemberId) -> bool:
        return member in self._leaving or self._catalog.was_stopped(member)

    def _present(self, known: MemberId) -> MemberId | None:
        """Return the living incarnation of a member's store, if it may be a master."""
        if self.status(known) is Status.ALIVE:
            return known
        node = self._catalog.node(known.node)
        if node is None or node.store != known.store or node.witness:
            return None
        return node.member if self.status(node.member) is Status.ALIVE else None

    def _ring(self, view: View, head: MemberId, wanted: tuple[MemberId, ...]) -> View:
        """Return the members that should stand beside this master, in order."""
        mirrors = [one for one in in_sync_ids(view) if one != head and self._stays(one)]
        if not self._is_leaving(head):
            mirrors = [one for one in mirrors if not self._is_leaving(one)]
        joining = [one for one in joining_ids(view) if self._stays(one) and one != head]
        if all(one == head or one in mirrors for one in wanted):
            # Only now: an unwanted copy goes when all the wanted ones are in sync.
            # One that leaves with the master is no unwanted copy: all may stop at once.
            mirrors = [
                one
                for one in mirrors
                if one in wanted or self._is_leaving(one) or not self._is_alive(one)
            ]
        joining = [one for one in joining if one in wanted or not self._is_alive(one)]
        known = [head, *mirrors, *joining]
        joining += [one for one in wanted if one not in known and self._liveness.is_steady(one)]
        in_sync, tail = arrange(head, mirrors, joining, self._liveness.is_broken)
        return make_view(view.epoch + 1, in_sync, tail)

    def _is_alive(self, member: MemberId) -> bool:
        return self.status(member) is Status.ALIVE

    def _stays(self, member: MemberId) -> bool:
        """Say whether a mirror may stay: alive, or not yet judged by a new leader."""
        return self.status(member) in (Status.ALIVE, Status.UNKNOWN)


def _registration_error(asker: MemberId, command: RegisterNode | NodeStopped) -> str:
    named = MemberId(command.node, command.store, command.incarnation)
    if named != asker:
        return f"{asker.node} speaks for another node: {named.node}"
    return ""
