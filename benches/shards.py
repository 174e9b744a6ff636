"""One ring beside a sharded queue: throughput, and the CPU that a message costs on each node.

    python benches/shards.py [--shards 6] [--workers 3] [--rounds 3] [--scale 1.0] [--path DIR]
        [--only put_many]

Three nodes on loopback, each a process of its own, and as many worker processes as asked, each a
client of another node. All of them put 100-byte messages, then take them, on a queue that is one
ring and on one of so many shards, in turn, several rounds: the machine may be doing other work.
Confirmed means fsynced on all three. CPU is user and system time of a node's process for each
message, and beside it what a busy machine changes still less: instructions in user space, in
thousands (0 where the machine does not count them). The median of the rounds is shown.
"""

from __future__ import annotations

import argparse
import json
import queue
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

from attrs import frozen

from batches import take_batches
from kernel import Instructions, cpu_s
from mirrorq import Client, MirroredQueue, connect
from mirrorq.demo.children import Child
from mirrorq.demo.ports import free_ports

BODY = b"x" * 100
BATCH = 1_000
KEYS = [f"key-{number}" for number in range(997)]
WAIT_S = 300.0


# --- Workers --------------------------------------------------------------------------------


def put_many(handle: MirroredQueue, count: int) -> None:
    bodies = [BODY] * BATCH
    for _ in range(count // BATCH):
        handle.put_many(bodies)
    handle.wait_for_confirms(WAIT_S)


def put_keyed(handle: MirroredQueue, count: int) -> None:
    for number in range(count):
        handle.put(BODY, key=KEYS[number % len(KEYS)])
    handle.wait_for_confirms(WAIT_S)


def put(handle: MirroredQueue, count: int) -> None:
    for _ in range(count):
        handle.put(BODY)
    handle.wait_for_confirms(WAIT_S)


def take(handle: MirroredQueue, count: int) -> None:
    take_batches(handle, count, BATCH, WAIT_S)


WORKS = {"put_many": put_many, "put by key": put_keyed, "put": put, "get_many, ack": take}


def work(endpoints: Sequence[str]) -> None:
    """Do what lines on standard input ask for, and say when it is done."""
    handles: dict[str, MirroredQueue] = {}
    with connect(list(endpoints), timeout=WAIT_S) as client:
        print(json.dumps("ready"), flush=True)
        for line in sys.stdin:
            name, what, count = json.loads(line)
            if name not in handles:
                handles[name] = client.queue(name, passive=True)
            WORKS[what](handles[name], count)
            print(json.dumps("done"), flush=True)


class Workers:
    """The worker processes, each with an entry node of its own."""

    def __init__(self, endpoints: Sequence[str], count: int) -> None:
        self._processes = []
        for number in range(count):
            turn = number % len(endpoints)
            turned = json.dumps([*endpoints[turn:], *endpoints[:turn]])
            command = [sys.executable, __file__, "--work", turned]
            pipe = subprocess.PIPE
            self._processes.append(subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True))
        self._wait("ready")

    @property
    def count(self) -> int:
        return len(self._processes)

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._processes]

    def do(self, name: str, what: str, each: int) -> None:
        """Have all of them do it at once."""
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write(json.dumps((name, what, each)) + "\n")
            process.stdin.flush()
        self._wait("done")

    def _wait(self, word: str) -> None:
        for process in self._processes:
            assert process.stdout is not None
            if json.loads(process.stdout.readline() or "null") != word:
                raise RuntimeError("a worker has failed: see above")

    def end(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout):
                assert stream is not None
                stream.close()


# --- The measurement --------------------------------------------------------------------------


@frozen
class Measured:
    """One round of one work on one queue."""

    per_second: float
    cpu: tuple[float, ...]
    """Microseconds a message: of each node, then of all workers together."""
    instructions: tuple[float, ...]
    """Thousands a message, of the same."""


def measure(workers: Workers, nodes: Sequence[int], name: str, what: str, each: int) -> Measured:
    count = each * workers.count
    pids = [*nodes, *workers.pids]
    with closing(Instructions(pids)) as counter:
        before, start = [cpu_s(pid) for pid in pids], time.perf_counter()
        workers.do(name, what, each)
        seconds = time.perf_counter() - start
        used = [(cpu_s(pid) - was) / count * 1e6 for pid, was in zip(pids, before, strict=True)]
        done = [(each or 0) / count / 1_000 for each in counter.count()]
    return Measured(count / seconds, _by_node(used, len(nodes)), _by_node(done, len(nodes)))


def _by_node(each: Sequence[float], nodes: int) -> tuple[float, ...]:
    """Of each node, then of all workers together."""
    return (*each[:nodes], sum(each[nodes:]))


@contextmanager
def cluster(path: str | None) -> Iterator[tuple[dict[str, str], list[int]]]:
    """Three nodes: their endpoints by name, and their processes."""
    with ExitStack() as stack:
        made = tempfile.TemporaryDirectory(prefix="mirrorq-shards-", dir=path)
        place = Path(stack.enter_context(made))
        ports = free_ports(3)
        peers = {n: f"tcp://127.0.0.1:{port}" for n, port in zip("abc", ports, strict=True)}
        reports: queue.Queue[Any] = queue.Queue()
        children = []
        for name in peers:
            settings = {"name": name, "path": str(place / name), "peers": peers}
            children.append(Child(settings, place / f"{name}.log", reports))
            stack.callback(children[-1].end)
        yield peers, [child.pid for child in children]


def wait_in_sync(client: Client, rings: int) -> None:
    end = time.monotonic() + WAIT_S
    while time.monotonic() < end:
        rows = [row for row in client.queues(shards=True) if not row.shards]
        if len(rows) == rings and all(len(row.synchronised_mirrors) == 2 for row in rows):
            return
        time.sleep(0.05)
    raise TimeoutError(f"the mirrors are not in sync after {WAIT_S} s")


def run(arguments: argparse.Namespace) -> None:
    with cluster(arguments.path) as (peers, nodes), connect(list(peers.values())) as client:
        client.wait_ready(60)
        names = ("one ring", f"{arguments.shards} shards")
        client.queue(names[0], timeout=60)
        sharded = client.queue(names[1], shards=arguments.shards, timeout=60)
        wait_in_sync(client, arguments.shards + 1)
        workers = Workers(list(peers.values()), arguments.workers)
        try:
            found = rounds(workers, nodes, names, arguments)
        finally:
            workers.end()
        print(f"masters of the shards: {sharded.status().master}")
    show(found, names)


Found = dict[tuple[str, str], list[Measured]]


def rounds(
    workers: Workers, nodes: Sequence[int], names: Sequence[str], arguments: argparse.Namespace
) -> Found:
    many = max(1, int(60 * arguments.scale)) * BATCH
    single = max(1, int(15 * arguments.scale)) * BATCH
    plan = (("put_many", many), ("put by key", single), ("put", single))
    plan = tuple((what, each) for what, each in plan if arguments.only in ("", what))
    found: Found = {}
    for number in range(arguments.rounds + 1):
        for what, each in plan:
            for name in names if number % 2 else reversed(names):
                puts = measure(workers, nodes, name, what, each)
                takes = measure(workers, nodes, name, "get_many, ack", each)
                if number:  # the first round is to get warm
                    found.setdefault((what, name), []).append(puts)
                    if what == "put_many":
                        found.setdefault(("get_many, ack", name), []).append(takes)
    return found


def show(found: Found, names: Sequence[str]) -> None:
    print(
        f"{'':16} {'':10} {'a second':>12}   CPU us a message: a, b, c, all nodes; workers"
        "   1,000 instructions"
    )
    for what in dict.fromkeys(what for what, _ in found):
        rates = []
        for name in names:
            rows = found[what, name]
            rates.append(statistics.median(row.per_second for row in rows))
            costs = (_medians(row.cpu for row in rows), _medians(row.instructions for row in rows))
            cpu, instructions = map(_shown, costs)
            print(f"{what:16} {name:10} {rates[-1]:10,.0f}/s   {cpu}   {instructions}")
        print(f"{'':16} {'':10} {rates[1] / rates[0]:10.2f} x")


def _medians(rows: Iterable[tuple[float, ...]]) -> list[float]:
    return [statistics.median(each) for each in zip(*rows, strict=True)]


def _shown(costs: Sequence[float]) -> str:
    """Of each node, of all together, of the workers."""
    of_nodes = " ".join(f"{each:6.2f}" for each in (*costs[:-1], sum(costs[:-1])))
    return f"{of_nodes}; {costs[-1]:6.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--shards", type=int, default=6)
    parser.add_argument("--workers", type=int, default=3, help="client processes")
    parser.add_argument("--rounds", type=int, default=3, help="of which the median is shown")
    parser.add_argument("--scale", type=float, default=1.0, help="times as many messages")
    parser.add_argument("--path", help="directory on the disk that counts")
    parser.add_argument("--only", default="", help="only these puts: put, put_many, put by key")
    parser.add_argument("--work", default="", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.work:
        work(json.loads(arguments.work))
    else:
        run(arguments)


if __name__ == "__main__":
    main()
