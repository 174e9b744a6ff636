"""Running the command as a user does."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

Run = Callable[..., subprocess.CompletedProcess[bytes]]
COMMAND = [sys.executable, "-m", "mirrorq"]
COMMAND_S = 60


def run_alone(*arguments: str, given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """The command without a cluster."""
    return subprocess.run(
        [*COMMAND, *arguments], input=given, capture_output=True, timeout=COMMAND_S
    )


class Started(subprocess.Popen[bytes]):
    """A process that does not outlive a `with` that fails, which would wait for its end."""

    def __exit__(self, kind: type[BaseException] | None, *error: Any) -> None:
        if kind is not None:
            self.kill()
        super().__exit__(kind, *error)


def start_node(path: Path, endpoint: str) -> Started:
    """A node of its own process, once it says that it runs."""
    arguments = ["node", "run", "a", "--path", str(path / "store"), "--peer", f"a={endpoint}"]
    with (path / "log").open("wb") as log:
        node = Started([*COMMAND, *arguments], stdout=subprocess.PIPE, stderr=log)
    assert node.stdout is not None
    line = node.stdout.readline()
    if line != f"node a runs on {endpoint}\n".encode():
        node.kill()
        node.communicate()
        raise AssertionError((path / "log").read_text())
    return node
