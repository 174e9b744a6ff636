"""`expires`: idle time goes by the queue's time, through changes of master and restarts."""

from __future__ import annotations

import pytest

from mirrorq import QueueNotFound
from mirrorq.testing import SimulatedCluster

EXPIRES_S = 60


def begun(seed: int) -> SimulatedCluster:
    return SimulatedCluster(nodes="abc", seed=seed)


def exists(cluster: SimulatedCluster) -> bool:
    return any(one.name == "replies" for one in cluster.node("c").queues())


def kill_master(cluster: SimulatedCluster) -> None:
    """The master dies, another node follows, and it comes back: 13 s."""
    catalog = cluster.node(cluster.running[0])._driver.engine.catalog
    record = catalog.queue_named("replies")
    assert record is not None
    name = record.view.members[0].id.node
    cluster.crash(name)
    cluster.run(4)
    cluster.start(name)
    cluster.run(9)


def test_masters_that_die_often_keep_no_idle_queue_alive() -> None:
    """Each counted from its own beginning: with a death every 13 s the queue lived for ever."""
    with begun(11) as cluster:
        queue = cluster.queue("replies", on="a", expires=EXPIRES_S)
        queue.put(b"x").result(10)
        queue.close()
        began = cluster.now
        cluster.run(10)
        while cluster.now - began < EXPIRES_S - 16:
            kill_master(cluster)
        assert exists(cluster)
        cluster.run(max(began + EXPIRES_S + 5 - cluster.now, 0))
        assert not exists(cluster)


def test_a_use_after_a_while_is_known_to_the_next_master() -> None:
    """Idle for 40 s, used, and the master dies at once after that: it is there for 60 s more."""
    with begun(12) as cluster:
        cluster.queue("replies", on="a", expires=EXPIRES_S).close()
        cluster.run(40)
        queue = cluster.queue("replies", on="c")
        queue.put(b"x").result(10)
        queue.close()
        cluster.run(0.5)
        began = cluster.now
        kill_master(cluster)
        kill_master(cluster)
        cluster.run(began + EXPIRES_S - 5 - cluster.now)
        assert exists(cluster)
        cluster.run(12)
        assert not exists(cluster)


def test_a_consumer_that_stays_keeps_its_queue_and_leaves_it_all_of_the_time() -> None:
    """Through changes of master, and from the moment at which it goes."""
    with begun(13) as cluster:
        queue = cluster.queue("replies", on="c", expires=EXPIRES_S)
        queue.consume(lambda message: message.ack())
        cluster.run(3 * EXPIRES_S + 20)
        cluster.crash("a")
        cluster.run(2 * EXPIRES_S + 50)
        assert exists(cluster)
        queue.close()
        cluster.run(EXPIRES_S - 5)
        assert exists(cluster)
        cluster.run(10)
        assert not exists(cluster)
        with pytest.raises(QueueNotFound):
            cluster.queue("replies", on="c", passive=True)


def test_idle_time_goes_on_through_a_restart_of_all() -> None:
    with begun(14) as cluster:
        cluster.queue("replies", on="a", expires=EXPIRES_S).close()
        cluster.run(40)
        for name in "abc":
            cluster.crash(name)
        cluster.run(3)
        for name in "abc":
            cluster.start(name)
        cluster.run(10)
        assert exists(cluster)
        cluster.run(12)
        assert not exists(cluster)


@pytest.mark.slow
def test_a_queue_that_is_used_and_one_that_is_not_cost_no_ops() -> None:
    """One op when it is left, none as long as nothing changes."""
    with begun(15) as cluster:
        used = cluster.queue("used", on="a", expires=EXPIRES_S)
        used.consume(lambda message: message.ack())
        unused = cluster.queue("unused", on="a", expires=100 * EXPIRES_S)
        cluster.run(2000)
        engine = cluster.node("a")._driver.engine
        records = [engine.catalog.queue_named(queue.name) for queue in (used, unused)]
        ops = [engine.replicas[one.id].state.applied for one in records if one is not None]
        assert len(ops) == 2
        assert all(count <= 4 for count in ops), ops
