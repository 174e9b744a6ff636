"""What is measured: one function a row, on three nodes that have a queue of so many messages."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import NamedTuple

import kernel
from compare.peer import START_S
from mirrorq import Config, connect
from scale.cluster import Remote, addresses
from shape import host
from shape.host import Holder, Host, Prober, looks

DEEP, EMPTY, OTHER = "deep", "empty", "other"
WAIT_S = 1200.0
BESIDE_COUNT = 40_000
"""Messages put and taken on the deep queue, and on an empty one beside it."""
BESIDE_TURNS = 5
FULL_BYTES = 32 << 20
"""Of a store that is filled to its bound."""
FULL_SHARE = 0.95
DRAIN_COUNT = 200_000
"""Taken in one go: each waits for all of its acks."""
Figures = dict[str, float]
OF_ALL_STEPS = ("step_p999_ms", "step_max_ms", "step_cpu_p999_ms", "step_cpu_max_ms")


class Row(NamedTuple):
    """A row of the table."""

    name: str
    what: str
    run: Callable[[Nodes, int], Figures]
    unit: str
    aim: str


class Nodes:
    """Three nodes, each a process of its own; the first leads."""

    def __init__(self, stack: ExitStack, place: Path, config: Config | None = None) -> None:
        self.place, self.config = place, config
        self.peers = addresses(3)
        self.ports = [int(endpoint.rpartition(":")[2]) for endpoint in self.peers.values()]
        self.remotes: dict[str, Remote] = {}
        stack.callback(self.kill)
        self.start(*self.peers)

    def start(self, *names: str) -> None:
        for name in names:
            path = str(self.place / name)
            options = {} if self.config is None else {"config": self.config}
            self.remotes[name] = Remote(Host, name, path, self.peers, options)
        for name in names:
            self.remotes[name].answer()

    def kill(self, *names: str) -> None:
        """SIGKILL: these, or all."""
        for name in names or tuple(self.remotes):
            self.remotes.pop(name).kill()

    @property
    def pids(self) -> list[int]:
        return [remote.pid for remote in self.remotes.values()]

    @property
    def first(self) -> Remote:
        return self.remotes["a"]

    def memory_mb(self) -> float:
        """RssAnon of the largest."""
        return max(kernel.anonymous_mb(pid) for pid in self.pids)

    def wait_in_sync(self, name: str, mirrors: int = 2) -> float:
        """Seconds until so many mirrors of a queue are."""
        began = time.perf_counter()
        for _ in looks(WAIT_S, 0.05):
            if self.first.ask(host.mirrors_in_sync, name) == mirrors:
                break
        return time.perf_counter() - began

    def begin_steps(self) -> None:
        for remote in self.remotes.values():
            remote.ask(host.begin_steps)

    def steps(self) -> Figures:
        """The longest of any node."""
        found = [remote.ask(host.steps) for remote in self.remotes.values()]
        longest = max(found, key=lambda each: each["step_cpu_max_ms"])
        return longest | {key: max(each[key] for each in found) for key in OF_ALL_STEPS}

    def sent_bytes(self) -> int:
        return sum(kernel.sent_bytes(self.pids, self.ports))


@contextmanager
def nodes(path: Path | None, config: Config | None = None) -> Iterator[Nodes]:
    with ExitStack() as stack:
        directory = TemporaryDirectory(prefix="mirrorq-shape-", dir=path)
        yield Nodes(stack, Path(stack.enter_context(directory)), config)


def load(run: Nodes, count: int) -> Figures:
    """So many messages, each of another size than its neighbour, are put."""
    run.first.ask(host.fill, OTHER, 1)
    run.first.ask(host.fill, DEEP, 1)
    run.wait_in_sync(DEEP)
    run.begin_steps()
    began = time.perf_counter()
    run.first.ask(host.fill, DEEP, count - 1)
    rate = count / (time.perf_counter() - began)
    return {"memory_mb": run.memory_mb(), "rate": rate} | run.steps()


def beside(run: Nodes, count: int) -> Figures:
    """The same work on it and on a queue that is nearly empty, in turn; of each somebody holds a
    message, so that what is acked lies behind it."""
    run.first.ask(host.fill, EMPTY, 1000)
    for name in (DEEP, EMPTY):
        run.first.ask(host.hold, name)
    rates: dict[str, list[float]] = {}
    for turn in range(BESIDE_TURNS):
        for name in (DEEP, EMPTY) if turn % 2 else (EMPTY, DEEP):
            for what, work in (("put", host.fill), ("take", host.take)):
                began = time.perf_counter()
                run.first.ask(work, name, BESIDE_COUNT)
                rate = BESIDE_COUNT / (time.perf_counter() - began)
                rates.setdefault(f"{what}_{name}", []).append(rate)
    figures = {name: median(found) for name, found in rates.items()}
    for name in (DEEP, EMPTY):
        run.first.ask(host.let_go, name)
    of_empty = [figures[f"{what}_{DEEP}"] / figures[f"{what}_{EMPTY}"] for what in ("put", "take")]
    return figures | {"share": 100 * min(of_empty)}


def checkpoint(run: Nodes, count: int) -> Figures:
    """One message is put, and all is quiet."""
    run.first.ask(host.wait_for_checkpoint, WAIT_S)
    run.begin_steps()
    run.first.ask(host.fill, DEEP, 1)
    return {"kb": run.first.ask(host.wait_for_checkpoint, WAIT_S) / 1000} | run.steps()


def lease(run: Nodes, count: int) -> Figures:
    """All of it is held by a client that is killed, while somebody puts into another queue."""
    with connect(run.peers["a"], timeout=START_S) as client:
        other = client.queue(OTHER, timeout=START_S)
        holder = Remote(Holder, run.peers["b"])
        holder.answer()
        held = holder.ask(host.lease, DEEP, count, WAIT_S)
        run.begin_steps()
        with Prober(other) as prober:
            began = time.perf_counter()
            holder.kill()
            for _ in looks(WAIT_S):
                if run.first.ask(host.status, DEEP)[2] == 0:
                    break
            back_s = time.perf_counter() - began
            time.sleep(2.0)  # the checkpoints that follow
        figures = {"held": held, "back_s": back_s, "slowest_ms": prober.slowest_ms}
        return figures | {"memory_mb": run.memory_mb()} | run.steps()


def comeback(run: Nodes, count: int) -> Figures:
    """A mirror is killed, 1,000 more messages come, it comes back."""
    return _rejoin(run, is_wiped=False)


def join(run: Nodes, count: int) -> Figures:
    """The same of one whose disk is another one."""
    return _rejoin(run, is_wiped=True)


def join_under_load(run: Nodes, count: int) -> Figures:
    """The same, while somebody puts as fast as it goes."""
    run.kill("c")
    run.wait_in_sync(DEEP, 1)
    shutil.rmtree(run.place / "c")
    run.begin_steps()
    run.remotes["b"].tell(host.fill, DEEP, count)
    run.start("c")
    seconds = run.wait_in_sync(DEEP)
    run.remotes["b"].answer()
    return {"seconds": seconds} | run.steps()


def _rejoin(run: Nodes, *, is_wiped: bool) -> Figures:
    run.kill("c")
    run.wait_in_sync(DEEP, 1)
    run.first.ask(host.fill, DEEP, 1000)
    if is_wiped:
        shutil.rmtree(run.place / "c")
    run.begin_steps()
    sent = run.sent_bytes()
    run.start("c")
    seconds = run.wait_in_sync(DEEP)
    return {"seconds": seconds, "sent_mb": (run.sent_bytes() - sent) / 1e6} | run.steps()


def restart(run: Nodes, count: int) -> Figures:
    """All nodes are killed and started again; then a message is got."""
    run.kill()
    began = time.perf_counter()
    run.start(*run.peers)
    run.first.ask(host.take, DEEP, 1)
    return {"seconds": time.perf_counter() - began, "memory_mb": run.memory_mb()}


def purge(run: Nodes, count: int) -> Figures:
    """All of it ends."""
    run.begin_steps()
    began = time.perf_counter()
    run.first.ask(host.purge, DEEP)
    return {"seconds": time.perf_counter() - began} | run.steps()


def full(run: Nodes, count: int) -> Figures:
    """A store at its bound, of the smallest messages, is drained by acks until it takes puts."""
    put = run.first.ask(host.fill_up, DEEP, count)
    run.wait_in_sync(DEEP)
    began = time.perf_counter()
    drained = 0
    for _ in looks(WAIT_S, 0.0):
        drained += run.first.ask(host.take, DEEP, min(DRAIN_COUNT, put - drained))
        if drained >= FULL_SHARE * put:
            break
    run.first.ask(host.fill, DEEP, 1000)
    return {"put": put, "drained": drained, "seconds": time.perf_counter() - began}


LOAD_TEXT = "messages of 1 to 59 bytes, none of its neighbour's size: RssAnon of a node"
LEASE_TEXT = "all held by a client that is killed: another queue's slowest confirm"
FULL_TEXT = f"a store of {FULL_BYTES >> 20} MiB at its bound, drained by acks of 95 %"
ROWS = (
    Row("load", LOAD_TEXT, load, "MB", "150"),
    Row("beside", "put, get + ack, of the same on a nearly empty queue", beside, "%", "90"),
    Row("checkpoint", "one put, and a checkpoint: bytes that it writes", checkpoint, "KB", "100"),
    Row("lease", LEASE_TEXT, lease, "ms", "100"),
    Row("comeback", "a mirror comes back after 1,000 more messages", comeback, "s", ""),
    Row("join", "a wiped mirror joins", join, "s", ""),
    Row("loaded", "the same while as many are put", join_under_load, "s", ""),
    Row("restart", "all nodes killed: from the start until a message", restart, "s", "3"),
    Row("purge", "all of it purged", purge, "s", ""),
    Row("full", FULL_TEXT, full, "s", "drains"),
)
KEY = {"MB": "memory_mb", "KB": "kb", "%": "share", "ms": "slowest_ms", "s": "seconds"}
"""The figure that stands in the table, by its unit."""
