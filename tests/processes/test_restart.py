"""A restart of all nodes: scenario 12."""

from __future__ import annotations

import pytest

from .cluster import Cluster


@pytest.mark.parametrize("order", ["abc", pytest.param("cab", marks=pytest.mark.smoke), "bca"])
def test_scenario_12_all_stopped_then_started_in_any_order(cluster: Cluster, order: str) -> None:
    """Everything confirmed is back as soon as a majority is, whoever they are; what was acked
    stays acked."""
    cluster.serve("abc")
    bodies = [f"m{number}" for number in range(1, 501)]
    cluster.ask("b", "put_many", bodies=bodies)
    taken = cluster.ask("c", "take", count=3)
    cluster["c"].ask("ack", message=taken[1]["number"])
    cluster.kill("a", "b", "c")
    first, second, last = order
    cluster.start(first + second)
    cluster.open("orders", first + second, passive=True)
    expected = [[n + 1, body] for n, body in enumerate(bodies) if n != 1]
    assert cluster.ask(first, "browse") == expected
    cluster.start(last)
    cluster.open("orders", last, passive=True)
    cluster.wait_in_sync(2, on=last)
    again = cluster.ask(last, "take", count=3)
    assert [m["body"] for m in again] == ["m1", "m3", "m4"]
    assert [m["redelivered"] for m in again[:2]] == [True, True]
