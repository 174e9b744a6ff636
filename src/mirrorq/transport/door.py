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
import time
from collections.abc import Sequence

import zmq
from attrs import define

from mirrorq import system
from mirrorq.transport.inbound import PEER_MARK
from mirrorq.transport.parts import is_readable, receive_parts

STRANGER_BYTES_MAX = 64 * 1024
"""Received from a connection that has not given a whole message. A handshake has 1 KB, and the
first message of a client and of a node is small."""
LOOK_MS = 100
"""How often bytes are looked at."""
PRESSED_MS = 20
"""The same while it is too much somewhere, and while somebody has just come: who pours is ended
before what libzmq has of it is large, or a whole message that has to be read."""
YOUNG_MS = 200
"""So long somebody has just come."""
KNOWN_LOOKS_MAX = 32
"""Connections that have given a message are looked at in turn, so many at a time: a look has six
calls of the system."""
STRIKES_MAX = 3
"""Looks in a row at which it must be too much: what the kernel has received may be on its way."""
NODE_FACTOR = 4
"""Who says that it is a node, and has no key to prove it, may have so much more under way."""
STRANGERS_SHARE = 2
"""Connections that have not given a message are at most the whole divided by this."""

PLAIN_BYTES = 0
CURVE_BYTES = 8 + 8 + 1 + 16
"""What encryption adds to a part: CURVE's command, nonce, flags and authenticator."""
_SHORT_HEADER, _LONG_HEADER = 2, 9
_SHORT_MAX = 255
_ACCEPTED = int(zmq.EVENT_ACCEPTED)
_ENDED = int(zmq.EVENT_DISCONNECTED)
_ADDRESS = "inproc://mirrorq-door"


@define(eq=False)
class _Visitor:
    """One connection of the listening socket, a node's or a client's: what it has sent, and what it
    has under way."""

    ends: tuple[object, object]
    """Addresses of both ends: by them it is known again, a descriptor may be another's by now."""
    came_ms: int
    is_stranger: bool = True
    """It has given no message."""
    is_trusted: bool = False
    """A node's, by its key: what it has under way is bounded above."""
    identity: bytes = b""
    """Its routing id, from its first message on."""
    taken: int = 0
    """Bytes on the wire of what came out of libzmq."""
    under_way: int = 0
    """Bytes that were received and not taken, at the last look."""
    strikes: int = 0


class Door:
    """Of one listening socket. Must exist before that binds.

    Args:
        connections_max: more are ended: the oldest that has given no message, or the newest.
        under_way_max: bytes that a client may have sent of messages that are not whole, or not
            read.
        sum_max: bytes that all who are not trusted may have sent so, together: of more, who has
            most is ended. None: no bound, who connects is known by a key.
        part_bytes: added to each part on the wire: PLAIN_BYTES or CURVE_BYTES.

    *Threads*: the one that owns the socket.
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
        """Connections that were ended here."""
        self._connections_max = connections_max
        self._under_way_max = under_way_max
        self._sum_max = sum_max
        self._part_bytes = part_bytes
        self._visitors: dict[int, _Visitor] = {}
        """By descriptor, in the order of coming."""
        self._is_blind = False
        """libzmq does not say from which connection a message came: nothing is known of bytes,
        nor of who has given a message."""
        self._condemned: dict[int, bytes] = {}
        """Descriptor -> routing id of who was ended there for garbage. More of it may follow."""
        self._ended: list[str] = []
        """Why connections were ended since `attend` said so."""
        self._look_at_ms = 0
        self._is_pressed = False
        self._turn = 0
        """Where in their order the next known ones are looked at."""
        self._is_sum_over = 0
        """Looks in a row at which the sum was too much."""
        listener.monitor(_ADDRESS, _ACCEPTED | _ENDED)
        self.monitor: zmq.Socket[bytes] = context.socket(zmq.PAIR)
        self.monitor.setsockopt(zmq.LINGER, 0)
        # A full one would stop libzmq's own thread, and with it everybody's connection.
        self.monitor.setsockopt(zmq.RCVHWM, 0)
        self.monitor.connect(_ADDRESS)

    def __len__(self) -> int:
        """Connections now."""
        return len(self._visitors)

    def identities(self) -> list[bytes]:
        """Routing ids of the connections that have given a message."""
        return [visitor.identity for visitor in self._visitors.values() if visitor.identity]

    @property
    def is_pressed(self) -> bool:
        """Whether it is too much somewhere: `attend` is wanted every PRESSED_MS."""
        return self._is_pressed

    def took(
        self, descriptor: int, identity: bytes, parts: Sequence[bytes], *, is_trusted: bool
    ) -> None:
        """A whole message of ours came from this connection. Below 0: libzmq does not say from
        which."""
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
        """What came from this connection is no message of ours: end it.

        libzmq gives what it has whole of an ended connection all the same, when its descriptor may
        already be another one's: who has not been heard is not ended for that.
        """
        visitor = self._who_sent(descriptor, identity)
        if visitor is None:
            return
        if not visitor.identity and self._condemned.get(descriptor) == identity:
            return
        self._condemned[descriptor] = identity
        self._end(descriptor, "garbage", self._ended)

    def _who_sent(self, descriptor: int, identity: bytes) -> _Visitor | None:
        """Whose message it is; None: of a connection that has ended."""
        visitor = self._visitors.get(descriptor)
        if visitor is None or visitor.identity not in (b"", identity):
            # It may have come since the last look, by the descriptor of one that has gone.
            self._take_events()
            visitor = self._visitors.get(descriptor)
        is_its = visitor is not None and visitor.identity in (b"", identity)
        return visitor if is_its else None

    def attend(self) -> list[str]:
        """See who has come and gone, and end what is too much; returns why, for each.

        To be called when the messages that there are have been read.
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
        """A node sends for all its clients; without keys whoever says so may be one."""
        is_node = known.identity[:1] == PEER_MARK
        return self._under_way_max * (NODE_FACTOR if is_node else 1)

    def _due(self) -> list[int]:
        """Strangers and who has much under way; of the others some, in turn."""
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
            # Half of it, so that those who go on are not counted again at once.
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


def _wire_bytes(part: bytes, added: int) -> int:
    """A part on the wire: ZMTP's header, and what encryption adds."""
    size = len(part) + added
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
        return system.bytes_received(found)
