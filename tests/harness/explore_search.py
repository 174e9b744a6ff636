"""Short ways to a violation: walks at random, and what of their steps is needed.

    python -m harness.explore_search "gate ended by a timeout"

looks for a trace that shows that a mutation is caught, and prints it as tests/model has it.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from random import Random

from harness.explore import IN_MEMORY, OWNED, RAIL, STAR, USED, Found, Plan, begin
from harness.explore_process import Scope
from harness.explore_world import Action, Bounds, State, Violation, World
from harness.mutations.registry import MUTATIONS, mutation

__all__ = ["PLANS", "attempt", "main", "search", "shrink"]

STEPS_MAX = 80

PLANS: dict[str, Plan] = {
    "star": Plan(
        Bounds(publishes=4, views=3, crashes=1, restarts=1, breaks=1, orders=True, ticks=2, slow=3),
        STAR,
    ),
    "rail": Plan(
        Bounds(publishes=4, views=3, crashes=1, restarts=1, breaks=1, orders=True, ticks=2, slow=3),
        RAIL,
    ),
    "in memory": Plan(
        Bounds(publishes=4, views=3, breaks=1, orders=True, ticks=2, slow=3), IN_MEMORY
    ),
    "views": Plan(Bounds(publishes=3, views=3, counts=2, orders=True, ticks=2, slow=3)),
    "crashes": Plan(Bounds(publishes=2, views=3, counts=2, crashes=2, restarts=2, ticks=2, slow=3)),
    "breaks": Plan(Bounds(publishes=3, views=2, breaks=1, ticks=2, slow=3)),
    "joining": Plan(
        Bounds(publishes=3, views=3, counts=2, crashes=1, restarts=1, ticks=3, slow=3),
        in_sync=("a", "b"),
    ),
    "transfer": Plan(
        Bounds(publishes=3, acks=2, views=3, counts=2, crashes=1, restarts=1, ticks=3, slow=3),
        USED,
        in_sync=("a", "b"),
    ),
    "consume": Plan(Bounds(publishes=2, acks=2, returns=1, ends=1, views=2, ticks=2, slow=3), USED),
    "failover": Plan(
        Bounds(
            publishes=2,
            acks=2,
            returns=1,
            ends=1,
            views=3,
            crashes=1,
            restarts=1,
            ticks=2,
            slow=3,
        ),
        USED,
    ),
    "move": Plan(Bounds(publishes=2, acks=1, returns=1, views=3, yields=2, ticks=1, slow=3), USED),
    "late": Plan(
        Bounds(publishes=2, acks=1, views=2, crashes=1, restarts=1, ticks=2, slow=3),
        Scope(consumes=True, is_late=True),
    ),
    "owned": Plan(
        Bounds(
            publishes=2,
            acks=1,
            views=2,
            losses=2,
            closes=1,
            meddles=1,
            ticks=2,
            slow=2,
        ),
        OWNED,
    ),
    "producers": Plan(Bounds(publishes=2, views=1, misses=1, expiries=1, ticks=1, slow=2)),
    "late acks": Plan(
        Bounds(publishes=1, acks=1, ends=1, unseen=1, repeats=1, views=1, ticks=1, slow=1), USED
    ),
    "careless": Plan(
        Bounds(
            publishes=2,
            views=2,
            crashes=1,
            restarts=1,
            wipes=1,
            ticks=1,
            is_careless=True,
            slow=1,
        )
    ),
    "fourth": Plan(
        Bounds(publishes=1, views=2, counts=1, crashes=1, ticks=1, slow=3),
        in_sync=("a", "b", "c"),
        count=4,
    ),
    "four": Plan(
        Bounds(publishes=2, views=3, counts=2, crashes=1, restarts=1, ticks=2, slow=4), count=4
    ),
}
"""Wider scopes than can be exhausted."""


def search(plan: Plan, seeds: Iterable[int]) -> Found | None:
    """Walk at random until a checker objects; return the shortened way to it, or None."""
    try:
        world, first = begin(plan)
    except Found as found:
        return found
    for seed in seeds:
        trace = _walk(world, first, Random(seed))
        if trace is not None:
            return shrink(world, first, trace)
    return None


def _walk(world: World, first: State, random: Random) -> tuple[Action, ...] | None:
    """One run: first what is slow, then anything, each kind of action as likely as another."""
    tasks = list(world._tasks())
    slow = random.sample(tasks, random.randint(0, first.left.slow))
    trace: list[Action] = []
    state = first
    try:
        for task in slow:
            trace.append(("slow", task))
            state = world.do(state, trace[-1])
        while len(trace) < STEPS_MAX:
            actions = [action for action in world.actions(state) if action[0] != "slow"]
            if not actions:
                return None
            kind = random.choice(sorted({action[0] for action in actions}))
            trace.append(random.choice([action for action in actions if action[0] == kind]))
            state = world.do(state, trace[-1])
    except Violation:
        return tuple(trace)
    return None


def attempt(world: World, first: State, trace: tuple[Action, ...]) -> Found | None:
    """Repeat a trace; None when it leads to no violation or has a step that cannot be done."""
    state = first
    for number, action in enumerate(trace, 1):
        if action not in world.actions(state):
            return None
        try:
            state = world.do(state, action)
        except Violation as violation:
            return Found(violation, trace[:number])
    return None


def shrink(world: World, first: State, trace: tuple[Action, ...]) -> Found | None:
    """Leave out steps as long as a checker still objects."""
    best = attempt(world, first, trace)
    if best is None:
        return None
    place = len(best.trace) - 1
    while place >= 0:
        shorter = best.trace[:place] + best.trace[place + 1 :]
        found = attempt(world, first, shorter)
        if found is not None:
            best = found
            place = min(place, len(best.trace))
        place -= 1
    return best


def main(arguments: list[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description="Look for traces that catch mutations.")
    parser.add_argument("names", nargs="*", help="mutations; all when none is named")
    parser.add_argument("--walks", type=int, default=500, help="a scope at most")
    parser.add_argument("--scopes", default=",".join(PLANS))
    options = parser.parse_args(arguments)
    for name in options.names or MUTATIONS:
        print(_line(name, options.scopes.split(","), options.walks), flush=True)
    return 0


def _line(name: str, scopes: list[str], walks: int) -> str:
    best: tuple[str, Found] | None = None
    with mutation(name):
        for scope in scopes:
            found = search(PLANS[scope], range(walks))
            if found is not None and (best is None or len(found.trace) < len(best[1].trace)):
                best = (scope, found)
                if len(found.trace) <= 8:
                    break
    if best is None:
        return f"    # {name!r}: not caught in {walks} walks"
    scope, found = best
    return f"    {name!r}: ({scope!r}, {found.checker!r}, {found.trace!r}),"


if __name__ == "__main__":
    raise SystemExit(main())
