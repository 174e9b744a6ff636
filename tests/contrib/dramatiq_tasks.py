"""Actors that a worker of dramatiq runs: `python -m dramatiq dramatiq_tasks`."""

from __future__ import annotations

import os

import dramatiq

from mirrorq.contrib.dramatiq import MirrorQBroker

dramatiq.set_broker(MirrorQBroker(os.environ["SHOP_BROKER"]))


@dramatiq.actor(max_retries=0)
def mark(number: int) -> None:
    """Say that a task was done: one line, written at once."""
    with open(os.environ["SHOP_LOG"], "a", buffering=1) as log:
        log.write(f"{number}\n")


@dramatiq.actor(max_retries=0)
def hang(path: str) -> None:
    """End the worker in the middle of it; the second time say so."""
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        mark.fn(-1)
        return
    os.killpg(os.getpgid(0), 9)
