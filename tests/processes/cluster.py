"""Clusters of peer processes, and waiting for what they come to."""

from __future__ import annotations

import json
import random
import signal
import sys
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any, ClassVar

from tests.kit import DEADLINE_S, PATIENT, peers_of, until

from mirrorq.demo.children import LineProcess
from mirrorq.demo.ports import free_ports

from .stalls import Stalls

SCRIPT = Path(__file__).with_name("peer.py")


class PeerError(Exception):
    """What a command raised in the peer: `kind` is the exception's class."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(f"{kind}: {text}")
        self.kind = kind
        self.text = text


class Peer(LineProcess):
    """One process with a node or a client."""

    stall_seed: ClassVar[str | None] = None
    """With one, all peers stand still again and again."""
    _stalls: Stalls | None = None

    def __init__(self, settings: Mapping[str, Any], log: Path) -> None:
        self._lock = threading.Lock()
        self._number = 0
        self._open: dict[int, Future[Any]] = {}
        self._started = self._expect(0)
        command = [sys.executable, str(SCRIPT), json.dumps({**settings, "log": str(log)})]
        # Where mirrorq is imported from, when it is not this one.
        home: str | None = settings.get("home")
        super().__init__(settings.get("name", "client"), command, log.with_suffix(".err"), home)
        self.log = log
        if self.stall_seed is not None:
            choice = random.Random(f"{self.stall_seed} {log.parent.name} {log.name}")
            self._stalls = Stalls(choice, settings.get("config", {}), super().signal)

    def wait_started(self) -> None:
        """Raises PeerError when the node could not be made."""
        self._started.result(DEADLINE_S)

    def _expect(self, number: int) -> Future[Any]:
        future: Future[Any] = Future()
        with self._lock:
            self._open[number] = future
        return future

    def on_line(self, line: bytes) -> None:
        if not line:
            self._end_calls()
            return
        answer = json.loads(line)
        with self._lock:
            future = self._open.pop(answer["id"])
        if "error" in answer:
            future.set_exception(PeerError(answer["error"], answer["text"]))
        else:
            future.set_result(answer["value"])

    def _end_calls(self) -> None:
        with self._lock:
            left = list(self._open.values())
            self._open.clear()
        for future in left:
            future.set_exception(PeerError("Gone", f"process {self.name} has ended"))

    def start(self, do: str, **arguments: Any) -> Future[Any]:
        """Give a command; the answer comes later."""
        with self._lock:
            self._number += 1
            number = self._number
        future = self._expect(number)
        self.tell(json.dumps({"id": number, "do": do, **arguments}))
        return future

    def ask(self, do: str, **arguments: Any) -> Any:
        """Give a command and wait for its answer. Raises PeerError."""
        return self.start(do, **arguments).result(DEADLINE_S)

    def signal(self, number: int) -> None:
        if self._stalls is None:
            super().signal(number)
        else:
            self._stalls.on_signal(number)

    def end(self) -> int:
        if self._stalls is not None:
            self._stalls.end()
        return super().end()

    def stop_cleanly(self) -> None:
        """close() the node, then end the process."""
        self.ask("close_node")
        self.kill()

    def log_text(self) -> str:
        return self.log.read_text() if self.log.exists() else ""


class Cluster:
    """Peers of one cluster; all of them are killed by `end`."""

    def __init__(self, path: Path, config: Mapping[str, Any] | None = None) -> None:
        self.path = path
        self.config = {**PATIENT, **(config or {})}
        self.endpoints: dict[str, str] = {}
        self.peers: dict[str, Peer] = {}
        self.queues: dict[str, int] = {}
        self.witnesses: frozenset[str] = frozenset()
        self._made: list[Peer] = []

    def __getitem__(self, name: str) -> Peer:
        return self.peers[name]

    def name_all(self, names: str, witnesses: str = "") -> None:
        self.endpoints = peers_of(names)
        self.witnesses = frozenset(witnesses)

    def found(self, names: str, witnesses: str = "") -> None:
        """Start all nodes at once, and wait until they are one cluster."""
        self.name_all(names, witnesses)
        self.start(names)

    def serve(self, names: str, queue: str = "orders") -> None:
        """Found a cluster, and open a queue on all its nodes: the first is its master, and each
        knows that all are in sync."""
        self.found(names)
        self.open(queue, names)
        for name in names:
            assert self.wait_in_sync(len(names) - 1, on=name)["master"] == names[0]

    def launch(self, name: str, **settings: Any) -> Peer:
        """Start a node's process; nothing is waited for."""
        given = {
            "name": name,
            "path": str(self.path / name),
            "peers": self.endpoints,
            "listen": self.endpoints[name],
            "witness": name in self.witnesses,
            "config": self.config,
        }
        peer = self.run({**given, **settings}, name)
        self.peers[name] = peer
        return peer

    def join(self, name: str, *through: str, **settings: Any) -> Peer:
        """Start a node with an empty store that joins through these, and wait until it has."""
        (port,) = free_ports(1)
        self.endpoints.setdefault(name, f"tcp://127.0.0.1:{port}")
        join = [self.endpoints[peer] for peer in through]
        peer = self.launch(name, **{"peers": None, "join": join, **settings})
        peer.wait_started()
        peer.ask("wait_ready")
        return peer

    def run(self, settings: Mapping[str, Any], name: str) -> Peer:
        """A process of any kind, ended with the others."""
        peer = Peer(settings, self.path / f"{name}.log")
        self._made.append(peer)
        return peer

    def start(self, names: str) -> None:
        for name in names:
            self.launch(name)
        for name in names:
            self.peers[name].wait_started()
        for name in names:
            self.peers[name].ask("wait_ready")

    def client(self, name: str = "client", **settings: Any) -> Peer:
        given = {"endpoints": list(self.endpoints.values()), "config": self.config}
        peer = self.run({**given, **settings}, name)
        peer.wait_started()
        return peer

    def kill(self, *names: str) -> None:
        for name in names:
            self.peers[name].signal(signal.SIGKILL)
        for name in names:
            self.peers.pop(name).kill()

    def open(self, name: str, on: str, **how: Any) -> None:
        """Open the queue on these nodes, the first first: there it has its master."""
        for node in on:
            self.queues[node] = self.peers[node].ask("queue", name=name, **how)

    def ask(self, node: str, do: str, **arguments: Any) -> Any:
        """Ask a node about its handle on the queue."""
        return self.peers[node].ask(do, queue=self.queues[node], **arguments)

    def status(self, node: str) -> dict[str, Any]:
        found: dict[str, Any] = self.ask(node, "status")
        return found

    def wait_in_sync(self, mirrors: int, on: str) -> dict[str, Any]:
        """Wait until a node sees a running queue with so many mirrors, all of them in sync."""

        def look() -> dict[str, Any] | None:
            status = self.status(on)
            is_so = (
                status["state"] == "running"
                and len(status["mirrors"]) == len(status["synchronised_mirrors"]) == mirrors
            )
            return status if is_so else None

        return until(look, lambda: self.status(on))

    def wait_warned(self, text: str, on: str) -> None:
        """Wait until a node warns of its queue in these words."""
        until(
            lambda: text in "".join(self.status(on)["warnings"]),
            lambda: self.status(on),
        )

    def wait_master(self, masters: str, on: str) -> str:
        """Wait until a node sees one of these as master; return which."""

        def look() -> str | None:
            master: str | None = self.status(on)["master"]
            return master if master is not None and master in masters else None

        return until(look, lambda: self.status(on))

    def log_text(self, node: str) -> str:
        return (self.path / f"{node}.log").read_text()

    def end(self) -> None:
        for peer in self._made:
            peer.kill()
