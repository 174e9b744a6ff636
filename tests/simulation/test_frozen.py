"""A machine that a hypervisor stops, with all its clocks: its node's lease outlives itself.

What still holds then, because no clock is needed for it, and what does not
(docs/decisions/catalog.md).
"""

from __future__ import annotations

from .world import Taker, World

FROZEN_MS = 30_000


class Frozen(World):
    """Three nodes; `a` leads, and has just handed out the first of six messages to a handle of
    its own when its machine is stopped. `b` takes over, and hands out all six."""

    def __init__(self) -> None:
        super().__init__()
        self.bodies = self.put("b", 6)
        self.here = self.taker("a", prefetch=1)
        self.until(lambda: len(self.here.seen) == 1)
        self.cluster.run(30)

    def freeze(self) -> Taker:
        """Stop the machine of `a`; a consumer of the next master has acked four messages, and
        holds two, when it goes on."""
        cluster = self.cluster
        thaw_ms = cluster.now_ms + FROZEN_MS
        cluster.freeze("a", FROZEN_MS)
        self.until(lambda: self.master == "b")
        there = self.taker("c")
        self.until(lambda: len(there.seen) == 6)
        for body in self.bodies[:4]:
            there.settle(body)
        self.until(lambda: there.outcomes == dict.fromkeys(self.bodies[:4], True))
        assert there.seen == [(body, True) for body in self.bodies]
        cluster.run(thaw_ms - 1 - cluster.now_ms)
        return there

    def take_all_here(self, duration_ms: int) -> None:
        """The handle on `a` acks whatever comes, for so long."""
        end_ms = self.cluster.now_ms + duration_ms
        while self.cluster.now_ms < end_ms:
            self.cluster.run(1)
            if self.here.held:
                self.here.settle(self.here.held[-1][1])


def test_a_frozen_master_that_hears_nobody_hands_out_for_the_rest_of_its_lease() -> None:
    """Its machine goes on, and what others have sent meanwhile does not come at once: until its
    lease has ended, by a clock that has stood still, it hands messages to handles that know no
    better, as new ones, though another master has handed them out and their acks are done.

    What needs no clock holds: of all deliveries of a message one is unflagged at most (the other
    master's are flagged, as the horizon was stable), no ack of its own takes effect before the new
    master has judged it, none that was done is undone, and nothing is lost."""
    world = Frozen()
    cluster = world.cluster
    for other in "bc":
        cluster.cut("a", other, silent=True)
    there = world.freeze()
    world.take_all_here(cluster.config.lease_ms)
    assert world.here.seen == [(body, False) for body in world.bodies], "the rest of a lease"
    assert world.here.outcomes == {}, "an ack is an op, and needs members that take it"
    for body, count in ((body, world.here.seen.count((body, False))) for body in world.bodies):
        assert count == 1
        assert (body, False) not in there.seen
    cluster.run(2000)
    for other in "bc":
        cluster.heal("a", other)
    world.until_in_sync()
    world.until(lambda: len(world.here.outcomes) == 6)
    assert [world.here.outcomes[body] for body in world.bodies[4:]] == [False, False], "held there"
    assert len(world.here.seen) == 6
    for body in world.bodies[4:]:
        there.settle(body)
    world.until(lambda: [world.live(name) for name in "abc"] == [0, 0, 0])
    assert there.outcomes == dict.fromkeys(world.bodies, True)
    world.check_copies()


def test_a_frozen_master_hands_out_nothing_when_its_lease_has_ended() -> None:
    """By its own clock, one lease after its last request at the latest; so the window is that."""
    world = Frozen()
    cluster = world.cluster
    for other in "bc":
        cluster.cut("a", other, silent=True)
    world.freeze()
    world.take_all_here(1)
    before = len(world.here.seen)
    cluster.run(cluster.config.lease_ms)
    world.take_all_here(500)
    assert len(world.here.seen) - before <= world.here.prefetch
    world.check_copies()


def test_a_frozen_master_that_hears_what_was_sent_meanwhile_hands_out_nothing() -> None:
    """What waits in its sockets is looked at before its consumers are: one step."""
    world = Frozen()
    there = world.freeze()
    world.take_all_here(2000)
    assert world.here.seen == [(world.bodies[0], False)]
    for body in world.bodies[4:]:
        there.settle(body)
    world.until(lambda: [world.live(name) for name in "abc"] == [0, 0, 0])
    world.check_copies()


def test_handles_that_know_the_new_term_take_nothing_of_a_frozen_master() -> None:
    """It hears nobody, and all hear it: what it hands to handles elsewhere is of an old term, and
    dropped there."""
    world = Frozen()
    cluster = world.cluster
    elsewhere = world.taker("c", prefetch=1)
    world.until(lambda: len(elsewhere.seen) == 1)
    (body, _) = elsewhere.seen[0]
    cluster.freeze("a", FROZEN_MS)
    elsewhere.settle(body)
    thaw_ms = cluster.now_ms + FROZEN_MS
    cluster.run(5)  # What it asks for is in the frozen node's socket.
    for other in "bc":
        cluster.cut(other, "a", silent=True, one_way=True)
    world.until(lambda: world.master == "b")
    cluster.run(thaw_ms + cluster.config.lease_ms - cluster.now_ms)
    late = [key for key, sent_ms in cluster.handed_ms.items() if sent_ms >= thaw_ms]
    assert [(queue, master_epoch) for queue, master_epoch, _ in late] == [(world.queue_id, 1)], (
        "it did hand out"
    )
    assert [redelivered for _, redelivered in elsewhere.seen[1:]] == [True]
    world.check_copies()
