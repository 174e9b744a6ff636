"""Ring and failover: scenario 1."""

from __future__ import annotations

import pytest

from .cluster import Cluster
from .oracle import Traffic


@pytest.mark.parametrize("how", ["cleanly", pytest.param("killed", marks=pytest.mark.smoke)])
def test_scenario_1_master_goes_under_traffic(cluster: Cluster, how: str) -> None:
    """20,000 confirmed publishes through B, a consumer on C, A goes: nothing is lost, doubled
    unflagged or out of order, and every confirm comes once."""
    cluster.serve("abc")
    traffic = Traffic(cluster["b"], cluster["c"], 20_000)
    traffic.wait_confirmed(1000)
    if how == "cleanly":
        cluster["a"].stop_cleanly()
    else:
        cluster.kill("a")
    traffic.check()
    assert cluster.wait_master("bc", on="b") == "b"
