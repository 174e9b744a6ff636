"""When each of many queues wants to be stepped next."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mirrorq.containers.timers import FOREVER_MS, Deadlines

CHANGES = st.lists(
    st.tuples(st.integers(0, 5), st.none() | st.integers(0, 50), st.integers(0, 3)), max_size=60
)


@given(CHANGES)
def test_the_next_is_the_least_of_what_holds(changes: list[tuple[int, int | None, int]]) -> None:
    """Compared with a plain table, over times that move to earlier and to later."""
    deadlines, plain, now_ms = Deadlines(), {}, 0
    for key, at_ms, passes_ms in changes:
        deadlines.set(key, at_ms)
        plain.pop(key, None)
        if at_ms is not None:
            plain[key] = at_ms
        now_ms += passes_ms
        due = sorted((at, key) for key, at in plain.items() if at <= now_ms)
        assert deadlines.take_due(now_ms) == [key for _, key in due]
        for _, gone in due:
            del plain[gone]
        assert deadlines.next_ms == min(plain.values(), default=FOREVER_MS)


def test_so_many_are_taken_at_a_time() -> None:
    """Those that are left stay due."""
    deadlines = Deadlines()
    for key in range(5):
        deadlines.set(key, key)
    assert deadlines.take_due(10, 3) == [0, 1, 2]
    assert deadlines.next_ms == 3
    assert deadlines.take_due(10, 3) == [3, 4]
    assert deadlines.next_ms == FOREVER_MS


def test_times_that_move_on_leave_nothing_behind() -> None:
    """A busy queue moves its time at every step, for as long as the node lives."""
    deadlines = Deadlines()
    for now_ms in range(10_000):
        deadlines.set(1, now_ms + 1000)
        deadlines.set(2, now_ms + 1)
        assert deadlines.take_due(now_ms + 1) == [2]
    assert len(deadlines._heap) <= 3
    deadlines.set(1, None)
    assert deadlines.next_ms == FOREVER_MS
    assert not deadlines._heap
