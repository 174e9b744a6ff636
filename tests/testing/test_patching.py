"""Code under test that knows nothing of the simulation: its sleeps, threads, locks, futures and
event loops are the simulation's, and decided by the seed."""

from __future__ import annotations

import asyncio
import queue as queues
import signal
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import pairwise

import pytest

import mirrorq
from mirrorq import aio
from mirrorq.testing import SimulatedCluster, SimulationError, simulate


class Service:
    """As people write them: threads, an event that ends them, and a queue between them."""

    def __init__(self, orders: mirrorq.MirroredQueue) -> None:
        self.done: list[tuple[float, bytes]] = []
        self._orders = orders
        self._between: queues.Queue[mirrorq.Message] = queues.Queue(maxsize=2)
        self._stop = threading.Event()
        self._lock = threading.RLock()
        self._threads = [threading.Thread(target=self._fetch), threading.Thread(target=self._work)]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()
        assert not any(thread.is_alive() for thread in self._threads)

    def _fetch(self) -> None:
        while not self._stop.is_set():
            try:
                self._between.put(self._orders.get(timeout=1))
            except mirrorq.errors.Empty:
                time.sleep(0.5)

    def _work(self) -> None:
        while not self._stop.is_set():
            try:
                message = self._between.get(timeout=2)
            except queues.Empty:
                continue
            with self._lock, self._lock:
                time.sleep(0.25)
                self.done.append((time.monotonic(), message.body))
            message.ack()


def served(seed: int) -> list[tuple[float, bytes]]:
    """What a service has done, and when, in half an hour of virtual time."""
    with SimulatedCluster(1, seed=seed) as cluster:
        orders = cluster.queue("orders", on="a")
        service = Service(orders)
        service.start()
        orders.put_many([b"%d" % number for number in range(20)]).result(10)
        cluster.run(100)
        service.stop()
        return service.done


def test_a_service_with_threads_of_its_own() -> None:
    """All is done, each piece of work takes the time that it sleeps, and twice the same."""
    done = served(1)
    assert [body for _, body in done] == [b"%d" % number for number in range(20)]
    assert all(later - sooner >= 0.25 for (sooner, _), (later, _) in pairwise(done))
    assert served(1) == done


def test_locks_and_joins_take_what_real_ones_take() -> None:
    with SimulatedCluster(1):
        lock = threading.Lock()
        assert weakref.ref(lock)() is lock
        for arguments in ((False, 5), (True, -2)):
            with pytest.raises(ValueError, match="timeout"):
                lock.acquire(*arguments)
        assert lock.acquire(False)
        assert not lock.acquire(True, 0)
        thread = threading.Thread(target=time.sleep, args=(5,))
        thread.start()
        thread.join(-1)
        assert thread.is_alive()
        thread.join()


def test_futures_of_a_pool() -> None:
    """Workers of an executor are tasks; waiting for a future takes virtual time."""
    with SimulatedCluster(1) as cluster:
        began = time.monotonic()

        def work(number: int) -> int:
            time.sleep(10)
            return number * number

        with ThreadPoolExecutor(2) as pool:
            assert list(pool.map(work, range(4))) == [0, 1, 4, 9]
        assert 20 <= time.monotonic() - began < 21
        assert cluster.now == time.monotonic()


def test_what_a_thread_of_the_code_raises_is_raised() -> None:
    """Python would print it, and go on."""

    def fail() -> None:
        raise ValueError("a bug")

    with SimulatedCluster(1) as cluster:
        threading.Thread(target=fail, name="mine").start()
        with pytest.raises(ValueError, match="a bug"):
            cluster.run(1)


def test_asyncio_runs_on_virtual_time() -> None:
    """`asyncio.run` in a task: sleeps, time-outs and `mirrorq.aio`, through a crash."""
    with SimulatedCluster(seed=3) as cluster:

        async def main() -> list[bytes]:
            node = aio.Node(cluster.node("b"))
            orders = await node.queue("orders")
            began = asyncio.get_running_loop().time()
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(orders.get(), 30)
            assert asyncio.get_running_loop().time() - began >= 30
            confirmations = [await orders.send(b"%d" % number) for number in range(5)]
            await asyncio.gather(*confirmations)
            await asyncio.sleep(60)
            found = []
            async for message in orders:
                found.append(message.body)
                message.ack()
                if len(found) == 5:
                    return found
            return found

        task = cluster.spawn(lambda: asyncio.run(main()))
        cluster.run(10)
        cluster.crash("a")
        assert task.result(200) == [b"0", b"1", b"2", b"3", b"4"]


def test_a_loop_takes_handlers_of_signals() -> None:
    """Services stop on SIGTERM: no signal comes in virtual time."""

    async def main() -> tuple[bool, bool]:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, loop.stop)
        return loop.remove_signal_handler(signal.SIGTERM), loop.remove_signal_handler(1)

    with SimulatedCluster(1) as cluster:
        task = cluster.spawn(lambda: asyncio.run(main()))
        assert task.result(10) == (True, False)


def test_a_simple_queue_may_be_a_base_class() -> None:
    """A subclass waits in virtual time, and the name takes a type as Python's does."""
    with SimulatedCluster(1) as cluster:

        class Box(queues.SimpleQueue[int]):
            def both(self) -> tuple[int, int]:
                return self.get(timeout=50), self.get(timeout=50)

        box = Box()
        task = cluster.spawn(box.both)
        cluster.run(20)
        box.put(1)
        cluster.run(20)
        box.put(2)
        assert task.result(10) == (1, 2)


def test_a_simple_queue_may_have_arguments() -> None:
    with SimulatedCluster(1):

        class Named(queues.SimpleQueue[int]):
            def __init__(self, name: str, *, size: int) -> None:
                super().__init__()
                self.name, self.size = name, size

        assert Named("box", size=3).name == "box"


def test_nothing_is_left_in_its_place() -> None:
    """Python's names are as they were when the cluster is left."""
    before = (time.sleep, time.time, threading.Lock, threading.Thread.start, queues.SimpleQueue)
    with SimulatedCluster(1):
        assert time.sleep is not before[0]
    after = (time.sleep, time.time, threading.Lock, threading.Thread.start, queues.SimpleQueue)
    assert after == before


def test_simulate_names_the_seed_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error has the seed and the log; with it in the environment only that one is run."""
    seen: list[int] = []

    @simulate(seeds=range(3, 9), nodes=1)
    def check(cluster: SimulatedCluster, most: int) -> None:
        seen.append(cluster.seed)
        assert cluster.seed < most

    with pytest.raises(AssertionError) as raised:
        check(most=5)  # type: ignore[call-arg]
    assert seen == [3, 4, 5]
    note = raised.value.__notes__[-1]
    assert "seed 5" in note
    assert "MIRRORQ_SEED=5" in note
    assert "start a" in note
    monkeypatch.setenv("MIRRORQ_SEED", "8")
    with pytest.raises(AssertionError):
        check(most=5)  # type: ignore[call-arg]
    assert seen == [3, 4, 5, 8]


@simulate(seeds=3)
def test_simulate_beside_fixtures(cluster: SimulatedCluster, tmp_path: object) -> None:
    """pytest gives what is left of the arguments."""
    assert tmp_path is not None
    assert cluster.running == ("a", "b", "c")


@simulate(seeds=2)
def test_trouble_loses_nothing_that_was_confirmed(cluster: SimulatedCluster) -> None:
    """Faults of every kind, one after the other, while one puts and another takes."""
    confirmed: list[bytes] = []
    got: list[bytes] = []
    cluster.queue("orders", on="a")

    def put() -> None:
        until = cluster.now + 40
        while cluster.now < until:
            with suppress(mirrorq.errors.MirrorQError, TimeoutError, SimulationError):
                orders = cluster.queue("orders", on=cluster.running[-1], timeout=5)
                while cluster.now < until:
                    body = b"%d" % len(confirmed)
                    orders.put(body).result(timeout=20)
                    confirmed.append(body)
                    time.sleep(0.1)
            time.sleep(0.5)

    putting = cluster.spawn(put)

    def get() -> None:
        while not putting.is_done or set(confirmed) - set(got):
            with suppress(mirrorq.errors.MirrorQError, TimeoutError, SimulationError):
                orders = cluster.queue("orders", on=cluster.running[0], timeout=5)
                while True:
                    message = orders.get(timeout=5)
                    message.ack().result(timeout=20)
                    got.append(message.body)
            time.sleep(0.5)

    cluster.trouble(40, every=4)
    getting = cluster.spawn(get)
    putting.result(200)
    getting.result(300)
    assert len(confirmed) > 20
    assert set(confirmed) <= set(got)
