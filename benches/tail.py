"""What the slowest one in a hundred confirmed puts waits for.

    python benches/tail.py [--puts 3000] [--rate 500] [--path DIR] [--durability replicated]
                           [--results benches/results/tail.jsonl --page docs/performance.md]

Three nodes, each in a process of its own, the producer in the master's. Without `--rate` each put
waits for the one before; with it so many are due a second, at random times. Each process notes when
each commit, each checkpoint and each garbage collection begins and ends. A fourth process sleeps
0.5 ms again and again, and notes when it is woken late; a fifth writes a page to the disk 50 times
a second, and notes slow writes: these two show what the machine does to any program.

Printed: quantiles, then for each cause the share of the slowest 1 % of puts during which it
happened, and how much time of these puts it took; beside that the same for puts about the median.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

import mirrorq
from compare.mirrorq_peers import peers_of_three, ready
from compare.results import Results, write_into
from compare.steady_peers import Mirrorq, arrivals
from mirrorq.node.driver import Driver
from mirrorq.store.node_store import Store

Span = tuple[str, float, float]
"""What happened, when it began and when it ended, by the clock of all processes."""
BODY = b"x" * 100
WARM = 500
LATE_S = 1e-3
"""A wake-up or a bare write is slow from here on."""
NAP_S = 5e-4
DISK_EVERY_S = 0.02
SHORT_S = 5e-5
"""Spans below this are left out."""
QUANTILES = (0.5, 0.9, 0.99, 0.999, 1.0)
SHARE_MIN = 0.05
"""What happens more seldom is left out."""

spans: list[Span] = []


# --- What each process notes --------------------------------------------------------------------


def noting(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, which notes how long each call took."""

    def called(*given: Any, **named: Any) -> Any:
        began = time.monotonic()
        try:
            return function(*given, **named)
        finally:
            ended = time.monotonic()
            if ended - began > SHORT_S:
                spans.append((name, began, ended))

    return called


def note_collections() -> None:
    """Note each run of the garbage collector."""
    begun = [0.0]

    def on_collection(phase: str, info: dict[str, int]) -> None:
        now = time.monotonic()
        if phase == "start":
            begun[0] = now
        elif now - begun[0] > SHORT_S:
            generation = info["generation"]
            spans.append((f"garbage collection, generation {generation}", begun[0], now))

    gc.callbacks.append(on_collection)


def watch_node() -> None:
    """Note commits, rounds and collections of this process's node."""
    store: Any = Store
    store._append_to_log = noting("commit to the log", store._append_to_log)
    store._commit_to_lmdb = noting("commit to LMDB", store._commit_to_lmdb)
    driver: Any = Driver
    step_ports = driver._step_ports
    driver._step_ports = noting("handles of the node", step_ports)
    note_collections()


def run_node(name: str, path: str, peers: str) -> None:
    """A mirror, until its standard input ends; then it prints what it noted."""
    watch_node()
    with mirrorq.Node(name, path=path, peers=json.loads(peers)):
        sys.stdin.read()
    print(json.dumps(spans))


def run_naps(_directory: str) -> None:
    """Note late wake-ups."""
    done = ended()
    while not done.is_set():
        began = time.monotonic()
        time.sleep(NAP_S)
        now = time.monotonic()
        if now - began > NAP_S + LATE_S:
            spans.append(("a sleeping process is woken late", began + NAP_S, now))
    print(json.dumps(spans))


def run_disk(directory: str) -> None:
    """Note slow writes of a page."""
    done = ended()
    file = os.open(Path(directory, "page"), os.O_RDWR | os.O_CREAT | os.O_DSYNC)
    while not done.is_set():
        began = time.monotonic()
        os.pwrite(file, bytes(4096), 0)
        now = time.monotonic()
        if now - began > LATE_S:
            spans.append(("a bare write to the disk is slow", began, now))
        time.sleep(DISK_EVERY_S)
    print(json.dumps(spans))


def ended() -> threading.Event:
    """Set at the end of the standard input."""
    done = threading.Event()

    def read() -> None:
        sys.stdin.read()
        done.set()

    threading.Thread(target=read, daemon=True).start()
    return done


PARTS: dict[str, Callable[..., None]] = {"node": run_node, "naps": run_naps, "disk": run_disk}


@contextmanager
def noted_by(label: str, *arguments: str) -> Iterator[None]:
    """Run a part in a process; at the end its spans are added, under this label."""
    command = [sys.executable, __file__, "--part", *arguments]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        yield
        said, _ = process.communicate(timeout=60)
        spans.extend((f"{label}: {name}", began, end) for name, began, end in json.loads(said))
    finally:
        process.kill()
        process.wait()


# --- Puts ---------------------------------------------------------------------------------------


def measure(directory: Path, puts: int, rate: float, durability: str) -> list[tuple[float, float]]:
    """When each put was due, and when it was confirmed."""
    peers = peers_of_three()
    with ExitStack() as stack:
        for name in "bc":
            given = ("node", name, str(directory / name), json.dumps(peers))
            stack.enter_context(noted_by("a mirror", *given))
        stack.enter_context(noted_by("machine", "naps", str(directory)))
        stack.enter_context(noted_by("machine", "disk", str(directory)))
        node = stack.enter_context(mirrorq.Node("a", path=directory / "a", peers=peers))
        node.set_policy("durability", ".*", {"durability": durability})
        queue = ready(node.queue("tail", timeout=60), mirrors=2)
        for _ in range(WARM):
            queue.put(BODY).result(60)
        return list(at_rate(queue, puts, rate) if rate else one_by_one(queue, puts))


def one_by_one(queue: mirrorq.MirroredQueue, puts: int) -> Iterator[tuple[float, float]]:
    """Each put waits for the confirm of the one before."""
    for _ in range(puts):
        began = time.monotonic()
        queue.put(BODY).result(60)
        yield began, time.monotonic()


def at_rate(queue: mirrorq.MirroredQueue, puts: int, rate: float) -> list[tuple[float, float]]:
    """So many are due a second, whether earlier ones are confirmed or not."""
    due = list(islice(arrivals(rate, time.monotonic(), random.Random(1)), puts))
    done = [0.0] * puts

    def confirmed(message: int) -> None:
        done[message] = time.monotonic()

    Mirrorq(queue, list).drive(due, lambda _: BODY, confirmed, due[-1] + 60)
    return list(zip(due, done, strict=True))


# --- The table ----------------------------------------------------------------------------------


class Row(msgspec.Struct):
    """Something that happened during puts: the share of puts, and ms of it in each of these."""

    name: str
    share: float
    ms: float
    usual_share: float
    usual_ms: float


class Tail(msgspec.Struct, tag="tail"):
    """One run."""

    rate: float
    durability: str
    quantiles: list[float]
    """ms, by `QUANTILES`."""
    rows: list[Row]


def analysed(waits: Sequence[tuple[float, float]], rate: float, durability: str) -> Tail:
    """Compare the slowest 1 % with the tenth around the median."""
    ordered = sorted(waits, key=lambda wait: wait[1] - wait[0])
    count = len(ordered)
    took = [(end - began) * 1e3 for began, end in ordered]
    quantiles = [took[min(count - 1, int(count * at))] for at in QUANTILES]
    slow = ordered[int(count * 0.99) :]
    usual = ordered[int(count * 0.45) : int(count * 0.55)]
    rows = [Row(name, *during(name, slow), *during(name, usual)) for name in {s[0] for s in spans}]
    rows = [row for row in rows if row.share >= SHARE_MIN]
    rows.sort(key=lambda row: -row.share * row.ms)
    return Tail(rate, durability, quantiles, rows)


def table(results: Results[Tail]) -> str:
    """Markdown: one table a run."""
    parts: list[str] = []
    for run in results.samples:
        way = f"{run.rate:g} puts a second" if run.rate else "each put waits for the one before"
        quantiles = " / ".join(f"{ms:.2f}" for ms in run.quantiles)
        parts += [
            f"**`{run.durability}`, {way}**: p50 / p90 / p99 / p99.9 / slowest {quantiles} ms",
            "",
            "| during the put | of the slowest 1 % | ms | of puts about the median | ms |",
            "|---|---:|---:|---:|---:|",
        ]
        for row in run.rows:
            share, usual = f"{row.share:.0%} | {row.ms:.2f}", f"{row.usual_share:.0%}"
            parts.append(f"| {row.name} | {share} | {usual} | {row.usual_ms:.2f} |")
        parts.append("")
    return "\n".join([*parts, results.footnote()])


def during(name: str, puts: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """The share of the puts during which this happened, and ms of it in each of these puts."""
    own = sorted((began, end) for what, began, end in spans if what == name)
    overlaps = [
        sum(max(0.0, min(end, confirmed) - max(began, due)) for began, end in own)
        for due, confirmed in puts
    ]
    touched = [each * 1e3 for each in overlaps if each > 0]
    return len(touched) / len(puts), statistics.mean(touched) if touched else 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--puts", type=int, default=3000)
    parser.add_argument("--rate", type=float, default=0.0, help="puts a second; 0: one by one")
    parser.add_argument("--path", type=Path, help="directory on the disk that counts")
    parser.add_argument("--durability", default="fsync", choices=("fsync", "replicated"))
    parser.add_argument("--results", type=Path, help="file of runs to add to and to report")
    parser.add_argument("--page", type=Path, help="page of the docs that gets the tables")
    parser.add_argument("--part", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.part:
        PARTS[options.part[0]](*options.part[1:])
        return
    watch_node()
    with tempfile.TemporaryDirectory(prefix="mirrorq-tail-", dir=options.path) as directory:
        waits = measure(Path(directory), options.puts, options.rate, options.durability)
    results = Results(Tail, options.results)
    results.add(analysed(waits, options.rate, options.durability))
    print(table(results))
    if options.page:
        write_into(options.page, table(results), "tail")


if __name__ == "__main__":
    main()
