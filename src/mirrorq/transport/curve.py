"""CURVE: keys, what a socket is told of them, and who may connect (ZAP, ZeroMQ RFC 27).

libzmq asks at the end of each handshake, over a socket inside this process, whether it may go
on; the thread that owns the sockets answers. Until then it reads nothing of a connection but
the handshake, and afterwards names the sender's key with every message.
"""

from __future__ import annotations

from typing import Protocol

import zmq
from attrs import field, frozen
from zmq.utils import z85

from mirrorq.errors import ConfigError
from mirrorq.transport.parts import is_readable, receive_parts, send_parts

DOMAIN = b"mirrorq"
_VERSION = b"1.0"
_ZAP_ENDPOINT = "inproc://zeromq.zap.01"
"""Fixed by RFC 27."""
_REQUEST_PARTS = 7
"""Version, request, domain, address, routing id, mechanism, key."""


class Guard(Protocol):
    """Who may connect to a node, and by which keys it knows others."""

    version: int
    """Changes when its answers may have."""

    @property
    def secret_key(self) -> str:
        """The node's own."""
        ...

    def admits(self, public_key: str) -> bool:
        """Whether the owner of this key may connect."""
        ...

    def is_node(self, public_key: str, node: str) -> bool:
        """Whether it is the key of the node of this name."""
        ...

    def is_any_node(self, public_key: str) -> bool:
        """Whether it is the key of some node."""
        ...

    def keys_of(self, node: str) -> tuple[str, ...]:
        """Public keys that whoever goes by this name may have: one for a node that is known."""
        ...

    def refresh(self) -> None:
        """Take in what has changed. Called often: cheap."""
        ...


@frozen
class LinkKeys:
    """What one connection proves itself with, and whom it takes the other end for."""

    secret_key: str = field(repr=False)
    server_key: str

    def apply(self, socket: zmq.Socket[bytes]) -> None:
        """Before the socket connects."""
        socket.setsockopt(zmq.CURVE_SECRETKEY, self.secret_key.encode())
        socket.setsockopt(zmq.CURVE_PUBLICKEY, public_key_of(self.secret_key).encode())
        socket.setsockopt(zmq.CURVE_SERVERKEY, self.server_key.encode())


def new_key_pair() -> tuple[str, str]:
    """A new pair: public key and secret key."""
    public, secret = zmq.curve_keypair()
    return public.decode(), secret.decode()


def public_key_of(secret_key: str) -> str:
    """The public key that belongs to a secret one.

    Raises:
        ConfigError: it is no key.
    """
    try:
        return zmq.curve_public(secret_key.encode()).decode()
    except (zmq.ZMQError, ValueError):
        raise ConfigError("the secret key is not a key: mirrorq key new makes one") from None


def guard_socket(socket: zmq.Socket[bytes], guard: Guard) -> None:
    """Have a socket listen to nobody without keys. Before it binds."""
    socket.setsockopt(zmq.CURVE_SERVER, 1)
    socket.setsockopt(zmq.CURVE_SECRETKEY, guard.secret_key.encode())
    socket.setsockopt(zmq.ZAP_DOMAIN, DOMAIN)
    # Should nobody answer for some reason: nobody may connect.
    socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)


class Zap:
    """Answers libzmq's questions. Must exist before the guarded socket binds.

    *Threads*: the one that owns the sockets of the context.
    """

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], guard: Guard) -> None:
        self._guard = guard
        self.socket = context.socket(zmq.REP)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.bind(_ZAP_ENDPOINT)

    def answer(self) -> list[tuple[str, str]]:
        """Answer what is there. Returns whom it refused: address and public key."""
        refused = []
        while is_readable(self.socket):
            request = receive_parts(self.socket)
            key = _key_in(request)
            is_admitted = bool(key) and self._guard.admits(key)
            number = request[1] if len(request) > 1 else b""
            user = key.encode() if is_admitted else b""
            status, text = (b"200", b"") if is_admitted else (b"400", b"unknown key")
            send_parts(self.socket, [_VERSION, number, status, text, user, b""])
            if not is_admitted:
                address = request[3].decode("ascii", "replace") if len(request) > 3 else "?"
                refused.append((address, key))
        return refused

    def close(self) -> None:
        self.socket.close(linger=0)


def _key_in(request: list[bytes]) -> str:
    """The public key of who asks, "" when this is no request that we know."""
    if len(request) != _REQUEST_PARTS or request[0] != _VERSION:
        return ""
    domain, mechanism, key = request[2], request[5], request[6]
    if domain != DOMAIN or mechanism != b"CURVE" or len(key) != 32:
        return ""
    return z85.encode(key).decode()
