"""Staged messages as applied state: every order of what is asked, bytes, freed bodies."""

from __future__ import annotations

from array import array
from typing import Any

import msgspec
import pytest
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st

from mirrorq.protocol.staged import (
    DONE,
    FENCED,
    PAST,
    SEALED,
    AbortOp,
    AskOp,
    CommitOp,
    CrossQueueTask,
    SealOp,
    Stage,
    Winner,
)
from mirrorq.replication.state.outbox import Outbox
from mirrorq.replication.state.queue_state import QueueState
from mirrorq.replication.state.staging import COMMITTED_RANGES_MAX, Staging, StagingResult

from .staged_world import Interleaving, TwoQueues, World

T = "t"
ONE = array("i", [0, 1]).tobytes()
"""Offsets of one message of one byte."""


def sevens(count: int) -> bytes:
    """Offsets of so many messages of seven bytes, behind something else."""
    return array("i", range(30, 37 + 7 * count, 7)).tobytes()


def stage(state: Staging, run: str, attempt: int, chunk: int, first: int, count: int = 2) -> str:
    return state.on_stage(Stage(T, 1, run, 0, attempt, chunk), first, sevens(count), count, 0)


def commit(run: str, *winners: Winner, count: int = 0, **more: Any) -> CommitOp:
    total = count or sum(winner[3] for winner in winners)
    return CommitOp(T, 1, run, winners, 100, total, **more)


def test_a_commit_shows_the_winners_in_order_and_drops_the_rest() -> None:
    state = Staging()
    assert stage(state, "a", 0, 1, 10) == stage(state, "a", 1, 1, 20) == ""
    assert stage(state, "a", 0, 2, 30) == stage(state, "b", 0, 1, 40) == ""
    assert (state.staged.count, state.size, state.attempts) == (8, 56, 3)
    outcome = state.on_commit(commit("a", (0, 0, 2, 4)))
    sizes = [(first, last, found.total(first, last)) for first, last, found in outcome.sizes]
    assert sizes == [(10, 11, 14), (30, 31, 14)]
    assert evolve(outcome, sizes=[]) == StagingResult(
        "", [(10, 11), (30, 31)], dropped=[(20, 21), (40, 41)]
    )
    assert (state.staged.count, state.size, state.attempts, state.open) == (0, 0, 0, {})


def test_what_is_committed_answers_everything_after_it() -> None:
    state = Staging()
    stage(state, "a", 0, 1, 10)
    assert not state.on_commit(commit("a", (0, 0, 1, 2))).why
    for run in "ab":
        assert stage(state, run, 5, 1, 20).startswith(DONE)
        assert state.on_commit(commit(run, (0, 5, 1, 2))).why.startswith(DONE)
        assert state.on_abort(AbortOp(T, 1, run)).why.startswith(DONE)
        assert state.on_commit(CommitOp(T, 0, run)).why.startswith(PAST)
    assert not state.on_stage(Stage(T, 2, "a", 0, 0, 1), 30, ONE, 1, 0)
    assert not state.on_stage(Stage("u", 1, "a", 0, 0, 1), 40, ONE, 1, 0)


def test_a_version_that_was_passed_over_is_told_from_one_that_is_committed() -> None:
    """It names both numbers, keeps nothing, and can be given up; a copy knows the same."""
    state = Staging()
    for version in (1, 2, 5):
        assert not state.on_commit(CommitOp(T, version, "a", (), 100 + version, 0)).why
    for known in (state, Staging.restore(msgspec.to_builtins(state.image()), 200)):
        for version in (1, 2, 5):
            assert known.verdict(T, version, "b").startswith(f"{DONE}: version {version} ")
        for version in (0, 3, 4):
            why = known.on_stage(Stage(T, version, "b", 0, 0, 1), 150, ONE, 1, 0)
            assert why.startswith(f"{PAST}: version {version} of 't' is not, and version 5 is")
            assert "another transaction" in why
            assert known.on_commit(CommitOp(T, version, "b")).why == why
            assert not known.on_abort(AbortOp(T, version, "b")).why
        assert known.verdict(T, 6, "b") == ""
        assert (known.open, known.staged.count) == ({}, 0)


def test_committed_versions_take_bounded_room() -> None:
    """Of very many ranges the lowest are forgotten: a version there is refused, never taken for
    committed, nor committed twice."""
    state = Staging()
    for version in range(0, 4 * COMMITTED_RANGES_MAX, 2):
        assert not state.on_commit(CommitOp(T, version, "a", (), 100 + version, 0)).why
    assert len(state.committed[T]) == COMMITTED_RANGES_MAX
    assert state.verdict(T, 0, "b").startswith(PAST)
    assert state.verdict(T, 4 * COMMITTED_RANGES_MAX - 2, "b").startswith(DONE)


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
    assert state.on_seal(seal) == StagingResult("", dropped=[(20, 21)])
    assert state.on_seal(seal) == StagingResult()
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
    assert {name: list(known) for name, known in state.committed.items()} == {T: [(1, 2)]}
    assert not state.open


def test_a_decision_gives_a_sealed_run_up() -> None:
    state = Staging()
    stage(state, "a", 0, 1, 10)
    state.on_seal(SealOp(T, 1, "a", ((0, 0, 1, 2),), 9))
    assert state.on_abort(AbortOp(T, 1, "a", is_decision=True)) == StagingResult(
        "", dropped=[(10, 11)]
    )
    assert state.on_commit(commit("a", is_decision=True)).why.startswith(FENCED)


def test_who_is_told_and_asked() -> None:
    """A commit and an abort tell the others; a question is asked once; who is asked gives up what
    is undecided, and tells in any case."""
    state = Staging()
    stage(state, "a", 0, 1, 10)
    told = CrossQueueTask("commit", T, 1, "a")
    done = state.on_commit(commit("a", (0, 0, 1, 2), others=(7, 8)))
    assert done.tasks == [(7, told), (8, told)]
    asked = AskOp(T, 1, "a", 7)
    assert state.on_ask(asked, 1).tasks == [(7, CrossQueueTask("abort", T, 1, "a"))]
    stage_other = state.on_stage(Stage(T, 2, "b", 0, 0, 1), 20, ONE, 1, 0)
    assert (stage_other, state.on_ask(AskOp(T, 2, "b", 7), 1).dropped) == ("", [(20, 20)])
    assert state.on_commit(CommitOp(T, 2, "b")).why.startswith(FENCED)
    assert state.on_abort(AbortOp(T, 2, "c", others=(7,))).tasks == [
        (7, CrossQueueTask("abort", T, 2, "c"))
    ]
    state.on_seal(SealOp(T, 3, "d", (), 9), 5)
    assert list(state.sealed_runs(6)) == [(T, 3, "d", 9)]
    assert list(state.sealed_runs(5)) == []
    mine = AskOp(T, 3, "d", 1)
    assert state.on_ask(mine, 1).tasks == [(9, CrossQueueTask("ask", T, 3, "d"))]
    assert state.on_ask(mine, 1).why
    assert state.on_abort(AbortOp(T, 3, "d", is_decision=True)).why == ""
    assert state.on_ask(mine, 1).why


def test_tasks_have_numbers_of_the_outbox() -> None:
    """They go between messages, keep no body, and are numbered anew after an unclean promotion."""
    outbox = Outbox()
    outbox.add(7, [(3, 4)], "expired", 1)
    assert outbox.add_task(7, 2) == 3
    outbox.add(7, [(9, 9)], "expired", 3)
    assert (outbox.count, outbox.kept.count) == (4, 3)
    again = Outbox.restore(outbox.image(), 100)
    assert (again.image(), again.count) == (outbox.image(), 4)
    assert outbox.done(7, 1) == ((3, 3),)
    assert outbox.begin_anew([(4, 4)]) == [(7, 3, 1)]
    assert outbox.done(7, 2) == ((9, 9),)
    assert (outbox.count, outbox.target_outboxes, outbox.idle) == (0, {}, {7: 3})
    state = Staging()
    state.tasks = {
        (7, 3): CrossQueueTask("ask", T, 1, "r"),
        (7, 5): CrossQueueTask("ask", T, 2, "r"),
    }
    state.renumber([(7, 3, 1), (7, 5, 2)])
    state.forget_tasks(7, 1)
    assert list(state.tasks) == [(7, 2)]
    assert Staging.restore(state.image(), 100).tasks == state.tasks


def test_idle_runs() -> None:
    state = Staging()
    state.on_stage(Stage(T, 1, "a", 0, 0, 1), 10, ONE, 1, 1000)
    state.on_stage(Stage(T, 1, "b", 0, 0, 1), 20, ONE, 1, 2000)
    assert list(state.idle_runs(1500)) == [(T, 1, "a")]


# --- Every order --------------------------------------------------------------------------


def test_every_order_of_two_drivers_and_their_tasks() -> None:
    """5,040 orders of chunks, a loser, two drivers, one of which asks twice, an expiry."""
    seen = Interleaving.run_all()
    assert seen == {"a", "b"}


@pytest.mark.slow
def test_every_order_in_two_queues() -> None:
    """Two drivers that seal in one queue and commit in another, an expiry, an abort, questions,
    and what the queues tell each other: both show the same run in the end."""
    states, ends = TwoQueues.run_all()
    assert states > 1000
    assert ends == {"a", "b", ""}


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


def test_an_unclean_promotion_ends_what_it_lost() -> None:
    """Lost bodies of committed messages end these; a run that lacks one is given up; the rest
    stays, and what of it is needed is what was not lost."""
    world = World()
    world.do(2, 0, 3)
    world.do(6, 0, 0)
    world.do(2, 2, 2)
    world.do(2, 4, 2)
    (shown,) = world.state.live
    assert shown == (6, 8)
    staged = list(world.state.staging.staged)
    lost = ((2, 2), (staged[0][0], staged[0][0]))
    for first, last in lost:
        for origin in range(first, last + 1):
            del world.bodies[origin]
    world.promote(lost)
    assert list(world.state.live) == [(7, 8)]
    assert list(world.state.staging.staged) == staged[1:]
    assert "unclean" in world.state.staging.verdict("t", 2, "a")
    assert world.state.staging.verdict("t", 3, "a") == ""
    world.check()
    assert QueueState.decode(world.state.encode()).encode() == world.state.encode()


@pytest.mark.parametrize(
    "image",
    [
        [1, 2, 3, 4, 5],
        [[], [], b"123", b"", []],
        [[], [], b"", b"", [[7, 1, "sing", "t", 1, "r"]]],
        [[], [["t", 1, [["r", 0, 0, False, [], [[0, 0, 1, [[5, 4]]]]]], []]], b"", b"", []],
        [[], [["t", 1, [["r", 0, 0, False, [], [[0, 0, 1, [[5, 400]]]]]], []]], b"", b"", []],
        [[], [["t", 1, [["r", 0, 0, False, [], [[0, 0, 2, [[5, 6], [6, 7]]]]]], []]], b"", b"", []],
    ],
)
def test_a_wrong_image_is_refused(image: Any) -> None:
    with pytest.raises(ValueError, match=r"staged|column|chunk"):
        Staging.restore(image, 100)
