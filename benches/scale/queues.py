"""1 to 1,000 queues: the same number of messages, spread over so many."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from compare.peer import OUTCOME_S, in_flight_of
from mirrorq import Confirmation, MirroredQueue
from scale.cluster import Cluster, cluster
from scale.nodes import costs
from scale.part import Column, Part, Sample, Settings, each, found, tell

BODY = b"x" * 100
BATCH = 100
"""What a batch into one of many queues has: a tenth of what one queue would get."""
PROBE_COUNT = 2_000
EACH_MIN = 20
"""Messages of each queue, at least."""
TAKERS = 16
"""Threads, each with its share of the queues: the first get of a handle is a round trip."""
NODES = 3


def run(settings: Settings) -> Iterator[Sample]:
    with cluster(settings, NODES) as running:
        handles: list[MirroredQueue] = []
        for count in each(settings, "queues", "queues"):
            while len(handles) < count:
                handles.append(running.queue(f"scale-{len(handles)}"))
                if len(handles) % 10 == 0:
                    tell(f"queues: {len(handles)} of {count} declared")
            yield _measure(settings, running, handles[:count])


def _measure(settings: Settings, running: Cluster, handles: Sequence[MirroredQueue]) -> Sample:
    in_flight = in_flight_of(len(BODY))
    probe = max(PROBE_COUNT, EACH_MIN * len(handles))
    start = time.perf_counter()
    publish(handles, probe, 1, in_flight)
    count = max(probe, int(probe * settings.seconds / (time.perf_counter() - start)))
    take(handles, probe, 1)
    batches = max(count, BATCH * len(handles)) // BATCH * BATCH
    put = running.spent(count, lambda: publish(handles, count, 1, in_flight))
    took = running.spent(count, lambda: take(handles, count, 1))
    many = running.spent(batches, lambda: publish(handles, batches, BATCH, in_flight))
    take(handles, batches, BATCH)
    return found(
        "queues",
        len(handles),
        put=count / put.seconds,
        put_many=batches / many.seconds,
        take=count / took.seconds,
        **costs("put", put, NODES),
        **costs("put_many", many, NODES),
        **costs("take", took, NODES),
    )


def publish(handles: Sequence[MirroredQueue], count: int, batch: int, in_flight: int) -> None:
    """Into each queue in turn, `batch` messages a call."""
    pending: list[Confirmation] = []
    waited = 0
    for number in range(count // batch):
        handle = handles[number % len(handles)]
        pending.append(handle.put(BODY) if batch == 1 else handle.put_many([BODY] * batch))
        if (len(pending) - waited) * batch > in_flight:
            pending[waited].result(OUTCOME_S)
            waited += 1
    for confirmation in pending[waited:]:
        confirmation.result(OUTCOME_S)


def take(handles: Sequence[MirroredQueue], count: int, batch: int) -> None:
    """As many from each queue as went into it, and acknowledge them."""
    shares = [
        batch * len(range(number, count // batch, len(handles))) for number in range(len(handles))
    ]

    def work(first: int) -> None:
        settlements = []
        for number in range(first, len(handles), TAKERS):
            handle, left = handles[number], shares[number]
            while left:
                messages = handle.get_many(left, timeout=OUTCOME_S)
                if not messages:
                    raise TimeoutError(f"{left} messages did not come within {OUTCOME_S:.0f} s")
                settlements.append(handle.ack_many(messages))
                left -= len(messages)
        for settlement in settlements:
            settlement.result(OUTCOME_S)

    with ThreadPoolExecutor(TAKERS) as threads:
        for done in [threads.submit(work, first) for first in range(TAKERS)]:
            done.result()


PART = Part(
    "queues",
    "queues",
    run,
    [
        Column("put", "`put` /s"),
        Column("put_master", "instructions a message: master"),
        Column("put_mirror", "a mirror"),
        Column("put_load", "the client"),
        Column("put_many", "`put_many` of 100 /s"),
        Column("put_many_master", "instructions: master"),
        Column("put_many_mirror", "a mirror"),
        Column("take", "`get_many` + ack /s"),
        Column("take_master", "instructions: master"),
        Column("take_mirror", "a mirror"),
        Column("take_load", "the client"),
    ],
    {
        "put_master": "put: master",
        "put_mirror": "put: mirror",
        "put_many_master": "put_many of 100: master",
        "take_master": "get_many + ack: master",
    },
    "instructions a message",
)
