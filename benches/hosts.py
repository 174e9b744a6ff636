"""Which place for the node: in the application, beside it, or elsewhere; with Python that computes.

    python benches/hosts.py [--seconds 2] [--rounds 3] [--path DIR] [--only spawn]
                            [--results benches/results/hosts.jsonl --page docs/performance.md]

Three nodes. In the application: three processes, each with a node, the producer in the master's.
`Node.spawn`: the same processes, each a client of a node that it keeps beside it. A client: one
process, of nodes that are on their own. In each process of the application a thread computes in
Python, or none does, or one does with a short switch interval. These take turns within a round,
the places after one another, so that nothing else runs beside. Printed are medians of the rounds.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import msgspec

import mirrorq
from compare.measure import one_at_a_time
from compare.mirrorq_peers import Batches, Singly, ready
from compare.peer import OUTCOME_S, START_S, Session
from compare.results import Results, middle, write_into
from mirrorq.client.client import Client
from scale.cluster import QUEUE, Remote, addresses

BODY = b"x" * 100
IN_FLIGHT = 4096
LEAST = 2000
"""Messages of a rate at least."""
SILENCE_S = 10.0
BURST = 100
PLACES = ("in the application", "`Node.spawn`", "a client")
SWITCH_S = 0.005
"""Python's own."""
SHORT_S = 0.0005
RESTS = "nothing"
BESIDE: dict[str, float | None] = {
    RESTS: None,
    "Python": SWITCH_S,
    "Python, switch interval 0.5 ms": SHORT_S,
}
"""What computes beside: the switch interval of the interpreter meanwhile."""


class Found(msgspec.Struct, tag="found"):
    """One place, one round."""

    place: str
    beside: str
    p50_ms: float
    p99_ms: float
    after_silence_ms: float
    """The first confirm of a burst."""
    put_many: float
    put: float


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


class Application:
    """A process that uses the queue, and sometimes computes."""

    def __init__(self, place: str, name: str, path: str, peers: dict[str, str]) -> None:
        self._stack = ExitStack()
        self._load = Load()
        self._host: mirrorq.Node | Client
        enter = self._stack.enter_context
        if place == PLACES[0]:
            self._host = enter(mirrorq.Node(name, path=path, peers=peers))
        elif place == PLACES[1]:
            self._host = enter(enter(mirrorq.Node.spawn(name, path=path, peers=peers)).connect())
        else:
            self._host = enter(mirrorq.connect(peers[name], timeout=START_S))

    def close(self) -> None:
        self._load.rest()
        self._stack.close()

    def ready(self) -> None:
        ready(self._host.queue(QUEUE, timeout=START_S), mirrors=2)

    def compute(self, switch_s: float | None) -> None:
        sys.setswitchinterval(switch_s or SWITCH_S)
        self._load.compute(switch_s is not None)

    def measure(self, place: str, beside: str, seconds: float) -> Found:
        with self._host.queue(QUEUE, passive=True, timeout=START_S) as handle:
            waits = one_at_a_time(Batches(handle), BODY, seconds)
            first = first_after_silence(handle)
            rates = [rate(handle, way, seconds) for way in (Batches(handle), Singly(handle))]
        return Found(place, beside, *waits, first, *rates)


def first_after_silence(handle: mirrorq.MirroredQueue) -> float:
    """Return the ms from the first put of a burst to its confirm."""
    time.sleep(SILENCE_S)
    began = time.perf_counter()
    burst = [handle.put(BODY) for _ in range(BURST)]
    burst[0].result(OUTCOME_S)
    took = (time.perf_counter() - began) * 1e3
    for confirmation in burst:
        confirmation.result(OUTCOME_S)
    return took


def rate(handle: mirrorq.MirroredQueue, session: Session, seconds: float) -> float:
    """Return the messages a second that were confirmed; they are gone afterwards."""
    count, began = 0, time.perf_counter()
    while (took := time.perf_counter() - began) < seconds or count < LEAST:
        session.publish(BODY, IN_FLIGHT, IN_FLIGHT)
        count += IN_FLIGHT
    handle.purge()
    return count / took


def applications(stack: ExitStack, place: str, path: Path) -> list[Remote]:
    """Started, the first at the queue's master; all mirrors in sync."""
    peers = addresses(3)
    names = list(peers)
    if place == PLACES[2]:
        for name in names:
            stack.enter_context(mirrorq.Node.spawn(name, path=path / name, peers=peers))
        names = names[:1]
    made = [Remote(Application, place, name, str(path / name), peers) for name in names]
    for one in made:
        stack.callback(one.kill)
    for one in made:
        one.answer()
    made[0].ask(Application.ready)
    return made


def run(place: str, path: Path, seconds: float, rounds: int) -> Iterator[Found]:
    with ExitStack() as stack:
        made = applications(stack, place, path)
        for _ in range(rounds):
            for beside, switch_s in BESIDE.items():
                for one in made:
                    one.ask(Application.compute, switch_s)
                yield made[0].ask(Application.measure, place, beside, seconds)


def table(results: Results[Found]) -> str:
    """Markdown: a row for each place and what computes beside it."""
    lines = [
        "| the node is | computes beside it | one confirmed put, p50 / p99 ms | of p50 at rest "
        "| first of a burst after 10 s, ms | `put_many` /s | `put` /s |",
        "|---|---|---:|---:|---:|---:|---:|",
    ]
    for place in PLACES:
        rest = [each for each in results.samples if (each.place, each.beside) == (place, RESTS)]
        for beside in BESIDE:
            of = [each for each in results.samples if (each.place, each.beside) == (place, beside)]
            if of and rest:
                lines.append(row(place, beside, of, rest))
    return "\n".join([*lines, "", results.footnote()])


def row(place: str, beside: str, of: Sequence[Found], rest: Sequence[Found]) -> str:
    names = ("p50_ms", "p99_ms", "after_silence_ms", "put_many", "put")
    p50, p99, first, put_many, put = (middle(of, name) for name in names)
    return (
        f"| {place} | {beside} | {p50:.2f} / {p99:.2f} | {p50 / middle(rest, 'p50_ms'):.1f} "
        f"| {first:.2f} | {put_many:,.0f} | {put:,.0f} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=2.0, help="of each figure")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--path", type=Path, help="directory on the disk that counts")
    parser.add_argument("--only", default="", help="a part of the place's name")
    parser.add_argument("--results", type=Path, help="file of samples to add to and to report")
    parser.add_argument("--page", type=Path, help="page of the docs that gets the table")
    options = parser.parse_args()
    results = Results(Found, options.results)
    for place in PLACES if options.rounds else ():
        if options.only not in place:
            continue
        with tempfile.TemporaryDirectory(prefix="mirrorq-hosts-", dir=options.path) as path:
            for found in run(place, Path(path), options.seconds, options.rounds):
                results.add(found)
                print(found, file=sys.stderr, flush=True)
    print(table(results))
    if options.page:
        write_into(options.page, table(results), "hosts")


if __name__ == "__main__":
    main()
