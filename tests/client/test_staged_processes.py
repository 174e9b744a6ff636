"""Staged writes of real processes, while a task and the queue's master are killed."""

from __future__ import annotations

import base64
import pickle
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest
from running import NodeProcesses, Script, in_sync, is_empty
from tests.kit import until

from conftest import Connecting
from mirrorq import AckRefused
from mirrorq.api.staged import Committed, StagedPart

pytestmark = pytest.mark.soak

COUNT = 30_000
"""Rows of a task: three chunks and more."""


@contextmanager
def tasks(endpoints: str, run: str, attempts: list[tuple[int, int]]) -> Iterator[list[Script]]:
    """Processes of (partition, attempt), each half way; killed at the end."""
    started: list[Script] = []
    try:
        for partition, attempt in attempts:
            names = (run, str(partition), str(attempt), str(COUNT))
            started.append(Script("staging_process.py", endpoints, *names))
        for task in started:
            assert task.line() == "half\n"
        yield started
    finally:
        for task in started:
            task.kill()


def go_on(task: Script) -> None:
    assert task.process.stdin is not None
    task.process.stdin.write("\n")
    task.process.stdin.flush()


def part_of(task: Script) -> StagedPart:
    part = pickle.loads(base64.b64decode(task.line()))
    assert isinstance(part, StagedPart)
    return part


@pytest.mark.parametrize("moment", ["staging", "commit"])
def test_a_task_and_the_master_are_killed(
    processes: NodeProcesses, connecting: Connecting, moment: str
) -> None:
    """One of two tasks dies half way and is followed by another attempt; the master dies while
    they stage, or with the commit on its way. All rows come once; a driver that begins again with
    another run is told that it is done."""
    driver = connecting(*processes.endpoints)
    orders = driver.queue("orders")
    master = in_sync(orders).master
    assert master is not None
    endpoints = ",".join(processes.endpoints)
    staged = driver.staged("job", 7, "orders")
    done: list[Committed] = []
    with tasks(endpoints, staged.run, [(0, 0), (1, 0), (1, 1)]) as (first, dying, second):
        dying.kill()
        go_on(first)
        if moment == "staging":
            processes.kill(master)
        go_on(second)
        parts = [part_of(second), part_of(first)]
    assert [part.count for part in parts] == [COUNT, COUNT]
    assert orders.qsize() == 0
    commit = threading.Thread(target=lambda: done.append(staged.commit(parts, 60)))
    commit.start()
    if moment == "commit":
        processes.kill(master)
    commit.join()
    again = connecting(*processes.endpoints).staged("job", 7, "orders")
    assert again.commit([], 60) == Committed(range(0), True)
    rows = [b"%d/%d" % (partition, row) for partition in (0, 1) for row in range(COUNT)]
    got: list[bytes] = []
    while len(got) < len(rows):
        messages = orders.get_many(10_000, timeout=30)
        assert messages, f"{len(rows) - len(got)} rows never came"
        # A machine too busy for heartbeats sees another failover: then some come again, and say so.
        seen = set(got)
        got += [m.body for m in messages if not (m.redelivered and m.body in seen)]
        with suppress(AckRefused):
            orders.ack_many(messages).result(30)
    assert got == rows
    until(lambda: is_empty(orders))
    assert len(done) == 1
    staged.close()
    again.close()
