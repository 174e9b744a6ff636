"""Questions about a view, and orders that avoid broken links."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from mirrorq.protocol.identities import MemberId
from mirrorq.protocol.views import (
    Member,
    View,
    arrange,
    find,
    find_store,
    in_sync_ids,
    index,
    is_in_sync,
    is_master,
    joining_ids,
    last_in_sync,
    left,
    links,
    make_view,
    master,
    next_durability,
    order_error,
    right,
)

A, B, C, D = (MemberId(name, number, 1) for number, name in enumerate("abcd", 1))
VIEW = make_view(7, (A, B), (C,))
EMPTY = View(1, ())


def test_neighbours_follow_the_order_of_the_view() -> None:
    """Ops go right from the master to the last joining member; no member stands outside."""
    assert [left(VIEW, one) for one in (A, B, C, D)] == [None, A, B, None]
    assert [right(VIEW, one) for one in (A, B, C, D)] == [B, C, None, None]
    assert (master(VIEW), last_in_sync(VIEW)) == (A, B)
    assert (in_sync_ids(VIEW), joining_ids(VIEW)) == ((A, B), (C,))


def test_an_incarnation_is_not_its_successor() -> None:
    """A restarted node is no member of a view that names its incarnation before; its store is."""
    again = MemberId("b", B.store, 2)
    assert find(VIEW, again) is None
    assert index(VIEW, again) is None
    assert not is_in_sync(VIEW, again)
    assert find_store(VIEW, "b", B.store) == Member(B, True)
    assert find_store(VIEW, "b", 99) is None


def test_an_empty_view_answers_every_question() -> None:
    """A view without members has no master and breaks no question."""
    assert master(EMPTY) is None
    assert last_in_sync(EMPTY) is None
    assert left(EMPTY, A) is right(EMPTY, A) is None
    assert not is_master(EMPTY, A)
    assert links(EMPTY) == ()


def test_links_name_neighbours_the_closing_link_and_joiners() -> None:
    """A view needs neighbours to hear each other, mj the master, and each joiner the master."""
    assert links(make_view(1, (A,))) == ()
    assert links(make_view(1, (A, B))) == (("a", "b"),)
    assert links(VIEW) == (("a", "b"), ("b", "c"), ("a", "c"))
    assert set(links(make_view(1, (A, B, C), (D,)))) == {
        ("a", "b"),
        ("b", "c"),
        ("c", "d"),
        ("a", "c"),
        ("a", "d"),
    }


def test_orders_that_cannot_be_are_named() -> None:
    """Every malformed view is told apart, in words."""
    assert order_error(VIEW.members) == ""
    assert "no members" in order_error(())
    assert "master a is not in sync" in order_error((Member(A, False),))
    assert "before one in sync" in order_error((Member(A, True), Member(B, False), Member(C, True)))
    assert "twice" in order_error((Member(A, True), Member(MemberId("a", 9, 1), False)))


def broken(*pairs: str):  # type: ignore[no-untyped-def]
    """Return the question "is the link between these two broken" for pairs like "ab"."""
    return lambda one, other: one + other in pairs or other + one in pairs


def test_a_whole_ring_keeps_its_order() -> None:
    """Without a broken link nothing moves."""
    assert arrange(A, (C, B), (D,), broken()) == ((A, C, B), (D,))


def test_mirrors_are_re_ordered_round_a_broken_link() -> None:
    """R11: a-b-c-d with b-c broken: some order has them apart, and all stay in sync."""
    in_sync, joining = arrange(A, (B, C, D), (), broken("bc"))
    assert set(in_sync) == {A, B, C, D}
    assert joining == ()
    assert in_sync == (A, B, D, C)


def test_the_closing_link_counts() -> None:
    """R11: the last in sync sends the watermark to the master, so that link counts too."""
    in_sync, _ = arrange(A, (B, C, D), (), broken("ad"))
    assert in_sync == (A, B, D, C)


def test_three_members_with_a_broken_link_become_two() -> None:
    """In a triangle no order helps: the mirror without the master leaves, else the younger."""
    assert arrange(A, (B, C), (), broken("ac")) == ((A, B), ())
    assert arrange(A, (B, C), (), broken("bc")) == ((A, B), ())


def test_a_joiner_needs_its_left_and_the_master() -> None:
    """A joiner that cannot reach the master, or nobody to its left, has to wait outside."""
    assert arrange(A, (B,), (C, D), broken("ac")) == ((A, B), (D,))
    assert arrange(A, (B,), (C, D), broken("bc")) == ((A, B), (D, C))
    assert arrange(A, (B,), (C,), broken("bc")) == ((A, B), ())


@given(st.integers(0, 5), st.integers(0, 3), st.integers(0), st.data())
def test_any_broken_links_leave_a_view_without_them(
    mirrors: int, joiners: int, seed: int, data: st.DataObject
) -> None:
    """Whatever breaks: the result needs no broken link, and nobody comes in twice or anew."""
    members = [MemberId(name, 1, 1) for name in "abcdefghij"[: 1 + mirrors + joiners]]
    names = [one.node for one in members]
    pairs = [one + other for one in names for other in names if one < other]
    bad = data.draw(st.sets(st.sampled_from(pairs))) if pairs else set()
    is_broken = broken(*bad)
    in_sync, joining = arrange(
        members[0], members[1 : 1 + mirrors], members[1 + mirrors :], is_broken
    )
    view = make_view(1, in_sync, joining)
    assert order_error(view.members) == ""
    assert not [pair for pair in links(view) if is_broken(*pair)]
    assert in_sync[0] == members[0]
    assert set(in_sync) <= set(members[: 1 + mirrors])
    assert set(joining) <= set(members)
    if not bad:
        assert (in_sync + joining) == tuple(members)


def test_durability_changes_at_once_to_memory_and_in_two_steps_back() -> None:
    """Only a settling view whose master says that all is on disk is followed by fsync."""
    made = {
        name: replace(make_view(1, ()), durability=name)
        for name in ("fsync", "settling", "replicated")
    }
    assert [next_durability(one, "replicated") for one in made.values()] == ["replicated"] * 3
    assert [next_durability(one, "fsync") for one in made.values()] == [
        "fsync",
        "settling",
        "settling",
    ]
    settled = [next_durability(one, "fsync", settled=True) for one in made.values()]
    assert settled == ["fsync", "fsync", "settling"]
