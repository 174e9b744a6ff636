"""Latency at a fixed rate: from the time at which a message was due to its confirm and delivery.

    python -m compare.steady                                    # every peer: some 25 minutes
    python -m compare.steady --only "mirrorq node,RabbitMQ" --rates 1000 --rounds 1
    python -m compare.steady --results results/steady.jsonl --page ../docs/performance.md
    python -m compare.steady --results results/steady.jsonl --rounds 0 --page ../docs/performance.md

Run in benches/. One producer sends at random times, on average so many messages a second (an open
loop): it does not wait for confirms. A stall counts for every message that was due meanwhile. A
consumer in another process, at another node where the peer allows that, acks each message.
"""

from __future__ import annotations

import argparse
import random
import statistics
import struct
import sys
import tempfile
import time
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path

import msgspec

from compare.peer import Absent, end_servers_on_sigterm
from compare.results import Results, write_into
from compare.steady_peers import PEERS, Deliveries, Source, SteadyPeer, arrivals

NUMBER = struct.Struct(">II")
"""The beginning of each body: the run, and the message's number in it."""
LEAD_S = 0.5
WARM_S = 1.0
"""Messages that are due in this time are sent, not counted."""
WARM_RATE = 500
WARM_RUNS = 8
"""Before the first rate; their numbers are below `FIRST_RUN`."""
FIRST_RUN = 100
LATE_S = 10.0
"""How long confirms and deliveries are waited for after the last message was due."""
QUANTILES = (0.5, 0.99, 0.999, 1.0)
HEAD = "| | a confirm means | to confirm, ms: p50 / p99 / p99.9 / slowest | to delivery |"
BEHIND_MS = 1_000.0
"""A peer with such a median does not keep up with the rate."""


class Steady(msgspec.Struct, tag="steady"):
    """One peer, one size, one rate, one round; milliseconds, by `QUANTILES`."""

    peer: str
    size: int
    rate: int
    confirm: list[float]
    delivery: list[float]
    missing: int
    """Messages without a confirm or without a delivery `LATE_S` after the last one."""


class Run:
    """One stretch of messages: when each was due, confirmed and delivered."""

    def __init__(self, number: int, rate: int, seconds: float) -> None:
        begin = time.monotonic() + LEAD_S
        self._first = begin + WARM_S
        end = self._first + seconds
        times = arrivals(rate, begin, random.Random(rate))
        self.due = list(takewhile(lambda at: at < end, times))
        self.until = end + LATE_S
        self._number = number
        self._confirmed = [0.0] * len(self.due)

    def body(self, message: int, size: int) -> bytes:
        """The body of a message: its number, and filling."""
        return NUMBER.pack(self._number, message).ljust(size, b"x")

    def confirm(self, message: int) -> None:
        """Note that a message is confirmed now. Any thread may call it."""
        self._confirmed[message] = time.monotonic()

    def confirmed_ms(self) -> list[float]:
        """Waits for confirms of all counted messages that have one, in order of size."""
        return self._waits(self._confirmed)

    def delivered_ms(self, deliveries: Deliveries) -> list[float]:
        """The same for deliveries."""
        times = [0.0] * len(self.due)
        for head, at in deliveries:
            run, message = NUMBER.unpack(head)
            if run == self._number:
                times[message] = times[message] or at
        return self._waits(times)

    def counted(self) -> int:
        """Messages that were due after the warm-up."""
        return sum(due >= self._first for due in self.due)

    def _waits(self, times: Sequence[float]) -> list[float]:
        pairs = zip(self.due, times, strict=True)
        return sorted((at - due) * 1e3 for due, at in pairs if at and due >= self._first)


def measured(
    peer: SteadyPeer, source: Source, run: Run, size: int, rate: int
) -> tuple[Steady, bool]:
    """Drive one run; gives the sample, and whether the peer kept up with the rate."""
    source.drive(run.due, lambda message: run.body(message, size), run.confirm, run.until)
    confirms, deliveries = run.confirmed_ms(), []
    while True:
        deliveries += source.deliveries()
        delivered = run.delivered_ms(deliveries)
        if len(delivered) == run.counted() or time.monotonic() > run.until:
            break
        time.sleep(0.1)
    missing = run.counted() - min(len(confirms), len(delivered))
    sample = Steady(peer.name, size, rate, _cuts(confirms), _cuts(delivered), missing)
    return sample, not missing and sample.confirm[0] < BEHIND_MS


def _cuts(waits: Sequence[float]) -> list[float]:
    if not waits:
        return [LATE_S * 1e3] * len(QUANTILES)
    last = len(waits) - 1
    return [waits[min(last, int(quantile * len(waits)))] for quantile in QUANTILES]


def table(results: Results[Steady]) -> str:
    """Markdown: one table a size and rate, medians over the rounds."""
    samples, parts = results.samples, list[str]()
    for size, rate in sorted({(each.size, each.rate) for each in samples}):
        parts += [
            f"**{rate:,} messages of {size:,} bytes a second**",
            "",
            HEAD,
            "|---|---|---:|---:|",
        ]
        for peer in PEERS:
            own = [e for e in samples if (e.peer, e.size, e.rate) == (peer.name, size, rate)]
            if own:
                row = f"{_shown(own, 'confirm')} | {_shown(own, 'delivery')}"
                parts.append(f"| {peer.name} | {peer.durability} | {row} |")
        parts.append("")
    return "\n".join([*parts, results.footnote()])


def _shown(own: Sequence[Steady], field: str) -> str:
    if any(each.missing for each in own):
        return "does not keep up"
    columns = zip(*(getattr(each, field) for each in own), strict=True)
    middles = [statistics.median(column) for column in columns]
    if middles[0] > BEHIND_MS:
        return "does not keep up"
    return " / ".join(f"{value:.2f}" if value < 100 else f"{value:.0f}" for value in middles)


def main() -> None:
    end_servers_on_sigterm()
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", default="", help="parts of peers' names, by commas")
    parser.add_argument("--sizes", default="100,10240", help="bytes of a message, by commas")
    parser.add_argument("--rates", default="1000,5000,15000", help="messages a second, by commas")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=6.0, help="of each rate, after 1 s")
    parser.add_argument("--path", type=Path, help="directory on the disk that counts")
    parser.add_argument("--results", type=Path, help="file of samples to add to and to report")
    parser.add_argument("--page", type=Path, help="page of the docs that gets the tables")
    options = parser.parse_args()
    wanted = [part.strip().lower() for part in options.only.split(",")]
    peers = [peer for peer in PEERS if any(part in peer.name.lower() for part in wanted)]
    results = Results(Steady, options.results)
    for number in range(options.rounds):
        for peer in peers:
            print(f"round {number + 1} of {options.rounds}: {peer.name}", file=sys.stderr)
            for sample in _samples(peer, options):
                results.add(sample)
    if not results.samples:
        raise SystemExit("nothing could be measured")
    print(table(results))
    if options.page:
        write_into(options.page, table(results), "steady")


def _samples(peer: SteadyPeer, options: argparse.Namespace) -> list[Steady]:
    samples: list[Steady] = []
    with tempfile.TemporaryDirectory(prefix="mirrorq-steady-", dir=options.path) as directory:
        try:
            with peer.start(Path(directory)) as source:
                _warm_up(peer, source)
                for size in map(int, options.sizes.split(",")):
                    for rate in map(int, options.rates.split(",")):
                        run = Run(FIRST_RUN + len(samples), rate, options.seconds)
                        sample, keeps_up = measured(peer, source, run, size, rate)
                        samples.append(sample)
                        print(f"  {sample}", file=sys.stderr)
                        if not keeps_up:
                            break  # a backlog is no state to measure the next rate in
        except Absent as error:
            print(f"skipped {peer.name}: {error}", file=sys.stderr)
        except Exception as error:  # of the peer's client: other peers are measured all the same
            print(f"{peer.name} ended the round: {type(error).__name__}: {error}", file=sys.stderr)
    return samples


def _warm_up(peer: SteadyPeer, source: Source) -> None:
    """Drive slow runs until the peer keeps up: a JVM needs some thousand messages."""
    for number in range(WARM_RUNS):
        run = Run(number, WARM_RATE, WARM_S)
        if measured(peer, source, run, 100, WARM_RATE)[1]:
            return


if __name__ == "__main__":
    main()
