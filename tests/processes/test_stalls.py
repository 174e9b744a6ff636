"""What `--stalls` does to a process."""

from __future__ import annotations

import random
import signal

import pytest

from .cluster import until
from .stalls import Stalls

pytestmark = pytest.mark.soak


def test_it_stops_and_goes_on_and_runs_in_the_end() -> None:
    sent: list[int] = []
    stalls = Stalls(random.Random(1), {}, sent.append)
    until(lambda: len(sent) > 3)
    stalls.end()
    assert sent == [signal.SIGSTOP, signal.SIGCONT] * (len(sent) // 2)


def test_whom_a_test_stops_stays_stopped_until_the_test_says_otherwise() -> None:
    sent: list[int] = []
    stalls = Stalls(random.Random(1), {}, sent.append)
    until(lambda: sent)
    stalls.on_signal(signal.SIGSTOP)
    count = len(sent)
    stalls.end()
    assert sent[count:] == []
    stalls.on_signal(signal.SIGCONT)
    assert sent[count:] == [signal.SIGCONT]
