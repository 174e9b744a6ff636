"""Ring and failover: scenarios 1 to 7 and 9."""

from __future__ import annotations

import pytest

from .cluster import Cluster, PeerError
from .oracle import Traffic


def bodies(first: int, last: int) -> list[str]:
    return [f"m{number}" for number in range(first, last + 1)]


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


def test_scenario_2_declared_and_confirmed_is_on_the_mirrors(cluster: Cluster) -> None:
    """Declare, publish one, kill the master at once: the queue and the message are there."""
    cluster.found("abc")
    cluster.open("orders", "a")
    status = cluster.status("a")
    assert status["synchronised_mirrors"] == ["b", "c"]
    assert cluster.ask("a", "put", body="m1") == 1
    cluster.kill("a")
    cluster.open("orders", "bc", passive=True)
    assert cluster.ask("c", "browse") == [[1, "m1"]]
    assert cluster.ask("b", "get")["body"] == "m1"


@pytest.mark.parametrize("acked", [0, 2])
def test_scenarios_3_and_4_witness_and_what_was_held(cluster: Cluster, acked: int) -> None:
    """Two data nodes and a witness: what the survivor's consumer held comes again in order
    and flagged; what it had acked never does."""
    cluster.found("abw", witnesses="w")
    cluster.open("orders", "ab")
    assert cluster.wait_in_sync(1, on="b")["synchronised_mirrors"] == ["b"]
    cluster.ask("a", "put_many", bodies=bodies(1, 6))
    held = cluster.ask("b", "take", count=3)
    for message in held[:acked]:
        cluster["b"].ask("ack", message=message["number"])
    cluster.kill("a")
    # Before B knows, a get may still return what its handle had fetched.
    cluster.wait_master("b", on="b")
    again = cluster.ask("b", "take", count=6 - acked)
    assert [message["body"] for message in again] == bodies(1 + acked, 6)
    assert all(message["redelivered"] for message in again[: 3 - acked])
    assert all(message["count"] >= 2 for message in again[: 3 - acked])
    cluster["b"].ask("ack_many", queue=cluster.queues["b"], messages=[m["number"] for m in again])
    assert cluster.ask("b", "browse") == []
    with pytest.raises(PeerError, match="Empty"):
        cluster.ask("b", "get_nowait")


@pytest.mark.soak
def test_scenario_6_five_nodes_whoever_is_master(cluster: Cluster) -> None:
    """Twice in a row whoever is master is killed, under traffic."""
    cluster.found("abcde")
    cluster.open("orders", "abcde")
    cluster.wait_in_sync(4, on="e")
    traffic = Traffic(cluster, producer="e", consumer="d", count=6000)
    traffic.wait_confirmed(300)
    cluster.kill("a")
    second = cluster.wait_master("bcde", on="e")
    assert second == "b"
    cluster.kill(second)
    traffic.check(6000)
    assert cluster.wait_master("cde", on="e") == "c"
    cluster.wait_in_sync(2, on="e")


@pytest.mark.soak
def test_scenario_7_all_survivors_have_the_last_op_or_none(cluster: Cluster) -> None:
    """The master is killed with unconfirmed ops on the way: what its successor serves is what
    the next one has too, confirmed or not."""
    cluster.found("abc")
    cluster.open("orders", "abc")
    cluster.wait_in_sync(2, on="c")
    opened = cluster.ask("a", "put_open", bodies=bodies(1, 2000))
    cluster["a"].start("outcome", number=opened[-1])
    cluster.kill("a")
    cluster.wait_master("b", on="c")
    has = cluster.ask("b", "browse", count_max=3000)
    assert [body for _, body in has] == bodies(1, len(has))
    cluster.start("a")
    cluster.wait_in_sync(2, on="c")
    cluster.kill("b")
    cluster.wait_master("c", on="c")
    assert cluster.ask("c", "browse", count_max=3000) == has
