"""Columns against what they stand for: a number for each live message."""

from __future__ import annotations

from array import array
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirrorq.columns import Column, Sizes, equal_size, sizes_of
from mirrorq.ranges import RangeSet

ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), st.lists(st.integers(0, 2), min_size=1, max_size=5)),
        st.tuples(st.just("end"), st.tuples(st.integers(0, 60), st.integers(0, 12))),
    ),
    max_size=40,
)


def _played(actions: list[tuple[str, object]]) -> tuple[Sizes, RangeSet, dict[int, int]]:
    """Publish and end messages as a queue does; return what should be known of each."""
    sizes, live, plain = Sizes(), RangeSet(), dict[int, int]()
    following = 1
    for what, value in actions:
        if what == "publish":
            assert isinstance(value, list)
            sizes.append_sizes(following, value)
            live.add(following, following + len(value) - 1)
            plain.update(enumerate(value, following))
            following += len(value)
            continue
        assert isinstance(value, tuple)
        for low, high in live.within(value[0], value[0] + value[1]):
            live.remove(low, high)
            for sequence in range(low, high + 1):
                del plain[sequence]
            sizes.forget(*live.gap(low, 1, following - 1))
    return sizes, live, plain


@given(ACTIONS)
def test_every_live_message_has_its_value(actions: list[tuple[str, object]]) -> None:
    """Whatever ended around it."""
    sizes, live, plain = _played(actions)
    assert {sequence: sizes.at(sequence) for sequence in plain} == plain
    for first, last in live:
        runs = list(sizes.runs(first, last))
        assert runs[0][0] == first
        assert runs[-1][1] == last
        found = {s: value for a, b, value in runs for s in range(a, b + 1)}
        assert found == {s: plain[s] for s in range(first, last + 1)}


@given(ACTIONS)
def test_sums_of_live_ranges(actions: list[tuple[str, object]]) -> None:
    """total() of any part of a live range is the sum of its sizes."""
    sizes, live, plain = _played(actions)
    for first, last in live:
        for low in range(first, last + 1):
            for high in range(low, last + 1):
                assert sizes.total(low, high) == sum(plain[s] for s in range(low, high + 1))


@given(ACTIONS)
def test_no_run_is_kept_for_dead_messages(actions: list[tuple[str, object]]) -> None:
    """A queue through which millions go holds runs of what is in it only."""
    sizes, _, plain = _played(actions)
    assert len(sizes) <= len(plain)


@given(ACTIONS)
def test_bytes_and_copies_go_on_alike(actions: list[tuple[str, object]]) -> None:
    """What was written and read again, and a copy, behave as the first does."""
    sizes, live, plain = _played(actions)
    read, copy = Sizes.from_bytes(sizes.to_bytes()), sizes.copy()
    assert read == copy == sizes
    for made in (sizes, read, copy):
        made.append(1000, 1001, 7)
    assert read == copy == sizes
    for first, last in live:
        assert read.total(first, last) == sum(plain[s] for s in range(first, last + 1))


def test_a_long_queue_that_drains_keeps_no_head() -> None:
    """Runs that are gone at the front are cut off now and then."""
    sizes = Sizes()
    for sequence in range(1, 10_001):
        sizes.append(sequence, sequence, sequence % 7)
        if sequence > 10:
            sizes.forget(1, sequence - 10)
    assert len(sizes) == 10
    assert len(sizes._lasts) < 3000
    assert sizes.total(9991, 10_000) == sum(s % 7 for s in range(9991, 10_001))


@pytest.mark.parametrize("data", [b"x", b"\1" + bytes(23), bytes(16)])
def test_what_is_no_column_is_refused(data: bytes) -> None:
    """A checkpoint of another format is no column."""
    with pytest.raises(ValueError, match="column"):
        Column.from_bytes(data)


def test_sizes_of_a_frame_without_offsets() -> None:
    """Where nothing is known of sizes they are 0."""
    assert sizes_of(b"", 3) == [0, 0, 0]


@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=5), st.integers(1, 40), st.integers(0, 50)
)
def test_sizes_by_offsets(some: list[int], times: int, start: int) -> None:
    """As those that are looked at one by one, whether they are equal or not, and whether or not
    others are in front of them."""
    for sizes in (some * times, some[:1] * times):
        offsets = array("i", accumulate(sizes, initial=start)).tobytes()
        equal = sizes[0] if len(set(sizes)) == 1 else None
        assert equal_size(offsets, len(sizes)) == equal
        quick, slow = Sizes(), Sizes()
        quick.append_offsets(7, offsets, len(sizes))
        slow.append_sizes(7, sizes)
        assert quick == slow
        assert quick.total(7, 6 + len(sizes)) == sum(sizes)
