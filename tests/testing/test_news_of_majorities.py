"""What a node tells of its contact with a majority: changes, not that a start begins without."""

from __future__ import annotations

import pytest

from mirrorq.testing.cluster import SimulatedCluster


def told(cluster: SimulatedCluster) -> list[str]:
    """The news of all nodes about it, in order."""
    words = ("paused: ", "resumed: ")
    lines = [line.split(maxsplit=1)[1] for line in cluster.log]
    return [line for line in lines if any(word in line for word in words)]


@pytest.mark.parametrize("seed", range(3))
def test_a_healthy_start_is_no_news(seed: int) -> None:
    """Of a new cluster, and of a node that is restarted; a pause that comes later is told once,
    with its end."""
    with SimulatedCluster(3, seed=seed) as cluster:
        cluster.crash("b")
        cluster.restart("b")
        assert told(cluster) == []
        cluster.partition("a", "bc")
        cluster.run_until(lambda: cluster.node("a").is_paused)
        cluster.heal()
        cluster.run_until(lambda: not cluster.node("a").is_paused)
        assert [text for text in told(cluster) if text.startswith("a: ")] == [
            "a: paused: no contact with a majority",
            "a: resumed: has contact with a majority",
        ]
