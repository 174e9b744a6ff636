"""What the scenarios share: a cluster with one queue, and handles that a test moves."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from harness import checkers
from harness.cluster import SimulatedCluster
from harness.workload import Consumer, Journal, Place, Producer, SimulatedHandle
from mirrorq.engine.events import Release
from mirrorq.monitoring.status import QueueStatus
from mirrorq.node.status import queue_status
from mirrorq.protocol.sessions import Delivery
from mirrorq.session.calls import EXTEND, Delivered, Output, SettleCall, SettleDone
from mirrorq.wire import frames


class Taker(SimulatedHandle):
    """A consumer that settles only what it is told to."""

    def __init__(
        self, cluster: SimulatedCluster, node: str, queue_id: int, *, prefetch: int = 10
    ) -> None:
        self.prefetch = prefetch
        self.held: list[tuple[Delivery, bytes]] = []
        self.seen: list[tuple[bytes, bool]] = []
        """(body, redelivered) in the order of delivery."""
        self.outcomes: dict[bytes, bool] = {}
        """Body -> whether its settlement was taken."""
        super().__init__(Place(cluster, node, queue_id, f"taker on {node}", Random(1)))
        self.session.subscribe(1, prefetch, False, False)

    def take(self, outputs: list[Output]) -> None:
        for output in outputs:
            if isinstance(output, Delivered):
                bodies = [b for frame in output.deliver.frames for b in frames.split(frame)]
                for piece in output.deliver.deliveries:
                    for sequence in range(piece.first, piece.last + 1):
                        one = Delivery(piece.epoch, piece.number, sequence, sequence, piece.count)
                        body = bodies.pop(0)
                        self.held.append((one, body))
                        self.seen.append((body, piece.count > 1))
            elif isinstance(output, SettleDone):
                assert isinstance(output.token, bytes)
                self.outcomes[output.token] = not output.refused

    def settle(self, body: bytes, kind: str = "ack", *, delay_ms: int = 0, target: int = 0) -> None:
        """Ack, give back or move the newest delivery of this body that is held."""
        index = max(i for i, (_, held) in enumerate(self.held) if held == body)
        piece, _ = self.held.pop(index)
        self.session.settle(SettleCall(body, kind, (piece,), delay_ms, target))
        self.poke()

    def extend(self, body: bytes, duration_ms: int) -> None:
        """Ask for a time for a body's newest delivery; the outcome is of "extended " and it."""
        piece = [piece for piece, held in self.held if held == body][-1]
        token = b"extended " + body
        self.session.settle(SettleCall(token, EXTEND, (piece,), duration_ms))
        self.poke()

    def ask(self) -> None:
        self.session.want(1, len(self.held), self.prefetch)


class World:
    """A cluster whose queue "orders" is declared on its first node, every data node in sync."""

    def __init__(
        self,
        names: str = "abc",
        *,
        witnesses: str = "",
        seed: int = 1,
        cluster: SimulatedCluster | None = None,
    ) -> None:
        self.cluster = cluster or SimulatedCluster(
            tuple(names), seed=seed, witnesses=tuple(witnesses)
        )
        self.cluster.start()
        self.queue_id = self.cluster.declare(names[0], "orders")
        self.data_nodes = tuple(name for name in names if name not in witnesses)
        self.journal = Journal()
        assert set(self.cluster.in_sync(self.queue_id)) == set(self.data_nodes)
        assert self.master == names[0]

    @property
    def master(self) -> str | None:
        return self.cluster.master(self.queue_id)

    def producer(
        self, node: str, count: int, name: str = "p", *, priority: int = 0, delay_ms: int = 0
    ) -> Producer:
        """Publishes `count` messages by itself, each expected to be confirmed."""
        place = Place(self.cluster, node, self.queue_id, name, Random(2))
        producer = Producer(place, self.journal, count)
        producer.priorities = (priority,)
        producer.delays_ms = (delay_ms,)
        self._publish(producer)
        return producer

    def _publish(self, producer: Producer) -> None:
        producer.publish()
        if producer.is_alive and producer.sent < producer.count:
            self.cluster.after(2, lambda: self._publish(producer))

    def put(
        self, node: str, count: int, name: str = "m", *, priority: int = 0, delay_ms: int = 0
    ) -> list[bytes]:
        """Publish messages and wait until each is confirmed; return them."""
        producer = self.producer(node, count, name, priority=priority, delay_ms=delay_ms)
        self.until(lambda: producer.is_done)
        bodies = [b"%s/%d" % (name.encode(), i + 1) for i in range(count)]
        assert all(self.journal.attempts[body].state == "acknowledged" for body in bodies)
        return bodies

    def consumer(self, node: str, nack_share: float = 0.0) -> Consumer:
        """Takes and acks all the time."""
        place = Place(self.cluster, node, self.queue_id, f"c on {node}", Random(3))
        return Consumer(place, self.journal, nack_share)

    def taker(self, node: str, prefetch: int = 10) -> Taker:
        return Taker(self.cluster, node, self.queue_id, prefetch=prefetch)

    def stop(self, name: str) -> None:
        """A clean stop: the lease is given up first, and the process ends when it may."""
        self.cluster.tell(name, Release())
        self.cluster.run_until(lambda: self.master not in (None, name), 2000)
        self.cluster.kill(name)

    def until(self, condition: Callable[[], bool], limit_ms: int = 60_000) -> None:
        assert self.cluster.run_until(condition, limit_ms), self.cluster.trace[-10:]

    def until_in_sync(self, *names: str) -> None:
        """All these (every data node when none is named) are in sync."""
        wanted = set(names or self.data_nodes)
        self.until(lambda: set(self.cluster.in_sync(self.queue_id)) == wanted)

    def live(self, name: str) -> int:
        """Messages in this node's copy."""
        return self.cluster.engine(name).replicas[self.queue_id].state.live.count

    def status(self, node: str, queue_id: int = 0) -> QueueStatus:
        """What a node says of a queue, of "orders" where none is named."""
        engine = self.cluster.engine(node)
        now_ms = self.cluster.clock_ms(self.cluster.nodes[node])
        return queue_status(engine, queue_id or self.queue_id, now_ms, 0, "")

    def check(self) -> None:
        """Consume to the last message, with everything well again; nothing was lost."""
        cluster = self.cluster
        cluster.heal_all()
        cluster.start()
        self.until_in_sync()
        consumer = self.consumer(self.data_nodes[0])
        self.until(lambda: self.master is not None and self.live(self.master) == 0)
        cluster.run(3000)
        assert consumer.is_alive
        assert checkers.all_of(self.journal, cluster, self.queue_id) == []

    def check_copies(self) -> None:
        """As `check`, where a taker of the test has settled messages that the journal misses."""
        assert self.cluster.onlooker.wrong == [], self.cluster.onlooker.wrong
        assert checkers.unequal(self.cluster, self.queue_id) == []
