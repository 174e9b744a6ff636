"""Ring and failover: scenarios 1 to 7 and 9."""

from __future__ import annotations

import time

import pytest

from .cluster import DEADLINE_S, Cluster, PeerError, until
from .oracle import Traffic


def bodies(first: int, last: int) -> list[str]:
    return [f"m{number}" for number in range(first, last + 1)]


@pytest.mark.parametrize("how", ["cleanly", "killed"])
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


def test_scenario_5_late_ack_of_the_same_message(cluster: Cluster) -> None:
    """An ack for a delivery from before the failover ends that message, or is refused and the
    message comes again: never both, and never another message's."""
    cluster.found("abc")
    cluster.open("orders", "abc")
    cluster.wait_in_sync(2, on="b")
    cluster.ask("a", "put_many", bodies=bodies(1, 3))
    held = cluster.ask("b", "get")
    assert held["body"] == "m1"
    cluster.kill("a")
    cluster.wait_master("bc", on="b")
    error = cluster["b"].start("ack", message=held["number"]).exception(DEADLINE_S)
    left = bodies(2 if error is None else 1, 3)
    assert error is None or "AckRefused" in str(error)
    assert [body for _, body in cluster.ask("c", "browse")] == left
    assert [m["body"] for m in cluster.ask("b", "take", count=len(left))] == left


def test_scenario_5_late_ack_of_a_message_that_another_holds(cluster: Cluster) -> None:
    """When the message has been handed out again, its first holder's ack is an error and
    leaves the second delivery alone."""
    cluster.found("abc")
    cluster.open("orders", "abc")
    cluster.wait_in_sync(2, on="b")
    cluster.ask("a", "put", body="m1")
    held = cluster.ask("b", "get")
    cluster.kill("a")
    again = cluster.ask("c", "get")
    assert (again["body"], again["redelivered"]) == ("m1", True)
    with pytest.raises(PeerError, match="AckRefused"):
        cluster["b"].ask("ack", message=held["number"])
    assert cluster.ask("b", "browse") == [[1, "m1"]]
    cluster["c"].ask("ack", message=again["number"])
    assert cluster.ask("b", "browse") == []


def test_scenario_6_two_masters_in_a_row(cluster: Cluster) -> None:
    """A is killed, 50 ms later its successor: the third serves all that was confirmed. (Two
    witnesses keep the majority.)"""
    cluster.found("abcvw", witnesses="vw")
    cluster.open("orders", "abc")
    cluster.wait_in_sync(2, on="c")
    traffic = Traffic(cluster, producer="c", consumer="c", count=6000)
    traffic.wait_confirmed(500)
    cluster.kill("a")
    time.sleep(0.05)  # The scenario's own time between the faults: nothing is waited for.
    cluster.kill("b")
    traffic.check(6000)
    assert cluster.status("c")["master"] == "c"


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


def test_scenario_6_the_last_of_three_pauses(cluster: Cluster) -> None:
    """With two of three killed the third has no majority: it says so, serves nothing, and goes
    on with all that was confirmed when one comes back."""
    cluster.found("abc")
    cluster.open("orders", "abc")
    cluster.wait_in_sync(2, on="c")
    cluster.ask("a", "put_many", bodies=bodies(1, 100))
    cluster.kill("a", "b")
    until(lambda: cluster.status("c")["state"] == "paused", lambda: cluster.status("c"))
    with pytest.raises(PeerError, match="NoQuorum"):
        cluster.ask("c", "get", timeout=0.2)
    opened = cluster.ask("c", "put_open", bodies=["m101"])
    with pytest.raises(PeerError, match="TimeoutError"):
        cluster["c"].ask("outcome", number=opened[0], timeout=0.2)
    cluster.start("a")
    assert cluster["c"].ask("outcome", number=opened[0]) == 101
    assert [body for _, body in cluster.ask("c", "browse")] == bodies(1, 101)


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


@pytest.mark.parametrize("killed", ["a", "b", "c"])
def test_scenario_9_an_idle_ring_notices(cluster: Cluster, killed: str) -> None:
    """A member of an idle ring is killed: the others see it without any traffic."""
    cluster.found("abc")
    cluster.open("orders", "abc")
    left = "abc".replace(killed, "")
    for name in left:
        cluster.wait_in_sync(2, on=name)
    cluster.kill(killed)
    for name in left:
        status = cluster.wait_in_sync(1, on=name)
        assert status["master"] == left[0]
        assert status["mirrors"] == [left[1]]
