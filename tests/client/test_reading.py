"""Reading without taking: extents, live ranges and batches, from nodes and from any copy."""

from __future__ import annotations

import struct
import time

import pytest
from running import NodeProcesses, in_sync
from tests.kit import until

from conftest import Connecting
from mirrorq.api.queue import MirroredQueue
from mirrorq.client.client import Client
from mirrorq.errors import QueueDown, ShutDown
from mirrorq.monitoring.status import QueueStatus
from mirrorq.node.node import Node


@pytest.fixture(params=["node", "client"])
def orders(request: pytest.FixtureRequest, node: Node, connecting: Connecting) -> MirroredQueue:
    """A handle on a node, and one of a client."""
    host: Node | Client = node if request.param == "node" else connecting(node.listening)
    return host.queue("orders")


def sequences(queue: MirroredQueue, first: int, last: int) -> list[int]:
    """What read() shows of a range."""
    found: list[int] = []
    for batch in queue.read(first, last):
        found += range(batch.first, batch.last + 1)
    return found


def test_batches_hold_what_was_put_and_nothing_is_taken(orders: MirroredQueue) -> None:
    """The bodies come in order, with their sequences, and all of them can still be got."""
    bodies = [b"%d" % number for number in range(1000)]
    orders.put_many(bodies[:600]).result(60)
    orders.put_many(bodies[600:]).result(60)
    extent = orders.extent()
    assert (extent.next_sequence, extent.messages, extent.ready) == (1001, 1000, 1000)
    batches = list(orders.read(1, extent.next_sequence - 1, extent=extent))
    assert [body for batch in batches for body in batch.bodies()] == bodies
    assert sum(batch.count for batch in batches) == 1000
    assert {batch.delivery_count for batch in batches} == {1}
    assert abs(batches[0].timestamp_us / 1e6 - time.time()) < 300
    assert len(orders.get_many(1, 60)) == 1


def test_the_columns_are_an_arrow_binary_array(orders: MirroredQueue) -> None:
    """Offsets are int32 from 0, one more than messages; bodies stand end to end."""
    orders.put_many([b"a", b"", b"ccc"]).result(60)
    (batch,) = orders.read(1, 3)
    (offsets, values), properties = batch.columns
    assert struct.unpack("<4i", offsets) == (0, 1, 1, 4)
    assert bytes(values) == b"accc"
    assert properties is None
    assert batch.properties() is None


def test_properties_come_along(orders: MirroredQueue) -> None:
    """Headers, message id and key are there for who asks."""
    orders.put(b"x", headers={"n": 1, "b": b"\0"}, message_id="m", key="k").result(60)
    (batch,) = orders.read(1, 1)
    found = batch.properties()
    assert found is not None
    assert (found[0].headers, found[0].message_id, found[0].key) == ({"n": 1, "b": b"\0"}, "m", "k")


def test_what_was_acked_is_left_out(orders: MirroredQueue) -> None:
    """Frames are cut to what lives; ranges tell the same; what is held is shown too."""
    orders.put_many([b"%d" % number for number in range(10)]).result(60)
    taken = orders.get_many(10, 60)
    while len(taken) < 10:
        taken += orders.get_many(10 - len(taken), 60)
    orders.ack_many([message for message in taken if message.sequence in (1, 5, 6)]).result(60)
    extent = orders.extent()
    assert (extent.messages, extent.unacknowledged) == (7, 7)
    assert orders.live_ranges(1, 10, extent) == [(2, 4), (7, 10)]
    assert orders.live_ranges(4, 7, extent) == [(4, 4), (7, 7)]
    assert sequences(orders, 1, 100) == [2, 3, 4, 7, 8, 9, 10]
    taken[1].nack().result(60)
    counts = {batch.first: batch.delivery_count for batch in orders.read(2, 4)}
    assert counts == {2: 2, 3: 1}


def test_many_pages_are_one_answer(orders: MirroredQueue) -> None:
    """Whatever fits a page, reading goes on to the end."""
    for _ in range(5):
        orders.put_many([b"x" * 10_000] * 20).result(60)
    assert sum(batch.count for batch in orders.read(1, 100, bytes_max=1000)) == 100
    assert sequences(orders, 37, 61) == list(range(37, 62))


def test_more_holes_than_one_answer_names(
    orders: MirroredQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An answer is bounded in ranges, what is read is not."""
    monkeypatch.setattr("mirrorq.node.copy_reader.RANGES_MAX", 3)
    orders.put_many([b"%d" % number for number in range(20)]).result(60)
    taken: list[int] = []
    while len(taken) < 20:
        for message in orders.get_many(20, 60):
            taken.append(message.sequence)
            if message.sequence % 2:
                message.ack().result(60)
    assert orders.live_ranges(1, 20) == [(number, number) for number in range(2, 21, 2)]
    assert sequences(orders, 1, 20) == list(range(2, 21, 2))


def test_a_time_finds_its_first_message(orders: MirroredQueue) -> None:
    """Messages are found by when they were published; after the last comes the next sequence."""
    orders.put_many([b"old"] * 3).result(60)
    between = time.time() + 0.05
    until(lambda: time.time() > between + 0.05)
    orders.put_many([b"new"] * 3).result(60)
    assert orders.sequence_at(0) == 1
    assert orders.sequence_at(between) == 4
    assert orders.sequence_at(time.time() + 3600) == 7


def test_a_deleted_queue_is_told(orders: MirroredQueue) -> None:
    """Reading what is no more ends with an error, not with nothing."""
    orders.put(b"x").result(60)
    orders.delete()
    with pytest.raises((QueueDown, ShutDown)):
        list(orders.read(1, 1))


def test_every_copy_shows_the_same(processes: NodeProcesses, connecting: Connecting) -> None:
    """Each of three nodes answers from its own copy, no older than what the master has said."""
    clients = {name: connecting(endpoint) for name, endpoint in processes.peers.items()}
    orders = {name: client.queue("orders") for name, client in clients.items()}
    in_sync(orders["a"])
    orders["a"].put_many([b"%d" % number for number in range(5000)]).result(30)
    for message in orders["b"].get_many(10, 30):
        message.ack().result(30)
    extent = orders["c"].extent()
    shown = {name: queue.live_ranges(1, 5000, extent) for name, queue in orders.items()}
    assert shown["a"] == shown["b"] == shown["c"]
    assert sum(last - first + 1 for first, last in shown["a"]) == extent.messages
    bodies = {
        name: [body for batch in queue.read(1, 5000, extent=extent) for body in batch.bodies()]
        for name, queue in orders.items()
    }
    assert bodies["a"] == bodies["b"] == bodies["c"]


def test_a_node_without_a_copy_says_who_has_one(
    processes: NodeProcesses, connecting: Connecting
) -> None:
    """Who asks a node that is no member of the queue is told where to ask."""
    clients = {name: connecting(endpoint) for name, endpoint in processes.peers.items()}
    clients["a"].set_policy("one", "^alone$", {"ha-mode": "exactly", "ha-params": 1})
    queues = {name: client.queue("alone") for name, client in clients.items()}
    queues["a"].put(b"x").result(30)
    seen: list[QueueStatus] = []
    until(lambda: seen.append(queues["a"].status()) or seen[-1].master)
    master = seen[-1].master
    assert seen[-1].mirrors == ()
    other = next(name for name in clients if name != master)
    with pytest.raises(QueueDown, match=f"read from {master}"):
        list(queues[other].read(1, 1))
