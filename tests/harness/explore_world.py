"""One queue on a few nodes as a value, and everything that can happen to it next.

The network is a FIFO for each pair of nodes and direction. A break of a link stands in it as a
mark: what was sent before may still arrive, or be lost with all that follows it, when the
receiver learns of the break. Disks are synced when they please; a crash loses what was not. The
catalog is one register, changed by the real `Catalog` on commands of the master (counting in)
and of a supervisor that may do, at any moment, whatever its rules allow: a mirror to the tail,
another order, a new master when the old one is dead, its lease has run out or it has promised to
hand nothing out (its lease goes on then), a restarted node as joiner. Nodes learn of views one by
one, whenever they please.

Faults and work are bounded by a `Bounds`. With `slow` None every order of events is possible.
With a number, at most so many of the links, disks and nodes' catalogs are slow, whichever an
exploration likes: they do their next step whenever they please. All others are prompt: what is
on their way arrives, in a fixed order, before anything else happens.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations
from typing import Any, NamedTuple

from attrs import evolve, frozen
from msgspec.structs import replace

from harness.explore_checks import Checkers, Violation, Witness
from harness.explore_owner import Owner, owner_actions
from harness.explore_process import (
    NAMES,
    QUEUE,
    ConsumerEnds,
    Crashes,
    Done,
    Expires,
    Hears,
    Installs,
    LeaseEnds,
    Logs,
    Loses,
    Meddles,
    OpensProducer,
    OwnerAttaches,
    OwnerDetaches,
    Process,
    Processes,
    ProcessEvent,
    Publishes,
    Scope,
    Settles,
    Starts,
    TakesOver,
    Ticks,
    Wiped,
    Writes,
    Yields,
)
from mirrorq.cluster.catalog.catalog import Catalog
from mirrorq.cluster.controller.handover import HandOvers
from mirrorq.protocol.commands import (
    ChangeView,
    DeclareQueue,
    DeleteQueue,
    RegisterNode,
    SetPolicy,
)
from mirrorq.protocol.control import Yielded
from mirrorq.protocol.identities import MemberId
from mirrorq.protocol.ops import OpKind
from mirrorq.protocol.policy import parse, to_text
from mirrorq.protocol.views import (
    Member,
    View,
    counts_incarnations,
    find,
    in_sync_ids,
    is_in_sync,
    joining_ids,
    make_view,
)

Action = tuple[Any, ...]
"""What happens next: its name and what it happens to."""
Task = tuple[str, int, int]
"""What can be slow: ("link", sender, receiver), ("disk", node, 0) or ("catalog", node, 0)."""
HEAL_ROUNDS = 60
"""Cures and ticks after which everything must be well: a dozen are enough."""
LATE_REQUESTS = 1000
"""Requests with acks that come late are numbered from here."""
BREAK = -1
"""In a link: here it broke and came back."""


@frozen
class Bounds:
    """How much may happen in one run."""

    publishes: int = 2
    acks: int = 0
    returns: int = 0
    ends: int = 0
    """Consumers' handles that are closed with messages in hand."""
    views: int = 2
    """Changes that the supervisor makes; those of the master come on top."""
    counts: int = 1
    """Joiners that the master counts in."""
    crashes: int = 0
    restarts: int = 0
    breaks: int = 0
    ticks: int = 1
    orders: bool = False
    """Whether the supervisor also just re-orders mirrors."""
    wipes: int = 0
    """Stopped nodes whose disk is replaced by an empty one."""
    misses: int = 0
    """Publishes that are lost on their way to the master."""
    expiries: int = 0
    """Times at which the producer's id has been idle for too long."""
    unseen: int = 0
    """What the consumer gives back because no call has taken it."""
    repeats: int = 0
    """Settlements that come late: the message went back meanwhile."""
    is_careless: bool = False
    """Whether the supervisor also proposes masters that only the catalog can refuse."""
    is_lossy: bool = False
    """Whether the policy lets a member that is not in sync become master."""
    yields: int = 0
    """Times that a living master is asked to give the queue up; who has promised may be moved."""
    losses: int = 0
    """Times that the owner of an exclusive queue is missed at its entry node, and is there."""
    closes: int = 0
    """Owners that close their handle, or die."""
    meddles: int = 0
    """Times that somebody else asks for what belongs to the owner."""
    keeps: bool = False
    """Whether a master is left alone on its word only (R13): until then others stay beside it,
    though they do not run."""
    slow: int | None = None
    """How many links, disks and catalogs are slow; None: all."""


class Left(NamedTuple):
    """What of the bounds is left."""

    publishes: int
    acks: int
    returns: int
    ends: int
    views: int
    counts: int
    crashes: int
    restarts: int
    breaks: int
    ticks: int
    wipes: int
    slow: int
    yields: int
    misses: int
    expiries: int
    unseen: int
    repeats: int
    losses: int
    closes: int
    meddles: int


class State(NamedTuple):
    """Everything there is at one moment. Numbers stand for interned values."""

    nodes: tuple[int, ...]
    links: tuple[tuple[int, ...], ...]
    """links[i * count + j]: messages on the way from node i to node j."""
    epoch: int
    views: tuple[int, ...]
    """Views committed that some running node has yet to learn of; the newest is the last."""
    proposals: tuple[int, ...]
    """What masters have proposed and what may still be committed."""
    witness: Witness
    left: Left
    slow: tuple[Task, ...] = ()
    """Sorted."""


class World:
    """The rules by which one `State` follows another."""

    def __init__(self, count: int, bounds: Bounds, scope: Scope | None = None) -> None:
        self.count = count
        self.bounds = bounds
        self.scope = scope or Scope()
        self.processes = Processes(self.scope)
        self.checkers = Checkers(self.processes)
        self._values: list[Any] = []
        self._numbers: dict[Any, int] = {}
        self._changed: dict[tuple[View, ChangeView], View | None] = {}

    # --- The beginning ------------------------------------------------------------------

    def first(self, in_sync: tuple[str, ...] | None = None) -> State:
        """All nodes up, in sync unless named otherwise, with a producer's id given out."""
        names = NAMES[: self.count]
        members = [MemberId(name, 1, 1) for name in in_sync or names]
        view = make_view(1, members, master_epoch=1)
        if self.processes.scope.in_memory:
            view = replace(view, durability="replicated")
        nodes = tuple(self.processes.add(Process(name)) for name in names)
        left = Left._make(getattr(self.bounds, name) or 0 for name in Left._fields)
        links: tuple[tuple[int, ...], ...] = ((),) * (self.count * self.count)
        state = State(nodes, links, 1, (self._intern(view),), (), Witness(), left)
        state = self.settle(state)
        master = next(i for i, name in enumerate(names) if name == members[0].node)
        state = self._step(state, master, OpensProducer())
        state = self.settle(state)
        self.processes.producer = next(
            entry.lsn for entry in state.witness.stable if entry.header.kind == OpKind.PRODUCER
        )
        return state._replace(left=left)

    def settle(self, state: State) -> State:
        """Let everything that is on its way arrive, and be written."""
        while (action := self._prompt(state, ())) is not None:
            state = self._checked(self._do(state, action))
        return state

    def view(self, state: State) -> View:
        """The last committed view."""
        return self._values[state.views[-1]]  # type: ignore[no-any-return]

    def _views(self, state: State) -> list[View]:
        return [self._values[number] for number in state.views]

    # --- What can happen ------------------------------------------------------------------

    def actions(self, state: State) -> Iterator[Action]:
        """Everything that can happen next."""
        if state.witness.owner.is_deleted:
            return
        left = state.left
        if self.bounds.slow is None:
            yield from self._slow_actions(state, None)
        else:
            yield from self._slow_actions(state, state.slow)
            if left.slow:
                for task in self._tasks():
                    if task not in state.slow:
                        yield ("slow", task)
        for place, number in enumerate(state.nodes):
            process = self.processes[number]
            if not process.is_up:
                if left.restarts:
                    yield ("start", place)
                if left.wipes:
                    yield ("wipe", place)
                continue
            if left.crashes:
                yield ("crash", place)
            master = process.master
            if master is not None and master.active:
                yield from self._user_actions(state, place, master.master_epoch)
        for proposal in range(len(state.proposals)):
            yield ("commit", proposal)
        for index in range(len(state.witness.owner.asked)):
            yield ("delete", index)
        if left.yields and self._master_place(state) is not None:
            yield ("yield",)
        if left.views:
            yield from self._supervisor_actions(state)
        if left.breaks:
            for one in range(self.count):
                for other in range(one):
                    yield ("break", other, one)
        if left.ticks and self._prompt(state, ()) is None:
            yield ("tick",)

    def _tasks(self) -> Iterator[Task]:
        for place in range(self.count):
            yield ("catalog", place, 0)
            yield ("disk", place, 0)
            if self.scope.rail:
                yield ("rail", place, 0)
            for other in range(self.count):
                if other != place:
                    yield ("link", place, other)

    def _slow_actions(self, state: State, slow: tuple[Task, ...] | None) -> Iterator[Action]:
        """The next steps of these tasks (None: of all)."""
        for link, queue in enumerate(state.links):
            if not queue:
                continue
            sender, receiver = divmod(link, self.count)
            if slow is None or ("link", sender, receiver) in slow:
                if queue[0] != BREAK:
                    yield ("hear", sender, receiver)
                if BREAK in queue:
                    yield ("lose", sender, receiver)
        for place, number in enumerate(state.nodes):
            process = self.processes[number]
            if not process.is_up:
                continue
            if process.pending and (slow is None or ("disk", place, 0) in slow):
                yield ("write", place)
            if slow is None or ("rail", place, 0) in slow:
                if process.rail.group:
                    yield ("log", place)
                if process.rail.out:
                    yield ("take", place)
            behind = process.epoch < state.epoch
            if behind and (slow is None or ("catalog", place, 0) in slow):
                yield ("install", place)

    def _prompt(self, state: State, slow: tuple[Task, ...]) -> Action | None:
        """The next step of what is not slow."""
        for place, number in enumerate(state.nodes):
            process = self.processes[number]
            behind = process.is_up and process.epoch < state.epoch
            if behind and ("catalog", place, 0) not in slow:
                return ("install", place)
        for link, queue in enumerate(state.links):
            if queue:
                sender, receiver = divmod(link, self.count)
                if ("link", sender, receiver) not in slow:
                    return ("lose" if queue[0] == BREAK else "hear", sender, receiver)
        for place, number in enumerate(state.nodes):
            if self.processes[number].pending and ("disk", place, 0) not in slow:
                return ("write", place)
        for place, number in enumerate(state.nodes):
            rail = self.processes[number].rail
            if (rail.group or rail.out) and ("rail", place, 0) not in slow:
                return ("log" if rail.group else "take", place)
        return None

    def _user_actions(self, state: State, place: int, master_epoch: int) -> Iterator[Action]:
        left, witness = state.left, state.witness
        if witness.sent_in(master_epoch) < self.bounds.publishes:
            yield ("publish", place)
        if self.scope.owned:
            yield from owner_actions(witness.owner, left, place, master_epoch)
            if not witness.owner.number_in(master_epoch):
                return
        for index, piece in enumerate(witness.held):
            if left.acks:
                yield ("ack", place, index)
            if left.returns and piece.epoch == master_epoch:
                yield ("return", place, index)
            if left.unseen and piece.epoch == master_epoch:
                yield ("unseen", place, index)
        if left.ends and witness.held:
            yield ("end", place)
        if left.misses and witness.sent_in(master_epoch) < self.bounds.publishes:
            yield ("miss", place)
        if left.expiries:
            yield ("expire", place)
        for index, (kind, piece) in enumerate(witness.gone):
            if left.repeats and piece.epoch == master_epoch:
                yield (kind, place, index)

    def _supervisor_actions(self, state: State) -> Iterator[Action]:
        view = self.view(state)
        up = {p.member: p for p in (self.processes[n] for n in state.nodes) if p.is_up}
        absent = [one for one in up if find(view, one) is None]
        master, *mirrors = in_sync_ids(view)
        if absent:
            yield ("view", "append", "")
        if master in up:
            for mirror in mirrors:
                yield ("view", "demote", mirror.node)
            if self.bounds.orders and len(mirrors) > 1:
                yield ("view", "turn", "")
        for one in up:
            may_lead = self.bounds.is_careless or _may_follow(view, (master, *mirrors), one)
            if may_lead and one != master:
                yield ("view", "promote", one.node)
        if self.bounds.keeps and mirrors and not any(one in up for one in mirrors):
            if self._has_word(state, view, master):
                yield ("view", "drop", "")
        if self.bounds.yields and self._has_promised(state, view):
            for mirror in mirrors:
                if mirror in up:
                    yield ("view", "move", mirror.node)
        if self.bounds.is_lossy or self.bounds.is_careless:
            for known in joining_ids(view):
                for one in up:
                    if (one.node, one.store) == (known.node, known.store):
                        yield ("view", "lose", one.node)

    def _master_place(self, state: State) -> int | None:
        """Where the master of the last committed view runs, if it does."""
        master = self.view(state).members[0].id
        for place, number in enumerate(state.nodes):
            process = self.processes[number]
            if process.is_up and process.member == master:
                return place
        return None

    def _has_word(self, state: State, view: View, head: MemberId) -> bool:
        """Whether the view's master is this one, and lives in this very epoch: it may say so."""
        place = self._master_place(state)
        if place is None or head != view.members[0].id:
            return False
        return self.processes[state.nodes[place]].epoch == view.epoch

    def _has_promised(self, state: State, view: View) -> bool:
        """Whether the leader may move the master: what it promises is known at once."""
        place = self._master_place(state)
        if place is None:
            return False
        process = self.processes[state.nodes[place]]
        handovers = HandOvers(0)
        epoch = None if process.replica is None else process.replica.yielded_epoch
        if epoch is not None:
            handovers.on_yielded(Yielded(QUEUE, epoch, process.member), view)
        return handovers.has_yielded(QUEUE, view)

    # --- What follows ---------------------------------------------------------------------

    def do(self, state: State, action: Action) -> State:
        """The state after an action. Raises Violation when a checker objects."""
        state = self._checked(self._do(state, action))
        if self.bounds.slow is not None:
            while (prompt := self._prompt(state, state.slow)) is not None:
                state = self._checked(self._do(state, prompt))
        return state

    def _checked(self, state: State) -> State:
        self.checkers.check(state.nodes, self.view(state), state.witness)
        return state

    def _do(self, state: State, action: Action) -> State:
        match action:
            case ("hear", sender, receiver):
                return self._hear(state, sender, receiver)
            case ("lose", sender, receiver):
                return self._lose(state, sender, receiver)
            case ("write", place):
                return self._step(state, place, Writes())
            case ("log", place):
                return self._step(state, place, Logs())
            case ("take", place):
                return self._step(state, place, TakesOver())
            case ("install", place):
                return self._install(state, place)
            case ("crash", place):
                return self._crash(state, place)
            case ("start", place):
                left = state.left._replace(restarts=state.left.restarts - 1)
                return self._step(state._replace(left=left), place, Starts(state.epoch - 1))
            case ("wipe", place):
                left = state.left._replace(wipes=state.left.wipes - 1)
                return self._step(state._replace(left=left), place, Wiped())
            case ("break", one, other):
                left = state.left._replace(breaks=state.left.breaks - 1)
                return self._break(state._replace(left=left), one, other)
            case ("commit", index):
                return self._commit(state, index)
            case ("delete", index):
                return self._delete(state, index)
            case ("view", how, node):
                return self._supervise(state, how, node)
            case ("tick",):
                return self._tick(state)
            case ("yield",):
                return self._yield(state)
            case ("slow", task):
                left = state.left._replace(slow=state.left.slow - 1)
                return state._replace(left=left, slow=tuple(sorted((*state.slow, task))))
            case ("own" | "owner lost" | "owner closes" | "owner dies" | "goodbye" | "meddle", *_):
                return self._own(state, action)
            case _:
                return self._use(state, action)

    def _use(self, state: State, action: Action) -> State:
        left, witness = state.left, state.witness
        place: int = action[1]
        master_epoch = self.processes[state.nodes[place]].master.master_epoch
        match action:
            case ("publish", place):
                number = witness.sent_in(master_epoch) + 1
                sent = dict(witness.sent) | {master_epoch: number}
                witness = witness._replace(sent=tuple(sorted(sent.items())))
                state = state._replace(witness=witness)
                return self._step(state, place, Publishes(number, witness.prefix))
            case ("ack", place, index):
                piece = witness.held[index]
                state = self._let_go(state, index)
                request = left.acks
                settling = (*state.witness.settling, (master_epoch, request, piece))
                witness = state.witness._replace(settling=settling)
                left = left._replace(acks=left.acks - 1)
                state = state._replace(witness=witness, left=left)
                return self._step(state, place, Settles(request, "ack", piece))
            case ("return", place, index):
                piece = witness.held[index]
                state = self._let_go(state, index)
                state = state._replace(left=left._replace(returns=left.returns - 1))
                return self._step(state, place, Settles(0, "nack", piece))
            case ("end", place):
                gone = (*witness.gone, *(("ack late", piece) for piece in witness.held))
                state = state._replace(
                    left=left._replace(ends=left.ends - 1),
                    witness=witness._replace(held=(), settling=(), gone=gone),
                )
                return self._step(state, place, ConsumerEnds())
            case ("miss", place):
                sent = dict(witness.sent) | {master_epoch: witness.sent_in(master_epoch) + 1}
                witness = witness._replace(sent=tuple(sorted(sent.items())))
                left = left._replace(misses=left.misses - 1)
                return state._replace(witness=witness, left=left)
            case ("expire", place):
                state = state._replace(left=left._replace(expiries=left.expiries - 1))
                return self._step(state, place, Expires())
            case ("unseen", place, index):
                piece = witness.held[index]
                state = self._let_go(state, index)
                witness = state.witness
                gone = (*witness.gone, ("again", piece))
                if piece.count == 1:
                    seen = set(witness.handed) - set(range(piece.first, piece.last + 1))
                    witness = witness._replace(handed=tuple(sorted(seen)))
                left = left._replace(unseen=left.unseen - 1)
                state = state._replace(witness=witness._replace(gone=gone), left=left)
                return self._step(state, place, Settles(0, "giveback", piece))
            case ("again", place, index):
                state = state._replace(left=left._replace(repeats=left.repeats - 1))
                return self._step(state, place, Settles(0, "giveback", witness.gone[index][1]))
            case ("ack late", place, index):
                piece = witness.gone[index][1]
                request = LATE_REQUESTS + left.repeats
                settling = (*witness.settling, (master_epoch, request, piece))
                state = state._replace(
                    left=left._replace(repeats=left.repeats - 1),
                    witness=witness._replace(settling=settling),
                )
                return self._step(state, place, Settles(request, "ack", piece))
        raise ValueError(f"no such action: {action}")

    def _own(self, state: State, action: Action) -> State:
        """The owner of an exclusive queue, or a stranger, at one master."""
        left, witness = state.left, state.witness
        owner, held = witness.owner, witness.held
        place: int = action[1]
        term = self.processes[state.nodes[place]].master.master_epoch
        match action:
            case ("own", place):
                number = owner.next_in(term)
                mine = tuple(piece for piece in held if piece.epoch == term)
                state = _with_owner(state, owner.sit(term, number))
                return self._step(state, place, OwnerAttaches(number, mine))
            case ("owner lost", place):
                settling = tuple(one for one in witness.settling if one[0] != term)
                state = _with_owner(state, owner.lost((term,)))
                witness = state.witness._replace(settling=settling)
                return state._replace(witness=witness, left=left._replace(losses=left.losses - 1))
            case ("owner closes", place):
                state = _with_owner(state, owner.closed(term))
                state = state._replace(
                    left=left._replace(closes=left.closes - 1),
                    witness=state.witness._replace(held=(), settling=()),
                )
                return self._step(state, place, OwnerDetaches(owner.number_in(term), False))
            case ("owner dies", place):
                gone = owner.lost(tuple(one for one, _ in owner.seated))._replace(is_gone=True)
                witness = witness._replace(held=(), settling=(), owner=gone)
                return state._replace(witness=witness, left=left._replace(closes=left.closes - 1))
            case ("goodbye", place, index):
                state = _with_owner(state, owner.told(index))
                return self._step(state, place, OwnerDetaches(owner.goodbyes[index][1], True))
            case ("meddle", place):
                state = state._replace(left=left._replace(meddles=left.meddles - 1))
                return self._step(state, place, Meddles())
        raise ValueError(f"no such action: {action}")

    def _let_go(self, state: State, index: int) -> State:
        held = state.witness.held
        return state._replace(witness=state.witness._replace(held=held[:index] + held[index + 1 :]))

    def _hear(self, state: State, sender: int, receiver: int) -> State:
        link = sender * self.count + receiver
        queue = state.links[link]
        member, message = self._values[queue[0]]
        state = _with_link(state, link, queue[1:])
        return self._step(state, receiver, Hears(member, message))

    def _lose(self, state: State, sender: int, receiver: int) -> State:
        link = sender * self.count + receiver
        queue = state.links[link]
        state = _with_link(state, link, queue[queue.index(BREAK) + 1 :])
        return self._step(state, receiver, Loses(NAMES[sender]))

    def _install(self, state: State, place: int) -> State:
        """The node's catalog applies the next view."""
        process = self.processes[state.nodes[place]]
        view = next(one for one in self._views(state) if one.epoch == process.epoch + 1)
        leased = view.epoch == state.epoch and view.members[0].id == process.member
        state = self._step(state, place, Installs(view, leased))
        known = [self.processes[number] for number in state.nodes]
        known_epoch = min(process.epoch for process in known if process.is_up)
        keep = sum(1 for one in self._views(state) if one.epoch > known_epoch)
        return state._replace(views=state.views[-max(keep, 1) :])

    def _crash(self, state: State, place: int) -> State:
        left = state.left._replace(crashes=state.left.crashes - 1)
        state = state._replace(left=left)
        for other in range(self.count):
            if other != place:
                state = self._break(state, place, other)
        return self._step(state, place, Crashes())

    def _break(self, state: State, one: int, other: int) -> State:
        """Both ends will learn of it; what is on the way may arrive before."""
        for sender, receiver in ((one, other), (other, one)):
            link = sender * self.count + receiver
            queue = state.links[link]
            if not self.processes[state.nodes[receiver]].is_up:
                queue = ()
            elif BREAK in queue:
                queue = (*queue[: queue.index(BREAK)], BREAK)
            else:
                queue = (*queue, BREAK)
            state = _with_link(state, link, queue)
        return state

    def _yield(self, state: State) -> State:
        place = self._master_place(state)
        assert place is not None
        left = state.left._replace(yields=state.left.yields - 1)
        return self._step(state._replace(left=left), place, Yields())

    def _tick(self, state: State) -> State:
        state = state._replace(left=state.left._replace(ticks=state.left.ticks - 1))
        if self.scope.owned:
            masters = [self.processes[number].master for number in state.nodes]
            terms = tuple(one.master_epoch for one in masters if one is not None and one.active)
            state = _with_owner(state, state.witness.owner.after_tick(terms))
        for place in range(self.count):
            state = self._step(state, place, Ticks())
        return state

    # --- Healing --------------------------------------------------------------------------

    def heal(self, state: State) -> State:
        """End all faults and let time pass: everything must come to rest, in sync.

        Raises:
            Violation: "progress", when it does not.
        """
        left = state.left._replace(
            views=HEAL_ROUNDS, counts=HEAL_ROUNDS, restarts=HEAL_ROUNDS, ticks=HEAL_ROUNDS
        )
        state = state._replace(left=left, slow=())
        for _ in range(HEAL_ROUNDS):
            state = self.settle(state)
            if state.witness.owner.is_deleted or self._is_healthy(state):
                return state
            state = self._checked(self._do(state, self._cure(state)))
        raise Violation("progress", f"after all faults have ended: {self.describe(state)}")

    def _cure(self, state: State) -> Action:
        processes = [self.processes[number] for number in state.nodes]
        for place, process in enumerate(processes):
            if not process.is_up:
                return ("start", place)
        view = self.view(state)
        up = [process.member for process in processes]
        if view.members[0].id not in up:
            known = in_sync_ids(view)
            heir = next((one for one in up if _may_follow(view, known, one)), None)
            if heir is not None:
                return ("view", "promote", heir.node)
        elif any(find(view, one) is None for one in up):
            return ("view", "append", "")
        if self.scope.owned and (action := self._cure_owner(state)) is not None:
            return action
        return ("commit", 0) if state.proposals else ("tick",)

    def _cure_owner(self, state: State) -> Action | None:
        """The owner comes back if it lives; who misses it says so; deletions are carried out."""
        owner = state.witness.owner
        if owner.asked:
            return ("delete", 0)
        for place, number in enumerate(state.nodes):
            master = self.processes[number].master
            if master is not None and master.active:
                for action in owner_actions(owner, state.left, place, master.master_epoch):
                    if action[0] in ("own", "goodbye"):
                        return action
        return None

    def _is_owned(self, state: State) -> bool:
        """Whether its owner has it, and nobody wants it gone."""
        owner = state.witness.owner
        term = self.view(state).master_epoch
        return not owner.is_gone and not owner.asked and owner.number_in(term) > 0

    def _is_healthy(self, state: State) -> bool:
        if self.scope.owned and not self._is_owned(state):
            return False
        view = self.view(state)
        stable = len(state.witness.stable)
        for number in state.nodes:
            process = self.processes[number]
            replica = process.replica
            if replica is None or not is_in_sync(view, process.member):
                return False
            ring = replica.ring
            if not ring.log.received == ring.log.stable == ring.log.durable == stable:
                return False
        return True

    # --- Views ----------------------------------------------------------------------------

    def _commit(self, state: State, index: int) -> State:
        """A proposal of a master is committed, or found stale."""
        proposal = self._values[state.proposals[index]]
        rest = state.proposals[:index] + state.proposals[index + 1 :]
        state = state._replace(proposals=rest)
        return self._change(state, proposal)

    def _change(self, state: State, change: ChangeView) -> State:
        view = self._applied(self.view(state), change)
        if view is None:
            return state
        return state._replace(
            epoch=view.epoch,
            views=(*state.views, self._intern(view)),
            proposals=tuple(
                p for p in state.proposals if self._applied(view, self._values[p]) is not None
            ),
        )

    def _delete(self, state: State, index: int) -> State:
        """A master's deletion is committed, or found to be of an older term."""
        owner, view = state.witness.owner, self.view(state)
        term = owner.asked[index]
        if _is_deleted(view, DeleteQueue(QUEUE, term)):
            witness = self.checkers.on_deleted(state.witness, view.master_epoch)
            return state._replace(witness=witness)
        asked = owner.asked[:index] + owner.asked[index + 1 :]
        return _with_owner(state, owner._replace(asked=asked))

    def _applied(self, view: View, change: ChangeView) -> View | None:
        """What the catalog makes of a proposal; None when it refuses it."""
        known = self._changed.get((view, change))
        if known is None and (view, change) not in self._changed:
            lossy = self.bounds.is_lossy
            known = self._changed[view, change] = _apply_change(view, change, lossy)
        return known

    def _supervise(self, state: State, how: str, node: str) -> State:
        """The catalog's leader changes the view, as `controller` would."""
        view = self.view(state)
        up = [p.member for p in (self.processes[n] for n in state.nodes) if p.is_up]
        master, *mirrors = in_sync_ids(view)
        head = master
        promoted = ""
        if how in ("promote", "lose", "move"):
            head = next(one for one in up if one.node == node)
            promoted = "unclean" if how == "lose" else "clean"
        if how in ("promote", "lose"):
            # A master whose process runs is replaced when its lease has run out (4.5).
            for place in range(self.count):
                if self.processes[state.nodes[place]].member == master:
                    state = self._step(state, place, LeaseEnds())
        mirrors = [one for one in mirrors if one in up and one.node != head.node]
        if head != master and master in up:
            mirrors.append(master)
        if how == "lose":
            mirrors = []
        if how == "turn":
            mirrors = list(list(permutations(mirrors))[-1])
        joining = [one for one in joining_ids(view) if one in up and one.node != head.node]
        if how == "demote":
            joining += [one for one in mirrors if one.node == node]
            mirrors = [one for one in mirrors if one.node != node]
        if self.bounds.keeps and not mirrors and promoted != "unclean":
            if not self._has_word(state, view, head):
                mirrors = [one for one in in_sync_ids(view) if one.node != head.node]
        placed = [one.node for one in (head, *mirrors)]
        joining = [one for one in joining if one.node not in placed]
        placed += [one.node for one in joining]
        joining += [one for one in up if one.node not in placed]
        members = tuple(Member(one, True) for one in (head, *mirrors))
        members += tuple(Member(one, False) for one in joining)
        state = state._replace(left=state.left._replace(views=state.left.views - 1))
        changed = self._change(state, ChangeView(QUEUE, view.epoch, members, promoted))
        if how == "lose" and self.bounds.is_lossy and changed.epoch > state.epoch:
            witness = changed.witness._replace(past=changed.epoch, is_open=True)
            changed = changed._replace(witness=witness)
        return changed

    # --- Steps of nodes -------------------------------------------------------------------

    def _step(self, state: State, place: int, event: ProcessEvent) -> State:
        done = self.processes.step(state.nodes[place], event)
        witness = state.witness
        if done.error or done.declared or done.replies or done.deletes:
            witness = self.checkers.after(witness, done)
        nodes = (*state.nodes[:place], done.process, *state.nodes[place + 1 :])
        state = state._replace(nodes=nodes, witness=witness)
        if done.send:
            state = self._send(state, place, done)
        if done.propose:
            state = self._proposed(state, done)
        return state

    def _send(self, state: State, place: int, done: Done) -> State:
        links = list(state.links)
        for to, sender, message in done.send:
            receiver = NAMES.index(to)
            if not self.processes[state.nodes[receiver]].is_up:
                continue
            link = place * self.count + receiver
            links[link] = (*links[link], self._intern((sender, message)))
        return state._replace(links=tuple(links))

    def _intern(self, value: Any) -> int:
        """One number for equal values: states are hashed and compared often."""
        number = self._numbers.get(value)
        if number is None:
            number = self._numbers[value] = len(self._values)
            self._values.append(value)
        return number

    def _proposed(self, state: State, done: Done) -> State:
        proposals = state.proposals
        left = state.left
        for change in done.propose:
            number = self._intern(change)
            fresh = number not in proposals and change.replaces == state.epoch
            if fresh and left.counts:
                left = left._replace(counts=left.counts - 1)
                proposals = (*proposals, number)
        return state._replace(proposals=proposals, left=left)

    def describe(self, state: State) -> str:
        """A state in a few lines, for a trace."""
        lines = []
        for number in state.nodes:
            process = self.processes[number]
            if process.replica is None:
                lines.append(f"{process.name}: {'up' if process.is_up else 'down'}")
                continue
            ring = process.replica.ring
            lines.append(
                f"{process.name}: epoch {ring.epoch}, received {ring.log.received}, "
                f"durable {ring.log.durable}, stable {ring.log.stable}, "
                f"applied {process.replica.state.applied}"
            )
        return "; ".join(lines)


def _with_owner(state: State, owner: Owner) -> State:
    return state._replace(witness=state.witness._replace(owner=owner))


def _with_link(state: State, link: int, queue: tuple[int, ...]) -> State:
    links = (*state.links[:link], queue, *state.links[link + 1 :])
    return state._replace(links=links)


def _may_follow(view: View, in_sync: tuple[MemberId, ...], one: MemberId) -> bool:
    """Whether the controller would have it lead."""
    if counts_incarnations(view):
        return one in in_sync
    return (one.node, one.store) in [(known.node, known.store) for known in in_sync]


def _apply_change(view: View, change: ChangeView, lossy: bool) -> View | None:
    """What the real catalog answers, at this view."""
    catalog = _catalog_at(view, lossy)
    result = catalog.apply(3, change)
    after = catalog.queue(QUEUE)
    assert after is not None
    return None if result.error else after.view


def _is_deleted(view: View, command: DeleteQueue) -> bool:
    """Whether the real catalog does it, at this view."""
    catalog = _catalog_at(view, False)
    catalog.apply(3, command)
    return catalog.queue(QUEUE) is None


def _catalog_at(view: View, lossy: bool) -> Catalog:
    catalog = Catalog()
    told = {"ha-promote-on-failure": "always"} if lossy else {}
    if counts_incarnations(view):
        told["durability"] = "replicated"
    if told:
        catalog.apply(1, SetPolicy("p", to_text(parse("p", "", told))))
    for member in view.members:
        one = member.id
        catalog.apply(1, RegisterNode(one.node, one.store, one.incarnation, "", False))
    masters = (view.members[0].id,)
    catalog.apply(2, DeclareQueue("q", True, False, False, "", None, masters))
    record = catalog.queue(QUEUE)
    assert record is not None
    catalog._queues.change_view(record, evolve(record, view=view))
    return catalog


__all__ = ["Action", "Bounds", "State", "Violation", "World"]
