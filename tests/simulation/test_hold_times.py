"""How long messages may be held, on whole clusters: by policy, by message, across failovers."""

from __future__ import annotations

from .test_limits import Limited

HELD_MS = 2000


def test_a_message_that_is_extended_stays_with_its_holder() -> None:
    """For as long as it asks, and what waits behind it too; then both go back, counted."""
    world = Limited(consumer_timeout=HELD_MS)
    bodies = world.put("b", 2)
    holder = world.taker("c", prefetch=2)
    world.until(lambda: len(holder.seen) == 2)
    for _ in range(5):
        holder.outcomes.clear()
        holder.extend(bodies[0], HELD_MS)
        world.until(lambda: bool(holder.outcomes))
        assert holder.outcomes == {b"extended " + bodies[0]: True}
        world.cluster.run(HELD_MS - 500)
    other = world.taker("b")
    world.cluster.run(100)
    assert other.seen == []
    world.until(lambda: len(other.seen) == 2, 2 * HELD_MS)
    assert sorted(other.seen) == [(body, True) for body in bodies]
    holder.extend(bodies[0], HELD_MS)
    world.until(lambda: holder.outcomes[b"extended " + bodies[0]] is False)
    world.check_copies()


def test_an_extension_ends_with_its_master() -> None:
    """A new master hands out again what was held, once; the old time is refused."""
    world = Limited(consumer_timeout=HELD_MS)
    bodies = world.put("b", 1)
    holder = world.taker("c")
    world.until(lambda: len(holder.seen) == 1)
    holder.extend(bodies[0], 0)
    world.until(lambda: bool(holder.outcomes))
    world.cluster.run(3 * HELD_MS)
    assert len(holder.seen) == 1
    world.cluster.kill("a")
    world.until(lambda: world.master == "b")
    world.until(lambda: len(holder.seen) == 2)
    assert holder.seen == [(bodies[0], False), (bodies[0], True)]
    holder.held.pop()
    holder.outcomes.clear()
    holder.extend(bodies[0], 0)
    world.until(lambda: holder.outcomes.get(b"extended " + bodies[0]) is False)
    world.check_copies()
