"""Queues of one connection, for a swarm: `exclusive="connection"`.

    owned = Owned(cluster, random, counts)
    owned.start()

An owner is a client or one life of a node. It declares a queue, keeps one handle on it while it
lives, and has others that put and consume, close and die. Strangers put into the queue and try to
take from it, and to declare it. The queue has to live as long as its owner is there or was not
missed for `consumer_return_ms`, wherever its master and its owner's entry node go, and has to go
when the owner has gone. Nobody else is ever handed anything, and nothing confirmed is lost.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from random import Random
from typing import TypeVar

from attrs import define, field
from msgspec.structs import replace

from harness.cluster import SimulatedCluster
from harness.load import LINE_MAX, Life
from harness.visits import ANSWER_MS, Guest, Visits
from harness.workload import SILENCES_MS, Journal, Place
from mirrorq.engine.events import Ask
from mirrorq.protocol.commands import DeclareQueue, TransferMaster
from mirrorq.protocol.identities import connection_of
from mirrorq.protocol.policy import owned_arguments
from mirrorq.protocol.sessions import Attach, Detach, Purged, SessionRequest
from mirrorq.session.calls import Delivered, Output, Query, QueryDone, purge_request

__all__ = ["Owned", "Owner", "Stranger", "User"]

H = TypeVar("H", bound="User")

OWNERS_MAX = 3
"""At a time."""
USERS_MAX = 3
"""Handles of an owner on its queue, beside the one that keeps it."""
STRANGERS_MAX = 2
NAMES = 8
"""So few that owners meet at one name."""
SURE = 0.9
"""A time counts as over when so much of it is, by whichever clock it was counted."""


class User(Guest):
    """One handle of an owner: it puts and consumes."""

    connection = ""
    """Whose it is, when it is a client's."""

    def be_of(self, client: str, random: Random) -> None:
        """It is this client's. Before its first step."""
        self.connection = client
        self.be_of_client(random.randint(1, LINE_MAX), random)

    def fall_silent(self, random: Random) -> None:
        """The client's process is killed; its entry node, if it runs, says so in its name."""
        goodbye = SessionRequest(
            self.queue_id,
            self.session.epoch,
            self._session_id,
            self.session._attachment,
            self.session._request + 1,
            Detach(is_lost=True),
        )
        self.die()
        self.cluster.after(random.choice(SILENCES_MS), self._on_missed, goodbye)

    def attach_request(self, attach: Attach) -> Attach:
        return replace(super().attach_request(attach), connection=self.connection)


class Keeper(User):
    """The handle that an owner has on its queue until it ends."""

    def __init__(self, place: Place, journal: Journal) -> None:
        super().__init__(place, journal)
        self.session.unsubscribe(self.number)

    def ask(self) -> None:
        """It takes nothing."""


class Stranger(User):
    """A handle of another connection: it may put. It asks for messages, and for a purge."""

    taken = 0
    """Messages that it was handed, or has purged."""

    def purge(self) -> None:
        self.session.query(Query(None, purge_request))
        self.poke()

    def take(self, outputs: list[Output]) -> None:
        super().take(outputs)
        for output in outputs:
            if isinstance(output, Delivered):
                self.taken += 1
            elif isinstance(output, QueryDone) and isinstance(output.reply, Purged):
                self.taken += not output.reply.why


@define
class Owner:
    """One connection and its queue."""

    name: str
    """Of the queue."""
    connection: str
    node: str
    """Where it has asked for it."""
    node_life: int
    is_client: bool
    token: int = 0
    asked_ms: int = 0
    life: Life | None = None
    """None: it has not heard that the queue is its own."""
    keeper: Keeper | None = None
    users: list[User] = field(factory=list)
    strangers: list[Stranger] = field(factory=list)
    is_gone: bool = False
    """It was closed, or killed, and nobody comes any more."""
    is_left: bool = False
    """It was closed when nothing was left in its queue."""
    unheard_since_ms: int | None = None
    """Since when no handle of it could reach a master."""
    excused_term: int = -1
    """In this term of a master it was away for so long that its queue may go."""

    @property
    def handles(self) -> list[User]:
        mine = [*self.users, *([self.keeper] if self.keeper is not None else [])]
        return [handle for handle in mine if handle.is_alive]


class Owned(Visits):
    """All such queues of a run."""

    def __init__(
        self, cluster: SimulatedCluster, random: Random, counts: Counter[str], *, pace: int = 1
    ) -> None:
        super().__init__(cluster, random, counts, pace=pace)
        self._owners: list[Owner] = []
        self._clients = 0
        self._handles = 0

    def drain(self) -> None:
        super().drain()
        for owner in self._owners:
            for handle in owner.handles:
                handle.nack_share = 0.0
                handle.may_leave = False

    @property
    def is_over(self) -> bool:
        return not self._owners and not any(
            record.connection
            for name in self.cluster.running
            for record in self.cluster.engine(name).catalog.queues()
        )

    # --- The course of it -----------------------------------------------------------------

    def _look(self) -> None:
        for owner in list(self._owners):
            self._tend(owner)
        alive = [owner for owner in self._owners if not owner.is_gone]
        if not self._is_quiet and len(alive) < OWNERS_MAX and self.random.random() < 0.3:
            self._appear()

    def _appear(self) -> None:
        nodes = self._nodes()
        if not nodes:
            return
        node, is_client = self.random.choice(nodes), self.random.random() < 0.6
        if is_client:
            self._clients += 1
            connection = f"client{self._clients}"
        else:
            connection = connection_of(self.cluster.new_session(node))
        self._counts["owner" if is_client else "owning node"] += 1
        name = f"owned{self.random.randrange(NAMES)}"
        if any(one.connection == connection and one.name == name for one in self._owners):
            return
        life = self.cluster.nodes[node].life
        owner = Owner(name, connection, node, life, is_client)
        self._owners.append(owner)
        self._declare(owner)

    def _declare(self, owner: Owner) -> None:
        owner.token, owner.asked_ms = self.cluster.new_token(), self.cluster.now_ms
        arguments = owned_arguments("", owner.connection)
        command = DeclareQueue(owner.name, True, False, False, owner.node, None, (), arguments)
        self.cluster.tell(owner.node, Ask(owner.token, command))

    def _tend(self, owner: Owner) -> None:
        if owner.life is None:
            self._await_answer(owner)
            return
        self._bury(owner)
        if self._is_deleted(owner.life):
            self._end(owner, owner.life)
            return
        self._note_silence(owner, owner.life)
        if owner.is_gone:
            return
        if self._is_draining:
            self._drain(owner, owner.life)
        elif not self._is_quiet:
            self._use(owner, owner.life)

    def _await_answer(self, owner: Owner) -> None:
        cluster = self.cluster
        node = cluster.nodes.get(owner.node)
        has_node = node is not None and node.life == owner.node_life and node.engine is not None
        answer = node.answers.pop(owner.token, None) if node is not None and has_node else None
        if answer is not None and answer.error:
            self._check_refusal(owner, answer.text)
            self._owners.remove(owner)
        elif answer is not None:
            self._check_alone(owner, answer.value)
            owner.life = Life(answer.value)
            self.lives.append(owner.life)
            owner.keeper = self._handle(Keeper, owner, owner.life, owner.node)
        elif has_node and cluster.now_ms - owner.asked_ms < ANSWER_MS:
            return
        elif owner.is_client and self._nodes() and not self._is_draining:
            owner.node = self.random.choice(self._nodes())
            owner.node_life = cluster.nodes[owner.node].life
            self._declare(owner)
        else:
            self._owners.remove(owner)

    def _handle(self, kind: type[H], owner: Owner, life: Life, node: str) -> H:
        self._handles += 1
        name = f"{owner.name}-{owner.connection}-{self._handles}"
        place = Place(self.cluster, node, life.queue_id, name, self.random)
        handle = kind(place, life.journal)
        if owner.is_client:
            handle.be_of(owner.connection, self.random)
            handle.may_leave = not self._is_draining
        handle.poke()
        return handle

    def _place(self, owner: Owner, life: Life) -> str | None:
        """A node on which a handle of the owner may be opened now."""
        if not owner.is_client:
            node = self.cluster.nodes[owner.node]
            is_there = node.engine is not None and node.life == owner.node_life
            return owner.node if is_there else None
        return self._knowing(life)

    def _knowing(self, life: Life) -> str | None:
        known = [
            name
            for name in self._nodes()
            if self.cluster.engine(name).catalog.queue(life.queue_id) is not None
        ]
        return self.random.choice(known) if known else None

    def _use(self, owner: Owner, life: Life) -> None:
        chance = self.random.random()
        users, strangers = owner.users, owner.strangers
        if users and chance < 0.4:
            self.random.choice(users).publish()
        elif strangers and chance < 0.6:
            self.random.choice(strangers).publish()
        elif strangers and chance < 0.62:
            self.random.choice(strangers).purge()
        elif users and chance < 0.64:
            self.random.choice(users).close()
        elif chance < 0.65:
            self._go(owner, is_kind=False)
        elif chance < 0.66:
            self._go(owner, is_kind=True)
        elif chance < 0.68:
            self._move(owner, life)
        elif chance > 0.9 and len(users) < USERS_MAX:
            node = self._place(owner, life)
            if node is not None:
                users.append(self._handle(User, owner, life, node))
        elif chance > 0.85 and len(strangers) < STRANGERS_MAX:
            self._meet(owner, life)

    def _move(self, owner: Owner, life: Life) -> None:
        """Somebody moves the queue's master: its owner may be on another node."""
        node = self._knowing(life)
        if node is not None:
            self._counts["owned queue moves"] += 1
            command = TransferMaster(owner.name, node)
            self.cluster.tell(node, Ask(self.cluster.new_token(), command))

    def _meet(self, owner: Owner, life: Life) -> None:
        """Somebody else opens the queue, passively: a client or a node's handle."""
        node = self._knowing(life)
        if node is None or (not owner.is_client and node == owner.node):
            return
        self._handles += 1
        name = f"{owner.name}-stranger-{self._handles}"
        place = Place(self.cluster, node, life.queue_id, name, self.random)
        stranger = Stranger(place, life.journal)
        if self.random.random() < 0.5:
            stranger.be_of(f"stranger{self._handles}", self.random)
        stranger.poke()
        owner.strangers.append(stranger)

    def _go(self, owner: Owner, *, is_kind: bool) -> None:
        """The whole connection ends: closed, or its process is killed. A node's is ended by the
        faults of the run."""
        if not is_kind and not owner.is_client:
            return
        self._counts["owner closes" if is_kind else "owner dies"] += 1
        for handle in owner.handles:
            if is_kind:
                handle.close()
            else:
                handle.fall_silent(self.random)
        owner.is_gone = True

    def _drain(self, owner: Owner, life: Life) -> None:
        """The owner takes the rest and goes."""
        for stranger in owner.strangers:
            if stranger.open_count == 0:
                stranger.close()
        if not owner.users:
            node = self._place(owner, life)
            if node is not None:
                owner.users.append(self._handle(User, owner, life, node))
            return
        master = self.cluster.master(life.queue_id)
        if master is None or any(stranger.is_alive for stranger in owner.strangers):
            return
        if self._is_used_up(life, master, owner.handles):
            owner.is_left = True
            self._go(owner, is_kind=True)

    def _bury(self, owner: Owner) -> None:
        """Whose node is gone is gone, though nothing is due that would tell it so."""
        for handle in self._all_handles(owner):
            if handle.is_open and not handle.is_alive and not handle.session.closed:
                handle.die()
        for stranger in owner.strangers:
            if stranger.taken:
                self.wrong.append(
                    f"taken by others: {stranger.name} has taken from queue "
                    f"{stranger.queue_id}, which is {owner.connection}'s"
                )
                stranger.taken = 0
        if not owner.is_client and self._place(owner, owner.life or Life(0)) is None:
            owner.is_gone = True
        owner.users = [handle for handle in owner.users if handle.is_alive]
        owner.strangers = [handle for handle in owner.strangers if handle.is_alive]

    def _all_handles(self, owner: Owner) -> Iterator[User]:
        yield from owner.users
        yield from owner.strangers
        if owner.keeper is not None:
            yield owner.keeper

    # --- What has to hold -----------------------------------------------------------------

    def _check_refusal(self, owner: Owner, why: str) -> None:
        """A past life of a node has nothing any more: the present one may have its name."""
        past = f"{owner.node}/"
        if not owner.is_client and f"connection {past}" in why:
            if f"connection {owner.connection}" not in why:
                self.wrong.append(f"refused by its own past: {owner.connection}: {why}")

    def _check_alone(self, owner: Owner, queue_id: int) -> None:
        for other in self._owners:
            if other is not owner and other.life is not None and other.life.queue_id == queue_id:
                self.wrong.append(
                    f"two owners: {owner.connection} and {other.connection} were both given "
                    f"queue {queue_id}"
                )

    def _note_silence(self, owner: Owner, life: Life) -> None:
        """Whether a handle of the owner can reach the master, and since when none could."""
        now_ms = self.cluster.now_ms
        if any(self._is_heard(life, handle) for handle in owner.handles):
            owner.unheard_since_ms = None
            return
        if owner.unheard_since_ms is None:
            owner.unheard_since_ms = now_ms
        view = self.cluster.view(life.queue_id)
        if now_ms - owner.unheard_since_ms >= SURE * self.cluster.config.consumer_return_ms:
            owner.excused_term = max(owner.excused_term, view.master_epoch if view else 0)

    def _is_heard(self, life: Life, handle: User) -> bool:
        """Whether it is attached to the master that serves, and nothing is in their way."""
        cluster = self.cluster
        name, session = cluster.master(life.queue_id), handle.session
        master = None if name is None else cluster.engine(name).replicas[life.queue_id].master
        if name is None or master is None or session.epoch != master.master_epoch:
            return False
        if not (handle.is_alive and handle._has_node and session._attached):
            return False
        return self._is_clear(name, handle.node)

    def _end(self, owner: Owner, life: Life) -> None:
        """The queue is deleted. What was in it went with it, unless it was left empty."""
        life.is_ending = True
        life.journal.is_deleted = not owner.is_left
        if not owner.is_gone and not self._may_end(owner, life):
            since = owner.unheard_since_ms
            away_ms = 0 if since is None else self.cluster.now_ms - since
            self.wrong.append(
                f"ended: queue {life.queue_id}, {owner.name}, though its owner {owner.connection} "
                f"was there, unheard for {away_ms} ms"
            )
        for handle in self._all_handles(owner):
            if handle.is_open:
                handle.die()
        self._owners.remove(owner)

    def _may_end(self, owner: Owner, life: Life) -> bool:
        """Whether its owner was away for as long as it is waited for, in its last term."""
        view = self.cluster.onlooker.views.get(life.queue_id)
        return view is not None and owner.excused_term >= view.master_epoch
