"""What is compared: a peer that can be started, and its session, which publishes and takes."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Literal, NamedTuple, Protocol

OUTCOME_S = 120.0
"""What takes longer is a failure, not a figure."""
IN_FLIGHT = 10_000
IN_FLIGHT_BYTES = 32 << 20
"""At most so much is unconfirmed at once, the same for every peer."""
BATCH_COUNT = 1_000
BATCH_BYTES = 1 << 17
"""What is put at once where there are batches, as a service that collects some work does."""
START_S = 90.0
"""RabbitMQ needs some 20 s for three nodes on two busy cores."""


class Absent(Exception):
    """The peer cannot be measured here; the text says why, and what would help."""


class Session(Protocol):
    """A running peer, with one queue. One thread uses it."""

    def publish(self, body: bytes, count: int, in_flight: int) -> None:
        """Put `count` messages, at most about `in_flight` of them unconfirmed; return when all
        are confirmed."""

    def take(self, count: int) -> None:
        """Get and acknowledge as many, in the way that is quickest here."""


class Bare(Protocol):
    """What is no queue, and measures itself."""

    def measure(self, size: int, seconds: float) -> tuple[float, float, float]:
        """(messages a second, p50 and p99 of one message at a time in ms)"""


class Peer(NamedTuple):
    """One row of the table."""

    name: str
    kind: Literal["bound", "replicated", "embedded"]
    durability: str
    """What a confirm means here, in a few words."""
    start: Callable[[Path], AbstractContextManager[Session | Bare]]
    """Start it with its data in this directory; raises `Absent`. Leaves no process behind."""


def in_flight_of(size: int) -> int:
    """Messages of this size that are unconfirmed at once."""
    return max(1, min(IN_FLIGHT, IN_FLIGHT_BYTES // size))


def batch_of(size: int) -> int:
    """Messages of this size in one batch."""
    return max(1, min(BATCH_COUNT, BATCH_BYTES // size))


def module_needed(module: str, package: str) -> None:
    """Raise `Absent` where a Python package is not installed."""
    if importlib.util.find_spec(module) is None:
        raise Absent(f"the package {package} is not installed: pip install {package}")


def program(name: str, package: str, *more: str) -> str:
    """The path of a server's program; raises `Absent` where there is none."""
    for each in (*more, shutil.which(name) or ""):
        if each and os.access(each, os.X_OK):
            return each
    raise Absent(f"{name} is not on the PATH: apt-get install {package}")


@contextmanager
def server(
    command: list[str], log: Path, environment: dict[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a server in a process group of its own until the block ends."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=None if environment is None else os.environ | environment,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        _end(process)


def end_servers_on_sigterm() -> None:
    """SIGTERM, as of `timeout`, ends this process as Ctrl-C does: with its servers."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended before it was done"))


def _end(process: subprocess.Popen[bytes]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            break
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            continue
    process.wait()


def wait_for_port(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    """Return when somebody listens; raise `Absent` with the log's end when the server ends."""
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise Absent(f"the server ended with {process.returncode}: {tail_of(log)}")
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            time.sleep(0.1)
    raise Absent(f"nobody listens on port {port} after {START_S:.0f} s: {tail_of(log)}")


def tail_of(log: Path) -> str:
    """The last lines of a log, in one."""
    lines = log.read_text(encoding="utf-8", errors="replace").split("\n")
    return " | ".join(line.strip() for line in lines[-6:] if line.strip()) or "no output"
