"""Members that stand still and links that lose: scenarios 10, 11 and 33."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from harness.chaos.proxy import Proxies

from .cluster import Cluster, PeerError, until
from .oracle import Traffic

pytestmark = pytest.mark.soak

QUICK = {"failure_ms": 600, "heartbeat_ms": 150, "lease_ms": 200, "election_ms": 600}
"""Shorter than the defaults, so that a member that stands still is out sooner."""
USUAL: dict[str, int] = {}
"""The defaults."""


def test_scenario_10_a_stopped_mirror_is_left_out(cluster: Cluster) -> None:
    """A mirror stands still: confirms go on without it; it wakes, and joins again."""
    cluster.config = QUICK
    cluster.found("abc")
    cluster.open("orders", "abc")
    cluster.wait_in_sync(2, on="a")
    traffic = Traffic(cluster, producer="a", consumer="c", count=100_000, pause_s=0.001)
    traffic.wait_confirmed(100)
    cluster["b"].signal(signal.SIGSTOP)
    cluster.wait_in_sync(1, on="a")
    traffic.wait_more_confirmed(500)
    cluster["b"].signal(signal.SIGCONT)
    cluster.wait_in_sync(2, on="a")
    cluster.wait_in_sync(2, on="b")
    traffic.wait_more_confirmed(100)
    traffic.stop()
    traffic.check(100_000)


def test_scenario_10_a_stopped_master_serves_nothing_stale(cluster: Cluster) -> None:
    """The master stands still with a consumer of its own; another takes over. When it wakes it
    finds itself out, hands out nothing that was handed out meanwhile, and joins again."""
    cluster.config = QUICK
    cluster.found("abc")
    cluster.open("orders", "abc")
    cluster.wait_in_sync(2, on="b")
    watches = {
        name: cluster.ask(name, "consume", top=100_000, keep=True, prefetch=5) for name in "ac"
    }
    producer = cluster.ask("b", "produce", count=100_000, pause_s=0.001)

    def consumed(name: str) -> dict[str, Any]:
        found: dict[str, Any] = cluster[name].ask("consumed", number=watches[name])
        return found

    def produced() -> dict[str, Any]:
        found: dict[str, Any] = cluster["b"].ask("produced", number=producer)
        return found

    for name in "ac":
        until(lambda name=name: consumed(name)["handed_out"] >= 50)
    cluster["a"].signal(signal.SIGSTOP)
    cluster.wait_master("bc", on="b")
    confirmed = produced()["confirmed"]
    until(lambda: produced()["confirmed"] >= confirmed + 300, produced)
    cluster["a"].signal(signal.SIGCONT)
    # On B: what A tells just after it woke is what it knew before.
    status = cluster.wait_in_sync(2, on="b")
    assert "a" in status["mirrors"]
    assert cluster["a"].ask("is_alive")
    cluster["b"].ask("stop_producing", number=producer)
    until(lambda: produced()["finished"] and not produced()["open"], produced)
    assert produced()["wrong"] == []
    until(lambda: cluster.status(status["master"])["messages"] == 0)
    seen = [tuple(item) for name in "ac" for item in consumed(name)["seen"]]
    unflagged = [number for number, redelivered in seen if not redelivered]
    assert len(unflagged) == len(set(unflagged))
    assert len({number for number, _ in seen}) == produced()["offered"]


@pytest.mark.parametrize(("source", "target"), [("a", "b"), ("b", "c"), ("c", "a"), ("b", "a")])
def test_scenario_11_one_way_loss(
    cluster: Cluster, proxies: Proxies, source: str, target: str
) -> None:
    """What one member sends another does not arrive: the ring is repaired, or one of them is
    out; traffic goes on and loses nothing, and all are in sync again when the link is well."""
    cluster.config = USUAL
    cluster.start("abc")
    cluster.open("orders", "abc")
    cluster.wait_in_sync(2, on="b")
    through = next(name for name in "abc" if name not in (source, target))
    traffic = Traffic(cluster, through, through, count=100_000, pause_s=0.001)
    traffic.wait_confirmed(100)
    epoch = cluster.status(through)["epoch"]
    proxies.lose(source, target)
    until(lambda: cluster.status(through)["epoch"] > epoch, lambda: cluster.status(through))
    traffic.wait_more_confirmed(300)
    proxies.heal()
    cluster.wait_in_sync(2, on=through)
    traffic.stop()
    traffic.check(100_000)


@pytest.mark.parametrize("is_held", [False, True])
def test_scenario_33_partial_partition(cluster: Cluster, proxies: Proxies, is_held: bool) -> None:
    """A hears B but not C, B hears both: one outcome that all who serve agree on, without
    flapping; traffic loses nothing, and all are in sync again when the link is well."""
    cluster.config = USUAL
    cluster.start("abc")
    cluster.open("orders", "abc")
    cluster.wait_in_sync(2, on="b")
    traffic = Traffic(cluster, "b", "b", count=100_000, pause_s=0.001)
    traffic.wait_confirmed(100)
    separate = proxies.hold if is_held else proxies.cut
    epoch = cluster.status("b")["epoch"]
    separate("a", "c")
    until(lambda: cluster.status("b")["epoch"] > epoch, lambda: cluster.status("b"))
    traffic.wait_more_confirmed(1000)
    epoch = cluster.status("b")["epoch"]
    traffic.wait_more_confirmed(1500)
    assert cluster.status("b")["epoch"] <= epoch + 1, "it flaps"
    proxies.heal()
    cluster.wait_in_sync(2, on="b")
    traffic.stop()
    traffic.check(100_000)


@pytest.mark.parametrize("is_held", [False, True])
def test_scenario_32_the_cut_off_side_confirms_nothing_that_is_lost(
    cluster: Cluster, proxies: Proxies, is_held: bool
) -> None:
    """The master is cut off for longer than anything takes to be noticed, both sides publish: it
    pauses and says so, and confirms nothing meanwhile; healed, every publish of both sides is
    confirmed once, and A is back by itself as a mirror."""
    cluster.config = QUICK
    cluster.start("abc")
    cluster.open("orders", "abc")
    cluster.wait_in_sync(2, on="b")
    cluster.ask("a", "put", body="before")
    for other in "bc":
        (proxies.hold if is_held else proxies.cut)("a", other)
    until(lambda: cluster.status("a")["state"] == "paused", lambda: cluster.status("a"))
    numbers = {
        name: cluster.ask(name, "put_open", bodies=[f"{name}{n}" for n in range(200)])
        for name in "ab"
    }
    cluster.wait_master("bc", on="b")
    for number in numbers["b"]:
        cluster["b"].ask("outcome", number=number)
    with pytest.raises(PeerError, match="NoQuorum"):
        # All that notices anything has had its time when this is over.
        cluster.ask("a", "get", timeout=4 * QUICK["failure_ms"] / 1000)
    assert not any(cluster["a"].ask("is_done", number=number) for number in numbers["a"])
    assert cluster.status("a")["state"] == "paused"
    proxies.heal()
    sequences = {cluster["a"].ask("outcome", number=number) for number in numbers["a"]}
    assert len(sequences) == 200
    assert "a" in cluster.wait_in_sync(2, on="b")["mirrors"]
    bodies = [body for _, body in cluster.ask("c", "browse")]
    assert sorted(bodies) == sorted(
        ["before", *(f"{name}{n}" for name in "ab" for n in range(200))]
    )
