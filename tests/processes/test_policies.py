"""Policies over real processes: scenarios 1 (moved off), 18, 25 and 26."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from .cluster import Cluster, until

pytestmark = pytest.mark.soak


def exactly(count: int) -> dict[str, Any]:
    return {"ha-mode": "exactly", "ha-params": count}


def nodes(*names: str) -> dict[str, Any]:
    return {"ha-mode": "nodes", "ha-params": list(names)}


def wait_placed(cluster: Cluster, on: str, master: str, mirrors: str) -> None:
    """Until a node sees this master, and these mirrors, all in sync."""

    def look() -> bool:
        status = cluster.status(on)
        places = (status["master"], sorted(status["mirrors"]))
        return places == (master, sorted(mirrors)) and len(mirrors) == len(
            status["synchronised_mirrors"]
        )

    until(look, lambda: cluster.status(on))


def test_scenario_26_policies_flip_while_queues_come_and_go(cluster: Cluster) -> None:
    """100 rounds of declare, publish, get and delete, with another caller's policies: no
    error, no queue that is stuck, and nothing of them is left in any store."""
    cluster.found("abc")
    failures: list[BaseException] = []

    def run(node: str, do: str, count: int) -> None:
        try:
            for first in range(0, count, 10):
                cluster[node].ask(do, first=first, last=first + 10)
        except BaseException as error:
            failures.append(error)

    callers = [
        threading.Thread(target=run, args=("a", "rounds", 100)),
        threading.Thread(target=run, args=("b", "flip_policy", 60)),
    ]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert failures == []
    assert until(lambda: cluster["c"].ask("queues") == []), "c hears of the last deletion, too"
    cluster.open("left", "abc")
    for node in "abc":
        assert until(lambda n=node: cluster.status(n)["state"] == "running")  # type: ignore[misc]


def test_scenario_26_flips_leak_no_store_space(cluster: Cluster) -> None:
    """Copies that a policy drops are deleted from their nodes' stores, so that the files do not
    grow: each node has held some 8 MB of the queue four times."""
    cluster.config = {"failure_ms": 600}
    cluster.found("abc")
    cluster.open("orders", "abc")
    cluster.wait_in_sync(2, on="b")
    cluster.ask("a", "fill", count=2000, size=4000)
    for _ in range(4):
        cluster["a"].ask("set_policy", name="p", pattern="^orders$", definition=exactly(1))
        for node in "bc":
            until(lambda n=node: cluster.status(n)["store_bytes"] == 0)  # type: ignore[misc]
        cluster["a"].ask("clear_policy", name="p")
        wait_placed(cluster, "a", "a", "bc")
        for node in "bc":
            until(lambda n=node: cluster.status(n)["store_bytes"] > 8_000_000)  # type: ignore[misc]
    for node in "bc":
        files = [file for file in (cluster.path / node).rglob("*") if file.is_file()]
        assert sum(file.stat().st_size for file in files) < 40_000_000
