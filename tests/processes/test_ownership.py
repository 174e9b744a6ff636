"""Scenario 24 with real processes: queues that go with their owner or their last consumer."""

from __future__ import annotations

import pytest

from .cluster import Cluster, Peer, PeerError, until

pytestmark = pytest.mark.soak


def names(cluster: Cluster, on: str) -> list[str]:
    found: list[str] = cluster[on].ask("queues")
    return found


def wait_known(cluster: Cluster, name: str) -> None:
    """Until every node has heard of a queue: through whichever a client has come."""
    for node in cluster.peers:
        until(lambda node=node: name in names(cluster, node))


def wait_gone(cluster: Cluster) -> None:
    """Until no node knows of a queue any more: the name is free wherever it is asked for."""
    for node in cluster.peers:
        until(lambda node=node: not names(cluster, node), lambda node=node: names(cluster, node))


def test_an_exclusive_queue_of_a_client_ends_with_its_entry_node(cluster: Cluster) -> None:
    """The handle learns it: what is open in it ends, and the name is free."""
    cluster.found("abc")
    client = cluster.client()
    entry = client.ask("entry_node")
    number = client.ask("queue", name="mine", exclusive=True)
    assert client.ask("put", queue=number, body="m1") == 1
    got = client.ask("get", queue=number)
    cluster.kill(entry)
    # An ack that is under way when the client hears of it is answered by ConfirmUnknown.
    until(lambda: client.ask("status", queue=number)["warnings"])
    with pytest.raises(PeerError, match="AckRefused"):
        client.ask("ack", message=got["number"])
    with pytest.raises(PeerError, match="ShutDown"):
        client.ask("get", queue=number)
    again = client.ask("queue", name="other", exclusive=True)
    assert client.ask("put", queue=again, body="m2") == 1


def refuses_to_take(peer: Peer, queue: int) -> None:
    for call in ("get", "purge"):
        with pytest.raises(PeerError, match=r"PreconditionFailed.*exclusive"):
            peer.ask(call, queue=queue)


def test_a_queue_of_one_connection_goes_with_it(cluster: Cluster) -> None:
    """Others may put into it and take nothing; it outlives the handle that declared it, and is gone
    with the node's process, and with the client that was closed."""
    cluster.found("abc")
    mine = cluster["b"].ask("queue", name="mine", exclusive="connection")
    assert cluster["b"].ask("put", queue=mine, body="m1") == 1
    for how in ({"exclusive": "connection"}, {"exclusive": True}, {}):
        with pytest.raises(PeerError, match=r"PreconditionFailed.*'mine' is exclusive"):
            cluster["c"].ask("queue", name="mine", **how)
    client = cluster.client()
    wait_known(cluster, "mine")
    theirs = client.ask("queue", name="mine", passive=True)
    assert client.ask("put", queue=theirs, body="m2") == 2
    refuses_to_take(client, theirs)
    cluster["b"].ask("close", queue=mine)
    again = cluster["b"].ask("queue", name="mine", exclusive="connection")
    assert [cluster["b"].ask("get", queue=again)["body"] for _ in range(2)] == ["m1", "m2"]
    cluster.kill("b")
    wait_gone(cluster)

    number = client.ask("queue", name="mine", exclusive="connection")
    assert client.ask("put", queue=number, body="m1") == 1
    with pytest.raises(PeerError, match="PreconditionFailed"):
        cluster["a"].ask("queue", name="mine")
    client.ask("close_node")
    wait_gone(cluster)


def test_a_queue_of_one_connection_outlives_the_entry_node_of_its_client(cluster: Cluster) -> None:
    """The client goes on at another node, and so does the queue, with what is in it and whose it
    is; what is held can still be acked. When the client is killed it goes, after a while."""
    cluster.found("abc")
    client = cluster.client()
    entry = client.ask("entry_node")
    number = client.ask("queue", name="mine", exclusive="connection")
    until(lambda: len(client.ask("status", queue=number)["synchronised_mirrors"]) == 2)
    for body in ("m1", "m2"):
        client.ask("put", queue=number, body=body)
    got = client.ask("get", queue=number)
    assert got["body"] == "m1"
    cluster.kill(entry)
    other = min(set("abc") - {entry})
    client.ask("put", queue=number, body="m3")
    wait_known(cluster, "mine")
    theirs = cluster[other].ask("queue", name="mine", passive=True)
    cluster[other].ask("put", queue=theirs, body="m4")
    refuses_to_take(cluster[other], theirs)
    found = {client.ask("get", queue=number)["body"] for _ in range(3)}
    assert found >= {"m2", "m3"}
    client.kill()
    wait_gone(cluster)
