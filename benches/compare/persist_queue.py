"""persist-queue's SQLiteAckQueue, the one of its queues that knows acknowledgements."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from compare.peer import OUTCOME_S, Peer, Session, module_needed


class Persistent:
    def __init__(self, queue: Any) -> None:
        self._queue = queue

    def publish(self, body: bytes, count: int, in_flight: int) -> None:
        for _ in range(count):
            self._queue.put(body)

    def take(self, count: int) -> None:
        for _ in range(count):
            item = self._queue.get(timeout=OUTCOME_S, raw=True)
            self._queue.ack(id=item["pqid"])
        self._queue.clear_acked_data(keep_latest=0)


@contextmanager
def _start(directory: Path) -> Iterator[Session]:
    module_needed("persistqueue", "persist-queue")
    from persistqueue import SQLiteAckQueue

    queue = SQLiteAckQueue(str(directory), auto_commit=True, multithreading=True)
    yield Persistent(queue)
    queue.close()


PEERS = [Peer("persist-queue", "embedded", "fsynced (SQLite's default)", _start)]
