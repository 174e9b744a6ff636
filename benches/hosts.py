"""Which place for the node: in the application, beside it, or elsewhere; with Python that computes.

    python benches/hosts.py [--seconds 2] [--rounds 3] [--path DIR]

Three nodes. In the application: three processes, each with a node, the producer in the master's.
`Node.spawn`: the same processes, each a client of a node that it keeps beside it. A client: one
process, of nodes that are on their own. Each without star and rail and with both,
and with and without a thread that computes in Python in each of the processes that are the
application's. The threads take turns within a round, the places after one another, so that nothing
else runs beside. Printed are medians of the rounds.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import mirrorq
from compare.measure import one_at_a_time
from compare.mirrorq_peers import Batches, Singly, ready
from compare.peer import START_S, Session
from mirrorq.client.client import Client
from mirrorq.config import Config
from scale.cluster import QUEUE, Remote, addresses
from scale.places import Load

BODY = b"x" * 100
IN_FLIGHT = 4096
LEAST = 2000
"""Messages of a rate at least."""
CONFIGS = {"neither": Config(star=False, rail=False), "star and rail": Config()}
PLACES = ("in the application", "Node.spawn", "a client")


class Application:
    """A process that uses the queue, and sometimes computes."""

    def __init__(self, place: str, name: str, path: str, peers: dict[str, str], kind: str) -> None:
        self._stack = ExitStack()
        self._load = Load()
        self._host: mirrorq.Node | Client
        enter, config = self._stack.enter_context, CONFIGS[kind]
        if place == "in the application":
            self._host = enter(mirrorq.Node(name, path=path, peers=peers, config=config))
        elif place == "Node.spawn":
            node = enter(mirrorq.Node.spawn(name, path=path, peers=peers, config=config))
            self._host = enter(node.connect())
        else:
            self._host = enter(mirrorq.connect(peers[name], timeout=START_S))

    def close(self) -> None:
        self._load.rest()
        self._stack.close()

    def ready(self) -> None:
        ready(self._host.queue(QUEUE, timeout=START_S), mirrors=2)

    def compute(self, is_wanted: bool) -> None:
        self._load.compute(is_wanted)

    def measure(self, seconds: float) -> dict[str, float]:
        with self._host.queue(QUEUE, passive=True, timeout=START_S) as handle:
            found = {"p50_ms": one_at_a_time(Batches(handle), BODY, seconds)[0]}
            ways: dict[str, Session] = {"put_many": Batches(handle), "put": Singly(handle)}
            for name, session in ways.items():
                count, begun = 0, time.perf_counter()
                while (took := time.perf_counter() - begun) < seconds or count < LEAST:
                    session.publish(BODY, IN_FLIGHT, IN_FLIGHT)
                    count += IN_FLIGHT
                found[name] = count / took
                handle.purge()
        return found


def applications(stack: ExitStack, place: str, path: Path, kind: str) -> list[Remote]:
    """Started, the first at the queue's master; all mirrors in sync."""
    peers = addresses(3)
    names = list(peers)
    if place == "a client":
        for name in names:
            node = mirrorq.Node.spawn(name, path=path / name, peers=peers, config=CONFIGS[kind])
            stack.enter_context(node)
        names = names[:1]
    made = [Remote(Application, place, name, str(path / name), peers, kind) for name in names]
    for one in made:
        stack.callback(one.kill)
    for one in made:
        one.answer()
    made[0].ask(Application.ready)
    return made


def run(place: str, kind: str, path: Path, seconds: float, rounds: int) -> Iterator[str]:
    with ExitStack() as stack:
        made = applications(stack, place, path, kind)
        found: dict[bool, list[dict[str, float]]] = {False: [], True: []}
        for _ in range(rounds):
            for is_busy, samples in found.items():
                for one in made:
                    one.ask(Application.compute, is_busy)
                samples.append(made[0].ask(Application.measure, seconds))
    for is_busy, samples in found.items():
        middle = {key: statistics.median(one[key] for one in samples) for key in samples[0]}
        beside = "computes" if is_busy else "rests"
        yield (
            f"{place:20}{kind:16}{beside:10}{middle['p50_ms']:10.2f}"
            f"{middle['put_many']:12,.0f}{middle['put']:12,.0f}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=2.0, help="of each figure")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--path", type=Path, help="directory on the disk that counts")
    options = parser.parse_args()
    print(f"{'the node is':20}{'':16}{'':10}{'p50 ms':>10}{'put_many /s':>12}{'put /s':>12}")
    for place in PLACES:
        for kind in CONFIGS:
            with tempfile.TemporaryDirectory(prefix="mirrorq-hosts-", dir=options.path) as path:
                for line in run(place, kind, Path(path), options.seconds, options.rounds):
                    print(line, flush=True)


if __name__ == "__main__":
    main()
