"""get + ack on the master, on a mirror, by a client."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from statistics import median
from typing import Any

import ceiling
from compare.measure import count_for
from compare.mirrorq_peers import Batches, Singly
from compare.peer import START_S, in_flight_of
from mirrorq import MirroredQueue, Node, connect
from mirrorq.cli.bench import measure
from mirrorq.client.client import Client
from scale.cluster import QUEUE, Remote, Spent, cluster, spent
from scale.part import Column, Part, Sample, Settings, found, tell

BODY = b"x" * 100
NODES = 3
ROUNDS = 3
IN_FLIGHT = in_flight_of(len(BODY))
LEAST = {"batches": 20_000, "single": 5_000}
"""Messages a second that are worked on at least, however busy the machine is."""
WAYS: dict[str, Callable[[MirroredQueue], Any]] = {"batches": Batches, "single": Singly}


def _count_for(way: str, session: Any, seconds: float) -> int:
    """Messages for so much time; a few thousand in any case, less says nothing."""
    return max(count_for(session, BODY, IN_FLIGHT, seconds), int(LEAST[way] * seconds))


# --- Where one takes ---------------------------------------------------------------------------


def take(host: Node | Client, way: str, count: int) -> None:
    """Get and ack so many there."""
    with host.queue(QUEUE, passive=True, timeout=START_S) as handle:
        WAYS[way](handle).take(count)


def run_takes(settings: Settings) -> Iterator[Sample]:
    with cluster(settings, NODES) as running, ExitStack() as stack:
        handle = running.queue()
        client = Remote(connect, running.peers["b"])
        stack.callback(client.kill)
        client.answer()
        places = {
            "on the master": running.nodes["a"],
            "on a mirror": running.nodes["b"],
            "client of a mirror": client,
        }
        pids = [*running.pids, client.pid]
        for number in range(ROUNDS):
            for place, process in places.items():
                tell(f"takes: {place}, round {number + 1} of {ROUNDS}")
                figures: dict[str, float | None] = {}
                for way, session in WAYS.items():
                    count = _count_for(way, session(handle), settings.seconds)
                    session(handle).publish(BODY, count, IN_FLIGHT)
                    took = spent(pids, [], count, partial(process.ask, take, way, count))
                    figures |= _costs(way, count, took)
                yield found("takes", place, **figures)


def _costs(way: str, count: int, took: Spent) -> dict[str, float | None]:
    counted = [number for number in took.instructions if number is not None]
    whole = len(counted) == len(took.instructions)
    return {
        way: count / took.seconds,
        f"{way}_us": sum(took.cpu_us),
        f"{way}_instructions": sum(counted) if whole else None,
    }


TAKES = Part(
    "takes",
    "get + ack",
    run_takes,
    [
        Column("batches", "batches /s"),
        Column("batches_us", "CPU us a message, all processes", 2),
        Column("batches_instructions", "instructions"),
        Column("single", "without waiting /s"),
        Column("single_us", "CPU us a message, all processes", 2),
        Column("single_instructions", "instructions"),
    ],
)


# --- What `mirrorq bench` measures ----------------------------------------------------------------

KEYS = ("put_many", "put", "take", "take_many", "p50_ms", "p99_ms")


def run_bench(settings: Settings) -> Iterator[Sample]:
    for number in range(ROUNDS):
        tell(f"bench: round {number + 1} of {ROUNDS}")
        before = ceiling.measure(settings.path, seconds=settings.seconds)
        measured = measure(settings.path, settings.seconds / 2)
        after = ceiling.measure(settings.path, seconds=settings.seconds)
        figures = dict(zip(KEYS, (each.value for each in measured), strict=True))
        rate = median((before.messages_per_second, after.messages_per_second))
        p50_ms = median((before.latency_p50_ms, after.latency_p50_ms))
        yield found(
            "bench",
            "three nodes",
            **figures,
            ceiling=rate,
            ceiling_ms=p50_ms,
            share=100 * figures["put_many"] / rate,
            put_share=100 * figures["put"] / rate,
            p50_times=figures["p50_ms"] / p50_ms,
        )


BENCH = Part(
    "bench",
    "100 bytes",
    run_bench,
    [
        Column("put_many", "`put_many` /s"),
        Column("ceiling", "the ceiling's"),
        Column("share", "share %"),
        Column("put", "`put` /s"),
        Column("take_many", "`get_many` + ack /s"),
        Column("take", "`get` + ack /s"),
        Column("p50_ms", "one put, p50 ms", 2),
        Column("ceiling_ms", "the ceiling's", 2),
        Column("p50_times", "times", 1),
    ],
)
