"""Clients with keys at nodes that have just started: these do not know every queue yet."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.kit import DEADLINE_S, peers_of, until
from tests.security.conftest import Connecting
from tests.security.keys import KeyRing

from mirrorq.errors import AuthenticationError, QueueNotFound
from mirrorq.node.node import Node

pytestmark = pytest.mark.real


@pytest.fixture
def keys(ring: KeyRing) -> KeyRing:
    ring.client("worker", read=["jobs"], write=["jobs"])
    ring.client("owner", configure=["own"])
    ring.client("publisher", write=["news"])
    return ring


@pytest.fixture
def starting(tmp_path: Path, keys: KeyRing) -> Iterator[Callable[[str], Node]]:
    """Starts a node of a cluster of two, again and again with the same store and endpoint."""
    peers = peers_of("ab")
    with ExitStack() as stack:

        def start(name: str) -> Node:
            security = keys.of(name)
            made = Node(name, path=tmp_path / name, peers=peers, security=security)
            return stack.enter_context(made)

        yield start


def test_sessions_of_a_key_outlive_the_restart_of_their_cluster(
    starting: Callable[[str], Node], keys: KeyRing, connecting: Connecting
) -> None:
    """Those that take, those that put, and those that put by the right to an exchange. Their entry
    node is back first, and applies its catalog only when the other one is."""
    nodes = [starting(name) for name in "ab"]
    nodes[0].wait_ready(DEADLINE_S)
    nodes[0].queue("jobs", max_length=1000)
    nodes[0].queue("log")
    nodes[0].exchange("news", "fanout").bind("log")
    worker = connecting(nodes[0].endpoint, keys.of("worker"))
    jobs = [worker.queue("jobs") for _ in range(8)]
    jobs[0].put(b"m1").result(DEADLINE_S)
    publisher = connecting(nodes[0].endpoint, keys.of("publisher"))
    news = publisher.exchange("news", passive=True)
    assert news.publish("", b"n1").result(DEADLINE_S) == {"log": 1}
    for node in nodes:
        node.close()
    entry = starting("a")
    for client in (worker, publisher):
        until(lambda client=client: client.entry_node and client._unfounded == "")
    until(lambda: len(entry._driver.gateway._clients) == 2)
    starting("b")
    for queue in jobs:
        queue.get(timeout=DEADLINE_S).nack().result(DEADLINE_S)
        queue.close()
    assert news.publish("", b"n2").result(DEADLINE_S) == {"log": 2}


def test_a_call_to_a_node_that_starts_is_judged_when_that_knows_its_queues(
    starting: Callable[[str], Node], keys: KeyRing, connecting: Connecting
) -> None:
    """A key that may not make a queue opens one that exists; one that does not exist is refused."""
    nodes = [starting(name) for name in "ab"]
    nodes[0].wait_ready(DEADLINE_S)
    nodes[0].queue("jobs").put(b"m1").result(DEADLINE_S)
    for node in nodes:
        node.close()
    worker = connecting(starting("a").endpoint, keys.of("worker"))
    with ThreadPoolExecutor(2) as pool:
        opened = pool.submit(worker.queue, "jobs", timeout=DEADLINE_S)
        refused = pool.submit(worker.queue, "other", timeout=DEADLINE_S)
        until(lambda: len(worker._driver._asked) == 2 or opened.done() or refused.done())
        starting("b")
        assert opened.result().get(timeout=DEADLINE_S).body == b"m1"
        with pytest.raises(AuthenticationError, match="may not configure"):
            refused.result()


def test_a_queue_that_is_no_more_is_not_the_keys_fault(
    starting: Callable[[str], Node], keys: KeyRing, connecting: Connecting
) -> None:
    """Whoever deletes what another has deleted hears QueueNotFound."""
    nodes = [starting(name) for name in "ab"]
    nodes[0].wait_ready(DEADLINE_S)
    owner = connecting(nodes[0].endpoint, keys.of("owner"))
    queue = owner.queue("own")
    nodes[0].queue("own").delete()
    until(lambda: not nodes[0].queues())
    with pytest.raises(QueueNotFound):
        owner._delete_queue(queue._handle.queue_id, if_empty=False, timeout=DEADLINE_S)
