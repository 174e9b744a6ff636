"""One seed, one run: producers and consumers under random faults, then heal, drain, check.

    python -m mirrorq.testing --seeds 100
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random

from attrs import define, field

from mirrorq.messages import StoreId
from mirrorq.testing import checkers
from mirrorq.testing.cluster import SimulatedCluster
from mirrorq.testing.workload import Consumer, Getter, Journal, Producer

FAULT_MS = 15_000
"""Length of the safety phase."""
CLOCK_GAIN_MAX = 40
"""Clocks run up to so many thousandths apart: within the 4.7 % that leases allow for."""
QUICK_COMMIT_MS = 5
DRAIN_MS = 60_000
"""After heal everything must be done within this."""


@define
class Report:
    """The result of one seed."""

    seed: int
    wrong: list[str]
    confirmed: int
    deliveries: int
    faults: int
    simulated_ms: int
    trace: list[str] = field(factory=list)


class Swarm:
    """One run."""

    def __init__(self, seed: int, *, priorities: tuple[int, ...] = (0,)) -> None:
        self.seed = seed
        self.priorities = priorities
        """Of what is published."""
        self.random = Random(seed)
        count = self.random.choice((1, 2, 3, 3, 3, 3, 5))
        names = tuple("abcdefg"[:count])
        witnesses = names[-1:] if count == 3 and self.random.random() < 0.2 else ()
        self.cluster = SimulatedCluster(names, seed=seed, witnesses=witnesses)
        self.data_nodes = tuple(name for name in names if name not in witnesses)
        self.journal = Journal()
        self.producers: list[Producer] = []
        self.consumers: list[Consumer] = []
        self.faults = 0
        self.queue_id = 0
        self._handles = 0
        self._is_quiet = False

    def run(self) -> Report:
        cluster = self.cluster
        for node in cluster.nodes.values():
            node.clock_offset_ms = self.random.randint(0, 1_000_000)
            node.clock_gain = self.random.choice((0, self.random.randint(0, CLOCK_GAIN_MAX)))
        cluster.start()
        self.queue_id = cluster.declare(self.data_nodes[0], "orders")
        for node in cluster.nodes.values():
            node.commit_ms = self.random.choice((0, 1, 2, 5))
        self._tick_producer()
        self._tick_consumer()
        self._tick_fault()
        cluster.run(FAULT_MS)
        self._is_quiet = True
        wrong = self._heal_and_drain()
        confirmed = sum(a.state == "acknowledged" for a in self.journal.attempts.values())
        return Report(
            self.seed,
            wrong,
            confirmed,
            len(self.journal.deliveries),
            self.faults,
            cluster.now_ms,
            cluster.trace,
        )

    # --- Load ---------------------------------------------------------------------------

    def _running(self) -> tuple[str, ...]:
        return self.cluster.running

    def _tick_producer(self) -> None:
        alive = [p for p in self.producers if p.is_alive and not p.is_done]
        if not self._is_quiet:
            if len(alive) < 2 and self._running():
                self._handles += 1
                node = self.random.choice(self._running())
                if self.cluster.engine(node).catalog.queue(self.queue_id) is not None:
                    producer = Producer(
                        self.cluster,
                        node,
                        self.queue_id,
                        f"p{self._handles}",
                        self.random,
                        self.journal,
                        self.random.randint(5, 200),
                    )
                    producer.priorities = self.priorities
                    self.producers.append(producer)
            self.cluster.after(self.random.randint(1, 60), self._tick_producer)
        elif any(p.sent < p.count for p in alive):
            self.cluster.after(20, self._tick_producer)
        for producer in alive:
            producer.publish()
        if alive and not self._is_quiet and self.random.random() < 0.005:
            self.random.choice(alive).vanish()

    def _tick_consumer(self) -> None:
        alive = [c for c in self.consumers if c.is_alive]
        wanted = 2 if not self._is_quiet else 1
        if len(alive) < wanted and self._running():
            self._handles += 1
            node = self.random.choice(self._running())
            if self.cluster.engine(node).catalog.queue(self.queue_id) is not None:
                share = 0.0 if self._is_quiet else self.random.choice((0.0, 0.1, 0.4))
                kind = Getter if not self._is_quiet and self.random.random() < 0.3 else Consumer
                consumer = kind(
                    self.cluster,
                    node,
                    self.queue_id,
                    f"c{self._handles}",
                    self.random,
                    self.journal,
                    share,
                )
                self.consumers.append(consumer)
        elif alive and not self._is_quiet and self.random.random() < 0.1:
            leaving = self.random.choice(alive)
            self.random.choice((leaving.close, leaving.vanish))()
        for consumer in alive:
            if isinstance(consumer, Getter):
                consumer.call()
        self.cluster.after(self.random.randint(20, 500), self._tick_consumer)

    # --- Faults -------------------------------------------------------------------------

    def _tick_fault(self) -> None:
        if self._is_quiet:
            return
        if self.random.random() < 0.7:
            self.faults += 1
            self.random.choice(
                (
                    self._kill,
                    self._kill,
                    self._kill_master,
                    self._pause,
                    self._pause_master,
                    self._cut,
                    self._cut_one_way,
                    self._isolate,
                    self._clog,
                    self._heal,
                    self._start,
                    self._kill_all,
                    self._slow_disk,
                    self._full_disk,
                    self._reconnect,
                    self._reconnect,
                    self._wipe,
                    self._restart_storm,
                    self._chain,
                )
            )()
        self.cluster.after(self.random.choice((20, 200, 700, 2000)), self._tick_fault)

    def _pick(self) -> str | None:
        running = self._running()
        return self.random.choice(running) if running else None

    def _restart_later(self, name: str) -> None:
        delay = self.random.choice((10, 300, 1500, 4000))
        self._soon(delay, partial(self.cluster.start, name))

    def _kill(self) -> None:
        name = self._pick()
        if name is not None:
            self.cluster.kill(name)
            self._restart_later(name)

    def _kill_master(self) -> None:
        name = self.cluster.master(self.queue_id)
        if name is not None:
            self.cluster.kill(name)
            self._restart_later(name)

    def _kill_all(self) -> None:
        if self.random.random() < 0.3:
            for name in self._running():
                self.cluster.kill(name)
                self._restart_later(name)

    def _pause(self) -> None:
        name = self._pick()
        if name is not None:
            self.cluster.pause(name, self.random.choice((100, 350, 1200, 4000)))

    def _pause_master(self) -> None:
        name = self.cluster.master(self.queue_id)
        if name is not None:
            self.cluster.pause(name, self.random.choice((100, 350, 1200, 4000)))

    def _pair(self) -> tuple[str, str] | None:
        names = tuple(self.cluster.nodes)
        if len(names) < 2:
            return None
        one, other = self.random.sample(names, 2)
        return one, other

    def _heal_later(self, one: str, other: str) -> None:
        delay = self.random.choice((50, 500, 2500))
        self._soon(delay, partial(self.cluster.heal, one, other))

    def _cut(self) -> None:
        pair = self._pair()
        if pair is not None:
            self.cluster.cut(*pair, silent=self.random.random() < 0.5)
            self._heal_later(*pair)

    def _cut_one_way(self) -> None:
        pair = self._pair()
        if pair is not None:
            self.cluster.cut(*pair, silent=True, one_way=True)
            self._heal_later(*pair)

    def _isolate(self) -> None:
        name = self.random.choice(tuple(self.cluster.nodes))
        for other in self.cluster.nodes:
            if other != name:
                self.cluster.cut(name, other, silent=self.random.random() < 0.5)
                self._heal_later(name, other)

    def _clog(self) -> None:
        pair = self._pair()
        if pair is not None:
            link = self.cluster.network.link(*pair)
            link.delay_ms = self.random.choice((5, 50, 300))
            self._heal_later(*pair)

    def _heal(self) -> None:
        self.cluster.heal_all()

    def _start(self) -> None:
        self.cluster.start()

    def _slow_disk(self) -> None:
        name = self.random.choice(tuple(self.cluster.nodes))
        self.cluster.nodes[name].commit_ms = self.random.choice((0, 1, 5, 30, 200))

    def _full_disk(self) -> None:
        name = self._pick()
        if name is not None:
            duration_ms = self.random.choice((50, 500, 3000))
            self.cluster.fill_disk(name, duration_ms, noticed=self.random.random() < 0.5)

    def _reconnect(self) -> None:
        """Connections break and come back at once: what was on the way is gone."""
        for _ in range(self.random.randint(1, 3)):
            pair = self._pair()
            if pair is not None:
                self.cluster.cut(*pair)
                one, other = pair
                self._soon(self.random.randint(0, 3), partial(self.cluster.heal, one, other))

    def _soon(self, delay_ms: int, action: Callable[[], None]) -> None:
        self.cluster.after(delay_ms, action)

    def _restart_storm(self) -> None:
        """One node is killed again and again, soon after each start."""
        name = self._pick()
        at_ms = 0
        for _ in range(self.random.randint(2, 6)):
            if name is not None:
                self._soon(at_ms, partial(self.cluster.kill, name))
                at_ms += self.random.choice((1, 20, 100))
                self._soon(at_ms, partial(self.cluster.start, name))
                at_ms += self.random.choice((1, 20, 100, 400))

    def _chain(self) -> None:
        """Each node hears its neighbours on a circle only: each sees another majority."""
        names = list(self.cluster.nodes)
        self.random.shuffle(names)
        count = len(names)
        for place, one in enumerate(names):
            for other in names[place + 2 :]:
                is_last_pair = place == 0 and other == names[-1]
                if not is_last_pair or count == 3:
                    self.cluster.cut(one, other, silent=self.random.random() < 0.5)
                    self._heal_later(one, other)

    def _wipe(self) -> None:
        """A store is lost, when that can lose nothing: everything else is well."""
        if len(self.cluster.nodes) >= 3 and self._is_well():
            name = self.random.choice(tuple(self.cluster.nodes))
            self.cluster.kill(name)
            self.cluster.wipe(name)
            self._restart_later(name)

    def _is_well(self) -> bool:
        """All nodes run, are voters with the stores they have, and hold the queue in sync."""
        cluster = self.cluster
        stores = {StoreId(name, node.disk.store) for name, node in cluster.nodes.items()}
        return (
            len(cluster.running) == len(cluster.nodes)
            and all(set(cluster.engine(name).voters) == stores for name in cluster.running)
            and set(cluster.in_sync(self.queue_id)) == set(self.data_nodes)
            and all(
                node.commit_ms <= QUICK_COMMIT_MS
                and max(node.paused_until_ms, node.full_until_ms) < cluster.now_ms
                for node in cluster.nodes.values()
            )
            and not any(
                link.cut or link.silent or link.delay_ms for link in cluster.network.links.values()
            )
        )

    # --- The end ------------------------------------------------------------------------

    def _heal_and_drain(self) -> list[str]:
        cluster = self.cluster
        cluster.run(5000)
        cluster.heal_all()
        for node in cluster.nodes.values():
            node.commit_ms = 1
            node.paused_until_ms = min(node.paused_until_ms, cluster.now_ms)
            node.full_until_ms = node.no_room_until_ms = cluster.now_ms
        cluster.start()
        for handle in (*self.producers, *self.consumers):
            if handle.is_open and not handle.is_alive:
                handle.die()
        for consumer in self.consumers:
            consumer.nack_share = 0.0
            if isinstance(consumer, Getter):
                consumer.vanish()
        done = cluster.run_until(self._is_drained, DRAIN_MS)
        wrong = [] if done else [f"no progress: {self._situation()}"]
        cluster.run(3000)
        return wrong + checkers.all_of(self.journal, cluster, self.queue_id)

    def _is_drained(self) -> bool:
        if not all(producer.is_done or not producer.is_alive for producer in self.producers):
            return False
        master = self.cluster.master(self.queue_id)
        if master is None:
            return False
        replica = self.cluster.engine(master).replicas[self.queue_id]
        everyone = len(self.cluster.in_sync(self.queue_id)) == len(self.data_nodes)
        return not replica.state.live and everyone

    def _situation(self) -> str:
        master = self.cluster.master(self.queue_id)
        open_puts = sum(a.state == "open" for a in self.journal.attempts.values())
        live = None
        if master is not None:
            live = self.cluster.engine(master).replicas[self.queue_id].state.live.count
        return (
            f"master {master}, in sync {self.cluster.in_sync(self.queue_id)}, "
            f"{live} messages left, {open_puts} puts open"
        )
