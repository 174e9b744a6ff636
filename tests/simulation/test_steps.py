"""Acks and puts that are one op, while masters die: a chain of queues, and transactions."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from harness import checkers
from harness.chain import DONE, Mover

from .test_dead_letters import DeadLetters

SEEDS = range(4)


class Chain(DeadLetters):
    """Messages are put into "orders", and their results into "dead" or "orders"."""

    def mover(self, node: str, target: int) -> Mover:
        made = Mover(
            self.cluster, node, self.queue_id, f"m on {node}", Random(5), self.journal, 0.0
        )
        made.target = target
        return made

    def run_through(self, seed: int, target: int) -> set[bytes]:
        """Put 60 messages, with movers on two nodes, while masters die; return what must have
        its result by now: all."""
        producer = self.producer("c", 60)
        self.mover("c", target)
        self.mover("b", target)
        self.kill_masters(60 + 13 * seed, 4000 + 7 * seed, 8000, 12_000 + 11 * seed)
        self.until(lambda: producer.is_done or not producer.is_alive)
        self.cluster.run(20_000)
        self.cluster.start()
        self.mover("a", target)
        self.until(lambda: self.master is not None and self.live(self.master) == 0)
        self.until(lambda: self.outgoing() == 0)
        self.cluster.run(3000)
        attempts = self.journal.attempts.values()
        return {one.body for one in attempts if one.state == "acknowledged"}


@pytest.mark.parametrize("seed", SEEDS)
def test_a_result_is_put_elsewhere_exactly_if_the_ack_was_taken(seed: int) -> None:
    world = Chain(seed=seed)
    confirmed = world.run_through(seed, world.dead_id)
    found = Counter(body for body, _ in checkers.standing(world.cluster, world.dead_id))
    assert max(found.values()) == 1
    seen = {dispatch.body for dispatch in world.journal.deliveries}
    assert {DONE + body for body in confirmed | seen} == set(found)
    for queue_id in (world.queue_id, world.dead_id):
        assert checkers.unequal(world.cluster, queue_id) == []
    assert checkers.undrained(world.cluster, world.queue_id) == []
    assert checkers.undone_acks(world.journal) == []
    assert world.cluster.onlooker.wrong == []


@pytest.mark.parametrize("seed", SEEDS)
def test_a_transaction_is_all_or_nothing(seed: int) -> None:
    """Each message is replaced by its result: never both, never neither, never twice."""
    world = Chain(seed=seed)
    confirmed = world.run_through(seed, 0)
    seen = {d.body for d in world.journal.deliveries if not d.body.startswith(DONE)}
    results: dict[bytes, set[int]] = {}
    for dispatch in world.journal.deliveries:
        if dispatch.body.startswith(DONE):
            results.setdefault(dispatch.body, set()).add(dispatch.sequence)
    assert {DONE + body for body in confirmed | seen} == set(results)
    assert all(len(places) == 1 for places in results.values())
    assert checkers.duplicated(world.journal) == []
    assert checkers.undone_acks(world.journal) == []
    assert checkers.unequal(world.cluster, world.queue_id) == []
    assert checkers.undrained(world.cluster, world.queue_id) == []
    assert world.cluster.onlooker.wrong == []
