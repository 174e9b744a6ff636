"""Three real nodes and a client, without sockets and threads, whose messages are spoiled.

Stores, drivers, engines, entries, handles and the client's thread are the real ones; they are
stepped by hand on a clock of their own. Between them a switchboard passes messages on, some
of them changed: well-formed still, but with another number, text or item; old ones come again,
some come twice, some not at all, and some that nobody has sent. The cluster may come to any
state by that. What must not happen is that a node's thread ends, hangs, or keeps what it was
sent: everything that `Driver._round` lets out would end the node.
"""

from __future__ import annotations

import shutil
import tempfile
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from random import Random
from typing import Any
from unittest import mock

from mirrorq import clock
from mirrorq.api.host import Declared
from mirrorq.api.message import Message
from mirrorq.api.queue import MirroredQueue
from mirrorq.api.receiver import Demand
from mirrorq.client.client import Client
from mirrorq.config import Config
from mirrorq.engine.events import Ask
from mirrorq.errors import MirrorQError, ProtocolError, StoreCorrupt
from mirrorq.node.driver import Driver
from mirrorq.node.node import Node
from mirrorq.protocol.commands import DeclareQueue
from mirrorq.protocol.raft import AppendRequest, InstallSnapshot
from mirrorq.protocol.ring import Data, PackedChunk, TransferState
from mirrorq.transport.inbound import (
    DATA,
    ClientMessage,
    Connected,
    Disconnected,
    PeerMessage,
    ProbeResult,
    SendLost,
    ServerMessage,
)
from mirrorq.wire.messages import WireMessage, decode, encode

from .mutation import spoiled, value
from .readers import Target

NAMES = ("a", "b", "c")
QUEUE = "orders"
MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None
ROUND_MS = 20
EPISODE_INPUTS = 150
"""Spoiled messages of one cluster; then another one begins."""
RESTART_CHANCE = 0.02
"""Of each round, that the third node starts anew."""
KEPT = 200
RICH = (Data, TransferState, PackedChunk, AppendRequest, InstallSnapshot)
"""Messages with much in them, and rare: spoiled more often than others."""
CONFIG = Config(
    star=False,
    rail=False,
    heartbeat_ms=100,
    failure_ms=400,
    lease_ms=150,
    election_ms=300,
    election_spread_ms=50,
    lag_ms_max=400,
    unstable_bytes_max=1 << 16,
    joiner_bytes_max=1 << 14,
    transfer_chunk_bytes=1 << 12,
    checkpoint_ops=16,
    checkpoint_bytes=1 << 13,
    producer_expiry_ms=3000,
    session_expiry_ms=800,
    store_bytes_max=8 << 20,
    prefetch=8,
)


class _Thread:
    """In the place of a node's thread: it never runs."""

    def __init__(self, *_: object, **__: object) -> None: ...

    def start(self) -> None: ...

    def join(self, timeout: float | None = None) -> None: ...

    def is_alive(self) -> bool:
        return False


class _Line:
    """One node's transport."""

    has_rails = False

    def __init__(self, board: Switchboard, name: str) -> None:
        self.endpoint = f"tcp://127.0.0.1:{7000 + ord(name)}"
        self._board = board
        self._name = name

    def poll(self, timeout_ms: int) -> list[Any]:
        return self._board.take(self._name)

    def send(self, peer: str, channel: int, parts: Sequence[Any]) -> bool:
        self._board.send(self._name, peer, [bytes(part) for part in parts], channel)
        return True

    part_bytes_max = 1 << 30

    def takes(self, parts: Sequence[Any]) -> bool:
        return True

    def reply(self, identity: bytes, parts: Sequence[Any], channel: int = DATA) -> bool:
        self._board.send(self._name, "client", [bytes(part) for part in parts], channel)
        return True

    def address_of(self, message: ClientMessage) -> str:
        return ""

    def takes_turns(self, clients: int) -> bool:
        return True

    def probe(self, peer: str) -> None:
        self._board.give(self._name, ProbeResult(peer, self._board.chance.random() < 0.1))

    peers: tuple[str, ...] = ()

    def connect_peer(self, peer: str, endpoint: str) -> None: ...

    def flush(self) -> None: ...

    def wake(self) -> None: ...

    def close(self) -> None: ...

    def abandon(self) -> None: ...


class _ClientLine:
    """The client's socket; it is always on node `a`."""

    endpoint = "tcp://127.0.0.1:7097"
    is_up = True

    def __init__(self, board: Switchboard) -> None:
        self._board = board
        board.give("client", Connected(self.endpoint))

    def poll(self, timeout_ms: int) -> list[Any]:
        return self._board.take("client")

    def send(self, parts: Sequence[Any], channel: int = DATA) -> bool:
        self._board.send("client", "a", [bytes(part) for part in parts], channel)
        return True

    def leave(self, *, is_refused: bool = False) -> None:
        self._board.give("client", Disconnected(self.endpoint))
        self._board.give("client", Connected(self.endpoint))

    def flush(self) -> None: ...

    def wake(self) -> None: ...

    def close(self, linger_ms: int = 0) -> None: ...


class Switchboard:
    """Passes messages on, and spoils some of them once it is told to."""

    def __init__(self, chance: Random) -> None:
        self.chance = chance
        self.spoiled = 0
        self.rate = 0.0
        """Share of messages that are spoiled."""
        self.incarnations: dict[str, int] = {}
        self._boxes: dict[str, list[Any]] = {name: [] for name in (*NAMES, "client")}
        self._kept: deque[WireMessage] = deque(maxlen=KEPT)

    def give(self, to: str, inbound: Any) -> None:
        self._boxes[to].append(inbound)

    def take(self, name: str) -> list[Any]:
        taken, self._boxes[name] = self._boxes[name], []
        return taken

    def send(self, source: str, to: str, parts: list[bytes], channel: int = 0) -> None:
        if to not in self._boxes:
            return
        for each in self._spoil(parts, to) if self.chance.random() < self.rate else [parts]:
            self._deliver(source, to, each, channel)

    def _deliver(self, source: str, to: str, parts: list[bytes], channel: int) -> None:
        if to == "client":
            self.give(to, ServerMessage(parts, channel))
        elif source == "client":
            self.give(to, ClientMessage(b"Cclient", parts, channel))
        else:
            self.give(to, PeerMessage(source, self.incarnations[source], channel, parts))

    def _spoil(self, parts: list[bytes], to: str) -> list[list[bytes]]:
        """What comes in the place of a message: nothing, itself and more, or another."""
        chance = self.chance
        self.spoiled += 1
        try:
            message = decode(parts)
        except ProtocolError:
            # Numbers at their bound have gone one beyond it: whoever gets it drops it.
            return [parts]
        self._kept.append(message)
        kind = chance.random()
        if kind < 0.05:
            self.give(to, chance.choice((Connected("b"), Disconnected("b"), SendLost("b", 0, 1))))
            return []
        if kind < 0.10:
            return [parts, parts]
        if kind < 0.20:
            return [encode(chance.choice(self._kept)), parts]
        changed: Any = chance.choice(self._kept) if kind < 0.35 else message
        if not isinstance(changed, RICH) and chance.random() < 0.3:
            rich = [each for each in self._kept if isinstance(each, RICH)]
            changed = chance.choice(rich) if rich else changed
        if kind > 0.95:
            changed = value(chance, WireMessage)
        for _ in range(chance.choice((1, 1, 2, 4))):
            changed = spoiled(chance, changed, type(changed))
        # Mostly beside the right one: a cluster that stands still meets little.
        return [encode(changed), parts] if chance.random() < 0.7 else [encode(changed)]


class World:
    """The cluster. Everything is driven by `round`."""

    def __init__(self, chance: Random, directory: Path) -> None:
        self.chance = chance
        self.now_ms = 1_000_000
        self.board = Switchboard(chance)
        self.peers = {name: f"tcp://127.0.0.1:{7000 + ord(name)}" for name in NAMES}
        self._directory = directory
        self._paths = 0
        with self.patched():
            self.nodes = [self._node(name, directory / name) for name in NAMES]
            self.client = Client([self.peers["a"]], CONFIG, insecure=False, timeout=None)
        self.handles: list[MirroredQueue] = []
        self.demands: list[Demand] = []
        """What waiting calls would take; somebody has to hold them."""

    def _node(self, name: str, path: Path) -> Node:
        node = Node(name, path=path, peers=self.peers, config=CONFIG)
        self.board.incarnations[name] = node._store.incarnation
        for other in NAMES:
            if other != name:
                self.board.give(name, Connected(other))
                self.board.give(other, Connected(name))
        return node

    def restart(self) -> None:
        """The node without handles ends and comes again, now and then without its store."""
        old = self.nodes.pop()
        _end(old)
        path = old.path
        if self.chance.random() < 0.5:
            self._paths += 1
            path = self._directory / f"{old.name}{self._paths}"
        self.board.take(old.name)
        for other in self.nodes:
            self.board.give(other.name, Disconnected(old.name))
        try:
            self.nodes.append(self._node(old.name, path))
        except StoreCorrupt:
            # Who believed a false history may hold a log with a hole: its store says so.
            self._paths += 1
            self.nodes.append(self._node(old.name, self._directory / f"c{self._paths}"))

    @contextmanager
    def patched(self) -> Iterator[None]:
        """No sockets, no threads, a clock of our own; numbers of stores from the seed."""
        board, chance = self.board, self.chance

        def line(name: str, *_: object) -> _Line:
            return _Line(board, name)

        def client_line(*_: object, **__: object) -> _ClientLine:
            return _ClientLine(board)

        with (
            mock.patch("mirrorq.node.node.Transport", line),
            mock.patch("mirrorq.client.driver.ClientSocket", client_line),
            mock.patch("mirrorq.api.host_thread.threading.Thread", _Thread),
            mock.patch("mirrorq.store.node_store.secrets.randbelow", chance.randrange),
            mock.patch("mirrorq.node.node.secrets.randbits", chance.getrandbits),
            # Snapshots of the catalog are to be sent, too.
            mock.patch("mirrorq.engine.follower.COMPACT_ENTRIES", 3),
            mock.patch.object(clock, "now_ms", self._now_ms),
            mock.patch.object(clock, "wall_us", self._wall_us),
        ):
            yield

    def _now_ms(self) -> int:
        return self.now_ms

    def _wall_us(self) -> int:
        return self.now_ms * 1000

    def round(self) -> None:
        self.now_ms += self.chance.choice((1, 5, ROUND_MS, ROUND_MS, 3 * ROUND_MS))
        drivers: list[Driver | Any] = [node._driver for node in self.nodes]
        for driver in (*drivers, self.client._driver):
            driver._round()

    def begin(self) -> None:
        """Found the cluster, make the queue, open handles on two nodes and the client."""
        self._until(lambda: all(node._overview.is_ready for node in self.nodes))
        driver = self.nodes[0]._driver
        driver.post(Ask(1 << 40, DeclareQueue(QUEUE, True, False, False, "a", None, ())))
        self._until(lambda: all(node._driver.engine.replicas for node in self.nodes))
        for host in (self.nodes[0], self.nodes[1], self.client):
            handle = MirroredQueue._attach(host, Declared(1), QUEUE)
            self.demands.append(Demand(4))
            handle._handle.receiver.want(self.demands[-1])
            self.handles.append(handle)
        self._until(lambda: all(handle._handle.session.epoch for handle in self.handles))  # type: ignore[union-attr]

    def _until(self, condition: Any) -> None:
        for _ in range(2000):
            if condition():
                return
            self.round()
        raise AssertionError("the cluster does not begin")

    def use(self) -> None:
        """What users do: puts, gets, acks, and now and then something else."""
        chance = self.chance
        handle = chance.choice(self.handles)
        if handle._handle.is_closed:
            return
        publisher = handle._handle.puts
        if publisher.count < 20:
            bodies = [chance.randbytes(chance.choice((1, 50, 2000)))] * chance.randint(1, 4)
            handle.put_many(bodies, block=False)
        found: list[Message] = []
        handle._handle.receiver.take_more(found, chance.randint(0, 6))
        for message in found:
            settle = message.ack if chance.random() < 0.7 else message.nack
            settle()
        handle._handle.wake()

    def close(self) -> None:
        for node in self.nodes:
            _end(node)
        for handle in self.handles:
            handle._handle.outcomes.close(0.0)


def _end(node: Node) -> None:
    node._listeners.close(0.0)
    node._store.close()


def episode(rate: float, chance: Random) -> None:
    """One cluster's life, until so many of its messages have been spoiled."""
    directory = Path(tempfile.mkdtemp(dir=MEMORY))
    try:
        world = World(chance, directory)
        try:
            with world.patched():
                world.begin()
                world.board.rate = rate
                for _ in range(3000):
                    if world.board.spoiled >= EPISODE_INPUTS:
                        break
                    for _ in range(chance.randint(0, 3)):
                        with_patience(world.use)
                    if chance.random() < RESTART_CHANCE:
                        world.restart()
                    world.round()
        finally:
            world.close()
    finally:
        shutil.rmtree(directory)


def with_patience(use: Any) -> None:
    """Users are told of what goes wrong; that is no failure of a node."""
    with suppress(MirrorQError):
        use()


CLUSTER = Target("cluster", partial(episode, 0.2), weight=6, inputs=EPISODE_INPUTS)
"""Each of its runs is an episode of so many spoiled messages."""
