"""A node in a process of its own whose steps are timed, and what it is asked to do."""

from __future__ import annotations

import gc
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from compare.peer import OUTCOME_S, START_S
from mirrorq import Full, MirroredQueue, Node, bulk, connect

BATCH_COUNT = 4096
IN_FLIGHT = 32
"""Batches on their way."""
SIZE_MAX = 59
FULL_S = 5.0
"""A store is full when a put waits for so long."""
STEP_MS_LEAST = 0.5
"""Shorter steps are counted and not kept."""


class Steps:
    """How long the node thread was busy between two looks at its sockets. Other threads and other
    processes take their share of that; of its CPU time it is known which part took how much."""

    def __init__(self, node: Node) -> None:
        driver: Any = node._driver
        self._poll, self._round = driver._poll, driver._round
        driver._poll, driver._round = self._polled, self._stepped
        self._parts: Counter[str] = Counter()
        for part, owner, name in (
            ("engine", driver.engine, "step"),
            ("commit", driver, "_commit_all"),
            ("ports", driver, "_step_ports"),
            ("send", driver, "_send"),
            ("read", driver, "_read_next"),
            ("watch", driver.watch, "look"),
        ):
            setattr(owner, name, self._counted(part, getattr(owner, name)))
        self._thread = 0
        gc.callbacks.append(self._collecting)
        self.begin()

    def _collecting(self, phase: str, _: dict[str, int]) -> None:
        """Python's garbage collector, which runs in whichever thread has made something."""
        if threading.get_ident() == self._thread:
            sign = -1 if phase == "start" else 1
            self._parts["gc"] += sign * 1000 * time.thread_time()

    def _counted(self, part: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any) -> Any:
            began = time.thread_time()
            try:
                return real(*args)
            finally:
                self._parts[part] += 1000 * (time.thread_time() - began)

        return counted

    def begin(self) -> None:
        """Forget what was."""
        self.count = 0
        self._long: list[float] = []
        self._long_cpu: list[float] = []
        self._longest: Counter[str] = Counter()
        """Parts of the step that took the most CPU time."""
        self._cpu_max = 0.0
        self._began = self._began_cpu = 0.0

    def _polled(self) -> int:
        now_ms: int = self._poll()
        self._parts.clear()
        self._thread = threading.get_ident()
        self._began, self._began_cpu = time.perf_counter(), time.thread_time()
        return now_ms

    def _stepped(self) -> None:
        self._round()
        if not self._began:
            return
        took = (time.perf_counter() - self._began) * 1000
        cpu = (time.thread_time() - self._began_cpu) * 1000
        if cpu > self._cpu_max:
            self._cpu_max, self._longest = cpu, self._parts.copy()
        self.count += 1
        if took >= STEP_MS_LEAST:
            self._long.append(took)
        if cpu >= STEP_MS_LEAST:
            self._long_cpu.append(cpu)

    def figures(self) -> dict[str, float]:
        """Of all steps since `begin`: 999 of 1,000 took no longer than this; the longest; and what
        took the CPU time of that which took the most."""
        return {
            "step_p999_ms": self._p999(self._long),
            "step_max_ms": max(self._long, default=STEP_MS_LEAST),
            "step_cpu_p999_ms": self._p999(self._long_cpu),
            "step_cpu_max_ms": self._cpu_max,
            **{f"step_cpu_max_{part}_ms": took for part, took in self._longest.items()},
        }

    def _p999(self, long: list[float]) -> float:
        known, behind = sorted(long), self.count // 1000
        return known[-1 - behind] if behind < len(known) else STEP_MS_LEAST


class Host:
    """A node of three, and its handles."""

    def __init__(self, name: str, path: str, peers: dict[str, str], config: dict[str, Any]) -> None:
        began = time.perf_counter()
        self._node = Node(name, path=path, peers=peers, **config)
        self.steps = Steps(self._node)
        self._handles: dict[str, MirroredQueue] = {}
        self.held: dict[str, Any] = {}
        self.started_s = time.perf_counter() - began

    def close(self) -> None:
        self._node.close()

    def handle(self, name: str) -> MirroredQueue:
        if name not in self._handles:
            self._handles[name] = self._node.queue(name, timeout=START_S)
        return self._handles[name]


def begin_steps(host: Host) -> None:
    host.steps.begin()


def steps(host: Host) -> dict[str, float]:
    return host.steps.figures()


def bodies(count: int) -> list[bytes]:
    """So many of 1 to 59 bytes, none of its neighbour's size."""
    return [b"x" * (1 + number * 31 % SIZE_MAX) for number in range(count)]


def fill(host: Host, name: str, count: int) -> None:
    """Put so many messages of sizes that differ, and wait until all are confirmed."""
    handle, batch = host.handle(name), bodies(BATCH_COUNT)
    pending: queue.SimpleQueue[Any] = queue.SimpleQueue()
    for first in range(0, count, BATCH_COUNT):
        if pending.qsize() >= IN_FLIGHT:
            pending.get().result(OUTCOME_S)
        pending.put(handle.put_many(batch[: min(BATCH_COUNT, count - first)]))
    while not pending.empty():
        pending.get().result(OUTCOME_S)


def take(host: Host, name: str, count: int) -> int:
    """Get and ack so many; return how many it were."""
    handle, done = host.handle(name), 0
    pending: queue.SimpleQueue[Any] = queue.SimpleQueue()
    while done < count:
        messages = handle.get_many(min(BATCH_COUNT, count - done), timeout=OUTCOME_S)
        if not messages:
            raise TimeoutError(f"{count - done} messages did not come within {OUTCOME_S:.0f} s")
        pending.put(handle.ack_many(messages))
        done += len(messages)
        if pending.qsize() >= IN_FLIGHT:
            pending.get().result(OUTCOME_S)
    while not pending.empty():
        pending.get().result(OUTCOME_S)
    return done


def hold(host: Host, name: str) -> None:
    """Take a message and keep it."""
    host.held[name] = host.handle(name).get(timeout=OUTCOME_S)


def let_go(host: Host, name: str) -> None:
    host.held.pop(name).ack().result(OUTCOME_S)


def wait_for_checkpoint(host: Host, timeout_s: float) -> int:
    """Until all of the deepest queue is on the disk: bytes of the last checkpoint."""
    node: Any = host._node
    replicas = node._driver.engine.replicas.values()
    deepest = max(replicas, key=lambda replica: replica.state.live.count)
    writes = deepest._writes
    for _ in looks(timeout_s):
        if not writes._ops_since and not writes._is_making:
            break
    return int(writes._checkpoints.size)


def purge(host: Host, name: str) -> int:
    return host.handle(name).purge()


def fill_up(host: Host, name: str, count_max: int) -> int:
    """Put messages of 0 and 1 bytes until the store takes no more, or so many; return how many."""
    handle = host.handle(name)
    batch = [b"x" * (number % 2) for number in range(BATCH_COUNT)]
    pending: queue.SimpleQueue[Any] = queue.SimpleQueue()
    put = 0
    while put < count_max:
        if pending.qsize() >= IN_FLIGHT:
            try:
                pending.get().result(FULL_S)
            except TimeoutError:
                break
            put += BATCH_COUNT
        try:
            # Its handle's window may be full before so many batches are under way.
            pending.put(handle.put_many(batch, timeout=FULL_S))
        except Full:
            break
    return put


def status(host: Host, name: str) -> tuple[int, int, int]:
    """(live, ready, unacknowledged) messages, as this node's master knows them."""
    found = host.handle(name).status()
    return found.messages, found.messages_ready, found.messages_unacknowledged


def mirrors_in_sync(host: Host, name: str) -> int:
    return len(host.handle(name).status().synchronised_mirrors)


class Holder:
    """A client that leases messages, and never gives them back."""

    def __init__(self, endpoint: str) -> None:
        self._client = connect(endpoint, timeout=START_S)

    def close(self) -> None:
        self._client.close()

    def lease(self, name: str, count: int, timeout_s: float) -> int:
        self._lease = bulk.lease(
            self._client.queue(name, timeout=START_S), count, "bench", timeout_s
        )
        return self._lease.count


def lease(holder: Holder, name: str, count: int, timeout_s: float) -> int:
    return holder.lease(name, count, timeout_s)


class Prober:
    """Puts one message after the other into another queue, and knows the slowest confirm."""

    def __init__(self, handle: MirroredQueue) -> None:
        self._handle = handle
        self._is_over = threading.Event()
        self.slowest_ms = 0.0
        self.count = 0
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        while not self._is_over.is_set():
            began = time.perf_counter()
            self._handle.put(b"x").result(OUTCOME_S)
            self.slowest_ms = max(self.slowest_ms, (time.perf_counter() - began) * 1000)
            self.count += 1

    def __enter__(self) -> Prober:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()


def looks(seconds: float, pause_s: float = 0.2) -> Iterator[None]:
    """Look again and again for so long; then it is an error."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        yield
        time.sleep(pause_s)
    raise TimeoutError(f"not so after {seconds:.0f} s")
