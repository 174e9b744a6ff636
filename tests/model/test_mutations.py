"""Every rule that is left out must be noticed: by a checker of the exploration or by a test."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from core import test_delivery, test_master
from mirrorq.testing.explore import Found, begin
from mirrorq.testing.explore_search import PLANS, attempt, search
from mirrorq.testing.explore_world import Violation
from mirrorq.testing.mutations import MUTATIONS, mutation
from simulation import test_dead_letters, test_replicated
from supervisor import test_handover

from . import scenarios
from .traces import TRACES

WALKS = 300
"""Tried where a trace no longer fits: minutes, and only then."""


def _tests_of(name: str) -> ModuleType:
    """A module of tests that is in no package."""
    path = Path(__file__).parents[1] / "supervisor" / f"{name}.py"
    spec = spec_from_file_location(f"supervisor_{name}", path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


LEASE, LIVENESS = _tests_of("test_lease"), _tests_of("test_liveness")


def _queue() -> test_master.Queue:
    queue = test_master.Queue()
    queue.sync()
    queue.attach(test_master.ONE)
    queue.heard()
    return queue


def _ear() -> Any:
    ear = LIVENESS.Ear()
    ear.hears = {LIVENESS.B: (), LIVENESS.C: ()}
    ear.run(1250)
    return ear


TESTS: dict[str, Callable[[], None]] = {
    "ack by epoch and sequence only": (
        test_delivery.test_a_piece_is_taken_once_and_by_its_holder_only
    ),
    "give-back without hand-out number": (
        test_delivery.test_a_give_back_of_an_old_hand_out_is_void
    ),
    "producer gap accepted": lambda: test_master.test_a_gap_in_numbers_is_asked_for(_queue()),
    "unknown producer taken as new": (
        lambda: test_master.test_an_unknown_producer_may_not_go_on(_queue())
    ),
    "refusal that is no op": (
        lambda: test_master.test_a_refusal_is_told_from_a_stable_op_and_stays(_queue())
    ),
    "lease before an entry of the own term": (LEASE.test_a_grant_needs_an_entry_of_the_own_term),
    "lease without the commit index": (
        LEASE.test_the_lease_needs_the_catalog_up_to_its_commit_index
    ),
    "lease from the grant's receipt": (LEASE.test_the_lease_runs_from_the_send_time_of_the_request),
    "lease without the new leader's wait": (
        LEASE.test_a_new_leader_outlasts_what_others_may_have_granted
    ),
    "promise of another epoch": (
        test_handover.test_promises_of_others_and_of_other_epochs_are_none
    ),
    "dead on a refused probe alone": (
        lambda: LIVENESS.test_a_refused_probe_alone_is_nothing(_ear())
    ),
    "outbox published from an unstable op": (
        test_dead_letters.test_what_is_not_stable_is_published_nowhere
    ),
    "outbox lost with its queue": (
        test_dead_letters.test_29_a_queue_goes_only_when_its_outbox_is_empty
    ),
    "outbox's id expires": test_dead_letters.test_an_outbox_is_known_however_late_it_comes_back,
}
"""Mutations that one member shows: the test that fails under each."""

SCENARIOS = {
    "counted in by the known stable mark only": scenarios.predecessor_confirmed_more,
}
"""Mutations that take too many steps for a trace: the scenario, and its checker."""


SIMULATED = {
    "restarted replicated member counted as in sync": (
        test_replicated.test_mutation_a_restarted_member_counted_as_in_sync_is_noticed
    ),
}
"""Mutations that the simulator's checkers notice: the test that switches it on and says so."""


def test_each_mutation_is_accounted_for() -> None:
    """No mutation is without a trace or a test, and none is named that is not there."""
    assert set(MUTATIONS) == set(TRACES) | set(TESTS) | set(SCENARIOS) | set(SIMULATED)
    assert not set(TRACES) & set(TESTS)


@pytest.mark.parametrize("name", TRACES)
def test_a_checker_catches_the_mutation(name: str) -> None:
    """Under the mutation the trace ends with the checker's violation."""
    plan, checker, trace = TRACES[name]
    with mutation(name):
        try:
            found = attempt(*begin(PLANS[plan]), trace)
        except Found as at_once:
            found = at_once
        if found is None:
            found = search(PLANS[plan], range(WALKS))
    assert found is not None, f"{name}: neither the trace nor {WALKS} walks show it"
    assert found.checker == checker, found


@pytest.mark.parametrize("name", TRACES)
def test_without_the_mutation_the_trace_is_harmless(name: str) -> None:
    """The same steps, as far as they can be done, violate nothing in the real modules."""
    plan, _, trace = TRACES[name]
    assert attempt(*begin(PLANS[plan]), trace) is None


@pytest.mark.parametrize("name", TESTS)
def test_a_unit_test_catches_the_mutation(name: str) -> None:
    """Under the mutation the named test fails; without it, it passes."""
    TESTS[name]()
    with mutation(name), pytest.raises(AssertionError):
        TESTS[name]()


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_checker_catches_the_mutation_in_a_scenario(name: str) -> None:
    """Under the mutation the scenario ends in a violation of P1; without it, in peace."""
    SCENARIOS[name]()
    with mutation(name), pytest.raises(Violation) as caught:
        SCENARIOS[name]()
    assert caught.value.checker == "disk"
