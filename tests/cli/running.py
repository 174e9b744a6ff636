"""Running the command as a user does."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

Run = Callable[..., subprocess.CompletedProcess[bytes]]
COMMAND = [sys.executable, "-m", "mirrorq"]
COMMAND_S = 60


def run_alone(*arguments: str, given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """The command without a cluster."""
    return subprocess.run(
        [*COMMAND, *arguments], input=given, capture_output=True, timeout=COMMAND_S
    )


def start_node(path: Path, endpoint: str) -> subprocess.Popen[bytes]:
    """A node of its own process, once it says that it runs."""
    arguments = ["node", "a", "--path", str(path / "store"), "--peer", f"a={endpoint}"]
    with (path / "log").open("wb") as log:
        node = subprocess.Popen([*COMMAND, *arguments], stdout=subprocess.PIPE, stderr=log)
    assert node.stdout is not None
    line = node.stdout.readline()
    assert line == f"node a runs on {endpoint}\n".encode(), (path / "log").read_text()
    return node
