"""What was aimed at, and what the samples say of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

from scale.part import Sample
from scale.report import figure

FAILOVER = Path(__file__).parents[1] / "results" / "failover.jsonl"
LARGE = ("16384", "65536", "262144", "1048576", "4194304", "16777216")
DEEPEST = "50000000"
MASTER, MIRROR, CLIENT = "on the master", "on a mirror", "client of a mirror"
BATCHES, SINGLE = "mirrorq, batches", "mirrorq, without waiting"
ALONE_BATCHES, ALONE_SINGLE = "mirrorq alone, batches", "mirrorq alone, without waiting"
QUORUM = "RabbitMQ, quorum queue"
MEMORY = "mirrorq, without waiting, `replicated`"


class Unknown(Exception):
    """No sample says it."""


class Figures:
    """Medians over the samples."""

    def __init__(self, samples: Sequence[Sample]) -> None:
        self._samples = samples

    def of(self, part: str, at: str, key: str) -> float:
        value = figure(self._samples, part, at, key)
        if value is None:
            raise Unknown(f"{part}, {at}, {key}")
        return value

    def times(self, part: str, key: str, own: str, other: str) -> float:
        """How many times the other one's."""
        return self.of(part, own, key) / self.of(part, other, key)

    def bench(self, key: str) -> float:
        return self.of("bench", "three nodes", key)

    def depth(self, key: str) -> float:
        return self.of("depth", DEEPEST, key)


class Aim(NamedTuple):
    """One row: what was aimed at, and what is."""

    what: str
    aim: str
    is_met: Callable[[float], bool]
    value: Callable[[Figures], float]
    shown: str
    """A format of the value."""
    only: str
    """What `--only` is to be for it."""


def at_least(least: float) -> Callable[[float], bool]:
    return lambda value: value >= least


def at_most(most: float) -> Callable[[float], bool]:
    return lambda value: value <= most


def _failover(_: Figures) -> float:
    lines = map(json.loads, FAILOVER.read_text(encoding="utf-8").splitlines())
    return median(
        line["confirm_ms"] for line in lines if (line["fault"], line["nodes"]) == ("kill", 3)
    )


def _large(figures: Figures) -> float:
    """The worst of the sizes that were measured."""
    shares = []
    for size in LARGE:
        try:
            shares.append(figures.of("sizes", size, "share"))
        except Unknown:
            continue
    if not shares:
        raise Unknown("sizes")
    return min(shares)


AIMS = [
    Aim(
        "`put_many`, 100 bytes, share of the ceiling",
        "50 %",
        at_least(50),
        lambda f: f.bench("share"),
        "{:.0f} %",
        "bench",
    ),
    Aim(
        "the same, RabbitMQ's quorum queue",
        "60 times",
        at_least(60),
        lambda f: f.times("others", "put", BATCHES, QUORUM),
        "{:.0f} times",
        "others",
    ),
    Aim(
        "`put` without waiting, confirmed",
        "250,000 a second",
        at_least(250_000),
        lambda f: f.bench("put"),
        "{:,.0f}",
        "bench",
    ),
    Aim(
        "the same, NATS R3",
        "10 times",
        at_least(10),
        lambda f: f.times("others", "put", SINGLE, "NATS JetStream R3"),
        "{:.1f} times",
        "others",
    ),
    Aim(
        "the same, `queue.Queue.put`",
        "25 %",
        at_least(25),
        lambda f: 100 * f.times("others", "put", SINGLE, "queue.Queue"),
        "{:.0f} %",
        "others",
    ),
    Aim(
        "16 KB to 16 MB, MB a second, share of the ceiling, the worst size",
        "80 %",
        at_least(80),
        _large,
        "{:.0f} %",
        "sizes --seconds 1",
    ),
    Aim(
        "get + ack on the master, batches",
        "800,000 a second",
        at_least(800_000),
        lambda f: f.of("takes", MASTER, "batches"),
        "{:,.0f}",
        "takes --seconds 1",
    ),
    Aim(
        "get + ack on the master, without waiting",
        "150,000 a second",
        at_least(150_000),
        lambda f: f.of("takes", MASTER, "single"),
        "{:,.0f}",
        "takes --seconds 1",
    ),
    Aim(
        "on a mirror, batches, of the master's",
        "50 %",
        at_least(50),
        lambda f: 100 * f.times("takes", "batches", MIRROR, MASTER),
        "{:.0f} %",
        "takes --seconds 1",
    ),
    Aim(
        "on a mirror, without waiting, of the master's",
        "50 %",
        at_least(50),
        lambda f: 100 * f.times("takes", "single", MIRROR, MASTER),
        "{:.0f} %",
        "takes --seconds 1",
    ),
    Aim(
        "by a client of a mirror, batches, of the master's",
        "50 %",
        at_least(50),
        lambda f: 100 * f.times("takes", "batches", CLIENT, MASTER),
        "{:.0f} %",
        "takes --seconds 1",
    ),
    Aim(
        "by a client of a mirror, without waiting, of the master's",
        "50 %",
        at_least(50),
        lambda f: 100 * f.times("takes", "single", CLIENT, MASTER),
        "{:.0f} %",
        "takes --seconds 1",
    ),
    Aim(
        "one confirmed put at a time, p50, of the ceiling's",
        "1.2 times",
        at_most(1.2),
        lambda f: f.bench("p50_times"),
        "{:.1f} times",
        "bench",
    ),
    Aim(
        "the same under `replicated`, of RabbitMQ's quorum queue",
        "0.5 times",
        at_most(0.5),
        lambda f: f.times("replicated", "p50_ms", MEMORY, QUORUM),
        "{:.1f} times",
        "replicated",
    ),
    Aim(
        "alone, put, got and acked in batches: persist-queue",
        "100 times",
        at_least(100),
        lambda f: f.times("embedded", "cycle", ALONE_BATCHES, "persist-queue"),
        "{:.0f} times",
        "embedded",
    ),
    Aim(
        "alone, without waiting: persist-queue",
        "50 times",
        at_least(50),
        lambda f: f.times("embedded", "cycle", ALONE_SINGLE, "persist-queue"),
        "{:.0f} times",
        "embedded",
    ),
    Aim(
        "a mirror's CPU time a message, of the master's, `put_many` by a client",
        "33 %",
        at_most(33.4),
        lambda f: 100 * f.of("nodes", "3", "put_mirror_us") / f.of("nodes", "3", "put_master_us"),
        "{:.0f} %",
        "nodes --nodes 3",
    ),
    Aim(
        "the same, `get_many` + `ack_many`",
        "33 %",
        at_most(33.4),
        lambda f: 100 * f.of("nodes", "3", "take_mirror_us") / f.of("nodes", "3", "take_master_us"),
        "{:.0f} %",
        "nodes --nodes 3",
    ),
    Aim(
        "50,000,000 messages deep: RssAnon",
        "300 MB",
        at_most(300),
        lambda f: f.depth("memory_mb"),
        "{:.0f} MB",
        "depth --depths 50000000",
    ),
    Aim(
        "the same: restart after SIGKILL until the first message",
        "5 s",
        at_most(5),
        lambda f: f.depth("first_s"),
        "{:.1f} s",
        "depth --depths 50000000",
    ),
    Aim(
        "the same: put, of an empty queue's rate",
        "80 %",
        at_least(80),
        lambda f: f.depth("put_share"),
        "{:.0f} %",
        "depth --depths 50000000",
    ),
    Aim(
        "the same: get + ack",
        "80 %",
        at_least(80),
        lambda f: f.depth("take_share"),
        "{:.0f} %",
        "depth --depths 50000000",
    ),
    Aim("SIGKILL to the next confirm, p50", "100 ms", at_most(100), _failover, "{:.0f} ms", ""),
]


def aims_table(samples: Sequence[Sample]) -> str:
    """Markdown: every aim, what the samples say, and the command that takes it again."""
    figures = Figures(samples)
    lines = ["| what | aim | measured | | command |", "|---|---:|---:|---|---|"]
    for aim in AIMS:
        command = f"`make scale SCALE='--only {aim.only}'`" if aim.only else "`benches/failover.py`"
        try:
            value = aim.value(figures)
        except Unknown:
            lines.append(f"| {aim.what} | {aim.aim} | not yet | | {command} |")
            continue
        verdict = "" if aim.is_met(value) else "missed"
        lines.append(
            f"| {aim.what} | {aim.aim} | {aim.shown.format(value)} | {verdict} | {command} |"
        )
    return "\n".join(lines)
