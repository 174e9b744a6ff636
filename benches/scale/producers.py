"""1 to 200 producers on one queue, each a connection of its own."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator

from compare.peer import OUTCOME_S, START_S
from mirrorq import Confirmation, connect
from mirrorq.client.client import Client
from scale.cluster import QUEUE, Cluster, Remote, cluster
from scale.nodes import costs
from scale.part import Column, Part, Sample, Settings, each, found

BODY = b"x" * 100
NODES = 3
PROCESSES_MAX = 4
IN_FLIGHT = 10_000
"""Of all producers together."""


class Crowd:
    """Producers of one process."""

    def __init__(self, endpoints: list[str], count: int) -> None:
        self._clients: list[Client] = []
        for number in range(count):
            turned = endpoints[number % len(endpoints) :] + endpoints[: number % len(endpoints)]
            self._clients.append(connect(turned, timeout=START_S))
        self._handles = [client.queue(QUEUE, timeout=START_S) for client in self._clients]

    def close(self) -> None:
        for client in self._clients:
            client.close()

    def produce(self, seconds: float, in_flight: int) -> list[int]:
        """All at once, each one put after the other: how many of each were confirmed."""
        counts = [0] * len(self._handles)

        def work(number: int) -> None:
            handle = self._handles[number]
            pending: deque[Confirmation] = deque()
            end = time.perf_counter() + seconds
            while time.perf_counter() < end:
                pending.append(handle.put(BODY))
                if len(pending) >= in_flight:
                    pending.popleft().result(OUTCOME_S)
                    counts[number] += 1
            while pending:
                pending.popleft().result(OUTCOME_S)
                counts[number] += 1

        threads = [threading.Thread(target=work, args=(n,)) for n in range(len(counts))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return counts


def run(settings: Settings) -> Iterator[Sample]:
    with cluster(settings, NODES) as running:
        queue = running.queue()
        for count in each(settings, "producers", "producers"):
            yield _measure(settings, running, count)
            queue.purge()


def _measure(settings: Settings, running: Cluster, producers: int) -> Sample:
    processes = min(PROCESSES_MAX, producers)
    shares = [len(range(first, producers, processes)) for first in range(processes)]
    endpoints = list(running.peers.values())
    crowds = [Remote(Crowd, endpoints, share) for share in shares]
    try:
        for crowd in crowds:
            crowd.answer()
        in_flight = max(1, IN_FLIGHT // producers)
        counts: list[int] = []

        def work() -> None:
            for crowd in crowds:
                crowd.tell(Crowd.produce, settings.seconds, in_flight)
            for crowd in crowds:
                counts.extend(crowd.answer())

        # How many messages it will have been is known afterwards.
        spent = running.spent(1, work)
    finally:
        for crowd in crowds:
            crowd.kill()
    total = sum(counts)
    shared = spent._replace(
        cpu_us=[used / total for used in spent.cpu_us],
        instructions=[None if n is None else n / total for n in spent.instructions],
    )
    return found(
        "producers",
        producers,
        put=total / spent.seconds,
        least=100 * min(counts) * producers / total,
        most=100 * max(counts) * producers / total,
        **costs("put", shared, NODES),
    )


PART = Part(
    "producers",
    "producers",
    run,
    [
        Column("put", "`put` /s, all together"),
        Column("least", "the slowest, % of a fair share"),
        Column("most", "the quickest"),
        Column("put_master_us", "CPU us a message: master", 2),
        Column("put_mirror_us", "a mirror", 2),
        Column("put_master", "instructions: master"),
        Column("put_mirror", "a mirror"),
    ],
    {"put_master": "put: master", "put_mirror": "put: mirror"},
    "instructions a message",
)
