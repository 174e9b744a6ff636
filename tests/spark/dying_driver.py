"""The driver's half of a write, in a process that kills itself at a chosen step."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Sequence
from typing import Any

from mirrorq.bulk.staging import Staged
from pyspark_mirrorq.writer import BatchWriter, Part

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload([__name__])
END_S = 120


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _commit(writer: BatchWriter, parts: Sequence[Part], step: int, is_sent: bool) -> None:
    decide = Staged._decide
    steps = 0

    def decide_or_die(staged: Staged, queue: str, op: Any, deadline: int | None) -> Any:
        nonlocal steps
        if steps == step:
            if is_sent:
                staged._send(queue, op)
            die()
        steps += 1
        return decide(staged, queue, op, deadline)

    Staged._decide = decide_or_die  # type: ignore[method-assign]
    writer.commit(parts)
    die()


def commit_and_die(
    writer: BatchWriter, parts: Sequence[Part], step: int, is_sent: bool = False
) -> None:
    """Commit in a process of its own; return when it has killed itself.

    Args:
        step: how many queues have answered when it dies.
        is_sent: the next one was asked, and its answer does not matter any more.
    """
    process = _context.Process(target=_commit, args=(writer, parts, step, is_sent))
    process.start()
    process.join(END_S)
    assert process.exitcode == -signal.SIGKILL
    process.close()
