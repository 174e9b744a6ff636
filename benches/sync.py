"""How fast a new mirror is synchronised, and what that costs the traffic and both sides.

    python benches/sync.py [--messages 1000000] [--size 1024] [--batch 100] [--window 10]
                           [--traffic N] [--path DIR]

Three nodes on loopback, each a process: the master, a witness, and a mirror that starts with
an empty store. The queue is filled by put_many of --batch messages (so large are the frames on
disk), with ha-sync-mode manual. Traffic is a client in a process of its own that publishes and
another that takes and acks, some acks ahead of their outcome, as fast as they go; --traffic 0
leaves it out, N > 0 bounds both to N messages a second. Its rate is measured for --window
seconds, then the mirror is told to synchronise, and it is measured until the mirror is in sync.

Printed: the rates, MB a second of bodies, CPU seconds for 100 MB on both sides with what the
traffic costs beforehand taken off, and the memory of both (resident, without the store's pages).
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

from mirrorq import AckRefused, Node, NoQuorum, Settlement, connect

WAIT_S = 120.0
NAME = "orders"
FLIGHT = 64
"""put_many calls of the filling that are not confirmed yet."""
ACK_FLIGHT = 16
"""ack_many calls of the traffic whose outcome is not known yet."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Memory:
    """What this process holds, looked at ten times a second. The pages of its store that are
    mapped count apart: the system keeps them as long as nobody else wants the room."""

    def __init__(self) -> None:
        self.most_mb = 0.0
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        while True:
            self.most_mb = max(self.most_mb, self.now_mb())
            time.sleep(0.1)

    def now_mb(self) -> float:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("RssAnon"):
                return int(line.split()[1]) / 1024
        return 0.0


def run_node(name: str, path: str, peers: dict[str, str], orders: Connection) -> None:
    """A node that says what it uses, until it is told to end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    memory = Memory()
    node = Node(name, path=path, peers=peers, witness=name == "w")
    while orders.recv() == "usage":
        orders.send((time.process_time(), memory.now_mb(), memory.most_mb))
    node.close()


class Pace:
    """At most so many a second; 0 is as fast as it goes."""

    def __init__(self, per_s: float) -> None:
        self._per_s = per_s
        self._next_s = time.monotonic()

    def wait(self, count: int) -> None:
        if self._per_s:
            self._next_s += count / self._per_s
            time.sleep(max(self._next_s - time.monotonic(), 0))


def run_traffic(
    kind: str, endpoint: str, size: int, per_s: float, count: Any, orders: Connection
) -> None:
    """One end of the traffic: counts what is confirmed, or acked."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ended = threading.Event()
    with connect(endpoint) as client, client.queue(NAME, passive=True) as queue:
        pace = Pace(per_s)
        if kind == "publish":

            def on_confirm(_: object) -> None:
                count.value += 1

            def work() -> None:
                while not ended.is_set():
                    queue.put(bytes(size), on_confirm=on_confirm)
                    pace.wait(1)
        else:
            acks: deque[tuple[Settlement, int]] = deque()

            def work() -> None:
                while not ended.is_set():
                    # A machine that is too busy for its heartbeats costs the rate, not the run.
                    with contextlib.suppress(NoQuorum, AckRefused):
                        messages = queue.get_many(100, timeout=1)
                        acks.append((queue.ack_many(messages), len(messages)))
                        while len(acks) > ACK_FLIGHT:
                            settlement, acked = acks.popleft()
                            settlement.result(WAIT_S)
                            count.value += acked
                        pace.wait(len(messages))

        worker = threading.Thread(target=work)
        worker.start()
        orders.recv()
        ended.set()
        worker.join()


class Process:
    """A process of ours, and the pipe to it."""

    def __init__(self, target: Callable[..., None], *arguments: Any) -> None:
        context = get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self._process: SpawnProcess = context.Process(target=target, args=(*arguments, theirs))
        self._process.start()
        theirs.close()

    def usage(self) -> tuple[float, float, float]:
        """CPU seconds so far, resident MB now and at most."""
        self.pipe.send("usage")
        found: tuple[float, float, float] = self.pipe.recv()
        return found

    def end(self) -> None:
        with contextlib.suppress(OSError):
            self.pipe.send("end")
        self._process.join(30)
        self._process.kill()


def fill(endpoint: str, count: int, size: int, batch: int) -> None:
    with connect(endpoint) as client, client.queue(NAME, passive=True) as queue:
        bodies = [os.urandom(size) for _ in range(batch)]
        flight = []
        for first in range(0, count, batch):
            flight.append(queue.put_many(bodies[: count - first]))
            if len(flight) >= FLIGHT:
                flight.pop(0).result(WAIT_S)
        for confirmation in flight:
            confirmation.result(WAIT_S)


def until(look: Callable[[], bool]) -> None:
    end = time.monotonic() + WAIT_S
    while not look():
        if time.monotonic() > end:
            sys.exit("nothing came of it: is the machine very busy?")
        time.sleep(0.02)


class Bench:
    """One run."""

    def __init__(self, arguments: argparse.Namespace, base: str) -> None:
        self.arguments = arguments
        self.base = base
        self.peers = {name: f"tcp://127.0.0.1:{free_port()}" for name in "abw"}
        self.processes: dict[str, Process] = {}
        context = get_context("spawn")
        self.counts = {kind: context.Value("Q", 0, lock=False) for kind in ("publish", "take")}

    def start(self, name: str) -> None:
        path = str(Path(self.base) / name)
        self.processes[name] = Process(run_node, name, path, self.peers)

    def end(self) -> None:
        for process in reversed(self.processes.values()):
            process.end()

    def run(self) -> None:
        given = self.arguments
        for name in "abw":
            self.start(name)
        endpoint = self.peers["a"]
        with connect(endpoint, timeout=WAIT_S) as client:
            client.wait_ready(WAIT_S)
            client.set_policy("by hand", "", {"ha-sync-mode": "manual"})
            queue = client.queue(NAME)
            until(lambda: queue.status().mirrors == ("b",))
            self.processes.pop("b").end()
            until(lambda: queue.status().mirrors == ())
            shutil.rmtree(Path(self.base) / "b")
            fill(endpoint, given.messages, given.size, given.batch)
            self.start("b")
            until(lambda: queue.status().mirrors == ("b",))
            time.sleep(1)
            if given.traffic != 0:
                for kind, count in self.counts.items():
                    self.processes[kind] = Process(
                        run_traffic, kind, endpoint, given.size, max(given.traffic, 0), count
                    )
                until(lambda: all(count.value for count in self.counts.values()))
                time.sleep(2)
            before = self.measure(lambda: time.sleep(given.window))
            during = self.measure(lambda: client.sync_queue(NAME, wait=True))
            self.tell(before, during)

    def measure(self, work: Callable[[], None]) -> dict[str, float]:
        """Seconds, counts and CPU seconds of some work; the memory at its end."""
        began_s = time.monotonic()
        counts = {kind: count.value for kind, count in self.counts.items()}
        cpu = {name: self.processes[name].usage()[0] for name in "ab"}
        work()
        found = {"seconds": time.monotonic() - began_s}
        for kind, count in self.counts.items():
            found[kind] = (count.value - counts[kind]) / found["seconds"]
        for name in "ab":
            cpu_s, now_mb, most_mb = self.processes[name].usage()
            found[f"{name} cpu"] = cpu_s - cpu[name]
            found[f"{name} now"], found[f"{name} most"] = now_mb, most_mb
        return found

    def tell(self, before: dict[str, float], during: dict[str, float]) -> None:
        given = self.arguments
        mb = given.messages * given.size / 1e6
        seconds = during["seconds"]
        print(f"{given.messages:,} messages of {given.size} bytes: {mb:,.0f} MB")
        print(f"synchronised in {seconds:.1f} s: {mb / seconds:,.0f} MB/s")
        for kind in self.counts:
            share = during[kind] / before[kind] if before[kind] else 0
            print(
                f"{kind}: {before[kind]:,.0f}/s before, {during[kind]:,.0f}/s during ({share:.0%})"
            )
        for name, side in (("a", "donor"), ("b", "joiner")):
            idle_s = before[f"{name} cpu"] / before["seconds"] * seconds
            spent_s = during[f"{name} cpu"] - idle_s
            print(
                f"{side}: {during[f'{name} cpu']:.1f} s of CPU, {spent_s / mb * 100:.2f} s per "
                f"100 MB beyond the traffic; {before[f'{name} now']:,.0f} MB of memory before, "
                f"{during[f'{name} now']:,.0f} MB after, {during[f'{name} most']:,.0f} MB at most"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description="Synchronise a new mirror under traffic.")
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--size", type=int, default=1024)
    parser.add_argument("--batch", type=int, default=100)
    parser.add_argument("--window", type=float, default=10.0)
    parser.add_argument("--traffic", type=float, default=-1, help="a second; 0 none")
    parser.add_argument("--path", help="where the stores are; default: a temporary directory")
    arguments = parser.parse_args()
    base = tempfile.mkdtemp(prefix="mirrorq-sync-", dir=arguments.path)
    bench = Bench(arguments, base)
    try:
        bench.run()
    finally:
        bench.end()
        shutil.rmtree(base, ignore_errors=True)


if __name__ == "__main__":
    main()
