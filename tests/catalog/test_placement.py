"""Which members a queue should have, by its policy; and which masters to move."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from mirrorq.cluster.catalog.records import QueueRecord
from mirrorq.cluster.controller.placement import Levelling, Loads, QueueMaster, wanted_members
from mirrorq.node.shortfall import missing
from mirrorq.protocol.commands import DeclareQueue
from mirrorq.protocol.identities import MemberId
from mirrorq.protocol.policy import DEFAULT, Definition
from mirrorq.protocol.views import make_view

A, B, C, D = (MemberId(name, number, 1) for number, name in enumerate("abcd", 1))
IDLE = Loads({}, {})
RANDOM = Definition(queue_master_locator="random")
LEAST = Definition(queue_master_locator="min-masters")


def exactly(count: int) -> Definition:
    return Definition(ha_mode="exactly", ha_params=count)


def nodes(*names: str) -> Definition:
    return Definition(ha_mode="nodes", ha_params=names)


def declaration(declarer: str, *, exclusive: bool = False, name: str = "q") -> DeclareQueue:
    return DeclareQueue(name, True, exclusive, False, declarer, None, ())


QUEUE = QueueRecord(1, "q", True, False, False, "a", None, make_view(4, (C, A), (B,)))

# --- First views ----------------------------------------------------------------------------


def test_the_declarer_is_the_first_master() -> None:
    """Locator client-local: the declaring node masters the queue, all others mirror it."""
    loads = Loads({"b": 5}, {})
    assert wanted_members(declaration("b"), DEFAULT, (A, B, C), loads) == (B, A, C)


def test_a_declarer_without_queues_leaves_it_to_the_least_loaded() -> None:
    """A witness or a client declares: fewest masters, then the name, decides."""
    loads = Loads({"a": 2, "b": 1}, {})
    assert wanted_members(declaration("w"), DEFAULT, (A, B, C), loads) == (C, A, B)
    assert wanted_members(declaration("w"), DEFAULT, (B, A), IDLE) == (A, B)


def test_25_min_masters_is_the_node_that_leads_the_fewest() -> None:
    """Whoever declares; equal ones by name."""
    loads = Loads({"a": 2, "b": 1, "c": 1}, {})
    assert wanted_members(declaration("a"), LEAST, (C, B, A), loads)[0] == B
    assert wanted_members(declaration("c"), LEAST, (A, B, C), IDLE)[0] == A


def test_25_random_is_the_same_everywhere_and_reaches_all() -> None:
    """A hash of the name: no chance in it, whoever declares, and every node gets some."""
    found = []
    for number in range(60):
        first = wanted_members(declaration("a", name=f"q{number}"), RANDOM, (A, B, C), IDLE)
        again = wanted_members(declaration("c", name=f"q{number}"), RANDOM, (C, A, B), IDLE)
        assert first == again
        found.append(first[0].node)
    assert all(found.count(name) > 8 for name in "abc")


def test_exactly_takes_the_nodes_with_the_fewest_copies() -> None:
    """The master by the locator, the mirrors by copies held, then by name."""
    loads = Loads({}, {"a": 0, "b": 3, "c": 2, "d": 2})
    assert wanted_members(declaration("b"), exactly(3), (A, B, C, D), loads) == (B, A, C)
    assert wanted_members(declaration("b"), exactly(1), (A, B, C, D), loads) == (B,)
    assert wanted_members(declaration("b"), exactly(9), (A, B, C), loads) == (B, A, C)


def test_listed_nodes_that_run_are_the_first_view() -> None:
    """The declarer leads if it is listed, else the least loaded of those that are."""
    assert wanted_members(declaration("a"), nodes("b", "a", "x"), (A, B, C), IDLE) == (A, B)
    assert wanted_members(declaration("c"), nodes("b", "a"), (A, B, C), IDLE) == (A, B)
    # None of them runs: one copy, with the declarer.
    assert wanted_members(declaration("c"), nodes("x"), (A, B, C), IDLE) == (C,)


@pytest.mark.parametrize("definition", [DEFAULT, exactly(2), nodes("a", "b"), LEAST])
def test_an_exclusive_queue_has_one_member_and_never_moves(definition: Definition) -> None:
    """Not mirrored whatever the policy; later it is wanted where its store is, nowhere else."""
    assert wanted_members(declaration("b", exclusive=True), definition, (A, B, C), IDLE) == (B,)
    queue = evolve(QUEUE, exclusive=True, view=make_view(1, (B,)))
    again = MemberId("b", B.store, 2)
    assert wanted_members(queue, definition, (A, again), IDLE) == (again,)
    assert wanted_members(queue, definition, (A, C), IDLE) == ()


# --- Queues that exist ----------------------------------------------------------------------


def test_an_existing_queue_keeps_its_order_and_takes_newcomers_last() -> None:
    """Members stand as in the view, by store; nodes without a copy follow."""
    again = MemberId("a", A.store, 9)
    loads = Loads({"a": 9}, {})
    assert wanted_members(QUEUE, DEFAULT, (again, B, C, D), loads) == (C, again, B, D)


def test_exactly_keeps_who_is_there() -> None:
    """Fewer than now: the first of the view stay. More: the nodes with the fewest copies."""
    running = (A, B, C, D)
    for count, wanted in ((1, (C,)), (2, (C, A)), (3, (C, A, B)), (4, (C, A, B, D))):
        assert wanted_members(QUEUE, exactly(count), running, IDLE) == wanted
    alone = evolve(QUEUE, view=make_view(1, (D,)))
    loads = Loads({}, {"a": 2, "b": 1, "c": 1})
    assert wanted_members(alone, exactly(2), running, loads) == (D, B)


def test_19_a_lost_member_is_replaced_when_its_place_is_not_kept() -> None:
    """While it is kept nobody takes it but the lost one itself."""
    alone = evolve(QUEUE, view=make_view(1, (C,)))
    assert wanted_members(alone, exactly(2), (A, C, D), IDLE, lost=("b",)) == (C,)
    assert wanted_members(alone, exactly(2), (A, C, D), IDLE) == (C, A)
    assert wanted_members(alone, exactly(2), (A, B, C, D), IDLE, lost=("b",)) == (C, B)
    assert wanted_members(alone, exactly(3), (A, C, D), IDLE, lost=("b",)) == (C, A)


def test_19_who_comes_back_after_it_was_replaced_is_not_taken() -> None:
    """Still two: those that are there now."""
    replaced = evolve(QUEUE, view=make_view(1, (C,), (D,)))
    assert wanted_members(replaced, exactly(2), (A, B, C, D), IDLE, lost=("b",)) == (C, D)


def test_20_listed_nodes_that_do_not_run_are_ignored() -> None:
    """Those that run count; when none does, the copies stay where they are."""
    assert wanted_members(QUEUE, nodes("b", "x", "d"), (A, B, C, D), IDLE) == (B, D)
    assert wanted_members(QUEUE, nodes("x"), (A, B, C, D), IDLE) == (C, A, B)


def test_nobody_running_wants_nobody() -> None:
    """With no running node the answer is empty, for declarations too."""
    for definition in (DEFAULT, exactly(2), nodes("a"), RANDOM, LEAST):
        assert wanted_members(QUEUE, definition, (), IDLE) == ()
        assert wanted_members(declaration("a"), definition, (), IDLE) == ()


# --- Levelling ------------------------------------------------------------------------------


def levelled(seats: Sequence[QueueMaster], nodes: str) -> dict[int, str]:
    """The moves that a rebalance finds."""
    levelling = Levelling(nodes)
    for seat in seats:
        levelling.add(seat)
    while levelling.lower():
        pass
    return levelling.moves


def test_25_masters_are_levelled() -> None:
    """Six queues of one node, each in sync on all three: two each."""
    seats = [QueueMaster(number, "a", ("b", "c")) for number in range(1, 7)]
    moves = levelled(seats, "abc")
    assert sorted(moves.values()) == ["b", "b", "c", "c"]


def test_25_a_chain_of_moves_levels_what_no_single_move_can() -> None:
    """a's queues can go to b only, b's to c: one of each goes one further."""
    seats = [QueueMaster(1, "a", ("b",)), QueueMaster(2, "a", ("b",)), QueueMaster(3, "b", ("c",))]
    assert levelled(seats, "abc") == {1: "b", 3: "c"}


def test_25_what_is_level_stays() -> None:
    """A difference of one is level; queues that cannot move stay."""
    assert levelled([QueueMaster(1, "a", ("b",))], "ab") == {}
    assert levelled([QueueMaster(number, "a", ()) for number in range(5)], "ab") == {}
    assert levelled([QueueMaster(1, "a", ("x",)), QueueMaster(2, "a", ("x",))], "ab") == {}


seats_of_three = st.lists(
    st.tuples(st.sampled_from("abc"), st.sets(st.sampled_from("abc"))), max_size=6
)


@given(seats_of_three)
def test_25_no_other_choice_has_a_lower_maximum(drawn: Sequence[tuple[str, set[str]]]) -> None:
    """Compared with all choices of masters that are possible."""
    seats = [
        QueueMaster(number, master, tuple(sorted(others - {master})))
        for number, (master, others) in enumerate(drawn)
    ]
    moves = levelled(seats, "abc")
    after = [moves.get(seat.queue_id, seat.master) for seat in seats]
    assert all(name in (seat.master, *seat.others) for seat, name in zip(seats, after, strict=True))
    best = min(
        (sorted(map(choice.count, "abc"), reverse=True))
        for choice in product(*[(seat.master, *seat.others) for seat in seats])
    )
    assert sorted(map(after.count, "abc"), reverse=True) == best


# --- Who belongs to a ring and does not run -------------------------------------------------


@pytest.mark.parametrize(
    ("definition", "members", "running", "found"),
    [
        (DEFAULT, (A, B, C), (A, B), ("d",)),
        (DEFAULT, (A, B), (A, B, C), ("d",)),
        (nodes("a", "c", "x"), (A,), (A, B), ("c",)),
        (exactly(3), (A, B), (A, B, C), ("d",)),
        (exactly(2), (A, B), (A, B), ()),
        # One of the two was in it: not known which.
        (exactly(3), (A, B), (A, B), ()),
        (exactly(4), (A, B), (A, B), ("c", "d")),
    ],
    ids=str,
)
def test_who_is_missing_from_a_ring(
    definition: Definition,
    members: tuple[MemberId, ...],
    running: tuple[MemberId, ...],
    found: tuple[str, ...],
) -> None:
    """A node that does not run and was taken out of a ring to which its policy gives it; a member
    that does not run is in the ring still."""
    queue = evolve(QUEUE, view=make_view(1, members))
    holders = {one.node: one for one in (A, B, C, D)}
    assert missing(queue, definition, holders, running.__contains__) == found
    assert missing(evolve(queue, exclusive=True), definition, holders, running.__contains__) == ()
