"""Sending and receiving the parts of a zmq message.

Nothing here waits, so the functions keep the GIL where possible (`libzmq`).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from typing import NamedTuple

import zmq

from mirrorq.transport import libzmq
from mirrorq.transport.packing import Part

ZERO_COPY_BYTES = 64 * 1024
"""From this size on libzmq without a copy is cheaper than with (100 KB: 13 us, not 57)."""
PARTS_MAX = 65_536
"""Limit of kept parts of a zmq message. A message with more is garbage."""
LARGEST_PARTS_MAX = 4
"""Limit of kept bytes of a zmq message, in largest parts: an index, and the large parts of one
message. A message with more is garbage, too."""

_NOBLOCK = int(zmq.NOBLOCK)
_MORE = int(zmq.NOBLOCK | zmq.SNDMORE)
_READABLE = int(zmq.POLLIN)


def is_readable(socket: zmq.Socket[bytes]) -> bool:
    """Return true if a receive finds something. Keeps the GIL, which an attempt gives away."""
    return bool(int(socket.get(zmq.EVENTS)) & _READABLE)


def send_parts(socket: zmq.Socket[bytes], parts: Sequence[Part]) -> None:
    """Send without blocking, all or nothing.

    Raises:
        zmq.ZMQError: EAGAIN when the call would block; EHOSTUNREACH from a ROUTER.
    """
    last = len(parts) - 1
    for position, part in enumerate(parts):
        flags = _NOBLOCK if position == last else _MORE
        is_small = len(part) < ZERO_COPY_BYTES
        if libzmq.IS_FOUND and is_small and isinstance(part, bytes):
            libzmq.send(socket, part, flags)
        else:
            # Only bytes never change under libzmq: a memoryview may lie over a page of the store.
            socket.send(part, flags, copy=is_small or not isinstance(part, bytes))


class _Given:
    """As `libzmq.Kept`, by pyzmq, which releases the GIL."""

    def __init__(self, socket: zmq.Socket[bytes]) -> None:
        self._socket = socket
        self._frame: zmq.Frame | None = None
        self.more = True

    def next(self) -> bytes:
        self._frame = self._socket.recv(_NOBLOCK, copy=False)
        self.more = self._frame.more
        return self._frame.bytes

    def text(self, name: str) -> str | None:
        assert self._frame is not None
        try:
            return str(self._frame.get(name))
        except zmq.ZMQError:
            return None

    def close(self) -> None:
        self._frame = None


def _begin(socket: zmq.Socket[bytes]) -> libzmq.Kept | _Given:
    return libzmq.Kept(socket) if libzmq.IS_FOUND else _Given(socket)


def receive_parts(socket: zmq.Socket[bytes]) -> list[bytes]:
    """Return one zmq message from a readable socket with a trusted other end."""
    with closing(_begin(socket)) as message:
        parts = [message.next()]
        while message.more:
            part = message.next()
            if len(parts) < PARTS_MAX:
                parts.append(part)
    return parts


class Sender(NamedTuple):
    """Sender of a message to a ROUTER."""

    identity: bytes
    """The routing id."""
    descriptor: int
    """Descriptor of the message's connection, -1 if not named by libzmq."""
    key: str
    """The public key, of a guarded ROUTER; else ""."""


def receive_with_sender(
    socket: zmq.Socket[bytes], bytes_max: int
) -> tuple[Sender, list[bytes], bool]:
    """Return one zmq message from a readable ROUTER.

    Args:
        bytes_max: limit of kept bytes, beside PARTS_MAX parts.

    Returns:
        The sender, the parts, and true if more parts wait, for `discard`: the message is
        garbage then, perhaps with too many parts to read at once.
    """
    with closing(_begin(socket)) as message:
        identity = message.next()
        sender = Sender(identity, _number(message.text("__fd")), message.text("User-Id") or "")
        parts: list[bytes] = []
        while message.more and len(parts) < PARTS_MAX and bytes_max >= 0:
            parts.append(message.next())
            bytes_max -= len(parts[-1])
        return sender, parts, message.more


def _number(text: str | None) -> int:
    """Return a descriptor from zmq_msg_get's ZMQ_SRCFD."""
    try:
        return -1 if text is None else int(text)
    except ValueError:
        return -1


def discard(socket: zmq.Socket[bytes], count: int) -> tuple[int, bool]:
    """Receive up to `count` further parts of an unwanted message.

    Returns:
        The number of parts, and true if more wait.
    """
    for done in range(1, count + 1):
        if not socket.recv(_NOBLOCK, copy=False).more:
            return done, False
    return count, True
