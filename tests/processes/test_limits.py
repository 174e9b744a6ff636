"""Limits of a queue over several processes: scenario 28."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from .cluster import Cluster, PeerError, until


def limited(cluster: Cluster, **definition: Any) -> Cluster:
    """Three nodes, the master on A, a policy for the queue."""
    cluster.found("abc")
    given = {key.replace("_", "-"): value for key, value in definition.items()}
    cluster["c"].ask("set_policy", name="limit", pattern="^orders$", definition=given)
    cluster.open("orders", "abc")
    assert cluster.wait_in_sync(2, on="a")["master"] == "a"
    return cluster


def put_all(cluster: Cluster, node: str, bodies: Sequence[str]) -> list[str]:
    """Publish each by itself; return those that were confirmed."""
    opened = cluster.ask(node, "put_open", bodies=list(bodies))
    confirmed = []
    for number, body in zip(opened, bodies, strict=True):
        try:
            cluster[node].ask("outcome", number=number)
        except PeerError as error:
            if error.kind != "NotConfirmed" or "max-length 3" not in error.text:
                raise
        else:
            confirmed.append(body)
    return confirmed


def in_queue(cluster: Cluster, node: str) -> list[str]:
    return [body for _, body in cluster.ask(node, "browse")]


def test_28_reject_publish_across_a_failover(cluster: Cluster) -> None:
    """The refused ones are not confirmed, also by the next master, and never show up."""
    limited(cluster, max_length=3, overflow="reject-publish")
    assert put_all(cluster, "b", ["m1", "m2", "m3", "m4", "m5"]) == ["m1", "m2", "m3"]
    cluster.kill("a")
    cluster.wait_master("bc", on="b")
    assert put_all(cluster, "b", ["m6"]) == []
    taken = cluster.ask("c", "get")
    assert put_all(cluster, "b", ["m7", "m8"]) == ["m7"]
    cluster["c"].ask("nack", message=taken["number"])
    assert in_queue(cluster, "b") == ["m1", "m2", "m3", "m7"]
    assert put_all(cluster, "c", ["m9"]) == []
    found = cluster.ask("c", "take", count=4)
    assert [message["body"] for message in found] == ["m1", "m2", "m3", "m7"]


def test_28_drop_head_across_a_failover(cluster: Cluster) -> None:
    """All are confirmed; the newest are there."""
    limited(cluster, max_length=3, overflow="drop-head")
    bodies = [f"m{number}" for number in range(1, 41)]
    opened = cluster.ask("b", "put_open", bodies=bodies[:20])
    cluster.kill("a")
    opened += cluster.ask("b", "put_open", bodies=bodies[20:])
    sequences = [cluster["b"].ask("outcome", number=number) for number in opened]
    assert sequences == sorted(set(sequences))
    assert in_queue(cluster, "c") == bodies[-3:]
    until(lambda: cluster.status("c")["messages_ready"] == 3, lambda: cluster.status("c"))


def test_28_block_across_a_failover(cluster: Cluster) -> None:
    """put waits, with or without an end; what waits goes on at the next master."""
    limited(cluster, max_length=3, overflow="block")
    client = cluster.client()
    number = client.ask("queue", name="orders")
    for body in ("m1", "m2", "m3"):
        cluster.ask("b", "put", body=body)
    # The master tells each handle by itself that there is no more room.
    for peer, queue in ((cluster["b"], cluster.queues["b"]), (cluster["c"], cluster.queues["c"]),
                        (client, number)):  # fmt: skip
        until(lambda peer=peer, queue=queue: peer.ask("full", queue=queue))
    with pytest.raises(PeerError, match="Full"):
        cluster.ask("b", "put", body="x", timeout=0.1)
    with pytest.raises(PeerError, match="Full"):
        cluster.ask("c", "put", body="x", block=False)
    with pytest.raises(PeerError, match="Full"):
        client.ask("put", queue=number, body="x", block=False)
    until(lambda: "max-length 3" in cluster.status("c")["blocked_by"])
    waiting = cluster["b"].start("put", queue=cluster.queues["b"], body="m4")
    by_client = client.start("put", queue=number, body="m5")
    cluster.kill("a")
    cluster.wait_master("bc", on="b")
    assert not waiting.done()
    assert not by_client.done()
    first = cluster.ask("c", "take", count=2)
    assert [message["body"] for message in first] == ["m1", "m2"]
    assert waiting.result(60) > 3
    assert by_client.result(60) > 3
    assert sorted(in_queue(cluster, "b")) == ["m1", "m2", "m3", "m4", "m5"]
    until(lambda: cluster.ask("c", "full"))
