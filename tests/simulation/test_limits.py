"""Scenarios 28 and 29: limits of length and of time hold across failovers."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from harness import checkers
from harness.workload import Attempt, Place, Producer
from mirrorq.protocol.commands import SetPolicy
from mirrorq.protocol.policy import parse, to_text
from mirrorq.session.calls import Put
from mirrorq.wire import frames

from .world import World

LENGTH = 8


class Limited(World):
    """A cluster whose queue has a policy, looked at all the time."""

    def __init__(self, *, seed: int = 1, **definition: Any) -> None:
        super().__init__("abc", seed=seed)
        self.wrong: list[str] = []
        self.define(**definition)
        self._look()

    def define(self, **definition: Any) -> None:
        given = {key.replace("_", "-"): value for key, value in definition.items()}
        command = SetPolicy("limit", to_text(parse("limit", "", given)))
        answer = self.cluster.ask(self.cluster.running[0], command)
        assert not answer.error, answer.text
        self.cluster.run(50)

    def _look(self) -> None:
        self.wrong += checkers.overfull(self.cluster, self.queue_id)
        self.cluster.after(1, self._look)

    def states(self) -> dict[str, int]:
        """How many attempts have come to what."""
        found: dict[str, int] = {}
        for attempt in self.journal.attempts.values():
            found[attempt.state] = found.get(attempt.state, 0) + 1
        return found

    def kill_and_start(self, at_ms: int) -> None:
        """The master of that moment dies, and comes back a while later."""

        def kill() -> None:
            master = self.master
            if master is not None and len(self.cluster.running) == 3:
                self.cluster.kill(master)
                self.cluster.after(3000, lambda: self.cluster.start(master))

        self.cluster.after(at_ms, kill)

    @property
    def left(self) -> list[int]:
        """Sequences live at the master."""
        assert self.master is not None
        live = self.cluster.engine(self.master).replicas[self.queue_id].state.live
        return [s for first, last in live for s in range(first, last + 1)]


@pytest.mark.parametrize("seed", range(4))
def test_28_refused_messages_are_not_confirmed_and_never_show_up(seed: int) -> None:
    """reject-publish, the master killed twice while producers go on beyond the limit."""
    world = Limited(seed=seed, max_length=LENGTH, overflow="reject-publish")
    producers = [world.producer("b", 60, "p"), world.producer("c", 60, "q")]
    for at_ms in (30 + seed * 7, 6000):
        world.kill_and_start(at_ms)
    world.until(lambda: all(p.is_done for p in producers if p.is_alive))
    world.cluster.run(10_000)
    states = world.states()
    assert states["acknowledged"] == LENGTH
    assert states["refused"] > 0
    assert world.wrong == []
    world.check()


@pytest.mark.parametrize("seed", range(4))
def test_28_drop_head_keeps_the_newest(seed: int) -> None:
    """drop-head: all are confirmed, the last ones are there, and no copy ever has more."""
    world = Limited(seed=seed, max_length=LENGTH, overflow="drop-head")
    producer = world.producer("b", 120)
    world.kill_and_start(40 + seed * 9)
    world.until(lambda: producer.is_done or not producer.is_alive)
    world.cluster.run(10_000)
    confirmed = sorted(
        attempt.sequence
        for attempt in world.journal.attempts.values()
        if attempt.state == "acknowledged"
    )
    if producer.is_alive:
        assert len(confirmed) == 120
    assert world.left == list(range(confirmed[-1] - LENGTH + 1, confirmed[-1] + 1))
    assert world.wrong == []
    for name in "abc":
        assert world.live(name) == LENGTH
    world.check_copies()


@pytest.mark.parametrize("seed", range(4))
def test_28_block_makes_puts_wait(seed: int) -> None:
    """block: nothing is refused or lost; what waits is stored when a consumer makes room,
    though the master has died while it waited."""
    world = Limited(seed=seed, max_length=LENGTH, overflow="block")
    producer = world.producer("b", 60)
    world.until(lambda: world.master is not None and len(world.left) == LENGTH)
    world.cluster.run(500)
    assert not producer.is_done
    master = world.master
    assert master == "a"
    assert "max-length" in world.cluster.engine("a").replicas[world.queue_id].master.blocked_by
    world.cluster.kill("a")
    world.until(lambda: world.master not in (None, "a"))
    world.cluster.run(500)
    assert len(world.left) == LENGTH
    consumer = world.consumer("c")
    world.until(lambda: producer.is_done)
    world.until(lambda: not world.left)
    assert world.states() == {"acknowledged": 60}
    consumer.close()
    assert world.wrong == []
    world.check()


def test_28_a_requeue_keeps_its_place_above_the_limit() -> None:
    """Returned by a failover or by its consumer: first in the queue again, none is dropped."""
    world = Limited(max_length=3, overflow="drop-head")
    taker = world.taker("b", prefetch=2)
    first = world.put("a", 2, "first")
    world.until(lambda: len(taker.held) == 2)
    taker.prefetch = 0
    second = world.put("a", 3, "second")
    taker.settle(first[1], "nack")
    world.until(lambda: first[1] in taker.outcomes)
    assert world.left == [1, 2, 3, 4, 5]
    world.cluster.kill("a")
    taker.close()
    world.until(lambda: world.master not in (None, "a"))
    world.cluster.run(2000)
    assert world.left == [1, 2, 3, 4, 5]
    late = world.taker("c", prefetch=5)
    world.until(lambda: len(late.held) == 5)
    assert [body for body, _ in late.seen] == [*first, *second]
    assert world.wrong == []


def test_28_bytes_across_a_failover_and_a_new_mirror() -> None:
    """max-length-bytes: sizes are part of the state, also of one that came by a transfer."""
    world = Limited(max_length_bytes=40, overflow="drop-head")
    world.put("a", 30)
    kept = world.left
    world.cluster.kill("c")
    world.cluster.wipe("c")
    world.cluster.run(3000)
    world.cluster.start("c")
    world.until_in_sync()
    world.cluster.run(2000)
    for name in "ab":
        world.cluster.kill(name)
        world.cluster.run(5000)
        world.cluster.start(name)
        world.until_in_sync()
    assert world.left == kept
    producer = Producer(
        Place(world.cluster, "c", world.queue_id, "late", Random(4)), world.journal, 10
    )
    while not producer.is_done:
        producer.publish()
        world.cluster.run(20)
    sizes = world.cluster.engine(world.master or "").replicas[world.queue_id].state.columns
    total = sum(sizes.size(sequence) for sequence in world.left)
    assert 33 < total <= 40
    assert world.wrong == []
    world.check_copies()


# --- 29: time to live ---------------------------------------------------------------------


class _Short(Producer):
    """Its messages end after a while if nobody takes them."""

    ttl_ms = 0

    def publish(self) -> None:
        if not self.is_alive or self.sent >= self.count:
            return
        self.sent += 1
        body = b"%s/%d" % (self.name.encode(), self.sent)
        self.journal.attempts[body] = Attempt(body)
        self.session.put(Put([body], 1, len(body), self._pack_of(body), False, len(body)))
        self.poke()

    def _pack_of(self, body: bytes) -> Any:
        def pack(producer: int, first_number: int, settled: int) -> bytes:
            return frames.pack_publish(
                [body],
                producer=producer,
                first_number=first_number,
                settled=settled,
                ttl_ms=self.ttl_ms,
            )

        return pack


def _put_short(world: World, name: str, count: int, ttl_ms: int) -> None:
    place = Place(world.cluster, "b", world.queue_id, name, Random(5))
    producer = _Short(place, world.journal, count)
    producer.ttl_ms = ttl_ms
    while not producer.is_done:
        producer.publish()
        world.cluster.run(3)


def test_29_messages_end_on_all_copies_alike_though_clocks_differ() -> None:
    """The master's clock alone decides, and what it decided is an op: mirrors whose clocks are
    wrong by an hour end nothing by themselves."""
    world = Limited(message_ttl=4000)
    world.cluster.nodes["c"].clock_offset_ms += 3_600_000
    _put_short(world, "long", 5, 0)
    _put_short(world, "short", 5, 1500)
    world.cluster.run(100)  # Mirrors learn a little later what is stable.
    assert [world.live(name) for name in "abc"] == [10, 10, 10]
    world.cluster.run(1600)
    assert [world.live(name) for name in "abc"] == [5, 5, 5]
    world.cluster.run(3000)
    assert [world.live(name) for name in "abc"] == [0, 0, 0]
    world.check_copies()


def test_29_a_new_master_knows_each_ttl() -> None:
    """Also one whose copy came by a transfer; nothing that has ended is handed out."""
    world = Limited(max_length=1000)
    world.cluster.kill("c")
    world.cluster.wipe("c")
    _put_short(world, "keep", 4, 0)
    _put_short(world, "late", 4, 60_000)
    _put_short(world, "soon", 4, 30_000)
    began_ms = world.cluster.now_ms
    world.cluster.start("c")
    world.until_in_sync()
    for name in "ab":
        world.cluster.kill(name)
        world.until(lambda gone=name: world.master not in (None, gone))
        world.cluster.run(5000)
        world.cluster.start(name)
        world.until_in_sync()
    assert world.cluster.now_ms < began_ms + 30_000
    assert world.left == list(range(1, 13))
    world.cluster.run(began_ms + 30_001 - world.cluster.now_ms)
    assert world.left == list(range(1, 9))
    taker = world.taker("b", prefetch=20)
    world.until(lambda: len(taker.held) == 8)
    assert {body.split(b"/")[0] for body, _ in taker.seen} == {b"keep", b"late"}
    world.cluster.run(40_000)
    assert len(world.left) == 8, "what a consumer holds does not end"
    for _, body in list(taker.held):
        taker.settle(body, "nack" if body.startswith(b"late") else "ack")
    world.until(lambda: world.left == [])
    assert len(taker.seen) == 8, "returned after its time: it ended"
    world.check_copies()


# --- expires ------------------------------------------------------------------------------


def _exists(world: World) -> bool:
    return all(
        world.cluster.engine(name).catalog.queue(world.queue_id) is not None
        for name in world.cluster.running
    )


def test_a_queue_in_use_does_not_expire_and_a_new_master_counts_on() -> None:
    """Nor while a consumer only waits; the time begins when it goes, whoever is master."""
    world = Limited(expires=5000)
    taker = world.taker("b")
    world.cluster.run(20_000)
    assert _exists(world)
    taker.close()
    closed_ms = world.cluster.now_ms
    world.cluster.run(4000)
    world.cluster.kill("a")
    world.until(lambda: world.master not in (None, "a"))
    world.until(lambda: not _exists(world), 5000)
    assert 5000 <= world.cluster.now_ms - closed_ms < 8000


def test_a_policy_that_is_cleared_lets_a_queue_live() -> None:
    """Until the moment of the deletion it may be taken back."""
    world = Limited(expires=3000)
    world.cluster.run(2000)
    world.define(max_length=10)
    world.cluster.run(10_000)
    assert _exists(world)
