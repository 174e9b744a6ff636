"""Three nodes with rails in one process: `python rail_process.py WAY DIRECTORY`.

They are put into until the rails of both mirrors are at work; then it goes on as `WAYS` says. Each
put is confirmed, and its body is its number. What the process prints is how many there were.
"""

from __future__ import annotations

import operator
import os
import signal
import sys
import time
import zlib
from pathlib import Path

from mirrorq import Config, MirroredQueue, Node
from mirrorq.demo.ports import free_ports
from mirrorq.node.spawned import SpawnedNode
from mirrorq.security.settings import Security

NAMES = "abc"
RAIL = Config(star=True, rail=True, failure_ms=3000, lag_ms_max=3000)
WAIT_S = 60.0
FOUND_MAX = 1_000_000
LOG = "mirrorq.rail"


class Nodes:
    """Three, and a queue whose master is at the first; `spawn`: as processes beside this one."""

    def __init__(self, path: Path, keys: Path | None = None, *, spawn: bool = False) -> None:
        self.path = path
        ports = zip(NAMES, free_ports(3), strict=True)
        peers = {name: f"tcp://127.0.0.1:{port}" for name, port in ports}
        self.nodes: list[Node | SpawnedNode] = []
        for name in NAMES:
            security = None if keys is None else Security.load(keys, name)
            begin = Node.spawn if spawn else Node
            self.nodes.append(
                begin(name, path=path / name, peers=peers, config=RAIL, security=security)
            )
        for node in self.nodes:
            node.wait_ready(WAIT_S)
        first = self.nodes[0]
        self._host = first if isinstance(first, Node) else first.connect(timeout=WAIT_S)
        self.queue: MirroredQueue = self._host.queue("orders", timeout=WAIT_S)
        self.count = 0

    def put(self) -> None:
        self.queue.put(b"%d" % self.count).result(WAIT_S)
        self.count += 1

    def sums(self) -> list[int]:
        """Of the logs of the rails: one changes when its rail takes something."""
        return [zlib.crc32((self.path / name / LOG).read_bytes()) for name in NAMES]

    def put_until_used(self) -> None:
        """Put until the rails of both mirrors have taken something."""
        before = self.sums()
        end = time.monotonic() + 2 * WAIT_S
        while sum(map(operator.ne, before, self.sums())) < 2:
            assert time.monotonic() < end, "the rails take nothing"
            self.put()

    def found(self) -> list[bytes]:
        """What is there, in order."""
        return [message.body for message in self.queue.browse(count_max=FOUND_MAX)]

    def close(self) -> None:
        self._host.close()
        for node in self.nodes:
            if isinstance(node, Node):
                node.close()
            else:
                node.stop()


def leave(nodes: Nodes) -> None:
    """The interpreter ends, and nothing is closed."""


def close(nodes: Nodes) -> None:
    """All is closed while the rails have the queue."""
    nodes.close()


def fork(nodes: Nodes) -> None:
    """Children end in each of three ways while rails are at work, which go on."""
    for number in range(6):
        child = os.fork()
        if child == 0:
            if number % 3 == 0:
                sys.exit(0)
            if number % 3 == 1:
                os._exit(0)
            os.kill(os.getpid(), signal.SIGKILL)
        nodes.put()
        assert os.waitpid(child, 0)[1] == (signal.SIGKILL if number % 3 == 2 else 0)
    nodes.put_until_used()
    nodes.close()


def interrupt(nodes: Nodes) -> None:
    """Ctrl-C, which the thread that puts hears, and nobody catches in time to close."""
    try:
        os.kill(os.getpid(), signal.SIGINT)
        while True:
            nodes.put()
    except KeyboardInterrupt:
        return


WAYS = {"leave": leave, "close": close, "fork": fork, "interrupt": interrupt}


def main(way: str, path: str) -> None:
    nodes = Nodes(Path(path))
    for _ in range(3):
        nodes.put_until_used()
    WAYS[way](nodes)
    print(nodes.count)


if __name__ == "__main__":
    main(*sys.argv[1:])
