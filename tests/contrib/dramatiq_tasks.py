"""Actors that a worker of dramatiq runs: `python -m dramatiq dramatiq_tasks`."""

from __future__ import annotations

import os

import dramatiq
from dramatiq.middleware import CurrentMessage

from mirrorq.contrib.dramatiq import MirrorQBroker

broker = MirrorQBroker(os.environ["SHOP_BROKER"])
broker.add_middleware(CurrentMessage())
dramatiq.set_broker(broker)


@dramatiq.actor(max_retries=0)
def mark(number: int) -> None:
    """Say that a task was done, and whether it may have been before: one line, written at once."""
    message = CurrentMessage.get_current_message()
    is_again = message is not None and message.options.get("redelivered")
    with open(os.environ["SHOP_LOG"], "a", buffering=1) as log:
        log.write(f"{number} {'again' if is_again else 'first'}\n")


@dramatiq.actor(max_retries=0)
def hang(path: str) -> None:
    """End the worker in the middle of it; the second time say so."""
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        mark.fn(-1)
        return
    os.killpg(os.getpgid(0), 9)
