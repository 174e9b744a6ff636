"""What a client gets from a cluster of three, beside what the machine does without a queue.

    python benches/clients.py [--scale 1.0] [--path DIR] [--only put] [--clients 500] [--profile]

Three nodes on loopback, each a process of its own, and this process is a client of one that is not
the master. 100-byte messages, each fsynced on all three before it is confirmed. The ceiling
(benches/ceiling.py) is measured in the same run, before and after; every figure has its share of
it, because the machine may be doing other work. CPU time is per message, of the client (this
process), of its entry node and of the master: what a busy machine changes least; still less it
changes instructions in user space (0 where the machine does not count them).

With `--clients N` N connections of processes with 50 each put, take and ack at once. `--profile`
prints where the client's own thread spends its time.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import json
import os
import pstats
import queue
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import batches
import ceiling
from kernel import Instructions, cpu_s
from mirrorq import AckRefused, MirroredQueue, MirrorQError, aio, connect
from mirrorq.client.client import Client
from mirrorq.demo.children import Child
from mirrorq.demo.ports import free_ports

BODY = b"x" * 100
BATCH = 1_000
OUTCOME_S = 120.0
CROWD = 50
"""Clients of one process."""


class Figure:
    """One line of the result."""

    def __init__(self, name: str, count: int, work: Callable[[], None]) -> None:
        self.name, self.count = name, count
        self._work = work

    def measure(self, pids: list[int]) -> tuple[float, list[float], list[float]]:
        """(messages a second; of each of these processes a message: CPU microseconds, thousands of
        instructions in user space)"""
        with closing(Instructions(pids)) as counter:
            before, start = [cpu_s(pid) for pid in pids], time.perf_counter()
            self._work()
            seconds = time.perf_counter() - start
            used = [cpu_s(pid) - was for pid, was in zip(pids, before, strict=True)]
            done = [(each or 0) / self.count / 1_000 for each in counter.count()]
        return self.count / seconds, [each / self.count * 1e6 for each in used], done


def put_many(handle: MirroredQueue, count: int) -> None:
    batches.put_batches(handle, [BODY] * BATCH, count // BATCH, OUTCOME_S)


def put(handle: MirroredQueue, count: int) -> None:
    for _ in range(count):
        handle.put(BODY)
    handle.wait_for_confirms(OUTCOME_S)


def take_batches(handle: MirroredQueue, count: int) -> None:
    batches.take_batches(handle, count, BATCH, OUTCOME_S)


def take_by_callback(handle: MirroredQueue, count: int) -> None:
    done = threading.Event()
    left = [count]

    def take(message: Any) -> None:
        message.ack()
        left[0] -= 1
        if not left[0]:
            done.set()

    consumer = handle.consume(take, prefetch=2_000)
    if not done.wait(OUTCOME_S):
        raise TimeoutError(f"{left[0]} of {count} messages never came")
    consumer.cancel()


async def aio_put_many(endpoint: str, count: int) -> None:
    async with await aio.connect(endpoint) as client:
        handle = await client.queue("bench")
        bodies = [BODY] * BATCH
        for one in [await handle.send_many(bodies) for _ in range(count // BATCH)]:
            await one


async def aio_put(endpoint: str, count: int) -> None:
    async with await aio.connect(endpoint) as client:
        handle = await client.queue("bench")
        for _ in range(count):
            await handle.send(BODY)
        await handle.wait_for_confirms(OUTCOME_S)


async def aio_take(endpoint: str, count: int) -> None:
    async with await aio.connect(endpoint) as client:
        handle = await client.queue("bench")
        settlements = []
        for _ in range(count):
            settlements.append((await handle.get(timeout=OUTCOME_S)).ack())
        for settlement in settlements:
            await settlement


async def aio_take_batches(endpoint: str, count: int) -> None:
    async with await aio.connect(endpoint) as client:
        handle = await client.queue("bench")
        settlements = []
        while count > 0:
            messages = await handle.get_many(min(BATCH, count), timeout=OUTCOME_S)
            settlements.append(handle.ack_many(messages))
            count -= len(messages)
        for settlement in settlements:
            await settlement


def one_at_a_time(handle: MirroredQueue, count: int) -> list[float]:
    """Milliseconds from each put to its confirm, in order."""
    times = []
    for _ in range(count):
        start = time.perf_counter()
        handle.put(BODY).result(OUTCOME_S)
        times.append((time.perf_counter() - start) * 1_000)
    return sorted(times)


def many_clients(endpoints: list[str], count: int) -> list[float]:
    """So many connections, each puts one message and takes one: seconds that each waited."""
    command = [sys.executable, __file__, "--crowd", ",".join(endpoints), "--clients"]
    shares = [min(CROWD, count - first) for first in range(0, count, CROWD)]
    crowds = [
        subprocess.Popen([*command, str(share)], stdout=subprocess.PIPE, text=True)
        for share in shares
    ]
    waits: list[float] = []
    failures: Counter[str] = Counter()
    refused = 0
    for each in crowds:
        told = json.loads(each.communicate()[0] or "{}")
        waits += told.get("waits", [])
        refused += told.get("refused", 0)
        failures.update(told.get("failures", []))
    missing = count - len(waits)
    if missing:
        raise RuntimeError(f"{missing} of {count} clients were not served: {dict(failures)}")
    print(f"acks refused, after which a client took another message: {refused}")
    return sorted(waits)


def crowd(endpoints: list[str], count: int) -> None:
    """Connections of one process; prints what each waited."""
    clients: list[Client] = []
    waits: list[float] = []
    refused: list[int] = []
    failures: list[str] = []

    def work(client: Client) -> None:
        try:
            handle = client.queue("crowd", timeout=OUTCOME_S)
            start = time.perf_counter()
            handle.put(BODY).result(OUTCOME_S)
            while not is_acked(handle):
                refused.append(1)
            waits.append(time.perf_counter() - start)
        except MirrorQError as error:
            failures.append(type(error).__name__)

    try:
        for number in range(count):
            turned = endpoints[number % 3 :] + endpoints[: number % 3]
            clients.append(connect(turned, timeout=OUTCOME_S))
        threads = [threading.Thread(target=work, args=(client,)) for client in clients]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        for client in clients:
            client.close()
    print(json.dumps({"waits": waits, "refused": len(refused), "failures": failures}))


def is_acked(handle: MirroredQueue) -> bool:
    """Take one message and ack it. False: it had gone back, and another client has it."""
    try:
        handle.get(timeout=OUTCOME_S).ack().result(OUTCOME_S)
    except AckRefused:
        return False
    return True


def figures(endpoint: str, handle: MirroredQueue, scale: float) -> list[Figure]:
    many = max(1, int(600 * scale)) * BATCH
    single = max(1, int(150 * scale)) * BATCH
    return [
        Figure("put_many of 1,000", many, lambda: put_many(handle, many)),
        Figure("get_many + ack_many", many, lambda: take_batches(handle, many)),
        Figure("put", single, lambda: put(handle, single)),
        Figure("callback + ack", single, lambda: take_by_callback(handle, single)),
        Figure("aio put_many", many, lambda: asyncio.run(aio_put_many(endpoint, many))),
        Figure("aio get_many", many, lambda: asyncio.run(aio_take_batches(endpoint, many))),
        Figure("aio put", single, lambda: asyncio.run(aio_put(endpoint, single))),
        Figure("aio get + ack", single, lambda: asyncio.run(aio_take(endpoint, single))),
    ]


def profiled(client: Client) -> cProfile.Profile:
    """Profile the client's own thread from now on."""
    profile = cProfile.Profile()
    client._driver.call(profile.enable)
    return profile


def run(arguments: argparse.Namespace) -> None:
    with ExitStack() as stack:
        place = Path(
            stack.enter_context(
                tempfile.TemporaryDirectory(prefix="mirrorq-clients-", dir=arguments.path)
            )
        )
        peers = {
            name: f"tcp://127.0.0.1:{port}" for name, port in zip("abc", free_ports(3), strict=True)
        }
        reports: queue.Queue[Any] = queue.Queue()
        children = {}
        for name in peers:
            settings = {"name": name, "path": str(place / name), "peers": peers}
            children[name] = Child(settings, place / f"{name}.log", reports)
            stack.callback(children[name].end)
        with connect(peers["a"]) as first:
            first.wait_ready(60)
            first.queue("bench", timeout=60)
        client = stack.enter_context(connect(peers["b"]))
        handle = client.queue("bench")
        end = time.monotonic() + 60
        while len(handle.status().synchronised_mirrors) < 2:
            if time.monotonic() > end:
                raise TimeoutError("the mirrors are not in sync after 60 s")
            time.sleep(0.05)
        put_many(handle, 50 * BATCH)
        take_batches(handle, 50 * BATCH)
        before = ceiling.measure(arguments.path, seconds=1.5)
        profile = profiled(client) if arguments.profile else None
        pids = [os.getpid(), children["b"].pid, children["a"].pid]
        rows = []
        for figure in figures(peers["b"], handle, arguments.scale):
            if arguments.only in figure.name:
                rows.append((figure.name, *figure.measure(pids)))
        waits: list[float] = []
        count = max(20, int(1_000 * arguments.scale))
        single = Figure(
            "put, one at a time", count, lambda: waits.extend(one_at_a_time(handle, count))
        )
        rows.append((single.name, *single.measure(pids)))
        take_batches(handle, count)
        after = ceiling.measure(arguments.path, seconds=1.5)
        rate = statistics.mean((before.messages_per_second, after.messages_per_second))
        p50 = statistics.mean((before.latency_p50_ms, after.latency_p50_ms))
        print(
            f"{'':24} {'a second':>14} {'ceiling':>8}   CPU us: client  entry master"
            "   1,000 instructions"
        )
        for name, per_second, cpu, instructions in rows:
            used, done = (" ".join(f"{one:6.2f}" for one in each) for each in (cpu, instructions))
            print(f"{name:24} {per_second:12,.0f}/s {per_second / rate:8.1%} {used:>29}   {done}")
        middle = waits[len(waits) // 2]
        print(f"{'ceiling':24} {rate:12,.0f}/s")
        print(f"{'one put confirmed, p50':24} {middle:12.3f} ms {middle / p50:6.2f} x {p50:.3f}")
        if profile is not None:
            client._driver.call(profile.disable)
            time.sleep(0.5)
            pstats.Stats(profile).sort_stats("tottime").print_stats(25)
        if arguments.clients:
            found = many_clients(list(peers.values()), arguments.clients)
            print(
                f"{arguments.clients} clients: all served; put + get + ack p50 "
                f"{found[len(found) // 2]:.2f} s, longest {found[-1]:.2f} s"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--scale", type=float, default=1.0, help="times as many messages")
    parser.add_argument("--path", help="directory on the disk that counts")
    parser.add_argument("--only", default="", help="figures whose name has this in it")
    parser.add_argument("--clients", type=int, default=0, help="so many at once at the end")
    parser.add_argument("--crowd", default="", help=argparse.SUPPRESS)
    parser.add_argument("--profile", action="store_true", help="of the client's own thread")
    arguments = parser.parse_args()
    if arguments.crowd:
        crowd(arguments.crowd.split(","), arguments.clients)
    else:
        run(arguments)


if __name__ == "__main__":
    main()
