"""Wall clocks of real nodes that differ by an hour and are set, while messages wait and end."""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.kit import until

import mirrorq
from mirrorq import clock
from mirrorq.demo.ports import free_ports

pytestmark = pytest.mark.soak

HOUR_US = 3_600_000_000
LONG_S = 1200
"""Longer than the test, shorter than the clocks are wrong."""
SHORT_S = 0.5
DEADLINE_S = 60.0


class Walls:
    """The wall clocks of nodes in this process: one for each node's thread."""

    def __init__(self) -> None:
        self.ahead_us: dict[threading.Thread, int] = {}
        self.starting_us = 0
        """Of the node that is being made."""
        self._real = clock.wall_us

    def wall_us(self) -> int:
        return self._real() + self.ahead_us.get(threading.current_thread(), self.starting_us)

    def start(
        self, name: str, path: Path, peers: dict[str, str] | None, ahead_us: int
    ) -> mirrorq.Node:
        self.starting_us = ahead_us
        node = mirrorq.Node(name, path=path / name, peers=peers)
        self.set(node, ahead_us)
        return node

    def set(self, node: mirrorq.Node, ahead_us: int) -> None:
        self.ahead_us[node._driver.thread] = ahead_us


@pytest.fixture
def walls(monkeypatch: pytest.MonkeyPatch) -> Walls:
    made = Walls()
    monkeypatch.setattr(clock, "wall_us", made.wall_us)
    return made


class Looks:
    """How many messages there are, beside those that a look puts."""

    def __init__(self, queue: mirrorq.MirroredQueue) -> None:
        self.queue = queue
        self.markers = 0

    def counts(self) -> tuple[int, int]:
        """(ready, delayed), when the master has made an op more: what was due came before it."""
        self.queue.put(b"marker").result(DEADLINE_S)
        self.markers += 1
        found = self.queue._handle.counts()
        return found.ready - self.markers, found.delayed


def lead(queue: mirrorq.MirroredQueue, node: mirrorq.Node, name: str) -> None:
    node.transfer_master(queue.name, name)
    until(lambda: queue.status().master == name)


def test_ttls_and_delays_are_durations_whoever_leads(tmp_path: Path, walls: Walls) -> None:
    """Masters an hour ahead and an hour behind, by transfer and by a failover, and a clock that is
    set while its node leads: nothing ends before its time, and what is short ends soon."""
    ports = free_ports(3)
    peers = {name: f"tcp://127.0.0.1:{port}" for name, port in zip("abc", ports, strict=True)}
    wrong = {"a": 0, "b": HOUR_US, "c": -HOUR_US}
    with ExitStack() as stack:
        nodes = {
            name: stack.enter_context(walls.start(name, tmp_path, peers, ahead_us))
            for name, ahead_us in wrong.items()
        }
        for node in nodes.values():
            node.wait_ready(DEADLINE_S)
        nodes["a"].queue("q", timeout=DEADLINE_S).close()
        queue = stack.enter_context(nodes["c"].queue("q", timeout=DEADLINE_S))
        until(lambda: len(queue.status().synchronised_mirrors) == 2)
        queue.put_many([b"%d" % n for n in range(30)], ttl=LONG_S)
        queue.put(b"later", delay=LONG_S)
        queue.wait_for_confirms(DEADLINE_S)
        looks = Looks(queue)
        assert looks.counts() == (30, 1)
        for name in "bcb":
            lead(queue, nodes["c"], name)
            assert looks.counts() == (30, 1)
            queue.put(b"short", ttl=SHORT_S).result(DEADLINE_S)
            queue.put(b"soon", delay=SHORT_S, ttl=2 * SHORT_S).result(DEADLINE_S)
            until(lambda: looks.counts() == (30, 1))
        for ahead_us in (24 * HOUR_US, -24 * HOUR_US):
            walls.set(nodes["b"], ahead_us)
            assert looks.counts() == (30, 1)
        nodes["b"].close()
        until(lambda: queue.status().master not in (None, "b"))
        assert looks.counts() == (30, 1)
        message = queue.get(timeout=DEADLINE_S)
        assert abs(message.timestamp - time.time()) < LONG_S, "times mean what they say"


def test_a_restart_by_a_clock_that_was_set_meanwhile_moves_nothing(
    tmp_path: Path, walls: Walls
) -> None:
    """One node alone: its process ends, somebody sets the clock, it begins again."""
    markers = 0
    for ahead_us in (0, HOUR_US, -HOUR_US):
        with walls.start("a", tmp_path, None, ahead_us) as node, node.queue("q") as queue:
            if not ahead_us:
                queue.put(b"x", ttl=LONG_S).result(DEADLINE_S)
                queue.put(b"later", delay=LONG_S).result(DEADLINE_S)
            looks = Looks(queue)
            looks.markers = markers
            assert looks.counts() == (1, 1)
            queue.put(b"short", ttl=SHORT_S).result(DEADLINE_S)
            until(lambda: looks.counts() == (1, 1))  # noqa: B023
            markers = looks.markers
