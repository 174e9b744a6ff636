"""What the leader is still to judge, and the portions in which it is taken."""

from __future__ import annotations

import pytest

from mirrorq.cluster.controller import agenda as module
from mirrorq.cluster.controller.agenda import Agenda


@pytest.fixture(autouse=True)
def _few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "JUDGED_MAX", 2)


def drained(agenda: Agenda, now_ms: int) -> list[int]:
    """All that is taken, a portion each millisecond."""
    found: list[int] = []
    while portion := agenda.take_portion(now_ms):
        assert len(portion) <= 2
        found += portion
        now_ms += 1
    return found


def test_every_queue_of_a_sweep_is_taken_once() -> None:
    agenda = Agenda()
    agenda.sweep(range(1, 8))
    assert drained(agenda, 10) == [1, 2, 3, 4, 5, 6, 7]
    assert agenda.wake_at_ms(20) is None


def test_so_many_are_taken_in_one_millisecond_however_often_it_is_asked() -> None:
    """And the leader wants to be woken for the rest."""
    agenda = Agenda()
    agenda.sweep(range(1, 4))
    assert agenda.take_portion(10) == [1, 2]
    assert agenda.take_portion(10) == []
    assert agenda.wake_at_ms(10) == 11
    assert agenda.take_portion(11) == [3]


def test_what_is_urgent_goes_first_and_is_not_taken_again_with_the_rest() -> None:
    agenda = Agenda()
    agenda.sweep(range(1, 6))
    agenda.mark([4])
    agenda.hurry([5])
    assert drained(agenda, 10) == [5, 4, 1, 2, 3]


def test_a_change_in_the_middle_of_a_sweep_puts_in_again_what_was_taken() -> None:
    """What is left of the first sweep is not forgotten for it."""
    agenda = Agenda()
    agenda.sweep(range(1, 6))
    assert agenda.take_portion(10) == [1, 2]
    agenda.sweep(range(1, 4))
    assert sorted(drained(agenda, 11)) == [1, 2, 3, 4, 5]


def test_a_wait_is_one_queues() -> None:
    """The earliest of its times counts; a judgement that begins voids it."""
    agenda = Agenda()
    agenda.wait(1, 50)
    agenda.wait(1, 30)
    agenda.wait(2, 40)
    agenda.retry(3, 35)
    assert agenda.wake_at_ms(10) == 30
    assert agenda.take_due(36) == [1]
    assert drained(agenda, 36) == [3, 1]
    agenda.begin_judgement(2)
    assert agenda.wake_at_ms(40) is None
