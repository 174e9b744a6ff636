"""`mirrorq.local`: a machine's own node, started by its first user and kept by all users.

The node is a process without an owner: it outlives the process that started it. Each process that
uses the node is a client, and starts the node again after its death. So the node exists as long as
it has users. It ends by itself when it was unused for a while, its *linger*.

Two processes that start the node at the same time both start a process, and the store's lock
decides which process runs. The other process ends, and both callers connect to the first.

In the node's folder, beside its store:

    node.sock    where it listens: only processes of the same user reach it
    node.json    its process id, or how it has ended; written by the node's process alone
    linger       seconds; written by a caller that gives a linger
    node.log     its log, and its standard error

*Threads*: a client whose node is gone starts it on a thread of its own.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import select
import socket
import subprocess
import sys
import time
from _thread import get_ident, start_new_thread
from pathlib import Path
from typing import Any

import attrs
from attrs import frozen

from mirrorq import errors, system
from mirrorq.api.arguments import checked_path, deadline_of, left_until
from mirrorq.client.client import Client, connect
from mirrorq.config import Config
from mirrorq.errors import ConfigError, MirrorQError, NoQuorum, StoreLocked
from mirrorq.node.own_process import launched
from mirrorq.protocol.effects import Notice
from mirrorq.store.pathlock import holder_of

log = logging.getLogger("mirrorq")

LINGER_S = 60.0
"""Default linger: a command that is run once a minute finds the node running."""
GREETING_S = 1.0
"""A running node sends its first byte at once. A later byte means a stopped or slow node."""
START_S = 60.0
"""A starting node reports within so many seconds that it runs, or why not."""
LOCK_S = 10.0
"""An earlier node that is closing the store gets so many seconds."""
MISSED_S = 2.0
"""A listening node that has not served a client after so many seconds is looked for again. The
delay doubles each time."""
PAUSE_MIN_S = 0.1
PAUSE_MAX_S = 5.0
"""Longest pause before another try to start a failing node. The pause doubles each time."""
LOOK_S = 0.05
"""Interval at which a process looks for another process's node, in seconds."""


def local(
    path: str | os.PathLike[str],
    *,
    linger: float | None = None,
    name: str = "local",
    config: Config | None = None,
    timeout: float | None = 30,
) -> Client:
    """Connect to the machine's node in a folder; start the node first if it does not run.

    Args:
        path: directory of its store; made if absent. The same for all users of the node.
        linger: seconds for which an unused node keeps running; `math.inf`: until
            `mirrorq local PATH --stop`. The folder keeps the value, and the last value counts.
            None: the folder's value, 60 at first.
        name: the node's name. An existing store must have the same name.
        config: limits and times, equal for all users of the node.
        timeout: seconds to wait until it runs. None waits.

    Returns:
        A client, as of `connect`. An open client starts the node again after its death.

    The node is a process of its own, in a session of its own, and not a child of the caller. Its
    log is in `node.log` in the folder.

    Raises:
        ConfigError, StoreError: as of `Node`: the store is another node's, for example.
        StoreLocked: the folder is open in a process that does not listen there.
        NoQuorum: it did not run in time.
    """
    place = LocalFolder.of(path)
    _check_linger(linger)
    until = deadline_of(timeout)
    given = _given(place, name, config)
    client = _connected(place, given, config, until)
    try:
        if linger is not None:
            place.write_linger(linger)
        reviver = Reviver(client, place, given)
        client.add_listener(reviver.on_notice)
        if not client.entry_node:
            reviver.start()
        client.wait_ready(left_until(until))
    except BaseException:
        client.close()
        raise
    return client


def _connected(
    place: LocalFolder, given: dict[str, Any], config: Config | None, until: float | None
) -> Client:
    """Return a client of the node. If the node has ended since it was seen, start another node."""
    patience_s = MISSED_S
    while True:
        start(place, given, until)
        left_s = left_until(until)
        wait_s = patience_s if left_s is None else min(left_s, patience_s)
        try:
            return connect(place.endpoint, config=config, timeout=wait_s)
        except NoQuorum:
            if left_until(until) == 0:
                raise
        patience_s *= 2


def _given(place: LocalFolder, name: str, config: Config | None) -> dict[str, Any]:
    """Return the arguments for the node's process."""
    return {
        "name": name,
        "path": str(place.path),
        "config": None if config is None else attrs.asdict(config),
    }


def _check_linger(linger: float | None) -> None:
    is_number = isinstance(linger, int | float) and not isinstance(linger, bool)
    if linger is not None and not (is_number and linger >= 0):
        raise ConfigError(f"linger is {linger!r}: it must be a number of seconds, or math.inf")


@frozen
class LocalFolder:
    """The folder of a local node, and the files in it beside the store."""

    path: Path

    @classmethod
    def of(cls, path: str | os.PathLike[str]) -> LocalFolder:
        """Make a place from a user's path."""
        return cls(Path(os.path.abspath(checked_path(path))))

    @property
    def socket_path(self) -> str:
        return str(self.path / "node.sock")

    @property
    def endpoint(self) -> str:
        return f"ipc://{self.socket_path}"

    @property
    def log_path(self) -> Path:
        return self.path / "node.log"

    def linger_s(self) -> float:
        """Return the folder's linger in seconds."""
        try:
            return float((self.path / "linger").read_text())
        except (OSError, ValueError):
            return LINGER_S

    def write_linger(self, linger: float) -> None:
        """Write the linger. Of several writers the last counts."""
        self._write("linger", f"{float(linger)}\n")

    def record(self) -> dict[str, Any]:
        """Return the last process's report: its `pid`, and how it has `ended`. `ended` is "" for a
        running or killed process. {}: none has run."""
        try:
            said = json.loads((self.path / "node.json").read_text())
        except (OSError, ValueError):
            return {}
        return said if isinstance(said, dict) else {}

    def tell(self, ended: str = "") -> None:
        """Write the report of the node's process, which has the store's lock."""
        self._write("node.json", json.dumps({"pid": os.getpid(), "ended": ended}) + "\n")

    def _write(self, name: str, text: str) -> None:
        """Write a file atomically, however the process ends."""
        scratch = self.path / f"{name}.{os.getpid()}.{get_ident()}"
        scratch.touch(system.PRIVATE_FILE)
        scratch.write_text(text)
        os.replace(scratch, self.path / name)

    def why_not(self) -> MirrorQError:
        """Return the reason why no node listens here after a start."""
        with contextlib.suppress(OSError):
            if holder := holder_of(self.path):
                return StoreLocked(
                    f"store {self.path} is open in another process (pid {holder}), which does not "
                    f"listen at {self.endpoint}: use the node that has it, or end that first"
                )
        return NoQuorum(f"no node runs in {self.path} yet: {self.log_path} says why")

    def pid(self) -> int | None:
        """Return the process id of a local node that runs here; None: none runs."""
        try:
            holder = holder_of(self.path)
        except OSError:
            return None
        return holder if holder is not None and holder == self.record().get("pid") else None

    def is_listening(self) -> bool:
        """Return true if a node listens here. A kernel also accepts for a process that is being
        killed, but then no byte comes."""
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(GREETING_S)
            try:
                probe.connect(self.socket_path)
                return bool(probe.recv(1))
            except TimeoutError:
                return True  # The node is stopped, or slow, and has its store.
            except OSError as error:
                if "too long" in str(error):
                    raise ConfigError(
                        f"{self.socket_path} is too long for a socket's path, which may have 107 "
                        "bytes: choose a shorter folder"
                    ) from error
                return False


def start(place: LocalFolder, given: dict[str, Any], until: float | None) -> None:
    """Have a node listen in a place, started by any process.

    Args:
        until: when to give up, on the monotonic clock; None: never.

    Raises:
        MirrorQError: the node's process reported that it cannot run.
        NoQuorum: no node listened in time.
    """
    while not place.is_listening():
        refusal = _launch(given, until)
        if refusal is not None and not isinstance(refusal, StoreLocked):
            raise refusal
        if left_until(until) == 0:
            raise refusal or place.why_not()
        if refusal is not None:
            # Another process has the node: it is about to listen, or to close the store.
            time.sleep(LOOK_S)


def _launch(given: dict[str, Any], until: float | None) -> MirrorQError | None:
    """Start a process for the node. Return None when the node runs, else its reported error."""
    patience_s = LOCK_S if (left_s := left_until(until)) is None else min(LOCK_S, left_s / 2)
    try:
        process = launched("local_process", sys.executable, {**given, "lock_s": patience_s})
    except OSError as error:
        return MirrorQError(f"{sys.executable} cannot be run: {error}")
    # The process exits at once: the node is its child, and so has no living parent.
    with process:
        assert process.stdin is not None
        process.stdin.close()
        said = _line(process, until)
    if said is None:
        return None
    if not said:
        return MirrorQError("the node's process said nothing: its standard error says why")
    words = json.loads(said)
    if "error" not in words:
        return None
    kind = getattr(errors, words["error"]) if words["error"] in errors.__all__ else MirrorQError
    refusal: MirrorQError = kind(words["text"])
    return refusal


def _line(process: subprocess.Popen[bytes], until: float | None) -> bytes | None:
    """Return the process's line; b"": it ended without a line; None: no line came in time."""
    assert process.stdout is not None
    left_s = left_until(until)
    said = b""
    ready = select.poll()  # `select.select` takes no more than 1024 open files
    ready.register(process.stdout, select.POLLIN)
    while not said.endswith(b"\n"):
        if not ready.poll(1000 * (START_S if left_s is None else min(left_s, START_S))):
            return None
        chunk = process.stdout.read(65536)
        if not chunk:
            return b""
        said += chunk
    return said


class Reviver:
    """Starts the node of one client again after its end, unless a user has stopped it."""

    def __init__(self, client: Client, place: LocalFolder, given: dict[str, Any]) -> None:
        self._client = client
        self._place = place
        self._given = given
        self._at_work = 0
        """Pid of the process with the reviving thread: a forked child has no thread."""

    def on_notice(self, notice: Notice) -> None:
        """Called with the client's notices."""
        if notice.kind == "disconnected":
            self.start()

    def start(self) -> None:
        """Look for the node, and start it if it is gone."""
        if self._at_work != os.getpid():
            self._at_work = os.getpid()
            start_new_thread(self._run, ())

    def _run(self) -> None:
        try:
            self._revive()
        finally:
            self._at_work = 0
        if self._is_missed():
            self.start()  # its notice may have come while the thread was still at work

    def _is_missed(self) -> bool:
        """Return true if the client needs a node, and no user has stopped the node."""
        is_open = not self._client.is_closed and not self._client.entry_node
        return is_open and self._place.record().get("ended", "") != STOPPED

    def _revive(self) -> None:
        """Retry until the client is served or closed, or a user has stopped the node."""
        pause_s = PAUSE_MIN_S
        while not self._client.is_closed and not self._client.entry_node:
            ended = self._place.record().get("ended", "")
            if ended == STOPPED:
                log.warning(
                    "the local node in %s was stopped: mirrorq.local starts it again",
                    self._place.path,
                )
                return
            try:
                start(self._place, self._given, deadline_of(START_S))
            except MirrorQError as error:
                log.warning("the local node in %s does not start: %s", self._place.path, error)
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, PAUSE_MAX_S)


STOPPED, IDLE, FAILED = "stopped", "idle", "failed"
"""How a local node has ended: stopped by a user; unused; failed, with the reason in its log."""
