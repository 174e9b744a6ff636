"""What a confirm costs under `durability: fsync` and under `replicated`: one put at a time.

    python benches/durability.py [--puts 2000] [--rounds 5] [--size 1024] [--path DIR]

Three nodes on loopback, each a process of its own; this one is the master and the producer. The
policy is changed to and fro, so that both take turns on the same queue and the same minute. Each
put waits for its confirm. Printed: quantiles of all rounds of each.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

from failover import HERE, SYNC_S, Peers
from mirrorq import MirroredQueue, Node


def wait_until(condition: object, seconds: float = SYNC_S) -> None:
    assert callable(condition)
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"not so within {seconds} s")
        time.sleep(0.01)


def is_whole(queue: MirroredQueue, durability: str) -> bool:
    """Whether both mirrors are in sync, and the change of the policy is complete."""
    status = queue.status()
    words = "".join(status.warnings)
    is_replicated = "durability replicated" in words
    is_changing = "durability is changing" in words
    asked = durability == "replicated"
    return len(status.synchronised_mirrors) == 2 and is_replicated == asked and not is_changing


def puts(queue: MirroredQueue, count: int, size: int) -> list[float]:
    """Milliseconds from each put to its confirm."""
    body = bytes(size)
    times = []
    for _ in range(count):
        start = time.perf_counter()
        queue.put(body).result(60)
        times.append((time.perf_counter() - start) * 1000)
    return times


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--puts", type=int, default=2000, help="of each kind in each round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--size", type=int, default=1024, help="bytes of a body")
    parser.add_argument("--path", help="directory for the stores")
    arguments = parser.parse_args()
    base = tempfile.mkdtemp(prefix="mirrorq-durability-", dir=arguments.path)
    peers = Peers(base, 3)
    found: dict[str, list[float]] = {"fsync": [], "replicated": []}
    try:
        with Node(HERE, path=Path(base) / HERE, peers=peers.endpoints) as node:
            queue = node.queue("orders")
            for _ in range(arguments.rounds):
                for durability, times in found.items():
                    node.set_policy("p", "", {"durability": durability})
                    wait_until(lambda asked=durability: is_whole(queue, asked))
                    times += puts(queue, arguments.puts, arguments.size)
                    queue.purge()
    finally:
        peers.end()
        shutil.rmtree(base, ignore_errors=True)
    for durability, times in found.items():
        cuts = statistics.quantiles(times, n=100, method="inclusive")
        print(
            f"{durability:10} {len(times)} puts: p50 {cuts[49]:.2f} ms, p90 {cuts[89]:.2f} ms, "
            f"p99 {cuts[98]:.2f} ms"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
