"""One outgoing connection and its monitor's events."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Sequence

import zmq

from mirrorq import system
from mirrorq.config import Config
from mirrorq.errors import ConfigError
from mirrorq.transport.curve import LinkKeys
from mirrorq.transport.endpoint import Endpoint
from mirrorq.transport.packing import INDEX_BYTES_MAX, Part, SendBuffer
from mirrorq.transport.parts import is_readable, receive_parts, send_parts

RECONNECT_MS = 10
"""A restarted peer is found at once."""
RECONNECT_MS_MAX = 200
"""A dead peer costs five attempts a second."""
QUEUE_COUNT_MAX = 1000
"""High-water marks in zmq messages. Bytes are bounded by the protocols above: R10 for the
ring, credits for sessions."""
UNACKNOWLEDGED_FAILURES_MAX = 3
"""A connection without acknowledged bytes ends after so many failure times. TCP by itself waits up
to two minutes between attempts after the repair of a cut network."""

CONTEXT_FILES = 24
"""Files opened by a context, its threads and first sockets."""

UP = "up"
DOWN = "down"
FAILED = "failed"
"""An attempt to connect failed."""
REFUSED = "refused"
"""The other end does not know our key."""
UNLIKE = "unlike"
"""The other end ended the connection in the handshake, without a message: as a rule only one of the
two has keys, or the other end's key is not the expected key."""

_CHANGES = {
    int(zmq.EVENT_HANDSHAKE_SUCCEEDED): UP,
    int(zmq.EVENT_DISCONNECTED): DOWN,
    int(zmq.EVENT_CONNECT_RETRIED): FAILED,
    int(zmq.EVENT_HANDSHAKE_FAILED_AUTH): REFUSED,
    int(zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL): UNLIKE,
    int(zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL): UNLIKE,
}
_WATCHED = int(
    zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_DISCONNECTED
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
)


def new_context() -> zmq.Context[zmq.Socket[bytes]]:
    """Make a context of libzmq. libzmq ends the process if a thread's file cannot be opened.

    Raises:
        ConfigError: the process may open too few further files.
    """
    if not system.may_open(CONTEXT_FILES):
        raise ConfigError(
            f"this process has too many files open: its connections need {CONTEXT_FILES} more. "
            "Close some, or raise the limit (`ulimit -n`)"
        )
    return zmq.Context(io_threads=1)


def part_bytes_max(config: Config) -> int:
    """Return the largest part accepted: a frame, or an index with its sizes."""
    return config.frame_bytes_max + 4 * INDEX_BYTES_MAX


def too_large(parts: Sequence[Part], limit: int) -> str:
    """Return why a message is too large, "" if not: its receiver would end the connection."""
    size = max(map(len, parts), default=0)
    return "" if size <= limit else f"has {size} bytes, more than the {limit} that one may have"


def set_bounds(socket: zmq.Socket[bytes], config: Config) -> None:
    """Set the bounds and times of every network socket."""
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.SNDHWM, QUEUE_COUNT_MAX)
    socket.setsockopt(zmq.RCVHWM, QUEUE_COUNT_MAX)
    socket.setsockopt(zmq.MAXMSGSIZE, part_bytes_max(config))
    socket.setsockopt(zmq.HANDSHAKE_IVL, config.failure_ms)
    socket.setsockopt(zmq.TCP_MAXRT, UNACKNOWLEDGED_FAILURES_MAX * config.failure_ms)


def dealer(
    context: zmq.Context[zmq.Socket[bytes]],
    endpoint: Endpoint,
    routing_id: bytes,
    config: Config,
    keys: LinkKeys | None,
) -> zmq.Socket[bytes]:
    """Return a DEALER with all options due before the connect."""
    socket = context.socket(zmq.DEALER)
    set_bounds(socket, config)
    if keys is not None:
        keys.apply(socket)
    socket.setsockopt(zmq.ROUTING_ID, routing_id)
    # Without IMMEDIATE messages would queue for a dead peer and reach its next incarnation.
    socket.setsockopt(zmq.IMMEDIATE, 1)
    socket.setsockopt(zmq.RECONNECT_IVL, RECONNECT_MS)
    socket.setsockopt(zmq.RECONNECT_IVL_MAX, RECONNECT_MS_MAX)
    socket.setsockopt(zmq.CONNECT_TIMEOUT, config.failure_ms)
    socket.setsockopt(zmq.IPV6, int(":" in endpoint.host))
    return socket


class Link:
    """A DEALER connected to one endpoint, its outbox, and the state of the connection."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        endpoint: Endpoint,
        routing_id: bytes,
        config: Config,
        *,
        keys: LinkKeys | None = None,
        watch_failures: bool = False,
    ) -> None:
        self.is_up = False
        self.outbox = SendBuffer()
        self.socket = dealer(context, endpoint, routing_id, config, keys)
        watched = _WATCHED | int(zmq.EVENT_CONNECT_RETRIED) if watch_failures else _WATCHED
        self.monitor: zmq.Socket[bytes] = self.socket.get_monitor_socket(watched)
        self.socket.connect(endpoint.zmq_text)

    def changes(self) -> list[str]:
        """Return the connection's changes since the last call, in order."""
        changes = []
        while is_readable(self.monitor):
            told = receive_parts(self.monitor)[0]
            change = _CHANGES.get(int.from_bytes(told[:2], "little"), FAILED)
            if change == UNLIKE and int.from_bytes(told[2:6], "little") == errno.EAGAIN:
                # Out of time: the other end stands still.
                change = FAILED
            if change == DOWN and not self.is_up:
                # The connection ended before its handshake, as with a stranger at the endpoint.
                change = FAILED
            if change in (UP, DOWN):
                self.is_up = change == UP
            if change == DOWN:
                self.outbox.clear()
            changes.append(change)
        if changes:
            # Let the socket see the new connection now: a send checks at most once a millisecond
            # and would find none.
            is_readable(self.socket)
        return changes

    def greet(self) -> None:
        """Send an empty index, so the other end learns the sender's identity."""
        with contextlib.suppress(zmq.ZMQError):
            send_parts(self.socket, SendBuffer().take_parts())

    def flush(self) -> int:
        """Send the outbox. Return the number of lost messages."""
        count = len(self.outbox)
        if count == 0:
            return 0
        parts = self.outbox.take_parts()
        try:
            send_parts(self.socket, parts)
        except zmq.ZMQError:
            return count
        return 0

    def close(self, linger_ms: int = 0) -> None:
        self.socket.disable_monitor()
        self.monitor.close(linger=0)
        self.socket.close(linger=linger_ms)
