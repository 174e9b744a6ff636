"""How long a queue is without a master: from the fault to the next confirm and delivery.

    python benches/failover.py [--fault kill|pause|cut|close] [--nodes 3|5] [--trials 200]
                               [--results FILE] [--path DIR]

All nodes are on loopback. This process is one of them, a mirror with the producer and the
consumer; the others are processes of their own. A trial: all members are in sync, the master
is killed (SIGKILL), paused (SIGSTOP), cut off (nothing passes any more between it and the others,
and no connection ends; all links go through proxies in this process) or closed (a planned stop),
and one message is put at once. Measured from just before the fault: until that put is confirmed,
and until the waiting consumer has the message. In it are detection, the catalog's decision, the
repair of the ring, the disks, and for the delivery a lease. Then the old master comes back and
catches up.

With --results each trial is appended to the file, and trials that it holds already for this
fault and number of nodes are counted, so that a long run can be done in pieces.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import socket
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Generator
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path

from mirrorq import Message, MirroredQueue, MirrorQError, Node

# The harness is beside the tests.
sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from harness.chaos.proxy import Proxies

SYNC_S = 60.0
OUTCOME_S = 60.0
Trial = tuple[float, float, bool]
"""ms to the confirm, ms to the delivery, whether the struck master led the catalog."""
HERE = "a"
"""The node of this process."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def run_peer(name: str, base: str, peers: dict[str, str], orders: Connection) -> None:
    """A node, until it is told to close or is killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    node = Node(name, path=Path(base) / name, peers=peers)
    with contextlib.suppress(EOFError):
        orders.recv()
    node.close()


class Peers:
    """The processes of all nodes but this one's."""

    def __init__(self, base: str, count: int, fault: str) -> None:
        self.base = base
        names = "abcdefg"[:count]
        endpoints = {name: f"tcp://127.0.0.1:{free_port()}" for name in names}
        self._proxies = Proxies(endpoints) if fault == "cut" else None
        self.seen_by = (
            dict.fromkeys(names, endpoints) if self._proxies is None else self._proxies.seen_by
        )
        """Node -> endpoints as that node is to see them."""
        self._context = get_context("spawn")
        self._processes: dict[str, tuple[SpawnProcess, Connection]] = {}
        for name in names[1:]:
            self.start(name)

    def start(self, name: str) -> None:
        ours, theirs = self._context.Pipe()
        process = self._context.Process(
            target=run_peer, args=(name, self.base, self.seen_by[name], theirs)
        )
        process.start()
        theirs.close()
        self._processes[name] = (process, ours)

    def strike(self, name: str, fault: str) -> None:
        process, orders = self._processes[name]
        if self._proxies is not None:
            for other in self.seen_by:
                if other != name:
                    self._proxies.hold(name, other)
        elif fault == "close":
            orders.send("close")
        else:
            os.kill(process.pid or 0, signal.SIGKILL if fault == "kill" else signal.SIGSTOP)

    def bring_back(self, name: str, fault: str) -> None:
        process, orders = self._processes[name]
        if self._proxies is not None:
            self._proxies.heal()
            return
        if fault == "pause":
            os.kill(process.pid or 0, signal.SIGCONT)
            return
        process.join(30)
        orders.close()
        self.start(name)

    def end(self) -> None:
        for process, orders in self._processes.values():
            process.kill()
            process.join()
            orders.close()
        if self._proxies is not None:
            self._proxies.close()


class Arrivals:
    """A consumer that notes when each body came."""

    def __init__(self, queue: MirroredQueue) -> None:
        self._at: dict[bytes, float] = {}
        self._changed = threading.Condition()
        self._consumer = queue.consume(self._on_message)

    def _on_message(self, message: Message) -> None:
        with self._changed:
            self._at.setdefault(message.body, time.perf_counter())
            self._changed.notify_all()
        message.ack()

    def wait(self, body: bytes) -> float:
        with self._changed:
            if not self._changed.wait_for(lambda: body in self._at, OUTCOME_S):
                raise MirrorQError(f"{body!r} did not arrive within {OUTCOME_S} s")
            return self._at[body]

    def end(self) -> None:
        self._consumer.cancel()


def trials(base: str, fault: str, count: int) -> Generator[Trial, None, None]:
    """One trial after the other, for as long as more are asked for."""
    peers = Peers(base, count, fault)
    number = 0
    try:
        while True:
            with Node(HERE, path=Path(base) / HERE, peers=peers.seen_by[HERE]) as node:
                queue = node.queue("orders")
                arrivals = Arrivals(queue)
                # Until this node becomes the master: opened anew it is a mirror again.
                while (master := _wait_in_sync(node, count)) != HERE:
                    number += 1
                    yield _trial(node, queue, arrivals, peers, master, fault, number)
                arrivals.end()
                queue.close()
    finally:
        peers.end()


def _trial(
    node: Node,
    queue: MirroredQueue,
    arrivals: Arrivals,
    peers: Peers,
    master: str,
    fault: str,
    number: int,
) -> Trial:
    before, after = b"before %d" % number, b"after %d" % number
    queue.put(before).result(OUTCOME_S)
    arrivals.wait(before)
    led = any(one.leader and one.name == master for one in node.nodes())
    began = time.perf_counter()
    peers.strike(master, fault)
    queue.put(after).result(OUTCOME_S)
    confirmed = time.perf_counter()
    delivered = arrivals.wait(after)
    peers.bring_back(master, fault)
    return (confirmed - began) * 1e3, (delivered - began) * 1e3, led


def _wait_in_sync(node: Node, count: int) -> str:
    deadline = time.monotonic() + SYNC_S
    while time.monotonic() < deadline:
        status = node.queues()[0]
        in_sync = len(status.synchronised_mirrors) == count - 1
        if status.state == "running" and in_sync and status.master:
            return status.master
        time.sleep(0.01)
    raise MirrorQError(f"not all in sync after {SYNC_S} s: {node.queues()}")


class Results:
    """Trials done, in memory and perhaps in a file."""

    def __init__(self, file: Path | None, fault: str, nodes: int) -> None:
        self._file = file
        self._kind = {"fault": fault, "nodes": nodes}
        self.rows: list[Trial] = []
        if file is not None and file.exists():
            for line in file.read_text().splitlines():
                row = json.loads(line)
                if row["fault"] == fault and row["nodes"] == nodes:
                    self.rows.append((row["confirm_ms"], row["delivery_ms"], row["led"]))

    def add(self, row: Trial) -> None:
        self.rows.append(row)
        if self._file is not None:
            confirm_ms, delivery_ms, led = row
            values = {"confirm_ms": round(confirm_ms, 2), "delivery_ms": round(delivery_ms, 2)}
            with self._file.open("a") as out:
                out.write(json.dumps({**self._kind, **values, "led": led}) + "\n")

    def print(self) -> None:
        kind = f"{self._kind['fault']}, {self._kind['nodes']} nodes, {len(self.rows)} trials"
        print(f"{kind} ({sum(led for _, _, led in self.rows)} of the catalog's leader)")
        for what, column in (("first confirm", 0), ("first delivery", 1)):
            print(f"  {what:15} {_quantiles([float(row[column]) for row in self.rows])}")


def _quantiles(values: list[float]) -> str:
    cuts = statistics.quantiles(values, n=100, method="inclusive")
    shown = {"p50": cuts[49], "p90": cuts[89], "p99": cuts[98], "max": max(values)}
    return ", ".join(f"{name} {value:.0f} ms" for name, value in shown.items())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--fault", choices=("kill", "pause", "cut", "close"), default="kill")
    parser.add_argument("--nodes", type=int, choices=(3, 4, 5), default=3)
    parser.add_argument("--trials", type=int, default=50)
    parser.add_argument("--results", type=Path, help="JSON lines; what it holds is not repeated")
    parser.add_argument("--path", help="directory for the stores")
    arguments = parser.parse_args()
    results = Results(arguments.results, arguments.fault, arguments.nodes)
    base = tempfile.mkdtemp(prefix="mirrorq-failover-", dir=arguments.path)
    running = trials(base, arguments.fault, arguments.nodes)
    try:
        while len(results.rows) < arguments.trials:
            results.add(next(running))
            print(f"\r{len(results.rows)} of {arguments.trials}", end="", file=sys.stderr)
    except KeyboardInterrupt:
        print("\nstopped", file=sys.stderr)
    finally:
        running.close()
        shutil.rmtree(base, ignore_errors=True)
    print(file=sys.stderr)
    if len(results.rows) > 1:
        results.print()
    return 0


if __name__ == "__main__":
    sys.exit(main())
