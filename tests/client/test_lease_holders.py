"""What clients hold, by leases and claims too: acked, or returned at its place. On virtual time."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from mirrorq import bulk
from mirrorq.api.lease_holder import LeaseHolder
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
        lease = bulk.lease(client.queue("orders"), 600)
        assert lease.ranges == ((1, 600),)
        client.close()
        cluster.run_until(lambda: bulk.extent(probe).ready == 1000)
        other = cluster.connect("other", to=at).queue("orders")
        with bulk.claim(other, "me", timeout=30) as claim:
            assert claim.ack(1, 500) == 500


def test_an_ack_that_crosses_the_taking_again_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """The new master has handed the messages to the same lease again, and gets the older names."""
    with SimulatedCluster(3) as cluster:
        probe = cluster.connect("probe").queue("orders")
        probe.put_many([b"%d" % number for number in range(500)]).result(30)
        master = cluster.master("orders")
        assert master is not None
        lease = bulk.lease(cluster.connect("one").queue("orders"), 400)
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
        assert bulk.extent(probe, 60).messages == 100


@pytest.mark.parametrize("is_dead", [True, False])
def test_what_a_dead_or_silent_client_held_goes_to_another(is_dead: bool) -> None:
    """In order and marked, whichever node was its entry node."""
    with SimulatedCluster(3) as cluster:
        orders = cluster.connect("web").queue("orders")
        orders.put_many([b"1", b"2", b"3"]).result(30)
        for entry in "abc":
            other = cluster.connect(f"at {entry}", to=entry).queue("orders")
            held = [other.get(timeout=30) for _ in range(3)]
            assert [message.body for message in held] == [b"1", b"2", b"3"]
            if is_dead:
                cluster.crash(f"at {entry}")
            else:
                cluster.freeze(f"at {entry}", 3600)
            again = [orders.get(timeout=30) for _ in range(3)]
            assert [message.body for message in again] == [b"1", b"2", b"3"]
            assert all(message.redelivered for message in again)
            for message in reversed(again):
                message.nack().result(30)
