"""Nodes and clients of the tests, and waiting for what they come to."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.kit import until

from mirrorq.api.queue import MirroredQueue
from mirrorq.client.client import Client
from mirrorq.demo.ports import free_ports
from mirrorq.monitoring.status import QueueStatus

DEADLINE_S = 60.0
"""After this a condition is taken never to come. No test waits for it when all is well."""
HERE = Path(__file__).parent


def in_sync(queue: MirroredQueue) -> QueueStatus:
    """Its status with both mirrors in sync. That of a client knows nothing when its node does not
    answer within a second."""
    seen: list[QueueStatus] = []
    until(lambda: seen.append(queue.status()) or len(seen[-1].synchronised_mirrors) == 2)
    return seen[-1]


def is_empty(queue: MirroredQueue) -> bool:
    """Whether it is known that no message lives in it."""
    status = queue.status()
    return status.state == "running" and status.messages == 0


def free_endpoints(names: Sequence[str]) -> dict[str, str]:
    """An endpoint on loopback for each name, on ports that nobody has now."""
    ports = free_ports(len(names))
    return {name: f"tcp://127.0.0.1:{port}" for name, port in zip(names, ports, strict=True)}


class Script:
    """A Python script of this folder as a process; its end is the test's end."""

    def __init__(self, name: str, *given: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(HERE / name), *given],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def line(self) -> str:
        """The next line that it prints; "" when it has ended."""
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def kill(self) -> None:
        self.process.kill()
        self.end()

    def end(self) -> None:
        """End it by the end of its input, or kill it."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        if not self.process.stdin.closed:
            self.process.stdin.close()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()


class NodeProcesses:
    """A cluster of which each node is a process."""

    def __init__(self, path: Path, names: Sequence[str]) -> None:
        self.peers = free_endpoints(names)
        self.scripts = {
            name: Script("node_process.py", name, str(path / name), json.dumps(self.peers))
            for name in names
        }

    @property
    def endpoints(self) -> list[str]:
        return list(self.peers.values())

    def wait_ready(self) -> None:
        for script in self.scripts.values():
            assert script.line() == "ready\n"

    def kill(self, name: str) -> None:
        self.scripts.pop(name).kill()

    def kill_entry_of(self, client: Client) -> None:
        """Kill the node that serves a client, which may be on its way to another right now."""
        seen: list[str] = []
        until(lambda: seen.append(client.entry_node) or seen[-1] in self.scripts)
        self.kill(seen[-1])

    def end(self) -> None:
        for script in self.scripts.values():
            script.kill()
