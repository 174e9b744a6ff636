"""Priorities and delays over several processes, and over the death of their master."""

from __future__ import annotations

import pytest

from .cluster import Cluster, PeerError, until

LONG_S = 3600
SOON_S = 1.5


def test_levels_and_delays_go_on_at_the_next_master(cluster: Cluster) -> None:
    """What is ready comes by priority, oldest first in each; what is delayed comes when it is
    due, once; what is not due stays; a nack with a delay is kept, too."""
    cluster.found("abc")
    cluster.open("orders", "abc")
    assert cluster.wait_in_sync(2, on="a")["master"] == "a"
    for priority, body in ((0, "n1"), (7, "m1"), (31, "h1"), (0, "n2"), (7, "m2")):
        cluster.ask("b", "put", body=body, priority=priority)
    first = cluster.ask("c", "get")
    assert first["body"] == "h1"
    cluster["c"].ask("nack", message=first["number"], delay=LONG_S)
    cluster.ask("b", "put", body="soon", delay=SOON_S, priority=1)
    cluster.ask("b", "put", body="never", delay=LONG_S)
    cluster.kill("a")
    # Counts without age are the master's own; others may be a report from before the kill.
    master = cluster.wait_master("bc", on="c")

    def all_are_due() -> bool:
        status = cluster.status(master)
        return bool(status["counts_age_ms"] == 0 and status["messages_ready"] == 5)

    until(all_are_due, lambda: cluster.status(master))
    taken = cluster.ask("c", "take", count=5)
    assert [message["body"] for message in taken] == ["m1", "m2", "soon", "n1", "n2"]
    assert all(message["count"] == 1 or message["redelivered"] for message in taken)
    for message in taken:
        cluster["c"].ask("ack", message=message["number"])
    assert sorted(body for _, body in cluster.ask("b", "browse")) == ["h1", "never"]
    with pytest.raises(PeerError, match="Empty"):
        cluster.ask("c", "get_nowait")
