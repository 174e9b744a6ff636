"""A node is forgotten while the cluster is in use."""

from __future__ import annotations

from mirrorq import MirrorQError
from mirrorq.testing import SimulatedCluster


def test_a_node_is_forgotten_while_others_declare() -> None:
    """The leader makes it wait until the dead node's leases have ended. After 256 later outcomes
    it was refused as too old."""
    with SimulatedCluster(nodes="abc", seed=9) as cluster:
        client = cluster.connect("web", to="a")
        client.queue("q").put(b"x").result(10)
        cluster.freeze("c", 60)
        cluster.run(2.0)
        answers: list[object] = []

        def forget() -> None:
            try:
                client.forget_node("c")
            except MirrorQError as error:
                answers.append(error)
            else:
                answers.append("forgotten")

        declared = 0
        cluster.spawn(forget, on="web")
        while not answers:
            with client.exchange(f"e{declared % 10}", "fanout"):
                declared += 1
        assert answers == ["forgotten"]
        assert declared > 300
        assert [one.name for one in client.nodes()] == ["a", "b"]
