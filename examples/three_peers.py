"""A service that embeds a replicated queue, as three processes.

Each process is a peer with its own directory. The first publishes with `on_confirm`, the third
takes and acks; the second only keeps a copy, and could be any of them. In a real service each
process runs on a machine of its own and `peers` comes from its configuration; here one script
starts all three: python examples/three_peers.py ./data
"""

from __future__ import annotations

import multiprocessing
import socket
import sys
import threading
from multiprocessing.synchronize import Event
from pathlib import Path

import mirrorq

JOBS = 1_000
WAIT_S = 60.0


def serve(name: str, path: str, peers: dict[str, str], is_over: Event) -> None:
    """One process of the service."""
    with mirrorq.Node(name, path=path, peers=peers) as node:
        jobs = node.queue("jobs", timeout=WAIT_S)  # waits for a majority of the peers
        if name == "a":
            publish(jobs)
        elif name == "c":
            work(jobs)
            is_over.set()
        is_over.wait(WAIT_S)


def publish(jobs: mirrorq.MirroredQueue) -> None:
    """Publish, and hear when each job is on disk on every peer in sync."""
    confirmed: list[int] = []
    all_confirmed = threading.Event()

    def on_confirm(confirmation: mirrorq.Confirmation) -> None:
        # Called on a thread of the queue. result() raises what went wrong, if something did.
        confirmed.append(confirmation.result())
        if len(confirmed) == JOBS:
            all_confirmed.set()

    for number in range(JOBS):
        jobs.put(b"job %d" % number, on_confirm=on_confirm)
    all_confirmed.wait(WAIT_S)
    print(f"confirmed: {len(confirmed)}", flush=True)


def work(jobs: mirrorq.MirroredQueue) -> None:
    """Take and ack every job. A job may come twice after a failure; then it says so."""
    done: set[bytes] = set()
    while len(done) < JOBS:
        message = jobs.get(timeout=WAIT_S)
        if message.redelivered:
            print(f"again: {message.body.decode()}", flush=True)
        done.add(message.body)
        acked = message.ack()
    acked.exception(WAIT_S)  # the last: those before it have resolved too
    print(f"done: {len(done)}", flush=True)


def main(path: str) -> None:
    """Start three processes and wait for their end."""
    context = multiprocessing.get_context("spawn")  # a node does not survive a fork
    peers = {
        name: f"tcp://127.0.0.1:{port}" for name, port in zip("abc", free_ports(), strict=True)
    }
    is_over = context.Event()
    processes = [
        context.Process(target=serve, args=(name, str(Path(path) / name), peers, is_over))
        for name in peers
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    if any(process.exitcode for process in processes):
        sys.exit("a process failed")


def free_ports() -> list[int]:
    """Three ports for this example; a service's come from its configuration."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(3)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "./data")
