"""Frames: what one batch costs, by the number of 100-byte messages in it.

Run: python -m pytest benches/bench_frames.py --benchmark-enable -o python_files=bench_*.py
Divide by the count for the cost of a message. The calls keep the GIL, so that none of them
waits for a thread that computes in Python (src/mirrorq/_native/build.py has the measure).
"""

from __future__ import annotations

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from mirrorq._native import lib
from mirrorq.protocol.ops import AckOp
from mirrorq.wire import frames, ops

STAMP = {"queue_id": 1, "epoch": 2, "lsn": 3, "first_sequence": 4, "timestamp_us": 5}
FRAMES_IN_RUN = 10

counts = pytest.mark.parametrize("count", [1, 10, 100, 1000])


def bodies_of(count: int) -> list[bytes]:
    """Bodies that are objects of their own, as a user's are."""
    return [index.to_bytes(4, "little") * 25 for index in range(count)]


def stamped(count: int) -> bytes:
    """A frame as a mirror gets it."""
    return frames.stamp(frames.pack_publish(bodies_of(count)), **STAMP)


@counts
def test_pack(benchmark: BenchmarkFixture, count: int) -> None:
    """A producer makes a batch."""
    benchmark(frames.pack_publish, bodies_of(count), producer=1, first_number=1)


@counts
def test_stamp(benchmark: BenchmarkFixture, count: int) -> None:
    """The master gives it its place."""
    benchmark(frames.stamp, frames.pack_publish(bodies_of(count)), **STAMP)


@counts
def test_check(benchmark: BenchmarkFixture, count: int) -> None:
    """A member takes it from the wire."""
    benchmark(frames.check, stamped(count))


@counts
def test_split(benchmark: BenchmarkFixture, count: int) -> None:
    """A consumer's handle takes it apart."""
    benchmark(frames.split, stamped(count))


@counts
def test_cut(benchmark: BenchmarkFixture, count: int) -> None:
    """The master takes the second half of a batch."""
    benchmark(frames.cut, stamped(count), count // 2, count)


@counts
def test_split_run(benchmark: BenchmarkFixture, count: int) -> None:
    """The store reads ten such frames that stand in one value."""
    benchmark(frames.split_run, stamped(count) * FRAMES_IN_RUN)


@counts
def test_pack_check_split(benchmark: BenchmarkFixture, count: int) -> None:
    """A batch from the producer's list to the consumer's."""
    bodies = bodies_of(count)

    def carry() -> list[bytes]:
        frame = frames.pack_publish(bodies)
        frames.check(frame)
        return frames.split(frame)

    assert benchmark(carry) == bodies


def test_make_entry(benchmark: BenchmarkFixture) -> None:
    """A member reads an ack op."""
    payload = ops.encode_payload(AckOp(((1, 1000), (1002, 2000))))
    benchmark(ops.make_entry, frames.pack_op(2, payload, queue_id=1, epoch=2, lsn=3))


@pytest.mark.parametrize("size", [100, 4096, 1 << 20])
@pytest.mark.parametrize("way", ["hardware", "software"])
def test_crc32c(benchmark: BenchmarkFixture, way: str, size: int) -> None:
    """The checksum alone, by the CPU's instruction and by tables."""
    if way == "hardware" and not lib.mq_crc32c_is_hardware():
        pytest.skip("this CPU has no instruction for it")
    function = lib.mq_crc32c if way == "hardware" else lib.mq_crc32c_software
    benchmark(function, bytes(size), size)
