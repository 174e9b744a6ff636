"""Tasks that a worker of taskiq runs: `python -m taskiq worker taskiq_tasks:broker`."""

import os
from typing import Annotated

from taskiq import Context, TaskiqDepends

from mirrorq.contrib.taskiq import MirrorQBroker, MirrorQResultBackend

URL = os.environ["SHOP_BROKER"]
broker = MirrorQBroker(URL).with_result_backend(MirrorQResultBackend(URL))


def note(number: int, is_again: bool) -> None:
    with open(os.environ["SHOP_LOG"], "a", buffering=1) as log:
        log.write(f"{number} {'again' if is_again else 'first'}\n")


@broker.task(task_name="mark")
async def mark(number: int, context: Annotated[Context, TaskiqDepends()]) -> int:
    """Say that a task was done, and whether it may have been before: one line, written at once."""
    note(number, bool(context.message.labels.get("redelivered")))
    return number


@broker.task(task_name="fail")
async def fail(why: str) -> None:
    raise ValueError(why)


@broker.task(task_name="hang")
async def hang(path: str, context: Annotated[Context, TaskiqDepends()]) -> None:
    """End the worker in the middle of it; the second time say so."""
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        note(-1, bool(context.message.labels.get("redelivered")))
        return
    os.killpg(os.getpgid(0), 9)
