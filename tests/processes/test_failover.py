"""Ring and failover: scenario 1."""

from __future__ import annotations

import pytest

from .cluster import Cluster
from .oracle import Traffic


@pytest.mark.parametrize("how", ["cleanly", pytest.param("killed", marks=pytest.mark.smoke)])
def test_scenario_1_master_goes_under_traffic(cluster: Cluster, how: str) -> None:
    """20,000 confirmed publishes through B, a consumer on C, A goes: nothing is lost, doubled
    unflagged or out of order, and every confirm comes once."""
    cluster.found("abc")
    cluster.open("orders", "abc")
    assert cluster.wait_in_sync(2, on="b")["master"] == "a"
    traffic = Traffic(cluster, producer="b", consumer="c", count=20_000)
    traffic.wait_confirmed(1000)
    if how == "cleanly":
        cluster["a"].stop_cleanly()
    else:
        cluster.kill("a")
    traffic.check(20_000)
    assert cluster.wait_master("bc", on="b") == "b"
