"""`Node.spawn`: a node as a process of its own, which the parent process keeps alive.

The node does not share the interpreter with the application: no computation of the application
delays the node, and the application's forks do not concern it. Users of its queues connect to the
node, from the parent process or any other.

Both sides hold a pipe. The parent writes one line, the node's arguments, and keeps the pipe open.
The end of the pipe is the end of the parent, and the node closes. The node answers with lines of
JSON: it runs, why it cannot, and its log.

*Threads*: one thread of the parent starts the process, reads its lines and starts it again. Every
method may be called from any thread. A forked child has a copy that may ask and connect, and ends
nothing.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import IO, TYPE_CHECKING, Any, Unpack
from weakref import WeakSet

import attrs

from mirrorq import clock, errors
from mirrorq.api.arguments import (
    check_config,
    check_text,
    checked_path,
    deadline_of,
    left_until,
)
from mirrorq.api.exit_flush import flush_all
from mirrorq.api.options import NodeOptions, said_of_node, spelled_out
from mirrorq.errors import MirrorQError, ShutDown, StoreLocked
from mirrorq.node.endpoints import NodeEndpoints
from mirrorq.node.own_process import launched
from mirrorq.transport.endpoint import absolute
from mirrorq.waiting import Latch, begin_thread

if TYPE_CHECKING:
    from mirrorq.client.client import Client
    from mirrorq.security.settings import Security

log = logging.getLogger("mirrorq")

STOP_S = 10.0
"""A stopping node hands its masters over and closes its store within half of the time."""
START_S = 60.0
"""spawn() waits no longer for the first report of the process, in seconds."""
PAUSE_MIN_S = 0.1
PAUSE_MAX_S = 5.0
"""Longest pause before a dead node is started again. The pause doubles each time."""
STEADY_S = 30.0
"""A node that has run for so long is started again at once after its death, in seconds."""

_spawned: WeakSet[SpawnedNode] = WeakSet()


@spelled_out
def spawn(
    name: str,
    *,
    path: str | os.PathLike[str],
    python: str | None = None,
    **options: Unpack[NodeOptions],
) -> SpawnedNode:
    """Run a node as a process of its own, and keep it running until `stop` or the caller's end.

    Args:
        name, path, peers, config, witness, security, insecure, join, dashboard: as for `Node`.
        listen: as for `Node`. None where no peers are named and the store knows of none: a socket
            file in `path`, which only processes of the same user reach.
        python: the interpreter of the node; None: the interpreter of the caller.

    Returns:
        A handle, when the node runs and listens; `wait_ready` waits for a majority.

    A node that dies is started again with the same arguments, after a pause that grows from 0.1 to
    5 s. Its log goes to the caller's logger `mirrorq`, its standard error to the caller's.

    Raises:
        ConfigError, StoreError: as for `Node`; a store that an earlier node is still closing is
            waited for.
        MirrorQError: the process could not be started.
    """
    given = said_of_node(options)
    security, insecure = given["security"], given["insecure"]
    check_config(given["config"])
    if given["dashboard"] is not None:
        check_text("dashboard", given["dashboard"])
    endpoints = NodeEndpoints(
        name, given["peers"], given["listen"], given["join"], insecure=insecure, security=security
    )
    given |= {
        "name": name,
        "path": os.path.abspath(checked_path(path)),
        "peers": {one: absolute(at) for one, at in endpoints.peers.items()} or None,
        "config": None if given["config"] is None else attrs.asdict(given["config"]),
        "security": None if security is None else _secrets(security),
        "join": list(map(absolute, endpoints.joins)) or None,
        "listen": absolute(given["listen"]) if given["listen"] else None,
    }
    made = SpawnedNode(name, json.loads(json.dumps(given)), security, python or sys.executable)
    made._start()
    return made


def _secrets(security: Security) -> dict[str, Any]:
    """Return the keys for the pipe: never on a command line, which other users may read."""
    if security.path:
        return {"path": security.path}
    keys = [{**attrs.asdict(key), "role": key.role.value} for key in security.keys]
    return {"secret_key": security.secret_key, "keys": keys}


class SpawnedNode:
    """A node in a process of its own. Made by `Node.spawn`.

    Attributes:
        name: name of the node.
        endpoint: endpoint of the node, the same after each restart.
        restarts: number of restarts.
        error: why the last start failed, "" after a successful start.

    *Threads*: every method may be called from any thread.
    """

    def __init__(
        self, name: str, given: dict[str, Any], security: Security | None, python: str
    ) -> None:
        self.name: str = name
        """Name of the node in the cluster."""
        self.endpoint: str = ""
        """Endpoint at which clients reach the node."""
        self.restarts: int = 0
        """Number of restarts after a death."""
        self.error: str = ""
        """Why the node ended last; "" while it runs."""
        self._given = given
        self._security = security
        self._python = python
        self._owner_pid = os.getpid()
        self._lock = threading.RLock()
        self._process: subprocess.Popen[bytes] | None = None
        self._stopping = Latch()
        self._ended = Latch()
        """Set when the handle's thread has ended."""
        self._first = Latch()
        """Set when the first start has an outcome: an endpoint, or `_refusal`."""
        self._refusal: MirrorQError | None = None
        self._runs = False
        self._thread = threading.Thread(
            target=self._run_thread, name=f"mirrorq-spawned-{name}", daemon=True
        )
        _spawned.add(self)

    def __enter__(self) -> SpawnedNode:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"<SpawnedNode {self.name} at {self.endpoint}, process {self.pid}>"

    @property
    def pid(self) -> int | None:
        """Process id of the node; None while there is no process."""
        process = self._process
        return process.pid if process is not None and self._runs else None

    def connect(self, **how: Any) -> Client:
        """Return a client of the node, as `mirrorq.connect` does, with the node's own keys unless
        `security=` names others. Also in a forked child."""
        from mirrorq.client.client import connect

        given = {"security": self._security, "insecure": self._given["insecure"], **how}
        client: Client = connect(self.endpoint, **given)
        return client

    def wait_ready(self, timeout: float | None = None) -> None:
        """Wait until the node runs and has contact with a majority.

        Raises:
            NoQuorum: the node was not ready within `timeout` seconds.
            ShutDown: the node has been stopped.
        """
        if self._stopping.is_set():
            raise ShutDown(f"node {self.name} was stopped")
        until = deadline_of(timeout)
        with self.connect(timeout=timeout) as client:
            client.wait_ready(left_until(until))

    def stop(self, timeout: float = STOP_S) -> None:
        """Have the node hand its masters over and close its store; kill a slow node.

        May be repeated. In a forked child it does nothing: the node is the parent's.

        Raises nothing.

        Args:
            timeout: seconds; then the node is killed, which loses no confirmed message.
        """
        if os.getpid() != self._owner_pid:
            return
        self._stopping.set()
        with self._lock:
            _end_input(self._process)
        process = self._process
        if not self._ended.wait(timeout) and process is not None:
            log.warning(
                "node %s (process %s) did not end within %s s: it is killed",
                self.name,
                process.pid,
                timeout,
            )
            process.kill()
            self._ended.wait()

    # --- The thread that keeps it -------------------------------------------------------

    def _start(self) -> None:
        begin_thread(self._thread)
        if not self._first.wait(START_S):
            self._refusal = MirrorQError(
                f"node {self.name} said nothing within {START_S} s: its standard error says why"
            )
        if self._refusal is not None:
            self.stop(1.0)
            raise self._refusal

    def _run_thread(self) -> None:
        try:
            self._keep()
        finally:
            self._ended.set()

    def _keep(self) -> None:
        """Run the process again and again."""
        pause_s = PAUSE_MIN_S
        locked_until_ms = clock.now_ms() + int(STOP_S * 1000)
        while not self._stopping.is_set():
            begun_ms = clock.now_ms()
            status = self._run()
            if self._stopping.is_set():
                break
            if not self._first.is_set():
                is_left = clock.now_ms() < locked_until_ms
                if not (is_left and isinstance(self._refusal, StoreLocked)):
                    self._refusal = self._refusal or MirrorQError(
                        f"node {self.name} ended with status {status}: its standard error says why"
                    )
                    break
                # An earlier node, whose parent has just died, is closing the store.
                self._refusal = None
                self._stopping.wait(PAUSE_MIN_S)
                continue
            if clock.now_ms() - begun_ms >= STEADY_S * 1000:
                pause_s = PAUSE_MIN_S
            log.warning(
                "node %s ended with status %s%s: it is started again in %s s",
                self.name,
                status,
                f" ({self.error})" if self.error else "",
                pause_s,
            )
            self._stopping.wait(pause_s)
            pause_s = min(2 * pause_s, PAUSE_MAX_S)
            self.restarts += not self._stopping.is_set()
        self._first.set()

    def _run(self) -> int:
        """Run the process once. Returns its status; below 0: the signal that ended it."""
        with self._lock:
            if self._stopping.is_set():
                return 0
            try:
                process = self._process = launched("spawned_process", self._python, self._given)
            except (OSError, TypeError, ValueError) as error:
                self.error = f"{self._python} cannot be run: {error}"
                self._refusal = MirrorQError(f"node {self.name}: {self.error}")
                return 127
            self._runs = True
        assert process.stdout is not None
        for line in _lines(process.stdout):
            self._on_line(line)
        status = process.wait()
        self._runs = False
        with self._lock:
            _end_input(process)
            process.stdout.close()
        return status

    def _on_line(self, line: bytes) -> None:
        try:
            said = json.loads(line)
        except ValueError:
            log.warning("node %s printed %r", self.name, line[:200])
            return
        if "level" in said:
            log.log(said["level"], "%s", said["text"])
        elif "error" in said:
            self.error = said["text"]
            kind = getattr(errors, said["error"]) if said["error"] in errors.__all__ else None
            self._refusal = (kind or MirrorQError)(said["text"])
        elif "endpoint" in said:
            self.error = ""
            self._refusal = None
            self.endpoint = said["endpoint"]
            # An assigned port is kept, so that clients find the node again.
            self._given["listen"] = said["listening"]
            self._first.set()

    def _forget_in_child(self) -> None:
        """In a forked child: close the copy of the pipe, which must not keep the node alive."""
        process, self._process = self._process, None
        self._lock = threading.RLock()
        if process is not None:
            process.returncode = 0  # A child of the parent only: no wait here.
            for stream in (process.stdin, process.stdout):
                _close_quietly(stream)


def _lines(stream: IO[bytes]) -> Iterator[bytes]:
    left = b""
    while chunk := stream.read(65536):
        *lines, left = (left + chunk).split(b"\n")
        yield from lines


def _end_input(process: subprocess.Popen[bytes] | None) -> None:
    if process is not None:
        _close_quietly(process.stdin)


def _close_quietly(stream: IO[bytes] | None) -> None:
    if stream is not None:
        with contextlib.suppress(OSError):
            stream.close()


def _stop_all() -> None:
    # First: clients of the process flush the puts that are still on the way.
    flush_all()
    for each in list(_spawned):
        each.stop()


def _after_fork() -> None:
    for each in list(_spawned):
        each._forget_in_child()


os.register_at_fork(after_in_child=_after_fork)
atexit.register(_stop_all)
