"""Transports on loopback, polled together."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from tests.kit import DEADLINE_S

from mirrorq.config import Config
from mirrorq.transport.client import ClientSocket
from mirrorq.transport.inbound import Connected
from mirrorq.transport.transport import Transport

POLL_MS = 20

Socket = Transport | ClientSocket
AnySocket = TypeVar("AnySocket", Transport, ClientSocket)


class Net:
    """Sockets of one test. Polling goes over all of them and keeps what came, by socket."""

    def __init__(self) -> None:
        self.config = Config()
        self.sockets: list[Socket] = []
        self.inbound: dict[int, list[object]] = {}

    def transport(self, node: str, listen: str = "tcp://127.0.0.1:0", **given: int) -> Transport:
        incarnation = given.get("incarnation", 1)
        return self._add(Transport(node, incarnation, listen, self.config))

    def client(self, *endpoints: str) -> ClientSocket:
        return self._add(ClientSocket(endpoints, self.config))

    def _add(self, socket: AnySocket) -> AnySocket:
        self.sockets.append(socket)
        self.inbound[id(socket)] = []
        return socket

    def close(self, socket: Socket) -> None:
        self.sockets.remove(socket)
        socket.close()

    def poll(self) -> None:
        for socket in self.sockets:
            self.inbound[id(socket)] += socket.poll(POLL_MS // len(self.sockets))

    def of(self, socket: Socket) -> list[object]:
        return self.inbound[id(socket)]

    def until(self, condition: Callable[[], object]) -> None:
        """Poll until the condition holds."""
        end = time.monotonic() + DEADLINE_S
        while not condition():
            assert time.monotonic() < end, f"never came; inbound: {self.inbound}"
            self.poll()

    def until_in(self, socket: Socket, expected: object) -> None:
        self.until(lambda: expected in self.of(socket))

    def pair(self) -> tuple[Transport, Transport]:
        """Two transports, a connected to b."""
        a, b = self.transport("a"), self.transport("b", incarnation=2)
        a.connect_peer("b", b.endpoint)
        self.until_in(a, Connected("b"))
        return a, b

    def messages(self, socket: Socket, kind: type) -> Sequence[list[bytes]]:
        return [item.parts for item in self.of(socket) if isinstance(item, kind)]  # type: ignore[attr-defined]
