"""Every rule that is left out must be noticed: by exploration, simulator or property test."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from harness.explore import begin
from harness.explore_search import PLANS, attempt
from harness.mutations.registry import MUTATIONS

from .catches import SCENARIOS, SEEDS, catch, unaccounted
from .shown import SHOWN
from .traces import TRACES


def test_each_mutation_is_accounted_for() -> None:
    """No mutation is without its checker, and none is named that is not there."""
    assert unaccounted() == set()


SLOW = {"release of runs that are partly live", "unclean promotion loses in silence"}
NAMES = [
    pytest.param(name, marks=pytest.mark.slow if name in SLOW else ()) for name in sorted(MUTATIONS)
]


@pytest.mark.parametrize("name", NAMES)
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


@pytest.mark.slow
@pytest.mark.parametrize("name", OWN)
def test_without_the_mutation_the_scenario_ends_in_peace(name: str) -> None:
    SCENARIOS[name].play()


RELIABILITY = Path(__file__).parents[1] / "RELIABILITY.md"


def test_each_checker_is_shown_by_a_mutation() -> None:
    """Every checker that tests/RELIABILITY.md names, in bold, objects to some mutation: to
    that of `SEEDS`, by its own words, or to another one that is played below."""
    text = RELIABILITY.read_text("utf-8")
    section = text.split("## Checkers", 1)[1].split("\n## ", 1)[0]
    named = {" ".join(words.split()) for words in re.findall(r"\*\*([a-z\s]+)\*\*", section)}
    assert named == set(SHOWN)
    for one in SHOWN.values():
        assert one.run is not None or SEEDS[one.rule_left_out].checker == one.words


@pytest.mark.parametrize("name", [name for name, one in SHOWN.items() if one.run is not None])
def test_a_checker_objects_to_its_mutation(name: str) -> None:
    assert SHOWN[name].words in SHOWN[name].play()
