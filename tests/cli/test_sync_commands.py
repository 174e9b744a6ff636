"""`mirrorq queue sync` and `cancel-sync`, as a user runs them where nothing is to be done."""

from __future__ import annotations

import pytest

from .running import Run


def test_15_a_queue_in_sync(run: Run) -> None:
    """Synchronising is no work, and there is nothing to cancel."""
    run("queue", "put", "calm", given=b"x\n")
    for more, said in (((), b"in sync: calm\n"), (("--no-wait",), b"synchronising: calm\n")):
        done = run("queue", "sync", "calm", *more)
        assert (done.returncode, done.stdout, done.stderr) == (0, said, b"")
    done = run("queue", "cancel-sync", "calm")
    assert (done.returncode, done.stdout, done.stderr) == (0, b"not syncing: calm\n", b"")


@pytest.mark.parametrize("command", ["sync", "cancel-sync"])
def test_an_unknown_queue_is_refused_in_one_line(run: Run, command: str) -> None:
    """Exit status 1, and one line on standard error."""
    done = run("queue", command, "nothing")
    assert (done.returncode, done.stdout) == (1, b"")
    assert done.stderr.startswith(b"mirrorq: no queue is named 'nothing'")
    assert done.stderr.count(b"\n") == 1
