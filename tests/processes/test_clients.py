"""The scenarios with processes that are no nodes: 1 with fifty clients, 3 to 6, 27 and 31."""

from __future__ import annotations

import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import mirrorq
from mirrorq import AckRefused, Client, Message, MirroredQueue, PreconditionFailed

from .cluster import PATIENT, Cluster, until

WAIT_S = 120.0
CLIENTS = 50
EACH = 100
Connecting = Callable[..., Client]


@pytest.fixture
def connecting() -> Iterator[Connecting]:
    """`connect(cluster, "ba")`: a client whose entry nodes are b, then a; closed at the end."""
    made: list[Client] = []

    def connect_to(cluster: Cluster, names: str) -> Client:
        endpoints = [cluster.endpoints[name] for name in names]
        client = mirrorq.connect(endpoints, timeout=WAIT_S, config=mirrorq.Config(**PATIENT))
        made.append(client)
        return client

    yield connect_to
    for client in made:
        client.close()


@pytest.fixture(scope="module")
def standing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three nodes of which none is killed."""
    made = Cluster(Path(tmp_path_factory.mktemp("standing")))
    try:
        made.found("abc")
        yield made
    finally:
        made.end()


def is_empty(queue: MirroredQueue) -> bool:
    """Known to be: the status of a client whose node does not answer in time knows nothing."""
    status = queue.status()
    return status.state == "running" and status.messages == 0


def numbers(count: int) -> list[bytes]:
    return [b"m%d" % number for number in range(1, count + 1)]


def ignore(_: Message) -> None:
    """A callback that keeps what it is given."""


class Tally:
    """What consumers were handed, by body: no first delivery twice."""

    def __init__(self) -> None:
        self.first: Counter[bytes] = Counter()
        self.seen: set[bytes] = set()
        self._lock = threading.Lock()

    def take(self, message: Message) -> None:
        with self._lock:
            self.seen.add(message.body)
            self.first[message.body] += not message.redelivered
        message.ack()

    def check(self, bodies: set[bytes]) -> None:
        until(lambda: self.seen >= bodies, lambda: sorted(bodies - self.seen)[:9])
        assert self.seen == bodies
        assert [body for body, count in self.first.items() if count > 1] == []


@pytest.mark.soak
def test_scenario_1_fifty_clients(cluster: Cluster, connecting: Connecting) -> None:
    """Fifty clients on all nodes publish, half of them consume too; the master is killed: all is
    confirmed once, all is seen, nothing twice unflagged."""
    cluster.found("abc")
    cluster.open("orders", "a")
    cluster.wait_in_sync(2, on="a")
    tally = Tally()
    handles = []
    for number in range(CLIENTS):
        turned = ("abc", "bca", "cab")[number % 3]
        handles.append(connecting(cluster, turned).queue("orders"))
    for handle in handles[::2]:
        handle.consume(tally.take, prefetch=20)
    sequences: list[int] = []
    wrong: list[str] = []
    lock = threading.Lock()
    begun = threading.Event()

    def produce(number: int, handle: MirroredQueue) -> None:
        puts = []
        for count in range(EACH):
            puts.append(handle.put(b"%d/%d" % (number, count)))
            if count == EACH // 3:
                puts[0].result(WAIT_S)
                begun.set()
        for put in puts:
            error = put.exception(WAIT_S)
            with lock:
                if error is None:
                    sequences.append(put.result(0))
                else:
                    wrong.append(repr(error))

    threads = [
        threading.Thread(target=produce, args=(number, handle), daemon=True)
        for number, handle in enumerate(handles)
    ]
    for thread in threads:
        thread.start()
    assert begun.wait(WAIT_S)
    cluster.kill("a")
    for thread in threads:
        thread.join(WAIT_S)
        assert not thread.is_alive()
    assert wrong == []
    assert len(set(sequences)) == len(sequences) == CLIENTS * EACH
    tally.check({b"%d/%d" % (n, c) for n in range(CLIENTS) for c in range(EACH)})
    until(lambda: is_empty(handles[0]), handles[0].status)


@pytest.mark.parametrize("entries", [pytest.param("ab", marks=pytest.mark.smoke), "ba"])
def test_scenarios_3_to_5_what_a_client_held(
    cluster: Cluster, connecting: Connecting, entries: str
) -> None:
    """The master is killed, which is the client's entry node or is not: what it held comes again
    in order and flagged, what it had acked never does, and an ack from before the failover never
    ends another's delivery."""
    cluster.found("abw", witnesses="w")
    cluster.open("orders", "a")
    cluster.wait_in_sync(1, on="a")
    orders = connecting(cluster, entries).queue("orders")
    other = connecting(cluster, "b").queue("orders")
    orders.put_many(numbers(6)).result(WAIT_S)
    held = [orders.get(timeout=WAIT_S) for _ in range(3)]
    held[0].ack().result(WAIT_S)
    held[1].ack().result(WAIT_S)
    cluster.kill("a")
    until(lambda: other.status().master == "b", other.status)
    again = [other.get(timeout=WAIT_S) for _ in range(4)]
    assert [message.body for message in again] == numbers(6)[2:]
    assert (again[0].redelivered, again[0].delivery_count) == (True, 2)
    with pytest.raises(AckRefused):
        held[2].ack().result(WAIT_S)
    assert [m.body for m in orders.browse()] == numbers(6)[2:]
    other.ack_many(again).result(WAIT_S)
    until(lambda: is_empty(orders), orders.status)


@pytest.mark.soak
def test_exclusive_and_single_active_consumers(standing: Cluster, connecting: Connecting) -> None:
    """An exclusive consumer of a client keeps others out until it is gone; of several on a queue
    with single-active-consumer one is served, and the next takes over when its client goes."""
    first, second = connecting(standing, "b"), connecting(standing, "c")
    one, two = first.queue("mine"), second.queue("mine")
    got: list[bytes] = []
    consumer = one.consume(lambda message: got.append(message.body), ack="manual", exclusive=True)
    with pytest.raises(PreconditionFailed, match="exclusively"):
        two.consume(ignore, ack="manual")
    consumer.cancel()
    first.set_policy("single", "^single$", {"single-active-consumer": True})
    active, waiting = first.queue("single"), second.queue("single")
    seen: list[tuple[str, bytes]] = []

    def take(name: str) -> Callable[[Message], None]:
        return lambda message: (seen.append((name, message.body)), message.ack())[0]

    active.consume(take("active"))
    until(lambda: active.status().consumers == 1, active.status)
    waiting.consume(take("waiting"))
    until(lambda: active.status().consumers == 2, active.status)
    waiting.put_many(numbers(5)).result(WAIT_S)
    until(lambda: len(seen) == 5, lambda: seen)
    until(lambda: is_empty(waiting), waiting.status)
    first.close()
    waiting.put_many(numbers(2)).result(WAIT_S)
    until(lambda: len(seen) == 7, lambda: seen)
    assert [name for name, _ in seen] == ["active"] * 5 + ["waiting"] * 2


@pytest.mark.soak
def test_scenarios_27_and_31_consumers_at_a_failover(
    cluster: Cluster, connecting: Connecting
) -> None:
    """The master is killed: who asked for it is cancelled once, the other hears nothing and goes
    on; with acks at receipt what was in flight is lost or comes again flagged, in order."""
    cluster.found("abc")
    cluster.open("orders", "a")
    cluster.open("loose", "a")
    cluster.wait_in_sync(2, on="a")
    leaving, staying = (connecting(cluster, name).queue("orders") for name in ("bc", "cb"))
    cancelled: list[object] = []
    ended = leaving.consume(
        ignore, ack="manual", cancel_on_failover=True, on_cancel=cancelled.append
    )
    loose = connecting(cluster, "bc").queue("loose")
    until(lambda: leaving.status().consumers == 1, leaving.status)
    tally = Tally()
    unwanted: list[object] = []
    going_on = staying.consume(tally.take, on_cancel=unwanted.append)
    seen: list[tuple[int, bool]] = []
    loose.consume(lambda m: seen.append((int(m.body), m.redelivered)), ack="receipt")
    puts = [loose.put(b"%d" % number) for number in range(3000)]
    until(lambda: len(seen) > 300, lambda: len(seen))
    cluster.kill("a")
    until(lambda: len(cancelled) == 1)
    assert not ended.is_active
    staying.put_many(numbers(100)).result(WAIT_S)
    tally.check(set(numbers(100)))
    assert going_on.is_active
    assert (len(cancelled), unwanted) == (1, [])
    for put in puts:
        put.result(WAIT_S)
    # The last of those may have been in flight at the kill.
    loose.put(b"3000").result(WAIT_S)
    until(lambda: is_empty(loose) and seen[-1][0] == 3000, lambda: seen[-3:])
    unflagged = [number for number, redelivered in seen if not redelivered]
    assert unflagged == sorted(set(unflagged))
    first_time = list(dict.fromkeys(number for number, _ in seen))
    assert first_time == sorted(first_time)


@pytest.mark.soak
def test_a_publish_to_several_queues_over_a_failover(
    cluster: Cluster, connecting: Connecting
) -> None:
    """The node with the masters of two queues of an exchange is killed while clients publish to
    three: each message is once in each queue that it reaches, in the publisher's order."""
    cluster.found("abc")
    for name, node in (("one", "a"), ("two", "a"), ("three", "b")):
        cluster.open(name, node)
        cluster.wait_in_sync(2, on=node)
    publisher = connecting(cluster, "ac")
    events = publisher.exchange("events", "topic")
    for name, pattern in (("one", "#"), ("two", "even.*"), ("three", "#")):
        events.bind(name, pattern)
    confirmations = []
    count = 600
    for number in range(count):
        key = "even.x" if number % 2 == 0 else "odd.x"
        confirmations.append(events.publish(key, b"%d" % number))
        if number == count // 2:
            confirmations[0].result(WAIT_S)
            cluster.kill("a")
    for number, confirmation in enumerate(confirmations):
        reached = {"one", "three"} | ({"two"} if number % 2 == 0 else set())
        assert set(confirmation.result(WAIT_S)) == reached
    reader = connecting(cluster, "bc")
    for name, step in (("one", 1), ("two", 2), ("three", 1)):
        found = [int(m.body) for m in reader.queue(name).browse(count_max=2 * count)]
        assert found == list(range(0, count, step)), name


@pytest.mark.soak
def test_a_hundred_clients_and_one_that_stands_still(
    standing: Cluster, connecting: Connecting
) -> None:
    """A client that holds messages and whose process is stopped keeps nobody waiting: a hundred
    others publish, take and ack, and what it held goes to one of them at its place."""
    queue = connecting(standing, "a").queue("crowd")
    queue.put_many([b"held1", b"held2"]).result(WAIT_S)
    stopped = standing.client()
    handle = stopped.ask("queue", name="crowd")
    assert [m["body"] for m in stopped.ask("take", queue=handle, count=2)] == ["held1", "held2"]
    stopped.signal(signal.SIGSTOP)
    clients = [connecting(standing, ("abc", "bca", "cab")[n % 3]) for n in range(100)]
    first: list[bytes] = []
    others: list[bytes] = []
    errors: list[BaseException] = []

    def work(number: int) -> None:
        try:
            mine = clients[number].queue("crowd", timeout=WAIT_S)
            mine.put(b"%d" % number).result(WAIT_S)
            message = mine.get(timeout=WAIT_S)
            (first if message.redelivered else others).append(message.body)
            message.ack().result(WAIT_S)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(n,), daemon=True) for n in range(100)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    assert errors == []
    assert len(first) + len(others) == 100
    left = []
    while len(left) < 2:
        messages = queue.get_many(2, timeout=WAIT_S)
        left += [message.body for message in messages]
        queue.ack_many(messages).result(WAIT_S)
    everything = {b"held1", b"held2", *(b"%d" % n for n in range(100))}
    assert sorted(first + others + left) == sorted(everything)
    stopped.kill()


def test_a_worker_keeps_its_order_at_the_next_entry_node(
    cluster: Cluster, connecting: Connecting
) -> None:
    """P2: the node through which a worker has come is frozen, the master lives, and the worker
    goes on through another node long before anybody misses the first. What waited in its process,
    in no callback yet, comes next and in order; its acks count; nothing comes twice."""
    cluster.config["failure_ms"] = 600_000
    cluster.found("abc")
    cluster.open("orders", "b")
    cluster.wait_in_sync(2, on="b")
    client = connecting(cluster, "ac")
    queue = client.queue("orders")
    goes_on = threading.Event()
    seen: list[tuple[int, bool]] = []
    acks: list[mirrorq.Settlement] = []

    def work(message: Message) -> None:
        seen.append((int(message.body), message.redelivered))
        # At first it is quick, so that some are fetched ahead of it.
        assert len(seen) <= 20 or goes_on.wait(WAIT_S)
        acks.append(message.ack())

    consumer = queue.consume(work, prefetch=10)
    queue.put_many([b"%d" % number for number in range(40)]).result(WAIT_S)
    until(lambda: len(seen) > 20)
    cluster["a"].signal(signal.SIGSTOP)
    until(lambda: client.entry_node == "c" and consumer.unsettled)
    goes_on.set()
    until(lambda: len(acks) >= 40)
    assert seen == [(number, False) for number in range(40)]
    cluster.kill("a")
    assert [ack.exception(WAIT_S) for ack in acks] == [None] * 40
