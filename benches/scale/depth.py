"""0 to 50,000,000 messages in a queue: memory, restart, and rates beside an empty queue's."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import kernel
from compare.measure import count_for
from compare.mirrorq_peers import Batches
from compare.peer import START_S, in_flight_of
from mirrorq import MirroredQueue, Node
from mirrorq.demo.ports import free_ports
from scale.cluster import Remote, Spent, spent
from scale.part import Column, Part, Sample, Settings, each, found, tell

BODY = b"x" * 100
STEP = 250_000
"""Messages of one step of the filling, after which progress is shown."""
ROUNDS = 5
"""Of work on the deep queue and on an empty one in turn; the median counts."""
RATE_LEAST = 100_000
"""Messages a second that are worked on at least: less says nothing of a busy machine's rates."""
DEEP, EMPTY = "deep", "empty"
MARGIN = 5_000
"""Messages that the queue with which the deep one is compared has all the time."""


class Host:
    """A standalone node, and its two queues."""

    def __init__(self, path: str) -> None:
        start = time.perf_counter()
        self._node = Node("a", path=path, peers={"a": f"tcp://127.0.0.1:{free_ports(1)[0]}"})
        self._handles = {name: self._node.queue(name, timeout=START_S) for name in (DEEP, EMPTY)}
        self.started_s = time.perf_counter() - start
        """Until both queues are served."""
        self._start = start

    def close(self) -> None:
        self._node.close()

    def session(self, name: str) -> Batches:
        return Batches(self._handles[name])

    def first(self) -> float:
        """Seconds from the node's start until it has handed out a message."""
        self._handles[DEEP].get(timeout=START_S).ack().result(START_S)
        return time.perf_counter() - self._start

    def depth(self, name: str) -> int:
        handle: MirroredQueue = self._handles[name]
        return handle.status().messages

    def top_up(self) -> None:
        """Leave some behind in the other queue too: where a taker never sees the end of a queue,
        some is fetched ahead, and goes back afterwards."""
        missing = MARGIN - self.depth(EMPTY)
        if missing > 0:
            self.session(EMPTY).publish(BODY, missing, MARGIN)

    def enough(self, seconds: float) -> int:
        count = count_for(self.session(EMPTY), BODY, in_flight_of(len(BODY)), seconds)
        return max(count, int(RATE_LEAST * seconds))


def publish(host: Host, name: str, count: int) -> None:
    host.session(name).publish(BODY, count, in_flight_of(len(BODY)))


def take(host: Host, name: str, count: int) -> None:
    host.session(name).take(count)


def run(settings: Settings) -> Iterator[Sample]:
    """Each depth goes on with the queue of the one before."""
    with TemporaryDirectory(prefix="mirrorq-scale-", dir=settings.path) as directory:
        depth = 0
        host = _started(directory)
        try:
            for wanted in each(settings, "depth", "messages"):
                start, filled = time.perf_counter(), 0
                while depth < wanted:
                    step = min(STEP, wanted - depth)
                    host.ask(publish, DEEP, step)
                    depth, filled = depth + step, filled + step
                    rate = filled / (time.perf_counter() - start)
                    tell(f"depth: {depth:,} of {wanted:,} put, {rate:,.0f} a second")
                rate = filled / (time.perf_counter() - start)
                yield _measure(settings, host, wanted, rate, Path(directory))
                host.kill()
                host, sample, lost = _restarted(directory, wanted)
                depth = wanted - lost
                yield sample
        finally:
            host.kill()


def _started(directory: str) -> Remote:
    host = Remote(Host, directory)
    host.answer()
    return host


def _restarted(directory: str, depth: int) -> tuple[Remote, Sample, int]:
    """After SIGKILL: how soon it serves, with what memory; and how many were taken to see it."""
    host = _started(directory)
    first = host.ask(Host.first) if depth else None
    figures = {
        "restart_s": host.ask(getattr, "started_s"),
        "first_s": first,
        "restarted_mb": kernel.anonymous_mb(host.pid),
    }
    return host, found("depth", depth, **figures), 1 if depth else 0


def _measure(settings: Settings, host: Remote, depth: int, rate: float, directory: Path) -> Sample:
    memory = kernel.anonymous_mb(host.pid)
    # Three kinds of work in ten rounds: as much time altogether as other parts take.
    count = host.ask(Host.enough, settings.seconds / ROUNDS)
    host.ask(Host.top_up)
    puts: dict[str, list[Spent]] = {DEEP: [], EMPTY: []}
    takes: dict[str, list[Spent]] = {DEEP: [], EMPTY: []}
    for number in range(ROUNDS):
        for name in (DEEP, EMPTY):
            tell(f"depth: {depth:,} messages, round {number + 1} of {ROUNDS}, {name}")
            for function, into in ((publish, puts), (take, takes)):
                work = partial(host.ask, function, name, count)
                into[name].append(spent([host.pid], [], count, work))
    figures: dict[str, float | None] = {
        "fill": rate or None,
        "memory_mb": memory,
        "after_mb": kernel.anonymous_mb(host.pid),
        "store_mb": sum(f.stat().st_blocks * 512 for f in directory.rglob("*")) / 1e6,
    }
    for what, sides in (("put", puts), ("take", takes)):
        for name, taken in sides.items():
            figures[f"{what}_{name}"] = count / median(each.seconds for each in taken)
            figures[f"{what}_{name}_us"] = median(each.cpu_us[0] for each in taken)
            counted = [n for each in taken if (n := each.instructions[0]) is not None]
            figures[f"{what}_{name}_instructions"] = median(counted) if counted else None
        if depth:
            deep, empty = figures[f"{what}_{DEEP}"], figures[f"{what}_{EMPTY}"]
            figures[f"{what}_share"] = 100 * (deep or 0) / (empty or 1)
    return found("depth", depth, **figures)


PART = Part(
    "depth",
    "messages",
    run,
    [
        Column("store_mb", "store MB"),
        Column("memory_mb", "RssAnon MB", 1),
        Column("restarted_mb", "after a restart", 1),
        Column("restart_s", "restart, s: served", 2),
        Column("first_s", "first message", 2),
        Column("put_deep", "put /s"),
        Column("put_share", "% of an empty queue"),
        Column("take_deep", "get + ack /s"),
        Column("take_share", "% of an empty queue"),
        Column("put_deep_instructions", "instructions a put"),
        Column("put_empty_instructions", "empty"),
        Column("take_deep_instructions", "a get + ack"),
        Column("take_empty_instructions", "empty"),
    ],
    {"memory_mb": "RssAnon", "restarted_mb": "RssAnon after a restart"},
    "MB",
)
