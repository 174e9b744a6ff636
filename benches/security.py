"""What CURVE costs: the same work through two clusters, with keys and without, in turn.

    python benches/security.py [--rounds 5] [--scale 1.0] [--path DIR]

Twice three nodes on loopback, each a process of its own, one cluster with keys and one without;
this process is a client of each. Every message is fsynced on all three before it is confirmed and
crosses four connections. A round does each piece of work once with either cluster, the first one
changing from round to round; quoted is the median of the rounds' ratios, because the machine may
be doing other work. Exit status 1 when more than 40 % of throughput is lost with small messages.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import batches
from mirrorq import MirroredQueue, Security, connect
from mirrorq.demo.ports import free_ports
from mirrorq.security.key_files import add_key, secret_path, write_secret
from mirrorq.security.roles import KEYS_NAME, Key, Role
from mirrorq.transport.curve import new_key_pair

BATCH = 1_000
OUTCOME_S = 120.0
LOSS_MAX = 0.4

Work = Callable[[MirroredQueue, int, int], None]


def put_many(handle: MirroredQueue, count: int, size: int) -> None:
    bodies = [b"x" * size] * min(BATCH, count)
    batches.put_batches(handle, bodies, count // len(bodies), OUTCOME_S)


def put(handle: MirroredQueue, count: int, size: int) -> None:
    body = b"x" * size
    for _ in range(count):
        handle.put(body)
    handle.wait_for_confirms(OUTCOME_S)


def take(handle: MirroredQueue, count: int, size: int) -> None:
    batches.take_batches(handle, count, BATCH, OUTCOME_S)


def make_keys(directory: Path) -> Path:
    """What `mirrorq key new` does, for three nodes and a client."""
    directory.mkdir()
    for name, role in (("a", "peer"), ("b", "peer"), ("c", "peer"), ("client", "admin")):
        public, secret = new_key_pair()
        write_secret(secret_path(directory, name), secret)
        add_key(directory / KEYS_NAME, Key(name, public, Role(role)))
    return directory


def cluster(stack: ExitStack, place: Path, keys: Path | None) -> MirroredQueue:
    """A handle on a replicated queue of three nodes, through one that is not the master."""
    names = "abc"
    peers = {
        name: f"tcp://127.0.0.1:{port}" for name, port in zip(names, free_ports(3), strict=True)
    }
    for name in names:
        command = [
            sys.executable,
            "-m",
            "mirrorq",
            "node",
            "run",
            name,
            "--path",
            str(place / name),
        ]
        for each, endpoint in peers.items():
            command += ["--peer", f"{each}={endpoint}"]
        if keys is not None:
            command += ["--keys", str(keys)]
        log = stack.enter_context((place / f"{name}.log").open("wb"))
        node = subprocess.Popen(command, stdout=log, stderr=log)
        stack.callback(node.wait)
        stack.callback(node.terminate)
    security = None if keys is None else Security.load(keys, "client")
    with connect(peers["a"], security=security, timeout=60) as first:
        first.wait_ready(60)
        first.queue("bench", timeout=60)
    client = stack.enter_context(connect(peers["b"], security=security, timeout=60))
    handle = client.queue("bench")
    end = time.monotonic() + 60
    while len(handle.status().synchronised_mirrors) < 2:
        if time.monotonic() > end:
            raise TimeoutError("the mirrors are not in sync after 60 s")
        time.sleep(0.05)
    put_many(handle, 20 * BATCH, 100)
    take(handle, 20 * BATCH, 100)
    return handle


def rate(handle: MirroredQueue, work: Work, count: int, size: int) -> float:
    start = time.perf_counter()
    work(handle, count, size)
    return count / (time.perf_counter() - start)


def run(arguments: argparse.Namespace) -> float:
    """Print the figures; return the greatest share lost with small messages."""
    scale = arguments.scale
    many, single, large = (max(1, int(each * scale)) * BATCH for each in (300, 60, 2))
    figures: list[tuple[str, Work, int, int]] = [
        ("put_many, 100 bytes", put_many, many, 100),
        ("get_many + ack, 100 bytes", take, many, 100),
        ("put, 100 bytes", put, single, 100),
        ("get_many + ack, 100 bytes ", take, single, 100),
        ("put_many, 10 KB", put_many, large * 10, 10_000),
        ("get_many + ack, 10 KB", take, large * 10, 10_000),
    ]
    with ExitStack() as stack:
        made = tempfile.TemporaryDirectory(prefix="mirrorq-security-", dir=arguments.path)
        place = Path(stack.enter_context(made))
        (place / "plain").mkdir()
        (place / "curve").mkdir()
        plain = cluster(stack, place / "plain", None)
        curve = cluster(stack, place / "curve", make_keys(place / "keys"))
        rates: dict[str, list[tuple[float, float]]] = {}
        for round_number in range(arguments.rounds):
            for name, work, count, size in figures:
                handles = [plain, curve] if round_number % 2 == 0 else [curve, plain]
                found = {id(handle): rate(handle, work, count, size) for handle in handles}
                rates.setdefault(name, []).append((found[id(plain)], found[id(curve)]))
    worst = 0.0
    print(f"{'':28}{'without keys':>14}{'with keys':>14}{'of it':>8}   rounds")
    for name, _, _, size in figures:
        pairs = rates[name]
        ratios = sorted(with_keys / without for without, with_keys in pairs)
        ratio = statistics.median(ratios)
        without, with_keys = (statistics.median(each) for each in zip(*pairs, strict=True))
        spread = f"{ratios[0]:.0%} to {ratios[-1]:.0%}"
        print(f"{name:28}{without:12,.0f}/s{with_keys:12,.0f}/s{ratio:8.0%}   {spread}")
        if size <= 100:
            worst = max(worst, 1 - ratio)
    return worst


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--scale", type=float, default=1.0, help="times as many messages")
    parser.add_argument("--path", help="directory on the disk that counts")
    worst = run(parser.parse_args())
    print(f"lost at most {worst:.0%} of throughput with 100-byte messages; the bound is 40 %")
    sys.exit(worst > LOSS_MAX)


if __name__ == "__main__":
    main()
