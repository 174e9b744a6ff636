"""The process of a local node (`mirrorq.local`): without a parent, and ended when unused.

Its standard input is one line, the node's arguments. On its standard output it writes one line: the
node runs, or why not. Both are closed then, and the log goes to `node.log`.
"""

from __future__ import annotations

import faulthandler
import json
import logging
import os
import signal
import sys
import time
from logging.handlers import RotatingFileHandler
from typing import Any

from mirrorq import clock
from mirrorq.cluster.catalog.proposals import recorded_endpoints
from mirrorq.config import Config
from mirrorq.errors import ConfigError, MirrorQError, StoreLocked
from mirrorq.node.collector import rare_full_collections
from mirrorq.node.endpoints import NodeEndpoints
from mirrorq.node.local import FAILED, IDLE, STOPPED, LocalFolder
from mirrorq.node.node import Node
from mirrorq.waiting import Latch

log = logging.getLogger("mirrorq")

LOOK_S = 1.0
"""Interval in seconds at which the process looks for users of the node."""
LOCK_LOOK_S = 0.05
"""Interval in seconds at which a waiting process tries the store's lock."""
LOG_BYTES_MAX = 1 << 20
"""A longer log continues in a new file; the old file is kept as `node.log.1`."""


def main() -> int:
    """Run the node; the status is 0 unless it has failed."""
    if os.fork():
        os._exit(0)  # The starter does not wait for the node, which must have no parent.
    told = Latch()
    signal.signal(signal.SIGTERM, lambda _number, _frame: told.set())
    given = json.loads(sys.stdin.buffer.readline())
    try:
        node, place = _begun(given)
    except MirrorQError as error:
        _say(error=type(error).__name__, text=str(error))
        return 1
    return _serve(node, place, told)


def _say(**words: Any) -> None:
    """Report once to the starting process, if it still lives."""
    try:
        os.write(1, json.dumps(words).encode() + b"\n")
    except OSError:
        return


def _begun(given: dict[str, Any]) -> tuple[Node, LocalFolder]:
    """Return the node, which has the store's lock.

    Raises:
        StoreLocked: another process has the lock, and either listens here, or keeps the lock.
        MirrorQError: as of `Node`.
    """
    place = LocalFolder.of(given["path"])
    config = None if given["config"] is None else Config(**given["config"])
    deadline_ms = clock.now_ms() + int(given["lock_s"] * 1000)
    while True:
        try:
            node = _LocalNode(given["name"], path=place.path, config=config, listen=place.endpoint)
            return node, place
        except StoreLocked:
            if place.is_listening() or clock.now_ms() >= deadline_ms:
                raise
            time.sleep(LOCK_LOOK_S)


class _LocalNode(Node):
    """A node that is alone in its cluster."""

    def _listen(self, endpoints: NodeEndpoints) -> None:
        others = sorted({*recorded_endpoints(self._store.raft_image())} - {self.name})
        if others:
            raise ConfigError(
                f"store {self.path} is part of a cluster with {', '.join(others)}: run it as "
                "`mirrorq node run`, and connect"
            )
        super()._listen(endpoints)


def _serve(node: Node, place: LocalFolder, told: Latch) -> int:
    """Serve until a signal, a failure, or the end of the linger."""
    _log_to(place)
    place.tell()
    _say(pid=os.getpid())
    _let_go(place)
    log.info("process %d runs node %s", os.getpid(), node.name)
    with rare_full_collections():
        ended = _wait(node, place, told)
    # First, so that remaining clients know if they should start the node again.
    place.tell(ended)
    log.info("process %d ends node %s: %s", os.getpid(), node.name, ended)
    node.close()
    return int(ended == FAILED)


def _wait(node: Node, place: LocalFolder, told: Latch) -> str:
    """Wait for the end and return its kind: one of the words of `local`."""
    while not told.wait(LOOK_S):
        if node.is_closed:
            return FAILED
        if _unused_s(node) > place.linger_s():
            return IDLE
    return STOPPED


def _unused_s(node: Node) -> float:
    """Return the seconds for which the node has had no client."""
    entry = node._driver.gateway
    assert entry is not None, "it listens"
    if entry.client_count:
        return 0.0
    # Read second: it is set before the count of clients falls.
    return (clock.now_ms() - entry.left_ms) / 1000


def _log_to(place: LocalFolder) -> None:
    """Send the log into the node's folder from now on: the process has the store's lock."""
    handler = RotatingFileHandler(place.log_path, maxBytes=LOG_BYTES_MAX, backupCount=1)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    log.setLevel(logging.INFO)
    log.addHandler(handler)


def _let_go(place: LocalFolder) -> None:
    """Keep no file of the starting process open: its terminal, its pipes. Tracebacks go into the
    log's file."""
    nothing = os.open(os.devnull, os.O_RDWR)
    errors = os.open(place.log_path, os.O_WRONLY | os.O_APPEND)
    for old, new in ((nothing, 0), (nothing, 1), (errors, 2)):
        os.dup2(old, new)
    os.close(nothing)
    os.close(errors)
    faulthandler.enable()


if __name__ == "__main__":
    sys.exit(main())
