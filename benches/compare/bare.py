"""The ceiling: three bare processes that only commit the same bytes with sync and pass them on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import ceiling
from compare.peer import Bare, Peer, batch_of, in_flight_of


class Ring:
    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def measure(self, size: int, seconds: float) -> tuple[float, float, float]:
        batch = batch_of(size)
        found = ceiling.measure(
            self._directory,
            seconds=seconds,
            message_bytes=size,
            batch=batch,
            in_flight=max(1, in_flight_of(size) // batch),
        )
        return found.messages_per_second, found.latency_p50_ms, found.latency_p99_ms


@contextmanager
def _start(directory: Path) -> Iterator[Bare]:
    yield Ring(directory)


PEERS = [Peer("ceiling", "bound", "fsynced on three processes", _start)]
