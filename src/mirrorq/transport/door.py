"""How many connections a listening socket has, and how much one of them may have under way.

libzmq accepts whoever comes, for as long as there are file descriptors, and keeps the parts of a
message until the last one has come, however many there are. Its monitor tells which connections
there are, and the kernel how many bytes each has received; what is too much is shut down, which
for libzmq is the other end's doing. Before its handshake is done a connection has nothing to send
but some hundred bytes; it also has little time for that (HANDSHAKE_IVL).
"""

from __future__ import annotations

import os
import resource
import socket
import struct
import time
from collections.abc import Sequence

import zmq
from attrs import define

from mirrorq.transport.parts import is_readable, receive_parts

__all__ = ["Door", "address_of", "connections_bound"]

STRANGER_BYTES_MAX = 64 * 1024
"""Received from a connection that has not given a whole message. A handshake has 1 KB, and the
first message of a client and of a node is small."""
LOOK_MS = 100
"""How often bytes are looked at."""
STRIKES_MAX = 3
"""Looks in a row at which it must be too much: what the kernel has received may be on its way."""
STRANGERS_SHARE = 2
"""Connections that have not given a message are at most the whole divided by this."""

_CURVE_BYTES = 8 + 8 + 1 + 16
_SHORT_HEADER, _LONG_HEADER = 2, 9
_SHORT_MAX = 255
_ACCEPTED = int(zmq.EVENT_ACCEPTED)
_ENDED = int(zmq.EVENT_DISCONNECTED)
_ADDRESS = "inproc://mirrorq-door"
_BYTES_RECEIVED = struct.Struct("=Q")
_BYTES_RECEIVED_AT = 128
"""Offset of tcpi_bytes_received in the kernel's tcp_info."""
_INFO_BYTES = _BYTES_RECEIVED_AT + _BYTES_RECEIVED.size
_TCP_INFO = getattr(socket, "TCP_INFO", 11)


@define(eq=False)
class _Visitor:
    """One connection."""

    ends: tuple[object, object]
    """Addresses of both ends: by them it is known again, a descriptor may be another's by now."""
    is_stranger: bool = True
    """It has given no message."""
    is_trusted: bool = False
    """A node's: what it has under way is bounded above."""
    taken: int = 0
    """Bytes on the wire of what came out of libzmq."""
    strikes: int = 0


class Door:
    """Of one listening socket. Must exist before that binds.

    Args:
        connections_max: more are ended: the oldest that has given no message, or the newest.
        under_way_max: bytes that a client may have sent of messages that are not whole, or not
            read. None: nothing is known of who sends, and only connections are counted.

    *Threads*: the one that owns the socket.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        listener: zmq.Socket[bytes],
        connections_max: int,
        under_way_max: int | None,
    ) -> None:
        self.ended_count = 0
        """Connections that were ended here."""
        self._connections_max = connections_max
        self._under_way_max = under_way_max
        self._visitors: dict[int, _Visitor] = {}
        """By descriptor, in the order of coming."""
        self._looked_ms = 0
        listener.monitor(_ADDRESS, _ACCEPTED | _ENDED)
        self.monitor: zmq.Socket[bytes] = context.socket(zmq.PAIR)
        self.monitor.setsockopt(zmq.LINGER, 0)
        # A full one would stop libzmq's own thread, and with it everybody's connection.
        self.monitor.setsockopt(zmq.RCVHWM, 0)
        self.monitor.connect(_ADDRESS)

    def __len__(self) -> int:
        """Connections now."""
        return len(self._visitors)

    def took(self, descriptor: int, parts: Sequence[bytes], *, is_trusted: bool) -> None:
        """A whole message came from this connection, encrypted. Below 0: libzmq does not say
        from which; then nothing can be known of bytes."""
        if descriptor < 0:
            self._under_way_max = None
            return
        visitor = self._visitors.get(descriptor)
        if visitor is not None:
            visitor.is_stranger = False
            visitor.is_trusted = is_trusted
            visitor.taken += sum(map(_wire_bytes, parts))

    def attend(self) -> list[str]:
        """See who has come and gone, and end what is too much; returns why, for each.

        To be called when the messages that there are have been read.
        """
        ended: list[str] = []
        while is_readable(self.monitor):
            self._on_event(receive_parts(self.monitor)[0], ended)
        if self._under_way_max is not None:
            now_ms = time.monotonic_ns() // 1_000_000
            if now_ms - self._looked_ms >= LOOK_MS:
                self._looked_ms = now_ms
                self._look(self._under_way_max, ended)
        return ended

    def _on_event(self, frame: bytes, ended: list[str]) -> None:
        event = int.from_bytes(frame[:2], "little")
        descriptor = int.from_bytes(frame[2:6], "little")
        known = self._visitors.pop(descriptor, None)
        if event != _ACCEPTED:
            return
        ends = _ends_of(descriptor)
        if ends is None:
            return
        self._visitors[descriptor] = _Visitor(ends)
        if known is None:
            self._make_room(ended)

    def _make_room(self, ended: list[str]) -> None:
        count = len(self._visitors)
        is_full = count > self._connections_max
        strangers = (fd for fd, visitor in self._visitors.items() if visitor.is_stranger)
        if self._under_way_max is None:
            # Who has given a message is not known here.
            if is_full:
                self._end(next(reversed(self._visitors)), f"{count} connections", ended)
            return
        oldest = next(strangers, None)
        share = self._connections_max // STRANGERS_SHARE
        if oldest is None:
            if is_full:
                self._end(next(reversed(self._visitors)), f"{count} connections", ended)
        elif is_full or 1 + sum(1 for _ in strangers) > share:
            # The newest may be about to say who it is; the oldest has had its time.
            self._end(oldest, f"{count} connections, the oldest without a message", ended)

    def _look(self, under_way_max: int, ended: list[str]) -> None:
        for descriptor, visitor in list(self._visitors.items()):
            if visitor.is_trusted:
                continue
            received = _received(descriptor, visitor.ends)
            under_way = received - visitor.taken
            limit = STRANGER_BYTES_MAX if visitor.is_stranger else under_way_max
            visitor.strikes = visitor.strikes + 1 if under_way > limit else 0
            if visitor.strikes >= STRIKES_MAX:
                what = "before its first message" if visitor.is_stranger else "of no whole message"
                self._end(descriptor, f"{under_way} bytes {what}", ended)

    def _end(self, descriptor: int, why: str, ended: list[str]) -> None:
        visitor = self._visitors.pop(descriptor)
        duplicate = _duplicate(descriptor, visitor.ends)
        if duplicate is None:
            return
        with duplicate:
            try:
                duplicate.shutdown(socket.SHUT_RDWR)
            except OSError:
                return
        self.ended_count += 1
        ended.append(f"{why} (from {visitor.ends[1]})")

    def close(self) -> None:
        self.monitor.close(linger=0)


def connections_bound(wanted: int) -> int:
    """So many connections at most that descriptors are left for everything else."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return wanted if soft == resource.RLIM_INFINITY else max(min(wanted, soft * 3 // 4), 1)


def address_of(descriptor: int) -> str:
    """Who is at the other end of a connection, as host:port; "" for one that has no address."""
    ends = _ends_of(descriptor) if descriptor >= 0 else None
    if ends is None or not isinstance(ends[1], tuple):
        return ""
    host, port = ends[1][:2]
    return f"[{host}]:{port}" if ":" in str(host) else f"{host}:{port}"


def _wire_bytes(part: bytes) -> int:
    """A part on the wire: ZMTP's header, and CURVE's command, nonce, flags and authenticator."""
    size = len(part) + _CURVE_BYTES
    return size + (_SHORT_HEADER if size <= _SHORT_MAX else _LONG_HEADER)


def _ends_of(descriptor: int) -> tuple[object, object] | None:
    """Both addresses of a connection, None when it is none (any more)."""
    try:
        with _copied(descriptor) as found:
            return found.getsockname(), found.getpeername()
    except OSError:
        return None


def _copied(descriptor: int) -> socket.socket:
    """Another descriptor of the same socket.

    Raises:
        OSError: there is none, or it is no socket (any more).
    """
    copy = os.dup(descriptor)
    try:
        return socket.socket(fileno=copy)
    except OSError:
        os.close(copy)
        raise


def _duplicate(descriptor: int, ends: tuple[object, object]) -> socket.socket | None:
    """The connection with these ends, if the descriptor is still its."""
    try:
        found = _copied(descriptor)
    except OSError:
        return None
    try:
        if (found.getsockname(), found.getpeername()) == ends:
            return found
    except OSError:
        pass
    found.close()
    return None


def _received(descriptor: int, ends: tuple[object, object]) -> int:
    """Bytes that the kernel has received; 0 where it does not say."""
    found = _duplicate(descriptor, ends)
    if found is None:
        return 0
    with found:
        try:
            info = found.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, _INFO_BYTES)
        except OSError:
            return 0
    if len(info) < _INFO_BYTES:
        return 0
    (received,) = _BYTES_RECEIVED.unpack_from(info, _BYTES_RECEIVED_AT)
    return int(received)
