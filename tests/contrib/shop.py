"""Workers of a task framework as processes, and what these have done."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
DEADLINE_S = 90.0
"""After this something is taken never to come. No test waits for it when all is well."""
DRAMATIQ = ("dramatiq", "dramatiq_tasks", "--processes", "1", "--threads", "2")
CELERY_WORKER = ("celery", "-A", "shop_tasks", "worker", "-l", "INFO", "-n", "w{number}@here")
CELERY = (*CELERY_WORKER, "-P", "prefork", "-c", "2")
DJANGO = ("django", "mirrorq_worker", "--settings", "django_settings")
TASKIQ = ("taskiq", "worker", "taskiq_tasks:broker", "--workers", "1")


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
