"""Scenarios 13 to 15: synchronisation, with real processes."""

from __future__ import annotations

import pytest

from .cluster import Cluster, until

MANUAL = {"ha-sync-mode": "manual"}


def _without_b(cluster: Cluster) -> None:
    """A manual queue on a and b, b stopped and out of the view."""
    cluster.found("abw", witnesses="w")
    cluster["a"].ask("set_policy", name="sync", pattern="^orders$", definition=MANUAL)
    cluster.open("orders", "ab")
    cluster.wait_in_sync(1, on="a")
    cluster["b"].stop_cleanly()
    cluster.wait_in_sync(0, on="a")


def _start_b(cluster: Cluster) -> None:
    cluster.start("b")
    cluster.open("orders", "b", passive=True)


def _wait_joined(cluster: Cluster, missing: int) -> None:
    """B has a state, and lacks so many messages of it; it does not count as in sync."""

    def look() -> bool:
        seen = cluster["b"].ask("transferred", name="orders")
        return bool(seen["has_state"]) and seen["missing"] == missing

    until(look, lambda: cluster["b"].ask("transferred", name="orders"))
    assert cluster.status("a")["synchronised_mirrors"] == []
    assert cluster.status("a")["mirrors"] == ["b"]


@pytest.mark.parametrize("requeued", [False, True])
def test_scenario_13_natural_drain(cluster: Cluster, requeued: bool) -> None:
    """The trace, with a message that B lacks acked, or requeued and then acked."""
    _without_b(cluster)
    assert cluster.ask("a", "put", body="m1") == 1
    m1 = cluster.ask("a", "get")
    _start_b(cluster)
    _wait_joined(cluster, 1)
    assert cluster.ask("a", "put", body="m2") == 2
    until(lambda: cluster["b"].ask("transferred", name="orders")["live"] == 2)
    _wait_joined(cluster, 1)
    if requeued:
        cluster["a"].ask("nack", message=m1["number"])
        m1 = cluster.ask("a", "get")
        assert (m1["body"], m1["redelivered"]) == ("m1", True)
        _wait_joined(cluster, 1)
    cluster["a"].ask("ack", message=m1["number"])
    cluster.wait_in_sync(1, on="a")
    assert cluster["b"].ask("transferred", name="orders")["frames"] == 0
    cluster.kill("a")
    cluster.wait_master("b", on="b")
    assert cluster.ask("b", "get")["body"] == "m2"
