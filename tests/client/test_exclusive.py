"""Queues that are a client's alone: who ends them, who may put into them. On virtual time."""

from __future__ import annotations

import pytest

from mirrorq.api.host import Declared
from mirrorq.api.queue import MirroredQueue
from mirrorq.errors import PreconditionFailed, ShutDown
from mirrorq.testing import SimulatedCluster


@pytest.mark.parametrize("nodes", [1, 3])
def test_a_publish_through_an_exchange_leaves_an_exclusive_queue_alone(nodes: int) -> None:
    """The publishing session of another client, or of the owner's own, is no new connection of the
    owner. What was confirmed stays, and what was published comes."""
    with SimulatedCluster(nodes) as cluster:
        owner, other = cluster.connect("owner"), cluster.connect("other")
        mine = owner.queue("mine", exclusive=True)
        mine.put(b"m1").result(30)
        owner.exchange("news", "fanout").bind("mine")
        for number, client in enumerate((other, owner), 2):
            news = client.exchange("news", "fanout")
            assert news.publish("", b"m%d" % number).result(30) == {"mine": number}
        assert [message.body for message in mine.get_many(3, timeout=30)] == [b"m1", b"m2", b"m3"]
        assert [queue.name for queue in owner.queues()] == ["mine"]


def test_a_session_that_is_not_the_owners_takes_nothing_from_an_exclusive_queue() -> None:
    """It may put; whatever reads ends that session, and not the queue."""
    with SimulatedCluster(1) as cluster:
        owner, other = cluster.connect("owner"), cluster.connect("other")
        mine = owner.queue("mine", exclusive=True)
        mine.put(b"m1").result(30)
        theirs = MirroredQueue._attach(other, Declared(mine._handle.queue_id), "mine")
        theirs.put(b"m2").result(30)
        with pytest.raises(ShutDown, match="'mine' is exclusive"):
            theirs.get(timeout=30)
        with pytest.raises(PreconditionFailed, match="'mine' is exclusive"):
            other.queue("mine", passive=True)
        assert [message.body for message in mine.get_many(2, timeout=30)] == [b"m1", b"m2"]


@pytest.mark.parametrize("is_silent", [True, False])
def test_an_exclusive_queue_ends_when_its_owner_comes_on_another_connection(
    is_silent: bool,
) -> None:
    """The handle says why, and the name is free before the first node has missed its client."""
    with SimulatedCluster(3) as cluster:
        owner = cluster.connect("owner", to="ab")
        mine = owner.queue("mine", exclusive=True)
        mine.put(b"m1").result(30)
        assert mine.get(timeout=30).body == b"m1"
        if is_silent:
            cluster.cut("owner", "a", silent=True)
        else:
            cluster.reset("owner", "a")
        with pytest.raises(ShutDown, match="ended, and with it the exclusive queue"):
            mine.get(timeout=60)
        cluster.run_until(lambda: not owner.queues())
        assert owner.queue("mine", exclusive=True).put(b"m3").result(30) == 1
