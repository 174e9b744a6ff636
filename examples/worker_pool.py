"""A pool of workers on one queue: fair shares, retries, and nothing done half.

Four consumers, each on a thread of its own, take numbers and square them. One of them fails
now and then: what it held goes back to its place and is given out again, with its delivery
count raised. python examples/worker_pool.py ./data
"""

from __future__ import annotations

import sys
import threading

import mirrorq

WORKERS = 4
NUMBERS = 200
WAIT_S = 60.0


class Pool:
    """Squares numbers until all are done."""

    def __init__(self, queue: mirrorq.MirroredQueue) -> None:
        self.squares: dict[int, int] = {}
        self.failures = 0
        self._lock = threading.Lock()
        self._is_done = threading.Event()
        self._consumers = [queue.consume(self.work, prefetch=8) for _ in range(WORKERS)]

    def work(self, message: mirrorq.Message) -> None:
        """Do one number. A return acks the message; an exception gives it back."""
        number = int(message.body)
        if number % 50 == 0 and message.delivery_count == 1:
            with self._lock:
                self.failures += 1
            raise RuntimeError(f"no luck with {number}, again later")
        with self._lock:
            self.squares[number] = number * number
            if len(self.squares) == NUMBERS:
                self._is_done.set()

    def wait(self) -> None:
        """Wait until every number is done, then let the workers go."""
        self._is_done.wait(WAIT_S)
        for consumer in self._consumers:
            consumer.cancel()


def main(path: str) -> None:
    """Put the numbers in, let the pool work, print the sum."""
    with mirrorq.MirroredQueue("numbers", path=path) as queue:
        queue.put_many([b"%d" % number for number in range(NUMBERS)]).result(timeout=WAIT_S)
        pool = Pool(queue)
        pool.wait()
        print(f"numbers done: {len(pool.squares)}")
        print(f"failed once and done later: {pool.failures}")
        print(f"sum of squares: {sum(pool.squares.values())}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "./data")
