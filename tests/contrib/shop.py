"""Workers of a task framework, as processes, and what they have done."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).parent
DEADLINE_S = 90.0
"""After this something is taken never to come. No test waits for it when all is well."""
DRAMATIQ = ("dramatiq", "dramatiq_tasks", "--processes", "1", "--threads", "2")
TASKIQ = ("taskiq", "worker", "taskiq_tasks:broker", "--workers", "1")


def until(condition: Callable[[], object], seconds: float = DEADLINE_S) -> None:
    """Look again and again until the condition holds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "never came"
        time.sleep(0.02)


class Shop:
    """Workers, each a process group of its own, and the file in which their tasks stand."""

    def __init__(self, url: str, path: Path) -> None:
        self.url = url
        self.path = path
        self.log = path / "done.log"
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self, command: tuple[str, ...]) -> subprocess.Popen[bytes]:
        """Start a worker. What is published meanwhile waits for it."""
        with (self.path / f"w{len(self._processes)}.log").open("wb") as out:
            process = subprocess.Popen(
                [sys.executable, "-m", *command],
                cwd=HERE,
                env={**os.environ, "SHOP_BROKER": self.url, "SHOP_LOG": str(self.log)},
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

    def done(self) -> list[int]:
        """Numbers of tasks, in the order in which they were done."""
        return [int(line) for line in self.log.read_text().split()] if self.log.exists() else []

    def end(self) -> None:
        """Kill what is left."""
        for worker in self._processes:
            try:
                self.kill(worker)
            except ProcessLookupError:
                worker.wait()
