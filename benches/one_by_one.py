"""What a message costs that is put, or taken and acked, by a call of its own.

    python benches/one_by_one.py [--count 15000] [--rounds 3] [--path DIR]

One node, alone, in this process, and a handle on it; 100-byte messages. Printed are thousands of
instructions in user space a message, of all threads, which other work on the machine hardly
changes: the best round, and the worst.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
import threading
from collections.abc import Callable

from kernel import Instructions
from mirrorq import Message, MirroredQueue, aio

BODY = b"x" * 100
WAIT_S = 300.0


class Cost:
    """Instructions of this process, all threads, from when it is made until its end."""

    def __init__(self) -> None:
        self._counter = Instructions([os.getpid()])

    def end(self) -> int:
        (count,) = self._counter.count()
        self._counter.close()
        if count is None:
            raise OSError("this machine does not count instructions, or not for this user")
        return count


def put(handle: MirroredQueue, count: int) -> int:
    cost = Cost()
    for _ in range(count):
        handle.put(BODY)
    handle.wait_for_confirms(WAIT_S)
    count = cost.end()
    handle.purge()
    return count


def get(handle: MirroredQueue, count: int) -> int:
    handle.put_many([BODY] * count).result(WAIT_S)
    cost = Cost()
    for settlement in [handle.get(timeout=WAIT_S).ack() for _ in range(count)]:
        settlement.result(WAIT_S)
    return cost.end()


def callback(handle: MirroredQueue, count: int) -> int:
    handle.put_many([BODY] * count).result(WAIT_S)
    done = threading.Event()
    left = [count]

    def take(message: Message) -> None:
        message.ack()
        left[0] -= 1
        if not left[0]:
            done.set()

    cost = Cost()
    consumer = handle.consume(take, prefetch=2_000)
    if not done.wait(WAIT_S):
        raise TimeoutError(f"{left[0]} of {count} messages never came")
    consumer.cancel()
    return cost.end()


async def aio_get(handle: aio.MirroredQueue, count: int) -> int:
    await handle.put_many([BODY] * count)
    cost = Cost()
    settlements = [(await handle.get(timeout=WAIT_S)).ack() for _ in range(count)]
    for settlement in settlements:
        await settlement
    return cost.end()


async def aio_iterate(handle: aio.MirroredQueue, count: int) -> int:
    await handle.put_many([BODY] * count)
    cost = Cost()
    settlements = []
    async for message in handle:
        settlements.append(message.ack())
        if len(settlements) == count:
            break
    for settlement in settlements:
        await settlement
    return cost.end()


async def in_loop(path: str, count: int, rounds: int) -> dict[str, list[int]]:
    async with await aio.MirroredQueue.open("bench", path=path) as handle:
        return {
            "asyncio get + ack": [await aio_get(handle, count) for _ in range(rounds)],
            "async for + ack": [await aio_iterate(handle, count) for _ in range(rounds)],
        }


def in_threads(path: str, count: int, rounds: int) -> dict[str, list[int]]:
    works: dict[str, Callable[[MirroredQueue, int], int]] = {
        "put": put,
        "get + ack": get,
        "callback + ack": callback,
    }
    with MirroredQueue("bench", path=path) as handle:
        return {name: [work(handle, count) for _ in range(rounds)] for name, work in works.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--count", type=int, default=15_000, help="messages a round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--path", help="where the stores are made")
    arguments = parser.parse_args()
    count, rounds = arguments.count, arguments.rounds
    with tempfile.TemporaryDirectory(prefix="mirrorq-one-", dir=arguments.path) as place:
        found = in_threads(f"{place}/threads", count, rounds)
        found |= asyncio.run(in_loop(f"{place}/loop", count, rounds))
    print(f"{'1,000 instructions':20} {'best':>8} {'worst':>8}")
    for name, costs in found.items():
        best, worst = (each / count / 1_000 for each in (min(costs), max(costs)))
        print(f"{name:20} {best:8.1f} {worst:8.1f}")


if __name__ == "__main__":
    main()
