"""Queues that go with somebody: exclusive ones with their handle, auto-delete ones with their
last consumer, transient ones with the whole cluster (scenario 24)."""

from __future__ import annotations

import pytest

from mirrorq.engine_events import Ask, Forget
from mirrorq.messages import DeclareQueue
from mirrorq.testing.cluster import SimulatedCluster
from mirrorq.testing.workload import SimulatedHandle

from .world import Taker


def a_cluster(names: str = "abc") -> SimulatedCluster:
    cluster = SimulatedCluster(tuple(names), seed=1)
    cluster.start()
    cluster.declare(names[0], "orders")
    return cluster


def is_gone(cluster: SimulatedCluster, queue_id: int) -> bool:
    """Whether every running node has deleted it, its data too."""
    return all(
        cluster.engine(name).catalog.queue(queue_id) is None
        and queue_id not in cluster.engine(name).replicas
        for name in cluster.running
    )


def consuming(cluster: SimulatedCluster, node: str, queue_id: int) -> Taker:
    """A consumer, once its master knows of it."""
    taker = Taker(cluster, node, queue_id)

    def is_seated() -> bool:
        master = cluster.master(queue_id)
        replica = cluster.engine(master).replicas[queue_id] if master is not None else None
        return (
            replica is not None
            and replica.master is not None
            and any(key[0] == taker._session_id for key in replica.master.delivery.consumers)
        )

    taker.poke()
    assert cluster.run_until(is_seated)
    return taker


# --- Exclusive ----------------------------------------------------------------------------


def test_24_an_exclusive_queue_is_on_its_owners_node_only_and_ends_with_the_handle() -> None:
    """No mirror, ever; closing the handle deletes it on the spot."""
    cluster = a_cluster()
    owner = cluster.new_session("b")
    queue_id = cluster.declare("b", "mine", owner=owner)
    cluster.open_session("b", queue_id, lambda _: None, owner)
    cluster.run(10_000)
    assert cluster.in_sync(queue_id) == ("b",)
    assert cluster.master(queue_id) == "b"
    cluster.close_session(owner)
    assert cluster.run_until(lambda: is_gone(cluster, queue_id), 1000)


def test_24_an_exclusive_queue_ends_when_its_node_dies() -> None:
    """Killed for good: the catalog's leader deletes it; others' queues go on."""
    cluster = a_cluster()
    queue_id = cluster.declare("b", "mine", owner=cluster.new_session("b"))
    cluster.kill("b")
    assert cluster.run_until(lambda: is_gone(cluster, queue_id), 5000)
    cluster.start("b")
    assert cluster.run_until(lambda: is_gone(cluster, queue_id) and "b" in cluster.running, 1000)
    again = cluster.declare("c", "mine", owner=cluster.new_session("c"))
    assert cluster.in_sync(again) == ("c",)


@pytest.mark.parametrize("names", ["a", "abc"])
def test_24_an_exclusive_queue_ends_at_a_full_stop(names: str) -> None:
    """Everything killed at once, one node or three: nobody was left to delete it."""
    cluster = a_cluster(names)
    queue_id = cluster.declare("a", "mine", owner=cluster.new_session("a"))
    for name in names:
        cluster.kill(name)
    cluster.start()
    assert cluster.run_until(lambda: is_gone(cluster, queue_id), 20_000)


def test_24_an_exclusive_queue_outlives_a_partition_of_its_owner() -> None:
    """Its handle lives, and what it was confirmed is there when the network is."""
    cluster = a_cluster()
    owner = cluster.new_session("b")
    queue_id = cluster.declare("b", "mine", owner=owner)
    for other in "ac":
        cluster.cut("b", other, silent=True)
    cluster.run(10_000)
    cluster.heal_all()
    cluster.run(10_000)
    assert cluster.master(queue_id) == "b"
    assert cluster.in_sync(queue_id) == ("b",)


def test_an_exclusive_queue_whose_declarer_gave_up_is_deleted() -> None:
    """The call timed out, its command was done after all: nobody owns the queue."""
    cluster = a_cluster()
    owner = cluster.new_session("b")
    for other in "ac":
        cluster.cut("b", other)
    command = DeclareQueue("mine", True, True, False, "b", owner, ())
    cluster.tell("b", Ask(77, command))
    cluster.run(5)
    cluster.tell("b", Forget(77))
    cluster.heal_all()
    cluster.run(5000)
    assert cluster.engine("a").catalog.queue_named("mine") is None
    # Done and answered, but nobody came for it: as if the handle had been closed.
    queue_id = cluster.declare("b", "mine", owner=owner)
    cluster.open_session("b", queue_id, lambda _: None, owner)
    cluster.close_session(owner)
    assert cluster.run_until(lambda: is_gone(cluster, queue_id), 1000)


# --- Auto-delete --------------------------------------------------------------------------


def test_an_auto_delete_queue_goes_with_its_last_consumer() -> None:
    """It waits for the first one as long as that takes; one of two leaving changes nothing."""
    cluster = a_cluster()
    queue_id = cluster.declare("a", "fleeting", auto_delete=True)
    cluster.run(10_000)
    first = consuming(cluster, "b", queue_id)
    second = consuming(cluster, "c", queue_id)
    first.close()
    cluster.run(5000)
    assert not is_gone(cluster, queue_id)
    second.close()
    assert cluster.run_until(lambda: is_gone(cluster, queue_id), 1000)


def test_an_auto_delete_queue_survives_its_master_with_its_consumer() -> None:
    """The consumer attaches to the next master in time; when it leaves, the queue goes."""
    cluster = a_cluster()
    queue_id = cluster.declare("a", "fleeting", auto_delete=True)
    taker = consuming(cluster, "b", queue_id)
    cluster.run(1000)
    cluster.kill("a")
    cluster.run(10_000)
    assert cluster.master(queue_id) in ("b", "c")
    taker.close()
    assert cluster.run_until(lambda: is_gone(cluster, queue_id), 1000)


def test_an_auto_delete_queue_goes_when_its_consumer_died_with_the_master() -> None:
    """The new master has never seen a consumer; the catalog says that there was one."""
    cluster = a_cluster()
    queue_id = cluster.declare("a", "fleeting", auto_delete=True)
    consuming(cluster, "a", queue_id)
    cluster.run(1000)
    cluster.kill("a")
    assert cluster.run_until(lambda: is_gone(cluster, queue_id), 20_000)


def test_a_consumer_that_races_the_deletion_learns_how_it_ended() -> None:
    """One leaves, another comes at every moment around it: it is seated and the queue lives,
    or the queue is gone and its handle is closed; never a handle on nothing."""
    ends = []
    for delay_ms in range(12):
        cluster = a_cluster()
        queue_id = cluster.declare("a", "fleeting", auto_delete=True)
        first = consuming(cluster, "b", queue_id)
        cluster.run(1000)
        late: list[SimulatedHandle] = []
        cluster.after(5, first.close)
        cluster.after(delay_ms, lambda: late.append(_come(cluster, queue_id)))  # noqa: B023
        cluster.run(5000)
        gone = is_gone(cluster, queue_id)
        assert gone == bool(late[0].session.closed)
        ends.append(gone)
    assert set(ends) == {True, False}


def _come(cluster: SimulatedCluster, queue_id: int) -> Taker:
    taker = Taker(cluster, "c", queue_id)
    taker.poke()
    return taker
