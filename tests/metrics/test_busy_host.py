"""A node in a process that computes says once what that costs, and what to do."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator

import pytest
from tests.kit import until

import mirrorq
from mirrorq.node import busy_host, watch
from mirrorq.node.busy_host import LOOKS, BusyHost
from mirrorq.protocol.effects import Notice

Look = Callable[[float, float], str]


@pytest.fixture
def look(monkeypatch: pytest.MonkeyPatch) -> Look:
    """Let a second pass in which the process used so much CPU time, all of it beside the node's
    thread, and that thread came so late."""
    now = [0.0, 0.0, 0.0]
    monkeypatch.setattr(busy_host, "_times", lambda: tuple(now))
    host = BusyHost()

    def passed(computed_s: float, late_s: float) -> str:
        now[0] += 1.0
        now[1] += computed_s + 0.1
        now[2] += 0.1
        return host.look(late_s)

    return passed


def test_a_computing_process_is_told_once(look: Look) -> None:
    told = [look(0.9, 0.005) for _ in range(2 * LOOKS)]
    assert told.index(next(filter(None, told))) == LOOKS - 1
    assert len(list(filter(None, told))) == 1
    assert "0.9 s of CPU time in the last 1.0 s" in told[LOOKS - 1]  # the node's own is not in it
    assert "up to 5 ms late" in told[LOOKS - 1]


@pytest.mark.parametrize(
    ("computed_s", "late_s"),
    [(0.0, 0.050), (0.9, 0.001), (0.4, 0.005)],
    ids=["a busy machine", "code that gives the interpreter away", "code that rests half the time"],
)
def test_nothing_is_said_of_others(look: Look, computed_s: float, late_s: float) -> None:
    assert not any(look(computed_s, late_s) for _ in range(10 * LOOKS))


def test_nothing_is_said_of_a_short_computation(look: Look) -> None:
    for _ in range(10):
        assert not any(look(0.9, 0.005) for _ in range(LOOKS - 1))
        assert not any(look(0.0, 0.0) for _ in range(LOOKS))


def test_nothing_is_said_after_the_advice_is_taken(look: Look) -> None:
    before = sys.getswitchinterval()
    sys.setswitchinterval(0.0005)
    try:
        assert not any(look(0.9, 0.005) for _ in range(10 * LOOKS))
    finally:
        sys.setswitchinterval(before)


@pytest.fixture
def computing() -> Iterator[None]:
    """A thread of this process computes."""
    done = False

    def compute() -> None:
        number = 1
        while not done:
            number = number * 1_103_515_245 % 2_147_483_647

    thread = threading.Thread(target=compute)
    thread.start()
    yield
    done = True
    thread.join()


@pytest.mark.real
@pytest.mark.usefixtures("computing")
def test_a_node_beside_a_computing_thread(
    monkeypatch: pytest.MonkeyPatch, node: mirrorq.Node
) -> None:
    # On a machine that is busy with other work the thread gets a small part of a processor.
    monkeypatch.setattr(busy_host, "SHARE", 0.01)
    monkeypatch.setattr(busy_host, "LOOKS", 1)
    monkeypatch.setattr(watch, "LOOK_MS", 100)
    told: list[Notice] = []
    node.add_listener(told.append)
    queue = node.queue("work")

    def is_told() -> list[Notice]:
        queue.put(b"").result(60)
        return [notice for notice in told if notice.kind == watch.COMPUTES]

    notice = until(is_told, lambda: told)[0]
    assert "sys.setswitchinterval(0.0005)" in notice.text
