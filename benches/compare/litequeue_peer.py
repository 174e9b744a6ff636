"""litequeue: a queue in SQLite, one transaction a call; strings only."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from compare.peer import Peer, Session, module_needed


class Lite:
    def __init__(self, queue: Any) -> None:
        self._queue = queue

    def publish(self, body: bytes, count: int, in_flight: int) -> None:
        text = body.decode()
        for _ in range(count):
            self._queue.put(text)

    def take(self, count: int) -> None:
        for _ in range(count):
            self._queue.done(self._queue.pop().message_id)


@contextmanager
def _start(directory: Path, synchronous: str) -> Iterator[Session]:
    module_needed("litequeue", "litequeue")
    from litequeue import LiteQueue

    queue = LiteQueue(str(directory / "queue.sqlite"))
    queue.conn.execute(f"PRAGMA synchronous = {synchronous}")
    yield Lite(queue)
    queue.close()


PEERS = [
    Peer(
        "litequeue",
        "embedded",
        "SQLite, as it comes: a power cut takes the last ones",
        lambda path: _start(path, "NORMAL"),
    ),
    Peer(
        "litequeue, FULL",
        "embedded",
        "fsynced (PRAGMA set here)",
        lambda path: _start(path, "FULL"),
    ),
]
