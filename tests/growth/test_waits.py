"""What calls wait for and never comes costs a step the same, however many calls there are."""

from __future__ import annotations

from functools import partial

import pytest

from mirrorq.node.waits import VAIN_LOOKS_MAX, Waits


class Calls:
    """Calls that wait for a number to be reached, as those that read a copy do."""

    def __init__(self, waits: Waits, wanted: list[int]) -> None:
        self.reached = 0
        self.look_count = 0
        self.found: list[int] = []
        for key, number in enumerate(wanted):
            look = partial(self.look, key, number)
            waits.add(key, look, self.take, is_clients=True)

    def look(self, key: int, number: int) -> int | None:
        self.look_count += 1
        return key if self.reached >= number else None

    def take(self, key: int) -> None:
        self.found.append(key)


@pytest.mark.parametrize("count", [10, 256, 10_000])
def test_a_step_looks_at_few(count: int) -> None:
    """One that comes true is found after all others were looked at once."""
    waits = Waits()
    calls = Calls(waits, [2**62] * (count - 1) + [5])
    waits.look(0)
    assert calls.look_count <= VAIN_LOOKS_MAX
    calls.reached = 5
    rounds = 0
    while not calls.found:
        waits.look(0)
        rounds += 1
    assert calls.found == [count - 1]
    assert rounds <= count // VAIN_LOOKS_MAX + 1


def test_all_that_come_true_together_are_found_together() -> None:
    """A copy that has caught up answers everybody in one step."""
    waits = Waits()
    calls = Calls(waits, [5] * 300 + [2**62] * 4)
    waits.look(0)
    calls.reached = 5
    waits.look(0)
    assert sorted(calls.found) == list(range(300))
    assert len(waits.of_clients) == 4


def test_clients_keep_no_other_call_waiting() -> None:
    """What the node's own process waits for is looked at in each step."""
    waits = Waits()
    Calls(waits, [2**62] * 1000)
    found: list[int] = []
    waits.add("own", lambda: 1, found.append)
    waits.look(0)
    assert found == [1]


def test_a_wait_that_ends_itself_stays_ended() -> None:
    waits = Waits()
    waits.add("one", lambda: waits.remove("one"), lambda _: None)
    waits.look(0)
    assert not waits.at_any_time
