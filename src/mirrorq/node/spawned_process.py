"""The process that `Node.spawn` starts: one node, until its parent closes the pipe or ends.

Standard input is the pipe, its first line the node's arguments. Standard output is for lines of
JSON only (other prints go to standard error). A thread of its own writes the node's log there: a
parent that does not read delays no commit.
"""

from __future__ import annotations

import json
import logging
import os
import queue
import select
import sys
import threading
from pathlib import Path
from typing import Any

from mirrorq.errors import MirrorQError

LOOK_S = 1.0
"""Delay in seconds for the notice of a failed node, or of a parent whose pipe a fork holds."""
LINES_MAX = 10_000
"""Limit on log lines that wait for the parent; more lines are dropped, and counted."""
LAST_S = 5.0
"""At the end the parent gets so many seconds to read the lines."""
SOCKET_NAME = "node.sock"


class Parent:
    """The pipe to the parent process. `say` may be called from any thread."""

    def __init__(self) -> None:
        self._pid = os.getppid()
        self._output = os.fdopen(os.dup(1), "w", encoding="utf-8")
        os.dup2(2, 1)
        self._lines: queue.Queue[str | None] = queue.Queue(LINES_MAX)
        self._dropped = 0
        self._thread = threading.Thread(target=self._write, name="mirrorq-parent", daemon=True)
        self._thread.start()

    def say(self, **words: Any) -> None:
        try:
            self._lines.put_nowait(json.dumps(words))
        except queue.Full:
            self._dropped += 1

    def _write(self) -> None:
        try:
            while (line := self._lines.get()) is not None:
                self._output.write(line + "\n")
                if self._dropped:
                    text = f"{self._dropped} lines of this log were not read in time and dropped"
                    self._dropped = 0
                    words = {"level": logging.WARNING, "text": text}
                    self._output.write(json.dumps(words) + "\n")
                self._output.flush()
        except OSError:
            pass  # The parent has stopped reading.

    def is_gone(self) -> bool:
        """Return true if the parent ended or closed the pipe. Waits up to LOOK_S.

        The pipe alone is not enough: a process that the parent has forked may hold it too.
        """
        readable, _, _ = select.select([0], [], [], LOOK_S)
        return bool(readable) or os.getppid() != self._pid

    def end(self) -> None:
        try:
            self._lines.put(None, timeout=LAST_S)
        except queue.Full:
            return
        self._thread.join(LAST_S)


class ToParent(logging.Handler):
    """A log handler that sends each line to the parent, on the thread that writes the line."""

    def __init__(self, parent: Parent) -> None:
        super().__init__()
        self._parent = parent
        self.setFormatter(logging.Formatter("%(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        self._parent.say(level=record.levelno, text=self.format(record))


def _node_arguments(given: dict[str, Any]) -> dict[str, Any]:
    from mirrorq.config import Config
    from mirrorq.security.roles import Key
    from mirrorq.security.settings import Security

    given = dict(given)
    if given["config"] is not None:
        given["config"] = Config(**given["config"])
    secrets = given["security"]
    if secrets is not None:
        if "path" in secrets:
            given["security"] = Security.load(secrets["path"])
        else:
            keys = [Key(**words) for words in secrets["keys"]]
            given["security"] = Security(secrets["secret_key"], keys)
    return given


def _run(parent: Parent, given: dict[str, Any]) -> None:
    from mirrorq.node.collector import rare_full_collections
    from mirrorq.node.node import Node

    arguments = _node_arguments(given)
    node = Node(**arguments)
    if not node.listening:
        # No endpoint was given, and the store knows of none.
        node.close()
        arguments["listen"] = f"ipc://{Path(arguments['path']) / SOCKET_NAME}"
        node = Node(**arguments)
    with node, rare_full_collections():
        parent.say(endpoint=node.endpoint, listening=node.listening)
        while not parent.is_gone():
            if node.is_closed:
                raise MirrorQError(f"node {node.name} has stopped: its log says why")


def main() -> int:
    """Run the node; the status is 0 when the parent ended it, 1 when the node cannot run."""
    line = sys.stdin.buffer.readline()
    parent = Parent()
    if not line:
        return 0
    mirrorq_log = logging.getLogger("mirrorq")
    mirrorq_log.setLevel(logging.INFO)
    mirrorq_log.addHandler(ToParent(parent))
    try:
        _run(parent, json.loads(line))
    except MirrorQError as error:
        parent.say(error=type(error).__name__, text=str(error))
        return 1
    finally:
        parent.end()
    return 0


if __name__ == "__main__":
    sys.exit(main())
