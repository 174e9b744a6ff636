"""100 B to 16 MB: megabytes a second, beside the ceiling's with the same sizes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

from compare import bare, mirrorq_peers
from compare.measure import count_for, one_at_a_time
from compare.peer import Session, in_flight_of
from scale.cluster import spent
from scale.part import Column, Part, Sample, Settings, each, found


def run(settings: Settings) -> Iterator[Sample]:
    """This process is the master of three, as the ceiling's first process makes its batches."""
    for size in each(settings, "sizes", "bytes"):
        with ExitStack() as stack:
            directory = Path(
                stack.enter_context(TemporaryDirectory(prefix="mirrorq-scale-", dir=settings.path))
            )
            before = _ceiling(directory, size, settings.seconds)
            session = stack.enter_context(mirrorq_peers.PEERS[0].start(directory))
            figures = _measure(session, size, settings.seconds)
            after = _ceiling(directory, size, settings.seconds)
        ceiling = (before[0] + after[0]) / 2
        figures["share"] = 100 * figures["put"] / ceiling
        figures["p50_times"] = figures["p50_ms"] / ((before[1] + after[1]) / 2)
        yield found("sizes", size, **figures, ceiling=ceiling)


def _ceiling(directory: Path, size: int, seconds: float) -> tuple[float, float]:
    """(MB a second, p50 of one at a time in ms)"""
    rate, p50_ms, _ = bare.Ring(directory).measure(size, seconds)
    return rate * size / 1e6, p50_ms


def _measure(session: Session, size: int, seconds: float) -> dict[str, float]:
    body, in_flight = os.urandom(size), in_flight_of(size)
    count = count_for(session, body, in_flight, seconds)
    pids = [os.getpid()]
    put = spent(pids, [], count, lambda: session.publish(body, count, in_flight))
    took = spent(pids, [], count, lambda: session.take(count))
    p50_ms, _ = one_at_a_time(session, body, seconds)
    return {
        "put": count * size / put.seconds / 1e6,
        "take": count * size / took.seconds / 1e6,
        "put_us": put.cpu_us[0],
        "take_us": took.cpu_us[0],
        "p50_ms": p50_ms,
    }


PART = Part(
    "sizes",
    "bytes",
    run,
    [
        Column("put", "put MB/s"),
        Column("ceiling", "the ceiling's"),
        Column("share", "share %"),
        Column("take", "got and acked MB/s"),
        Column("put_us", "CPU us a message, master and load: put", 1),
        Column("take_us", "get + ack", 1),
        Column("p50_ms", "one put, p50 ms", 2),
        Column("p50_times", "of the ceiling's, times", 1),
    ],
    {"put": "put", "ceiling": "the ceiling", "take": "get + ack"},
    "MB a second",
)
