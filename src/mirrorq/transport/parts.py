"""How the parts of a zmq message enter and leave a socket."""

from __future__ import annotations

from collections.abc import Sequence

import zmq

from mirrorq.transport.packing import Part

ZERO_COPY_BYTES = 64 * 1024
"""From here on handing a part to libzmq is cheaper than copying it (100 KB: 13 us, not 57)."""
PARTS_MAX = 65_536
"""Parts of one zmq message that are kept. A message with more is garbage."""

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
        # Only bytes never change under libzmq: a memoryview may lie over a page of the store.
        copy = len(part) < ZERO_COPY_BYTES or not isinstance(part, bytes)
        socket.send(part, _NOBLOCK if position == last else _MORE, copy=copy)


def receive_parts(socket: zmq.Socket[bytes]) -> list[bytes]:
    """One zmq message from a socket that is readable."""
    return _with_rest(socket, socket.recv(_NOBLOCK, copy=False))


def receive_with_sender(socket: zmq.Socket[bytes]) -> tuple[zmq.Frame, list[bytes]]:
    """One zmq message from a ROUTER that is readable: the sender's routing id, then the parts."""
    first = socket.recv(_NOBLOCK, copy=False)
    return first, _with_rest(socket, socket.recv(_NOBLOCK, copy=False)) if first.more else []


def _with_rest(socket: zmq.Socket[bytes], frame: zmq.Frame) -> list[bytes]:
    """This part of a message and those after it."""
    parts = [frame.bytes]
    # A frame knows whether there are more; to ask the socket takes longer than to receive them.
    while frame.more:
        frame = socket.recv(_NOBLOCK, copy=False)
        if len(parts) < PARTS_MAX:
            parts.append(frame.bytes)
    return parts


def descriptor_of(frame: zmq.Frame) -> int:
    """The descriptor of the connection that it came by, -1 if libzmq does not say."""
    try:
        # The text that zmq_msg_get gives as ZMQ_SRCFD.
        return int(str(frame.get("__fd")))
    except (zmq.ZMQError, ValueError):
        return -1


def receive_with_key(socket: zmq.Socket[bytes]) -> tuple[str, int, list[bytes]]:
    """One zmq message from a guarded ROUTER that is readable: its sender's key and the
    descriptor of his connection, -1 if libzmq does not say; then the parts."""
    first, rest = receive_with_sender(socket)
    return str(first.get("User-Id")), descriptor_of(first), [first.bytes, *rest]
