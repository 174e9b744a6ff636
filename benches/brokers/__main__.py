"""Celery over mirrorq, Redis and RabbitMQ: what `delay()` costs, and what a dead machine loses.

    cd benches && python -m brokers --tasks 2000 --rounds 3

In each round, each broker in turn with prefork and with thread workers: tasks that are sent one by
one by `delay()` while a worker of two does them, until all results have come by `rpc://`; then
`delay().get()` one at a time. After that, for Redis, what it had said yes to and lost when its
machine dies: `brokers.loss`. What is not installed is left out with a sentence.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from brokers import loss
from brokers.servers import BROKERS, Broker, environment
from compare.peer import Absent, end_servers_on_sigterm, server

POOLS = ("prefork", "threads")
MEASURE_S = 600


@contextmanager
def worker(directory: Path, pool: str, known: dict[str, str]) -> Iterator[None]:
    """A worker that does two tasks at once."""
    command = [sys.executable, "-m", "celery", "-A", "brokers.tasks", "worker"]
    command += ["-P", pool, "-c", "2", "-l", "WARNING", "--without-gossip", "--without-mingle"]
    with server(command, directory / f"worker-{pool}.log", known):
        yield


def measured(directory: Path, broker: Broker, pool: str, url: str, count: int) -> dict[str, float]:
    """The figures of one worker, taken by a process of its own: an app has one broker."""
    known = environment(url, broker.options)
    with worker(directory, pool, known):
        done = subprocess.run(
            [sys.executable, "-m", "brokers.measure", str(count)],
            env=os.environ | known,
            capture_output=True,
            text=True,
            timeout=MEASURE_S,
        )
    if done.returncode:
        raise Absent(f"it failed: {done.stderr.strip()[-400:]}")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--tasks", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", action="append", help="what a broker's name begins with")
    parser.add_argument("--kills", type=int, default=5, help="of Redis; 0: none")
    parser.add_argument("--path", type=Path, help="directory on the disk that counts")
    options = parser.parse_args()
    end_servers_on_sigterm()
    only = tuple(options.only or [""])
    chosen = [broker for broker in BROKERS if broker.name.startswith(only)]
    found: defaultdict[tuple[str, str], list[dict[str, float]]] = defaultdict(list)
    absent: dict[str, str] = {}
    for number in range(options.rounds):
        for broker in chosen:
            if broker.name in absent:
                continue
            with tempfile.TemporaryDirectory(dir=options.path) as place:
                try:
                    with broker.start(Path(place)) as url:
                        for pool in POOLS:
                            figures = measured(Path(place), broker, pool, url, options.tasks)
                            found[broker.name, pool].append(figures)
                            print(
                                f"round {number + 1}: {broker.name}, {pool}: {figures}", flush=True
                            )
                except Absent as error:
                    absent[broker.name] = str(error)
                    print(f"left out {broker.name}: {error}", file=sys.stderr)
    print(table(chosen, found))
    if options.kills and "Redis" not in " ".join(absent):
        with tempfile.TemporaryDirectory(dir=options.path) as place:
            print(loss.report(Path(place), options.kills))


def table(chosen: list[Broker], found: dict[tuple[str, str], list[dict[str, float]]]) -> str:
    """Medians over the rounds."""
    lines = [
        "| broker | when `delay()` returns, the task is | workers | tasks/s | `delay()`/s "
        "| `delay().get()` p50, ms | p99, ms |",
        "|---|---|---|---:|---:|---:|---:|",
    ]
    for broker in chosen:
        for pool in POOLS:
            rounds = found.get((broker.name, pool), [])
            if not rounds:
                continue
            median = {name: statistics.median(each[name] for each in rounds) for name in rounds[0]}
            lines.append(
                f"| {broker.name} | {broker.told} | {pool} | {median['tasks']:,.0f} "
                f"| {median['sent']:,.0f} | {median['p50_ms']:.1f} | {median['p99_ms']:.1f} |"
            )
    return "\n".join(lines)


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    main()
