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
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from brokers import loss
from brokers.servers import BROKERS, Broker, environment
from compare.peer import Absent, end_servers_on_sigterm, server
from compare.results import Results, middle, write_into

POOLS = ("prefork", "threads")
MEASURE_S = 600


@contextmanager
def worker(directory: Path, pool: str, known: dict[str, str]) -> Iterator[None]:
    """A worker that does two tasks at once."""
    command = [sys.executable, "-m", "celery", "-A", "brokers.tasks", "worker"]
    command += ["-P", pool, "-c", "2", "-l", "WARNING", "--without-gossip", "--without-mingle"]
    with server(command, directory / f"worker-{pool}.log", known):
        yield


class Tasks(msgspec.Struct, tag="tasks"):
    """One broker, one kind of worker, one round."""

    broker: str
    pool: str
    tasks: float
    """Tasks a second, from the first `delay()` to the last result."""
    sent: float
    """Calls of `delay()` a second, one after the other."""
    p50_ms: float
    """One `delay().get()`."""
    p99_ms: float


def measured(directory: Path, broker: Broker, pool: str, url: str, count: int) -> Tasks:
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
    return Tasks(broker.name, pool, **json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--tasks", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", action="append", help="what a broker's name begins with")
    parser.add_argument("--kills", type=int, default=5, help="of Redis; 0: none")
    parser.add_argument("--path", type=Path, help="directory on the disk that counts")
    parser.add_argument("--results", type=Path, help="file of figures to add to and to report")
    parser.add_argument("--page", type=Path, help="page of the docs that gets the table")
    options = parser.parse_args()
    end_servers_on_sigterm()
    only = tuple(options.only or [""])
    chosen = [broker for broker in BROKERS if broker.name.startswith(only)]
    results = Results(Tasks, options.results)
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
                            results.add(figures)
                            print(f"round {number + 1}: {figures}", flush=True)
                except Absent as error:
                    absent[broker.name] = str(error)
                    print(f"left out {broker.name}: {error}", file=sys.stderr)
    print(table(results))
    if options.page:
        write_into(options.page, table(results), "brokers")
    if options.rounds and options.kills and "Redis" not in " ".join(absent):
        with tempfile.TemporaryDirectory(dir=options.path) as place:
            print(loss.report(Path(place), options.kills))


def table(results: Results[Tasks]) -> str:
    """Markdown: medians over the rounds."""
    lines = [
        "| broker | when `delay()` returns, the task is | workers | tasks/s | `delay()`/s "
        "| `delay().get()` p50 / p99 ms |",
        "|---|---|---|---:|---:|---:|",
    ]
    for broker in BROKERS:
        for pool in POOLS:
            own = [e for e in results.samples if (e.broker, e.pool) == (broker.name, pool)]
            if own:
                names = ("tasks", "sent", "p50_ms", "p99_ms")
                tasks, sent, p50, p99 = (middle(own, name) for name in names)
                lines.append(
                    f"| {broker.name} | {broker.told} | {pool} | {tasks:,.0f} | {sent:,.0f} "
                    f"| {p50:.1f} / {p99:.1f} |"
                )
    return "\n".join([*lines, "", results.footnote()])


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    main()
