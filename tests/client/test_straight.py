"""A client's handle is served by its queue's master, without a node between, where it can be."""

from __future__ import annotations

import pytest
from tests.kit import DEADLINE_S

from mirrorq import Message
from mirrorq.client.client import Client
from mirrorq.testing import SimulatedCluster


def serving(cluster: SimulatedCluster, at: str = "b") -> list[str]:
    """Return the nodes that have handles of the client `web`, as node `at` lists clients."""
    (web,) = [one for one in cluster.node(at).clients() if one.name == "web"]
    return list(web.nodes)


def declared(cluster: SimulatedCluster, to: str) -> Client:
    """Return a client, after node a has become the master of `orders`."""
    cluster.node("a").queue("orders").put(b"0").result(DEADLINE_S)
    return cluster.connect("web", to=to)


def bodies(messages: list[Message]) -> list[bytes]:
    return [message.body for message in messages]


@pytest.mark.parametrize("to", ["cba", "abc", "ca"])
def test_a_handle_is_served_by_its_queues_master(to: str) -> None:
    with SimulatedCluster(nodes="abc", seed=1) as cluster:
        orders = declared(cluster, to).queue("orders")
        orders.put(b"1").result(DEADLINE_S)
        assert serving(cluster) == ["a"]
        assert bodies(orders.get_many(2, DEADLINE_S)) == [b"0", b"1"]


def test_a_handle_goes_to_no_endpoint_that_its_client_was_not_given() -> None:
    with SimulatedCluster(nodes="abc", seed=2) as cluster:
        declared(cluster, to="c").queue("orders").put(b"1").result(DEADLINE_S)
        assert serving(cluster) == ["c"]


def test_queues_of_two_masters_are_served_by_both() -> None:
    """Calls, and the order of each queue, know nothing of it."""
    with SimulatedCluster(nodes="abc", seed=3) as cluster:
        client = declared(cluster, to="cab")
        cluster.node("b").queue("others").put(b"0").result(DEADLINE_S)
        masters = {"orders": "a", "others": "b"}
        for name, master in masters.items():
            assert cluster.master(name) == master
            queue = client.queue(name)
            queue.put(b"1").result(DEADLINE_S)
            assert bodies(queue.get_many(2, DEADLINE_S)) == [b"0", b"1"]
        assert serving(cluster) == ["a", "b"]


@pytest.mark.parametrize("silent", [False, True])
def test_an_endpoint_that_does_not_answer_is_done_without(silent: bool) -> None:
    """The home entry serves, and no call waits long."""
    with SimulatedCluster(nodes="abc", seed=4) as cluster:
        client = declared(cluster, to="cab")
        cluster.cut("web", "a", silent=silent)
        began_s = cluster.now
        client.queue("orders").put(b"1").result(DEADLINE_S)
        assert cluster.now - began_s < 0.5
        assert serving(cluster) == ["c"]


def test_a_straight_connection_breaks() -> None:
    """The master goes on. What the user holds can still be acked, and each put is stored once."""
    with SimulatedCluster(nodes="abc", seed=5) as cluster:
        orders = declared(cluster, to="cab").queue("orders")
        held = orders.get(timeout=DEADLINE_S)
        cluster.cut("web", "a")
        puts = [orders.put(b"%d" % number) for number in range(1, 50)]
        held.ack().result(DEADLINE_S)
        for put in puts:
            put.result(DEADLINE_S)
        cluster.run_until(lambda: serving(cluster) == ["c"])
        assert bodies(orders.get_many(49, DEADLINE_S)) == [
            b"%d" % number for number in range(1, 50)
        ]
        assert cluster.master("orders") == "a"


def test_a_straight_connection_falls_silent() -> None:
    """The handle goes on at the home entry; only what it held has gone back."""
    with SimulatedCluster(nodes="abc", seed=5) as cluster:
        orders = declared(cluster, to="cab").queue("orders")
        orders.put(b"1").result(DEADLINE_S)
        cluster.cut("web", "a", silent=True)
        puts = [orders.put(b"%d" % number) for number in range(2, 50)]
        for put in puts:
            put.result(DEADLINE_S)
        assert bodies(orders.get_many(50, DEADLINE_S)) == [b"%d" % number for number in range(50)]
        assert cluster.master("orders") == "a"


def test_a_handle_follows_its_queues_master() -> None:
    with SimulatedCluster(nodes="abc", seed=6) as cluster:
        orders = declared(cluster, to="cab").queue("orders")
        orders.put(b"1").result(DEADLINE_S)
        cluster.crash("a")
        orders.put(b"2").result(DEADLINE_S)
        master = cluster.master("orders")
        assert serving(cluster) == [master]
        assert bodies(orders.get_many(3, DEADLINE_S))[-2:] == [b"1", b"2"]


def test_the_home_entry_ends_and_the_handle_stays_with_its_master() -> None:
    """Held messages are not even interrupted; calls go on at the next home entry."""
    with SimulatedCluster(nodes="abc", seed=7) as cluster:
        client = declared(cluster, to="cab")
        orders = client.queue("orders")
        held = orders.get(timeout=DEADLINE_S)
        cluster.crash("c")
        held.ack().result(DEADLINE_S)
        assert serving(cluster) == ["a"]
        assert cluster.master("orders") == "a"


def test_the_owner_of_an_exclusive_queue_stays_at_home() -> None:
    """The queue ends with the home connection, so nothing else may end it."""
    with SimulatedCluster(nodes="abc", seed=8) as cluster:
        client = cluster.connect("web", to="cab")
        replies = client.queue("replies", exclusive=True)
        replies.put(b"1").result(DEADLINE_S)
        for _ in range(3):
            cluster.run(1)
            assert serving(cluster) == [client.entry_node]
        master = cluster.master("replies")
        if master and master != client.entry_node:
            cluster.cut("web", master, silent=False)
        assert replies.get(timeout=DEADLINE_S).body == b"1"
