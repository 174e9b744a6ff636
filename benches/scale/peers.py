"""Rows that need others beside: what a confirm, a put or a cycle costs there, in the same run."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence

from compare.__main__ import PEERS
from compare.measure import samples
from scale.part import Column, Part, Sample, Settings, found, tell

BYTES = 100
COLUMNS = [
    Column("put", "put /s"),
    Column("take", "get + ack /s"),
    Column("cycle", "put, got and acked /s"),
    Column("p50_ms", "one put, p50 ms", 3),
]


def _running(part: str, names: Sequence[str]) -> Callable[[Settings], Iterator[Sample]]:
    def run(settings: Settings) -> Iterator[Sample]:
        peers = [peer for peer in PEERS if peer.name in names]
        for each in samples(peers, [BYTES], 1, settings.seconds, settings.path, _told(part)):
            cycle = 1 / (1 / each.publish + 1 / each.take) if each.take else None
            yield found(
                part,
                each.peer,
                put=each.publish,
                take=each.take or None,
                cycle=cycle,
                p50_ms=each.p50_ms,
            )

    return run


def _told(part: str) -> Callable[[str], None]:
    def told(line: str) -> None:
        if line.startswith("skipped"):
            print(f"\n{line}", file=sys.stderr)
        else:
            tell(f"{part}: {line.partition(': ')[2] or line}")

    return told


EMBEDDED = Part(
    "embedded",
    "alone on one machine",
    _running(
        "embedded",
        (
            "mirrorq alone, batches",
            "mirrorq alone, without waiting",
            "persist-queue",
        ),
    ),
    COLUMNS,
)
REPLICATED = Part(
    "replicated",
    "three nodes",
    _running(
        "replicated",
        (
            "ceiling",
            "mirrorq, without waiting",
            "mirrorq, without waiting, `replicated`",
            "RabbitMQ, quorum queue",
        ),
    ),
    COLUMNS,
)
OTHERS = Part(
    "others",
    "beside others",
    _running(
        "others",
        (
            "mirrorq, batches",
            "mirrorq, without waiting",
            "RabbitMQ, quorum queue",
            "NATS JetStream R3",
            "queue.Queue",
        ),
    ),
    COLUMNS,
)
