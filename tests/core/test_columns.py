"""Columns against what they stand for: a number for each live message."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from itertools import accumulate, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirrorq.containers import run_length
from mirrorq.containers.ranges import RangeSet
from mirrorq.containers.run_length import Column, Sizes, equal_size, sizes_of

ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), st.lists(st.integers(0, 2), min_size=1, max_size=5)),
        st.tuples(st.just("end"), st.tuples(st.integers(0, 60), st.integers(0, 12))),
    ),
    max_size=40,
)


@pytest.fixture(params=[3, run_length.CHUNK_COUNT], autouse=True, scope="module")
def _chunks(request: pytest.FixtureRequest) -> Iterator[None]:
    """With every edge of a chunk, and without."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_length, "CHUNK_COUNT", request.param)
        yield


def _totals(sizes: Sizes) -> list[int]:
    return [total for chunk in sizes._chunks for total in chunk[2]]


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


@given(ACTIONS, st.integers(1, 12))
def test_how_far_so_many_bytes_reach(actions: list[tuple[str, object]], size: int) -> None:
    """reach() is the first message with which a live range has them."""
    sizes, live, plain = _played(actions)
    for first, last in live:
        sums = accumulate(plain[s] for s in range(first, last + 1))
        found = next((s for s, so_far in enumerate(sums, first) if so_far >= size), last)
        assert max(sizes.reach(first, last, size), first) == found


@given(ACTIONS)
def test_chunks_follow_one_another(actions: list[tuple[str, object]]) -> None:
    """None is empty or too long, and no short one stands beside a short one."""
    sizes, _, _ = _played(actions)
    lengths = [len(chunk[0]) for chunk in sizes._chunks]
    assert all(0 < length <= run_length.CHUNK_COUNT for length in lengths)
    assert sum(lengths) == len(sizes)
    assert [chunk[0][-1] for chunk in sizes._chunks] == list(sizes._ends)
    assert all(len({len(column) for column in chunk}) == 1 for chunk in sizes._chunks)
    short = run_length.CHUNK_COUNT // 2
    assert not any(one + two <= short for one, two in pairwise(lengths[:-1]))


@given(ACTIONS, st.sets(st.integers(1, 40), max_size=3))
def test_parts_make_the_whole(actions: list[tuple[str, object]], cuts: set[int]) -> None:
    """Read part by part it is what it was, and sums are the same."""
    sizes, live, plain = _played(actions)
    made, first = Sizes(), 1
    for end in (*sorted(cuts), 1000):
        if live.count_within(first, end):
            low, high = live.extent_within(first, end)
            made.extend(sizes.part(low, high))
            assert sizes.count_within(low, high) == len(sizes.part(low, high)) // 16
        first = end + 1
    assert made == sizes
    for first, last in live:
        assert made.total(first, last) == sum(plain[s] for s in range(first, last + 1))


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


def test_a_long_queue_that_drains_keeps_nothing_of_the_dead() -> None:
    """Runs that are gone are cut off."""
    sizes = Sizes()
    for sequence in range(1, 10_001):
        sizes.append(sequence, sequence, sequence % 7)
        if sequence > 10:
            sizes.forget(1, sequence - 10)
    assert len(sizes) == 10
    assert len(_totals(sizes)) == 10
    assert sizes.total(9991, 10_000) == sum(s % 7 for s in range(9991, 10_001))


@pytest.mark.parametrize("data", [b"x", b"\1" + bytes(23), bytes(16)])
def test_what_is_no_column_is_refused(data: bytes) -> None:
    """A checkpoint of another format is no column."""
    with pytest.raises(ValueError, match="column"):
        Column.from_bytes(data)


def test_sizes_of_a_frame_without_offsets() -> None:
    """Where nothing is known of sizes they are 0."""
    assert sizes_of(b"", 3) == [0, 0, 0]


@given(st.lists(st.integers(0, 3), min_size=1, max_size=5), st.integers(1, 40), st.integers(0, 50))
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


@given(
    st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=12), max_size=6), st.integers(0, 9)
)
def test_sizes_of_many_are_as_those_of_each(batches: list[list[int]], gone: int) -> None:
    """Appended together or one by one, also behind runs that are gone, the runs are the same."""
    quick, slow = Sizes(), Sizes()
    following = 1
    for batch in batches:
        quick.append_sizes(following, batch)
        for number, size in enumerate(batch, following):
            slow.append(number, number, size)
        following += len(batch)
        if gone:
            for sizes in (quick, slow):
                sizes.forget(1, min(gone, following - 1))
        assert quick == slow
        assert _totals(quick) == _totals(slow)


@given(
    st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=12), min_size=1, max_size=5),
    st.lists(st.integers(0, 2), max_size=3),
    st.integers(1, 3),
    st.data(),
)
def test_sizes_taken_over_from_another_column(
    batches: list[list[int]], before: list[int], gap: int, data: st.DataObject
) -> None:
    """Parts of what was appended in one go, in any order, as if each were appended anew; also
    when others between them are gone, and equal neighbours are left behind."""
    other, known, firsts = Sizes(), {}, []
    following = 10
    for batch in batches:
        other.append_sizes(following, batch)
        known |= dict(enumerate(batch, following))
        firsts.append((following, following + len(batch) - 1))
        following += len(batch) + gap
    dead = data.draw(st.sampled_from([None, *firsts[1:-1]]))
    if dead is not None:
        other.forget(dead[0] - gap, dead[1] + gap)
    quick, slow = Sizes(), Sizes()
    for sizes in (quick, slow):
        for number, size in enumerate(before, 1):
            sizes.append(number, number, size)
    at = len(before) + 1
    for piece in data.draw(st.permutations([one for one in firsts if one != dead])):
        first = data.draw(st.integers(*piece))
        last = data.draw(st.integers(first, piece[1]))
        source = other.within(first, last) if data.draw(st.booleans()) else other
        quick.append_pieces(at, [(first, last, source)])
        for number in range(first, last + 1):
            slow.append(at, at, known[number])
            at += 1
        assert quick == slow
        assert _totals(quick) == _totals(slow)
    end = at - 1
    assert not end or quick.total(1, end) == sum(quick.at(number) for number in range(1, at))


def test_sizes_behind_a_columns_end_are_nothing() -> None:
    """Of a commit whose messages are not known yet."""
    sizes = Sizes()
    sizes.append_pieces(5, [(1, 7, Sizes())])
    assert (sizes.at(5), sizes.at(11), len(sizes)) == (0, 0, 1)


@pytest.mark.parametrize("start", [0, 2**63, 2**64 - 20, 2**64 - 1])
def test_sums_of_sizes_pass_the_end_of_their_numbers(start: int) -> None:
    """They are counted modulo 2^64, whichever way sizes come."""
    other, quick, slow = Sizes(), Sizes(), Sizes()
    batch = [1, 2, 3, 4, 5, 6, 7]
    for sizes in (other, quick, slow):
        sizes.append(1, 1, start)
    other.append_sizes(2, batch)
    for number, size in enumerate([*batch, *batch], 2):
        slow.append(number, number, size)
    quick.append_sizes(2, batch)
    quick.append_pieces(9, [(2, 8, other)])
    assert (quick, _totals(quick)) == (slow, _totals(slow))
    assert quick.total(2, 15) == 2 * sum(batch)
