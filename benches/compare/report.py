"""What came out of it: tables and a plot, medians with their spread over the rounds."""

from __future__ import annotations

import os
import platform
import re
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from importlib import metadata
from pathlib import Path

from compare.measure import Sample
from compare.peer import Peer, in_flight_of

RESULTS = Path(__file__).parents[1] / "RESULTS.md"
"""The long tables go there."""
BESIDE = "RabbitMQ, quorum queue"
LIKE_FOR_LIKE = ("mirrorq client, without waiting", BESIDE)
"""The first rows: both are a client that calls once for each message and does not wait."""
LIBRARIES = ("mirrorq", "pika", "nats-py", "pysyncobj", "persist-queue", "litequeue")
SERVERS = {
    "RabbitMQ": ["rabbitmqctl", "version"],
    "NATS": ["nats-server", "--version"],
}
HEAD = "| | a confirm means | put /s | x | get + ack /s | x | one put, p50 / p99 ms |"
RULE = "|---|---|---:|---:|---:|---:|---:|"


def tables(peers: Sequence[Peer], samples: Sequence[Sample], day: str) -> str:
    """Markdown: one table a size. `x` is how many times the quorum queue's rate."""
    rounds = max(sum(each.peer == name for each in samples) for name in {s.peer for s in samples})
    sizes = sorted({each.size for each in samples})
    parts = [
        f"{rounds // len(sizes)} rounds on {day}, the peers in turn, "
        f"{os.cpu_count()} cores, {platform.machine()}, CPython {platform.python_version()}. "
        "Medians, lowest to highest in brackets.",
    ]
    for size in sizes:
        parts += ["", f"**{size:,} bytes**, at most {in_flight_of(size):,} unconfirmed at once", ""]
        parts += [HEAD, RULE]
        parts += [row for peer in peers if (row := _row(peer, samples, size))]
    return "\n".join(parts)


def summary(peers: Sequence[Peer], samples: Sequence[Sample], size: int = 100) -> str:
    """Markdown: one table of medians, for who wants to know it at a glance."""
    lines = [
        "| | a confirm means | put /s | get + ack /s | waiting for each put, p50 / p99 ms |",
        "|---|---|---:|---:|---:|",
    ]
    for peer in sorted(peers, key=lambda peer: peer.name not in LIKE_FOR_LIKE):
        own = [each for each in samples if (each.peer, each.size) == (peer.name, size)]
        if own:
            put, took, p50, p99 = (
                statistics.median(getattr(each, field) for each in own)
                for field in ("publish", "take", "p50_ms", "p99_ms")
            )
            rates = f"{put:,.0f} | {took:,.0f}" if took else f"{put:,.0f} | "
            lines.append(f"| {peer.name} | {peer.durability} | {rates} | {p50:.2f} / {p99:.2f} |")
    return "\n".join([*lines, "", f"{time.strftime('%Y-%m-%d')}; {', '.join(versions())}."])


def versions() -> Iterator[str]:
    """Of mirrorq, and of each server and library beside it that is installed here."""
    for name in LIBRARIES:
        with suppress(metadata.PackageNotFoundError):
            yield f"{name} {metadata.version(name)}"
    for name, command in SERVERS.items():
        with suppress(OSError, subprocess.SubprocessError):
            said = subprocess.run(command, capture_output=True, text=True, timeout=30).stdout
            found = re.search(r"\d+\.\d+\.\d+", said)
            if found:
                yield f"{name} {found[0]}"


def _row(peer: Peer, samples: Sequence[Sample], size: int) -> str:
    own = [each for each in samples if (each.peer, each.size) == (peer.name, size)]
    if not own:
        return ""
    beside = [each for each in samples if (each.peer, each.size) == (BESIDE, size)]

    def rate(field: Callable[[Sample], float]) -> str:
        values = [field(each) for each in own]
        if not any(values):
            return " | "
        middle = statistics.median(values)
        times = middle / statistics.median(map(field, beside)) if beside else None
        shown = f"{middle:,.0f} ({min(values):,.0f} to {max(values):,.0f})"
        return f"{shown} | {_times(times)}"

    p50 = statistics.median(each.p50_ms for each in own)
    p99 = statistics.median(each.p99_ms for each in own)
    put, took = rate(lambda each: each.publish), rate(lambda each: each.take)
    return f"| {peer.name} | {peer.durability} | {put} | {took} | {p50:,.3f} / {p99:,.3f} |"


def _times(times: float | None) -> str:
    if times is None:
        return ""
    return f"{times:,.0f}" if times >= 10 else f"{times:.1f}"


def write_into(page: Path, text: str, name: str = "compare") -> None:
    """Put the tables between the marks of that name in a page."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    old = page.read_text(encoding="utf-8")
    pattern = re.compile(f"{re.escape(begin)}.*{re.escape(end)}", re.DOTALL)
    if not pattern.search(old):
        raise SystemExit(f"{page} has no lines {begin} and {end} to write between")
    page.write_text(pattern.sub(lambda _: f"{begin}\n{text}\n{end}", old), encoding="utf-8")


def plot(peers: Sequence[Peer], samples: Sequence[Sample], file: Path) -> None:
    """Bars of confirmed messages a second, one group a size, on a logarithmic scale."""
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as pyplot

    sizes = sorted({each.size for each in samples})
    names = [peer.name for peer in peers if any(each.peer == peer.name for each in samples)]
    figure, axes = pyplot.subplots(
        1,
        len(sizes),
        figsize=(4 + 3 * len(sizes), 0.35 * len(names) + 1.5),
        sharey=True,
        squeeze=False,
    )
    for axis, size in zip(axes[0], sizes, strict=True):
        for place, name in enumerate(reversed(names)):
            values = [s.publish for s in samples if (s.peer, s.size) == (name, size)]
            if values:
                colour = "#c2571a" if name.startswith("mirrorq") else "#8a94a0"
                axis.barh(place, statistics.median(values), color=colour)
        axis.set_xscale("log")
        axis.set_title(f"{size:,} bytes")
        axis.set_xlabel("confirmed messages / s")
        axis.grid(axis="x", alpha=0.3)
    axes[0][0].set_yticks(range(len(names)), list(reversed(names)))
    figure.tight_layout()
    figure.savefig(file, metadata={"Date": None})
