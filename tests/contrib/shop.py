"""Nodes, and workers of a task framework, as processes, and what these have done."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from mirrorq.demo.ports import free_ports

HERE = Path(__file__).parent
DEADLINE_S = 90.0
"""After this something is taken never to come. No test waits for it when all is well."""
DRAMATIQ = ("dramatiq", "dramatiq_tasks", "--processes", "1", "--threads", "2")
CELERY = (
    *("celery", "-A", "shop_tasks", "worker", "-l", "INFO"),
    *("-P", "prefork", "-c", "2", "-n", "w{number}@here"),
)
DJANGO = ("django", "mirrorq_worker", "--settings", "django_settings")
TASKIQ = ("taskiq", "worker", "taskiq_tasks:broker", "--workers", "1")


# A node that stands still for a second, as on a busy machine, is not taken for dead.
NODE = """
import json, sys, mirrorq
name, path, peers = sys.argv[1:]
patient = mirrorq.Config(failure_ms=3000, lag_ms_max=3000, session_expiry_ms=3000)
with mirrorq.Node(name, path=path, peers=json.loads(peers), config=patient) as node:
    node.wait_ready(60)
    print("ready", flush=True)
    sys.stdin.read()
"""


class Nodes:
    """Three nodes, each a process that ends with the test."""

    def __init__(self, path: Path) -> None:
        ports = dict(zip("abc", free_ports(3), strict=True))
        self.peers = {name: f"tcp://127.0.0.1:{port}" for name, port in ports.items()}
        self.url = f"mirrorq://{','.join(f'127.0.0.1:{port}' for port in ports.values())}//"
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self._path = path
        for name in "abc":
            self.start(name)
        for process in self.processes.values():
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"

    def start(self, name: str) -> None:
        """Start a node, again too; it is not waited for."""
        self.processes[name] = subprocess.Popen(
            [sys.executable, "-c", NODE, name, str(self._path / name), json.dumps(self.peers)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def kill(self, name: str) -> None:
        """SIGKILL."""
        process = self.processes.pop(name)
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            pipe.close()

    def end(self) -> None:
        """Kill them all."""
        for name in list(self.processes):
            self.kill(name)


class Shop:
    """Workers, each a process group of its own, and the file in which their tasks stand."""

    def __init__(self, url: str, path: Path) -> None:
        self.url = url
        self.path = path
        self.log = path / "done.log"
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self, command: tuple[str, ...]) -> subprocess.Popen[bytes]:
        """Start a worker. What is published meanwhile waits for it."""
        number = len(self._processes)
        with (self.path / f"w{number}.log").open("wb") as out:
            process = subprocess.Popen(
                [sys.executable, "-m", *(word.format(number=number) for word in command)],
                cwd=HERE,
                env={
                    **os.environ,
                    "SHOP_BROKER": self.url,
                    "SHOP_LOG": str(self.log),
                    "SHOP_CACHE": str(self.path / "cache"),
                    "PYTHONPATH": os.pathsep.join(
                        [str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])]
                    ),
                },
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
        self._processes.append(process)
        return process

    def kill(self, worker: subprocess.Popen[bytes]) -> None:
        """SIGKILL, its children too."""
        os.killpg(worker.pid, signal.SIGKILL)
        worker.wait()

    def lines(self) -> list[str]:
        """What tasks have noted, in the order in which they were done."""
        return self.log.read_text().splitlines() if self.log.exists() else []

    def done(self) -> list[int]:
        """Numbers of tasks, in the order in which they were done."""
        return [int(line.split()[0]) for line in self.lines()]

    def end(self) -> None:
        """Kill what is left."""
        for worker in self._processes:
            try:
                self.kill(worker)
            except ProcessLookupError:
                worker.wait()
