"""Scenarios 13 to 15: synchronisation, with real processes."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

from .cluster import Cluster, until

MANUAL = {"ha-sync-mode": "manual"}


def _without_b(cluster: Cluster) -> None:
    """A manual queue on a and b, b stopped and out of the view."""
    cluster.found("abw", witnesses="w")
    cluster["a"].ask("set_policy", name="sync", pattern="^orders$", definition=MANUAL)
    cluster.open("orders", "ab")
    cluster.wait_in_sync(1, on="a")
    cluster["b"].stop_cleanly()
    cluster.wait_in_sync(0, on="a")


def _start_b(cluster: Cluster) -> None:
    cluster.start("b")
    cluster.open("orders", "b", passive=True)


def _wait_joined(cluster: Cluster, missing: int) -> None:
    """B has a state, and lacks so many messages of it; it does not count as in sync."""

    def look() -> bool:
        seen = cluster["b"].ask("transferred", name="orders")
        return bool(seen["has_state"]) and seen["missing"] == missing

    until(look, lambda: cluster["b"].ask("transferred", name="orders"))
    assert cluster.status("a")["synchronised_mirrors"] == []
    assert cluster.status("a")["mirrors"] == ["b"]


SLOW = {"sync_bytes_per_s": 100_000}
"""Forty seconds for the 4 MB of the queues here: nobody waits for all of it."""


def _slowed(cluster: Cluster, count: int = 4000) -> None:
    """B has joined by hand, lacks 4 MB, and will fetch them slowly."""
    cluster.config |= SLOW
    _without_b(cluster)
    cluster.ask("a", "fill", count=count, size=1000, batch=100)
    _start_b(cluster)
    _wait_joined(cluster, count)


def test_who_interrupts_the_command_is_told_that_it_goes_on(cluster: Cluster) -> None:
    """Ctrl-C ends the waiting of `queue sync`; the mirror goes on, until it is told to stop."""
    _slowed(cluster)
    endpoints = ",".join(cluster.endpoints.values())
    command = [sys.executable, "-m", "mirrorq", "queue", "sync", "orders", "--connect", endpoints]
    run = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        until(lambda: cluster.status("a")["sync_progress"])
        run.send_signal(signal.SIGINT)
        output, errors = run.communicate(timeout=60)
    finally:
        run.kill()
    assert (run.returncode, output) == (1, b"")
    assert errors.count(b"\n") == 1
    assert b"goes on synchronising" in errors
    assert cluster.status("a")["sync_progress"] is not None
    command[4] = "cancel-sync"
    for expected in (b"cancelled: orders\n", b"not syncing: orders\n"):
        assert subprocess.run(command, capture_output=True, timeout=60).stdout == expected
    listing = [*command[:4], "ls", "name", "sync_progress", "--json", *command[6:]]

    def listed() -> object:
        return json.loads(subprocess.run(listing, capture_output=True, timeout=60).stdout)

    until(lambda: listed() == [{"name": "orders", "sync_progress": None}], listed)
