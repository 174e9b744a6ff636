"""Clients of a cluster of processes: listed from any node, disconnected from any node."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator

import pytest

import mirrorq
from mirrorq import Client, Message, ShutDown

from .cluster import PATIENT, Cluster, until

WAIT_S = 120.0
COMMAND = [sys.executable, "-m", "mirrorq"]


@pytest.fixture
def clients(cluster: Cluster) -> Iterator[tuple[Client, Client]]:
    """Two clients of a cluster of three: one of node b, one of node c; a leads the queue."""
    cluster.serve("abc")
    order = [[cluster.endpoints[name] for name in names] for names in ("bca", "cab")]
    config = mirrorq.Config(**PATIENT)
    one, two = (mirrorq.connect(ends, timeout=WAIT_S, config=config) for ends in order)
    yield one, two
    one.close()
    two.close()


def command(cluster: Cluster, *arguments: str) -> subprocess.CompletedProcess[str]:
    given = [*COMMAND, *arguments, "--connect", cluster.endpoints["a"]]
    return subprocess.run(given, capture_output=True, text=True, timeout=WAIT_S)


def test_a_client_is_disconnected_from_another_node(
    cluster: Cluster, clients: tuple[Client, Client]
) -> None:
    """Listed with what it holds at another node's master; then its messages are the others'."""
    one, two = clients
    entry = one.entry_node
    orders = one.queue("orders")
    orders.put_many([b"1", b"2", b"3"]).result(WAIT_S)
    ended: list[mirrorq.Consumer] = []

    def keep(_: Message) -> None:
        """Acks nothing."""

    consumer = orders.consume(keep, prefetch=3, ack="manual", on_cancel=ended.append)

    def seen() -> dict[str, object] | None:
        told = json.loads(command(cluster, "client", "ls", "--json").stdout)
        found = {each["name"]: each for each in told["clients"]}.get(one.name, {})
        held = found.get("messages_unacknowledged") == 3
        return found if held and told["unheard"] == [] else None

    found = until(seen)
    assert (found["node"], found["queues"], found["consumers"]) == (entry, ["orders"], 1)
    (listed,) = two.consumers("orders")
    assert (listed.client, [listed.node], listed.prefetch) == (one.name, found["nodes"], 3)

    done = command(cluster, "client", "disconnect", one.name, "--reason", "stuck")
    assert (done.returncode, done.stdout) == (0, f"disconnected: {one.name}\n")
    until(lambda: ended == [consumer])
    told_by = {f"administrator at node {name}: stuck" for name in (entry, listed.node)}
    assert any(text in consumer.refused for text in told_by)
    until(lambda: not one._driver.thread.is_alive())
    with pytest.raises(ShutDown, match="stuck"):
        orders.put(b"4")
    mine = two.queue("orders")
    taken = [mine.get(timeout=WAIT_S) for _ in range(3)]
    assert [each.body for each in taken] == [b"1", b"2", b"3"]
    other = mine.consume(keep, ack="manual", on_cancel=ended.append)
    (listed,) = two.consumers("orders")
    assert (
        command(cluster, "client", "disconnect", listed.tag, "--reason", "enough").returncode == 0
    )
    until(lambda: not other.is_active)
    assert "administrator at node a: enough" in other.refused
    until(lambda: one.name not in [each.name for each in two.clients()])
    again = command(cluster, "client", "disconnect", one.name)
    assert again.returncode == 1
    assert again.stderr.startswith(f"mirrorq: no node serves a client '{one.name}'")


def test_a_node_that_is_dead_keeps_nobody_waiting(
    cluster: Cluster, clients: tuple[Client, Client]
) -> None:
    """Who uses the rest is told; the client of the dead one has gone on, and is there."""
    one, _ = clients
    cluster.kill(one.entry_node)
    one.wait_ready(WAIT_S)

    def all_are_there() -> bool:
        found = one._attendance()
        return len(found.clients) == 2 and not found.unheard

    until(all_are_there)
