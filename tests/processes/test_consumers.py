"""Names and consumers over several processes: scenarios 23, 27, 30 and 31."""

from __future__ import annotations

from typing import Any

import pytest

from .cluster import Cluster, until


@pytest.fixture
def ring(cluster: Cluster) -> Cluster:
    """Three nodes with the queue in sync on all, the master on A."""
    cluster.found("abc")
    cluster.open("orders", "abc")
    assert cluster.wait_in_sync(2, on="a")["master"] == "a"
    return cluster


def bodies(first: int, last: int) -> list[str]:
    return [f"m{number}" for number in range(first, last + 1)]


def consumed(ring: Cluster, name: str, number: int) -> dict[str, Any]:
    found: dict[str, Any] = ring[name].ask("consumed", number=number)
    return found


@pytest.mark.soak
def test_scenario_23_declared_everywhere_at_once(cluster: Cluster) -> None:
    """All nodes declare the same new name at the same time: it is one queue."""
    cluster.found("abc")
    declared = {name: cluster[name].start("queue", name="orders") for name in "abc"}
    cluster.queues = {name: future.result(60) for name, future in declared.items()}
    cluster.wait_in_sync(2, on="a")
    assert [cluster.ask(name, "put", body=name) for name in "abc"] == [1, 2, 3]


@pytest.mark.soak
def test_scenario_27_every_consumer_gets_its_share(ring: Cluster) -> None:
    """Consumers on different nodes work off one queue: each sees some, together all, once."""
    watches = {
        name: ring.ask(name, "consume", top=100_000, keep=True, prefetch=10) for name in "abc"
    }
    until(lambda: ring.status("a")["consumers"] == 3)
    producer = ring.ask("a", "produce", count=100_000, pause_s=0.001)

    def produced() -> dict[str, Any]:
        found: dict[str, Any] = ring["a"].ask("produced", number=producer)
        return found

    for name in "abc":
        until(lambda name=name: consumed(ring, name, watches[name])["handed_out"] >= 100)
    ring["a"].ask("stop_producing", number=producer)
    until(lambda: produced()["finished"] and not produced()["open"], produced)
    numbers = set(range(100_000 - produced()["offered"] + 1, 100_001))

    def seen() -> list[list[Any]]:
        return [item for name in "abc" for item in consumed(ring, name, watches[name])["seen"]]

    until(lambda: {number for number, _ in seen()} == numbers)
    until(lambda: ring.status("a")["messages"] == 0, lambda: ring.status("a"))
    # Again comes only what says so: a node that stood still for a second is taken for dead.
    unflagged = [number for number, redelivered in seen() if not redelivered]
    assert len(unflagged) == len(set(unflagged))


def test_scenario_27_cancel_on_failover(ring: Cluster) -> None:
    """At a failover the consumer that asked for it is cancelled, told once and gets no more; the
    other hears nothing of it and goes on."""
    cancelled = ring.ask("b", "consume", top=10**6, cancel_on_failover=True)
    going_on = ring.ask("c", "consume", top=10**6)
    until(lambda: ring.status("a")["consumers"] == 2)
    ring.kill("a")
    ring.wait_master("bc", on="c")
    until(lambda: consumed(ring, "b", cancelled)["cancelled"])
    assert not ring["b"].ask("consuming", number=cancelled)
    producer = ring.ask("c", "produce", count=100)
    until(lambda: consumed(ring, "c", going_on)["handed_out"] == 100)
    assert ring["c"].ask("produced", number=producer)["wrong"] == []
    assert consumed(ring, "b", cancelled)["cancelled"] == 1
    assert consumed(ring, "b", cancelled)["handed_out"] == 0
    assert consumed(ring, "c", going_on)["cancelled"] == 0


@pytest.mark.soak
def test_scenario_27_what_a_dead_consumer_held_goes_to_others(ring: Cluster) -> None:
    """A mirror that holds messages is killed: they come to another consumer, in order and
    flagged; what it had fetched and returned to nobody comes unflagged or flagged, but comes."""
    ring.ask("a", "put_many", bodies=bodies(1, 6))
    assert [m["body"] for m in ring.ask("c", "take", count=3)] == bodies(1, 3)
    ring.kill("c")
    again = ring.ask("b", "take", count=6)
    assert sorted(m["body"] for m in again) == bodies(1, 6)
    assert all(m["redelivered"] for m in again if m["body"] in bodies(1, 3))


@pytest.mark.soak
def test_scenario_31_auto_ack_in_flight_at_a_kill(ring: Cluster) -> None:
    """Acked at receipt, what is in flight at a kill may be lost or come again, flagged; what comes
    for the first time comes in order. One that is published later is not lost."""
    watch = ring.ask("c", "consume", top=5000, keep=True, ack="receipt")
    producer = ring.ask("b", "produce", count=5000)
    until(lambda: consumed(ring, "c", watch)["handed_out"] >= 500)
    ring.kill("a")
    until(lambda: ring["b"].ask("produced", number=producer)["confirmed"] == 5000)
    ring.ask("b", "put", body="0")
    until(lambda: consumed(ring, "c", watch)["lowest"] == 0)
    seen = consumed(ring, "c", watch)["seen"]
    unflagged = [number for number, redelivered in seen if not redelivered]
    assert unflagged == sorted(set(unflagged), reverse=True)
    first_time = list(dict.fromkeys(number for number, _ in seen))
    assert first_time == sorted(first_time, reverse=True)
    until(lambda: ring.status("b")["messages"] == 0)
