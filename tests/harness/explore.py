"""Exhaustive exploration of the ring, its views, the lease and delivery over the real modules.

    python -m harness.explore            every scope in its quick form
    python -m harness.explore --long     every scope in its long form
    python -m harness.explore ring --walks 9000 --seed 7

A scope bounds what may happen (publishes, acks, view changes, crashes, broken links, ticks), and
how many links, disks and catalogs are slow. Within it `explore` visits every reachable state,
breadth first, so that the first violation comes with one of the shortest traces. `walk` then goes
on at random, from a seed, with more that is slow, and demands at its end that all comes to rest
once faults have ended. A violation raises `Found`, which has the trace: the actions from the
first state on.
"""

from __future__ import annotations

import argparse
from collections import deque
from random import Random

from attrs import evolve, frozen

from harness.explore_process import Scope
from harness.explore_world import Action, Bounds, State, Violation, World

__all__ = ["SCOPES", "Explored", "Found", "Plan", "begin", "explore", "main", "report", "walk"]


QUICK_WALKS = 60
LONG_WALKS = 1000
WALK_SLOW = 3
"""Slow links, disks and catalogs in a walk."""
PLAIN = Scope()
USED = Scope(consumes=True)
STAR = Scope(star=True)
RAIL = Scope(star=True, rail=True)
OWNED = Scope(consumes=True, owned=True)
IN_MEMORY = Scope(star=True, rail=True, in_memory=True)


class Found(Exception):
    """A violation, and how to get there."""

    def __init__(self, violation: Violation, trace: tuple[Action, ...]) -> None:
        self.checker = violation.checker
        self.violation = violation
        self.trace = trace
        steps = "".join(f"\n  {number:>3} {step}" for number, step in enumerate(trace, 1))
        super().__init__(f"{violation}\nafter {len(trace)} steps:{steps}")


@frozen
class Plan:
    """One scope: what may happen, and how much of it may be slow in each form."""

    bounds: Bounds
    scope: Scope = PLAIN
    in_sync: tuple[str, ...] | None = None
    count: int = 3
    quick: int | None = 0
    """Slow links, disks and catalogs in the quick form; None: all of them."""
    long: int | None = 1
    states_max: int = 300_000
    """States seen at most; a thousand of them take about a megabyte."""


@frozen
class Explored:
    """What an exploration has seen."""

    states: int
    depth: int
    """Steps from the first state to the deepest one whose successors were all seen."""
    is_exhausted: bool
    """Whether every state within the bounds was seen."""


SCOPES: dict[str, Plan] = {
    "pair": Plan(Bounds(publishes=1, views=1, ticks=0), count=2, quick=None, long=None),
    "pair, twice": Plan(Bounds(publishes=1, views=2, ticks=0), count=2, long=None),
    "trio": Plan(Bounds(publishes=0, views=1, counts=0, ticks=0), quick=None, long=None),
    "trio, used": Plan(
        Bounds(publishes=1, views=1, counts=0, ticks=0), long=None, states_max=1_000_000
    ),
    "ring": Plan(Bounds(publishes=2, views=1), quick=1, long=2),
    "views": Plan(Bounds(publishes=1, views=2, orders=True)),
    "crash": Plan(Bounds(publishes=1, views=1, crashes=1, restarts=1)),
    "crashes": Plan(Bounds(publishes=1, views=1, crashes=2, restarts=2, ticks=0)),
    "breaks": Plan(Bounds(publishes=2, views=1, breaks=1)),
    "joining": Plan(Bounds(publishes=2, views=1, counts=2, ticks=2), in_sync=("a", "b")),
    "consume": Plan(Bounds(publishes=1, acks=1, returns=1, ends=1, views=1), USED),
    "failover": Plan(Bounds(publishes=1, acks=1, views=1, crashes=1, restarts=1, ticks=1), USED),
    # A master is left alone on its word only.
    "survivor": Plan(
        Bounds(publishes=1, views=3, crashes=2, restarts=2, ticks=0, keeps=True), count=2
    ),
    "survivors": Plan(Bounds(publishes=1, views=2, crashes=2, restarts=1, ticks=0, keeps=True)),
    # A living master is moved, and keeps its lease.
    "move": Plan(Bounds(publishes=1, views=2, counts=0, yields=1, ticks=0), USED),
    "producers": Plan(Bounds(publishes=2, views=1, counts=0, misses=1, expiries=1, ticks=0)),
    "late acks": Plan(
        Bounds(publishes=1, acks=1, ends=1, unseen=1, repeats=1, views=1, counts=0, ticks=0), USED
    ),
    # An unclean promotion: at each moment of the joining member's transfer, too.
    "loss": Plan(Bounds(publishes=1, views=2, ticks=0, is_lossy=True), PLAIN, ("a",), 2, 1, 2),
    "loss, crash": Plan(
        Bounds(publishes=1, views=2, crashes=1, restarts=1, ticks=0, is_lossy=True),
        in_sync=("a",),
        count=2,
    ),
    "loss, used": Plan(
        Bounds(publishes=1, acks=1, views=2, ticks=0, is_lossy=True), USED, ("a",), 2, 1, 2
    ),
    "loss of three": Plan(
        Bounds(publishes=1, views=2, ticks=0, is_lossy=True), in_sync=("a", "b"), quick=0, long=1
    ),
    "four": Plan(Bounds(publishes=1, views=1, crashes=1, restarts=1), count=4),
    # Small groups straight from the master, marks straight to it.
    "star, pair": Plan(Bounds(publishes=1, views=1, ticks=0), STAR, count=2, quick=None, long=None),
    "star": Plan(Bounds(publishes=2, views=1), STAR, quick=1, long=2),
    "star, views": Plan(Bounds(publishes=1, views=2, orders=True), STAR),
    "star, crash": Plan(Bounds(publishes=1, views=1, crashes=1, restarts=1), STAR),
    "star, breaks": Plan(Bounds(publishes=2, views=1, breaks=1), STAR),
    "star, joining": Plan(Bounds(publishes=2, views=1, counts=2, ticks=2), STAR, ("a", "b")),
    "star, four": Plan(Bounds(publishes=1, views=1, crashes=1, restarts=1), STAR, count=4),
    # The mirrors' rails take them.
    "rail, pair": Plan(Bounds(publishes=2, views=1, ticks=0), RAIL, count=2, quick=None, long=None),
    "rail": Plan(Bounds(publishes=3, views=1), RAIL, quick=1, long=2),
    "rail, views": Plan(Bounds(publishes=2, views=2, orders=True), RAIL),
    "rail, crash": Plan(Bounds(publishes=2, views=1, crashes=1, restarts=1), RAIL),
    "rail, breaks": Plan(Bounds(publishes=3, views=1, breaks=1), RAIL),
    "rail, joining": Plan(Bounds(publishes=2, views=1, counts=2, ticks=2), RAIL, ("a", "b")),
    # It belongs to one connection, which is lost and comes back, closes or dies.
    "owned, pair": Plan(
        Bounds(publishes=1, views=1, losses=1, closes=1, ticks=1), OWNED, count=2, quick=0, long=1
    ),
    "owned": Plan(
        Bounds(publishes=1, acks=1, views=1, losses=1, closes=1, meddles=1, ticks=1), OWNED
    ),
    "owned, crash": Plan(
        Bounds(publishes=1, views=1, crashes=1, restarts=1, losses=1, ticks=2), OWNED
    ),
    # `durability: replicated`: they tell what they have received.
    "in memory, pair": Plan(
        Bounds(publishes=2, views=1, ticks=0), IN_MEMORY, count=2, quick=None, long=None
    ),
    "in memory": Plan(Bounds(publishes=2, views=2, orders=True), IN_MEMORY),
    "in memory, crash": Plan(Bounds(publishes=2, views=1, crashes=1, restarts=1), IN_MEMORY),
    "in memory, breaks": Plan(Bounds(publishes=3, views=1, breaks=1), IN_MEMORY),
}


def begin(plan: Plan) -> tuple[World, State]:
    """A world of this scope and its first state.

    Raises:
        Found: a checker objects already on the way there.
    """
    world = World(plan.count, plan.bounds, plan.scope)
    try:
        return world, world.first(plan.in_sync)
    except Violation as violation:
        raise Found(violation, ()) from None


def explore(world: World, first: State, states_max: int) -> Explored:
    """Visit every state within the world's bounds, breadth first, up to a number of states.

    Raises:
        Found: a checker objected; the trace is one of the shortest.
    """
    seen = {hash(first)}
    origins: list[tuple[int, Action]] = [(-1, ())]
    todo = deque([(first, 0, 0)])
    depth = 0
    while todo:
        state, number, depth = todo.popleft()
        for action in world.actions(state):
            try:
                follower = world.do(state, action)
            except Violation as violation:
                raise Found(violation, (*_trace(origins, number), action)) from None
            mark = hash(follower)
            if mark in seen:
                continue
            seen.add(mark)
            todo.append((follower, len(origins), depth + 1))
            origins.append((number, action))
        if len(origins) >= states_max:
            return Explored(len(origins), depth, not todo)
    return Explored(len(origins), depth, True)


def _trace(origins: list[tuple[int, Action]], number: int) -> tuple[Action, ...]:
    steps: list[Action] = []
    while number > 0:
        number, action = origins[number]
        steps.append(action)
    return tuple(reversed(steps))


def walk(world: World, first: State, random: Random, steps_max: int = 400) -> State:
    """One run at random, until nothing can happen any more; then all faults end.

    Raises:
        Found: a checker objected, or things did not come to rest in sync.
    """
    state = first
    trace: list[Action] = []
    while len(trace) < steps_max:
        actions = list(world.actions(state))
        if not actions:
            break
        action = actions[random.randrange(len(actions))]
        trace.append(action)
        try:
            state = world.do(state, action)
        except Violation as violation:
            raise Found(violation, tuple(trace)) from None
    try:
        return world.heal(state)
    except Violation as violation:
        raise Found(violation, tuple(trace)) from None


def main(arguments: list[str] | None = None) -> int:
    """The command line. Exit status 1 when a checker objected."""
    parser = argparse.ArgumentParser(description="Explore the ring over the real modules.")
    parser.add_argument("scopes", nargs="*", help=f"of {', '.join(SCOPES)}; all when none is named")
    parser.add_argument("--long", action="store_true", help="the long form: minutes")
    parser.add_argument("--states", type=int, help="states a scope at most")
    parser.add_argument("--walks", type=int, help="walks a scope")
    parser.add_argument("--seed", type=int, default=0, help="of the walks")
    options = parser.parse_args(arguments)
    walks = options.walks
    if walks is None:
        walks = LONG_WALKS if options.long else QUICK_WALKS
    for name in options.scopes or SCOPES:
        plan = SCOPES[name]
        slow = plan.long if options.long else plan.quick
        try:
            states_max = options.states or plan.states_max
            print(report(name, plan, slow, states_max, walks, options.seed), flush=True)
        except Found as found:
            print(f"{name}: {found}")
            return 1
    return 0


def report(name: str, plan: Plan, slow: int | None, states_max: int, walks: int, seed: int) -> str:
    """Explore one scope and walk in it; return what was seen, in a line.

    Raises:
        Found: a checker objected.
    """
    seen = explore(*begin(evolve(plan, bounds=evolve(plan.bounds, slow=slow))), states_max)
    world, first = begin(evolve(plan, bounds=evolve(plan.bounds, slow=WALK_SLOW)))
    for number in range(walks):
        walk(world, first, Random(f"{name} {seed} {number}"))
    how = "exhausted" if seen.is_exhausted else f"all up to {seen.depth} steps"
    slow_text = "all" if slow is None else str(slow)
    return f"{name:12} slow: {slow_text:3} {seen.states:>8} states, {how}; {walks} walks"


if __name__ == "__main__":
    raise SystemExit(main())
