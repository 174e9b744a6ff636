"""Tasks that a worker of taskiq runs: `python -m taskiq worker taskiq_tasks:broker`."""

from __future__ import annotations

import os

from mirrorq.contrib.taskiq import MirrorQBroker, MirrorQResultBackend

URL = os.environ["SHOP_BROKER"]
broker = MirrorQBroker(URL).with_result_backend(MirrorQResultBackend(URL))


@broker.task(task_name="mark")
async def mark(number: int) -> int:
    """Say that a task was done: one line, written at once."""
    with open(os.environ["SHOP_LOG"], "a", buffering=1) as log:
        log.write(f"{number}\n")
    return number


@broker.task(task_name="fail")
async def fail(why: str) -> None:
    raise ValueError(why)


@broker.task(task_name="hang")
async def hang(path: str) -> None:
    """End the worker in the middle of it; the second time say so."""
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        await mark(-1)
        return
    os.killpg(os.getpgid(0), 9)
