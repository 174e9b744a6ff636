"""Publishing through exchanges: on a node, from a client, and over a failover."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from mirrorq import (
    Config,
    ConfigError,
    Full,
    MirroredQueue,
    Node,
    NotConfirmed,
    PreconditionFailed,
    QueueNotFound,
    ShutDown,
    connect,
)
from mirrorq.api.exchange import Exchange
from mirrorq.demo.ports import free_ports
from processes.cluster import until

pytestmark = pytest.mark.real

DEADLINE_S = 60


def bodies(queue: MirroredQueue) -> list[bytes]:
    return [message.body for message in queue.browse()]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with Node("a", path=tmp_path) as made:
        yield made


def test_a_message_reaches_every_queue_bound_to_it(node: Node) -> None:
    usd, all_ = node.queue("usd"), node.queue("all")
    with node.exchange("stocks", "topic") as stocks:
        stocks.bind(usd, "stock.usd.*")
        stocks.bind("all", "#")
        assert stocks.bindings() == [("usd", "stock.usd.*", ""), ("all", "#", "")]
        confirmation = stocks.publish("stock.usd.ibm", b"1", headers={"a": 1}, message_id="m")
        assert confirmation.result(DEADLINE_S) == {"usd": 1, "all": 1}
        assert stocks.publish("stock.eur.db", b"2").result(DEADLINE_S) == {"all": 2}
        message = usd.get(timeout=DEADLINE_S)
        assert (message.body, message.headers, message.key) == (b"1", {"a": 1}, "stock.usd.ibm")
        assert message.message_id == "m"
        assert bodies(all_) == [b"1", b"2"]
        stocks.unbind(all_, "#")
        assert stocks.publish("stock.eur.db", b"3").result(DEADLINE_S) == {}


def test_what_reaches_no_queue(node: Node) -> None:
    rest = node.queue("rest")
    others = node.exchange("others", "fanout")
    others.bind(rest)
    direct = node.exchange("direct", "direct", alternate="others")
    lonely = node.exchange("lonely", "direct")
    assert direct.publish("k", b"1").result(DEADLINE_S) == {"rest": 1}
    assert direct.publish("k", b"2", mandatory=True).result(DEADLINE_S) == {"rest": 2}
    assert lonely.publish("k", b"3").result(DEADLINE_S) == {}
    with pytest.raises(NotConfirmed, match="reached no queue"):
        lonely.publish("k", b"4", mandatory=True).result(DEADLINE_S)
    seen: list[object] = []
    done = threading.Event()
    lonely.publish("k", b"5", on_confirm=lambda c: (seen.append(c.result()), done.set()))
    assert done.wait(DEADLINE_S)
    assert seen == [{}]


def test_alternates_in_a_circle_end(node: Node) -> None:
    one = node.exchange("one", "direct", alternate="two")
    node.exchange("two", "direct", alternate="one")
    assert one.publish("k", b"1").result(DEADLINE_S) == {}


def test_a_deleted_queue_no_longer_counts(node: Node) -> None:
    one, two = node.queue("one"), node.queue("two")
    events = node.exchange("events", "fanout")
    events.bind(one)
    events.bind(two)
    assert events.publish("", b"1").result(DEADLINE_S) == {"one": 1, "two": 1}
    one.delete()
    assert events.publish("", b"2").result(DEADLINE_S) == {"two": 2}
    assert events.bindings() == [("two", "", "")]
    assert node.queue("one").qsize() == 0, "made anew it is not bound"
    assert events.publish("", b"3").result(DEADLINE_S) == {"two": 3}


def test_bad_input_changes_nothing(node: Node) -> None:
    node.queue("orders")
    events = node.exchange("events", "fanout")
    for name, kind in (("", "fanout"), ("x", "fan"), ("x" * 300, "fanout"), ("x", None)):
        with pytest.raises(ConfigError):
            node.exchange(name, kind)
    with pytest.raises(ConfigError, match="own alternate"):
        node.exchange("x", "fanout", alternate="x")
    with pytest.raises(QueueNotFound):
        node.exchange("x", passive=True)
    with pytest.raises(PreconditionFailed):
        node.exchange("events", "topic")
    assert node.exchange("events", passive=True).name == "events"
    with pytest.raises(QueueNotFound):
        events.bind("no such queue")
    with pytest.raises(ConfigError):
        events.bind("orders", "k" * 256)
    with pytest.raises(ConfigError):
        events.bind("orders", arguments={"a": b"x"})  # type: ignore[dict-item]
    with pytest.raises(ConfigError):
        events.publish("k" * 256, b"")
    with pytest.raises(TypeError):
        events.publish("k", "text")  # type: ignore[arg-type]
    events.bind("orders")
    with pytest.raises(PreconditionFailed):
        events.delete(if_unused=True)
    assert events.bindings() == [("orders", "", "")]
    events.delete()
    with pytest.raises(QueueNotFound):
        events.publish("k", b"")
    events.close()
    with pytest.raises(ShutDown):
        events.publish("k", b"")


def test_a_publish_that_is_not_accepted_is_in_no_queue(tmp_path: Path) -> None:
    with Node("a", path=tmp_path, config=Config(unconfirmed_count_max=1)) as node:
        one, two = node.queue("one"), node.queue("two")
        events = node.exchange("events", "fanout")
        events.bind(one)
        events.bind(two)
        accepted = fulls = 0
        for _ in range(300):
            try:
                events.publish("", b"x", block=False)
                accepted += 1
            except Full:
                fulls += 1
        assert fulls
        assert events.wait_for_confirms(DEADLINE_S)
        assert one.qsize() == two.qsize() == accepted
        waited = [events.publish("", b"y", timeout=DEADLINE_S) for _ in range(20)]
        assert all(len(c.result(DEADLINE_S)) == 2 for c in waited)


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[dict[str, Node]]:
    peers = {n: f"tcp://127.0.0.1:{p}" for n, p in zip("abc", free_ports(3), strict=True)}
    made = {name: Node(name, path=tmp_path / name, peers=peers) for name in peers}
    for node in made.values():
        node.wait_ready(DEADLINE_S)
    yield made
    for node in made.values():
        node.close()


def test_clients_see_bindings_that_others_make(nodes: dict[str, Node]) -> None:
    with connect(nodes["b"].endpoint) as client, connect(nodes["c"].endpoint) as other:
        orders = client.queue("orders")
        events = client.exchange("events", "topic")
        assert events.publish("a.b", b"0").result(DEADLINE_S) == {}
        events.bind(orders, "a.*")
        assert events.publish("a.b", b"1").result(DEADLINE_S) == {"orders": 1}
        assert events.bindings() == [("orders", "a.*", "")]
        there = other.exchange("events", passive=True)
        there.bind(orders.name, "b")
        until(lambda: len(events.bindings()) == 2)
        assert events.publish("b", b"2").result(DEADLINE_S) == {"orders": 2}
        there.delete()
        until(lambda: client._exchange_record("events") is None)
        with pytest.raises(QueueNotFound):
            events.publish("b", b"3")


def test_a_failover_in_the_middle_loses_and_doubles_nothing(nodes: dict[str, Node]) -> None:
    """Queues mastered by two nodes, one of which goes; the publisher is a client of a third."""
    queues = {"one": nodes["a"].queue("one"), "two": nodes["b"].queue("two")}
    with connect(f"{nodes['c'].endpoint},{nodes['b'].endpoint}") as client:
        events = client.exchange("events", "fanout")
        for name in queues:
            events.bind(name)
        confirmations = []
        for i in range(300):
            confirmations.append(events.publish("", b"%d" % i))
            if i == 150:
                nodes.pop("a").close()
        for confirmation in confirmations:
            assert sorted(confirmation.result(DEADLINE_S)) == ["one", "two"]
        wanted = [b"%d" % i for i in range(300)]
        for name in queues:
            assert bodies(nodes["b"].queue(name)) == wanted


def test_exchanges_survive_a_restart(tmp_path: Path) -> None:
    with Node("a", path=tmp_path) as node:
        node.queue("orders")
        node.exchange("events", "headers").bind("orders", arguments={"x-match": "any", "a": 1})
    with Node("a", path=tmp_path) as node:
        events: Exchange = node.exchange("events", passive=True, timeout=DEADLINE_S)
        assert events.publish("", b"1", headers={"a": 1}).result(DEADLINE_S) == {"orders": 1}
        assert events.publish("", b"2", headers={"b": 1}).result(DEADLINE_S) == {}
