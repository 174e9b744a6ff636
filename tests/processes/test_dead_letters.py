"""Dead letters over several processes: scenario 29."""

from __future__ import annotations

import pytest

from .cluster import Cluster, until

pytestmark = pytest.mark.soak


def test_29_a_missing_dead_letter_queue_is_said(cluster: Cluster) -> None:
    cluster.found("abc")
    definition = {"dead-letter-queue": "dead", "message-ttl": 0}
    cluster["c"].ask("set_policy", name="orders", pattern="^orders$", definition=definition)
    cluster.open("orders", "abc")
    cluster.wait_in_sync(2, on="a")
    made = cluster["c"].ask("queue", name="dead", passive=True)
    cluster["c"].ask("delete", queue=made)
    cluster.wait_warned("dead-letter-queue 'dead' does not exist", on="b")
    cluster.ask("b", "put", body="gone")
    until(lambda: cluster.ask("b", "qsize") == 0)
    until(lambda: "1 message(s) have ended and went nowhere" in cluster.log_text("a"))
