"""Processes that the demo starts, and their dialogue with the demo.

A child gets commands as JSON lines on its standard input and gives reports as JSON lines on its
standard output; its log goes to a file. A child ends at the end of its standard input, so no child
outlives its parent, whatever ended the parent. Each child is in a process group of its own: Ctrl-C
reaches only the parent, which then ends its children in order.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from mirrorq.errors import MirrorQError

Report = Mapping[str, Any]
"""One line of a child: `is` names the kind; {"is": "ended"} at the end."""

_STOP_S = 10.0
"""A child that was asked to stop closes its node, which ends within 5 s."""
_LOG_LINES_MAX = 5


class LineProcess(ABC):
    """A process that reads and writes lines of text; in a process group of its own.

    Args:
        name: of the process, for readers of its texts.
        command: command line of the process.
        log: file for its standard error.
        home: a folder, put in front of Python's import path.
    """

    def __init__(
        self, name: str, command: Sequence[str], log: Path, home: str | None = None
    ) -> None:
        self.name = name
        self.log = log
        others = os.environ.get("PYTHONPATH")
        path = os.pathsep.join(filter(None, (home, others)))
        with log.open("ab") as errors:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
                env=None if home is None else {**os.environ, "PYTHONPATH": path},
            )
        self._reader = threading.Thread(target=self._read, name=f"reports-{name}", daemon=True)
        self._reader.start()

    @abstractmethod
    def on_line(self, line: bytes) -> None:
        """Handle a line of the process; b"": the end. On a thread of the process' own."""

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.on_line(line)
        self.on_line(b"")

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def is_running(self) -> bool:
        return self.process.poll() is None

    def tell(self, line: str) -> None:
        """Send a line. A dead process ignores the line."""
        assert self.process.stdin is not None
        with suppress(BrokenPipeError, ValueError):
            self.process.stdin.write(line.encode() + b"\n")
            self.process.stdin.flush()

    def ask_to_stop(self) -> None:
        """Close the process's input: the process then closes its handles and exits."""
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):
            self.process.stdin.close()

    def signal(self, number: int) -> None:
        """Send a signal to the process and its children, if running."""
        if self.is_running:
            with suppress(ProcessLookupError):
                os.killpg(self.pid, number)

    def kill(self) -> None:
        """SIGKILL; return when the process is gone."""
        self.signal(signal.SIGKILL)
        self.end()

    def end(self) -> int:
        """Stop the process, by force if needed; return its status."""
        self.ask_to_stop()
        try:
            self.process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self.signal(signal.SIGKILL)
        status = self.process.wait()
        self._reader.join(_STOP_S)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return status


class Child(LineProcess):
    """One process of the demo: a peer or a worker.

    Args:
        settings: settings of the process (see `mirrorq.demo.peer`).
        log: file for its standard error.
        reports: gets (child, report) for each line, from a thread of the child's own.
    """

    def __init__(
        self,
        settings: Mapping[str, Any],
        log: Path,
        reports: queue.Queue[tuple[Child, Report]],
    ) -> None:
        self._reports = reports
        command = [sys.executable, "-m", "mirrorq.demo.peer", json.dumps(settings)]
        super().__init__(str(settings["name"]), command, log)

    def command(self, do: str, **arguments: Any) -> None:
        """Tell the child to do something."""
        self.tell(json.dumps({"do": do, **arguments}))

    def failure(self) -> MirrorQError:
        """Return the error of a child that has ended unasked."""
        status = self.process.wait()
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
        last = "\n".join(lines[-_LOG_LINES_MAX:])
        return MirrorQError(f"process {self.name} ended with status {status}: {last}")

    def on_line(self, line: bytes) -> None:
        self._reports.put((self, json.loads(line) if line else {"is": "ended"}))
