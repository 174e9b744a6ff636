"""The socket of a process that is no node."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

import zmq

from mirrorq.config import Config
from mirrorq.errors import ConfigError, MirrorQError, ProtocolError, ShutDown
from mirrorq.transport.endpoint import Endpoint, parse_endpoint
from mirrorq.transport.inbound import (
    DATA,
    ClientInbound,
    Garbage,
    LinkDown,
    LinkUp,
    SendLost,
    ServerMessage,
)
from mirrorq.transport.link import (
    DOWN,
    UP,
    Link,
    is_readable,
    part_bytes_max,
    receive_parts,
)
from mirrorq.transport.packing import Part, unpack
from mirrorq.transport.wake import Waker

CLIENT_MARK = b"C"
ROUND_COUNT_MAX = 2000
"""zmq messages that one poll returns at most, so that a round ends."""
LAP_MS = 50
"""Pause after all endpoints have been tried in vain."""


class ClientSocket:
    """A connection to one of several nodes at a time; to the next when one is gone.

    Args:
        endpoints: tried in order, beginning again at the end.
        config: bounds and times; an endpoint that has not answered within `failure_ms` is
            left for the next.

    Raises:
        ConfigError: an endpoint is malformed, or there is none.

    *Threads*: one thread owns it, all methods but `wake` are that thread's.
    """

    def __init__(self, endpoints: Sequence[str], config: Config) -> None:
        self._endpoints: list[Endpoint] = [parse_endpoint(text) for text in endpoints]
        if not self._endpoints:
            raise ConfigError("no endpoint to connect to: name at least one")
        self.identity = CLIENT_MARK + os.urandom(16)
        """What nodes know this socket by."""
        self.dropped_count = 0
        """Messages that could not be sent."""
        self.garbage_count = 0
        """Messages received that could not be read."""
        self._pid = os.getpid()
        self._config = config
        self._part_bytes_max = part_bytes_max(config)
        self._index = 0
        self._lost: list[ClientInbound] = []
        self._is_closed = False
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads=1)
        self._waker = Waker()
        self._poller = zmq.Poller()
        self._poller.register(self._waker.fd, zmq.POLLIN)
        self._link: Link | None = None
        self._deadline_ms = 0
        self._connect()

    @property
    def endpoint(self) -> str:
        """The endpoint that it is connected to, or tries."""
        return self._endpoints[self._index].text

    @property
    def is_up(self) -> bool:
        return self._link is not None and self._link.is_up

    def _connect(self) -> None:
        self._link = Link(
            self._context,
            self._endpoints[self._index],
            self.identity,
            self._config,
            watch_failures=True,
        )
        self._deadline_ms = _now_ms() + self._config.failure_ms
        self._poller.register(self._link.socket, zmq.POLLIN)
        self._poller.register(self._link.monitor, zmq.POLLIN)

    def _disconnect(self) -> None:
        link = self._link
        if link is not None:
            self._link = None
            self._poller.unregister(link.socket)
            self._poller.unregister(link.monitor)
            link.close()

    def leave(self) -> None:
        """Go to the next endpoint: this node does not answer, or cannot serve now."""
        self._check_open()
        if self.is_up:
            self._lost.append(LinkDown(self.endpoint))
        self._disconnect()
        self._index = (self._index + 1) % len(self._endpoints)
        self._deadline_ms = _now_ms() + (LAP_MS if self._index == 0 else 0)

    def send(self, parts: Sequence[Part]) -> bool:
        """Give one message to the node; it leaves at the next `flush` or `poll`.

        Returns:
            False: dropped, because there is no connection or its queue is full. When the
            queue proves full only later, `poll` returns `SendLost`.
        """
        link = self._link
        limit = self._part_bytes_max
        if link is None or not link.is_up or any(len(part) > limit for part in parts):
            self.dropped_count += 1
            return False
        link.outbox.add(parts)
        return not link.outbox.is_full or self._flush_link(link)

    def flush(self) -> None:
        """Hand everything that was sent to the network."""
        self._check_open()
        if self._link is not None:
            self._flush_link(self._link)

    def _flush_link(self, link: Link) -> bool:
        lost = link.flush()
        if lost:
            self.dropped_count += lost
            self._lost.append(SendLost(self.endpoint, DATA, lost))
        return lost == 0

    def wake(self) -> None:
        """End a `poll` of the owning thread, or its next one. Thread-safe, cheap, coalesces."""
        self._waker.wake()

    def poll(self, timeout_ms: int) -> list[ClientInbound]:
        """Flush, wait until something is there, and return all of it, within bounds.

        Args:
            timeout_ms: 0 or more. Returns earlier on `wake`; may return nothing earlier.
        """
        self.flush()
        inbound, self._lost = self._lost, []
        if inbound or (self._link is not None and is_readable(self._link.socket)):
            timeout_ms = 0
        self._wait(timeout_ms)
        if self._link is not None:
            self._read_messages(self._link, inbound)
            self._read_changes(self._link, inbound)
        if not self.is_up and _now_ms() >= self._deadline_ms:
            if self._link is None:
                self._connect()
            else:
                self.leave()
        return inbound

    def _wait(self, timeout_ms: int) -> None:
        """Block until something is there. Gives the GIL away only if there is need to."""
        if timeout_ms <= 0 or not self._waker.fall_asleep():
            self._waker.awake(is_readable=False)
            return
        if not self.is_up:
            timeout_ms = max(0, min(timeout_ms, self._deadline_ms - _now_ms()))
        ready = self._poller.poll(timeout_ms)
        waker_fd = self._waker.fd
        self._waker.awake(is_readable=any(item[0] == waker_fd for item in ready))

    def _read_messages(self, link: Link, inbound: list[ClientInbound]) -> None:
        bytes_left = self._part_bytes_max
        for _ in range(ROUND_COUNT_MAX):
            if bytes_left <= 0 or not is_readable(link.socket):
                return
            parts = receive_parts(link.socket)
            bytes_left -= sum(map(len, parts))
            try:
                inbound.extend([ServerMessage(message) for message in unpack(parts)])
            except ProtocolError as error:
                self.garbage_count += 1
                inbound.append(Garbage(self.endpoint, str(error)))

    def _read_changes(self, link: Link, inbound: list[ClientInbound]) -> None:
        for change in link.changes():
            if change == UP:
                inbound.append(LinkUp(self.endpoint))
                continue
            if change == DOWN:
                inbound.append(LinkDown(self.endpoint))
            self.leave()
            return

    def close(self, linger_ms: int = 0) -> None:
        """Close it; what was sent gets `linger_ms` to leave. Twice is no error.

        In a forked child it does nothing: the socket is the parent's.
        """
        if self._is_closed or os.getpid() != self._pid:
            return
        self.flush()
        self._is_closed = True
        if self._link is not None:
            self._link.close(linger_ms)
        self._context.term()
        self._waker.close()

    def _check_open(self) -> None:
        if os.getpid() != self._pid:
            raise MirrorQError(
                f"this client belongs to process {self._pid} and cannot be used in the forked "
                f"process {os.getpid()}: connect after the fork"
            )
        if self._is_closed:
            raise ShutDown("the client is closed")


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000
