"""A shard without a master, on virtual time."""

from __future__ import annotations

from mirrorq.protocol.shard_names import shard_of
from mirrorq.testing import SimulatedCluster

WAIT_S = 30.0


def test_one_shard_is_down() -> None:
    """What has no key goes to the others; what has its key waits, and is not lost."""
    with SimulatedCluster(3) as cluster:
        client = cluster.connect("web", to="a")
        client.set_policy("one copy", "^orders$", {"ha-mode": "exactly", "ha-params": 1})
        queue = client.queue("orders", shards=3)
        led = [row.master for row in client.queues(shards=True) if not row.shards]
        assert sorted(str(name) for name in led) == ["a", "b", "c"]
        down = led.index("c")
        key = next(str(n) for n in range(1000) if shard_of(str(n), 3) == down)
        queue.put(b"first", key=key).result(WAIT_S)
        cluster.crash("c")
        cluster.run_until(lambda: queue.status().state == "down")
        assert any(f"shard {down}" in text for text in queue.status().warnings)
        confirmations = [queue.put(b"free") for _ in range(20)]
        assert all(each.result(WAIT_S) for each in confirmations)
        assert {each.shard for each in confirmations} == {0, 1, 2} - {down}
        waiting = queue.put(b"second", key=key)
        bodies = [queue.get(timeout=WAIT_S, auto_ack=True).body for _ in range(20)]
        assert bodies == [b"free"] * 20
        cluster.run(WAIT_S)
        assert not waiting.done()
        cluster.restart("c")
        assert waiting.result(WAIT_S) == 2
        assert [queue.get(timeout=WAIT_S).body for _ in range(2)] == [b"first", b"second"]
