"""Queues that go with somebody, for a swarm: exclusive ones and auto-delete ones.

    fleeting = Fleeting(cluster, random, counts)
    fleeting.start()

Visitors declare a queue, put into it and consume it for a while, close or die, and others come
beside them where the queue allows it. An exclusive queue has to live as long as its owner's handle
does, wherever links break; an auto-delete queue as long as it has a consumer that its master can
hear. Both have to go when nobody is left, and nothing that was confirmed may be lost before.
"""

from __future__ import annotations

from collections import Counter
from random import Random

from attrs import define, field

from harness.cluster import SimulatedCluster
from harness.load import Life
from harness.visits import ANSWER_MS, Guest, Visits
from harness.workload import Journal, Place
from mirrorq.engine.events import Ask, Forget, SessionClosed
from mirrorq.protocol.commands import DeclareQueue
from mirrorq.protocol.identities import SessionId

__all__ = ["Fleeting", "Visited", "Visitor"]

QUEUES_MAX = 3
"""At a time."""
VISITORS_MAX = 3
"""Of an auto-delete queue at a time."""
STEADY_MS = 2500
"""Who was heard by its master for so long need not come back: that ends after two failure_ms."""


class Visitor(Guest):
    """One handle on such a queue; the first on an exclusive one is its owner's."""

    def __init__(self, place: Place, journal: Journal, owner: SessionId | None = None) -> None:
        self._owner = owner
        self.steady_since_ms = place.cluster.now_ms
        """Since when its master can hear it, by the look of nodes and links."""
        super().__init__(place, journal)


@define
class Visited:
    """One queue, from its declaration to its end."""

    name: str
    node: str
    """Where it was asked for."""
    node_life: int
    token: int
    asked_ms: int
    owner: SessionId | None = None
    """Of an exclusive one."""
    life: Life | None = None
    """None: nobody has heard that it is there."""
    visitors: list[Visitor] = field(factory=list)
    is_left: bool = False
    """Nobody else comes."""


class Fleeting(Visits):
    """All such queues of a run."""

    def __init__(
        self, cluster: SimulatedCluster, random: Random, counts: Counter[str], *, pace: int = 1
    ) -> None:
        super().__init__(cluster, random, counts, pace=pace)
        self._visited: list[Visited] = []
        self._names = 0

    def drain(self) -> None:
        super().drain()
        for one in self._visited:
            for visitor in one.visitors:
                visitor.nack_share = 0.0

    @property
    def is_over(self) -> bool:
        cluster = self.cluster
        heard_of = {life.queue_id for life in self.lives}
        return not self._visited and not any(
            # Who declared an auto-delete queue and died before the answer came never used it, and
            # until it has had a consumer nothing ends it.
            record.exclusive
            or (record.auto_delete and (record.was_consumed or record.id in heard_of))
            for name in cluster.running
            for record in cluster.engine(name).catalog.queues()
        )

    # --- The course of it -----------------------------------------------------------------

    def _look(self) -> None:
        for one in list(self._visited):
            self._visit(one)
        if not self._is_quiet and len(self._visited) < QUEUES_MAX:
            self._declare()

    def _declare(self) -> None:
        nodes = self._nodes()
        if not nodes or self.random.random() < 0.7:
            return
        node = self.random.choice(nodes)
        self._names += 1
        is_exclusive = self.random.random() < 0.5
        owner = self.cluster.new_session(node) if is_exclusive else None
        name, token = f"fleeting{self._names}", self.cluster.new_token()
        self._counts["exclusive queue" if is_exclusive else "auto-delete queue"] += 1
        command = DeclareQueue(name, True, is_exclusive, not is_exclusive, node, owner, ())
        now_ms = self.cluster.now_ms
        life = self.cluster.nodes[node].life
        self._visited.append(Visited(name, node, life, token, now_ms, owner))
        self.cluster.tell(node, Ask(token, command))

    def _visit(self, one: Visited) -> None:
        if one.life is None:
            self._await_answer(one)
            return
        for visitor in one.visitors:
            self._look_at(one, one.life, visitor)
            if visitor.is_open and not visitor.is_alive:
                # Its node is gone, and nothing may be due that would tell it so.
                visitor.die()
        one.visitors = [visitor for visitor in one.visitors if visitor.is_alive]
        if self._is_deleted(one.life):
            self._end(one, one.life)
        elif self._is_draining:
            self._drain(one, one.life)
        elif not self._is_quiet:
            self._use(one, one.life)

    def _await_answer(self, one: Visited) -> None:
        """Whoever has asked and is gone, or has given up, owns nothing and comes no more."""
        cluster = self.cluster
        node = cluster.nodes.get(one.node)
        if node is None or node.life != one.node_life:
            self._visited.remove(one)
            return
        answer = node.answers.pop(one.token, None)
        if answer is not None and not answer.error:
            one.life = Life(answer.value)
            self.lives.append(one.life)
            self._come(one, one.life, one.node)
        elif answer is not None or cluster.now_ms - one.asked_ms > ANSWER_MS:
            cluster.tell(one.node, Forget(one.token))
            if one.owner is not None:
                cluster.tell(one.node, SessionClosed(one.owner, 0))
            self._visited.remove(one)

    def _come(self, one: Visited, life: Life, node: str) -> None:
        self._names += 1
        name = f"{one.name}-{self._names}"
        owner = one.owner if not one.visitors else None
        place = Place(self.cluster, node, life.queue_id, name, self.random)
        visitor = Visitor(place, life.journal, owner)
        visitor.poke()
        one.visitors.append(visitor)

    def _use(self, one: Visited, life: Life) -> None:
        chance = self.random.random()
        if one.visitors and chance < 0.6:
            self.random.choice(one.visitors).publish()
        elif one.visitors and chance < 0.612:
            self._counts["visitor dies"] += 1
            self.random.choice(one.visitors).vanish()
        elif one.visitors and chance < 0.624:
            self.random.choice(one.visitors).close()
        elif one.owner is None and chance > 0.93 and len(one.visitors) < VISITORS_MAX:
            self._come_again(one, life)

    def _come_again(self, one: Visited, life: Life) -> None:
        """Another consumer, on a running node that knows the queue."""
        running = self.cluster.running
        node = self.random.choice(running) if running else None
        if node is None or self.cluster.engine(node).catalog.queue(life.queue_id) is None:
            return
        self._come(one, life, node)

    def _drain(self, one: Visited, life: Life) -> None:
        """Who is there takes the rest and goes. An auto-delete queue without a consumer may never
        have had one: one comes, so that it ends."""
        master = self.cluster.master(life.queue_id)
        if not one.visitors and one.owner is None:
            self._come_again(one, life)
        if master is None or not one.visitors:
            return
        if self._is_used_up(life, master, one.visitors):
            one.is_left = True
            for visitor in one.visitors:
                visitor.close()

    # --- What has to hold -----------------------------------------------------------------

    def _look_at(self, one: Visited, life: Life, visitor: Visitor) -> None:
        """Whether the queue has ended beside somebody who was there."""
        cluster = self.cluster
        node = cluster.nodes.get(visitor.node)
        is_there = visitor.is_open and node is not None and node.life == visitor._life
        if is_there and not visitor.session.closed:
            if not self._is_steady(life, visitor):
                visitor.steady_since_ms = cluster.now_ms + 1
            return
        if not is_there or not visitor.session.closed:
            return
        steady_ms = cluster.now_ms - visitor.steady_since_ms
        is_owner = one.owner is not None and visitor._session_id == one.owner
        if is_owner or (one.owner is None and steady_ms > STEADY_MS):
            self.wrong.append(
                f"ended: queue {life.queue_id}, {one.name}, though {visitor.name} on "
                f"{visitor.node} was there, heard for {steady_ms} ms"
            )
        visitor.die()

    def _is_steady(self, life: Life, visitor: Visitor) -> bool:
        master = self.cluster.master(life.queue_id)
        return master is not None and self._is_clear(master, visitor.node)

    def _end(self, one: Visited, life: Life) -> None:
        """The queue is deleted. What was in it went with it, unless it was left empty."""
        life.is_ending = True
        life.journal.is_deleted = not one.is_left
        alive = [visitor for visitor in one.visitors if visitor.is_alive]
        if not alive:
            self._visited.remove(one)
