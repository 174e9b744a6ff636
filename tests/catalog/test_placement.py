"""Which members a queue should have, without policies."""

from __future__ import annotations

from attrs import evolve

from mirrorq.catalog import QueueRecord
from mirrorq.messages import DeclareQueue, MemberId
from mirrorq.placement import wanted_members
from mirrorq.view import make_view

A, B, C, D = (MemberId(name, number, 1) for number, name in enumerate("abcd", 1))


def declaration(declarer: str, *, exclusive: bool = False) -> DeclareQueue:
    return DeclareQueue("q", True, exclusive, False, declarer, None, ())


QUEUE = QueueRecord(1, "q", True, False, False, "a", None, make_view(4, (C, A), (B,)))


def test_the_declarer_is_the_first_master() -> None:
    """Locator client-local: the declaring node masters the queue, all others mirror it."""
    assert wanted_members(declaration("b"), (A, B, C), {"b": 5}) == (B, A, C)


def test_a_declarer_without_queues_leaves_it_to_the_least_loaded() -> None:
    """A witness or a client declares: fewest masters, then the name, decides."""
    assert wanted_members(declaration("w"), (A, B, C), {"a": 2, "b": 1}) == (C, B, A)
    assert wanted_members(declaration("w"), (B, A), {}) == (A, B)


def test_an_exclusive_queue_has_one_member_and_never_moves() -> None:
    """Not mirrored; later it is wanted where its store is, and nowhere else."""
    assert wanted_members(declaration("b", exclusive=True), (A, B, C), {}) == (B,)
    queue = evolve(QUEUE, exclusive=True, view=make_view(1, (B,)))
    again = MemberId("b", B.store, 2)
    assert wanted_members(queue, (A, again), {}) == (again,)
    assert wanted_members(queue, (A, C), {}) == ()


def test_an_existing_queue_keeps_its_order_and_takes_newcomers_last() -> None:
    """Members stand as in the view, by store; nodes without a copy follow by name."""
    again = MemberId("a", A.store, 9)
    assert wanted_members(QUEUE, (again, B, C, D), {"a": 9}) == (C, again, B, D)


def test_nobody_running_wants_nobody() -> None:
    """With no running node the answer is empty, for declarations too."""
    assert wanted_members(QUEUE, (), {}) == ()
    assert wanted_members(declaration("a"), (), {}) == ()
