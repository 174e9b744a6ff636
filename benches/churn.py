"""Does the store stay as small as its queue? Put, get and ack at a constant depth.

    python benches/churn.py [--messages 1000000] [--depth 1000] [--batch 100] [--path DIR]

One process, fsynced. Prints the size of the store's file after each tenth: after the first it
should not grow any more. `make scale SCALE='--only churn'` does the same on three nodes, with
producers and queues that come and go, and looks at memory and instructions too.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from mirrorq import MirroredQueue

BODY = b"x" * 100
WAIT_S = 60.0


def store_bytes(path: Path) -> int:
    """Bytes that the store's files take on the disk."""
    return sum(file.stat().st_blocks * 512 for file in path.rglob("*") if file.is_file())


def turn_over(queue: MirroredQueue, messages: int, batch: int) -> None:
    """Put as many as are taken and acked."""
    for _ in range(messages // batch):
        queue.put_many([BODY] * batch)
        left = batch
        while left:
            taken = queue.get_many(left, timeout=WAIT_S)
            queue.ack_many(taken)
            left -= len(taken)
    queue.wait_for_confirms(WAIT_S)


def churn(path: Path, messages: int, depth: int, batch: int) -> list[int]:
    """Bytes of the store after each tenth."""
    sizes: list[int] = []
    with MirroredQueue("churn", path=path) as queue:
        queue.put_many([BODY] * depth).result(WAIT_S)
        for tenth in range(1, 11):
            turn_over(queue, messages // 10, batch)
            sizes.append(store_bytes(path))
            done = messages // 10 * tenth
            print(f"\r{done:,} messages, {sizes[-1]:,} bytes", end="", file=sys.stderr)
        assert queue.status().messages <= 2 * depth + batch, queue.status()
    print(file=sys.stderr)
    return sizes


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--depth", type=int, default=1000)
    parser.add_argument("--batch", type=int, default=100)
    parser.add_argument("--path", help="directory for the store")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="mirrorq-churn-", dir=given.path) as base:
        began = time.perf_counter()
        sizes = churn(Path(base), given.messages, given.depth, given.batch)
        took = time.perf_counter() - began
    print(f"{given.messages:,} cycles at a depth of {given.depth:,} in {took:.0f} s")
    print("store after each tenth: " + ", ".join(f"{size / 1e6:.1f}" for size in sizes) + " MB")
    print(f"end / first tenth: {sizes[-1] / sizes[0]:.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
