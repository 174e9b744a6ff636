"""Leases and claims: messages held without their bodies, acked or returned at their places. On
virtual time."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from mirrorq.api.leases import LeaseHolder
from mirrorq.protocol.sessions import Delivery
from mirrorq.testing import SimulatedCluster


@pytest.mark.parametrize("place", ["the master's node", "a mirror's node"])
def test_holders_in_other_places(place: str) -> None:
    """Leases and claims work through any node, and what a gone client held goes back."""
    with SimulatedCluster(3) as cluster:
        probe = cluster.connect("probe").queue("orders")
        probe.put_many([b"%d" % number for number in range(1000)]).result(30)
        master = cluster.master("orders")
        at = next(n for n in "abc" if (n == master) == (place == "the master's node"))
        client = cluster.connect("one", to=at)
        lease = client.queue("orders").lease(600)
        assert lease.ranges == ((1, 600),)
        client.close()
        cluster.run_until(lambda: probe.extent().ready == 1000)
        other = cluster.connect("other", to=at).queue("orders")
        with other.claim("me", timeout=30) as claim:
            assert claim.ack(1, 500) == 500


def test_an_ack_that_crosses_the_taking_again_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """The new master has handed the messages to the same lease again, and gets the older names."""
    with SimulatedCluster(3) as cluster:
        probe = cluster.connect("probe").queue("orders")
        probe.put_many([b"%d" % number for number in range(500)]).result(30)
        master = cluster.master("orders")
        assert master is not None
        lease = cluster.connect("one").queue("orders").lease(400)
        taker, settle = lease._holder, LeaseHolder.settle
        older = taker._named()
        cluster.crash(master)
        cluster.run_until(lambda: any(epoch > older[0].epoch for epoch, _ in list(taker.pieces)))

        def settle_the_older(
            taker: LeaseHolder, refused: Sequence[Delivery] | None = None
        ) -> object:
            return older if refused is None else settle(taker, refused)

        monkeypatch.setattr(LeaseHolder, "settle", settle_the_older)
        assert lease.ack(60) == 400
        assert probe.extent(60).messages == 100
