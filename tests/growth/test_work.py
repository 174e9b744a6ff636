"""The measure itself: it counts what loops, and is the same each time."""

from __future__ import annotations

from .work import work_of

HERE = "/growth/"


def _walk(count: int) -> int:
    return sum(1 for number in range(count) if number & 1)


def test_a_loop_without_calls_counts() -> None:
    """A walk that calls nothing is what made steps slow: each turn of it counts, and is named."""
    few = work_of(lambda: _walk(100), under=HERE)
    many = work_of(lambda: _walk(10_000), under=HERE)
    assert 80 < many.count / few.count < 110
    assert "_walk" in many.growth_text(few)


def test_the_same_work_counts_the_same() -> None:
    """Two counts of one work are equal: a bound on a ratio needs no margin for noise."""
    first, second = (work_of(lambda: _walk(50), under=HERE) for _ in range(2))
    assert first.count == second.count > 0
