"""The peers of `compare.steady`: how each sends without waiting, and how its consumer takes."""

from __future__ import annotations

import asyncio
import multiprocessing
import random
import selectors
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import kafka_peer
from compare import nats_peer, rabbitmq
from compare.mirrorq_peers import MEMORY, ONE, THREE, peers_of_three, ready, run_nodes
from compare.peer import (
    OUTCOME_S,
    START_S,
    Absent,
    module_needed,
    program,
    server,
    wait_for_port,
)
from mirrorq import MirroredQueue, Node, connect
from mirrorq.demo.ports import free_ports

HEAD = 8
"""Bytes of a body that say which message it is."""
QUEUE = "compared"

Deliveries = list[tuple[bytes, float]]
"""Of each delivery: the first bytes of the body, and when."""
Body = Callable[[int], bytes]
Confirmed = Callable[[int], None]


class Source(Protocol):
    """A running peer, with one queue, a producer in this process and a consumer elsewhere."""

    def drive(self, due: Sequence[float], body: Body, confirmed: Confirmed, until: float) -> None:
        """Send message i at the monotonic time due[i]; return when all are confirmed, or then."""

    def deliveries(self) -> Deliveries:
        """What was delivered since the last call."""


class SteadyPeer(NamedTuple):
    """One row of the tables."""

    name: str
    durability: str
    start: Callable[[Path], AbstractContextManager[Source]]


# --- Consumers ---------------------------------------------------------------------------------


class Notes:
    """Deliveries, as one thread notes them and another reads them."""

    def __init__(self) -> None:
        self._noted: Deliveries = []

    def note(self, body: bytes | memoryview) -> None:
        """Called by the consumer for each message."""
        self._noted.append((bytes(body[:HEAD]), time.monotonic()))

    def read(self) -> Deliveries:
        """All since the last call."""
        noted, self._noted = self._noted, []
        return noted


def _run_consumer(consume: Any, given: tuple[Any, ...], pipe: Connection) -> None:
    notes = Notes()
    threading.Thread(target=consume, args=(notes.note, *given), daemon=True).start()
    try:
        while pipe.recv():
            pipe.send(notes.read())
    except (EOFError, KeyboardInterrupt):
        pass


@contextmanager
def consumer(consume: Any, *given: Any) -> Iterator[Callable[[], Deliveries]]:
    """Run `consume(note, *given)` in a process of its own; gives what reads its deliveries."""
    spawning = multiprocessing.get_context("spawn")
    ours, theirs = spawning.Pipe()
    process = spawning.Process(target=_run_consumer, args=(consume, given, theirs), daemon=True)
    process.start()

    def read() -> Deliveries:
        ours.send(True)
        if not ours.poll(OUTCOME_S):
            raise Absent("the consumer does not answer")
        return ours.recv()  # type: ignore[no-any-return]

    try:
        read()  # it runs
        yield read
    finally:
        process.kill()
        process.join()


# --- mirrorq -----------------------------------------------------------------------------------


class Mirrorq:
    """`put(on_confirm=…)` from this thread."""

    def __init__(self, handle: MirroredQueue, deliveries: Callable[[], Deliveries]) -> None:
        self._handle = handle
        self.deliveries = deliveries

    def drive(self, due: Sequence[float], body: Body, confirmed: Confirmed, until: float) -> None:
        """See `Source`."""
        left = threading.Semaphore(0)

        def put(message: int) -> None:
            def ended(_outcome: object) -> None:
                confirmed(message)
                left.release()

            self._handle.put(body(message), timeout=OUTCOME_S, on_confirm=ended)

        sent = paced(due, put, until)
        for _ in range(sent):
            if not left.acquire(timeout=max(0.0, until - time.monotonic())):
                break


def paced(due: Sequence[float], send: Callable[[int], None], until: float) -> int:
    """Call send(i) at due[i], until all are sent or this time has come; gives how many were."""
    sent = 0
    for wait in waits(due, until):
        if wait > 0:
            time.sleep(wait)
        send(sent)
        sent += 1
    return sent


def waits(due: Sequence[float], until: float) -> Iterator[float]:
    """For each message the seconds until it is due, below 0 when it is late; ends at `until`."""
    for at in due:
        now = time.monotonic()
        if now > until:
            return
        yield at - now


def arrivals(rate: float, begin: float, chance: random.Random) -> Iterator[float]:
    """Random times after `begin`, on average `rate` a second, without end."""
    at = begin
    while True:
        at += chance.expovariate(rate)
        yield at


def _consume_at_node(note: Any, directory: Path, peers: dict[str, str]) -> None:
    with Node("c", path=directory / "c", peers=peers) as node:
        _consume(note, node.queue(QUEUE, timeout=START_S))


def _consume_at_client(note: Any, peers: dict[str, str]) -> None:
    with connect(peers, timeout=START_S) as client:
        _consume(note, client.queue(QUEUE, timeout=START_S))


def _consume(note: Any, queue: MirroredQueue) -> None:
    queue.consume(lambda message: note(message.body))
    threading.Event().wait()


def _node(durability: str) -> Callable[[Path], Any]:
    """This process is the master, the consumer's process a mirror."""

    @contextmanager
    def start(directory: Path) -> Iterator[Source]:
        with ExitStack() as stack:
            peers = peers_of_three()
            run_nodes(stack, directory, peers, "b")
            deliveries = stack.enter_context(consumer(_consume_at_node, directory, peers))
            node = stack.enter_context(Node("a", path=directory / "a", peers=peers))
            if durability != "fsync":
                node.set_policy("durability", ".*", {"durability": durability})
            handle = node.queue(QUEUE, timeout=START_S)
            yield Mirrorq(_consumed(ready(handle, mirrors=2)), deliveries)

    return start


@contextmanager
def _client(directory: Path) -> Iterator[Source]:
    """Three nodes; producer and consumer are clients, in processes of their own."""
    with ExitStack() as stack:
        peers = peers_of_three()
        run_nodes(stack, directory, peers, "abc")
        client = stack.enter_context(connect(peers, timeout=START_S))
        handle = ready(client.queue(QUEUE, timeout=START_S), mirrors=2)
        deliveries = stack.enter_context(consumer(_consume_at_client, peers))
        yield Mirrorq(_consumed(handle), deliveries)


@contextmanager
def _alone(directory: Path) -> Iterator[Source]:
    """One process, producer and consumer in it."""
    with MirroredQueue(QUEUE, path=directory / "store") as handle:
        notes = Notes()
        handle.consume(lambda message: notes.note(message.body))
        yield Mirrorq(handle, notes.read)


def _consumed(handle: MirroredQueue) -> MirroredQueue:
    """The handle, when its queue has a consumer."""
    deadline = time.monotonic() + START_S
    while not handle.status().consumers:
        if time.monotonic() > deadline:
            raise Absent("the consumer did not come")
        time.sleep(0.05)
    return handle


# --- Peers whose clients run in an event loop --------------------------------------------------


class Loop:
    """An event loop that sleeps to the microsecond: epoll rounds up to a millisecond."""

    def __init__(self, deliveries: Callable[[], Deliveries]) -> None:
        self.loop = asyncio.SelectorEventLoop(selectors.SelectSelector())
        self.deliveries = deliveries

    def close(self) -> None:
        """End the loop."""
        self.loop.close()

    async def pace(self, due: Sequence[float], send: Callable[[int], Any], until: float) -> int:
        """As `paced`."""
        sent = 0
        for wait in waits(due, until):
            if wait > 0:
                await asyncio.sleep(wait)
            elif not sent % 16:
                await asyncio.sleep(0)  # confirms are read meanwhile
            await send(sent)
            sent += 1
        return sent


class Nats(Loop):
    """`publish_async` of nats-py."""

    stream: Any

    def drive(self, due: Sequence[float], body: Body, confirmed: Confirmed, until: float) -> None:
        """See `Source`."""
        self.loop.run_until_complete(self._drive(due, body, confirmed, until))

    async def _drive(
        self, due: Sequence[float], body: Body, confirmed: Confirmed, until: float
    ) -> None:
        pending: set[Any] = set()

        async def send(message: int) -> None:
            future = await self.stream.publish_async(nats_peer.SUBJECT, body(message))
            pending.add(future)

            def ended(future: Any) -> None:
                pending.discard(future)
                if not future.exception():
                    confirmed(message)

            future.add_done_callback(ended)

        await self.pace(due, send, until)
        if pending:
            await asyncio.wait(pending, timeout=max(0.0, until - time.monotonic()))


def _nats(sync: str) -> Callable[[Path], Any]:
    @contextmanager
    def start(directory: Path) -> Iterator[Source]:
        with ExitStack() as stack:
            ports = stack.enter_context(nats_peer.servers(directory, sync))
            source = Nats(list)
            stack.callback(source.close)
            loop = source.loop
            connection, source.stream = loop.run_until_complete(nats_peer.stream_of(ports))
            stack.callback(lambda: loop.run_until_complete(connection.close()))
            source.deliveries = stack.enter_context(consumer(_consume_nats, ports[1]))
            time.sleep(1)  # its subscription is known
            yield source

    return start


def _consume_nats(note: Any, port: int) -> None:
    async def run() -> None:
        import nats

        connection = await nats.connect(f"nats://127.0.0.1:{port}")

        async def taken(message: Any) -> None:
            note(message.data)
            await message.ack()

        await connection.jetstream().subscribe(
            nats_peer.SUBJECT, durable="taker", cb=taken, manual_ack=True
        )
        await asyncio.Event().wait()

    asyncio.run(run())


class Rabbit(Loop):
    """A channel of pika with publisher confirms, in the loop."""

    def __init__(self, deliveries: Callable[[], Deliveries], port: int) -> None:
        super().__init__(deliveries)
        import pika
        from pika.adapters.asyncio_connection import AsyncioConnection

        self._properties = pika.BasicProperties(delivery_mode=2)
        self._open: dict[int, int] = {}
        self._lowest = self._next = 1
        self._confirmed: Confirmed = lambda _: None
        self._ready = self.loop.create_future()
        self._connection = AsyncioConnection(
            pika.ConnectionParameters("127.0.0.1", port, heartbeat=0),
            on_open_callback=lambda connection: connection.channel(on_open_callback=self._opened),
            custom_ioloop=self.loop,
        )
        self.loop.run_until_complete(asyncio.wait_for(self._ready, START_S))

    def _opened(self, channel: Any) -> None:
        self._channel = channel
        channel.confirm_delivery(self._on_confirm)
        channel.queue_declare(
            QUEUE,
            durable=True,
            arguments=rabbitmq.QUORUM,
            callback=lambda _: self._ready.set_result(None),
        )

    def _on_confirm(self, frame: Any) -> None:
        tag = frame.method.delivery_tag
        for each in range(self._lowest if frame.method.multiple else tag, tag + 1):
            message = self._open.pop(each, None)
            if message is not None:
                self._confirmed(message)
        if frame.method.multiple:
            self._lowest = max(self._lowest, tag + 1)

    def drive(self, due: Sequence[float], body: Body, confirmed: Confirmed, until: float) -> None:
        """See `Source`."""
        self._confirmed = confirmed
        self.loop.run_until_complete(self._drive(due, body, until))

    async def _drive(self, due: Sequence[float], body: Body, until: float) -> None:
        async def send(message: int) -> None:
            self._open[self._next] = message
            self._next += 1
            self._channel.basic_publish("", QUEUE, body(message), self._properties)

        await self.pace(due, send, until)
        while self._open and time.monotonic() < until:
            await asyncio.sleep(0.01)


@contextmanager
def _rabbit(directory: Path) -> Iterator[Source]:
    module_needed("pika", "pika")
    with rabbitmq.nodes(directory, 3) as (ports, _command), ExitStack() as stack:
        source = Rabbit(list, ports[0])
        stack.callback(source.close)
        source.deliveries = stack.enter_context(consumer(_consume_rabbit, ports[1]))
        time.sleep(1)
        yield source


def _consume_rabbit(note: Any, port: int) -> None:
    import pika

    channel = pika.BlockingConnection(
        pika.ConnectionParameters("127.0.0.1", port, heartbeat=0)
    ).channel()
    channel.basic_qos(prefetch_count=rabbitmq.PREFETCH)

    def taken(channel: Any, method: Any, _properties: Any, body: bytes) -> None:
        note(body)
        channel.basic_ack(method.delivery_tag)

    channel.basic_consume(QUEUE, taken)
    channel.start_consuming()


# --- Kafka and Redis ---------------------------------------------------------------------------


class Kafka:
    """The producer of confluent-kafka; a thread of its own reads the confirms.

    An idempotent producer has `acks=all`, and at most five requests on their way: so messages
    that come due meanwhile leave together.
    """

    def __init__(self, endpoints: str, deliveries: Callable[[], Deliveries]) -> None:
        from confluent_kafka import Producer

        self._producer = Producer(
            {"bootstrap.servers": endpoints, "enable.idempotence": True, "linger.ms": 0}
        )
        self.deliveries = deliveries

    def drive(self, due: Sequence[float], body: Body, confirmed: Confirmed, until: float) -> None:
        """See `Source`."""
        done = threading.Event()

        def read() -> None:
            while not done.is_set():
                self._producer.poll(0.1)

        def send(message: int) -> None:
            def ended(error: Any, _message: Any) -> None:
                if error is None:
                    confirmed(message)

            while True:
                try:
                    self._producer.produce(QUEUE, body(message), on_delivery=ended)
                    return
                except BufferError:
                    time.sleep(0.001)

        reader = threading.Thread(target=read)
        reader.start()
        try:
            paced(due, send, until)
            while len(self._producer) and time.monotonic() < until:
                time.sleep(0.01)
        finally:
            done.set()
            reader.join()


@contextmanager
def _kafka(directory: Path) -> Iterator[Source]:
    module_needed("confluent_kafka", "confluent-kafka")
    try:
        brokers = kafka_peer.Brokers(directory, 1, 3)
        with brokers:
            brokers.wait_ready()
            endpoints = ",".join(brokers.endpoints)
            _make_topic(endpoints)
            with consumer(_consume_kafka, endpoints) as deliveries:
                source = Kafka(endpoints, deliveries)
                _until_delivered(source)
                yield source
    except kafka_peer.NotToBeHad as error:
        raise Absent(str(error)) from error


def _make_topic(endpoints: str) -> None:
    from confluent_kafka.admin import AdminClient, NewTopic

    client = AdminClient({"bootstrap.servers": endpoints})
    topic = NewTopic(QUEUE, num_partitions=1, replication_factor=3)
    client.create_topics([topic])[QUEUE].result(START_S)


def _until_delivered(source: Source) -> None:
    """A consumer group takes seconds to form: one message is sent until it arrives."""
    deadline = time.monotonic() + START_S
    while not source.deliveries():
        if time.monotonic() > deadline:
            raise Absent("the consumer got nothing")
        now = time.monotonic()
        source.drive([now], lambda _: bytes([255]) * HEAD, lambda _: None, now + 5)
        time.sleep(0.5)


def _consume_kafka(note: Any, endpoints: str) -> None:
    from confluent_kafka import Consumer

    taker = Consumer(
        {"bootstrap.servers": endpoints, "group.id": "taker", "auto.offset.reset": "earliest"}
    )
    taker.subscribe([QUEUE])
    while True:
        message = taker.poll(1.0)
        if message is not None and not message.error():
            note(message.value())


class Redis:
    """XADD and WAIT in pipelines: each holds all messages that came due during the one before."""

    def __init__(self, port: int, deliveries: Callable[[], Deliveries]) -> None:
        import redis

        self._redis = redis.Redis(port=port)
        self.deliveries = deliveries

    def drive(self, due: Sequence[float], body: Body, confirmed: Confirmed, until: float) -> None:
        """See `Source`."""
        waiting: list[int] = []
        some = threading.Condition()

        def send() -> None:
            left = len(due)
            while left and time.monotonic() < until:
                with some:
                    while not waiting:
                        if not some.wait(max(0.0, until - time.monotonic())):
                            return
                    messages = waiting.copy()
                    waiting.clear()
                pipeline = self._redis.pipeline(transaction=False)
                for message in messages:
                    pipeline.xadd(QUEUE, {"b": body(message)})
                pipeline.execute_command("WAIT", 2, int(OUTCOME_S * 1e3))
                if pipeline.execute()[-1] == 2:
                    for message in messages:
                        confirmed(message)
                left -= len(messages)

        def put(message: int) -> None:
            with some:
                waiting.append(message)
                some.notify()

        sender = threading.Thread(target=send)
        sender.start()
        paced(due, put, until)
        sender.join()


@contextmanager
def _redis(directory: Path) -> Iterator[Source]:
    module_needed("redis", "redis")
    import redis

    path = program("redis-server", "redis-server")
    ports = free_ports(3)
    with ExitStack() as stack:
        for port in ports:
            (directory / str(port)).mkdir()
            command = [path, "--bind", "127.0.0.1", "--port", str(port), "--save", ""]
            command += ["--dir", str(directory / str(port)), "--appendonly", "yes"]
            command += ["--appendfsync", "always", "--repl-diskless-sync-delay", "0"]
            if port != ports[0]:
                command += ["--replicaof", "127.0.0.1", str(ports[0])]
            log = directory / f"{port}.log"
            wait_for_port(port, stack.enter_context(server(command, log)), log)
        client = redis.Redis(port=ports[0])
        client.xgroup_create(QUEUE, "takers", mkstream=True)
        if client.wait(2, int(START_S * 1e3)) != 2:
            raise Absent("the replicas of Redis did not come")
        deliveries = stack.enter_context(consumer(_consume_redis, ports[0]))
        yield Redis(ports[0], deliveries)


def _consume_redis(note: Any, port: int) -> None:
    import redis

    client = redis.Redis(port=port)
    while True:
        found: Any = client.xreadgroup("takers", "taker", {QUEUE: ">"}, count=256, block=10_000)
        for _stream, entries in found or ():
            pipeline = client.pipeline(transaction=False)
            for entry, fields in entries:
                note(fields[b"b"])
                pipeline.xack(QUEUE, "takers", entry)
                pipeline.xdel(QUEUE, entry)
            pipeline.execute()


PEERS = [
    SteadyPeer("mirrorq client", THREE, _client),
    SteadyPeer("RabbitMQ, quorum queue", "fsynced on two of three nodes", _rabbit),
    SteadyPeer(
        "NATS JetStream R3, sync always",
        "fsynced on two of three nodes",
        _nats("sync_interval: always"),
    ),
    SteadyPeer(
        "Redis stream, WAIT 2, appendfsync always; consumer at the master",
        "written by three, fsynced by each",
        _redis,
    ),
    SteadyPeer("mirrorq node", THREE, _node("fsync")),
    SteadyPeer("mirrorq node, `replicated`", MEMORY, _node("replicated")),
    SteadyPeer("NATS JetStream R3", "page cache of two of three nodes", _nats("")),
    SteadyPeer("Kafka, acks=all", "page cache of three nodes", _kafka),
    SteadyPeer("mirrorq alone, producer and consumer in one process", ONE, _alone),
]
