"""A queue's time: what each member knows of it, whatever the wall clocks say."""

from __future__ import annotations

import pytest

from mirrorq.node.steady_time import SLEW, SteadyTime
from mirrorq.replication.queue_time import DRIFT, FADE, KEPT_US, QueueTime

S = 1_000_000
HOUR = 3600 * S
DAY = 24 * HOUR
START = 1_700_000_000 * S


def mirror(ahead_us: int = 0) -> QueueTime:
    """A mirror at its first step, which has heard nothing yet."""
    time = QueueTime(ahead_us)
    time.begin_step(START)
    time.install(is_master=False)
    return time


def promoted(time: QueueTime) -> QueueTime:
    time.install(is_master=True)
    return time


# --- Masters ------------------------------------------------------------------------------


def test_a_queue_begins_with_the_steady_time_of_its_first_master() -> None:
    time = promoted(mirror())
    assert time.now_us == START
    time.begin_step(START + 5)
    assert time.now_us == START + 5


def test_a_master_that_was_not_told_the_time_yet_goes_on_when_it_is() -> None:
    """Promoted before its node has read a clock: the first reading counts from then."""
    time = QueueTime()
    time.record_stamp(START)
    time.begin_step(0)
    assert promoted(time).now_us == START
    for steady_us in (START + S, START + 2 * S):
        time.begin_step(steady_us)
        assert time.now_us == steady_us


@pytest.mark.parametrize("ahead_us", [HOUR, -HOUR])
def test_a_masters_lead_fades_slowly_and_time_never_goes_back(ahead_us: int) -> None:
    """Stamps come near what clocks on walls show; a duration is off by 1 in 2000 meanwhile."""
    time = mirror()
    time.hear(START + ahead_us)
    promoted(time)
    before, steady_us = time.now_us, START
    for step_us in (1, 999, 1000, 1001, FADE - 1, FADE, 10 * S, HOUR) * 3:
        steady_us += step_us
        time.begin_step(steady_us)
        assert before <= time.now_us
        assert abs(time.now_us - before - step_us) <= step_us // FADE + 1
        before = time.now_us
    assert abs(time.ahead_us) == HOUR - (steady_us - START) // FADE
    time.begin_step(steady_us + FADE * HOUR)
    assert time.ahead_us == 0


# --- Mirrors ------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong_us", [HOUR, -HOUR, 30 * DAY, -30 * DAY])
def test_a_mirror_knows_the_time_of_a_queue_that_was_idle(wrong_us: int) -> None:
    """Its own steady time is wrong by an hour or a month; two hours after the last word it is
    promoted, and two hours are what has passed."""
    time = mirror()
    time.hear(START + wrong_us)
    time.begin_step(START + 2 * HOUR)
    promoted(time)
    assert time.now_us == START + wrong_us + 2 * HOUR


def test_what_was_long_on_its_way_sets_nothing_back() -> None:
    """Ops that were stuck for ten minutes: the time falls by a small part of that at most, and is
    right again with the next word that comes in time."""
    time = mirror()
    time.hear(START)
    time.begin_step(START + 600 * S)
    time.hear(START + 1 * S)
    assert time.now_us >= START + 600 * S - 600 * S // DRIFT
    time.hear(START + 600 * S)
    assert time.now_us == START + 600 * S


def test_a_mirror_whose_clock_runs_fast_is_brought_back() -> None:
    """By 4 %, over hours of ops and over an idle hour: it follows the master's time."""
    time = mirror()
    time.hear(START)
    true_us = 0
    for gap_us in [S] * 1000 + [HOUR] + [S] * 10:
        true_us += gap_us
        time.begin_step(START + true_us * 104 // 100)
        time.hear(START + true_us)
        assert abs(time.now_us - START - true_us) <= 1


def test_the_first_word_of_an_epoch_is_taken_as_it_is() -> None:
    """What a node made up at its start, by a clock that was wrong, is put right at once."""
    time = mirror()
    time.record_stamp(START)
    time.hear(START + 7)
    assert time.now_us == START + 7
    time.begin_step(START + HOUR)
    time.install(is_master=False)
    time.hear(START + 60 * S)
    assert time.now_us == START + 60 * S


def test_nothing_sets_it_below_an_op_of_the_log() -> None:
    time = mirror()
    time.record_stamp(START + HOUR)
    time.hear(START)
    assert time.now_us == START + HOUR
    time.begin_step(START + 1)
    assert time.now_us == START + HOUR + 1


def test_a_left_of_an_older_version_says_no_time() -> None:
    """Its ops do, and nothing else is made of it."""
    time = mirror()
    time.hear(0)
    assert time.now_us == START
    time.record_stamp(START + S)
    assert time.now_us == START + S
    assert not time.is_due


def test_nonsense_of_another_still_fits_a_stamp() -> None:
    time = mirror()
    time.record_stamp((1 << 63) - 1)
    time.hear((1 << 63) - 1)
    promoted(time).begin_step(START + HOUR)
    assert time.now_us < 1 << 63


def test_what_is_told_before_the_first_step_is_nothing() -> None:
    time = QueueTime()
    time.record_stamp(START)
    assert time.told_us == 0


# --- Another life -------------------------------------------------------------------------


def test_a_restarted_mirror_goes_on_from_what_it_kept() -> None:
    """Its clocks are an hour behind the queue's: it knows that from its last life."""
    time = mirror()
    assert not time.is_due
    time.hear(START + HOUR)
    assert time.is_due
    kept_us = time.keep()
    assert not time.is_due
    time.hear(START + HOUR + KEPT_US)
    assert time.is_due
    again = QueueTime(kept_us)
    again.record_stamp(START + HOUR)
    again.begin_step(START + 10 * S)
    assert promoted(again).now_us == START + HOUR + 10 * S


def test_a_clock_that_is_right_is_never_written() -> None:
    time = mirror()
    for second in range(1000):
        time.begin_step(START + second * S)
        time.hear(START + second * S - second % 7 * 50_000)
        assert not time.is_due


# --- Steady time --------------------------------------------------------------------------


def test_steady_time_is_the_wall_clock_without_its_steps() -> None:
    """A step of days moves it by 1 in 2000 of what has passed since."""
    time = SteadyTime(5 * S, START, "boot", None)
    assert time.read(6 * S, START + S) == START + S
    for wall_us in (30 * DAY, -30 * DAY):
        begun_us = time.read(6 * S, START + wall_us)
        assert begun_us == START + S
    assert time.read(6 * S + HOUR, START + 30 * DAY) == START + S + HOUR + HOUR // SLEW


def test_steady_time_follows_a_small_difference_to_the_end() -> None:
    time = SteadyTime(0, START, "boot", None)
    wall_us = START + 100
    now_us = 0
    for _ in range(1000):
        now_us += 700
        time.read(now_us, wall_us + now_us)
    assert time.read(now_us, wall_us + now_us) == wall_us + now_us


@pytest.mark.parametrize("set_us", [0, DAY, -DAY])
def test_a_process_that_begins_again_goes_on_by_the_clock_that_is_never_set(set_us: int) -> None:
    """The machine was not booted: what the wall clock was set to meanwhile does not matter."""
    time = SteadyTime(5 * S, START, "boot", None)
    assert time.is_due
    kept = time.image()
    time.on_kept()
    assert not time.is_due
    again = SteadyTime(65 * S, START + 60 * S + set_us, "boot", kept)
    assert again.read(65 * S, START + 60 * S + set_us) == START + 60 * S


def test_after_a_boot_the_wall_clock_counts_with_its_error() -> None:
    """It was set an hour ahead while the node ran, and still is: nothing of it shows."""
    time = SteadyTime(5 * S, START, "boot", None)
    time.on_kept()
    time.read(5 * S, START + HOUR)
    assert time.is_due
    kept = time.image()
    again = SteadyTime(2 * S, START + HOUR + 100 * S, "another boot", kept)
    assert again.read(2 * S, START + HOUR + 100 * S) == START + 100 * S
    assert again.is_due, "of another boot"


def test_where_the_boot_is_not_known_the_wall_clock_counts() -> None:
    kept = SteadyTime(5 * S, START, "", None).image()
    again = SteadyTime(65 * S, START + 60 * S, "", kept)
    assert again.read(65 * S, START + 60 * S) == START + 60 * S


def test_what_somebody_else_has_kept_is_as_good_as_nothing() -> None:
    time = SteadyTime(5 * S, START, "boot", b"\xc1")
    assert time.read(5 * S, START) == START
    assert time.is_due
