"""A node that may not join, in a process of its own."""

from __future__ import annotations

from .cluster import Cluster, until


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
