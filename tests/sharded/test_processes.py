"""A sharded queue on three processes, one of which is killed: order per key, nothing lost."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from mirrorq import Client, Empty, MirroredQueue, MirrorQError, NoQuorum, QueueDown, connect
from mirrorq.protocol.shard_names import shard_of
from processes.cluster import Cluster, until

pytestmark = [pytest.mark.real, pytest.mark.soak]

WAIT_S = 60.0
SHARDS = 6
KEYS = tuple(f"table-{number}" for number in range(20))
PUTS = 500
KILL_AT = 150
"""Messages that have come when the node is killed."""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path)
    try:
        made.found("abc")
        yield made
    finally:
        made.end()


@pytest.fixture
def client(cluster: Cluster) -> Iterator[Client]:
    with connect(list(cluster.endpoints.values()), timeout=WAIT_S) as made:
        yield made


def masters(client: Client) -> list[str | None]:
    """Of the shards, by their number."""
    return [row.master for row in client.queues(shards=True) if not row.shards]


def is_in_sync(client: Client) -> bool:
    rows = [row for row in client.queues(shards=True) if not row.shards]
    return len(rows) == SHARDS and all(
        row.state == "running" and len(row.synchronised_mirrors) == len(row.mirrors) == 2
        for row in rows
    )


def is_level(client: Client) -> bool:
    with suppress(MirrorQError):
        client.rebalance()
    return Counter(masters(client)) == {"a": 2, "b": 2, "c": 2}


def running_shards(queue: MirroredQueue) -> set[int]:
    """Those whose masters serve, as far as the handle has heard."""
    parts = queue._handle._parts
    return {part.number for part in parts if part.session is not None and part.session.available}


def is_down(queue: MirroredQueue) -> bool:
    """Whether a get says so, and not that its client has no contact at the moment."""
    with pytest.raises((QueueDown, NoQuorum)) as found:
        queue.get(timeout=0.2)
    return found.type is QueueDown


def test_a_node_is_killed(cluster: Cluster, client: Client) -> None:
    """Masters are on all nodes; each key's messages come in order, every one of them; the dead
    node's shards go to both others, and are level again after it has come back."""
    with client.queue("orders", shards=SHARDS) as queue, client.queue("orders") as taking:
        until(lambda: is_in_sync(client))
        assert set(masters(client)) == {"a", "b", "c"}
        killing = threading.Event()
        came: list[tuple[str, int, int | None]] = []
        all_put = threading.Event()
        failures: list[Exception] = []

        def put_all() -> None:
            try:
                for number in range(PUTS):
                    key = KEYS[number % len(KEYS)] if number % 7 else None
                    queue.put(b"%d" % number, key=key)
                    if number == PUTS // 2:
                        # Half of it is put when the node is dead.
                        killing.wait(WAIT_S)
                queue.wait_for_confirms(WAIT_S)
            except Exception as error:
                failures.append(error)
            all_put.set()

        def take_all() -> None:
            seen: set[int] = set()
            try:
                while len(seen) < PUTS:
                    try:
                        message = taking.get(timeout=1)
                    except (Empty, NoQuorum, QueueDown):
                        continue
                    number = int(message.body)
                    if number not in seen:
                        seen.add(number)
                        came.append((str(message.key), number, message.shard))
                    message.ack()
            except MirrorQError as error:
                failures.append(error)

        threads = [threading.Thread(target=each, daemon=True) for each in (put_all, take_all)]
        for thread in threads:
            thread.start()
        until(lambda: len(came) >= KILL_AT or failures)
        cluster.kill("a")
        killing.set()
        assert all_put.wait(WAIT_S)
        threads[1].join(WAIT_S)
        assert not failures
        assert sorted(number for _, number, _ in came) == list(range(PUTS))
        for key in KEYS:
            own = [(number, shard) for each, number, shard in came if each == key]
            assert [number for number, _ in own] == sorted(number for number, _ in own)
            assert {shard for _, shard in own} == {shard_of(key, SHARDS)}
        # The node that is asked may hear of it later than those that have put and taken.
        until(lambda: set(masters(client)) == {"b", "c"})
        cluster.start("a")
        until(lambda: is_in_sync(client))
        until(lambda: is_level(client))
        assert queue.put(b"on", key="k").result(WAIT_S)


def test_one_shard_is_down(cluster: Cluster, client: Client) -> None:
    """What has no key goes to the others; what has its key waits, and is not lost."""
    client.set_policy("one copy", "^orders$", {"ha-mode": "exactly", "ha-params": 1})
    with client.queue("orders", shards=3) as queue:
        led = masters(client)
        assert sorted(str(name) for name in led) == ["a", "b", "c"]
        down = led.index("c")
        key = next(str(n) for n in range(1000) if shard_of(str(n), 3) == down)
        queue.put(b"first", key=key).result(WAIT_S)
        cluster.kill("c")
        until(lambda: queue.status().state == "down")
        until(lambda: any(f"shard {down}" in text for text in queue.status().warnings))
        # The handle may hear of it later than the node that is asked.
        until(lambda: running_shards(queue) == {0, 1, 2} - {down})
        confirmations = [queue.put(b"free") for _ in range(20)]
        assert all(each.result(WAIT_S) for each in confirmations)
        assert {each.shard for each in confirmations} == {0, 1, 2} - {down}
        waiting = queue.put(b"second", key=key)
        bodies = [queue.get(timeout=WAIT_S, auto_ack=True).body for _ in range(20)]
        assert bodies == [b"free"] * 20
        until(lambda: is_down(queue))
        assert not waiting.done()
        cluster.start("c")
        assert waiting.result(WAIT_S) == 2
        assert [queue.get(timeout=WAIT_S).body for _ in range(2)] == [b"first", b"second"]
