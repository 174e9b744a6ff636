"""Restarts: scenarios 8 and 12, and a store that was wiped."""

from __future__ import annotations

import shutil

import pytest

from .cluster import Cluster, until


@pytest.mark.parametrize("how", ["cleanly", "killed"])
def test_scenario_8_a_restarted_master_catches_up_by_delta(cluster: Cluster, how: str) -> None:
    """100,000 messages in the queue, 10 missed: the old master comes back as a mirror, and what
    it fetches is of the size of what it missed."""
    cluster.found("abc")
    cluster.open("orders", "abc")
    cluster.wait_in_sync(2, on="b")
    cluster.ask("a", "fill", count=100_000, size=100)
    if how == "cleanly":
        cluster["a"].stop_cleanly()
    else:
        cluster.kill("a")
    assert cluster.wait_master("b", on="b") == "b"
    missed = [f"missed {number}" for number in range(10)]
    for body in missed:
        cluster.ask("b", "put", body=body)
    before = sum(cluster[name].ask("sent_bytes", to="a") for name in "bc")
    cluster.start("a")
    cluster.open("orders", "a", passive=True)
    status = cluster.wait_in_sync(2, on="a")
    assert status["master"] == "b"
    assert status["mirrors"] == ["c", "a"]
    assert cluster["a"].ask("transferred", name="orders")["frames"] <= 20
    sent = sum(cluster[name].ask("sent_bytes", to="a") for name in "bc") - before
    assert sent < 1_000_000, "the queue holds 10,000,000 bytes of bodies"
    cluster.kill("b")
    cluster.wait_master("ac", on="a")
    assert cluster.ask("a", "qsize") == 100_010


@pytest.mark.parametrize("order", ["abc", pytest.param("cab", marks=pytest.mark.smoke), "bca"])
def test_scenario_12_all_stopped_then_started_in_any_order(cluster: Cluster, order: str) -> None:
    """Everything confirmed is back as soon as a majority is, whoever they are; what was acked
    stays acked."""
    cluster.found("abc")
    cluster.open("orders", "abc")
    cluster.wait_in_sync(2, on="b")
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


@pytest.mark.parametrize("wiped", ["a", "c"])
def test_a_wiped_store_rejoins_as_a_new_one(cluster: Cluster, wiped: str) -> None:
    """A node whose directory was lost comes back under its name, counts as in sync only with a
    full copy, and can then be the one that serves."""
    cluster.found("abc")
    cluster.open("orders", "abc")
    cluster.wait_in_sync(2, on="b")
    cluster.ask("a", "fill", count=5000, size=100)
    cluster.kill(wiped)
    shutil.rmtree(cluster.path / wiped)
    cluster.wait_in_sync(1, on="b")
    cluster.start(wiped)
    cluster.open("orders", wiped, passive=True)
    status = cluster.wait_in_sync(2, on="b")
    assert status["mirrors"][-1] == wiped
    master = status["master"]
    if master != wiped:
        cluster.kill(*(name for name in "abc" if name not in (master, wiped)))
        cluster.wait_in_sync(1, on=wiped)
        cluster.launch("abc".replace(master, "").replace(wiped, ""))
        cluster.kill(master)
    cluster.wait_master(wiped, on=wiped)
    assert cluster.ask(wiped, "qsize") == 5000
    until(lambda: cluster.status(wiped)["messages"] == 5000)
    assert not any("two nodes" in cluster.log_text(name) for name in "abc")
