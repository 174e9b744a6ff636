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


def consumed(ring: Cluster, name: str, number: int) -> dict[str, Any]:
    found: dict[str, Any] = ring[name].ask("consumed", number=number)
    return found


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
