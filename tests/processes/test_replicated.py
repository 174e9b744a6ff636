"""`durability: replicated` with real processes and disks."""

from __future__ import annotations

from pathlib import Path

import mirrorq

from .cluster import Cluster, until

REPLICATED = {"durability": "replicated"}


def test_all_are_killed_at_once(cluster: Cluster) -> None:
    """The queue comes back by itself, and what had time to reach the disks is there: nothing is
    known to be lost, and no warning says so for ever."""
    cluster.found("abc")
    cluster["a"].ask("set_policy", name="p", pattern="", definition=REPLICATED)
    cluster.open("orders", "abc")
    cluster.wait_in_sync(2, on="a")
    bodies = [f"m{number}" + 500 * "." for number in range(20)]
    cluster.ask("a", "put_many", bodies=bodies)
    until(
        lambda: all(cluster.status(name)["store_bytes"] > 20 * 500 for name in "abc"),
        lambda: [cluster.status(name) for name in "abc"],
    )
    cluster.kill("a", "b", "c")
    cluster.start("abc")
    cluster.open("orders", "abc", passive=True)
    cluster.wait_in_sync(2, on="a")
    assert "unclean" not in "".join(cluster.status("a")["warnings"])
    assert [body for _, body in cluster.ask("a", "browse")] == bodies
    assert cluster.ask("b", "get")["redelivered"]


def test_a_node_that_is_closed_has_everything_on_disk(tmp_path: Path) -> None:
    """The last confirmed put is there after close() at once; the disk was not waited for."""
    with mirrorq.Node("a", path=tmp_path) as node:
        node.set_policy("p", "", REPLICATED)
        queue = node.queue("orders")
        for number in range(50):
            queue.put(b"%d" % number).result(10)
        first = queue.get(timeout=10)
        assert first.body == b"0"
        first.ack().result(10)
    with mirrorq.Node("a", path=tmp_path) as node:
        queue = node.queue("orders")
        assert [message.body for message in queue.browse()] == [b"%d" % n for n in range(1, 50)]
        node.clear_policy("p")
        until(lambda: "durability" not in "".join(queue.status().warnings), queue.status)
        queue.put(b"last").result(10)
    with mirrorq.Node("a", path=tmp_path) as node:
        status = node.queue("orders").status()
        assert status.messages == 50
        assert (status.messages_lost, status.warnings) == (0, ())
