"""The processes of a run, seen from the parent: started, signalled, asked how they are."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from harness import TESTS

__all__ = ["Process", "uninterrupted"]

CLOSE_S = 20.0
"""close() of a node ends within 5 s on a machine that has time for it."""


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Ctrl-C waits until the end: a process that is just being started would belong to nobody."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    ending = (signal.SIGINT, signal.SIGTERM)
    before = {each: signal.signal(each, lambda number, _: came.append(number)) for each in ending}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
        for number in came:
            signal.raise_signal(number)


class Process:
    """A node or a worker. In a process group of its own: Ctrl-C reaches the parent alone.

    Args:
        settings: see `harness.chaos.process`.
        log: its log goes there.
        prefix: a command in front, such as `ip netns exec …`.
    """

    def __init__(
        self, settings: Mapping[str, Any], log: Path, prefix: tuple[str, ...] = ()
    ) -> None:
        self.name = str(settings["name"])
        self.roles = tuple(role["name"] for role in settings["roles"])
        self.seen: dict[str, Any] = {}
        """Its newest report."""
        self.is_stopped = False
        """By SIGSTOP."""
        path = os.pathsep.join(filter(None, (str(TESTS), os.environ.get("PYTHONPATH"))))
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                [
                    *prefix,
                    *(sys.executable, "-m", "harness.chaos.process"),
                    json.dumps(settings),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
                env={**os.environ, "PYTHONPATH": path},
            )
        self._heard_s = 0.0
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            # A process that is killed may leave half a line.
            with suppress(ValueError):
                self.seen = json.loads(line)
                self._heard_s = time.monotonic()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def seen_since(self, moment_s: float) -> dict[str, Any]:
        """Its newest report, {} when there is none since that moment (time.monotonic)."""
        return self.seen if self._heard_s >= moment_s else {}

    def tell(self, command: str) -> None:
        """Give it a command."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError, ValueError):
            self._process.stdin.write(command.encode() + b"\n")
            self._process.stdin.flush()

    def stop(self) -> None:
        """SIGSTOP."""
        self.is_stopped = True
        self._signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """SIGCONT."""
        self._signal(signal.SIGCONT)
        self.is_stopped = False

    def close(self) -> None:
        """Have it close its node, and wait for its end; kill it when that takes too long."""
        self.tell("close")
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(CLOSE_S)
        self.kill()

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        self._signal(signal.SIGKILL)
        self._process.wait()
        self._reader.join()
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            with suppress(BrokenPipeError):
                stream.close()

    def _signal(self, number: signal.Signals) -> None:
        if not self.has_ended:
            with suppress(ProcessLookupError):
                os.killpg(self.pid, number)
