"""Leases and claims in a swarm: nobody else has what they hold, and the dead hold nothing."""

from __future__ import annotations

from harness.holders import Acted, misheld
from harness.onlooker import Passed
from harness.swarm import Swarm
from harness.workload import Dispatch, Journal
from mirrorq.protocol.identities import SessionId
from mirrorq.protocol.sessions import Deliver, Delivery, SessionReply

from .world import World

ONE, OTHER = SessionId("a", 1, 1), SessionId("b", 1, 2)


def test_what_is_leased_or_claimed_is_with_nobody_else() -> None:
    """Under random faults leases are acked and claims act, and all checkers are content."""
    swarm = Swarm(9, chain=False, fan=False, holders=True)
    assert swarm.run().wrong == []
    holders = swarm.holders
    assert holders is not None
    assert holders.acted
    leased = [one for one in holders.life.journal.deliveries if one.consumer.startswith("held-l")]
    assert any(one.acked == "ok" for one in leased)


def dispatch(epoch: int, number: int, acked: str, consumer: str = "one") -> Dispatch:
    return Dispatch(5, b"x", number, 0, (epoch, number), consumer, acked)


def passed(epoch: int, number: int, session: SessionId, time_ms: int = 0) -> Passed:
    return Passed(epoch, number, 4, 6, session, time_ms)


def test_an_ack_of_what_was_handed_on_is_seen() -> None:
    """In the same term that somebody was handed it is enough; in a later one he has to have it,
    and not to have acked it himself."""
    journal = Journal(deliveries=[dispatch(1, 1, "ok")])
    assert misheld(journal, [], [passed(1, 1, ONE)]) == []
    assert "held twice" in misheld(journal, [], [passed(1, 1, ONE), passed(1, 2, OTHER)])[0]
    later = [passed(1, 1, ONE), passed(2, 1, OTHER)]
    assert misheld(journal, [], later) == []
    theirs = dispatch(2, 1, "", "other")
    journal.deliveries.append(theirs)
    assert "to other" in misheld(journal, [], later)[0]
    theirs.acked = "ok"
    assert misheld(journal, [], later) == []


def test_a_delivery_beside_a_claim_is_seen() -> None:
    """Between its beginning and its ack in the same term, to somebody else."""
    claim = [Acted(ONE, 2, since_ms=100, asked_ms=200)]
    for epoch, session, time_ms in (
        (2, ONE, 150),
        (2, OTHER, 90),
        (2, OTHER, 210),
        (1, OTHER, 150),
    ):
        assert misheld(Journal(), claim, [passed(epoch, 1, session, time_ms)]) == []
    assert "claimed twice" in misheld(Journal(), claim, [passed(2, 1, OTHER, 150)])[0]


def test_who_is_served_beside_the_only_one_is_seen(world: World) -> None:
    """Two consumers of a queue with one active consumer: the second is not to be served."""
    world.put("b", 2)
    takers = [world.taker("b", prefetch=1)]
    world.until(lambda: len(takers[0].held) == 1)
    takers.append(world.taker("c", prefetch=1))
    world.until(lambda: len(takers[1].held) == 1)
    onlooker = world.cluster.onlooker
    replica = world.cluster.engine("a").replicas[world.queue_id]
    assert replica.master is not None
    replica.master.dispatch.is_single = True
    for taker, is_wrong in zip(takers, (False, True), strict=True):
        pieces = (Delivery(1, 99, 1, 1, 1),)
        ((session, number),) = [
            key for key in replica.master.dispatch.consumers.by_key if key[0] == taker._session_id
        ]
        reply = SessionReply(world.queue_id, 1, session, 1, 9, Deliver(number, pieces))
        onlooker.on_reply("a", reply, replica, world.cluster._disk_of, world.cluster._copy_of)
        assert bool(onlooker.wrong) == is_wrong
