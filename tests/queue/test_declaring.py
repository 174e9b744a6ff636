"""Declaring a queue: how often the node thread is asked, and what ends the wait for its master."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.kit import DEADLINE_S

from mirrorq import Node, NoQuorum, PreconditionFailed, ShutDown

pytestmark = pytest.mark.real

SLOW_S = 3.0
"""A command of a cluster of one is done within this."""


def test_the_node_thread_is_asked_a_few_times_and_tells_when_the_queue_is_served(
    tmp_path: Path,
) -> None:
    """The declaration, the handle: it is not asked again and again."""
    with Node("a", path=tmp_path / "a") as node:
        node.wait_ready(DEADLINE_S)
        calls: list[Callable[[], None]] = []
        real = node._driver.call

        def counted(function: Callable[[], None]) -> None:
            calls.append(function)
            real(function)

        node._driver.call = counted  # type: ignore[method-assign]
        for number in range(5):
            node.queue(f"q{number}", timeout=DEADLINE_S)
        assert len(calls) == 2 * 5
        assert all(node._overview.is_served(row.id) for row in node._driver.engine.catalog.queues())


def test_who_waits_for_a_master_is_told_that_the_node_is_closed(tmp_path: Path) -> None:
    """The wait ends with the node thread, long before its own time-out."""
    node = Node("a", path=tmp_path / "a")
    node.wait_ready(DEADLINE_S)
    node._overview.is_served = lambda _: False  # type: ignore[method-assign]
    found: list[BaseException] = []

    def declare() -> None:
        try:
            node.queue("q", timeout=10 * DEADLINE_S)
        except ShutDown as error:
            found.append(error)

    waiting = threading.Thread(target=declare)
    waiting.start()
    while not node._driver.waits.at_any_time and waiting.is_alive():
        waiting.join(0.01)
    node.close()
    waiting.join(DEADLINE_S)
    assert not waiting.is_alive()
    assert [type(error) for error in found] == [ShutDown]


def test_a_wait_that_takes_too_long_ends_with_the_handle(tmp_path: Path) -> None:
    """The queue is declared; that its master is slow is no failure of the declaration."""
    with Node("a", path=tmp_path / "a") as node:
        node.wait_ready(DEADLINE_S)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(node._overview, "is_served", lambda _: False)
            handle = node.queue("q", timeout=SLOW_S)
        handle.put(b"x").result(DEADLINE_S)
        node._calls.run(lambda: None, DEADLINE_S, None)
        assert not node._driver.waits.at_any_time
        assert not node._calls._open


def test_who_cannot_be_asked_deletes_nothing(tmp_path: Path) -> None:
    """The node thread does not say whether the queue is empty: it stays."""
    with Node("a", path=tmp_path / "a") as node:
        queue = node.queue("q", timeout=DEADLINE_S)
        queue.put(b"x").result(DEADLINE_S)
        go_on = threading.Event()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("mirrorq.node.calls.ANSWER_S", 0.1)
            node._driver.call(lambda: go_on.wait(DEADLINE_S) and None)
            try:
                with pytest.raises(NoQuorum, match="is busy"):
                    queue.delete(if_empty=True)
            finally:
                go_on.set()
        with pytest.raises(PreconditionFailed, match=r"has 1 message\(s\)"):
            queue.delete(if_empty=True)
        assert queue.get(timeout=DEADLINE_S).body == b"x"
