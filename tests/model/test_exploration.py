"""The quick form of the exploration: every scope, some only to a number of states.

`make test` sees a fifth of these states, `make test-all` all of them; `make explore` exhausts the
scopes.
"""

from __future__ import annotations

from random import Random

import pytest
from attrs import evolve

from harness.explore import SCOPES, begin, report, walk

WALKS = 3
STATES_MAX = 30_000
EARLY_MAX = 1_000
BOUNDED = {
    "ring": 400,
    "views": 200,
    "crash": 300,
    "breaks": 300,
    "crashes": 300,
    "loss, used": 400,
    "joining": 250,
    "consume": 200,
    "failover": 200,
    "four": 200,
    "survivor": 300,
    "survivors": 200,
    "star": 400,
    "star, views": 200,
    "star, crash": 300,
    "star, breaks": 300,
    "star, joining": 250,
    "star, four": 200,
    "rail, pair": 400,
    "rail": 300,
    "rail, views": 200,
    "rail, crash": 300,
    "rail, breaks": 200,
    "rail, joining": 250,
    "owned, pair": 400,
    "owned": 200,
    "owned, crash": 200,
    "in memory, pair": 400,
    "in memory": 200,
    "in memory, crash": 300,
    "in memory, breaks": 200,
}
"""States of scopes that would take ten seconds and more each; `make explore` exhausts them."""


@pytest.mark.parametrize("name", SCOPES)
def test_no_early_state_of_the_scope_violates_anything(name: str) -> None:
    """The first states of the quick scope, and a walk with more that is slow."""
    plan = SCOPES[name]
    assert report(name, plan, plan.quick, BOUNDED.get(name, EARLY_MAX) // 5, 1, seed=2)


@pytest.mark.slow
@pytest.mark.parametrize("name", SCOPES)
def test_no_state_within_the_scope_violates_anything(name: str) -> None:
    """Every reachable state of the quick scope, and walks with more that is slow."""
    plan = SCOPES[name]
    seen = report(name, plan, plan.quick, BOUNDED.get(name, STATES_MAX), WALKS, seed=1)
    assert name in BOUNDED or "exhausted" in seen, seen


def test_the_same_seed_walks_the_same_way() -> None:
    """A walk is repeated by its seed: the state at its end is the same."""
    ends = []
    for _ in range(2):
        world, first = begin(SCOPES["crash"])
        end = walk(world, first, Random("seed"))
        ends.append((world.describe(end), end.witness))
    assert ends[0][0] == ends[1][0]
    assert len(ends[0][1].stable) == len(ends[1][1].stable)


def test_an_ack_of_the_past_that_was_lost_is_not_held_against_the_next_one() -> None:
    """The new master of an unclean promotion has a message whose ack it never got: the message
    lives again, told by all of its log and not only by what it calls stable at first."""
    plan = SCOPES["loss, used"]
    world, state = begin(evolve(plan, bounds=evolve(plan.bounds, slow=plan.long)))
    for action in (
        ("slow", ("disk", 1, 0)),
        ("view", "append", ""),
        ("slow", ("link", 0, 1)),
        ("publish", 0),
        ("hear", 0, 1),
        ("write", 1),
        ("ack", 0, 0),
        ("write", 1),
        ("view", "lose", "b"),
        ("write", 1),
    ):
        state = world.do(state, action)
    assert state.witness.past == state.epoch
    assert not state.witness.settled
