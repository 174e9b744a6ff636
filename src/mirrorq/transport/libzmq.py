"""libzmq's own calls, with the GIL kept: for calls which never wait.

pyzmq releases the GIL around each sent or received part. Beside a computing Python thread the GIL
may return only after a switch interval (5 ms), for a part of a microsecond. The functions come from
pyzmq's libzmq, found through pyzmq. Without the functions `IS_FOUND` is false and pyzmq is used.
"""

from __future__ import annotations

import ctypes
import errno
from typing import Any

import zmq

_Message = ctypes.c_uint64 * 8
"""A zmq_msg_t, as in zmq.h."""


def libzmq_user() -> str:
    """Return a loaded shared library of pyzmq which uses libzmq; "" without a library."""
    try:
        from zmq.backend.cython import _zmq
    except ImportError:
        return ""
    return str(_zmq.__file__)


def _found() -> dict[str, Any]:
    """Return the used functions by name; empty when any is missing."""
    user = libzmq_user()
    if not user:
        return {}
    pointer, flags = ctypes.c_void_p, ctypes.c_int
    number, size, text = ctypes.c_int, ctypes.c_size_t, ctypes.c_char_p
    wanted = {
        "zmq_send": (number, pointer, text, size, flags),
        "zmq_msg_init": (number, pointer),
        "zmq_msg_recv": (number, pointer, pointer, flags),
        "zmq_msg_data": (pointer, pointer),
        "zmq_msg_size": (size, pointer),
        "zmq_msg_more": (number, pointer),
        "zmq_msg_gets": (text, pointer, text),
        "zmq_msg_close": (number, pointer),
    }
    found: dict[str, Any] = {}
    try:
        library = ctypes.PyDLL(user, use_errno=True)
        for name, (result, *arguments) in wanted.items():
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
            found[name] = function
    except (OSError, AttributeError):
        return {}
    return found


_zmq = _found()
IS_FOUND = bool(_zmq)
_NOBLOCK = int(zmq.NOBLOCK)

if IS_FOUND:
    _zmq_send, _init, _recv = _zmq["zmq_send"], _zmq["zmq_msg_init"], _zmq["zmq_msg_recv"]
    _data, _size, _more = _zmq["zmq_msg_data"], _zmq["zmq_msg_size"], _zmq["zmq_msg_more"]
    _gets, _close = _zmq["zmq_msg_gets"], _zmq["zmq_msg_close"]


def _handle(socket: zmq.Socket[bytes]) -> int:
    """Return libzmq's handle; libzmq would use the freed memory of a closed socket.

    Raises:
        zmq.ZMQError: ENOTSOCK when the socket is closed.
    """
    if socket.closed:
        raise zmq.ZMQError(zmq.ENOTSOCK)
    return int(socket.underlying)


def send(socket: zmq.Socket[bytes], part: bytes, flags: int) -> None:
    """Send a copy of a part; `flags` has NOBLOCK.

    Raises:
        zmq.ZMQError: as `Socket.send`.
    """
    handle = _handle(socket)
    while _zmq_send(handle, part, len(part), flags) < 0:
        _raise_error()


def _raise_error() -> None:
    """Raise the error, except after a signal: then the caller repeats the call."""
    error = ctypes.get_errno()
    if error != errno.EINTR:
        raise zmq.ZMQError(error)


class Kept:
    """A message received part by part, from a readable socket."""

    __slots__ = ("_handle", "_message", "more")

    def __init__(self, socket: zmq.Socket[bytes]) -> None:
        self._handle = _handle(socket)
        self._message = _Message()
        _init(self._message)
        self.more = True
        """True if another part follows."""

    def next(self) -> bytes:
        """Receive a part.

        Raises:
            zmq.ZMQError: as `Socket.recv`.
        """
        message = self._message
        while _recv(message, self._handle, _NOBLOCK) < 0:
            _raise_error()
        self.more = bool(_more(message))
        return ctypes.string_at(_data(message), _size(message))

    def text(self, name: str) -> str | None:
        """Return libzmq's property of the last part; None without the property."""
        found: bytes | None = _gets(self._message, name.encode())
        return None if found is None else found.decode()

    def close(self) -> None:
        """Always, or libzmq never frees the last part."""
        _close(self._message)
