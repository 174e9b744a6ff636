"""`queue.Queue`: the bound that memory and the interpreter set."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from compare.peer import Peer, Session


class Memory:
    def __init__(self) -> None:
        self._queue: queue.Queue[bytes] = queue.Queue()

    def publish(self, body: bytes, count: int, in_flight: int) -> None:
        for _ in range(count):
            self._queue.put(body)

    def take(self, count: int) -> None:
        for _ in range(count):
            self._queue.get()
            self._queue.task_done()


@contextmanager
def _start(directory: Path) -> Iterator[Session]:
    yield Memory()


PEERS = [Peer("queue.Queue", "bound", "none: this process's memory", _start)]
