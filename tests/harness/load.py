"""The load on one queue of a run: its producers and consumers, purges, and its lives.

A queue that is deleted and declared again is another queue under the same name: it has another
id and a journal of its own, and nothing of the old one may be left.
"""

from __future__ import annotations

from collections import Counter
from random import Random

from attrs import define, field

from harness.bulk import BulkConsumer, BulkProducer
from harness.cluster import SimulatedCluster
from harness.workload import (
    Consumer,
    Getter,
    Journal,
    Pauser,
    Place,
    Producer,
    Purger,
    Remover,
    SimulatedHandle,
)
from mirrorq.engine.events import Ask
from mirrorq.protocol.commands import CatalogCommand, DeclareQueue, DeleteQueue
from mirrorq.protocol.identities import MemberId
from mirrorq.protocol.views import View

ASK_AGAIN_MS = 2000
LINE_MAX = (1 << 63) - 1
SILENT_MS = 2000
"""Who was silent so recently need not have been counted among those that run."""
BATCHES = (1, 4, 16)
"""Messages in one put of a producer, at most."""
BULK_BATCHES = (60, 400, 1500)
BULK_FACTOR = 100
KEY_WINDOWS_MS = (200, 1500, 10**8)
"""How many times more messages a producer of many puts in its life."""


@define
class Life:
    """One queue id, from its declaration to its end."""

    queue_id: int
    journal: Journal = field(factory=Journal)
    is_ending: bool = False
    """Somebody has asked to delete it."""


class Load:
    """Who uses one queue name."""

    def __init__(
        self,
        cluster: SimulatedCluster,
        random: Random,
        name: str,
        queue_id: int,
        counts: Counter[str],
        *,
        pace: int,
        durable: bool = True,
    ) -> None:
        self.cluster = cluster
        self.random = random
        self.name = name
        self.lives = [Life(queue_id, Journal(durable=durable))]
        self.producers: list[Producer] = []
        self.consumers: list[Consumer] = []
        self._counts = counts
        self._pace = pace
        """How many times slower than the only queue of a run."""
        self._producer_count = random.randint(1, 3)
        self._consumer_count = random.randint(1, 3)
        self._purge_share = random.choice((0.0, 0.0, 0.01))
        self._delete_share = random.choice((0.0, 0.0, 0.003))
        self._durable = durable
        self._silent_ms: dict[MemberId, int] = {}
        """Members of that view that a leader took for silent -> when it last did."""
        self._view: View | None = None
        """The newest of a queue that is not durable, at the last look."""
        self.wrong: list[str] = []
        """A queue that is not durable and ended though a copy in sync ran on."""
        self._handles = 0
        self._asked: tuple[int, str, int] | None = None
        """(token, node, when) of the catalog request that is open."""
        self._is_quiet = False
        self.priorities: tuple[int, ...] = (0,)
        self.delays_ms: tuple[int, ...] = (0,)
        """Of what is published."""
        self.transient_share = 0.0
        """How many of the producers publish messages that a full stop may end."""
        self.is_brief = False
        """In the end producers stop at once; else they put all that they were to put."""
        self.is_bulk = False
        """Messages are put by hundreds."""
        self.clients: Random | None = None
        """By which half of the handles are clients'; None: none is."""
        self.keys: Random | None = None
        """By which messages have unique keys; None: none has."""
        self.acts: Random | None = None
        """By which an operator deletes messages and pauses the queue; None: nobody does."""
        self._pauser: Pauser | None = None

    @property
    def life(self) -> Life:
        return self.lives[-1]

    @property
    def is_changing(self) -> bool:
        """Whether the queue is being deleted or declared again."""
        return self.life.is_ending

    def start(self) -> None:
        if self.acts is not None:
            self._tick_acts(self.acts)
        self._tick_producers()
        self._tick_consumers()

    def quiet_down(self) -> None:
        """No new messages, purges, deletions; consumers drain what is there."""
        self._is_quiet = True
        for producer in self.producers if self.is_brief else ():
            producer.count = producer.sent

    def drain(self) -> None:
        """All is well again: what died is dead, and nobody gives back any more."""
        handles: list[SimulatedHandle] = [*self.producers, *self.consumers]
        for handle in handles:
            handle.may_leave = False
            if handle.is_open and not handle.is_alive:
                handle.die()
        for consumer in self.consumers:
            consumer.nack_share = 0.0
            if isinstance(consumer, Getter):
                consumer.vanish()

    @property
    def is_drained(self) -> bool:
        """Everything has its outcome, and the queue is empty."""
        if self.is_changing or not all(p.is_done or not p.is_alive for p in self.producers):
            return False
        master = self.cluster.master(self.life.queue_id)
        if master is None:
            return False
        state = self.cluster.engine(master).replicas[self.life.queue_id].state
        return not state.live and not state.outbox.count

    # --- Handles ------------------------------------------------------------------------

    def _node(self) -> str | None:
        """Some running node that knows the queue."""
        nodes = self.cluster.running
        name = self.random.choice(nodes) if nodes and not self.is_changing else None
        if name is None or self.cluster.engine(name).catalog.queue(self.life.queue_id) is None:
            return None
        return name

    def _place_on(self, node: str, kind: str) -> Place:
        """Of another handle."""
        self._handles += 1
        name = f"{self.name}-{kind}{self._handles}"
        return Place(self.cluster, node, self.life.queue_id, name, self.random)

    def _tick_producers(self) -> None:
        self.producers = [p for p in self.producers if p.is_open]
        alive = [p for p in self.producers if p.is_alive and not p.is_done]
        if not self._is_quiet:
            node = self._node() if len(alive) < self._producer_count else None
            if node is not None:
                self._add_producer(node)
            self._change()
            self.cluster.after(self.random.randint(1, 60 * self._pace), self._tick_producers)
        elif self.is_changing or not self._durable or any(p.sent < p.count for p in alive):
            self._change()
            self.cluster.after(20, self._tick_producers)
        for producer in alive:
            producer.publish()
        if alive and not self._is_quiet and self.random.random() < 0.005:
            self._counts["producer dies"] += 1
            self.random.choice(alive).vanish()

    def _add_producer(self, node: str) -> None:
        kind = BulkProducer if self.is_bulk else Producer
        count = self.random.randint(5, 300) * (BULK_FACTOR if self.is_bulk else 1)
        producer = kind(self._place_on(node, "p"), self.life.journal, count)
        producer.priorities = self.priorities
        producer.delays_ms = self.delays_ms
        producer.keys = self.keys
        if self.keys is not None and not self.life.journal.window_ms:
            self.life.journal.window_ms = self.keys.choice(KEY_WINDOWS_MS)
        producer.batch_max = self.random.choice(BULK_BATCHES if self.is_bulk else BATCHES)
        if self.transient_share:
            producer.persistent = self.random.random() >= self.transient_share
        self._place(producer)
        self.producers.append(producer)

    def _place(self, handle: SimulatedHandle) -> None:
        """In its node's process, or in that of a client."""
        if self.clients is not None and self.clients.random() < 0.5:
            self._counts["client"] += 1
            handle.may_leave = not self._is_quiet
            handle.be_of_client(self.clients.randint(1, LINE_MAX), self.clients)

    def _tick_consumers(self) -> None:
        self.consumers = [c for c in self.consumers if c.is_open]
        alive = [c for c in self.consumers if c.is_alive]
        wanted = 1 if self._is_quiet else self._consumer_count
        if len(alive) < wanted:
            node = self._node()
            if node is not None:
                self._add_consumer(node)
        elif alive and not self._is_quiet and self.random.random() < 0.1:
            leaving = self.random.choice(alive)
            kind = self.random.choice(("closes", "dies"))
            self._counts[f"consumer {kind}"] += 1
            (leaving.close if kind == "closes" else leaving.vanish)()
        for consumer in alive:
            if isinstance(consumer, Getter):
                consumer.call()
        self.cluster.after(self.random.randint(20, 500), self._tick_consumers)

    def _add_consumer(self, node: str) -> None:
        share = 0.0 if self._is_quiet else self.random.choice((0.0, 0.1, 0.4))
        self.consumers.append(self._new_consumer(node, share))
        self.consumers[-1].nack_delays_ms = self.delays_ms
        self._place(self.consumers[-1])

    def _new_consumer(self, node: str, share: float) -> Consumer:
        kind: type[Consumer] = BulkConsumer if self.is_bulk else Consumer
        if not self._is_quiet and self.random.random() < 0.3:
            kind = Getter
        return kind(self._place_on(node, "c"), self.life.journal, share)

    # --- An operator ----------------------------------------------------------------------

    def _tick_acts(self, chance: Random) -> None:
        """Delete a few messages, pause, or resume. In the end resume again and again: an older
        pause may come late."""
        pauser, self._pauser = self._pauser, None
        node = self._node()
        if node is None:
            pass
        elif self._is_quiet and self._is_paused:
            self._pauser = Pauser(self._place_on(node, "s"), self.life.journal, False)
        elif self._is_quiet:
            pass
        elif pauser is not None and pauser.is_paused:
            self._counts["resume"] += 1
            self._pauser = Pauser(self._place_on(node, "s"), self.life.journal, False)
        elif chance.random() < 0.5:
            self._counts["pause"] += 1
            self._pauser = Pauser(self._place_on(node, "s"), self.life.journal, True)
        else:
            self._counts["delete messages"] += 1
            first = chance.randint(1, max(len(self.life.journal.attempts), 1))
            last = first + chance.randint(0, 5)
            Remover(self._place_on(node, "s"), self.life.journal, first, last)
        if not self.is_drained or not self._is_quiet:
            self.cluster.after(chance.randint(100, 1500), lambda: self._tick_acts(chance))

    @property
    def _is_paused(self) -> bool:
        master = self.cluster.master(self.life.queue_id)
        if master is None:
            return False
        return self.cluster.engine(master).replicas[self.life.queue_id].state.is_paused

    # --- Purge, delete, declare again -----------------------------------------------------

    def _look_for_end(self) -> None:
        """A queue that is not durable ends by itself when all its copies in sync were down."""
        cluster, queue_id = self.cluster, self.life.queue_id
        for member in self._view.members if self._view is not None else ():
            if self._is_silent(member.id):
                self._silent_ms[member.id] = cluster.now_ms
        if not any(cluster.engine(name).catalog.is_deleted(queue_id) for name in cluster.running):
            self._view = cluster.view(queue_id) or self._view
            return
        self._counts["queue without durability ends"] += 1
        self.life.is_ending = self.life.journal.is_deleted = True
        newest = cluster.onlooker.views.get(queue_id)
        if self._view is not None and newest is not None and newest.epoch > self._view.epoch:
            self._view = newest  # it came and went between two looks
        for member in self._view.members if self._view is not None else ():
            name = member.id.node
            was_silent = cluster.now_ms - self._silent_ms.get(member.id, -SILENT_MS) < SILENT_MS
            is_running = name in cluster.running and cluster.engine(name).me == member.id
            if member.in_sync and is_running and not was_silent:
                self.wrong.append(
                    f"ended: queue {queue_id}, though {member.id} is in sync and runs"
                )

    def _is_silent(self, member: MemberId) -> bool:
        """Whether a leader of the catalog has not heard this member for too long: then it is one
        of those that are down, though its process may go on later."""
        cluster = self.cluster
        leaders = [cluster.engine(n) for n in cluster.running if cluster.engine(n).leader == n]
        return not all(engine.is_alive(member) for engine in leaders)

    def _change(self) -> None:
        if not self._durable and not self.is_changing:
            self._look_for_end()
        if self.is_changing:
            self._pursue()
            return
        if self._is_quiet:
            return
        chance = self.random.random()
        node = self._node() if chance < self._purge_share + self._delete_share else None
        if node is None:
            return
        if chance < self._delete_share:
            self._counts["delete and declare again"] += 1
            self.life.is_ending = self.life.journal.is_deleted = True
            self._pursue()
        else:
            self._counts["purge"] += 1
            Purger(self._place_on(node, "x"), self.life.journal)

    def _pursue(self) -> None:
        """Ask until the old queue is deleted and the new one declared."""
        if self._asked is not None:
            token, name, asked_ms = self._asked
            answer = self.cluster.nodes[name].answers.pop(token, None)
            if answer is not None and not answer.error and answer.value > self.life.queue_id:
                self._asked = None
                self.lives.append(Life(answer.value, Journal(durable=self._durable)))
                return
            if answer is None and self.cluster.now_ms < asked_ms + ASK_AGAIN_MS:
                return
        if self.cluster.running:
            self._ask(self.random.choice(self.cluster.running))

    def _ask(self, node: str) -> None:
        """Delete what this node still knows; declare when it knows of none."""
        known = self.cluster.engine(node).catalog.queue(self.life.queue_id)
        command: CatalogCommand
        if known is not None:
            command = DeleteQueue(self.life.queue_id)
        else:
            command = DeclareQueue(self.name, self._durable, False, False, node, None, ())
        token = self.cluster.new_token()
        self._asked = (token, node, self.cluster.now_ms)
        self.cluster.tell(node, Ask(token, command))
