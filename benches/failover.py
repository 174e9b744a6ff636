"""Time from SIGKILL of the master to the first confirm of the new one.

    python benches/failover.py [--kills 50] [--path DIR]

Four processes on loopback: this one is a node that masters nothing it is killed for, and the
producer; three more nodes are killed in turn, whoever is master, and restarted. Before each
kill all members are in sync. The time is that of one `put`, made right after the kill, until
its confirmation: detection, the catalog's decision, repair of the ring and three disks.
"""

from __future__ import annotations

import argparse
import multiprocessing
import shutil
import socket
import statistics
import sys
import tempfile
import time
from multiprocessing.context import SpawnProcess
from pathlib import Path

from mirrorq import MirrorQError, Node

SYNC_S = 60.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def run_peer(name: str, base: str, peers: dict[str, str]) -> None:
    """A node, until it is killed."""
    Node(name, path=Path(base) / name, peers=peers)
    multiprocessing.Event().wait()


class Cluster:
    """The producer's node, called a, and three that are killed."""

    def __init__(self, base: str) -> None:
        self.base = base
        self.peers = {name: f"tcp://127.0.0.1:{free_port()}" for name in "abcd"}
        self.context = multiprocessing.get_context("spawn")
        self.processes: dict[str, SpawnProcess] = {}

    def start(self, name: str) -> None:
        process = self.context.Process(target=run_peer, args=(name, self.base, self.peers))
        process.start()
        self.processes[name] = process

    def kill(self, name: str) -> None:
        process = self.processes.pop(name)
        process.kill()
        process.join()


def measure(base: str, kills: int) -> list[float]:
    """Milliseconds of each failover."""
    cluster = Cluster(base)
    for name in "bcd":
        cluster.start(name)
    took_ms: list[float] = []
    try:
        while len(took_ms) < kills:
            took_ms += _round(cluster, kills - len(took_ms))
    finally:
        for name in list(cluster.processes):
            cluster.kill(name)
    return took_ms


def _round(cluster: Cluster, kills: int) -> list[float]:
    """Kill masters until this process's own node becomes one; then it is opened anew."""
    took_ms: list[float] = []
    with Node("a", path=Path(cluster.base) / "a", peers=cluster.peers) as node:
        queue = node.queue("orders")
        while len(took_ms) < kills:
            master = _wait_in_sync(node)
            if master == "a":
                break
            queue.put(b"before").result(30)
            cluster.processes[master].kill()
            began = time.perf_counter()
            queue.put(b"after").result(30)
            took_ms.append((time.perf_counter() - began) * 1e3)
            cluster.kill(master)
            cluster.start(master)
            print(f"\r{len(took_ms)} kills in this round", end="", file=sys.stderr)
        queue.close()
    return took_ms


def _wait_in_sync(node: Node) -> str:
    deadline = time.monotonic() + SYNC_S
    while time.monotonic() < deadline:
        status = node.queues()[0]
        if status.state == "running" and len(status.synchronised_mirrors) == 3 and status.master:
            return status.master
        time.sleep(0.01)
    raise MirrorQError(f"not all in sync after {SYNC_S} s: {node.queues()}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--path", default=None, help="directory for the stores")
    arguments = parser.parse_args()
    base = tempfile.mkdtemp(prefix="mirrorq-failover-", dir=arguments.path)
    try:
        took_ms = sorted(measure(base, arguments.kills))
    finally:
        shutil.rmtree(base, ignore_errors=True)
    cuts = statistics.quantiles(took_ms, n=100, method="inclusive")
    print(
        f"\nkills: {len(took_ms)}, p50 {cuts[49]:.0f} ms, p90 {cuts[89]:.0f} ms, "
        f"p99 {cuts[98]:.0f} ms, max {took_ms[-1]:.0f} ms"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
