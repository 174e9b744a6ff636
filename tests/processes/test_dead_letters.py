"""Dead letters over several processes: scenario 29."""

from __future__ import annotations

import pytest

from .cluster import Cluster, PeerError, until

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


def test_a_clients_chain_survives_both_masters(cluster: Cluster) -> None:
    """ack_and_put from a client and from a node, while the master of each queue is killed."""
    cluster.found("abc")
    cluster.open("done", "bc")
    assert cluster.wait_in_sync(2, on="b")["master"] == "b"
    done = dict(cluster.queues)
    cluster.open("orders", "acb")
    assert cluster.wait_in_sync(2, on="a")["master"] == "a"
    client = cluster.client()
    by_client = client.ask("queue", name="orders")
    bodies = [f"m{number}" for number in range(60)]
    for number in cluster.ask("c", "put_open", bodies=bodies):
        cluster["c"].ask("outcome", number=number)
    moved = 0
    to_kill = {20: "a", 40: "b"}
    while moved < 60:
        if (dying := to_kill.pop(moved, "")) == "b":
            cluster.start("a")
            cluster.wait_in_sync(2, on="c")
        if dying:
            cluster.kill(dying)
        holder, queue = ((client, by_client), (cluster["c"], cluster.queues["c"]))[moved % 2]
        for message in holder.ask("get_many", queue=queue, count_max=1, timeout=30):
            number, body = message["number"], message["body"]
            try:
                holder.ask("ack_and_put", message=number, name="done", body=body)
            except PeerError as error:
                # Its handle had fetched it before the kill: it comes again.
                if error.kind != "AckRefused":
                    raise
            else:
                moved += 1

    def arrived() -> list[str]:
        return sorted(body for _, body in cluster["c"].ask("browse", queue=done["c"]))

    until(lambda: len(arrived()) >= 60, arrived)
    assert arrived() == sorted(bodies)
    assert cluster.ask("c", "browse") == []
