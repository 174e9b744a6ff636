"""A node that listens elsewhere than it is reached, and one that moves."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.kit import free_endpoint

from mirrorq import Node, connect
from mirrorq.demo.ports import free_ports

from .cluster import DEADLINE_S, Cluster

pytestmark = pytest.mark.soak


def test_bound_and_advertised_endpoint_differ(tmp_path: Path) -> None:
    """`listen` is bound; others and clients are told the endpoint in `peers`."""
    (port,) = free_ports(1)
    advertised = f"tcp://localhost:{port}"
    listen = f"tcp://127.0.0.1:{port}"
    with (
        Node("a", path=tmp_path / "a", peers={"a": advertised}, listen=listen) as node,
        connect(advertised, timeout=DEADLINE_S) as client,
    ):
        node.wait_ready(DEADLINE_S)
        assert (node.endpoint, node.listening) == (advertised, listen)
        assert [each.endpoint for each in client.nodes()] == [advertised]


def test_a_node_moves_while_the_others_run(cluster: Cluster) -> None:
    """Restarted under its name at another endpoint: the others, started with the old one, follow
    it, and it is in sync again. Twice, the second time as the master and without any peers."""
    cluster.found("abc")
    cluster.open("q", on="abc", timeout=DEADLINE_S)
    cluster.wait_in_sync(2, on="a")
    first = cluster.ask("a", "put_many", bodies=["1", "2"])
    assert first == [1, 3]

    cluster["c"].stop_cleanly()
    cluster.endpoints["c"] = free_endpoint()
    cluster.start("c")
    cluster.open("q", on="c", timeout=DEADLINE_S)
    cluster.wait_in_sync(2, on="a")
    assert cluster.ask("c", "put_many", bodies=["3"]) == [3, 4]

    cluster["a"].stop_cleanly()
    cluster.endpoints["a"] = free_endpoint()
    moved = cluster.launch("a", peers=None)
    moved.wait_started()
    moved.ask("wait_ready")
    cluster.open("q", on="a", timeout=DEADLINE_S)
    cluster.wait_in_sync(2, on="b")
    bodies = [message["body"] for message in cluster.ask("a", "take", count=3)]
    assert bodies == ["1", "2", "3"]
