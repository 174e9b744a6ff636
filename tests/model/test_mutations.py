"""Every rule that is left out must be noticed: by exploration, simulator or property test."""

from __future__ import annotations

import pytest

from mirrorq.testing.explore import begin
from mirrorq.testing.explore_search import PLANS, attempt
from mirrorq.testing.mutations import MUTATIONS

from .catches import SCENARIOS, catch, unaccounted
from .traces import TRACES


def test_each_mutation_is_accounted_for() -> None:
    """No mutation is without its checker, and none is named that is not there."""
    assert unaccounted() == set()


@pytest.mark.parametrize("name", sorted(MUTATIONS))
def test_a_checker_catches_the_mutation(name: str) -> None:
    """Under the mutation the trace, the scenario or the seed ends in the checker's complaint."""
    assert catch(name, is_quick=True) is not None, f"{name}: its checker does not object"


@pytest.mark.parametrize("name", TRACES)
def test_without_the_mutation_the_trace_is_harmless(name: str) -> None:
    """The same steps, as far as they can be done, violate nothing in the real modules."""
    plan, _, trace = TRACES[name]
    assert attempt(*begin(PLANS[plan]), trace) is None


OWN = [name for name, one in SCENARIOS.items() if one.play.__module__.startswith("model.")]
"""Those of tests/simulation are tests there."""


@pytest.mark.parametrize("name", OWN)
def test_without_the_mutation_the_scenario_ends_in_peace(name: str) -> None:
    SCENARIOS[name].play()
