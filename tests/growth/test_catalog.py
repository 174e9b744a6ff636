"""What one step of a node costs at most, as the catalog grows: it does not grow with it.

Three nodes with few and with many queues in their catalog. Then a queue is declared, a policy is
set for all, a node dies, comes back and is forgotten. Of each step the executed lines of engine,
controller and catalog are counted meanwhile; those of copies are counted elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest

from harness.cluster import SimulatedCluster
from mirrorq.cluster.catalog.exchanges import Exchanges
from mirrorq.cluster.controller import agenda, transfers
from mirrorq.engine import follower, hosting, reports, sync_reports
from mirrorq.engine.engine import Engine
from mirrorq.engine.events import Ask
from mirrorq.protocol.commands import (
    Bind,
    DeclareExchange,
    DeclareQueue,
    DeleteQueue,
    Rebalance,
    RemoveNode,
    SetPolicy,
)
from mirrorq.protocol.policy import parse, to_text
from mirrorq.protocol.routing import Binding

from .work import Work, work_of

GROWTH_MAX = 2
PORTION = 4
FEW, MANY = 28, 140
"""Queues: more than a portion, and many more."""
SLOW_FEW, SLOW_MANY = 100, 2000
ROOMS = ("/mirrorq/engine/", "/mirrorq/cluster/")
"""Copies that are due at one time are taken together: their timers are left out."""


@contextmanager
def small_portions() -> Iterator[None]:
    """While it lasts, a node does much less in one step than else."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(agenda, "JUDGED_MAX", PORTION)
        patch.setattr(hosting, "RUN_MAX", PORTION)
        patch.setattr(hosting, "TOLD_MAX", PORTION)
        patch.setattr(follower, "APPLIED_MAX", PORTION)
        for module in (reports, sync_reports):
            patch.setattr(module, "REPORTED_MAX", PORTION)
        patch.setattr(transfers, "LOOKS_AT_ONCE", PORTION)
        patch.setattr(transfers, "FOUND_AT_ONCE", PORTION)
        yield


class Large:
    """Three nodes and so many queues; names have so many characters."""

    def __init__(self, queues: int, characters: int = 10, exchanges: int = 10) -> None:
        self.queues, self.characters = queues, characters
        self.cluster = SimulatedCluster(seed=5)
        self.cluster.start()
        self.cluster.run(2000)
        for first in range(0, queues, 100):
            for number in range(first, min(first + 100, queues)):
                self.tell(
                    DeclareQueue(self.name(number), True, False, False, "a", None, ()), number
                )
            self.cluster.run(100)
        for number in range(exchanges):
            self.tell(DeclareExchange(f"x{number}", "topic"))
            self.tell(Bind(f"x{number}", self.name(0), "k", ""))
        self.cluster.run(10_000)
        assert len(self.cluster.engine("a").catalog.queues()) == queues
        assert len(self.cluster.engine("a").catalog.exchanges()) == exchanges

    def name(self, number: int) -> str:
        return f"{number:0>{self.characters}}"

    def tell(self, command: Any, number: int = 0) -> None:
        node = "abc"[number % 3]
        self.cluster.tell(node, Ask(self.cluster.new_token(), command))

    def longest(self, doing: Callable[[Large], None]) -> Work:
        """The most that one step of an engine does meanwhile."""
        works: list[Work] = []
        step = Engine.step

        def counted(engine: Engine, now_ms: int, steady_us: int, events: Iterable[Any]) -> Any:
            taken: list[Any] = []

            def call() -> None:
                taken.append(step(engine, now_ms, steady_us, events))

            works.append(work_of(call, rooms=ROOMS))
            return taken[0]

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Engine, "step", counted)
            doing(self)
        return max(works, key=lambda work: work.count)


def declare(large: Large) -> None:
    command = DeclareQueue("new", True, False, False, "b", None, ())
    assert not large.cluster.ask("b", command).error


def set_policy(large: Large) -> None:
    """For all queues."""
    policy = parse("p", "", {"max-length": 1000})
    assert not large.cluster.ask("b", SetPolicy("p", to_text(policy))).error
    large.cluster.run(500)


def delete(large: Large) -> None:
    assert not large.cluster.ask("b", DeleteQueue(1)).error


def death(large: Large) -> None:
    """Of a node that leads a third of all."""
    leader = large.cluster.engine("a").leader
    large.cluster.kill(next(name for name in "abc" if name != leader))
    large.cluster.run(1500)


def comes_back(large: Large) -> None:
    large.cluster.start()
    large.cluster.run(1500)


def rebalance(large: Large) -> None:
    """After a node has come back that leads nothing."""
    large.cluster.run(10_000)
    answer = large.cluster.ask("a", Rebalance())
    assert not answer.error
    assert answer.value > large.queues // 4


def forget(large: Large) -> None:
    """A node, as soon as it is known dead: it is in views still."""
    leader = large.cluster.engine("a").leader
    name = next(name for name in "abc" if name != leader)
    large.cluster.kill(name)
    large.cluster.run(50)
    large.cluster.ask(leader or "a", RemoveNode(name, force=True))
    large.cluster.run(1500)


Doing = Callable[[Large], None]
DOINGS: Sequence[Doing] = (declare, delete, set_policy, death, comes_back, rebalance, forget)


def growth_text(few: Large, many: Large, unjudged: Doing | None = None) -> str:
    """Name what grows."""
    grown = []
    for doing in DOINGS:
        before, after = few.longest(doing), many.longest(doing)
        if doing is not unjudged and after.count >= GROWTH_MAX * before.count:
            grown.append(f"{doing.__name__}: {before.count}, {after.growth_text(before)}")
    return "; ".join(grown)


def test_no_step_grows_with_the_queues() -> None:
    """A node's death and return, too, which concern a third of them, or all."""
    with small_portions():
        assert growth_text(Large(FEW), Large(MANY)) == ""


@pytest.mark.slow
@pytest.mark.parametrize(("characters", "exchanges"), [(255, 10), (10, 1000)])
def test_no_step_grows_with_names_or_exchanges(characters: int, exchanges: int) -> None:
    with small_portions():
        assert growth_text(Large(FEW), Large(FEW, characters, exchanges)) == ""


@pytest.mark.soak
def test_no_step_grows_with_very_many_queues() -> None:
    """But for the return of a node: each copy is told of the new link in one step, which is some
    four lines for a copy (docs/sizing.md)."""
    with small_portions():
        assert growth_text(Large(SLOW_FEW), Large(SLOW_MANY), comes_back) == ""


def test_a_binding_costs_the_same_however_many_the_exchange_has() -> None:
    """Bindings are compared in C: a node that joins takes 64 of them in one step."""

    def work(count: int) -> int:
        exchanges = Exchanges()
        exchanges.declare(1, DeclareExchange("x", "headers"))
        for number in range(count + 1):
            known = exchanges.get("x")
            assert known is not None
            call = partial(exchanges.bind, number, known, Binding(1, "", f'{{"k": {number}}}'))
            if number < count:
                call()
        return work_of(call, under="").count

    assert work(1000) < GROWTH_MAX * work(10)
