"""What a put says of its messages: checked before anything is sent, one set a frame."""

from __future__ import annotations

from datetime import timedelta

import pytest

from mirrorq.api.batching import ManyPut, PutRun, frames_of
from mirrorq.api.completion import Outcomes
from mirrorq.api.confirmation import Confirmation
from mirrorq.api.publish_options import PLAIN, Terms, terms_of
from mirrorq.errors import ConfigError
from mirrorq.wire import frames


@pytest.mark.parametrize("priority", [-1, 32, 2**70, 1.5, "high", True, None])
def test_a_priority_outside_its_range_is_refused(priority: object) -> None:
    """0 to 31, an int; the error names the value."""
    with pytest.raises(ConfigError, match="priority is"):
        terms_of(True, priority, None)  # type: ignore[arg-type]


@pytest.mark.parametrize("seconds", [-0.001, float("nan"), float("inf"), 1e12, "1", True])
def test_a_time_that_is_none_is_refused(seconds: object) -> None:
    """A delay and a ttl are seconds, not negative, within a hundred years."""
    with pytest.raises(ConfigError, match="delay is"):
        terms_of(True, 0, seconds)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="ttl is"):
        terms_of(True, 0, None, seconds)  # type: ignore[arg-type]


def test_times_are_rounded_up_to_milliseconds() -> None:
    """A delay that is shorter than the clock's step is still one."""
    assert terms_of(True, 0, 0.0001, 1.5) == Terms(delay_ms=1, ttl_ms=1500)
    assert terms_of(True, 0, None) is PLAIN


def test_times_may_be_timedeltas() -> None:
    """Of whole microseconds; a negative one is refused as a negative number is."""
    found = terms_of(True, 0, timedelta(minutes=1), timedelta(microseconds=1500))
    assert found == Terms(delay_ms=60_000, ttl_ms=2)
    with pytest.raises(ConfigError, match="ttl is"):
        terms_of(True, 0, None, timedelta(seconds=-1))


def test_a_frame_holds_messages_of_one_kind() -> None:
    """Where terms differ a new frame begins, in the order of the puts, and says them."""
    outcomes = Outcomes()
    said = [PLAIN, PLAIN, Terms(priority=9), Terms(priority=9), Terms(delay_ms=5), PLAIN]
    inbox: list[PutRun | ManyPut] = [
        PutRun.of(Confirmation(outcomes), b"%d" % index, b"", terms)
        for index, terms in enumerate(said)
    ]
    inbox.append(ManyPut(Confirmation(outcomes), [b"6", b"7"], b"", Terms(False, 31, 2, 3), 2))
    made = [put.pack(1, 1, 0) for put in frames_of(inbox, 1 << 20)]
    headers = [frames.check(frame) for frame in made]
    assert [frames.split(frame) for frame in made] == [
        [b"0", b"1"], [b"2", b"3"], [b"4"], [b"5"], [b"6", b"7"],
    ]  # fmt: skip
    assert [(h.priority, h.delay_ms, h.ttl_ms, h.flags & 2) for h in headers] == [
        (0, 0, 0, 0), (9, 0, 0, 0), (0, 5, 0, 0), (0, 0, 0, 0), (31, 2, 3, 2),
    ]  # fmt: skip
