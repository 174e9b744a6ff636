"""What came out of it: tables and a plot, medians with their spread over the rounds."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from pathlib import Path

from compare.measure import Sample
from compare.peer import Peer, in_flight_of
from compare.results import Results, middle

RESULTS = Path(__file__).parents[1] / "RESULTS.md"
"""The long tables go there."""
BESIDE = "RabbitMQ, quorum queue"
LIKE_FOR_LIKE = ("mirrorq client, without waiting", BESIDE)
"""The first rows: both are a client that calls once for each message and does not wait."""
README = (
    *LIKE_FOR_LIKE,
    "NATS JetStream R3, sync always",
    "NATS JetStream R3",
    "mirrorq, without waiting",
    "mirrorq, batches",
)
"""The rows in README.md."""
HEAD = "| | a confirm means | put /s | x | get + ack /s | x | one put, p50 / p99 ms |"
RULE = "|---|---|---:|---:|---:|---:|---:|"


def tables(peers: Sequence[Peer], results: Results[Sample]) -> str:
    """Markdown: one table a size. `x` is how many times the quorum queue's rate."""
    samples = results.samples
    rounds = max(sum(each.peer == name for each in samples) for name in {s.peer for s in samples})
    sizes = sorted({each.size for each in samples})
    parts = [
        f"{rounds // len(sizes)} rounds, the peers in turn, "
        f"{results.origin.machine if results.origin else ''}. "
        "Medians, lowest to highest in brackets.",
    ]
    for size in sizes:
        parts += ["", f"**{size:,} bytes**, at most {in_flight_of(size):,} unconfirmed at once", ""]
        parts += [HEAD, RULE]
        parts += [row for peer in peers if (row := _row(peer, samples, size))]
    return "\n".join([*parts, "", results.footnote()])


def summary(
    peers: Sequence[Peer], results: Results[Sample], names: Sequence[str] = (), size: int = 100
) -> str:
    """Markdown: one table of medians, of all peers or of the named ones in this order."""
    samples = results.samples
    lines = [
        "| | a confirm means | put /s | get + ack /s | waiting for each put, p50 / p99 ms |",
        "|---|---|---:|---:|---:|",
    ]
    if names:
        chosen = [peer for name in names for peer in peers if peer.name == name]
    else:
        chosen = sorted(peers, key=lambda peer: peer.name not in LIKE_FOR_LIKE)
    for peer in chosen:
        own = [each for each in samples if (each.peer, each.size) == (peer.name, size)]
        if own:
            put, took, p50, p99 = (
                middle(own, field) for field in ("publish", "take", "p50_ms", "p99_ms")
            )
            rates = f"{put:,.0f} | {took:,.0f}" if took else f"{put:,.0f} | "
            lines.append(f"| {peer.name} | {peer.durability} | {rates} | {p50:.2f} / {p99:.2f} |")
    return "\n".join([*lines, "", *ratios(samples, size), results.footnote()])


def ratios(samples: Sequence[Sample], size: int) -> list[str]:
    """A sentence on mirrorq's rows beside RabbitMQ's quorum queue; none without both."""

    def median(peer: str, field: str) -> float:
        own = [each for each in samples if (each.peer, each.size) == (peer, size)]
        return middle(own, field) if own else 0.0

    parts: list[str] = []
    for name in ("mirrorq client, without waiting", "mirrorq, batches"):
        fields = ("publish", "take", "p50_ms", "p99_ms")
        pairs = [(median(name, field), median(BESIDE, field)) for field in fields]
        if all(own and other for own, other in pairs):
            put, take, p50, p99 = (_times(own / other) for own, other in pairs)
            parts.append(
                f"*{name}*: {put} times its puts a second, {take} times its get + ack; waiting for "
                f"each put, {p50} times its p50 and {p99} times its p99."
            )
    return [f"Beside {BESIDE}: {' '.join(parts)}", ""] if parts else []


def _row(peer: Peer, samples: Sequence[Sample], size: int) -> str:
    own = [each for each in samples if (each.peer, each.size) == (peer.name, size)]
    if not own:
        return ""
    beside = [each for each in samples if (each.peer, each.size) == (BESIDE, size)]

    def rate(field: Callable[[Sample], float]) -> str:
        values = [field(each) for each in own]
        if not any(values):
            return " | "
        median = statistics.median(values)
        times = median / statistics.median(map(field, beside)) if beside else None
        shown = f"{median:,.0f} ({min(values):,.0f} to {max(values):,.0f})"
        return f"{shown} | {_times(times)}"

    p50, p99 = middle(own, "p50_ms"), middle(own, "p99_ms")
    put, took = rate(lambda each: each.publish), rate(lambda each: each.take)
    return f"| {peer.name} | {peer.durability} | {put} | {took} | {p50:,.3f} / {p99:,.3f} |"


def _times(times: float | None) -> str:
    if times is None:
        return ""
    return f"{times:,.0f}" if times >= 10 else f"{times:.1f}" if times >= 2 else f"{times:.2f}"
