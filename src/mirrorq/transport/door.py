"""Limits of a listening socket: number of connections, and unread bytes of each connection.

libzmq accepts every connection, as long as file descriptors last. libzmq also keeps the parts of a
message until the last has come, however many. Its monitor reports the connections, and the kernel
the bytes received by each. An excessive connection is shut down; libzmq takes the shutdown for the
other end's. Before the end of its handshake a connection needs only some hundred bytes, and has
little time (HANDSHAKE_IVL).
"""

from __future__ import annotations

import os
import resource
import socket
import time
from collections.abc import Sequence

import zmq
from attrs import define

from mirrorq import system
from mirrorq.transport.inbound import PEER_MARK
from mirrorq.transport.parts import is_readable, receive_parts

STRANGER_BYTES_MAX = 64 * 1024
"""Limit of bytes from a connection without a whole message. A handshake has 1 KB, and the first
message of a client or node is small."""
LOOK_MS = 100
"""How often bytes are looked at."""
PRESSED_MS = 20
"""The interval under excess or with a new connection: a flood ends before libzmq holds much, or
holds a large whole message."""
YOUNG_MS = 200
"""Time for which a connection counts as new."""
KNOWN_LOOKS_MAX = 32
"""Connections with a message are looked at in turn, so many at a time: a look takes six system
calls."""
STRIKES_MAX = 3
"""Looks in a row with excess before the end: bytes received by the kernel may be on their way."""
NODE_FACTOR = 4
"""Factor of the limit for a connection which claims, without a key, to be a node."""
STRANGERS_SHARE = 2
"""Connections without a message are at most the whole number divided by this."""

PLAIN_BYTES = 0
CURVE_BYTES = 8 + 8 + 1 + 16
"""Bytes which encryption adds to a part: CURVE's command, nonce, flags and authenticator."""
_SHORT_HEADER, _LONG_HEADER = 2, 9
_SHORT_MAX = 255
_ACCEPTED = int(zmq.EVENT_ACCEPTED)
_ENDED = int(zmq.EVENT_DISCONNECTED)
_ADDRESS = "inproc://mirrorq-door"


@define(eq=False)
class _Visitor:
    """A connection of the listening socket, a node's or a client's: its sent bytes and its unread
    bytes."""

    ends: tuple[object, object]
    """Addresses of both ends, to recognise the connection: its descriptor may be reused."""
    came_ms: int
    is_stranger: bool = True
    """The connection has given no message."""
    is_trusted: bool = False
    """A node by its key: bounded by the protocols above."""
    identity: bytes = b""
    """Routing id, known from the first message on."""
    taken: int = 0
    """Bytes on the wire of messages taken from libzmq."""
    under_way: int = 0
    """Bytes received and not taken, at the last look."""
    strikes: int = 0


class Door:
    """The limits of one listening socket. Must exist before the bind.

    Args:
        connections_max: beyond, the oldest connection without a message ends, or the newest.
        under_way_max: limit of a client's sent bytes in messages not whole, or not
            read.
        sum_max: limit of the same for all untrusted connections together: beyond, the largest
            ends. None: no limit, as keys identify connections.
        part_bytes: added to each part on the wire: PLAIN_BYTES or CURVE_BYTES.

    *Threads*: the thread which owns the socket.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        listener: zmq.Socket[bytes],
        connections_max: int,
        under_way_max: int,
        *,
        sum_max: int | None = None,
        part_bytes: int = CURVE_BYTES,
    ) -> None:
        self.ended_count = 0
        """Connections ended by the door."""
        self._connections_max = connections_max
        self._under_way_max = under_way_max
        self._sum_max = sum_max
        self._part_bytes = part_bytes
        self._visitors: dict[int, _Visitor] = {}
        """Connections by descriptor, in the order of coming."""
        self._is_blind = False
        """libzmq does not name the connection of a message: bytes and first messages are unknown.
        """
        self._condemned: dict[int, bytes] = {}
        """Descriptor -> routing id of a connection ended for garbage. More garbage may follow."""
        self._ended: list[str] = []
        """Reasons for connections ended since the last `attend`."""
        self._look_at_ms = 0
        self._is_pressed = False
        self._turn = 0
        """Place of the next known connections to look at."""
        self._is_sum_over = 0
        """Looks in a row at which the sum was too much."""
        listener.monitor(_ADDRESS, _ACCEPTED | _ENDED)
        self.monitor: zmq.Socket[bytes] = context.socket(zmq.PAIR)
        self.monitor.setsockopt(zmq.LINGER, 0)
        # A full queue would stop libzmq's own thread, and so every connection.
        self.monitor.setsockopt(zmq.RCVHWM, 0)
        self.monitor.connect(_ADDRESS)

    def __len__(self) -> int:
        """Connections now."""
        return len(self._visitors)

    def identities(self) -> list[bytes]:
        """Routing ids of the connections with a message."""
        return [visitor.identity for visitor in self._visitors.values() if visitor.identity]

    @property
    def is_pressed(self) -> bool:
        """Return true under excess: `attend` is wanted every PRESSED_MS."""
        return self._is_pressed

    def took(
        self, descriptor: int, identity: bytes, parts: Sequence[bytes], *, is_trusted: bool
    ) -> None:
        """Note a whole message of mirrorq from the connection. Below 0: connection not named by
        libzmq."""
        if descriptor < 0:
            self._is_blind = True
            return
        visitor = self._who_sent(descriptor, identity)
        if visitor is not None:
            visitor.identity = identity
            visitor.is_stranger = False
            visitor.is_trusted = is_trusted
            visitor.taken += sum(_wire_bytes(part, self._part_bytes) for part in parts)

    def end_for_garbage(self, descriptor: int, identity: bytes) -> None:
        """End the connection: its bytes are no message of mirrorq.

        libzmq still delivers whole messages of an ended connection, when a new connection may have
        the descriptor. So a new connection does not end for the routing id condemned before.
        """
        visitor = self._who_sent(descriptor, identity)
        if visitor is None:
            return
        if not visitor.identity and self._condemned.get(descriptor) == identity:
            return
        self._condemned[descriptor] = identity
        self._end(descriptor, "garbage", self._ended)

    def _who_sent(self, descriptor: int, identity: bytes) -> _Visitor | None:
        """Return the sender's connection; None if ended."""
        visitor = self._visitors.get(descriptor)
        if visitor is None or visitor.identity not in (b"", identity):
            # The connection may be new, with the descriptor of an ended connection.
            self._take_events()
            visitor = self._visitors.get(descriptor)
        is_its = visitor is not None and visitor.identity in (b"", identity)
        return visitor if is_its else None

    def attend(self) -> list[str]:
        """Note new and ended connections, and end excessive ones; return the reason for each.

        Call after all waiting messages have been read.
        """
        self._take_events()
        ended, self._ended = self._ended, []
        if not self._is_blind:
            now_ms = _now_ms()
            if now_ms >= self._look_at_ms:
                self._look(now_ms, ended)
                self._look_at_ms = now_ms + (PRESSED_MS if self._is_pressed else LOOK_MS)
        return ended

    def _take_events(self) -> None:
        while is_readable(self.monitor):
            self._on_event(receive_parts(self.monitor)[0], self._ended)

    def _on_event(self, frame: bytes, ended: list[str]) -> None:
        event = int.from_bytes(frame[:2], "little")
        descriptor = int.from_bytes(frame[2:6], "little")
        known = self._visitors.pop(descriptor, None)
        if event != _ACCEPTED:
            return
        ends = _ends_of(descriptor)
        if ends is None:
            return
        now_ms = _now_ms()
        self._visitors[descriptor] = _Visitor(ends, now_ms)
        self._is_pressed = True
        self._look_at_ms = min(self._look_at_ms, now_ms + PRESSED_MS)
        if known is None:
            self._make_room(ended)

    def _make_room(self, ended: list[str]) -> None:
        count = len(self._visitors)
        is_full = count > self._connections_max
        strangers = (fd for fd, visitor in self._visitors.items() if visitor.is_stranger)
        if self._is_blind:
            # Connections with a message are unknown here.
            if is_full:
                self._end(next(reversed(self._visitors)), f"{count} connections", ended)
            return
        oldest = next(strangers, None)
        share = self._connections_max // STRANGERS_SHARE
        if oldest is None:
            if is_full:
                self._end(next(reversed(self._visitors)), f"{count} connections", ended)
        elif is_full or 1 + sum(1 for _ in strangers) > share:
            # The newest may be about to send its first message; the oldest has had its time.
            self._end(oldest, f"{count} connections, the oldest without a message", ended)

    def _look(self, now_ms: int, ended: list[str]) -> None:
        self._is_pressed = False
        for descriptor in self._due():
            visitor = self._visitors[descriptor]
            received = _received(descriptor, visitor.ends)
            visitor.under_way = max(received - visitor.taken, 0)
            limit = STRANGER_BYTES_MAX if visitor.is_stranger else self._limit_of(visitor)
            is_over = visitor.under_way > limit and not visitor.is_trusted
            visitor.strikes = visitor.strikes + 1 if is_over else 0
            is_young = visitor.is_stranger and now_ms < visitor.came_ms + YOUNG_MS
            self._is_pressed |= is_over or is_young
            if visitor.strikes >= STRIKES_MAX:
                what = "before its first message" if visitor.is_stranger else "of no whole message"
                self._end(descriptor, f"{visitor.under_way} bytes {what}", ended)
        if self._sum_max is not None:
            self._look_at_sum(self._sum_max, ended)

    def _limit_of(self, known: _Visitor) -> int:
        """A node sends for all its clients; without keys any connection may claim to be a node."""
        is_node = known.identity[:1] == PEER_MARK
        return self._under_way_max * (NODE_FACTOR if is_node else 1)

    def _due(self) -> list[int]:
        """Return new and busy connections, and a portion of the rest in turn."""
        found, others = [], []
        for descriptor, visitor in self._visitors.items():
            if visitor.is_stranger or visitor.under_way > STRANGER_BYTES_MAX:
                found.append(descriptor)
            elif not visitor.is_trusted:
                others.append(descriptor)
        self._turn = self._turn if self._turn < len(others) else 0
        found += others[self._turn : self._turn + KNOWN_LOOKS_MAX]
        self._turn += KNOWN_LOOKS_MAX
        return found

    def _look_at_sum(self, sum_max: int, ended: list[str]) -> None:
        counted = {fd: v for fd, v in self._visitors.items() if not v.is_trusted}
        under_way = sum(visitor.under_way for visitor in counted.values())
        self._is_sum_over = self._is_sum_over + 1 if under_way > sum_max else 0
        self._is_pressed |= self._is_sum_over > 0
        if self._is_sum_over < STRIKES_MAX:
            return
        for descriptor in sorted(counted, key=lambda fd: counted[fd].under_way, reverse=True):
            # Down to half of the limit, so the remaining connections do not exceed it at once.
            if under_way <= sum_max // 2:
                return
            size = counted[descriptor].under_way
            self._end(descriptor, f"{size} of {under_way} bytes of no whole message", ended)
            under_way -= size

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


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000


def connections_bound(wanted: int) -> int:
    """Return the limit of connections, low enough to leave descriptors for other uses."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return wanted if soft == resource.RLIM_INFINITY else max(min(wanted, soft * 3 // 4), 1)


def address_of(descriptor: int) -> str:
    """Return the other end of a connection as host:port; "" without an address."""
    ends = _ends_of(descriptor) if descriptor >= 0 else None
    if ends is None or not isinstance(ends[1], tuple):
        return ""
    host, port = ends[1][:2]
    return f"[{host}]:{port}" if ":" in str(host) else f"{host}:{port}"


def _wire_bytes(part: bytes, added: int) -> int:
    """Return the bytes of a part on the wire: with ZMTP's header and the encryption."""
    size = len(part) + added
    return size + (_SHORT_HEADER if size <= _SHORT_MAX else _LONG_HEADER)


def _ends_of(descriptor: int) -> tuple[object, object] | None:
    """Return both addresses of a connection, None without a connection."""
    try:
        with _copied(descriptor) as found:
            return found.getsockname(), found.getpeername()
    except OSError:
        return None


def _copied(descriptor: int) -> socket.socket:
    """Return another descriptor of the same socket.

    Raises:
        OSError: the descriptor is closed, or no socket.
    """
    copy = os.dup(descriptor)
    try:
        return socket.socket(fileno=copy)
    except OSError:
        os.close(copy)
        raise


def _duplicate(descriptor: int, ends: tuple[object, object]) -> socket.socket | None:
    """Return the connection with these ends, if the descriptor still has the connection."""
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
    """Return the bytes received by the kernel; 0 if unknown."""
    found = _duplicate(descriptor, ends)
    if found is None:
        return 0
    with found:
        return system.bytes_received(found)
