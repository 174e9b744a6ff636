"""Tasks of Django; the log of what was done comes by the environment."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

try:
    from django.tasks import task
except ModuleNotFoundError:
    from django_tasks import task


def note(line: str) -> None:
    """Add a line to the log of what was done: one write, whole or not at all."""
    with Path(os.environ["SHOP_LOG"]).open("a", encoding="utf-8") as log:
        log.write(f"{line}\n")


@task
def add(one: int, other: int) -> int:
    return one + other


@task
async def later(one: int) -> int:
    return one


@task
def fail(why: str) -> None:
    raise ValueError(why)


@task
def when() -> float:
    return time.time()


@task(takes_context=True)
def mark(context: Any, number: int) -> int:
    """Note that it was here, and whether it may have been before."""
    note(f"{number} {'again' if context.attempt > 1 else 'first'}")
    return int(context.attempt)


@task
def hang_once(flag: str) -> None:
    """Hang where nobody was before, so that the worker can be killed."""
    note(flag)
    if not Path(flag).exists():
        Path(flag).touch()
        while True:
            time.sleep(60)


@task
def name(text: str) -> None:
    note(text)
