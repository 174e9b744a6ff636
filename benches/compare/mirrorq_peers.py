"""mirrorq itself: in the master's process as a service embeds it, as a client, and alone."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from compare.peer import BATCH_COUNT, OUTCOME_S, START_S, Peer, Session, batch_of
from mirrorq import MirroredQueue, Node, connect
from mirrorq.demo.ports import free_ports

SETTLEMENTS = 64


class Batches:
    """`put_many`, `get_many`, `ack_many`."""

    def __init__(self, handle: MirroredQueue) -> None:
        self._handle = handle

    def publish(self, body: bytes, count: int, in_flight: int) -> None:
        batch = min(batch_of(len(body)), in_flight)
        pending: queue.SimpleQueue[Any] = queue.SimpleQueue()
        for first in range(0, count, batch):
            if pending.qsize() * batch >= in_flight:
                pending.get().result(OUTCOME_S)
            pending.put(self._handle.put_many([body] * min(batch, count - first)))
        while not pending.empty():
            pending.get().result(OUTCOME_S)

    def take(self, count: int) -> None:
        settlements: queue.SimpleQueue[Any] = queue.SimpleQueue()
        while count:
            messages = self._handle.get_many(min(BATCH_COUNT, count), timeout=OUTCOME_S)
            if not messages:
                raise TimeoutError(f"{count} messages did not come within {OUTCOME_S:.0f} s")
            settlements.put(self._handle.ack_many(messages))
            count -= len(messages)
            if settlements.qsize() > SETTLEMENTS:
                settlements.get().result(OUTCOME_S)
        while not settlements.empty():
            settlements.get().result(OUTCOME_S)


class Singly:
    """`put`, `get`, `ack`: a call a message."""

    def __init__(self, handle: MirroredQueue) -> None:
        self._handle = handle

    def publish(self, body: bytes, count: int, in_flight: int) -> None:
        pending = [self._handle.put(body) for _ in range(min(count, in_flight))]
        for number in range(len(pending), count):
            at = number % in_flight
            pending[at].result(OUTCOME_S)
            pending[at] = self._handle.put(body)
        for confirmation in pending:
            confirmation.result(OUTCOME_S)

    def take(self, count: int) -> None:
        settlements = [self._handle.get(timeout=OUTCOME_S).ack() for _ in range(count)]
        for settlement in settlements:
            settlement.result(OUTCOME_S)


def ready(handle: MirroredQueue, mirrors: int) -> MirroredQueue:
    """The handle, when so many mirrors of its queue are in sync."""
    deadline = time.monotonic() + START_S
    while len(handle.status().synchronised_mirrors) < mirrors:
        if time.monotonic() > deadline:
            raise TimeoutError(f"the mirrors are not in sync after {START_S:.0f} s")
        time.sleep(0.05)
    return handle


def _embedded(way: Callable[[MirroredQueue], Session], durability: str) -> Callable[[Path], Any]:
    """This process is the master of three."""

    @contextmanager
    def start(directory: Path) -> Iterator[Session]:
        with ExitStack() as stack:
            peers = peers_of_three()
            run_nodes(stack, directory, peers, "bc")
            node = stack.enter_context(Node("a", path=directory / "a", peers=peers))
            if durability != "fsync":
                node.set_policy("durability", ".*", {"durability": durability})
            yield way(ready(node.queue("compared", timeout=START_S), mirrors=2))

    return start


def _client(way: Callable[[MirroredQueue], Session]) -> Callable[[Path], Any]:
    """Three nodes, and this process is a client."""

    @contextmanager
    def start(directory: Path) -> Iterator[Session]:
        with ExitStack() as stack:
            peers = peers_of_three()
            run_nodes(stack, directory, peers, "abc")
            client = stack.enter_context(connect(peers))
            client.wait_ready(START_S)
            yield way(ready(client.queue("compared", timeout=START_S), mirrors=2))

    return start


@contextmanager
def _alone(directory: Path, way: Callable[[MirroredQueue], Session]) -> Iterator[Session]:
    with MirroredQueue("compared", path=directory / "store") as handle:
        yield way(handle)


def run_nodes(stack: ExitStack, directory: Path, peers: dict[str, str], names: str) -> None:
    """Start nodes in processes of their own, until the stack is left."""
    for name in names:
        stack.enter_context(Node.spawn(name, path=directory / name, peers=peers))


def peers_of_three() -> dict[str, str]:
    """Names and addresses of nodes a, b and c, on free ports."""
    ports = free_ports(3)
    return {name: f"tcp://127.0.0.1:{port}" for name, port in zip("abc", ports, strict=True)}


THREE = "fsynced on three nodes"
ONE = "fsynced"
MEMORY = "in the memory of three nodes, on disk soon after"
PEERS = [
    Peer("mirrorq, batches", "replicated", THREE, _embedded(Batches, "fsync")),
    Peer("mirrorq, without waiting", "replicated", THREE, _embedded(Singly, "fsync")),
    Peer(
        "mirrorq, without waiting, `replicated`",
        "replicated",
        MEMORY,
        _embedded(Singly, "replicated"),
    ),
    Peer("mirrorq client, batches", "replicated", THREE, _client(Batches)),
    Peer("mirrorq client, without waiting", "replicated", THREE, _client(Singly)),
    Peer("mirrorq alone, batches", "embedded", ONE, lambda path: _alone(path, Batches)),
    Peer("mirrorq alone, without waiting", "embedded", ONE, lambda path: _alone(path, Singly)),
]
