"""Days of churn in fast motion: messages, producers and queues that come and go."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import kernel
from churn import store_bytes, turn_over
from compare.peer import OUTCOME_S, START_S
from mirrorq import connect
from scale.cluster import Cluster
from scale.part import Column, Part, Sample, Settings, found, tell

BODY = b"x" * 100
NODES = 3
DEPTH = 1_000
BATCH = 100
TENTHS = 10
PRODUCERS = 40
"""Connections that come, put, take and go, in each tenth."""
QUEUES = 10
"""Queues that are declared, used and deleted, in each tenth."""
A_DAY = 10 * 24 * 3600
"""Messages of a day of ten a second."""


def run(settings: Settings) -> Iterator[Sample]:
    with ExitStack() as stack:
        directory = TemporaryDirectory(prefix="mirrorq-scale-", dir=settings.path)
        place = Path(stack.enter_context(directory))
        running = Cluster(stack, place, NODES)
        queue = running.queue()
        queue.put_many([BODY] * DEPTH).result(OUTCOME_S)
        count = max(BATCH, settings.messages // TENTHS // BATCH * BATCH)
        for tenth in range(1, TENTHS + 1):
            tell(f"churn: {count * (tenth - 1):,} of {count * TENTHS:,} messages")
            took = running.spent(count, lambda: turn_over(queue, count, BATCH))
            _come_and_go(running, tenth)
            instructions = took.instructions
            yield found(
                "churn",
                tenth,
                messages=count * tenth,
                days=count * tenth / A_DAY,
                rate=count / took.seconds,
                master_mb=kernel.anonymous_mb(running.pids[0]),
                mirror_mb=kernel.anonymous_mb(running.pids[1]),
                store_mb=store_bytes(place / "a") / 1e6,
                master=instructions[0],
                mirror=instructions[1],
            )


def _come_and_go(running: Cluster, tenth: int) -> None:
    endpoints = list(running.peers.values())
    for number in range(PRODUCERS):
        with (
            connect(endpoints[number % len(endpoints)], timeout=START_S) as client,
            client.queue("scale", timeout=START_S) as handle,
        ):
            handle.put(BODY).result(OUTCOME_S)
            handle.get(timeout=OUTCOME_S).ack().result(OUTCOME_S)
    for number in range(QUEUES):
        with running.client.queue(f"churn-{tenth}-{number}", timeout=START_S) as handle:
            handle.put(BODY).result(OUTCOME_S)
            handle.delete()


PART = Part(
    "churn",
    "tenth",
    run,
    [
        Column("messages", "messages"),
        Column("days", "days of ten a second", 2),
        Column("master_mb", "RssAnon MB: master", 1),
        Column("mirror_mb", "a mirror", 1),
        Column("store_mb", "store MB", 1),
        Column("master", "instructions a message: master"),
        Column("mirror", "a mirror"),
        Column("rate", "put, got and acked /s"),
    ],
    {
        "master_mb": "RssAnon: master",
        "mirror_mb": "RssAnon: a mirror",
        "store_mb": "store",
    },
    "MB",
)
