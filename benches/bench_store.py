"""The store by itself: commits with sync, reads, and the start of a node that holds much.

    pytest benches/bench_store.py

Commits are as fast as the disk under the temporary directory (pytest's --basetemp moves it).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from mirrorq.config import Config
from mirrorq.protocol.effects import QueueWrite
from mirrorq.protocol.ops import AckOp, Entry
from mirrorq.store.node_store import Store
from mirrorq.wire import frames
from mirrorq.wire.ops import FrameCodec

QUEUE = 1
BODY = b"x" * 100
BATCH = frames.pack_publish([BODY] * 1000)
SINGLE = frames.pack_publish([BODY])

codec = FrameCodec()


class Log:
    """Stamps frames as the master of one queue does."""

    def __init__(self) -> None:
        self.lsn = 0
        self.sequence = 0

    def publish(self, frame: bytes, messages: int) -> Entry:
        self.lsn += 1
        first = self.sequence + 1
        self.sequence += messages
        return codec.publish(
            frame, queue_id=QUEUE, epoch=1, lsn=self.lsn, first_sequence=first, timestamp_us=1
        )

    def ack(self, first: int, last: int) -> Entry:
        self.lsn += 1
        op = AckOp(((first, last),))
        return codec.op(op, queue_id=QUEUE, epoch=1, lsn=self.lsn, timestamp_us=1)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store(tmp_path / "store", node="a", config=Config())
    yield store
    store.close()


def test_commit_of_100_kib(benchmark: BenchmarkFixture, store: Store) -> None:
    """One frame of 1,000 messages of 100 bytes."""
    log = Log()
    benchmark(lambda: store.commit([QueueWrite(QUEUE, append=(log.publish(BATCH, 1000),))]))


def test_commit_of_1_mib(benchmark: BenchmarkFixture, store: Store) -> None:
    """Ten such frames, which become one run."""
    log = Log()

    def commit() -> None:
        entries = tuple(log.publish(BATCH, 1000) for _ in range(10))
        store.commit([QueueWrite(QUEUE, append=entries)])

    benchmark(commit)


def test_commit_of_1_message(benchmark: BenchmarkFixture, store: Store) -> None:
    """The least that a confirmed put costs."""
    log = Log()
    benchmark(lambda: store.commit([QueueWrite(QUEUE, append=(log.publish(SINGLE, 1),))]))


def test_commit_of_1000_puts(benchmark: BenchmarkFixture, store: Store) -> None:
    """What one-by-one puts become under load: many small frames in one run."""
    log = Log()

    def commit() -> None:
        entries = tuple(log.publish(SINGLE, 1) for _ in range(1000))
        store.commit([QueueWrite(QUEUE, append=entries)])

    benchmark(commit)


def test_commit_of_acks(benchmark: BenchmarkFixture, store: Store) -> None:
    """A queue in balance: a batch comes, one is acked, every eighth time with a checkpoint."""
    log = Log()
    turns = count(1)

    def commit() -> None:
        entries = (log.publish(BATCH, 1000), log.ack(max(1, log.sequence - 1999), log.sequence))
        write = QueueWrite(QUEUE, append=entries)
        if next(turns) % 8 == 0:
            end = max(1, log.sequence - 1000)
            write = QueueWrite(
                QUEUE, append=entries, state=b"s" * 200, state_lsn=log.lsn, release=((1, end),)
            )
        store.commit([write])

    benchmark(commit)


@pytest.fixture
def millions(tmp_path: Path) -> Path:
    """A store with 5,000,000 messages, its checkpoint 20 ops before the end."""
    path = tmp_path / "millions"
    store = Store(path, node="a", config=Config())
    log = Log()
    for _ in range(500):
        entries = tuple(log.publish(BATCH, 1000) for _ in range(10))
        store.commit([QueueWrite(QUEUE, append=entries)])
    store.commit([QueueWrite(QUEUE, state=b"s", state_lsn=log.lsn - 20)])
    store.close()
    return path


def test_open_and_load_with_5_million_messages(benchmark: BenchmarkFixture, millions: Path) -> None:
    """The store's share of a node's start."""

    def start() -> None:
        store = Store(millions, node="a", config=Config())
        assert len(store.load(QUEUE).entries) == 20
        store.close()

    benchmark(start)


def test_read_256_of_many_small_frames(benchmark: BenchmarkFixture, store: Store) -> None:
    """A consumer's prefetch in a queue that was filled by single puts."""
    log = Log()
    store.commit([QueueWrite(QUEUE, append=tuple(log.publish(SINGLE, 1) for _ in range(5000)))])
    turns = count()

    def read() -> None:
        first = next(turns) * 256 % (log.sequence - 256) + 1
        assert len(store.read(QUEUE, first, first + 255, 1 << 20)) == 256

    benchmark(read)
