"""Leases and claims: messages held without their bodies, acked or returned at their places."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from running import NodeProcesses, in_sync
from tests.kit import until

from conftest import Connecting
from mirrorq.api.leases import LeaseHolder
from mirrorq.protocol.sessions import Delivery


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
