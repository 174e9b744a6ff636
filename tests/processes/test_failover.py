"""A cluster of processes: its master goes, all restart, a second node has a name that is taken."""

from __future__ import annotations

import pytest

from .cluster import Cluster, until
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


@pytest.mark.parametrize(
    "order",
    [
        "abc",
        pytest.param("cab", marks=pytest.mark.smoke),
        pytest.param("bca", marks=pytest.mark.soak),
    ],
)
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
