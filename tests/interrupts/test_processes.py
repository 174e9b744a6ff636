"""Real signals, real collections, real ends of processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.interrupts.children import PUTS

from mirrorq import MirroredQueue, Node, waiting

pytestmark = [pytest.mark.real, pytest.mark.soak]

ROOT = Path(__file__).parents[2]
PATIENCE_S = 180.0
"""A child that takes longer hangs."""


def run(name: str, argument: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.interrupts.children", name, str(argument)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


def told(ended: subprocess.CompletedProcess[str]) -> list[str]:
    """What it said, but for how slow the machine was at the time."""
    slow = (" was silent for ", ": alarm slow_disk: ")
    return [line for line in ended.stderr.splitlines() if not any(text in line for text in slow)]


@pytest.mark.parametrize("name", ["alarms", "handlers", "collections"])
def test_a_process_goes_on(tmp_path: Path, name: str) -> None:
    """Alarms that raise in calls; handlers that call; `__del__` that closes. Nothing hangs, and
    what was confirmed is there once."""
    ended = run(name, tmp_path)
    assert (ended.returncode, ended.stdout) == (0, "done\n"), ended.stderr


def test_a_child_of_multiprocessing_flushes_too(tmp_path: Path) -> None:
    """It ends without what `atexit` has; forked, with a handle of its parent, or fresh."""
    with Node("a", path=tmp_path, listen="tcp://127.0.0.1:0") as node:
        ended = run("leaves_children", node.endpoint)
        assert (ended.returncode, told(ended)) == (0, [])
        found = [message.body for message in node.queue("q").browse(count_max=4 * PUTS)]
    assert found == [b"%d" % number for number in range(PUTS)] * 2


def test_a_forked_child_has_no_host_threads(tmp_path: Path) -> None:
    """A thread of the child may have the number that a host's thread has in the parent."""
    with Node("a", path=tmp_path) as node:
        node.wait_ready(PATIENCE_S)
        assert waiting._hosts
        child = os.fork()
        if child == 0:
            os._exit(len(waiting._hosts))
        assert os.waitpid(child, 0)[1] == 0


def test_a_status_in_a_forked_child_says_why_it_is_empty(tmp_path: Path) -> None:
    with MirroredQueue("q", path=tmp_path) as queue:
        queue.put(b"1").result(PATIENCE_S)
        child = os.fork()
        if child == 0:
            warnings: tuple[str, ...] = ()
            try:
                warnings = queue.status().warnings
            finally:
                os._exit("forked from it: open the queue in the child" not in " ".join(warnings))
        assert os.waitpid(child, 0)[1] == 0
        assert queue.status().messages == 1


def test_what_was_put_is_flushed_at_exit(tmp_path: Path) -> None:
    """A process that ends without close() has its puts confirmed, and has nothing to say."""
    ended = run("leaves", tmp_path)
    assert (ended.returncode, told(ended)) == (0, [])
    with MirroredQueue("q", path=tmp_path) as queue:
        found = [message.body for message in queue.browse(count_max=2 * PUTS)]
    assert found == [b"%d" % number for number in range(PUTS)]


def test_what_a_client_has_put_is_flushed_at_exit(tmp_path: Path) -> None:
    """The same of a process that is no node."""
    with Node("a", path=tmp_path, listen="tcp://127.0.0.1:0") as node:
        queue = node.queue("q")
        ended = run("leaves_client", node.endpoint)
        assert (ended.returncode, told(ended)) == (0, [])
        found = [message.body for message in queue.browse(count_max=2 * PUTS)]
        assert found == [b"%d" % number for number in range(PUTS)]


@pytest.mark.parametrize("name", ["leaves_stuck", "leaves_unheard"])
def test_what_cannot_be_flushed_is_told(tmp_path: Path, name: str) -> None:
    """Within the bound the process ends all the same, and says how many have no outcome: on
    standard error where no logging is set up."""
    ended = run(name, tmp_path)
    assert ended.returncode == 0
    assert f"ends with {PUTS} unconfirmed message(s) to queue q" in ended.stderr
