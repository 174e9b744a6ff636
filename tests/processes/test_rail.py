"""The rail with real processes, sockets and disks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from .cluster import Cluster, until
from .oracle import Traffic

pytest.importorskip("mirrorq._native._rail", reason="this system has no rail")
RAIL = {"star": True, "rail": True}
LOG = "mirrorq.rail"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path, RAIL)
    try:
        yield made
    finally:
        made.end()


def is_used(cluster: Cluster, node: str) -> bool:
    """Whether anything was ever written to the log of a node's rail."""
    return any((cluster.path / node / LOG).read_bytes())


def test_mirror_and_master_are_killed_under_traffic(cluster: Cluster) -> None:
    cluster.found("abc")
    cluster.open("orders", "abc")
    assert cluster.wait_in_sync(2, on="b")["master"] == "a"
    traffic = Traffic(cluster, producer="b", consumer="b", count=100_000, pause_s=0.002)
    traffic.wait_confirmed(300)
    until(lambda: is_used(cluster, "c"), "the rail of c takes something")
    cluster.kill("c")
    traffic.wait_more_confirmed(200)
    cluster.start("c")
    cluster.open("orders", "c", passive=True)
    cluster.wait_in_sync(2, on="b")
    traffic.wait_more_confirmed(200)
    cluster.kill("a")
    traffic.wait_more_confirmed(200)
    traffic.stop()
    traffic.check(100_000)
    assert is_used(cluster, "b")
    assert cluster.wait_master("bc", on="b")


def test_all_are_killed_at_once_and_have_what_was_confirmed(cluster: Cluster) -> None:
    cluster.found("abc")
    cluster.open("orders", "abc")
    cluster.wait_in_sync(2, on="a")
    count = 0
    while count < 400 or not (is_used(cluster, "b") and is_used(cluster, "c")):
        assert cluster.ask("a", "put", body=f"m{count}") == count + 1
        count += 1
        assert count < 20_000, "rails are used after a second or two"
    cluster.kill("a", "b", "c")
    cluster.start("bc")
    cluster.open("orders", "bc", passive=True)
    cluster.wait_master("bc", on="b")
    found = cluster.ask("b", "browse")
    assert found == [[number + 1, f"m{number}"] for number in range(count)]


def test_a_node_without_it_is_in_the_cluster(cluster: Cluster) -> None:
    """As while a cluster is given the setting, node by node."""
    cluster.found("ab")
    cluster.config = {name: value for name, value in cluster.config.items() if name not in RAIL}
    cluster.join("c", "a", "b")
    cluster.config = {**cluster.config, **RAIL}
    cluster.open("orders", "abc")
    traffic = Traffic(cluster, producer="c", consumer="b", count=300)
    traffic.check(300)


@pytest.mark.parametrize("victim", ["c", "a"])
def test_what_is_marked_at_receipt_outlives_a_member(cluster: Cluster, victim: str) -> None:
    """`durability: replicated`: the rails of the mirrors say what has come, and log nothing."""
    cluster.found("abc")
    cluster["a"].ask("set_policy", name="p", pattern="", definition={"durability": "replicated"})
    cluster.open("orders", "abc")
    cluster.wait_in_sync(2, on="b")
    traffic = Traffic(cluster, producer="b", consumer="b", count=100_000, pause_s=0.002)
    traffic.wait_confirmed(300)
    assert not is_used(cluster, "b")
    cluster.kill(victim)
    traffic.wait_more_confirmed(200)
    cluster.start(victim)
    cluster.open("orders", victim, passive=True)
    cluster.wait_in_sync(2, on="b")
    traffic.wait_more_confirmed(200)
    traffic.stop()
    traffic.check(100_000)
