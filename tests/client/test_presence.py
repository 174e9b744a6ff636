"""Who uses a node, and disconnecting a client of it."""

from __future__ import annotations

import contextlib
import threading

import pytest
from tests.client.conftest import Connecting
from tests.kit import DEADLINE_S, is_empty, until

from mirrorq import Client, Consumer
from mirrorq.api.message import Message
from mirrorq.client.driver import ClientDriver
from mirrorq.errors import (
    ConfigError,
    ConfirmUnknown,
    NotConfirmed,
    PreconditionFailed,
    ProtocolError,
    ShutDown,
)
from mirrorq.monitoring.presence import (
    Attendance,
    HeldConsumer,
    Roll,
    Served,
    join,
    parts_of_tag,
    tag_of,
)
from mirrorq.node.bans import NAMES_MAX, Bans, outcome_of
from mirrorq.node.node import Node
from mirrorq.protocol.effects import Notice


def ignore(_: Message) -> None:
    """A callback that keeps what it is given."""


def listed(node: Node, client: Client) -> bool:
    return client.name in [each.name for each in node.clients()]


def test_clients_and_consumers_are_listed(node: Node, connecting: Connecting) -> None:
    """With what they hold, from the node and from any client alike."""
    one, two = connecting(node.listening), connecting(node.listening)
    orders = one.queue("orders")
    bills = two.queue("bills")
    orders.put_many([b"1", b"2", b"3", b"4"]).result(DEADLINE_S)
    bills.put(b"bill").result(DEADLINE_S)
    consumer = orders.consume(ignore, ack="manual", prefetch=3)
    own = node.queue("bills").consume(ignore, ack="manual", prefetch=7)
    until(lambda: sum(each.messages_unacknowledged for each in node.consumers()) == 4)

    first, second = sorted(node.clients(), key=lambda each: each.name != one.name)
    assert (first.name, first.node, first.queues) == (one.name, "a", ("orders",))
    assert (first.handles, first.consumers, first.messages_unacknowledged) == (1, 1, 3)
    assert (first.key, first.role) == ("", "")
    host, port = first.address.rsplit(":", 1)
    assert host == "127.0.0.1"
    assert int(port) > 0
    assert first.since > 1_600_000_000
    assert (second.name, second.consumers, second.messages_unacknowledged) == (two.name, 0, 0)

    (of_orders,) = node.consumers("orders")
    assert (of_orders.client, of_orders.node, of_orders.prefetch) == (one.name, "a", 3)
    assert (of_orders.messages_unacknowledged, of_orders.active) == (3, True)
    (of_bills,) = node.consumers("bills")
    assert (of_bills.client, of_bills.node, of_bills.prefetch) == ("", "a", 7)
    assert of_bills.tag != of_orders.tag
    assert two._attendance() == node._attendance()
    assert two.consumers("nobody's") == []

    consumer.cancel()
    own.cancel()
    until(lambda: node.consumers() == [])


def test_what_get_holds_counts_for_its_client(node: Node, connecting: Connecting) -> None:
    """A handle that takes with get() is no consumer, and holds messages all the same."""
    client = connecting(node.listening)
    orders = client.queue("orders")
    orders.put(b"one").result(DEADLINE_S)
    message = orders.get(timeout=DEADLINE_S)
    (seen,) = node.clients()
    assert (seen.consumers, seen.messages_unacknowledged) == (0, 1)
    assert node.consumers() == []
    message.ack().result(DEADLINE_S)
    until(lambda: node.clients()[0].messages_unacknowledged == 0)


def test_a_disconnected_client_ends_and_its_messages_come_back(
    node: Node, connecting: Connecting
) -> None:
    """Each at its place; its consumers, calls and listeners hear why, and it stays away."""
    bad, good = connecting(node.listening), connecting(node.listening)
    heard: list[Notice] = []
    cancelled: list[Consumer] = []
    told = threading.Event()

    def on_cancel(consumer: Consumer) -> None:
        cancelled.append(consumer)
        told.set()

    bad.add_listener(heard.append)
    orders = bad.queue("orders")
    mine = bad.queue("mine", exclusive=True)
    orders.put_many([b"1", b"2", b"3"]).result(DEADLINE_S)
    consumer = orders.consume(ignore, ack="manual", prefetch=2, on_cancel=on_cancel)
    until(lambda: node.clients() and node.consumers("orders")[0].messages_unacknowledged == 2)

    good.disconnect(bad.name, "it hangs\non batch 7")

    why = "disconnected by an administrator at node a: it hangs on batch 7. connect() again"
    assert told.wait(DEADLINE_S)
    assert cancelled == [consumer]
    assert not consumer.is_active
    assert why in consumer.refused
    until(lambda: not bad._driver.thread.is_alive())
    for call in (lambda: orders.put(b"x"), lambda: orders.get(timeout=1), mine.qsize, bad.nodes):
        with pytest.raises(ShutDown, match="it hangs on batch 7"):
            call()
    until(lambda: [each.text for each in heard if why in each.text])
    until(lambda: not listed(node, bad))
    left = good.queue("orders")
    taken = [left.get(timeout=DEADLINE_S) for _ in range(3)]
    assert [(each.body, each.redelivered) for each in taken] == [
        (b"1", True),
        (b"2", True),
        (b"3", False),
    ]
    # What was exclusive to it has gone with it.
    until(lambda: "mine" not in [each.name for each in node.queues()])


def test_one_consumer_is_disconnected(node: Node, connecting: Connecting) -> None:
    """By its tag: what it holds is another's, and the rest of its program goes on."""
    client = connecting(node.listening)
    orders = client.queue("orders")
    orders.put_many([b"1", b"2"]).result(DEADLINE_S)
    ended: list[Consumer] = []
    stuck = orders.consume(ignore, ack="manual", prefetch=2, on_cancel=ended.append)
    until(lambda: [each.messages_unacknowledged for each in node.consumers("orders")] == [2])
    (seen,) = client.consumers("orders")

    client.disconnect(seen.tag, "it hangs")

    until(lambda: ended == [stuck])
    assert not stuck.is_active
    assert stuck.refused.startswith("disconnected by an administrator at node a: it hangs. ")
    until(lambda: node.consumers("orders") == [])
    assert listed(node, client)
    taken = [orders.get(timeout=DEADLINE_S) for _ in range(2)]
    assert [(each.body, each.redelivered) for each in taken] == [(b"1", True), (b"2", True)]
    orders.ack_many(taken).result(DEADLINE_S)
    with pytest.raises(PreconditionFailed, match=r"no queue has a consumer .a.*lists those"):
        node.disconnect(seen.tag)


def test_a_consumer_of_a_nodes_own_process_is_disconnected(node: Node) -> None:
    """Which has no client that could be; others of the same handle stay."""
    orders = node.queue("orders")
    first, second = (orders.consume(Message.ack) for _ in range(2))
    tags = {each.tag.rpartition(".")[2]: each.tag for each in node.consumers("orders")}
    node.disconnect(tags[str(first._number)])
    until(lambda: not first.is_active)
    assert second.is_active
    orders.put(b"1").result(DEADLINE_S)
    until(lambda: is_empty(orders))
    second.cancel()


@pytest.mark.parametrize("name", ["client-1-ab", "a.b", "a.1.2.x", "a.1.2.-3", "", "a.1.2.²"])
def test_what_is_no_tag(name: str) -> None:
    assert parts_of_tag(name) is None


def test_tags_name_their_seats() -> None:
    """Names of nodes may have dots."""
    seat = ("rack.1.node", 4711, 3), 2
    assert parts_of_tag(tag_of(*seat)) == seat


def test_open_puts_end_as_the_truth_is(node: Node, connecting: Connecting) -> None:
    """What waits for a second copy is not confirmed: it ends as not known, and once."""
    client = connecting(node.listening)
    orders = client.queue("orders")
    orders.put(b"1").result(DEADLINE_S)
    node.set_policy("two", "^orders$", {"min-in-sync": 2})
    waiting = [orders.put(b"%d" % number, timeout=DEADLINE_S) for number in (2, 3)]
    node.disconnect(client.name)
    for put in waiting:
        assert isinstance(put.exception(DEADLINE_S), ConfirmUnknown | NotConfirmed)
    with pytest.raises(ShutDown):
        orders.put(b"4", timeout=DEADLINE_S)


def test_one_that_missed_the_reason_is_told_when_it_comes_again(
    node: Node, connecting: Connecting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name is remembered: a client that hung or lost its connection is kept out, too."""
    client = connecting(node.listening)
    orders = client.queue("orders")
    monkeypatch.setattr(
        ClientDriver, "_on_expelled", lambda driver, why: driver._leave(driver._home, why)
    )
    node.disconnect(client.name, "first")
    until(lambda: "first" in client._driver.trouble)
    monkeypatch.undo()
    until(lambda: not client._driver.thread.is_alive())
    with pytest.raises(ShutDown, match="first"):
        orders.put(b"x")
    assert not listed(node, client)
    # Its program may come again, under another name.
    again = connecting(node.listening)
    assert listed(node, again)


def test_who_is_not_there_cannot_be_disconnected(node: Node, connecting: Connecting) -> None:
    client = connecting(node.listening)
    for host in (node, client):
        with pytest.raises(PreconditionFailed, match="no node serves a client 'nobody'"):
            host.disconnect("nobody")
        for wrong in (("",), (7,), ("x", 5), ("x", "y" * 501)):
            with pytest.raises(ConfigError):
                host.disconnect(*wrong)  # type: ignore[arg-type]
    assert listed(node, client)


def test_a_client_may_disconnect_itself(node: Node, connecting: Connecting) -> None:
    client = connecting(node.listening)
    with contextlib.suppress(ShutDown):
        client.disconnect(client.name, "enough")
    until(lambda: not client._driver.thread.is_alive())
    with pytest.raises(ShutDown, match="enough"):
        client.nodes()
    assert node.clients() == []


def test_rolls_are_joined_by_session() -> None:
    """A consumer at one node belongs to a client of another; nodes that are silent are named."""
    a = Roll("a", 3, (Served("web", "10.0.0.9:5", 7.5, "web", "client", (1, 2), ("q#shard0",)),))
    seats = (
        HeldConsumer("q#shard0", ("a", 3, 1), 1, 5, 10),
        HeldConsumer("q#shard1", ("a", 3, 2), 0, 2),
        HeldConsumer("r", ("a", 2, 1), 1, 9, 10, exclusive=True),
    )
    b = Roll("b", 1, (), seats, left_off=4)
    found = join([Roll.from_bytes(roll.to_bytes()) for roll in (a, b)], ["d", "c"])
    assert isinstance(found, Attendance)
    (web,) = found.clients
    assert (web.consumers, web.messages_unacknowledged, web.queues) == (1, 7, ("q",))
    assert [(each.queue, each.client, each.tag) for each in found.consumers] == [
        ("q#shard0", "web", "a.3.1.1"),
        ("r", "", "a.2.1.1"),
    ]
    assert [each.queue for each in found.of_queue("q")] == ["q#shard0"]
    assert (found.unheard, found.left_off) == (("c", "d"), 4)
    with pytest.raises(ProtocolError, match=r"a list of clients of .* cannot be read"):
        Roll.from_bytes(b"{")


def test_expulsions_are_bounded() -> None:
    expelled = Bans()
    for number in range(NAMES_MAX + 1):
        expelled.ban(f"c{number}", "why")
    assert expelled.why("c0") == ""
    assert expelled.why(f"c{NAMES_MAX}") == "why"


def test_silent_nodes_may_have_it() -> None:
    assert outcome_of("c", 1, ["b"]) == ("", "")
    assert outcome_of("c", 0, ["b"])[0] == "NoQuorum"
