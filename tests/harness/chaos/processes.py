"""The processes of a run, seen from the parent: started, signalled, asked how they are."""

from __future__ import annotations

import json
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
from mirrorq.demo.children import LineProcess

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


class Process(LineProcess):
    """A node or a worker. In a process group of its own: Ctrl-C reaches the parent alone.

    Args:
        settings: see `harness.chaos.process`.
        log: its log goes there.
        prefix: a command in front, such as `ip netns exec …`.
    """

    def __init__(
        self, settings: Mapping[str, Any], log: Path, prefix: tuple[str, ...] = ()
    ) -> None:
        self.roles = tuple(role["name"] for role in settings["roles"])
        self.seen: dict[str, Any] = {}
        """Its newest report."""
        self.is_stopped = False
        """By SIGSTOP."""
        self._heard_s = 0.0
        command = [*prefix, sys.executable, "-m", "harness.chaos.process", json.dumps(settings)]
        super().__init__(str(settings["name"]), command, log, str(TESTS))

    def on_line(self, line: bytes) -> None:
        # A process that is killed may leave half a line.
        with suppress(ValueError):
            self.seen = json.loads(line)
            self._heard_s = time.monotonic()

    def seen_since(self, moment_s: float) -> dict[str, Any]:
        """Its newest report, {} when there is none since that moment (time.monotonic)."""
        return self.seen if self._heard_s >= moment_s else {}

    def stop(self) -> None:
        """SIGSTOP."""
        self.is_stopped = True
        self.signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """SIGCONT."""
        self.signal(signal.SIGCONT)
        self.is_stopped = False

    def close(self) -> None:
        """Have it close its node, and wait for its end; kill it when that takes too long."""
        self.tell("close")
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(CLOSE_S)
        self.kill()
