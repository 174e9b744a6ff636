"""How the parts of a zmq message enter and leave a socket.

Nothing here waits, so it keeps the GIL where it can (`libzmq`).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from typing import NamedTuple

import zmq

from mirrorq.transport import libzmq
from mirrorq.transport.packing import Part

ZERO_COPY_BYTES = 64 * 1024
"""From here on handing a part to libzmq is cheaper than copying it (100 KB: 13 us, not 57)."""
PARTS_MAX = 65_536
"""Parts of one zmq message that are kept. A message with more is garbage."""
LARGEST_PARTS_MAX = 4
"""Of one zmq message no more bytes are kept than so many of the largest parts have: an index, and
what one message has beside it. A message with more is garbage, too."""

_NOBLOCK = int(zmq.NOBLOCK)
_MORE = int(zmq.NOBLOCK | zmq.SNDMORE)
_READABLE = int(zmq.POLLIN)


def is_readable(socket: zmq.Socket[bytes]) -> bool:
    """Whether a receive finds something. Keeps the GIL, which an attempt gives away."""
    return bool(int(socket.get(zmq.EVENTS)) & _READABLE)


def send_parts(socket: zmq.Socket[bytes], parts: Sequence[Part]) -> None:
    """Send without blocking, all or nothing.

    Raises:
        zmq.ZMQError: EAGAIN when it would block; EHOSTUNREACH from a ROUTER.
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
    """What `libzmq.Kept` does, by pyzmq, which gives the GIL away."""

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
    """One zmq message from a socket that is readable, and whose other end is trusted."""
    with closing(_begin(socket)) as message:
        parts = [message.next()]
        while message.more:
            part = message.next()
            if len(parts) < PARTS_MAX:
                parts.append(part)
    return parts


class Sender(NamedTuple):
    """Who sent a message to a ROUTER."""

    identity: bytes
    """The routing id."""
    descriptor: int
    """Of the connection that it came by, -1 if libzmq does not say."""
    key: str
    """The public key, of a guarded ROUTER; else ""."""


def receive_with_sender(
    socket: zmq.Socket[bytes], bytes_max: int
) -> tuple[Sender, list[bytes], bool]:
    """One zmq message from a ROUTER that is readable.

    Args:
        bytes_max: that many bytes are kept of it, and PARTS_MAX parts.

    Returns:
        The sender, the parts, and whether there are more, for `discard`: such a
        message is garbage, and may have so many parts that they are not to be read at once.
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
    """A descriptor: what zmq_msg_get gives as ZMQ_SRCFD."""
    try:
        return -1 if text is None else int(text)
    except ValueError:
        return -1


def discard(socket: zmq.Socket[bytes], count: int) -> tuple[int, bool]:
    """Receive up to so many more parts of a message of which the rest is not wanted.

    Returns:
        How many they were, and whether there are still more.
    """
    for done in range(1, count + 1):
        if not socket.recv(_NOBLOCK, copy=False).more:
            return done, False
    return count, True
