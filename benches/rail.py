"""One confirmed put with and without star and rail, in turn, beside what the machine can do.

    python benches/rail.py [--puts 300] [--rounds 5] [--path DIR] [--durability replicated]

Three clusters of three nodes, each node a process of its own, the producer in the master's: without
star and rail, with `Config.star` alone, and as they come. In each round each cluster takes
as many puts, each of 100 bytes and confirmed before the next. The ceiling is `benches/ceiling.py`:
three bare processes in a ring, one synced LMDB transaction a message.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import mirrorq
from ceiling import measure
from mirrorq.config import Config
from mirrorq.demo.ports import free_ports

BODY = b"x" * 100
WAIT_S = 60.0
WARM = 100
KINDS = {
    "neither": Config(star=False, rail=False),
    "star": Config(rail=False),
    "star and rail": Config(),
}


def cluster(
    stack: ExitStack, place: Path, config: Config, durability: str
) -> mirrorq.MirroredQueue:
    """Start one; return a handle at the queue's master, all mirrors in sync."""
    ports = free_ports(3)
    peers = {name: f"tcp://127.0.0.1:{port}" for name, port in zip("abc", ports, strict=True)}
    for name in "bc":
        stack.enter_context(mirrorq.Node.spawn(name, path=place / name, peers=peers, config=config))
    node = stack.enter_context(mirrorq.Node("a", path=place / "a", peers=peers, config=config))
    node.set_policy("bench", "", {"durability": durability}, timeout=WAIT_S)
    queue = stack.enter_context(node.queue("orders", timeout=WAIT_S))
    while set(queue.status().synchronised_mirrors) != {"b", "c"}:
        time.sleep(0.05)
    for _ in range(WARM):
        queue.put(BODY).result(WAIT_S)
    return queue


def times_ms(queue: mirrorq.MirroredQueue, count: int) -> list[float]:
    """How long each of so many confirmed puts took."""
    found = []
    for _ in range(count):
        begun = time.perf_counter()
        queue.put(BODY).result(WAIT_S)
        found.append((time.perf_counter() - begun) * 1000)
    queue.purge()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--puts", type=int, default=300, help="in each round, of each cluster")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--durability", choices=("fsync", "replicated"), default="fsync")
    parser.add_argument("--path", type=Path, help="directory on the disk that counts")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="mirrorq-rail-", dir=options.path) as place:
        found: dict[str, list[float]] = {kind: [] for kind in KINDS}
        with ExitStack() as stack:
            queues = {
                kind: cluster(stack, Path(place) / str(number), config, options.durability)
                for number, (kind, config) in enumerate(KINDS.items())
            }
            for _ in range(options.rounds):
                for kind, queue in queues.items():
                    found[kind] += times_ms(queue, options.puts)
        ceiling = measure(place)
    print(f"{'one confirmed put, ms':24}{'p50':>8}{'p99':>8}{'p50 / ceiling':>16}")
    print(f"{'ceiling':24}{ceiling.latency_p50_ms:8.2f}{ceiling.latency_p99_ms:8.2f}")
    for kind, times in found.items():
        cuts = statistics.quantiles(times, n=100, method="inclusive")
        ratio = cuts[49] / ceiling.latency_p50_ms
        print(f"{kind:24}{cuts[49]:8.2f}{cuts[98]:8.2f}{ratio:16.2f}")


if __name__ == "__main__":
    main()
