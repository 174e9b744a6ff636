"""get + ack on the master, on a mirror, by a client; puts beside Python that computes."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import ceiling
from compare.measure import count_for, one_at_a_time
from compare.mirrorq_peers import Batches, Singly, ready
from compare.peer import START_S, in_flight_of
from mirrorq import MirroredQueue, Node, connect
from mirrorq.cli.bench import measure
from mirrorq.client.client import Client
from scale.cluster import QUEUE, Remote, Spent, addresses, cluster, spent, started
from scale.part import Column, Part, Sample, Settings, found, tell

BODY = b"x" * 100
NODES = 3
ROUNDS = 3
IN_FLIGHT = in_flight_of(len(BODY))
CEILING_IN_FLIGHT = ceiling.IN_FLIGHT_MAX * ceiling.BATCH_COUNT
"""As many as the ceiling has on the way. Beside Python that computes, what is on the way divided by
how long a confirm takes is all that can be had."""
LEAST = {"batches": 20_000, "single": 5_000}
"""Messages a second that are worked on at least, however busy the machine is."""
SWITCH_S = 0.005
"""Python's own."""
WAYS: dict[str, Callable[[MirroredQueue], Any]] = {"batches": Batches, "single": Singly}


def _count_for(way: str, session: Any, seconds: float, in_flight: int = IN_FLIGHT) -> int:
    """Messages for so much time; a few thousand in any case, less says nothing."""
    return max(count_for(session, BODY, in_flight, seconds), int(LEAST[way] * seconds))


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


# --- Beside Python that computes ----------------------------------------------------------------


class Load:
    """Sometimes a thread that computes in Python."""

    def __init__(self) -> None:
        self._resting = threading.Event()
        self._thread: threading.Thread | None = None

    def rest(self) -> None:
        self._resting.set()

    def compute(self, is_wanted: bool) -> None:
        """Compute or rest from now on."""
        if self._thread is not None:
            self._resting.set()
            self._thread.join()
            self._thread = None
        if is_wanted:
            self._resting.clear()
            self._thread = threading.Thread(target=self._compute, daemon=True)
            self._thread.start()

    def _compute(self) -> None:
        number = 1
        while not self._resting.is_set():
            for _ in range(1_000):
                number = number * 1_103_515_245 % 2_147_483_647


class Host:
    """A node, and sometimes a thread that computes in Python in the same process."""

    def __init__(self, name: str, path: str, peers: dict[str, str]) -> None:
        self._node = Node(name, path=path, peers=peers)
        self._load = Load()

    def close(self) -> None:
        self._load.rest()
        self._node.close()

    def compute(self, is_wanted: bool, switch_s: float = SWITCH_S) -> None:
        """Compute or rest, with so long until a thread that waits for the interpreter gets it."""
        sys.setswitchinterval(switch_s)
        self._load.compute(is_wanted)

    def ready(self) -> None:
        ready(self._node.queue(QUEUE, timeout=START_S), mirrors=NODES - 1)

    def measure(self, seconds: float) -> dict[str, float]:
        """The producer is in this process too, as an application that embeds a node is."""
        with self._node.queue(QUEUE, passive=True) as handle:
            figures = {}
            for way, session in WAYS.items():
                count = _count_for(way, session(handle), seconds, CEILING_IN_FLIGHT)
                # At least some rounds of all that may be on the way.
                count = max(count, 4 * CEILING_IN_FLIGHT)
                start = time.perf_counter()
                session(handle).publish(BODY, count, CEILING_IN_FLIGHT)
                figures[way] = count / (time.perf_counter() - start)
                handle.purge()
            p50, p99 = one_at_a_time(Batches(handle), BODY, seconds)
            return figures | {"p50_ms": p50, "p99_ms": p99}


PLACES_OF_WORK = [
    ("none", False),
    ("one in each process", True),
    ("the same, `sys.setswitchinterval(0.0005)`", True, 0.0005),
]


def run_busy(settings: Settings) -> Iterator[Sample]:
    with ExitStack() as stack:
        directory = TemporaryDirectory(prefix="mirrorq-scale-", dir=settings.path)
        place = Path(stack.enter_context(directory))
        peers = addresses(NODES)
        hosts = [host for _, host in started(stack, Host, place, peers)]
        hosts[0].ask(Host.ready)
        for number in range(ROUNDS):
            for at, *how in PLACES_OF_WORK:
                tell(f"busy: {at}, round {number + 1} of {ROUNDS}")
                for host in hosts:
                    host.ask(Host.compute, *how)
                yield found("busy", at, **hosts[0].ask(Host.measure, settings.seconds / 2))


BUSY = Part(
    "busy",
    "threads that compute in Python",
    run_busy,
    [
        Column("batches", "`put_many` /s"),
        Column("single", "`put` /s"),
        Column("p50_ms", "one put, p50 ms", 2),
        Column("p99_ms", "p99", 2),
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
