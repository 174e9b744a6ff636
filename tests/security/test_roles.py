"""What a client may do by its key, on a node."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.kit import DEADLINE_S, peers_of, until
from tests.security.conftest import Connecting
from tests.security.keys import KeyRing

from mirrorq.api.queue import MirroredQueue
from mirrorq.client.client import Client, connect
from mirrorq.errors import (
    AuthenticationError,
    ConfirmUnknown,
    MirrorQError,
    PreconditionFailed,
    QueueNotFound,
)
from mirrorq.node.node import Node

pytestmark = pytest.mark.real

SHORT_S = 0.2

EVERYTHING = {"write": ["*"], "read": ["*"], "configure": ["*"]}


def refused(call: Callable[[], object]) -> str:
    """What an AuthenticationError says of this call."""
    with pytest.raises(AuthenticationError) as caught:
        call()
    return str(caught.value)


@pytest.fixture
def orders(node: Node) -> MirroredQueue:
    """A queue with three messages."""
    queue = node.queue("orders")
    queue.put_many([b"1", b"2", b"3"]).result(DEADLINE_S)
    return queue


@pytest.fixture
def client(node: Node, ring: KeyRing, connecting: Connecting) -> Callable[..., Client]:
    """Clients by name, each with a key of its own."""

    def make(name: str, **patterns: list[str]) -> Client:
        security = ring.client(name, **patterns)
        node._driver.call(lambda: _look_now(node))
        until(lambda: node._authority is not None and node._authority.key(security.public_key))
        return connecting(node.endpoint, security)

    return make


def _look_now(node: Node) -> None:
    assert node._authority is not None
    node._authority._looked_ms = 0


Clients = Callable[..., Client]


def test_a_writer_writes_and_does_nothing_else(orders: MirroredQueue, client: Clients) -> None:
    queue = client("writer", write=["orders"]).queue("orders")
    assert queue.put(b"4").result(DEADLINE_S) == 4
    assert queue.put_many([b"5"]).result(DEADLINE_S) == range(5, 6)
    for call in (
        lambda: queue.get(timeout=DEADLINE_S),
        lambda: queue.get_many(1, timeout=DEADLINE_S),
        lambda: queue.consume(print),
        lambda: queue.browse(),
        lambda: queue.purge(),
        lambda: next(iter(queue)),
    ):
        assert "key 'writer' may not read queue 'orders': it has none" in refused(call)
    assert "may not configure" in refused(queue.delete)
    assert queue.qsize() == 5
    assert queue.status().messages == 5


def test_a_reader_reads_and_does_nothing_else(orders: MirroredQueue, client: Clients) -> None:
    queue = client("reader", read=["ord*"]).queue("orders", passive=True)
    assert [message.body for message in queue.browse()] == [b"1", b"2", b"3"]
    queue.get(timeout=DEADLINE_S).ack().result(DEADLINE_S)
    queue.get(timeout=DEADLINE_S).nack(requeue=False).result(DEADLINE_S)
    assert queue.purge() == 1
    for call in (lambda: queue.put(b"x"), lambda: queue.put_many([b"x"])):
        assert "key 'reader' may not write queue 'orders'" in refused(call)
    assert "may not configure" in refused(queue.delete)
    assert orders.status().messages == 0


def test_only_who_may_configure_makes_and_deletes_queues(
    orders: MirroredQueue, client: Clients, node: Node
) -> None:
    """Others are given those that exist, as they are."""
    user = client("user", write=["*"], read=["*"])
    assert "may not configure queue 'new'" in refused(lambda: user.queue("new"))
    with pytest.raises(QueueNotFound):
        user.queue("new", passive=True)
    with pytest.raises(PreconditionFailed, match="other properties"):
        user.queue("orders", durable=False)
    assert user.queue("orders").qsize() == 3
    maker = client("maker", configure=["new", "orders"])
    made = maker.queue("new")
    assert "may not write" in refused(lambda: made.put(b"x"))
    made.delete()
    maker.queue("orders").delete()
    until(lambda: not node.queues())


def test_what_a_client_has_no_right_to_it_learns_nothing_of(
    orders: MirroredQueue, client: Clients
) -> None:
    """Neither that it exists nor what is in it."""
    nobody = client("nobody", read=["mine"])
    there = refused(lambda: nobody.queue("orders", passive=True))
    not_there = refused(lambda: nobody.queue("nowhere", passive=True))
    assert there.replace("orders", "nowhere") == not_there
    assert nobody.queues() == []
    assert client("reader", read=["orders"]).queues()[0].name == "orders"


def test_administration_needs_an_admin(
    orders: MirroredQueue, client: Clients, ring: KeyRing, node: Node
) -> None:
    """All of it is refused to a client with every right, and nothing has changed."""
    user = client("user", **EVERYTHING)
    calls: list[Callable[[], object]] = [
        lambda: user.set_policy("p", ".*", {"max-length": 1}),
        lambda: user.clear_policy("p"),
        lambda: user.policies(),
        lambda: user.nodes(),
        lambda: user.sync_queue("orders"),
        lambda: user.cancel_sync("orders"),
        lambda: user.transfer_master("orders", "a"),
        lambda: user.rebalance(),
        lambda: user.forget_node("a"),
        lambda: user.clients(),
        lambda: user.consumers("orders"),
        lambda: user.disconnect(user.name),
    ]
    for call in calls:
        assert "role admin" in refused(call)
    assert node.policies() == []
    assert orders.status().messages == 3
    with connect(node.endpoint, security=ring.of("admin")) as admin:
        admin.set_policy("p", ".*", {"max-length": 9})
        assert [policy.name for policy in admin.policies()] == ["p"]
        seen = {each.key: (each.name, each.role) for each in admin.clients()}
        assert seen == {"user": (user.name, "client"), "admin": (admin.name, "admin")}
        admin.disconnect(user.name, "enough")
        assert [each.key for each in node.clients()] == ["admin"]
    with connect(node.endpoint, security=ring.of("b")) as peer:
        assert [each.name for each in peer.nodes()] == ["a"]


def test_what_is_put_elsewhere_needs_that_queues_right(
    orders: MirroredQueue, client: Clients, node: Node
) -> None:
    """ack_and_put and transactions: read here, write there; refused, nothing has happened."""
    done = node.queue("done")
    worker = client("worker", read=["orders"], write=["done"])
    queue = worker.queue("orders")
    message = queue.get(timeout=DEADLINE_S)
    message.ack_and_put("done", b"did 1").result(DEADLINE_S)
    assert done.get(timeout=DEADLINE_S).body == b"did 1"
    message = queue.get(timeout=DEADLINE_S)
    assert "write queue 'orders'" in refused(lambda: message.ack_and_put("orders", b"again"))
    with queue.transaction() as acked:
        acked.ack(message)
    acked.result(DEADLINE_S)
    with pytest.raises(AuthenticationError, match="write"), queue.transaction() as t:
        t.put(b"x")
    assert orders.status().messages == 1


def test_an_exchange_is_written_by_its_name(client: Clients, node: Node) -> None:
    """And gives the right to what is bound to it; binding needs the right to write that."""
    for name in ("one", "two", "secret"):
        node.queue(name)
    owner = client("owner", configure=["events"], write=["one", "two"])
    exchange = owner.exchange("events", "fanout")
    exchange.bind("one")
    exchange.bind("two")
    assert "may not write queue 'secret'" in refused(lambda: exchange.bind("secret"))
    publisher = client("publisher", write=["events"])
    events = publisher.exchange("events", passive=True)
    assert set(events.publish("", b"x").result(DEADLINE_S)) == {"one", "two"}
    assert "may not configure" in refused(lambda: events.bind("one"))
    assert "may not configure" in refused(lambda: publisher.exchange("mine", "fanout"))
    stranger = client("stranger", write=["two"])
    assert "exchange 'events'" in refused(lambda: stranger.exchange("events", passive=True))


def test_the_node_decides_though_the_client_does_not(
    orders: MirroredQueue, client: Clients
) -> None:
    """A client that does not look at its rights: nothing has happened."""
    writing = client("reader", read=["orders"]).queue("orders")
    writing._handle.refusals = {}
    with pytest.raises((ConfirmUnknown, AuthenticationError), match="may not write"):
        writing.put(b"x").result(DEADLINE_S)
    assert "may not write" in refused(lambda: writing.put(b"x"))
    reading = client("writer", write=["orders"]).queue("orders")
    reading._handle.refusals = {}
    assert "may not read" in refused(lambda: reading.get(timeout=DEADLINE_S))
    purging = client("writer2", write=["orders"]).queue("orders")
    purging._handle.refusals = {}
    assert "may not read" in refused(purging.purge)
    assert [message.body for message in orders.get_many(9, timeout=DEADLINE_S)] == [
        b"1",
        b"2",
        b"3",
    ]


def test_a_move_to_a_queue_that_may_not_be_written_is_refused(
    orders: MirroredQueue, client: Clients, node: Node
) -> None:
    """Told by a client that does not look: the message is still there."""
    target = node.queue("target")
    queue = client("reader", read=["orders"]).queue("orders")
    message = queue.get(timeout=DEADLINE_S)
    queue._handle.settle("move", (message,), target=target._handle.queue_id)
    until(lambda: queue._handle.is_closed)
    assert "may not write queue 'target'" in refused(lambda: queue.get(timeout=DEADLINE_S))
    until(lambda: orders.status().messages_ready == 3)
    assert target.status().messages == 0


def replace_listed(ring: KeyRing, old: str, new: str) -> None:
    """As an editor does it."""
    listed = ring.directory / "keys.toml"
    text = listed.read_text()
    assert text.count(old) == 1
    made = ring.directory / "edited"
    made.write_text(text.replace(old, new))
    made.chmod(0o644)
    os.replace(made, listed)


def test_a_right_that_is_taken_away_ends_what_rests_on_it(
    orders: MirroredQueue, client: Clients, ring: KeyRing
) -> None:
    """What was held goes back to others; other queues of the same client go on."""
    worker = client("worker", read=["orders", "worker.*"], configure=["worker.own"])
    own = worker.queue("worker.own")
    queue = worker.queue("orders")
    assert queue.get(timeout=DEADLINE_S).body == b"1"
    replace_listed(ring, 'read = ["orders", "worker.*"]', 'read = ["worker.*"]')
    until(lambda: queue._handle.is_closed and orders.status().messages_ready == 3)
    assert "may not read queue 'orders'" in refused(lambda: queue.get(timeout=DEADLINE_S))
    again = orders.get(timeout=DEADLINE_S)
    assert (again.body, again.redelivered) == (b"1", True)
    assert own.qsize() == 0
    assert "queue 'orders'" in refused(lambda: worker.queue("orders"))


def test_a_right_that_is_taken_away_leaves_what_does_not_need_it(
    orders: MirroredQueue, client: Clients, ring: KeyRing
) -> None:
    """A handle that only takes goes on, with what it holds, when its key may not put any more."""
    reader = client("reader", read=["orders"], write=["orders"], configure=["orders"])
    taking, own = reader.queue("orders"), reader.queue("orders")
    message = taking.get(timeout=DEADLINE_S)
    own.put(b"4").result(DEADLINE_S)
    listed = (ring.directory / "keys.toml").read_text()
    patterns = listed[listed.index('["reader"]') :]
    less = patterns.replace('write = ["orders"]', "write = []")
    replace_listed(ring, patterns, less.replace('configure = ["orders"]', "configure = []"))
    until(lambda: own._handle.refusals)
    assert "may not write queue 'orders'" in refused(lambda: own.put(b"5"))
    message.ack().result(DEADLINE_S)
    assert taking.get(timeout=DEADLINE_S).body == b"2"


def test_a_key_that_is_taken_off_the_list_is_out(
    orders: MirroredQueue, client: Clients, ring: KeyRing
) -> None:
    """On a connection that stands; its next calls fail, what it held goes back."""
    worker = client("worker", read=["orders"])
    queue = worker.queue("orders")
    assert queue.get(timeout=DEADLINE_S).body == b"1"
    until(lambda: orders.status().messages_ready < 3)
    listed = (ring.directory / "keys.toml").read_text()
    replace_listed(ring, listed[listed.index('["worker"]') :], "")
    until(lambda: orders.status().messages_ready == 3)
    assert orders.get(timeout=DEADLINE_S).body == b"1"
    with pytest.raises(MirrorQError):
        worker.queue("orders", timeout=SHORT_S)


def test_rights_hold_at_the_next_entry_node_too(tmp_path: Path, ring: KeyRing) -> None:
    """After a failover the same client may do the same, and no more."""
    ring.client("reader", read=["orders"])
    peers = peers_of("abc")
    nodes = {
        name: Node(name, path=tmp_path / name, peers=peers, security=ring.of(name))
        for name in peers
    }
    try:
        queue = nodes["b"].queue("orders")
        queue.put_many([b"1", b"2"]).result(DEADLINE_S)
        with connect(list(peers.values()), security=ring.of("reader")) as client:
            assert client.entry_node == "a"
            handle = client.queue("orders", passive=True)
            assert handle.get(timeout=DEADLINE_S).body == b"1"
            nodes["a"].close()
            until(lambda: client.entry_node in ("b", "c"))
            assert handle.get(timeout=DEADLINE_S).body in (b"1", b"2")
            assert "may not write" in refused(lambda: handle.put(b"x"))
            handle._handle.refusals = {}
            with pytest.raises((ConfirmUnknown, AuthenticationError), match="may not write"):
                handle.put(b"x").result(DEADLINE_S)
    finally:
        for node in nodes.values():
            node.close()
