"""CURVE: keys, key options of sockets, and admission of connections (ZAP, ZeroMQ RFC 27).

libzmq asks for admission at the end of each handshake, over a socket inside the process. The thread
which owns the sockets answers. Before the answer libzmq reads only the handshake of a connection.
Afterwards libzmq names the sender's key with every message.
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
    """Admission of connections to a node, and the keys of other nodes."""

    version: int
    """Changes when an answer may have changed."""

    @property
    def secret_key(self) -> str:
        """The node's own."""

    def admits(self, public_key: str) -> bool:
        """Return true if the owner of the key may connect."""

    def is_node(self, public_key: str, node: str) -> bool:
        """Return true if the key belongs to the node with the name."""

    def is_any_node(self, public_key: str) -> bool:
        """Return true if the key belongs to any node."""

    def keys_of(self, node: str) -> tuple[str, ...]:
        """Public keys possible for the node name: a single key for a known node."""

    def refresh(self) -> None:
        """Take in changes. Called often: cheap."""


@frozen
class LinkKeys:
    """Own key of a connection, and the key expected at the other end."""

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
    """Return the public key of a secret key.

    Raises:
        ConfigError: the text is no key.
    """
    try:
        return zmq.curve_public(secret_key.encode()).decode()
    except (zmq.ZMQError, ValueError):
        raise ConfigError("the secret key is not a key: mirrorq key new makes one") from None


def guard_socket(socket: zmq.Socket[bytes], guard: Guard) -> None:
    """Make a socket refuse connections without keys. Call before the bind."""
    socket.setsockopt(zmq.CURVE_SERVER, 1)
    socket.setsockopt(zmq.CURVE_SECRETKEY, guard.secret_key.encode())
    socket.setsockopt(zmq.ZAP_DOMAIN, DOMAIN)
    # Without an answer for any reason, no connection is admitted.
    socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)


class Zap:
    """Answers libzmq's admission requests. Must exist before the guarded socket binds.

    *Threads*: the thread which owns the sockets of the context.
    """

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], guard: Guard) -> None:
        self._guard = guard
        self.socket = context.socket(zmq.REP)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.bind(_ZAP_ENDPOINT)

    def answer(self) -> list[tuple[str, str]]:
        """Answer all waiting requests. Return the refused: address and public key."""
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
    """Return the public key in a request, "" for an unknown kind of request."""
    if len(request) != _REQUEST_PARTS or request[0] != _VERSION:
        return ""
    domain, mechanism, key = request[2], request[5], request[6]
    if domain != DOMAIN or mechanism != b"CURVE" or len(key) != 32:
        return ""
    return z85.encode(key).decode()
