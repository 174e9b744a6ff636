"""Nodes and loads in processes of their own, and what each spends on a message."""

from __future__ import annotations

import os
import pickle
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import kernel
from compare.mirrorq_peers import ready
from compare.peer import START_S
from mirrorq import MirroredQueue, Node, connect
from mirrorq.client.client import Client
from mirrorq.demo.ports import free_ports
from scale.part import Settings

NAMES = "abcdefg"
QUEUE = "scale"


class Remote:
    """A process with a host, a node or a client, that calls the functions it is told.

    Args:
        make: makes the host there; both are functions of a module.
        arguments: for it.
    """

    def __init__(self, make: Callable[..., Any], *arguments: Any) -> None:
        context = get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, make, arguments), daemon=True)
        self._process.start()
        theirs.close()
        self.pid = int(self._process.pid or 0)

    def tell(self, function: Callable[..., Any], *arguments: Any) -> None:
        """Have `function(host, *arguments)` called there; `answer` waits for what comes of it."""
        self._pipe.send((function, arguments))

    def answer(self) -> Any:
        """What became of what was told; at first, that the host is there."""
        good, value = self._pipe.recv()
        if not good:
            raise RuntimeError(f"in a process of the bench: {value}")
        return value

    def ask(self, function: Callable[..., Any], *arguments: Any) -> Any:
        self.tell(function, *arguments)
        return self.answer()

    def kill(self) -> None:
        """SIGKILL; return when the process is gone."""
        self._process.kill()
        self._process.join()
        self._pipe.close()


def _serve(pipe: Connection, make: Callable[..., Any], arguments: Sequence[Any]) -> None:
    """Until the other end of the pipe is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    host = make(*arguments)
    pipe.send((True, None))
    while True:
        try:
            function, given = pipe.recv()
        except (EOFError, OSError):
            host.close()
            return
        try:
            answer = (True, function(host, *given))
            pickle.dumps(answer)
        except Exception as error:
            answer = (False, repr(error))
        pipe.send(answer)


class Spent(NamedTuple):
    """What a piece of work took."""

    seconds: float
    cpu_us: list[float]
    """A message, of each process: the nodes in their order, then this one."""
    instructions: list[float | None]
    """A message, user, of each process; None where the kernel does not let count."""
    sent: list[float]
    """Bytes a message that each node sent to other nodes."""


class Cluster:
    """Nodes, each a process of its own. This process is a client of the first."""

    def __init__(self, stack: ExitStack, place: Path, count: int) -> None:
        self.peers = addresses(count)
        self.ports = [int(endpoint.rpartition(":")[2]) for endpoint in self.peers.values()]
        self.nodes = dict(started(stack, run_node, place, self.peers))
        self.pids = [node.pid for node in self.nodes.values()]
        self.client: Client = stack.enter_context(connect(self.peers["a"], timeout=START_S))
        self.client.wait_ready(START_S)

    def queue(self, name: str = QUEUE) -> MirroredQueue:
        """A queue whose master is the first node, all others mirrors in sync."""
        handle = self.client.queue(name, timeout=START_S)
        return ready(handle, mirrors=len(self.nodes) - 1)

    def spent(self, count: int, work: Callable[[], object], *more: int) -> Spent:
        """Do it, and see what it took.

        Args:
            count: messages of it.
            more: other processes that are looked at, behind the nodes and this one.
        """
        return spent([*self.pids, os.getpid(), *more], self.ports, count, work)


def spent(
    pids: Sequence[int], ports: Sequence[int], count: int, work: Callable[[], object]
) -> Spent:
    """What these processes spend on a piece of work of so many messages."""
    counters = kernel.Instructions(pids)
    try:
        cpu, sent = _cpu_s(pids), kernel.sent_bytes(pids, ports)
        counters.count()
        start = time.perf_counter()
        work()
        seconds = time.perf_counter() - start
        counted = counters.count()
        sent = _differences(kernel.sent_bytes(pids, ports), sent)
        cpu = _differences(_cpu_s(pids), cpu)
    finally:
        counters.close()
    return Spent(
        seconds,
        [used * 1e6 / count for used in cpu],
        [None if number is None else number / count for number in counted],
        [number / count for number in sent],
    )


def _cpu_s(pids: Sequence[int]) -> list[float]:
    return [kernel.cpu_s(pid) for pid in pids]


def _differences(now: Sequence[Any], before: Sequence[Any]) -> list[Any]:
    return [late - early for late, early in zip(now, before, strict=True)]


def addresses(count: int) -> dict[str, str]:
    """Endpoints of so many nodes, by their names."""
    return {
        name: f"tcp://127.0.0.1:{port}"
        for name, port in zip(NAMES, free_ports(count), strict=False)
    }


def started(
    stack: ExitStack, make: Callable[..., Any], place: Path, peers: dict[str, str]
) -> list[tuple[str, Remote]]:
    """A process for each node, until the stack is left; all of them run."""
    made = []
    for name in peers:
        made.append((name, Remote(make, name, str(place / name), peers)))
        stack.callback(made[-1][1].kill)
    for _, remote in made:
        remote.answer()
    return made


def run_node(name: str, path: str, peers: dict[str, str]) -> Node:
    """In a process of its own."""
    return Node(name, path=path, peers=peers)


@contextmanager
def cluster(settings: Settings, count: int) -> Iterator[Cluster]:
    """So many nodes, until the block ends; nothing stays behind."""
    with ExitStack() as stack:
        directory = TemporaryDirectory(prefix="mirrorq-scale-", dir=settings.path)
        yield Cluster(stack, Path(stack.enter_context(directory)), count)
