"""Processes that the demo starts, and how it talks with them.

A child gets commands as JSON lines on its standard input and gives reports as JSON lines on
its standard output; its log goes to a file. When its standard input ends it ends too, so no
child outlives its parent, whatever the parent died of. Each is in a process group of its own:
Ctrl-C reaches the parent only, which then ends them in order.
"""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mirrorq.errors import MirrorQError

__all__ = ["Child", "Report"]

Report = Mapping[str, Any]
"""One line of a child: `is` says what it is; {"is": "ended"} when there are no more."""

_STOP_S = 10.0
"""A child that was asked to stop closes its node, which ends within 5 s."""
_LOG_LINES_MAX = 5


class Child:
    """One process: a peer or a worker.

    Args:
        settings: what the process is told at its start (see `mirrorq.demo.peer`).
        log: its standard error goes there.
        reports: gets (child, report) for each line, from a thread of the child's own.
    """

    def __init__(
        self,
        settings: Mapping[str, Any],
        log: Path,
        reports: queue.Queue[tuple[Child, Report]],
    ) -> None:
        self.name = str(settings["name"])
        self._settings = settings
        self._log = log
        self._reports = reports
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "mirrorq.demo.peer", json.dumps(settings)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
            )
        self._reader = threading.Thread(target=self._read, name=f"reports-{self.name}", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def command(self, do: str, **arguments: Any) -> None:
        """Tell the child to do something. One that has died does not hear it."""
        line = json.dumps({"do": do, **arguments}) + "\n"
        try:
            assert self._process.stdin is not None
            self._process.stdin.write(line.encode())
            self._process.stdin.flush()
        except (BrokenPipeError, ValueError):
            return

    def kill(self) -> None:
        """SIGKILL; return when the process is gone."""
        self._process.kill()
        self.end()

    def ask_to_stop(self) -> None:
        """End its input: it closes what it has and exits."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.close()
        except BrokenPipeError:
            return

    def end(self) -> int:
        """Stop the process, by force when it does not stop by itself; return its status."""
        self.ask_to_stop()
        try:
            self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
        status = self._process.wait()
        self._reader.join(_STOP_S)
        assert self._process.stdout is not None
        self._process.stdout.close()
        return status

    def failure(self) -> MirrorQError:
        """What to say of a child that has ended though nobody asked it to."""
        status = self._process.wait()
        lines = self._log.read_text(encoding="utf-8", errors="replace").splitlines()
        last = "\n".join(lines[-_LOG_LINES_MAX:])
        return MirrorQError(f"process {self.name} ended with status {status}: {last}")

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._reports.put((self, json.loads(line)))
        self._reports.put((self, {"is": "ended"}))
