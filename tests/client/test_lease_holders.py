"""Leases and claims: messages held without their bodies, acked or returned at their places."""

from __future__ import annotations

import time
from collections.abc import Sequence

import pytest
from running import NodeProcesses, in_sync
from tests.kit import until

from conftest import Connecting
from mirrorq.api.leases import LeaseHolder
from mirrorq.api.queue import MirroredQueue
from mirrorq.client.client import Client
from mirrorq.config import Config
from mirrorq.errors import AckRefused, Empty, NoQuorum, PreconditionFailed
from mirrorq.node.node import Node
from mirrorq.protocol.sessions import Delivery


@pytest.fixture(params=["node", "client"])
def orders(request: pytest.FixtureRequest, node: Node, connecting: Connecting) -> MirroredQueue:
    """A handle on a node, and one of a client."""
    host: Node | Client = node if request.param == "node" else connecting(node.listening)
    return host.queue("orders")


@pytest.fixture
def others(node: Node) -> MirroredQueue:
    """Somebody else's handle on the same queue."""
    return node.queue("orders")


def bodies(queue: MirroredQueue, lease_ranges: tuple[tuple[int, int], ...]) -> list[bytes]:
    """What is read of a lease's ranges."""
    return [
        body
        for first, last in lease_ranges
        for batch in queue.read(first, last)
        for body in batch.bodies()
    ]


def test_a_lease_holds_and_acks(orders: MirroredQueue, others: MirroredQueue) -> None:
    """Nobody else gets what is leased; an ack ends all of it, and says how many."""
    orders.put_many([b"%d" % number for number in range(10_000)]).result(10)
    with orders.lease(9_990, "a job") as lease:
        assert lease.count == 9_990
        assert lease.ranges == ((1, 9_990),)
        assert bodies(orders, lease.ranges)[:2] == [b"0", b"1"]
        assert others.get(timeout=10).sequence == 9_991
        assert lease.ack(10) == 9_990
    assert orders.extent().messages == 10


def test_what_is_not_acked_goes_back_to_its_place(
    orders: MirroredQueue, others: MirroredQueue
) -> None:
    """Leaving the block returns the messages, first in the queue, counted as a delivery."""
    orders.put_many([b"a", b"b", b"c"]).result(10)
    with orders.lease(2) as lease:
        assert lease.count == 2
        assert others.extent().unacknowledged == 2
    messages = [others.get(timeout=10) for _ in range(3)]
    assert [message.body for message in messages] == [b"a", b"b", b"c"]
    assert [message.redelivered for message in messages] == [True, True, False]


def test_a_lease_of_an_empty_queue_is_empty(orders: MirroredQueue) -> None:
    """Nothing is waited for: a lease takes what is ready now."""
    with orders.lease() as lease:
        assert (lease.count, lease.ranges) == (0, ())
        assert lease.ack(10) == 0


def test_a_lease_ends_with_its_handle(orders: MirroredQueue, others: MirroredQueue) -> None:
    """What a closed handle has leased goes back."""
    orders.put_many([b"a", b"b"]).result(10)
    lease = orders.lease()
    assert lease.count == 2
    orders.close()
    assert others.get(timeout=10).body == b"a"


def test_a_lease_outlives_the_consumer_timeout(connecting: Connecting, tmp_path: object) -> None:
    """What ends consumers that hang does not end a lease whose connection lives."""
    config = Config(consumer_timeout_ms=1000)
    with Node("a", path=f"{tmp_path}/a", listen="tcp://127.0.0.1:0", config=config) as node:
        node.wait_ready(30)
        orders = connecting(node.listening).queue("orders")
        orders.put_many([b"a", b"b"]).result(10)
        lease = orders.lease()
        end = time.monotonic() + 2.5
        until(lambda: time.monotonic() > end)
        with pytest.raises(Empty):
            node.queue("orders").get(timeout=0.2)
        assert lease.ack(10) == 2


def test_a_claim_has_the_queue_alone_and_acks_by_sequence(
    orders: MirroredQueue, others: MirroredQueue
) -> None:
    """Others are refused and told who has it; what was acked is gone, the rest stays."""
    orders.put_many([b"%d" % number for number in range(10)]).result(10)
    orders.put(b"later", delay=3600).result(10)
    with orders.claim("query 17") as claim:
        with pytest.raises(PreconditionFailed, match="query 17 on node"):
            others.get(timeout=10)
        with pytest.raises(PreconditionFailed, match="query 17 on node"):
            others.claim("query 18", timeout=0.3)
        assert claim.ack(1, 4) == 4
        assert claim.ack(1, 4) == 0
        assert claim.ack(9, 11) == 3
        assert orders.live_ranges(1, 100, orders.extent()) == [(5, 8)]
    assert others.get(timeout=10).sequence == 5


def test_a_claim_waits_for_who_holds_messages(orders: MirroredQueue, others: MirroredQueue) -> None:
    """While somebody holds messages, their holder is named; then the claim is given."""
    orders.put_many([b"a", b"b"]).result(10)
    message = others.get(timeout=10)
    with pytest.raises(PreconditionFailed, match=r"unacknowledged|other consumers"):
        orders.claim("me", timeout=0.3)
    others.shutdown(immediate=True)
    message.ack().result(10)
    with orders.claim("me", timeout=30) as claim:
        assert claim.ack(1, 2) == 1


def test_a_claim_that_was_given_up_acks_nothing(
    orders: MirroredQueue, others: MirroredQueue
) -> None:
    """An ack by sequence needs the claim: without it nothing ends."""
    orders.put_many([b"a", b"b"]).result(10)
    claim = orders.claim("first")
    claim.close()
    with others.claim("second", timeout=30), pytest.raises(PreconditionFailed, match="second"):
        claim.ack(1, 2)
    with pytest.raises(PreconditionFailed, match="nobody"):
        claim.ack(1, 2)
    assert orders.extent().messages == 2


def fail_at(queue: MirroredQueue, call: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a handle lose its cluster when it hears the answer to its n-th question."""
    counts, asked = queue._handle.counts, 0

    def counts_or_none(timeout: float = 5.0) -> object:
        nonlocal asked
        asked += 1
        found = counts(timeout)
        if asked == call:
            raise NoQuorum("no contact with a majority")
        return found

    monkeypatch.setattr(queue._handle, "counts", counts_or_none)


def test_a_claim_that_met_trouble_is_not_in_its_own_way(
    orders: MirroredQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The caller has no claim, so the master has none either: it is given at the next try."""
    fail_at(orders, 1, monkeypatch)
    with pytest.raises(NoQuorum):
        orders.claim("me", timeout=30)
    with orders.claim("me", timeout=30) as claim:
        assert claim.ack(1, 1) == 0


def test_a_lease_that_met_trouble_gives_back_what_it_took(
    orders: MirroredQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The caller has no lease: nothing stays held."""
    orders.put_many([b"a", b"b", b"c"]).result(10)
    fail_at(orders, 2, monkeypatch)
    with pytest.raises(NoQuorum):
        orders.lease(2)
    until(lambda: orders.extent().ready == 3)
    assert orders.lease().count == 3


@pytest.mark.parametrize("place", ["the master's node", "a mirror's node"])
def test_holders_in_other_places(
    processes: NodeProcesses, connecting: Connecting, place: str
) -> None:
    """Leases and claims work through any node, and what a gone client held goes back."""
    names = list(processes.peers)
    probe = connecting(*processes.endpoints).queue("orders")
    probe.put_many([b"%d" % number for number in range(1000)]).result(30)
    master = in_sync(probe).master
    assert master is not None
    at = master if place == "the master's node" else next(n for n in names if n != master)
    client = connecting(processes.peers[at])
    orders = client.queue("orders")
    lease = orders.lease(600)
    assert lease.ranges == ((1, 600),)
    client.close()
    until(lambda: probe.extent().ready == 1000)
    other = connecting(processes.peers[at]).queue("orders")
    with other.claim("me", timeout=30) as claim:
        assert claim.ack(1, 500) == 500


def test_a_lease_goes_over_a_change_of_master(
    processes: NodeProcesses, connecting: Connecting
) -> None:
    """When the master dies the messages are taken again, and acked once."""
    probe = connecting(*processes.endpoints).queue("orders")
    probe.put_many([b"%d" % number for number in range(500)]).result(30)
    status = in_sync(probe)
    assert status.master is not None
    at = processes.peers[status.synchronised_mirrors[0]]
    lease = connecting(at, *processes.endpoints).queue("orders").lease(400)
    assert lease.count == 400
    processes.kill(status.master)
    until(lambda: probe.status().master not in (None, status.master))
    try:
        assert lease.ack(60) == 400
    except AckRefused as error:
        pytest.fail(f"nobody else consumes: {error}")
    assert probe.extent(60).messages == 100


def test_an_ack_that_crosses_the_taking_again_is_taken(
    processes: NodeProcesses, connecting: Connecting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new master has handed the messages to the same lease again, and gets the older names."""
    probe = connecting(*processes.endpoints).queue("orders")
    probe.put_many([b"%d" % number for number in range(500)]).result(30)
    master = in_sync(probe).master
    assert master is not None
    lease = connecting(*processes.endpoints).queue("orders").lease(400)
    taker, settle = lease._holder, LeaseHolder.settle
    older = taker._named()
    processes.kill(master)
    until(lambda: any(epoch > older[0].epoch for epoch, _ in list(taker.pieces)))

    def settle_the_older(taker: LeaseHolder, refused: Sequence[Delivery] | None = None) -> object:
        return older if refused is None else settle(taker, refused)

    monkeypatch.setattr(LeaseHolder, "settle", settle_the_older)
    assert lease.ack(60) == 400
    assert probe.extent(60).messages == 100
