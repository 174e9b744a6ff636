"""The socket of a client process."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

import zmq

from mirrorq.config import Config
from mirrorq.errors import ConfigError, MirrorQError, ProtocolError, ShutDown
from mirrorq.transport.curve import LinkKeys, public_key_of
from mirrorq.transport.endpoint import Endpoint, parse_endpoint
from mirrorq.transport.inbound import (
    CLIENT_CONTROL_MARK,
    CLIENT_MARK,
    CONTROL,
    DATA,
    ClientInbound,
    Connected,
    Disconnected,
    Garbage,
    HandshakeRefused,
    SendLost,
    ServerMessage,
)
from mirrorq.transport.link import DOWN, REFUSED, UNLIKE, UP, Link, new_context, part_bytes_max
from mirrorq.transport.packing import Part, unpack
from mirrorq.transport.parts import is_readable, receive_parts
from mirrorq.transport.wake import Waker

ROUND_COUNT_MAX = 2000
"""Limit of zmq messages in a poll, so each round ends."""
LOOK_MS = 10
"""Interval at which a never idle thread checks its connections for changes."""
LAP_MS = 50
"""Pause after all endpoints have been tried in vain."""
REFUSED_LAP_MS_MAX = 2000
"""Longest pause after all endpoints have refused the client, because none lists its key. The pause
begins with LAP_MS and doubles at each lap."""


class ClientSocket:
    """A connection to one of several nodes at a time; to the next when a node is gone.

    The node gets two connections, as between nodes: a large frame delays no sign of life. The data
    connection is made first, the control connection follows.

    Args:
        endpoints: tried in order, beginning again at the end.
        config: bounds and times; an endpoint without an answer within `failure_ms` is
            left for the next.
        secret_key: the client's own; "" for connections without security.
        server_keys: public keys of the nodes. Each endpoint must have a key of the list; the
            right key is found by trying, and remembered.
        beside: another socket of the owning thread. Input here ends its `poll`. Poll it first and
            this one with 0; close this one first.

    Raises:
        ConfigError: an endpoint is malformed, or the list is empty.

    *Threads*: one owning thread calls all methods; any thread may call `wake`.
    """

    def __init__(
        self,
        endpoints: Sequence[str],
        config: Config,
        *,
        secret_key: str = "",
        server_keys: Sequence[str] = (),
        beside: ClientSocket | None = None,
    ) -> None:
        self._endpoints: list[Endpoint] = [parse_endpoint(text) for text in endpoints]
        if not self._endpoints:
            raise ConfigError("no endpoint to connect to: name at least one")
        self.identity = CLIENT_MARK + os.urandom(16)
        """Name of the socket at the nodes, secret and not guessable: a stranger with the name could
        take the connection over."""
        self.dropped_count = 0
        """Messages which could not be sent."""
        self.garbage_count = 0
        """Received messages which could not be read."""
        self._pid = os.getpid()
        self._config = config
        self._part_bytes_max = part_bytes_max(config)
        self._index = 0
        self._secret_key = secret_key
        self._server_keys = {text: list(server_keys) for text in self._endpoints}
        """Keys to try at each endpoint, the next key first."""
        self._keys_tried = 0
        """At the present endpoint, in vain."""
        self._refusals = 0
        """Endpoints in a row which refused the client."""
        self._lost: list[ClientInbound] = []
        self._is_closed = False
        self._is_beside = beside is not None
        self._context: zmq.Context[zmq.Socket[bytes]]
        if beside is None:
            self._context, self._waker, self._poller = new_context(), Waker(), zmq.Poller()
            self._poller.register(self._waker.fd, zmq.POLLIN)
        else:
            self._context, self._waker = beside._context, beside._waker
            self._poller = beside._poller
        self._link: Link | None = None
        self._control: Link | None = None
        self._deadline_ms = 0
        self._look_at_ms = 0
        self._connect()

    @property
    def endpoint(self) -> str:
        """The endpoint of the present connection or attempt."""
        return self._endpoints[self._index].text

    @property
    def is_up(self) -> bool:
        """Return true if both connections stand."""
        return self._control is not None and self._control.is_up

    @property
    def has_input(self) -> bool:
        """Return true if messages can be read without a wait."""
        return bool(self._lost) or any(is_readable(link.socket) for link in self._links)

    @property
    def retry_at_ms(self) -> int | None:
        """When `poll` is to be called next for want of a connection; None with one."""
        return None if self.is_up else self._deadline_ms

    @property
    def _links(self) -> list[Link]:
        return [link for link in (self._control, self._link) if link is not None]

    def _connect(self) -> None:
        self._link = self._linked(self.identity)

    def _linked(self, identity: bytes) -> Link:
        endpoint = self._endpoints[self._index]
        keys = None
        if self._secret_key:
            keys = LinkKeys(self._secret_key, self._server_keys[endpoint][0])
        link = Link(self._context, endpoint, identity, self._config, keys=keys, watch_failures=True)
        self._deadline_ms = _now_ms() + self._config.failure_ms
        self._poller.register(link.socket, zmq.POLLIN)
        self._poller.register(link.monitor, zmq.POLLIN)
        return link

    def _disconnect(self, linger_ms: int = 0) -> None:
        for link in self._links:
            self._poller.unregister(link.socket)
            self._poller.unregister(link.monitor)
            link.close(linger_ms)
        self._link = self._control = None

    def leave(self, *, is_refused: bool = False) -> None:
        """Go to the next endpoint: the present node does not answer, or cannot serve now.

        Args:
            is_refused: the node has refused the client.
        """
        self._check_open()
        if self.is_up:
            self._lost.append(Disconnected(self.endpoint))
        self._disconnect()
        self._keys_tried = 0
        self._index = (self._index + 1) % len(self._endpoints)
        self._refusals = self._refusals + 1 if is_refused else 0
        self._deadline_ms = _now_ms() + (self._lap_ms() if self._index == 0 else 0)

    def _lap_ms(self) -> int:
        laps_refused = min(self._refusals // len(self._endpoints), 16)
        return min(LAP_MS << laps_refused, REFUSED_LAP_MS_MAX)

    def send(self, parts: Sequence[Part], channel: int = DATA) -> bool:
        """Give one message to the node; the message leaves at the next `flush` or `poll`.

        Returns:
            False: dropped, without a connection or with a full queue. When the queue
            proves full only later, `poll` returns `SendLost`.
        """
        link = self._link if channel == DATA else self._control
        limit = self._part_bytes_max
        if link is None or not self.is_up or any(len(part) > limit for part in parts):
            self.dropped_count += 1
            return False
        link.outbox.add(parts)
        return not link.outbox.is_full or self._flush_link(link)

    def flush(self) -> None:
        """Hand all sent messages to the network."""
        self._check_open()
        for link in self._links:
            self._flush_link(link)

    def _flush_link(self, link: Link) -> bool:
        size = link.outbox.bytes
        lost = link.flush()
        if lost:
            self.dropped_count += lost
            channel = DATA if link is self._link else CONTROL
            self._lost.append(SendLost(self.endpoint, channel, lost, size))
        return lost == 0

    def wake(self) -> None:
        """End a `poll` of the owning thread, or its next `poll`. Thread-safe, cheap, coalesces."""
        self._waker.wake()

    def poll(self, timeout_ms: int) -> list[ClientInbound]:
        """Flush, wait for input, and return all input, within bounds.

        Args:
            timeout_ms: 0 or more. Returns earlier on `wake`; may return nothing earlier.
        """
        self.flush()
        inbound, self._lost = self._lost, []
        ready = [link for link in self._links if is_readable(link.socket)]
        has_slept = timeout_ms > 0 and not (inbound or ready) and self._waker.fall_asleep()
        is_look_due = False
        if has_slept:
            ready, is_look_due = self._sleep(timeout_ms)
        else:
            self._waker.awake(is_readable=False)
        for link in ready:
            self._read_messages(link, inbound)
        now_ms = _now_ms()
        is_late = now_ms >= self._look_at_ms and not has_slept
        if is_look_due or is_late or not self.is_up:
            self._look_at_ms = now_ms + LOOK_MS
            for link in self._links:
                if link in (self._control, self._link):
                    self._read_changes(link, inbound)
        if not self.is_up and _now_ms() >= self._deadline_ms:
            if self._link is None:
                self._connect()
            else:
                self.leave()
        return inbound

    def _sleep(self, timeout_ms: int) -> tuple[list[Link], bool]:
        """Block until something is there; gives the GIL away.

        Returns:
            Links with messages, and whether a connection is known to have come or gone.
        """
        if not self.is_up:
            timeout_ms = max(0, min(timeout_ms, self._deadline_ms - _now_ms()))
        found = [item for item, _ in self._poller.poll(timeout_ms)]
        self._waker.awake(is_readable=self._waker.fd in found)
        ready = [link for link in self._links if link.socket in found]
        return ready, any(link.monitor in found for link in self._links)

    def _read_messages(self, link: Link, inbound: list[ClientInbound]) -> None:
        """Read a round of messages; at least one message must be there."""
        bytes_left = self._part_bytes_max
        channel = DATA if link is self._link else CONTROL
        for _ in range(ROUND_COUNT_MAX):
            parts = receive_parts(link.socket)
            bytes_left -= sum(map(len, parts))
            try:
                inbound.extend([ServerMessage(message, channel) for message in unpack(parts)])
            except ProtocolError as error:
                self.garbage_count += 1
                inbound.append(Garbage(self.endpoint, str(error)))
            if bytes_left <= 0 or not is_readable(link.socket):
                return

    def _read_changes(self, link: Link, inbound: list[ClientInbound]) -> None:
        for change in link.changes():
            if change == UP and link is self._link:
                control = CLIENT_CONTROL_MARK + self.identity[len(CLIENT_MARK) :]
                self._control = self._linked(control)
                continue
            if change == UP:
                inbound.append(Connected(self.endpoint))
                continue
            if change == DOWN and link is self._control:
                inbound.append(Disconnected(self.endpoint))
            elif change == REFUSED:
                why = f"{self.endpoint} does not know the key {public_key_of(self._secret_key)}"
                inbound.append(HandshakeRefused(self.endpoint, why))
            elif change == UNLIKE:
                if self._try_next_key():
                    return
                inbound.append(HandshakeRefused(self.endpoint, self._unlike_text(), by_key=False))
            self.leave(is_refused=change == REFUSED)
            return

    def _try_next_key(self) -> bool:
        """The node may have another of the keys. False: all have been tried here."""
        keys = self._server_keys[self._endpoints[self._index]]
        self._keys_tried += 1
        if self._keys_tried >= len(keys):
            return False
        keys.append(keys.pop(0))
        self._disconnect()
        self._connect()
        return True

    def _unlike_text(self) -> str:
        if not self._secret_key:
            return f"{self.endpoint} ended the connection in the handshake: does it require keys?"
        return (
            f"{self.endpoint} ended the connection in the handshake: it has none of the "
            f"{len(self._server_keys[self._endpoints[self._index]])} nodes' keys that this "
            "client has, or no keys at all"
        )

    def close(self, linger_ms: int = 0) -> None:
        """Close the socket; sent messages get `linger_ms` to leave. A second call is no error.

        In a forked child a no-op: the socket is the parent's.
        """
        if self._is_closed or os.getpid() != self._pid:
            return
        self.flush()
        self._is_closed = True
        if self._is_beside:
            self._disconnect(linger_ms)
            return
        for link in self._links:
            link.close(linger_ms)
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
