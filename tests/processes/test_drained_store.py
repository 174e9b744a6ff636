"""A store that is full, and is drained while producers go on: every put is confirmed in the end."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from mirrorq import Config, Confirmation, MirroredQueue, Node, NotConfirmed

from .cluster import free_ports, until

MIB = 1 << 20
WAITING_BYTES = 33 * MIB
"""More than a handle may have unconfirmed: some wait in `put`."""
WAITING_COUNT = 8000
DEADLINE_S = 60


class Producer:
    """Puts `count` messages of one size, each once, from a thread of its own."""

    def __init__(self, queue: MirroredQueue, size: int, count: int) -> None:
        self.confirmations: list[Confirmation] = []
        self._queue, self._body, self._count = queue, b"x" * size, count
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        for _ in range(self._count):
            self.confirmations.append(self._queue.put(self._body, timeout=DEADLINE_S))

    @property
    def is_done(self) -> bool:
        return not self._thread.is_alive() and all(one.done() for one in self.confirmations)

    def unconfirmed(self) -> int:
        return self._count - sum(
            one.done() and one.exception(0) is None for one in self.confirmations
        )


@contextmanager
def nodes(path: Path, names: str, **config: int) -> Iterator[list[Node]]:
    """Nodes in this process."""
    ports = free_ports(len(names))
    peers = {name: f"tcp://127.0.0.1:{port}" for name, port in zip(names, ports, strict=True)}
    with ExitStack() as stack:
        yield [
            stack.enter_context(
                Node(
                    name,
                    path=path / name,
                    peers=peers if len(names) > 1 else None,
                    config=Config(**config),
                )
            )
            for name in names
        ]


def drain(queue: MirroredQueue, producer: Producer) -> int:
    """Take and ack all there is, until every put has its outcome; return how many came."""
    count, looked_at = 0, time.monotonic()
    while not (producer.is_done and queue.qsize() == 0):
        if messages := queue.get_many(500, timeout=0.1):
            queue.ack_many(messages).result(DEADLINE_S)
            count += len(messages)
            looked_at = time.monotonic()
        assert time.monotonic() - looked_at < DEADLINE_S, queue.status()
    return count


@pytest.mark.parametrize(
    ("names", "store_mib", "size"),
    [
        ("a", 1, 100),
        ("a", 4, 2000),
        ("a", 8, 30_000),
        ("a", 8, 100_000),
        ("a", 8, 5_000_000),
        ("abc", 8, 2000),
        ("abc", 8, 100_000),
    ],
)
def test_a_store_is_drained_while_producers_go_on(
    tmp_path: Path, names: str, store_mib: int, size: int
) -> None:
    """Puts until the store is full and more wait; everything is taken and acked: no put stays
    unconfirmed, whatever the size of messages and however often freed pages are used again."""
    with nodes(tmp_path, names, store_bytes_max=store_mib * MIB) as started:
        handles = [node.queue("jobs", timeout=DEADLINE_S) for node in started]
        until(lambda: len(handles[0].status().synchronised_mirrors) == len(names) - 1)
        waiting = min(WAITING_BYTES // (size + 88), WAITING_COUNT)
        count = store_mib * MIB // (size + 88) + waiting
        producer = Producer(handles[-1], size, count)
        until(lambda: "is full" in handles[0].status().blocked_by or producer.is_done)
        assert not producer.is_done, "the store was never full"
        assert drain(handles[0], producer) == count
        assert producer.unconfirmed() == 0
        until(lambda: handles[0].status().blocked_by == "")


def test_what_no_store_ever_takes_is_refused(tmp_path: Path) -> None:
    """A message larger than the whole store does not wait for ever, nor hold others up."""
    with nodes(tmp_path, "a", store_bytes_max=MIB) as (node,), node.queue("jobs") as queue:
        large = queue.put(b"x" * (2 * MIB))
        small = queue.put(b"x")
        error = large.exception(DEADLINE_S)
        assert isinstance(error, NotConfirmed)
        assert "raise store_bytes_max" in str(error)
        assert small.result(DEADLINE_S) == 1
