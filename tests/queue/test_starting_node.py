"""What is asked of a node that does not know its cluster yet."""

from __future__ import annotations

from mirrorq.testing import SimulatedCluster


def test_a_client_is_not_told_that_there_are_no_queues() -> None:
    """After a full start it waits until the node knows them."""
    with SimulatedCluster(3) as cluster:
        cluster.queue("orders", on="a").put(b"1").result(10)
        client = cluster.connect("outside", to=["a"])
        client.set_policy("all", ".*", {"ha-mode": "all"})
        for name in "abc":
            cluster.crash(name)
        for name in "abc":
            cluster.start(name)
        assert [one.name for one in client.queues()] == ["orders"]
        assert [one.name for one in client.policies()] == ["all"]
