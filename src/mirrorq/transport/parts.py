"""How the parts of a zmq message enter and leave a socket.

A send never waits, so it keeps the GIL: pyzmq's gives it away, and beside a thread that computes in
Python it comes back after a switch interval (5 ms). So small parts go to libzmq's own `zmq_send`.
"""

from __future__ import annotations

import ctypes
import errno
from collections.abc import Callable, Sequence

import zmq

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


def libzmq_user() -> str:
    """A shared library of pyzmq that is loaded and uses libzmq; "" where there is none."""
    try:
        from zmq.backend.cython import _zmq
    except ImportError:
        return ""
    return str(_zmq.__file__)


def _found_send() -> Callable[[int, bytes, int, int], int] | None:
    """`zmq_send` of the libzmq that pyzmq uses, called with the GIL; None: it is not found."""
    user = libzmq_user()
    if not user:
        return None
    try:
        send = ctypes.PyDLL(user, use_errno=True).zmq_send
    except (OSError, AttributeError):
        return None
    send.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_int)
    send.restype = ctypes.c_int
    found: Callable[[int, bytes, int, int], int] = send
    return found


_zmq_send = _found_send()


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
        if _zmq_send is not None and is_small and isinstance(part, bytes):
            _send_small(socket, _zmq_send, part, flags)
        else:
            # Only bytes never change under libzmq: a memoryview may lie over a page of the store.
            socket.send(part, flags, copy=is_small or not isinstance(part, bytes))


def _send_small(
    socket: zmq.Socket[bytes],
    zmq_send: Callable[[int, bytes, int, int], int],
    part: bytes,
    flags: int,
) -> None:
    """Send a part with the GIL kept. Raises: as `send_parts`."""
    if socket.closed:
        raise zmq.ZMQError(zmq.ENOTSOCK)
    while zmq_send(socket.underlying, part, len(part), flags) < 0:
        error = ctypes.get_errno()
        if error != errno.EINTR:
            raise zmq.ZMQError(error)


def receive_parts(socket: zmq.Socket[bytes]) -> list[bytes]:
    """One zmq message from a socket that is readable, and whose other end is trusted."""
    frame = socket.recv(_NOBLOCK, copy=False)
    parts = [frame.bytes]
    # A frame knows whether there are more; to ask the socket takes longer than to receive them.
    while frame.more:
        frame = socket.recv(_NOBLOCK, copy=False)
        if len(parts) < PARTS_MAX:
            parts.append(frame.bytes)
    return parts


def receive_with_sender(
    socket: zmq.Socket[bytes], bytes_max: int
) -> tuple[zmq.Frame, list[bytes], bool]:
    """One zmq message from a ROUTER that is readable.

    Args:
        bytes_max: that many bytes are kept of it, and PARTS_MAX parts.

    Returns:
        The sender's routing id, the parts, and whether there are more, for `discard`: such a
        message is garbage, and may have so many parts that they are not to be read at once.
    """
    sender = frame = socket.recv(_NOBLOCK, copy=False)
    parts: list[bytes] = []
    while frame.more and len(parts) < PARTS_MAX and bytes_max >= 0:
        frame = socket.recv(_NOBLOCK, copy=False)
        parts.append(frame.bytes)
        bytes_max -= len(parts[-1])
    return sender, parts, frame.more


def discard(socket: zmq.Socket[bytes], count: int) -> tuple[int, bool]:
    """Receive up to so many more parts of a message of which the rest is not wanted.

    Returns:
        How many they were, and whether there are still more.
    """
    for done in range(1, count + 1):
        if not socket.recv(_NOBLOCK, copy=False).more:
            return done, False
    return count, True


def descriptor_of(frame: zmq.Frame) -> int:
    """The descriptor of the connection that it came by, -1 if libzmq does not say."""
    try:
        # The text that zmq_msg_get gives as ZMQ_SRCFD.
        return int(str(frame.get("__fd")))
    except (zmq.ZMQError, ValueError):
        return -1


def key_of(frame: zmq.Frame) -> str:
    """The public key of who sent it to a guarded ROUTER."""
    return str(frame.get("User-Id"))
