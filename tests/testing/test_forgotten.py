"""A node that was forgotten is told so, and its calls end with that: no wait changes it."""

from __future__ import annotations

import pytest

from mirrorq import NoQuorum
from mirrorq.testing.cluster import SimulatedCluster

PATIENCE_S = 600.0
SOON_S = 10.0
"""Virtual: it says hello and is answered."""


@pytest.mark.parametrize("seed", range(3))
def test_calls_of_a_forgotten_node_end_at_once(seed: int) -> None:
    with SimulatedCluster(4, seed=seed) as cluster:
        cluster.crash("d")
        client = cluster.node("a")
        cluster.run(SOON_S)
        client.forget_node("d")
        node = cluster.start("d")
        began = cluster.now
        calls = (lambda: node.wait_ready(PATIENCE_S), lambda: node.queue("q", timeout=PATIENCE_S))
        for call in calls:
            with pytest.raises(NoQuorum, match=r"was forgotten. Start it with an empty path"):
                call()
        assert cluster.now - began < SOON_S
