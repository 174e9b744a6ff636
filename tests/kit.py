"""What tests with real processes and threads share."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest

from mirrorq import Config, MirroredQueue, Node
from mirrorq.demo.ports import free_ports

Value = TypeVar("Value")

DEADLINE_S = 60.0
"""After this a condition is taken never to come. No test waits for it when all is well."""
PATIENT: dict[str, Any] = {"failure_ms": 3000, "lag_ms_max": 3000, "session_expiry_ms": 3000}
"""Settings of nodes that stand still for a moment, as on a busy machine, and are not taken for
gone."""


def until(look: Callable[[], Value], what: object = "", seconds: float = DEADLINE_S) -> Value:
    """Look again and again until there is something true; return it.

    Args:
        what: is said when it never comes; may be a function that is called then.
    """
    end = time.monotonic() + seconds
    while not (value := look()):
        if time.monotonic() >= end:
            raise AssertionError(f"never came: {what() if callable(what) else what}")
        time.sleep(0.01)
    return value


def is_empty(queue: MirroredQueue) -> bool:
    """Whether it is known that no message lives in it. (The status of a client whose node does not
    answer in time knows nothing.)"""
    status = queue.status()
    return status.state == "running" and status.messages == 0


def free_endpoint() -> str:
    """An endpoint on loopback, on a port that nobody has now."""
    return f"tcp://127.0.0.1:{free_ports(1)[0]}"


def peers_of(names: Iterable[str]) -> dict[str, str]:
    """An endpoint on loopback for each name, on ports that nobody has now."""
    names = tuple(names)
    return {
        name: f"tcp://127.0.0.1:{port}"
        for name, port in zip(names, free_ports(len(names)), strict=True)
    }


def start_process(
    ending: ExitStack, command: str | list[str], **options: Any
) -> subprocess.Popen[str]:
    """Start a process whose output is read as text through a pipe; `ending` kills it."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, **options)
    assert process.stdout is not None
    ending.callback(process.stdout.close)
    ending.callback(process.wait, DEADLINE_S)
    ending.callback(process.kill)
    return process


@contextmanager
def nodes(
    path: Path, names: Iterable[str] = "abc", config: Config | None = None
) -> Iterator[dict[str, Node]]:
    """Nodes of one cluster in this process, by their names; patient ones unless a test says more.
    Closed at the end."""
    config = config or Config(**PATIENT)
    peers = peers_of(names)
    with ExitStack() as stack:
        made = {
            name: stack.enter_context(Node(name, path=path / name, peers=peers, config=config))
            for name in peers
        }
        for node in made.values():
            node.wait_ready(DEADLINE_S)
        yield made


def mount_tmpfs(ending: ExitStack, path: Path, size: int) -> Path:
    """Mount a file system in memory at a new directory; `ending` unmounts it.

    Skips the test where this user may not mount.
    """
    path.mkdir()
    if os.geteuid() != 0 or not _mount(path, f"size={size}"):
        pytest.skip("needs the right to mount a tmpfs")
    ending.callback(subprocess.run, ["umount", "--lazy", str(path)], check=True)
    return path


def resize_tmpfs(path: Path, size: int) -> None:
    """Give a mounted file system another size in bytes."""
    assert _mount(path, f"remount,size={size}")


def _mount(path: Path, options: str) -> bool:
    command = ["mount", "-t", "tmpfs", "-o", options, "mirrorq-test", str(path)]
    return subprocess.run(command, capture_output=True).returncode == 0
