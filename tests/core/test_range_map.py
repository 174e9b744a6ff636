"""Ranges with numbers, places and the timetable, each against the plain thing it stands for."""

from __future__ import annotations

from itertools import pairwise
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirrorq.containers import ranges as ranges_module
from mirrorq.containers import time_buckets
from mirrorq.containers.range_map import CLEAR_COUNT, Places, RangeMap, Spans
from mirrorq.containers.time_buckets import ROW_COUNT, Timetable

STEPS = st.lists(
    st.tuples(st.booleans(), st.integers(1, 60), st.integers(0, 6), st.integers(-5, 5)),
    max_size=60,
)


def _both(steps: list[tuple[bool, int, int, int]]) -> tuple[Spans, dict[int, int]]:
    spans, plain, used = Spans(), dict[int, int](), set[int]()
    for adds, first, length, number in steps:
        members = set(range(first, first + length + 1))
        if not adds:
            spans.remove(first, first + length)
            plain = {n: value for n, value in plain.items() if n not in members}
        elif not members & used:
            spans.add(first, first + length, number)
            used |= members
            plain |= dict.fromkeys(members, number)
    return spans, plain


@given(STEPS, st.integers(1, 60), st.integers(0, 20))
def test_spans_hold_what_a_dict_holds(
    steps: list[tuple[bool, int, int, int]], first: int, length: int
) -> None:
    """Whatever was added and removed, over bytes too."""
    spans, plain = _both(steps)
    for held in (spans, Spans.from_bytes(spans.to_bytes())):
        assert {n: v for a, b, v in held for n in range(a, b + 1)} == plain
        assert (held.count, bool(held)) == (len(plain), bool(plain))
        parts = held.within(first, first + length)
        window = range(first, first + length + 1)
        assert {n: v for a, b, v in parts for n in range(a, b + 1)} == {
            n: v for n, v in plain.items() if n in window
        }
        assert held.first_run(first, first + length) == (parts[0] if parts else None)


def test_what_was_removed_is_cleared_away() -> None:
    """A long life keeps the memory of what is there, not of what was."""
    spans = Spans()
    for first in range(1, 10_000):
        spans.add(first, first, 0)
        spans.remove(first - 5, first - 5)
    assert spans.count == 5
    assert len(spans._firsts) <= 2 * CLEAR_COUNT + 10


@pytest.mark.parametrize("numbers", [(5, 3, 0), (0, 3, 0)])
def test_bytes_that_are_no_spans_are_refused(numbers: tuple[int, int, int]) -> None:
    """Ranges that end before they begin, or begin at nothing."""
    with pytest.raises(ValueError, match="out of order"):
        Spans.from_bytes(b"".join(n.to_bytes(8, "little") for n in numbers))
    with pytest.raises(ValueError, match="multiple"):
        Spans.from_bytes(b"1234")


def _mapped(steps: list[tuple[bool, int, int, int]]) -> tuple[RangeMap, dict[int, tuple[int, int]]]:
    ranges, plain = RangeMap(2), dict[int, tuple[int, int]]()
    for puts, first, length, number in steps:
        last = first + length
        if puts:
            numbers = abs(number), abs(number) % 2
            ranges.put(first, last, *numbers)
            plain |= dict.fromkeys(range(first, last + 1), numbers)
        else:
            ranges.remove(first, last)
            plain = {n: value for n, value in plain.items() if not first <= n <= last}
    return ranges, plain


@given(STEPS, st.integers(1, 60), st.integers(0, 20))
def test_a_range_map_holds_what_a_dict_holds(
    steps: list[tuple[bool, int, int, int]], first: int, length: int
) -> None:
    """Whatever was put and removed, in chunks of two, over bytes and copies too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ranges_module, "CHUNK_COUNT", 3)
        patch.setattr(ranges_module, "WARM_COUNT", 2)
        ranges, plain = _mapped(steps)
        again = RangeMap.from_bytes(ranges.to_bytes(), 2)
        for held in (ranges, again, again.copy()):
            assert {n: v for a, b, v in held for n in range(a, b + 1)} == plain
            assert (held.count, bool(held), len(held)) == (
                len(plain), bool(plain), len(list(held)),
            )  # fmt: skip
            found = list(held)
            assert all(a[1] + 1 < b[0] or a[2] != b[2] for a, b in pairwise(found))
            window = range(first, first + length + 1)
            parts = list(held.walk(first, first + length))
            assert {n: v for a, b, v in parts for n in range(a, b + 1)} == {
                n: v for n, v in plain.items() if n in window
            }
            assert held.at(first) == plain.get(first, (0, 0))
            assert list(RangeMap.from_bytes(held.part(first, first + length), 2)) == parts
            assert held.count_within(first, first + length) == len(parts)
            assert (first in held) == (first in plain)
            assert all(len(chunk[0]) <= ranges_module.CHUNK_COUNT for chunk in held._chunks)
            assert [chunk[0][0] for chunk in held._chunks] == list(held._starts)


@pytest.mark.parametrize("numbers", [(5, 3, 0), (3, 4, 4, 9, 0, 0)])
def test_bytes_that_are_no_range_map_are_refused(numbers: tuple[int, ...]) -> None:
    """Ranges that end before they begin, or do not rise."""
    data = b"".join(n.to_bytes(8, "little") for n in numbers)
    with pytest.raises(ValueError, match="out of order"):
        RangeMap.from_bytes(data, 1)
    with pytest.raises(ValueError, match="multiple"):
        RangeMap.from_bytes(b"1234", 1)


def test_places_are_found_both_ways() -> None:
    """From a sequence to its place and back, also when part of a range has ended."""
    places = Places()
    places.enter(1, 4, 10)
    places.enter(7, 7, 20)
    places.forget(2, 2)
    assert list(places.by_sequence) == [(1, 1, 9), (3, 4, 9), (7, 7, 13)]
    assert [places.at(n, 30) for n in (5, 10, 12, 14, 20, 21)] == [
        (9, 0), (10, 9), (13, 9), (19, 0), (20, 13), (30, 0),
    ]  # fmt: skip
    again = Places.from_bytes(places.by_sequence.to_bytes(), 21)
    assert list(again.by_place) == list(places.by_place)


@pytest.mark.parametrize(
    "spans", [[(1, 2, 0)], [(1, 2, -1)], [(1, 2, 9), (3, 4, 7)], [(1, 2, 30)], [(1, 2, 18)]]
)
def test_places_that_cannot_be_are_refused(spans: list[tuple[int, int, int]]) -> None:
    """Not later than the sequence, two at one place, or beyond the end of the queue."""
    made = Spans()
    for span in spans:
        made.add(*span)
    with pytest.raises(ValueError, match="cannot stand"):
        Places.from_bytes(made.to_bytes(), 20)


MOMENTS = st.integers(-(10**7), 10**8)


@pytest.mark.parametrize("row_count", [1, 3, ROW_COUNT])
@given(st.lists(st.tuples(st.booleans(), MOMENTS | st.integers(0, 100)), max_size=60))
def test_the_timetable_gives_what_is_due_in_order(
    row_count: int, steps: list[tuple[bool, int]]
) -> None:
    """Entries of any moment, also of one that has passed, come when they are due."""
    with patch.object(time_buckets, "ROW_COUNT", row_count):
        _play_timetable(steps)


def _play_timetable(steps: list[tuple[bool, int]]) -> None:
    timetable = Timetable()
    plain: list[tuple[int, int, int]] = []
    for number, (adds, moment) in enumerate(steps, 1):
        if adds:
            timetable.add(moment, number, number + 1)
            plain.append((moment, number, number + 1))
        else:
            plain.sort()
            due = [entry for entry in plain if entry[0] <= moment][:3]
            assert timetable.take_due(moment, 3) == due
            plain = [entry for entry in plain if entry not in due]
        assert timetable.next_us() == (min(plain)[0] if plain else None)
