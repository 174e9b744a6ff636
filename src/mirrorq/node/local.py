"""`mirrorq.local`: a machine's own node, started by whoever comes first and kept by all who use it.

The node is a process that belongs to nobody: it outlives the one that started it. Each process
that uses it is a client of it, and starts it again when it has died, so it is there as long as
anybody wants it. It ends by itself when nobody has used it for a while, its *linger*.

Of two processes that start it at once both start one, and the store's lock decides which of them
runs; the other one ends, and both callers connect to the first.

In the node's folder, beside its store:

    node.sock    where it listens: only processes of the same user reach it
    node.json    which process it is, or how it has ended; written by that process alone
    linger       seconds; written by who names some
    node.log     what it logs, and its standard error

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

from mirrorq import clock, errors, system
from mirrorq.api.arguments import checked_path
from mirrorq.client.client import Client, connect
from mirrorq.config import Config
from mirrorq.errors import ConfigError, MirrorQError, NoQuorum, StoreLocked
from mirrorq.node.own_process import launched
from mirrorq.protocol.effects import Notice
from mirrorq.store.pathlock import holder_of

log = logging.getLogger("mirrorq")

LINGER_S = 60.0
"""Where nobody has named another: a command that is run once a minute finds the node running."""
GREETING_S = 1.0
"""A node that runs says its first byte at once; one that has not by then is stopped, or slow."""
START_S = 60.0
"""A node that is being started says by then that it runs, or why not."""
LOCK_S = 10.0
"""A node of before that is closing the store gets so long."""
MISSED_S = 2.0
"""A node that was seen and has not served by then is looked for again; the next one after twice
that."""
PAUSE_MIN_S = 0.1
PAUSE_MAX_S = 5.0
"""Before a node that does not start is tried again: doubled each time, up to this."""
LOOK_S = 0.05
"""How often who waits for another process's node looks."""


def local(
    path: str | os.PathLike[str],
    *,
    linger: float | None = None,
    name: str = "local",
    config: Config | None = None,
    timeout: float | None = 30,
) -> Client:
    """Connect to this machine's node in a folder; start it first if nobody has.

    Args:
        path: directory of its store; made if absent. The same for all who want this node.
        linger: seconds for which it runs on when nobody uses it any more; `math.inf`: until
            `mirrorq local PATH --stop`. It is kept in the folder, and the last one named counts.
            None: as it is there, 60 at first.
        name: the node's name: that of the store, where there is one.
        config: limits and times, equal for all who use it.
        timeout: seconds to wait until it runs. None waits.

    Returns:
        A client, as of `connect`. While it is open it starts the node again when that has died.

    The node is a process of its own, in a session of its own, and no child of this one. What it
    logs is in `node.log` in the folder.

    Raises:
        ConfigError, StoreError: as of `Node`: that the store is another node's, say.
        StoreLocked: the folder is open in a process that does not listen there.
        NoQuorum: it did not run in time.
    """
    place = Place.of(path)
    _check_linger(linger)
    deadline = Deadline(timeout)
    given = _given(place, name, config)
    client = _connected(place, given, config, deadline)
    try:
        if linger is not None:
            place.write_linger(linger)
        reviver = Reviver(client, place, given)
        client.add_listener(reviver.on_notice)
        if not client.entry_node:
            reviver.begin()
        client.wait_ready(deadline.left_s())
    except BaseException:
        client.close()
        raise
    return client


def _connected(
    place: Place, given: dict[str, Any], config: Config | None, deadline: Deadline
) -> Client:
    """A client of the node, which may have ended since it was seen: then another one is started."""
    patience_s = MISSED_S
    while True:
        start(place, given, deadline)
        left_s = deadline.left_s()
        wait_s = patience_s if left_s is None else min(left_s, patience_s)
        try:
            return connect(place.endpoint, config=config, timeout=wait_s)
        except NoQuorum:
            if deadline.is_over():
                raise
        patience_s *= 2


def _given(place: Place, name: str, config: Config | None) -> dict[str, Any]:
    """What the node's process is told."""
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
class Place:
    """The folder of a local node, and what stands in it beside the store."""

    path: Path

    @classmethod
    def of(cls, path: str | os.PathLike[str]) -> Place:
        """By a path as a user names it."""
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
        """As the folder says."""
        try:
            return float((self.path / "linger").read_text())
        except (OSError, ValueError):
            return LINGER_S

    def write_linger(self, linger: float) -> None:
        """Of several at once the last one counts."""
        self._write("linger", f"{float(linger)}\n")

    def told(self) -> dict[str, Any]:
        """What the last process said of itself: its `pid`, and how it has `ended`, "" if it has
        not, or was killed. {} where none has run."""
        try:
            said = json.loads((self.path / "node.json").read_text())
        except (OSError, ValueError):
            return {}
        return said if isinstance(said, dict) else {}

    def tell(self, ended: str = "") -> None:
        """Called by the node's process, which has the store's lock."""
        self._write("node.json", json.dumps({"pid": os.getpid(), "ended": ended}) + "\n")

    def _write(self, name: str, text: str) -> None:
        """All of it or nothing, however the process ends."""
        scratch = self.path / f"{name}.{os.getpid()}.{get_ident()}"
        scratch.touch(system.PRIVATE_FILE)
        scratch.write_text(text)
        os.replace(scratch, self.path / name)

    def why_not(self) -> MirrorQError:
        """Why no node listens here, though one was to be started."""
        with contextlib.suppress(OSError):
            if holder := holder_of(self.path):
                return StoreLocked(
                    f"store {self.path} is open in another process (pid {holder}), which does not "
                    f"listen at {self.endpoint}: use the node that has it, or end that first"
                )
        return NoQuorum(f"no node runs in {self.path} yet: {self.log_path} says why")

    def pid(self) -> int | None:
        """The process of a local node that runs here, None when there is none."""
        try:
            holder = holder_of(self.path)
        except OSError:
            return None
        return holder if holder is not None and holder == self.told().get("pid") else None

    def is_listening(self) -> bool:
        """Whether a node listens here: a kernel accepts for a process that is being killed, too,
        but then nobody says a byte."""
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(GREETING_S)
            try:
                probe.connect(self.socket_path)
                return bool(probe.recv(1))
            except TimeoutError:
                return True  # It is stopped, or slow, and has its store.
            except OSError as error:
                if "too long" in str(error):
                    raise ConfigError(
                        f"{self.socket_path} is too long for a socket's path, which may have 107 "
                        "bytes: choose a shorter folder"
                    ) from error
                return False


class Deadline:
    """Until when something is waited for."""

    def __init__(self, timeout: float | None) -> None:
        self._end_ms = None if timeout is None else clock.now_ms() + int(timeout * 1000)

    def left_s(self) -> float | None:
        """Seconds, None for ever."""
        if self._end_ms is None:
            return None
        return max(0.0, (self._end_ms - clock.now_ms()) / 1000)

    def is_over(self) -> bool:
        return self.left_s() == 0.0


def start(place: Place, given: dict[str, Any], deadline: Deadline) -> None:
    """Have a node listen in this place, whoever has started it.

    Raises:
        MirrorQError: what the node's process said that it cannot.
        NoQuorum: nothing came of it in time.
    """
    while not place.is_listening():
        refusal = _launch(given, deadline)
        if refusal is not None and not isinstance(refusal, StoreLocked):
            raise refusal
        if deadline.is_over():
            raise refusal or place.why_not()
        if refusal is not None:
            # Somebody else's node: it is about to listen, or about to close the store.
            time.sleep(LOOK_S)


def _launch(given: dict[str, Any], deadline: Deadline) -> MirrorQError | None:
    """Start a process for the node; None when it runs, or what it says of why not."""
    try:
        process = launched("local_process", sys.executable)
    except OSError as error:
        return MirrorQError(f"{sys.executable} cannot be run: {error}")
    # It leaves at once: the node is a child of that child, and so of nobody.
    with process:
        assert process.stdin is not None
        patience_s = LOCK_S if (left_s := deadline.left_s()) is None else min(LOCK_S, left_s / 2)
        told = {**given, "lock_s": patience_s}
        with contextlib.suppress(BrokenPipeError):  # it has ended: it will say nothing
            process.stdin.write(json.dumps(told).encode() + b"\n")
        process.stdin.close()
        said = _line(process, deadline)
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


def _line(process: subprocess.Popen[bytes], deadline: Deadline) -> bytes | None:
    """What the process says, b"" when it ends without, None when nothing came in time."""
    assert process.stdout is not None
    left_s = deadline.left_s()
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
    """Starts the node of one client again, when that is gone and nobody has stopped it."""

    def __init__(self, client: Client, place: Place, given: dict[str, Any]) -> None:
        self._client = client
        self._place = place
        self._given = given
        self._at_work = 0
        """Pid of the process that has a thread for it: a forked child has none."""

    def on_notice(self, notice: Notice) -> None:
        """Called with what happens to the client."""
        if notice.kind == "disconnected":
            self.begin()

    def begin(self) -> None:
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
            self.begin()  # the notice of it may have found this thread at work still

    def _is_missed(self) -> bool:
        """The client wants a node, and nobody has said that there shall be none."""
        is_open = not self._client.is_closed and not self._client.entry_node
        return is_open and self._place.told().get("ended", "") != STOPPED

    def _revive(self) -> None:
        """Until the client is served, closed, or somebody has said that there shall be no node."""
        pause_s = PAUSE_MIN_S
        while not self._client.is_closed and not self._client.entry_node:
            ended = self._place.told().get("ended", "")
            if ended == STOPPED:
                log.warning(
                    "the local node in %s was stopped: mirrorq.local starts it again",
                    self._place.path,
                )
                return
            try:
                start(self._place, self._given, Deadline(START_S))
            except MirrorQError as error:
                log.warning("the local node in %s does not start: %s", self._place.path, error)
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, PAUSE_MAX_S)


STOPPED, IDLE, FAILED = "stopped", "idle", "failed"
"""How a local node has ended: somebody wanted it; nobody used it; of itself, as its log says."""
