"""Rounds while a commit waits for a disk: what they keep in memory has a bound."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from tests.kit import DEADLINE_S, until

import mirrorq
from mirrorq.errors import StoreFull
from mirrorq.node.driver import WAITING_SENDS_MAX

pytestmark = pytest.mark.real

ROUNDS = 3000


class FullDisk:
    """A store of a node whose commits are refused for a while."""

    def __init__(self, node: mirrorq.Node) -> None:
        self.driver = node._driver
        self.is_full = False
        self._real = self.driver._store.commit
        self.driver._store.commit = self._commit  # type: ignore[method-assign]

    def _commit(self, *work: Any) -> None:
        if self.is_full:
            raise StoreFull("the disk is full")
        self._real(*work)

    def on_thread(self, function: Any = lambda: None) -> Any:
        """Have the node thread do something in a round of its own; wait for that."""
        done, results = threading.Event(), []
        self.driver.call(lambda: (results.append(function()), done.set()))
        assert done.wait(DEADLINE_S)
        return results[0]

    def until(self, holds: Callable[[], object]) -> None:
        """Wait until this is so on the node thread."""
        until(lambda: self.on_thread(holds))


def test_rounds_without_a_write_keep_nothing_while_a_commit_waits(node: mirrorq.Node) -> None:
    """Thousands of rounds behind one put whose commit is refused: one round waits, and a few."""
    jobs = node.queue("jobs")
    jobs.put(b"one").result(DEADLINE_S)
    disk = FullDisk(node)
    disk.is_full = True
    waiting = jobs.put(b"two")
    disk.until(lambda: disk.driver.blocked_by)
    before = disk.on_thread(lambda: len(disk.driver._commits))
    for _ in range(ROUNDS):
        disk.on_thread()
    assert disk.on_thread(lambda: len(disk.driver._commits)) <= before + 5
    disk.is_full = False
    assert waiting.result(DEADLINE_S) == 2


def test_what_is_to_be_said_after_a_commit_that_waits_has_a_bound(node: mirrorq.Node) -> None:
    """Signs of life and the like of days: the newest stay, and what is lost is said again as
    after a break."""
    jobs = node.queue("jobs")
    jobs.put(b"one").result(DEADLINE_S)
    disk = FullDisk(node)
    disk.is_full = True
    jobs.put(b"two")
    disk.until(lambda: disk.driver.blocked_by)

    def say() -> None:
        disk.driver.engine._next_out.send.append(("b", None))

    def count() -> int:
        return sum(len(effects.send) for effects in disk.driver._commits)

    for _ in range(2 * WAITING_SENDS_MAX):
        disk.on_thread(say)
    assert WAITING_SENDS_MAX // 2 <= disk.on_thread(count) <= WAITING_SENDS_MAX + 5
    assert disk.driver._sends_lost
    disk.is_full = False
    disk.until(lambda: not disk.driver._commits)
    assert jobs.put(b"three").result(DEADLINE_S) == 3
