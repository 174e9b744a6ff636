"""Nodes that join, leave and come back, each a process of its own."""

from __future__ import annotations

import pytest

from .cluster import Cluster, PeerError, until


def names(cluster: Cluster, on: str) -> list[str]:
    return sorted(node["name"] for node in cluster[on].ask("nodes"))


def wait_dead(cluster: Cluster, name: str) -> None:
    """Until all who run know it: whoever leads them is asked to forget it."""

    def is_dead(on: str) -> bool:
        return any(node["name"] == name and not node["alive"] for node in cluster[on].ask("nodes"))

    for on in cluster.peers:
        until(lambda on=on: is_dead(on), lambda on=on: cluster[on].ask("nodes"))


def test_a_node_joins_by_one_peer_and_restarts_without(cluster: Cluster) -> None:
    """Under traffic: it gets a copy of everything, is one of four, and after a kill it finds
    the cluster by its store alone, at its old endpoint."""
    cluster.found("abc")
    cluster.open("orders", "abc")
    producing = cluster.ask("b", "produce", count=2000)
    cluster.join("d", "b")
    cluster.queues["d"] = cluster["d"].ask("queue", name="orders", passive=True)
    until(lambda: cluster["b"].ask("produced", number=producing)["confirmed"] == 2000)
    cluster.wait_in_sync(3, on="d")
    until(lambda: names(cluster, "a") == list("abcd"))
    endpoint = cluster["d"].ask("listening")
    cluster.kill("d")
    cluster.wait_in_sync(2, on="a")
    cluster.launch("d", peers=None, listen=None)
    cluster["d"].wait_started()
    cluster["d"].ask("wait_ready")
    assert cluster["d"].ask("listening") == endpoint
    cluster.queues["d"] = cluster["d"].ask("queue", name="orders", passive=True)
    cluster.wait_in_sync(3, on="d")
    # Two of four would be no majority without it: it votes.
    cluster.kill("a")
    cluster.wait_master("bcd", on="d")
    assert cluster.ask("d", "put", body="after") == 2001


def test_a_node_is_forgotten_and_kept_out_until_it_is_empty(cluster: Cluster) -> None:
    """By a client too; alive, unknown or with the last copy it is refused. With its old store it
    is told so, under an empty one it joins anew."""
    cluster.found("abc")
    cluster.open("orders", "abc")
    cluster.ask("a", "put", body="m1")
    client = cluster.client()
    with pytest.raises(PeerError, match="PreconditionFailed: node c is alive"):
        client.ask("forget_node", name="c")
    with pytest.raises(PeerError, match=r"PreconditionFailed.*no node 'x'.*a, b, c"):
        cluster["a"].ask("forget_node", name="x")
    cluster.kill("c")
    wait_dead(cluster, "c")
    client.ask("forget_node", name="c")
    for name in "ab":
        until(lambda name=name: names(cluster, name) == ["a", "b"])
    assert cluster.ask("a", "put", body="m2") == 2

    cluster.launch("c")
    cluster["c"].wait_started()
    until(lambda: "it was forgotten" in cluster["c"].ask("waits_for", timeout=0.5))
    assert names(cluster, "a") == ["a", "b"]
    cluster.kill("c")
    cluster.join("c", "a", path=str(cluster.path / "anew"))
    cluster.wait_in_sync(2, on="a")
    until(lambda: names(cluster, "c") == list("abc"), lambda: names(cluster, "c"))


def test_a_name_that_is_taken_is_refused(cluster: Cluster) -> None:
    """A second process under the name of a living node: that one goes on, this one learns why."""
    cluster.found("abc")
    cluster.open("orders", "ab")
    settings = {
        "name": "b",
        "path": str(cluster.path / "second"),
        "join": cluster.endpoints["a"],
        "listen": "tcp://127.0.0.1:*",
    }
    second = cluster.run(settings, "second")
    second.wait_started()
    until(lambda: "a node named b is alive" in second.ask("waits_for", timeout=0.5))
    assert cluster.ask("b", "put", body="m1") == 1
    second.kill()


def test_join_is_checked_before_anything_is_made(cluster: Cluster) -> None:
    """Contradicting peers, an endpoint off this machine, none at all: nothing is left behind."""
    given = {"name": "d", "path": str(cluster.path / "d")}
    for settings, words in (
        (
            {
                "join": "tcp://127.0.0.1:7",
                "peers": {"d": "tcp://127.0.0.1:8", "a": "tcp://[::1]:9"},
            },
            "peers a",
        ),
        ({"join": "tcp://192.0.2.1:7"}, "without security"),
        ({"join": "127.0.0.1:7"}, "tcp://"),
        ({"join": []}, "names no endpoint"),
    ):
        peer = cluster.run({**given, **settings}, "d")
        with pytest.raises(PeerError, match=f"ConfigError.*{words}"):
            peer.wait_started()
    assert not (cluster.path / "d").exists()
