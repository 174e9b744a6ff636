"""What a client is told of exchanges begins with its first handle on one and ends with the last."""

from __future__ import annotations

import pytest

from mirrorq import MirrorQError
from mirrorq.client.client import Client
from mirrorq.node.gateway import calls
from mirrorq.node.node import Node
from mirrorq.testing import SimulatedCluster


def watched(node: Node) -> int:
    """How many calls of clients this node has open, and watches among them."""
    driver = node._driver
    open_calls = sum(
        len(client.calls._open) + len(client.calls._watches)
        for client in driver.gateway._clients.values()
    )
    return open_calls + len(driver.waits.on_catalog)


def kept(client: Client) -> int:
    """How much a client keeps of exchanges."""
    return len(client._driver._asked) + len(client._watches._watches)


def test_exchanges_used_one_after_the_other_leave_nothing_behind() -> None:
    """At the 255th a client could open, declare, list and delete nothing any more."""
    with SimulatedCluster(nodes="a", seed=3) as cluster:
        client = cluster.connect("web", to="a")
        node = cluster.node("a")
        client.queue("q")
        with client.exchange("rest", "fanout") as rest:
            rest.bind("q")
        for number in range(1000):
            with client.exchange(f"e{number % 300}", "direct", alternate="rest") as exchange:
                if number % 100 == 0:
                    assert exchange.publish("k", b"x").result(10) == {"q": number // 100 + 1}
        cluster.run(1)
        assert kept(client) == 0
        assert watched(node) == 0
        assert client.queue("other").status().messages == 0


def test_two_handles_on_a_name_have_one_watch_which_the_last_one_ends() -> None:
    with SimulatedCluster(nodes="a", seed=4) as cluster:
        client = cluster.connect("web", to="a")
        node = cluster.node("a")
        client.queue("q")
        first, second = (client.exchange("e", "fanout") for _ in range(2))
        first.bindings()
        second.bindings()
        cluster.run(1)
        assert len(node._driver.waits.on_catalog) == 1
        first.close()
        first.close()
        node.exchange("e", "fanout").bind("q")
        cluster.run(1)
        assert second.publish("", b"x").result(10) == {"q": 1}
        second.close()
        cluster.run(1)
        assert watched(node) == kept(client) == 0


def test_many_handles_that_are_open_leave_room_for_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """A watch is no call. The bound of watches says what would do, and ends with a close."""
    monkeypatch.setattr(calls, "CALLS_MAX", 4)
    monkeypatch.setattr(calls, "WATCHES_MAX", 10)
    with SimulatedCluster(nodes="a", seed=5) as cluster:
        client = cluster.connect("web", to="a")
        held = [client.exchange(f"e{number}", "direct") for number in range(10)]
        assert client.queue("q").status().messages == 0
        with pytest.raises(MirrorQError, match="10 exchanges at a time: close some"):
            client.exchange("more", "direct")
        held.pop().close()
        assert client.exchange("more", "direct").bindings() == []


def test_watches_go_on_at_the_next_node_and_end_there() -> None:
    """A handle that is closed while no node serves its client is closed at the next one too."""
    with SimulatedCluster(nodes="abc", seed=6) as cluster:
        client = cluster.connect("web", to="ab")
        kept_open, closed = (client.exchange(name, "fanout") for name in ("e", "f"))
        client.queue("q")
        cluster.crash("a")
        closed.close()
        cluster.run(5)
        assert client.entry_node == "b"
        assert len(cluster.node("b")._driver.waits.on_catalog) == 1
        kept_open.bind("q")
        assert kept_open.publish("", b"x").result(30) == {"q": 1}
        kept_open.close()
        cluster.run(1)
        assert watched(cluster.node("b")) == kept(client) == 0


def test_a_name_that_is_no_exchange_is_not_watched() -> None:
    with SimulatedCluster(nodes="a", seed=7) as cluster:
        client = cluster.connect("web", to="a")
        for number in range(300):
            with pytest.raises(MirrorQError, match="no exchange is named"):
                client.exchange(f"e{number}", passive=True)
        cluster.run(1)
        assert watched(cluster.node("a")) == kept(client) == 0
