"""Wall clocks that are wrong, differ, or are set: durations are durations all the same."""

from __future__ import annotations

from random import Random

import pytest

from harness.__main__ import describe
from harness.cluster import SimulatedCluster
from harness.results import result_of
from harness.swarm import Swarm
from harness.workload import Journal, Place, Producer
from mirrorq.config import Config
from mirrorq.replication.queue_time import KEPT_US

from .world import World

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
SLACK_MS = 100
"""Trips of messages, and a thousandth by which stamps are brought near wall clocks."""
WRONG_MS = (HOUR_MS, -HOUR_MS, 30 * DAY_MS, -30 * DAY_MS)


class Timed(World):
    """Messages that wait, and messages that end."""

    def ended_ms(self, sequence: int) -> int | None:
        """How long after the beginning of the run this message expired; None: it lives."""
        word, at_ms = self.cluster.onlooker.ended.get(self.queue_id, {}).get(sequence, ("", 0))
        assert word in ("", "expired")
        return at_ms if word else None

    def put_ttl(self, node: str, name: str, ttl_ms: int) -> int:
        """Put one message that ends; return its sequence."""
        producer = self._short(node, name, ttl_ms)
        self.until(lambda: producer.is_done)
        return self.journal.attempts[b"%s/1" % name.encode()].sequence

    def _short(self, node: str, name: str, ttl_ms: int) -> Producer:
        producer = Producer(
            Place(self.cluster, node, self.queue_id, name, Random(2)), self.journal, 1
        )
        producer.ttl_ms = ttl_ms
        self._publish(producer)
        return producer

    def kill(self, name: str) -> int:
        """Kill the master; return how long the queue was without one."""
        began_ms = self.cluster.now_ms
        self.cluster.kill(name)
        self.until(lambda: self.master not in (None, name))
        return self.cluster.now_ms - began_ms


@pytest.mark.parametrize("wrong_ms", WRONG_MS)
@pytest.mark.parametrize("name", ["a", "b"])
def test_a_step_of_a_wall_clock_moves_no_ttl_and_no_delay(name: str, wrong_ms: int) -> None:
    """Of the master's or of its successor's, an hour or a month, ahead or behind, in between."""
    world = Timed()
    (later,) = world.put("c", 1, "later", delay_ms=20_000)
    put_ms = world.cluster.now_ms
    short = world.put_ttl("c", "short", 30_000)
    world.cluster.set_wall(name, wrong_ms)
    world.cluster.run(1000)
    outage_ms = world.kill("a")
    waiting = world.cluster.engine("b").replicas[world.queue_id].state.delayed
    world.until(lambda: waiting.count == 0)
    assert abs(world.cluster.now_ms - put_ms - 20_000) <= outage_ms + SLACK_MS
    world.until(lambda: world.ended_ms(short) is not None)
    assert abs(world.cluster.now_ms - put_ms - 30_000) <= outage_ms + SLACK_MS
    taker = world.taker("c")
    world.until(lambda: taker.seen == [(later, False)])
    world.check_copies()


@pytest.mark.parametrize("wrong_ms", WRONG_MS)
def test_a_successor_whose_wall_clock_was_always_wrong_ends_nothing_early_or_late(
    wrong_ms: int,
) -> None:
    """Nothing happens for two minutes, then the master dies: two minutes are what has passed. Then
    all stop and their machines are booted: each knows by how much its clock differs."""
    cluster = SimulatedCluster()
    for name, ahead_ms in (("b", wrong_ms), ("c", -wrong_ms)):
        cluster.nodes[name].wall_ahead_ms = ahead_ms
    world = Timed(cluster=cluster)
    first = world.put_ttl("c", "first", 150_000)
    second = world.put_ttl("c", "second", 200_000)
    put_ms = cluster.now_ms
    cluster.run(120_000)
    outage_ms = world.kill("a")
    assert world.ended_ms(first) is None
    world.until(lambda: world.ended_ms(first) is not None)
    assert abs(cluster.now_ms - put_ms - 150_000) <= outage_ms + SLACK_MS
    for name in "abc":
        cluster.kill(name)
        cluster.boot(name)
    cluster.run(10_000)
    cluster.start()
    world.until_in_sync()
    assert world.ended_ms(second) is None
    world.until(lambda: world.ended_ms(second) is not None)
    assert abs(cluster.now_ms - put_ms - 200_000) <= KEPT_US // 1000 + SLACK_MS
    world.check_copies()


@pytest.mark.parametrize("wrong_ms", WRONG_MS)
def test_a_restarted_mirror_that_is_promoted_at_once_knows_the_time(wrong_ms: int) -> None:
    """Its wall clock is wrong, its machine is booted, and it hears nobody before it leads."""
    cluster = SimulatedCluster(("a", "b"))
    cluster.nodes["b"].wall_ahead_ms = wrong_ms
    world = Timed("ab", cluster=cluster)
    short = world.put_ttl("a", "short", 60_000)
    put_ms = cluster.now_ms
    cluster.run(1000)
    for name in "ab":
        cluster.kill(name)
    cluster.boot("b")
    cluster.run(10_000)
    cluster.start("b")
    cluster.run(10)
    for one, other in (("a", "b"), ("b", "a")):
        cluster.network.link(one, other).cut = True
    cluster.start("a")
    cluster.run(5000)
    cluster.heal("a", "b")
    world.until(lambda: world.master is not None)
    world.until(lambda: world.ended_ms(short) is not None)
    assert abs(cluster.now_ms - put_ms - 60_000) <= KEPT_US // 1000 + SLACK_MS
    world.check_copies()


def test_25_a_step_of_days_ends_no_id_of_a_busy_producer() -> None:
    """Of the master's clock, forward and back, while it puts, and of its successor's."""
    cluster = SimulatedCluster(config=Config(producer_expiry_ms=DAY_MS))
    cluster.start()
    queue_id = cluster.declare("a", "orders")
    journal = Journal()
    producer = Producer(Place(cluster, "c", queue_id, "p", Random(1)), journal, 400)

    def publish() -> None:
        producer.publish()
        if producer.sent < producer.count:
            cluster.after(100, publish)

    publish()
    for days in (30, 0, -30, 60):
        cluster.run(2000)
        cluster.set_wall("a", days * DAY_MS)
    cluster.set_wall("b", 90 * DAY_MS)
    cluster.kill("a")
    assert cluster.run_until(lambda: producer.is_done)
    assert {attempt.state for attempt in journal.attempts.values()} == {"acknowledged"}
    assert len(cluster.engine("b").replicas[queue_id].state.producers) == 1
    assert cluster.onlooker.wrong == []


def test_a_clock_that_nobody_sets_is_never_written(world: World) -> None:
    """Nothing of all this costs a commit where wall clocks are right."""
    world.put("b", 20)
    files = [world.cluster.nodes[name].disk.queues[world.queue_id] for name in "abc"]
    assert [one.time_ahead_us for one in files] == [0, 0, 0]


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 6))]
)
def test_swarms_with_clocks_that_are_set(seed: int) -> None:
    """Every other fault too, and machines that are booted: each duration is what was asked for."""
    swarm = Swarm(seed, clocks=True, delays_ms=(0, 0, 60, 1500, 4000), chain=False, fan=False)
    result = result_of(swarm.run(), "test")
    assert not result.wrong, describe(result)
    assert result.faults["wall clock set"]
