"""Spools beside a standalone node: puts a second, then what a cluster that comes back is sent.

    python benches/spool.py --messages 1000000
    python benches/spool.py --targets 1000

100-byte messages, one process, in turn: `put` and `put_many` of 1,000 into a standalone node and
into a spool (to accepted, no cluster there), five times each: medians. Then a node comes, and is
sent all that was spooled while new puts come. Each spooled message is then read, and is there once
and in order.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import mirrorq
from mirrorq.config import Config
from mirrorq.spool.queue import SpooledQueue
from mirrorq.spool.spool import Spool

BODY = b"x" * 92
MANY = 1000
ROUNDS = 5
SHARE_S = 20.0
"""Over which the time of the processor is measured."""


def body(number: int) -> bytes:
    """100 bytes that say which message it is."""
    return b"%08d" % number + BODY


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--messages", type=int, default=200_000)
    parser.add_argument("--targets", type=int, default=0, help="only the cost of so many targets")
    parser.add_argument("--path", type=Path, help="directory on the disk that counts")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.path) as place:
        if options.targets:
            cost(Path(place), options.targets)
        else:
            measure(Path(place), options.messages)


def cost(place: Path, count: int) -> None:
    """What a spool of many targets costs while the cluster is away, opened and opened again."""
    files, threads = len(os.listdir("/proc/self/fd")), threading.active_count()
    for name in ("filled", "opened again"):
        with mirrorq.connect("tcp://127.0.0.1:9", spool=place) as client:
            begun = time.perf_counter()
            if name == "filled":
                puts = [client.queue(f"q{number}").put(BODY) for number in range(count)]
                for put in puts:
                    put.accepted()
            print(f"{name}: {time.perf_counter() - begun:.1f} s", flush=True)
            for _ in range(6):
                used = time.process_time()
                time.sleep(SHARE_S)
                print(
                    f"{threading.active_count() - threads} threads, "
                    f"{len(os.listdir('/proc/self/fd')) - files} files, "
                    f"{(time.process_time() - used) / SHARE_S:.2%} of a core",
                    flush=True,
                )


def measure(place: Path, count: int) -> None:
    """Take and print all figures."""
    nodes: list[mirrorq.Node] = []

    def host() -> mirrorq.Node:
        if not nodes:
            raise mirrorq.NoQuorum("no cluster yet")
        return nodes[0]

    config = Config(spool_bytes_max=64 << 30)
    spool = Spool(place / "spool", config, host)
    route = spool.route("orders", durable=True, auto_delete=False)
    orders = SpooledQueue(spool, route, lambda _: host().queue("orders"))
    with mirrorq.Node("alone", path=place / "alone") as alone:
        alone_one, one, alone_many, many = accepting(alone.queue("orders"), orders, count // ROUNDS)
    print(f"{'':24}{'put':>12}{'put_many':>12} messages/s")
    print(f"{'standalone, confirmed':24}{alone_one:12,.0f}{alone_many:12,.0f}")
    print(f"{'spool, accepted':24}{one:12,.0f}{many:12,.0f}")
    print(f"{'share':24}{one / alone_one:12.0%}{many / alone_many:12.0%}")
    begun = time.perf_counter()
    nodes.append(mirrorq.Node("n", path=place / "n"))
    new = 0
    while orders.status().messages > new:
        orders.put(body(99_000_000 + new)).accepted()
        new += 1
    orders.wait_for_confirms()
    took = time.perf_counter() - begun
    sent = 2 * count // ROUNDS * ROUNDS
    print(f"sent on: {sent:,} in {took:.1f} s, {sent / took:,.0f} a second; {new:,} new meanwhile")
    check(nodes[0].queue("orders"), count, new)
    spool.close()
    nodes[0].close()


def accepting(
    queue: mirrorq.MirroredQueue, orders: SpooledQueue, count: int
) -> tuple[float, float, float, float]:
    """Rates of `put` into a node and a spool, and of `put_many`."""
    found: list[list[float]] = [[], [], [], []]
    for turn in range(ROUNDS):
        names = range(turn * count, (turn + 1) * count)
        bodies = [body(n) for n in names]
        many = [bodies[i : i + MANY] for i in range(0, count, MANY)]
        for into, work in zip(
            found,
            (
                lambda: [queue.put(one) for one in bodies][-1].result(),  # noqa: B023
                lambda: [orders.put(one) for one in bodies][-1].accepted(),  # noqa: B023
                lambda: [queue.put_many(one) for one in many][-1].result(),  # noqa: B023
                lambda: [orders.put_many(one) for one in many][-1].accepted(),  # noqa: B023
            ),
            strict=True,
        ):
            into.append(rate(count, work))
    one, spooled, many_rate, spooled_many = map(statistics.median, found)
    return one, spooled, many_rate, spooled_many


def check(queue: mirrorq.MirroredQueue, count: int, new: int) -> None:
    """All are there, once, in the order in which they were put."""
    part = count // ROUNDS
    spooled = [n for turn in range(ROUNDS) for n in 2 * [*range(turn * part, (turn + 1) * part)]]
    wanted = [*spooled, *range(99_000_000, 99_000_000 + new)]
    found: list[int] = []
    while len(found) < len(wanted):
        messages = queue.get_many(10_000, timeout=10)
        found += [int(message.body[:8]) for message in messages]
        queue.ack_many(messages)
    assert found == wanted, "lost, doubled, or out of order"
    assert queue.empty()
    print("each is there once, in order")


def rate(count: int, work: Callable[[], object]) -> float:
    """Messages a second."""
    begun = time.perf_counter()
    work()
    return count / (time.perf_counter() - begun)


if __name__ == "__main__":
    main()
