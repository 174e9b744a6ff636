"""Processes that are no nodes: scenarios 3 to 5, order."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from tests.kit import PATIENT, is_empty, until

import mirrorq
from mirrorq import AckRefused, Client, Message

from .cluster import Cluster

WAIT_S = 120.0
Connecting = Callable[..., Client]


@pytest.fixture
def connecting() -> Iterator[Connecting]:
    """`connect(cluster, "ba")`: a client whose entry nodes are b, then a; closed at the end."""
    with ExitStack() as ending:

        def connect_to(cluster: Cluster, names: str) -> Client:
            endpoints = [cluster.endpoints[name] for name in names]
            config = mirrorq.Config(**PATIENT)
            client = mirrorq.connect(endpoints, timeout=WAIT_S, config=config)
            return ending.enter_context(client)

        yield connect_to


def numbers(count: int) -> list[bytes]:
    return [b"m%d" % number for number in range(1, count + 1)]


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
