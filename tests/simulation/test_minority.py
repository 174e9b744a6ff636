"""A long time without a leader; what nodes want meanwhile is wanted once."""

from __future__ import annotations

from mirrorq.protocol.commands import ChangeView

from .world import World

QUEUES = 6
CUT_OFF_MS = 5 * 60_000


def minority(count: int) -> tuple[World, list[int]]:
    """A world whose master, of so many queues, is cut off from the majority with a mirror that is
    about to be ready; and those queues."""
    world = World("abcde", witnesses="cde")
    cluster = world.cluster
    queues = [world.queue_id, *(cluster.declare("a", f"more-{i}") for i in range(1, count))]
    world.put("a", 3)
    cluster.kill("b")
    world.until(lambda: all(cluster.in_sync(one) == ("a",) for one in queues))
    cluster.start("b")

    def is_joining(queue_id: int) -> bool:
        record = cluster.engine("a").catalog.queue(queue_id)
        assert record is not None
        members = [(one.id.node, one.in_sync) for one in record.view.members]
        return members == [("a", True), ("b", False)]

    world.until(lambda: all(map(is_joining, queues)))
    for name in "ab":
        for other in "cde":
            cluster.cut(name, other)
    assert all(map(is_joining, queues)), "the cut came too late"
    return world, queues


def test_proposals_do_not_pile_up_in_a_minority() -> None:
    """A master with a joiner that is ready, cut off from the majority for 5 minutes: one ask a
    queue is open, and Raft's log does not grow by more when it is heard again."""
    world, queues = minority(QUEUES)
    cluster = world.cluster
    before = cluster.engine("c")._consensus.raft.last_index
    cluster.run(CUT_OFF_MS)
    asks = cluster.engine("a").requests
    assert {type(ask.command) for ask in asks._open.values()} == {ChangeView}
    assert len(asks) == QUEUES
    cluster.heal_all()
    world.until(lambda: all(set(cluster.in_sync(one)) == {"a", "b"} for one in queues))
    cluster.run(5000)
    assert len(cluster.engine("a").requests) == 0
    grown = cluster.engine("a")._consensus.raft.last_index - before
    assert grown <= 20 * QUEUES, f"{grown} entries in Raft's log"
