"""A client stays with the cluster that it began with: elsewhere a queue's id is another one's."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest
from test_entry import RawClient
from tests.client.conftest import Connecting
from tests.kit import peers_of, until

from mirrorq.cli.booting import go_on_alone
from mirrorq.client.client import Client
from mirrorq.config import Config
from mirrorq.errors import MirrorQError
from mirrorq.node.node import Node
from mirrorq.protocol.clients import ClientHello, ClientPing, ClientRefused, ClientWelcome

OTHER = 4711
"""The lineage of no cluster here."""


def trouble(client: Client) -> str:
    return client._driver.trouble


def alone(path: Path, endpoint: str) -> Node:
    node = Node("a", path=path, listen=endpoint)
    node.wait_ready(30)
    return node


def test_a_cluster_at_the_address_of_another_gets_nothing_of_its_clients(
    tmp_path: Path, endpoint: str, connecting: Connecting
) -> None:
    """Stores that were wiped, or a stranger at the same port: what a client puts waits until its
    own cluster is back, and its consumer takes nothing of the other's."""
    with alone(tmp_path / "own", endpoint):
        client = connecting(endpoint)
        orders = client.queue("orders")
        assert orders.put(b"one").result(30) == 1
    with alone(tmp_path / "other", endpoint) as other:
        mails = other.queue("mails")
        mails.put(b"not for you").result(30)
        taken: list[bytes] = []
        orders.consume(lambda message: taken.append(message.body), ack="manual")
        late = orders.put(b"two")
        until(lambda: "another cluster" in trouble(client))
        with pytest.raises(MirrorQError, match="to another cluster than the one"):
            client.queue("mails", timeout=0.5)
        assert not late.done()
        assert mails.status().messages_ready == 1
        # Who connects anew means this one.
        assert connecting(endpoint).queue("mails").get(timeout=30).body == b"not for you"
        assert taken == []
    with alone(tmp_path / "own", endpoint):
        assert late.result(30) == 2
        until(lambda: taken == [b"one", b"two"])


def test_clients_go_on_where_a_survivor_was_forced_to(
    tmp_path: Path, endpoint: str, connecting: Connecting
) -> None:
    """It is another cluster for nodes, and the same for clients: they need not be restarted."""
    with alone(tmp_path / "a", endpoint):
        orders = connecting(endpoint).queue("orders")
        orders.put(b"one").result(30)
    go_on_alone(tmp_path / "a")
    with alone(tmp_path / "a", endpoint):
        orders.put(b"two").result(30)
        assert [orders.get(timeout=30).body for _ in range(2)] == [b"one", b"two"]


def test_a_node_that_learns_its_cluster_later_refuses_who_is_of_another(
    tmp_path: Path,
) -> None:
    """Until then it serves him, and has no queue for him."""
    peers = peers_of("ab")
    # Nobody is taken for gone who gives no sign of life meanwhile.
    config = Config(session_expiry_ms=60_000)
    with ExitStack() as stack:
        node = Node("a", path=tmp_path / "a", peers=peers, listen=peers["a"], config=config)
        stack.enter_context(node)
        raw, fresh = RawClient(node.listening), RawClient(node.listening)
        for one in (raw, fresh):
            stack.callback(one.socket.close)
        raw.say(ClientHello(1, "raw", lineage=OTHER))
        assert raw.hear(ClientWelcome).lineage == 0
        assert raw.ping().lineage == 0
        stack.enter_context(Node("b", path=tmp_path / "b", peers=peers, listen=peers["b"]))
        node.wait_ready(30)
        raw.say(ClientPing())
        assert "another cluster" in raw.hear(ClientRefused).why
        fresh.say(ClientHello(1, "fresh"))
        own = fresh.hear(ClientWelcome).lineage
        assert own == fresh.ping().lineage != 0
