"""Staged messages as applied state: every order of what is asked, bytes, freed bodies."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mirrorq.messages.staged import (
    DONE,
    FENCED,
    SEALED,
    AbortOp,
    CommitOp,
    SealOp,
    Stage,
    Winner,
)
from mirrorq.queue_state import QueueState
from mirrorq.staging import Outcome, Staging

from .staged_world import Interleaving, World

T = "t"


def stage(state: Staging, run: str, attempt: int, chunk: int, first: int, count: int = 2) -> str:
    return state.on_stage(Stage(T, 1, run, 0, attempt, chunk), first, [7] * count, 0)


def commit(run: str, *winners: Winner, count: int = 0, **more: Any) -> CommitOp:
    total = count or sum(winner[3] for winner in winners)
    return CommitOp(T, 1, run, winners, 100, total, **more)


def test_a_commit_shows_the_winners_in_order_and_drops_the_rest() -> None:
    state = Staging()
    assert stage(state, "a", 0, 1, 10) == stage(state, "a", 1, 1, 20) == ""
    assert stage(state, "a", 0, 2, 30) == stage(state, "b", 0, 1, 40) == ""
    assert (state.staged.count, state.size, state.attempts) == (8, 56, 3)
    outcome = state.on_commit(commit("a", (0, 0, 2, 4)))
    assert outcome == Outcome("", [(10, 11), (30, 31)], [(2, 7), (2, 7)], [(20, 21), (40, 41)])
    assert (state.staged.count, state.size, state.attempts, state.open) == (0, 0, 0, {})


def test_what_is_committed_answers_everything_after_it() -> None:
    state = Staging()
    stage(state, "a", 0, 1, 10)
    assert not state.on_commit(commit("a", (0, 0, 1, 2))).why
    for run in "ab":
        assert stage(state, run, 5, 1, 20).startswith(DONE)
        assert state.on_commit(commit(run, (0, 5, 1, 2))).why.startswith(DONE)
        assert state.on_abort(AbortOp(T, 1, run)).why.startswith(DONE)
        assert state.on_commit(CommitOp(T, 0, run)).why.startswith(DONE)
    assert not state.on_stage(Stage(T, 2, "a", 0, 0, 1), 30, [1], 0)
    assert not state.on_stage(Stage("u", 1, "a", 0, 0, 1), 40, [1], 0)


@pytest.mark.parametrize(
    "winners",
    [
        ((0, 0, 1, 2),),
        ((0, 0, 2, 3),),
        ((0, 0, 3, 4),),
        ((0, 1, 1, 2),),
        ((0, 0, 2, 4), (1, 0, 1, 1)),
        ((0, 0, 2, 4), (0, 0, 2, 4)),
    ],
)
def test_a_commit_needs_all_winners_whole(winners: tuple[Winner, ...]) -> None:
    """Too few chunks, too many, messages not there, a partition twice: refused, for ever."""
    state = Staging()
    stage(state, "a", 0, 1, 10)
    stage(state, "a", 0, 2, 20)
    refused = state.on_commit(commit("a", *winners))
    assert refused.why.startswith(FENCED)
    assert refused.dropped == [(10, 11), (20, 21)]
    assert stage(state, "a", 0, 3, 30).startswith(FENCED)
    assert state.on_commit(commit("a", (0, 0, 2, 4))).why.startswith(FENCED)
    assert (state.staged.count, state.attempts) == (0, 0)


def test_chunks_come_in_order() -> None:
    state = Staging()
    assert "chunk 2" in stage(state, "a", 0, 2, 10)
    assert not state.open
    assert stage(state, "a", 0, 1, 10) == ""
    assert "chunk 1" in stage(state, "a", 0, 1, 20)
    assert "chunk 3" in stage(state, "a", 0, 3, 20)
    assert state.staged.count == 2


def test_a_sealed_run_waits_for_the_decision_alone() -> None:
    state = Staging()
    stage(state, "a", 0, 1, 10)
    stage(state, "a", 1, 1, 20)
    seal = SealOp(T, 1, "a", ((0, 0, 1, 2),), 9)
    assert state.on_seal(seal) == Outcome("", dropped=[(20, 21)])
    assert state.on_seal(seal) == Outcome()
    assert state.on_seal(SealOp(T, 1, "a", (), 9)).why.startswith(SEALED)
    assert stage(state, "a", 0, 2, 30).startswith(SEALED)
    assert state.on_abort(AbortOp(T, 1, "a")).why.startswith(SEALED)
    assert state.on_commit(commit("a", (0, 0, 1, 2))).why.startswith(SEALED)
    assert list(state.idle_runs(1 << 60)) == []
    assert not state.on_commit(CommitOp(T, 2, "z", (), 50, 0)).why
    assert state.staged.count == 2, "a later version does not touch it"
    decided = state.on_commit(commit("a", count=2, is_decision=True))
    assert decided.pieces == [(10, 11)]
    assert state.on_commit(commit("a", is_decision=True)).why.startswith(DONE)
    assert state.committed == {T: 2}
    assert not state.open


def test_a_decision_gives_a_sealed_run_up() -> None:
    state = Staging()
    stage(state, "a", 0, 1, 10)
    state.on_seal(SealOp(T, 1, "a", ((0, 0, 1, 2),), 9))
    assert state.on_abort(AbortOp(T, 1, "a", is_decision=True)) == Outcome("", dropped=[(10, 11)])
    assert state.on_commit(commit("a", is_decision=True)).why.startswith(FENCED)


def test_idle_runs() -> None:
    state = Staging()
    state.on_stage(Stage(T, 1, "a", 0, 0, 1), 10, [1], 1000)
    state.on_stage(Stage(T, 1, "b", 0, 0, 1), 20, [1], 2000)
    assert list(state.idle_runs(1500)) == [(T, 1, "a")]


# --- Every order --------------------------------------------------------------------------


def test_every_order_of_two_drivers_and_their_tasks() -> None:
    """5,040 orders of chunks, a loser, two drivers, one of which asks twice, an expiry."""
    seen = Interleaving.run_all()
    assert seen == {"a", "b"}


# --- The queue's whole state --------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 5), st.integers(1, 3)), max_size=40))
def test_random_lives(steps: list[tuple[int, int, int]]) -> None:
    """Puts, chunks, commits, aborts, acks in any order: the state comes back from its bytes, the
    bodies that it needs are those of live and staged messages, and each is freed once."""
    world = World()
    for step in steps:
        world.do(*step)
        world.check()
    again = QueueState.decode(world.state.encode())
    assert again.encode() == world.state.encode()
    assert (again.staging.size, again.staging.attempts) == (
        world.state.staging.size,
        world.state.staging.attempts,
    )
    world.drain()


@pytest.mark.parametrize(
    "image",
    [
        [1, 2, 3, 4],
        [[], [], b"123", b""],
        [[], [["t", 1, [["r", 0, 0, [], [[0, 0, 1, [[5, 4]]]]]], []]], b"", b""],
        [[], [["t", 1, [["r", 0, 0, [], [[0, 0, 1, [[5, 400]]]]]], []]], b"", b""],
        [[], [["t", 1, [["r", 0, 0, [], [[0, 0, 2, [[5, 6], [6, 7]]]]]], []]], b"", b""],
    ],
)
def test_a_wrong_image_is_refused(image: Any) -> None:
    with pytest.raises(ValueError, match=r"staged|column|chunk"):
        Staging.restore(image, 100)


