"""RangeSet against what it stands for: a set of integers."""

from __future__ import annotations

import gc
import operator
import sys
from collections.abc import Iterable, Iterator
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirrorq.containers import ranges as ranges_module
from mirrorq.containers.range_map import RangeMap
from mirrorq.containers.ranges import Chunks, Packed, Range, RangeSet
from mirrorq.containers.run_length import Sizes

SMALL = st.integers(0, 40)
CHANGE = st.one_of(
    st.tuples(st.booleans(), SMALL, st.integers(0, 8)),
    st.tuples(st.just(value=True), SMALL, st.just(0)),
    st.tuples(st.just(value=False), SMALL, st.integers(8, 40)),
)
CHANGES = st.lists(CHANGE, max_size=30)


@pytest.fixture(
    params=[(3, 2), (3, 64), (ranges_module.CHUNK_COUNT, 64)], autouse=True, scope="module"
)
def _chunks(request: pytest.FixtureRequest) -> Iterator[None]:
    """With every edge of a chunk, most of them packed or none; and without."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ranges_module, "CHUNK_COUNT", request.param[0])
        patch.setattr(ranges_module, "WARM_COUNT", request.param[1])
        yield


def test_equal_sets_are_not_unequal() -> None:
    """Both operators, of each kind of set: `!=` of the base class knows nothing of `==`."""
    for made in (RangeSet, lambda: RangeMap(1), Sizes):
        one, other = made(), made()
        assert one == other
        assert not one != other  # noqa: SIM202
    one, other = RangeSet(((1, 2), (5, 6))), RangeSet(((5, 6), (1, 2)))
    assert not one != other  # noqa: SIM202
    other.add(3, 3)
    assert one != other


def _check_chunks(ranges: Chunks) -> None:
    """What the class says of its chunks; and no more of them than may be are arrays."""
    chunks = ranges._chunks
    assert all(0 < len(each[0]) <= ranges_module.CHUNK_COUNT for each in chunks)
    assert [each[0][0] for each in chunks] == list(ranges._starts)
    arrays = [each for each in chunks if isinstance(each, list)]
    if ranges._warm is None:
        assert len(arrays) == len(chunks) <= ranges_module.WARM_COUNT
    else:
        assert not ranges._is_plain
        assert len(arrays) <= len(ranges._warm) <= ranges_module.WARM_COUNT
        assert all(any(each is one for one in ranges._warm) for each in arrays)


def _both(changes: list[tuple[bool, int, int]]) -> tuple[RangeSet, set[int]]:
    ranges, plain = RangeSet(), set[int]()
    _change(ranges, plain, changes)
    return ranges, plain


def _change(ranges: RangeSet, plain: set[int], changes: list[tuple[bool, int, int]]) -> None:
    for adds, first, length in changes:
        span = set(range(first, first + length + 1))
        if adds:
            ranges.add(first, first + length)
            plain |= span
        else:
            assert ranges.remove(first, first + length) == len(plain & span)
            plain -= span


def _members(ranges: RangeSet) -> set[int]:
    return {value for first, last in ranges for value in range(first, last + 1)}


@given(CHANGES)
def test_holds_what_a_set_holds(changes: list[tuple[bool, int, int]]) -> None:
    """After any adds and removes it has the members of a set, and counts them."""
    ranges, plain = _both(changes)
    assert _members(ranges) == plain
    assert ranges.count == len(plain)
    assert bool(ranges) == bool(plain)
    _check_chunks(ranges)
    assert all((value in ranges) == (value in plain) for value in range(60))


@given(CHANGES, st.lists(st.tuples(st.integers(0, 3), st.booleans(), CHANGE), max_size=40))
def test_copies_share_nothing_that_changes(
    changes: list[tuple[bool, int, int]], turns: list[tuple[int, bool, tuple[bool, int, int]]]
) -> None:
    """Each goes its own way, copies of copies too, though what has not changed is there once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ranges_module, "EAGER_COUNT", 0)
        twins = [_both([*changes, *((True, first, 0) for first in range(50, 80, 2))])]
        for which, copies, change in turns:
            ranges, plain = twins[which % len(twins)]
            if copies and len(twins) < 4:
                twins.append((ranges.copy(), plain.copy()))
            _change(ranges, plain, [change])
            for one, known in twins:
                assert _members(one) == known
                assert one.count == len(known)
                assert len(one) == len(list(one))
                _check_chunks(one)


def test_a_copy_copies_what_changes_later() -> None:
    """The chunks that either changes, and no other."""
    ranges = RangeSet((first, first) for first in range(0, 2_000, 2))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ranges_module, "EAGER_COUNT", 0)
        patch.setattr(ranges_module, "WARM_COUNT", 2_000)
        ranges = RangeSet(ranges)
        twin = ranges.copy()
    assert all(map(operator.is_, ranges._chunks, twin._chunks))
    twin.remove(1000, 1000)
    assert len(ranges._chunks) == len(twin._chunks)
    assert sum(map(operator.is_not, ranges._chunks, twin._chunks)) == 1


@given(
    st.lists(st.tuples(st.sampled_from([1, 2, 300, 1 << 20, 1 << 40]), st.integers(0, 1 << 33),
                       st.integers(0, 1 << 62)), min_size=1, max_size=9)
)  # fmt: skip
def test_a_packed_chunk_is_what_it_was(pieces: list[tuple[int, int, int]]) -> None:
    """However far its edges are apart, and whatever its numbers are."""
    ranges, at = RangeMap(2), 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ranges_module, "CHUNK_COUNT", 512)
        for gap, length, number in pieces:
            at += gap + 1
            ranges.put(at, at + length, number, number % 3)
            at += length
    chunk = [*ranges._chunks[0]]
    packed = Packed.of(chunk)
    assert [*packed] == chunk
    assert (packed.size, packed.count) == (len(ranges), ranges.count)


def _holes(count: int) -> Iterator[Range]:
    """Some hundred messages from each to the next."""
    chance = Random(count)
    return ((at, at + chance.randrange(60)) for at in range(1, 100 * count, 100))


def test_a_hole_costs_four_bytes() -> None:
    """Whatever sequences it stands at; and nothing that Python's garbage collector looks at."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ranges_module, "CHUNK_COUNT", 512)
        patch.setattr(ranges_module, "WARM_COUNT", 64)
        few, many = RangeSet(_holes(50_000)), RangeSet(_holes(200_000))
    sizes = [sum(map(_bytes_of, ranges._chunks)) for ranges in (few, many)]
    assert sizes[1] - sizes[0] < 4.5 * 150_000
    tracked = [sum(map(gc.is_tracked, ranges._chunks)) for ranges in (few, many)]
    assert tracked[0] == tracked[1] < 64


def _bytes_of(chunk: Iterable[object]) -> int:
    rest = chunk.data if isinstance(chunk, Packed) else b""
    columns = chunk if isinstance(chunk, list) else ()
    return sum(map(sys.getsizeof, (chunk, rest, *columns)))


@given(CHANGES)
def test_ranges_are_apart(changes: list[tuple[bool, int, int]]) -> None:
    """Ranges are in order and neighbours are merged: no two touch."""
    ranges, _ = _both(changes)
    pairs = list(ranges)
    assert all(first <= last for first, last in pairs)
    assert all(one[1] + 1 < other[0] for one, other in pairwise(pairs))
    assert len(ranges) == len(pairs)


@given(CHANGES, SMALL, st.integers(0, 20))
def test_nth_and_run_find_what_a_sorted_list_has(
    changes: list[tuple[bool, int, int]], first: int, length: int
) -> None:
    """nth counts from the least; run is the first part of a window."""
    ranges, plain = _both(changes)
    in_order = sorted(plain)
    assert [ranges.nth(n + 1) for n in range(len(in_order))] == in_order
    with pytest.raises(IndexError):
        ranges.nth(len(in_order) + 1)
    parts = ranges.within(first, first + length)
    nothing = (first + length + 1, first + length)
    assert ranges.first_run(first, first + length) == (parts[0] if parts else nothing)


@given(CHANGES, SMALL, st.integers(0, 20))
def test_within_cuts_to_the_window(
    changes: list[tuple[bool, int, int]], first: int, length: int
) -> None:
    """within gives the members of a window, in ranges that do not leave it."""
    ranges, plain = _both(changes)
    found = ranges.within(first, first + length)
    window = {value for low, high in found for value in range(low, high + 1)}
    assert window == plain & set(range(first, first + length + 1))


@given(CHANGES, SMALL, st.integers(0, 20), st.integers(1, 5))
def test_a_part_is_what_is_within(
    changes: list[tuple[bool, int, int]], first: int, length: int, count: int
) -> None:
    """As bytes, as a number of ranges, as its ends; and as far as some ranges go."""
    ranges, _ = _both(changes)
    last = first + length
    within = ranges.within(first, last)
    assert list(RangeSet.from_bytes(ranges.part(first, last))) == within
    assert ranges.count_within(first, last) == len(within)
    if within:
        assert ranges.extent_within(first, last) == (within[0][0], within[-1][1])
    end = ranges.reach(first, last, count)
    assert ranges.within(first, end) == within[:count]
    assert end == last if len(within) <= count else end == within[count][0] - 1


@given(CHANGES, SMALL)
def test_parts_make_the_whole(changes: list[tuple[bool, int, int]], at: int) -> None:
    """One behind the other, wherever it was cut; in another order they are refused."""
    ranges, _ = _both(changes)
    first, second = ranges.part(0, at), ranges.part(at + 1, 100)
    made = RangeSet.from_bytes(first)
    made.extend(second)
    assert made == ranges
    if first:
        with pytest.raises(ValueError, match="late"):
            made.extend(first)


@given(CHANGES, SMALL, st.integers(0, 20))
def test_around_gives_the_first_range_that_is_touched(
    changes: list[tuple[bool, int, int]], first: int, length: int
) -> None:
    """around gives a whole range, or None when the window has no member."""
    ranges, plain = _both(changes)
    touched = sorted(plain & set(range(first, first + length + 1)))
    found = ranges.around(first, first + length)
    assert (found is None) == (not touched)
    if found is not None:
        assert found in list(ranges)
        assert found[0] <= touched[0] <= found[1]


@given(CHANGES, SMALL, st.integers(1, 20), st.integers(0, 5), st.integers(1, 8))
def test_take_after_takes_the_next_ones(
    changes: list[tuple[bool, int, int]], value: int, count: int, gap: int, stretches: int
) -> None:
    """take_after spans the next members, so many at most, and ends where a gap is too wide or where
    it would be of too many ranges."""
    ranges, plain = _both(changes)
    after = sorted(member for member in plain if member > value)
    found = ranges.take_after(value, count, gap, stretches)
    if not after:
        assert found is None
        return
    taken = [after[0]]
    for member in after[1:count]:
        stretches -= member > taken[-1] + 1
        if member - taken[-1] > gap + 1 or not stretches:
            break
        taken.append(member)
    assert found == (taken[0], taken[-1])


@given(CHANGES, st.integers(0, 59))
def test_gap_is_the_widest_hole(changes: list[tuple[bool, int, int]], value: int) -> None:
    """gap gives all that is not in the set around a value, within its bounds."""
    ranges, plain = _both(changes)
    if value in plain:
        return
    first, last = ranges.gap(value, 0, 59)
    assert first <= value <= last
    assert not plain & set(range(first, last + 1))
    assert first == 0 or first - 1 in plain
    assert last == 59 or last + 1 in plain


@given(CHANGES)
def test_bytes_and_copies_are_equal(changes: list[tuple[bool, int, int]]) -> None:
    """What is written is read again, and a copy is a set of its own."""
    ranges, plain = _both(changes)
    assert RangeSet.from_bytes(ranges.to_bytes()) == ranges
    twin = ranges.copy()
    twin.add(100, 101)
    assert _members(ranges) == plain
    assert twin != ranges


@pytest.mark.parametrize(
    "data",
    [b"x", b"\0" * 8, b"\2" + b"\0" * 7 + b"\1" + b"\0" * 7],
    ids=["odd", "half", "ends before it begins"],
)
def test_bytes_of_something_else_are_refused(data: bytes) -> None:
    """Bytes that are no range set give a ValueError, never a wrong set."""
    with pytest.raises(ValueError, match="range"):
        RangeSet.from_bytes(data)
