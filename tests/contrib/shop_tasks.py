"""The Celery app of the tests: broker and log of what was done come by the environment."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from celery import Celery, Task

import mirrorq.contrib.kombu  # noqa: F401  (registers mirrorq://)

app: Any = Celery("shop", broker=os.environ["SHOP_BROKER"], backend="rpc://")
app.conf.update(
    broker_connection_retry_on_startup=True,
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    worker_prefetch_multiplier=1,
)


def note(line: str) -> None:
    """Add a line to the log of what was done: one write, whole or not at all."""
    with Path(os.environ["SHOP_LOG"]).open("a", encoding="utf-8") as log:
        log.write(f"{line}\n")


@app.task
def add(one: int, other: int) -> int:
    return one + other


@app.task
def total(numbers: list[int]) -> int:
    return sum(numbers)


@app.task(bind=True, max_retries=3)
def third_time(self: Task) -> int:
    """Fails twice."""
    if self.request.retries < 2:
        raise self.retry(countdown=0.1)
    return int(self.request.retries)


@app.task(bind=True)
def hang_once(self: Task, flag: str) -> bool:
    """Hang where nobody was before, so that the worker can be killed; then tell whether the
    message said that it was delivered before."""
    note(f"{flag} begun")
    if not Path(flag).exists():
        Path(flag).touch()
        while True:
            time.sleep(60)
    note(f"{flag} done")
    return bool(self.request.delivery_info["redelivered"])


@app.task
def when() -> float:
    return time.time()


@app.task(bind=True)
def mark(self: Task, number: int) -> None:
    """Note that it was here, and whether it may have been before."""
    info = self.request.delivery_info
    note(f"{number} {'again' if info['redelivered'] else 'first'}")
