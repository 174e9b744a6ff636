"""A node's sockets. See the package's docstring."""

from __future__ import annotations

import errno
import os
import struct
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Protocol

import zmq
from attrs import define

from mirrorq import system
from mirrorq.config import Config
from mirrorq.errors import ConfigError, MirrorQError, ProtocolError, ShutDown
from mirrorq.transport.curve import Guard, LinkKeys, Zap, guard_socket
from mirrorq.transport.door import (
    CURVE_BYTES,
    PLAIN_BYTES,
    PRESSED_MS,
    Door,
    address_of,
    connections_bound,
)
from mirrorq.transport.endpoint import (
    Endpoint,
    endpoint_in_use,
    parse_endpoint,
    parse_listen,
    resolve_listen,
)
from mirrorq.transport.inbound import (
    CLIENT_CONTROL_MARK,
    CLIENT_MARK,
    CONTROL,
    DATA,
    PEER_MARK,
    RAIL,
    ClientMessage,
    Connected,
    Disconnected,
    Garbage,
    HandshakeRefused,
    Inbound,
    PeerMessage,
    ProbeResult,
    RailMark,
    ReplyLost,
    SendLost,
    TooLarge,
)
from mirrorq.transport.link import (
    DOWN,
    RECONNECT_MS_MAX,
    REFUSED,
    UNLIKE,
    UP,
    Link,
    dealer,
    new_context,
    part_bytes_max,
    set_bounds,
)
from mirrorq.transport.packing import Part, SendBuffer, unpack
from mirrorq.transport.parts import (
    LARGEST_PARTS_MAX,
    discard,
    is_readable,
    receive_with_sender,
    send_parts,
)
from mirrorq.transport.probe import Probe
from mirrorq.transport.wake import Waker
from mirrorq.wire import rail

NODE_NAME_BYTES_MAX = 200
"""A routing id has at most 255 bytes and holds more than the name."""
ROUND_COUNT_MAX = 2000
"""Limit of zmq messages in a poll, so each round ends."""
ROUND_PARTS_MAX = 16_384
"""Limit of parts in a poll: zmq messages of strangers may have many small parts."""
BACKLOG = 1024
"""Connections waiting for an accept: after a restart all clients come at once."""
UNDER_WAY_PARTS_MAX = 4
"""Limit of a client's unread bytes, in largest parts; its window is far less."""
SUM_PARTS_MAX = 16
"""Without keys all connections together may have so many of the largest parts under way."""
PEERS_KNOWN_MAX = 4096
"""Limit of remembered parsed routing ids."""
REFUSED_MS = 1000
"""Interval between attempts at a peer that has refused this node. Peers read their lists of keys
once a second."""
LOOK_MS = 10
"""Interval at which a never idle thread checks connections for changes; after a sleep the thread
knows."""

_ROUTING_ID = struct.Struct(">cBQ8s")


@define
class _Peer:
    """Another node to which connections are kept, standing or not."""

    endpoint: Endpoint
    links: tuple[Link, ...]
    """Two, or none while no key of the peer is known."""
    is_up: bool = False
    keys: tuple[str, ...] = ()
    """Possible keys of the peer, the tried key first. () without security."""
    next_keys: tuple[str, ...] = ()
    """Replaces `keys` at the next attempt: the order may differ."""
    again_ms: int | None = None
    """When new links replace the present links after a failed handshake."""
    trouble: str = ""
    """Reported reason for a missing connection, tried several times a second."""
    rail: zmq.Socket[bytes] | None = None
    """Read and written by the rail's thread."""


class RailSockets(Protocol):
    """User of the `RAIL` channel's sockets to peers, on a separate thread."""

    notify_fd: int
    """Readable when the owner of the transport is to look."""

    def add(self, peer: str, address: int) -> None:
        """Use a socket by its address in libzmq."""

    def remove(self, peer: str) -> None:
        """Stop using the peer's socket before the return."""


class Transport:
    """A node's listening endpoint and its connections to its peers.

    Args:
        node: name of the node, at most 200 bytes.
        incarnation: of the node; peers see the incarnation with every message.
        listen: endpoint to bind: `tcp://host:port`, `ipc://path`; port 0 or * takes a free
            port, see `endpoint`.
        config: bounds and times.
        guard: admission of connections, and keys; None: all connections, without keys.

    Raises:
        ConfigError: the endpoint is malformed, in use, or no address of the machine.

    *Threads*: one owning thread calls all methods; any thread may call `wake`.
    """

    def __init__(
        self,
        node: str,
        incarnation: int,
        listen: str,
        config: Config,
        guard: Guard | None = None,
    ) -> None:
        name = node.encode()
        if not 0 < len(name) <= NODE_NAME_BYTES_MAX:
            raise ConfigError(
                f"node name {node!r} has {len(name)} bytes: use 1 to {NODE_NAME_BYTES_MAX}"
            )
        self.dropped_count = 0
        """Messages which could not be sent."""
        self.garbage_count = 0
        """Received messages which could not be read."""
        self._unturned_count = 0
        """zmq messages read since each connection had its turn; 0 with nothing left to read."""
        self._pid = os.getpid()
        self._config = config
        self._part_bytes_max = part_bytes_max(config)
        self._name = name
        self._incarnation = incarnation
        self._guard = guard
        self._guard_version = guard.version if guard is not None else 0
        self._known: dict[bytes, tuple[str, int, int]] = {}
        self._peers: dict[str, _Peer] = {}
        self._dirty: dict[tuple[str, int], Link] = {}
        self._replies: dict[bytes, SendBuffer] = {}
        self._probes: dict[str, Probe] = {}
        self._doubted: dict[str, int] = {}
        """Peer with a refused probe and standing connections -> deadline for their end."""
        self._newest: dict[str, int] = {}
        """Peer -> newest incarnation heard."""
        self._rail: RailSockets | None = None
        self._rails: dict[str, bytes] = {}
        """Routing ids of peers' rails."""
        self._lost: list[Inbound] = []
        self._look_at_ms = 0
        """When connections are looked at, even if none is known to have changed."""
        self._is_closed = False
        self._listen(resolve_listen(parse_listen(listen)))
        self._waker = Waker()
        self._poller = zmq.Poller()
        self._poller.register(self._router, zmq.POLLIN)
        self._poller.register(self._waker.fd, zmq.POLLIN)
        self._poller.register(self._door.monitor, zmq.POLLIN)
        if self._zap is not None:
            self._poller.register(self._zap.socket, zmq.POLLIN)

    def _listen(self, endpoint: Endpoint) -> None:
        """Open all listening sockets, or none."""
        config, guard = self._config, self._guard
        self._context: zmq.Context[zmq.Socket[bytes]] = new_context()
        self._zap = Zap(self._context, guard) if guard is not None else None
        self._router = self._context.socket(zmq.ROUTER)
        self._door = Door(
            self._context,
            self._router,
            connections_bound(config.connections_max),
            UNDER_WAY_PARTS_MAX * self._part_bytes_max,
            sum_max=SUM_PARTS_MAX * self._part_bytes_max if guard is None else None,
            part_bytes=PLAIN_BYTES if guard is None else CURVE_BYTES,
        )
        self._has_rest = False
        """The next part of the listening socket belongs to an unwanted message."""
        try:
            self.endpoint = self._bind(endpoint)
        except ConfigError:
            self._router.close(linger=0)
            self._door.close()
            if self._zap is not None:
                self._zap.close()
            self._context.term()
            raise

    def _bind(self, endpoint: Endpoint) -> str:
        router = self._router
        set_bounds(router, self._config)
        router.setsockopt(zmq.ROUTER_MANDATORY, 1)
        router.setsockopt(zmq.ROUTER_HANDOVER, 1)
        router.setsockopt(zmq.BACKLOG, BACKLOG)
        router.setsockopt(zmq.IPV6, int(":" in endpoint.host))
        if self._guard is not None:
            guard_socket(router, self._guard)
        try:
            if endpoint.is_ipc:
                _bind_private(router, endpoint)
            else:
                router.bind(endpoint.zmq_text)
        except zmq.ZMQError as error:
            raise _bind_error(endpoint, error) from None
        bound = router.getsockopt_string(zmq.LAST_ENDPOINT)
        return bound.rstrip("\0")

    @property
    def connection_count(self) -> int:
        """Connections of the listening endpoint: of peers and of clients."""
        return len(self._door)

    @property
    def peers(self) -> tuple[str, ...]:
        """Peers with kept connections, standing or not."""
        return tuple(self._peers)

    @property
    def peer_count(self) -> int:
        """Peers with standing connections from this node."""
        return sum(peer.is_up for peer in self._peers.values())

    # --- Peers ---

    def connect_peer(self, peer: str, endpoint: str) -> None:
        """Keep two connections to the peer open from now on; `Connected` reports both as up.

        Another endpoint for a known peer replaces the old connections.

        Raises:
            ConfigError: the endpoint is malformed.
        """
        self._check_open()
        parsed = parse_endpoint(endpoint)
        known = self._peers.get(peer)
        if known is not None:
            if known.endpoint == parsed:
                return
            self.forget_peer(peer)
        keys = () if self._guard is None else self._guard.keys_of(peer)
        self._peers[peer] = known = _Peer(parsed, (), keys=keys)
        if self._guard is None or keys:
            self._open_links(known)
        else:
            self._lost.append(HandshakeRefused(peer, f"no key with the role peer is named {peer}"))

    def carry_rail(self, rail: RailSockets) -> None:
        """Have connections of the channel `RAIL`, too: see `open_rail`."""
        self._rail = rail
        self._poller.register(rail.notify_fd, zmq.POLLIN)

    def open_rail(self, name: str) -> None:
        """Connect the rail to a connected peer, until the peer is next gone or forgotten."""
        peer = self._peers.get(name)
        if self._rail is None or peer is None or peer.rail is not None or not peer.is_up:
            return
        routing_id = _ROUTING_ID.pack(PEER_MARK, RAIL, self._incarnation, os.urandom(8))
        keys = self._keys_for(peer)
        peer.rail = dealer(
            self._context, peer.endpoint, routing_id + self._name, self._config, keys
        )
        peer.rail.connect(peer.endpoint.zmq_text)
        self._rail.add(name, int(peer.rail.underlying))

    def _keys_for(self, peer: _Peer) -> LinkKeys | None:
        return None if self._guard is None else LinkKeys(self._guard.secret_key, peer.keys[0])

    def _close_rail(self, name: str, peer: _Peer) -> None:
        if peer.rail is not None and self._rail is not None:
            self._rail.remove(name)
            peer.rail.close(linger=0)
        peer.rail = None

    def _open_links(self, peer: _Peer) -> None:
        # A listener takes a second connection with an id for a reconnect of the first. Two nodes
        # with one name, or two links to one endpoint, must not end each other.
        nonce = os.urandom(8)
        keys = self._keys_for(peer)
        peer.links = tuple(
            Link(
                self._context,
                peer.endpoint,
                _ROUTING_ID.pack(PEER_MARK, channel, self._incarnation, nonce) + self._name,
                self._config,
                keys=keys,
            )
            for channel in (CONTROL, DATA)
        )
        for link in peer.links:
            self._poller.register(link.monitor, zmq.POLLIN)

    def _close_links(self, name: str, peer: _Peer) -> None:
        self._close_rail(name, peer)
        links, peer.links = peer.links, ()
        for channel, link in enumerate(links):
            self._dirty.pop((name, channel), None)
            self._poller.unregister(link.monitor)
            link.close()

    def forget_peer(self, peer: str) -> None:
        """Close the connections to the peer. Unknown: nothing happens."""
        self._check_open()
        self._end_probe(peer)
        self._newest.pop(peer, None)
        known = self._peers.pop(peer, None)
        if known is not None:
            self._close_links(peer, known)

    def send(self, peer: str, channel: int, parts: Sequence[Part]) -> bool:
        """Give one message to the channel; the message leaves at the next `flush` or `poll`.

        Returns:
            False: dropped, without a connection or with a too large part (`takes`). With a full
            queue, now or later, `poll` returns `SendLost`, unless the connection ends meanwhile.
        """
        known = self._peers.get(peer)
        links = () if known is None else known.links
        if not links or not links[channel].is_up or not self.takes(parts):
            self.dropped_count += 1
            return False
        link = links[channel]
        link.outbox.add(parts)
        if link.outbox.is_full:
            self._dirty.pop((peer, channel), None)
            lost = link.flush()
            self.dropped_count += lost
            if lost:
                self._lost.append(SendLost(peer, channel, lost))
            return True
        self._dirty[peer, channel] = link
        return True

    @property
    def has_rails(self) -> bool:
        """Return true if any peer's rail is connected."""
        return bool(self._rails)

    def send_rail(self, peer: str, data: bytes) -> bool:
        """Give the peer's rail a message of `wire.rail`; the message leaves at once.

        Returns:
            False: the peer has no known rail, or nothing more can be sent there now.
        """
        identity = self._rails.get(peer)
        if identity is None:
            return False
        try:
            send_parts(self._router, [identity, data])
        except zmq.ZMQError:
            # No rail until its next hello.
            del self._rails[peer]
            return False
        return True

    def newest_of(self, peer: str) -> int | None:
        """Return the newest incarnation heard of a peer."""
        return self._newest.get(peer)

    def reply(self, identity: bytes, parts: Sequence[Part], channel: int = DATA) -> bool:
        """Give one message to a client; the message leaves at the next `flush` or `poll`.

        Returns:
            False: too large, dropped; `poll` returns `TooLarge`. A gone client, or a client
            which does not read, shows as `ReplyLost`.
        """
        if not self.takes(parts):
            self.dropped_count += 1
            self._lost.append(TooLarge(identity, max(map(len, parts))))
            return False
        if channel == CONTROL:
            identity = CLIENT_CONTROL_MARK + identity[len(CLIENT_MARK) :]
        outbox = self._replies.get(identity)
        if outbox is None:
            outbox = self._replies[identity] = SendBuffer()
        outbox.add(parts)
        if outbox.is_full:
            del self._replies[identity]
            self._send_replies(identity, outbox)
        return True

    def flush(self) -> None:
        """Hand all sent messages to the network: before a long piece of work."""
        self._check_open()
        if self._dirty:
            dirty, self._dirty = self._dirty, {}
            for (peer, channel), link in dirty.items():
                lost = link.flush()
                if lost:
                    self.dropped_count += lost
                    self._lost.append(SendLost(peer, channel, lost))
        if self._replies:
            replies, self._replies = self._replies, {}
            for identity, outbox in replies.items():
                self._send_replies(identity, outbox)

    def _send_replies(self, identity: bytes, outbox: SendBuffer) -> None:
        count, size = len(outbox), outbox.bytes
        try:
            send_parts(self._router, [identity, *outbox.take_parts()])
        except zmq.ZMQError as error:
            self.dropped_count += count
            gone = error.errno != zmq.EAGAIN
            if identity[:1] == CLIENT_CONTROL_MARK:
                identity, size = CLIENT_MARK + identity[1:], 0
            self._lost.append(ReplyLost(identity, count, gone, size))

    @property
    def part_bytes_max(self) -> int:
        """The largest part a receiver takes, with a configuration like this node's."""
        return self._part_bytes_max

    def takes(self, parts: Sequence[Part]) -> bool:
        """Return true if no part is too large: the receiver would end the connection."""
        limit = self._part_bytes_max
        return all(len(part) <= limit for part in parts)

    def probe(self, peer: str) -> None:
        """Try a plain connect to the peer's endpoint; `ProbeResult` comes from `poll`.

        Unknown peer, or a probe already under way: nothing happens.
        """
        self._check_open()
        known = self._peers.get(peer)
        if known is None or peer in self._probes or peer in self._doubted:
            return
        probe = Probe(known.endpoint, _now_ms() + self._config.failure_ms, self._waker.wake)
        self._probes[peer] = probe

    # --- Poll ---

    def wake(self) -> None:
        """End a `poll` of the owning thread, or its next `poll`. Thread-safe, cheap, coalesces."""
        self._waker.wake()

    def poll(self, timeout_ms: int) -> list[Inbound]:
        """Flush, wait for input, and return all input, within bounds.

        Args:
            timeout_ms: 0 or more. Returns earlier on `wake`; may return nothing earlier.
        """
        self.flush()
        inbound: list[Inbound] = []
        lost, self._lost = self._lost, []
        is_ready = is_readable(self._router)
        has_slept = timeout_ms > 0 and not (lost or is_ready) and self._waker.fall_asleep()
        # What could not be sent is perhaps the first sign of a lost connection.
        is_look_due = bool(lost)
        if has_slept:
            is_ready, is_look_due = self._sleep(timeout_ms)
        else:
            self._waker.awake(is_readable=False)
        now_ms = _now_ms()
        is_probing = bool(self._probes or self._doubted)
        if is_look_due or is_probing or now_ms >= self._look_at_ms:
            self._look_at_ms = now_ms + LOOK_MS
            if self._guard is not None and self._zap is not None:
                self._ask_guard(self._guard, self._zap, inbound)
            self._open_again(now_ms)
            if is_look_due or not has_slept:
                self._read_links(inbound)
            if is_ready:
                self._read_router(inbound)
            for why in self._door.attend():
                inbound.append(HandshakeRefused("a connection", why, by_key=False))
            if is_probing:
                self._read_probes(inbound)
        elif is_ready:
            self._read_router(inbound)
        return [*filter(self._is_news, lost), *inbound] if lost else inbound

    def _is_news(self, lost: Inbound) -> bool:
        """Return false if `Disconnected` says all: until `Connected` nothing can be sent again."""
        if type(lost) is not SendLost:
            return True
        peer = self._peers.get(lost.peer)
        return peer is not None and peer.is_up

    def _sleep(self, timeout_ms: int) -> tuple[bool, bool]:
        """Block until something is there; gives the GIL away.

        Returns:
            Whether messages are there, and whether anything else is known to have come.
        """
        fds = []
        for probe in self._probes.values():
            if probe.fd is not None:
                fds.append(probe.fd)
                self._poller.register(probe.fd, probe.events)
        if self._probes or self._doubted:
            deadlines = [probe.deadline_ms for probe in self._probes.values()]
            first = min([*deadlines, *self._doubted.values()])
            timeout_ms = max(0, min(timeout_ms, first - _now_ms()))
        if self._door.is_pressed:
            timeout_ms = min(timeout_ms, PRESSED_MS)
        ready = self._poller.poll(timeout_ms)
        for fd in fds:
            self._poller.unregister(fd)
        waker_fd = self._waker.fd
        is_ready = is_woken = is_look_due = False
        for item, _ in ready:
            if item is self._router:
                is_ready = True
            elif item == waker_fd:
                is_woken = True
            elif self._rail is not None and item == self._rail.notify_fd:
                os.read(item, 4096)
            else:
                is_look_due = True
        self._waker.awake(is_readable=is_woken)
        return is_ready, is_look_due

    def _ask_guard(self, guard: Guard, zap: Zap, inbound: list[Inbound]) -> None:
        """Answer admission requests, and follow changes of keys."""
        guard.refresh()
        for address, key in zap.answer():
            inbound.append(HandshakeRefused(address, f"its key {key} is not listed"))
        is_changed = guard.version != self._guard_version
        self._guard_version = guard.version
        for name, peer in self._peers.items():
            if is_changed and set(guard.keys_of(name)) != set(peer.keys):
                self._close_links(name, peer)
                peer.keys, peer.again_ms = guard.keys_of(name), None
                if peer.is_up:
                    peer.is_up = False
                    inbound.append(Disconnected(name))
                if peer.keys:
                    self._open_links(peer)

    def _open_again(self, now_ms: int) -> None:
        """Replace links after a failed handshake: libzmq ends some of them for good."""
        for name, peer in self._peers.items():
            if peer.again_ms is not None and now_ms >= peer.again_ms:
                self._close_links(name, peer)
                peer.keys, peer.again_ms = peer.next_keys, None
                self._open_links(peer)

    def _read_links(self, inbound: list[Inbound]) -> None:
        for name, peer in self._peers.items():
            for link in peer.links:
                for change in link.changes():
                    if change == DOWN and peer.is_up:
                        peer.is_up = False
                        self._close_rail(name, peer)
                        inbound.append(Disconnected(name))
                    elif change == UP and all(other.is_up for other in peer.links):
                        peer.is_up = True
                        for each in peer.links:
                            each.greet()
                        peer.again_ms, peer.trouble = None, ""
                        inbound.append(Connected(name))
                    elif change == REFUSED:
                        self._plan_again(peer, peer.keys, REFUSED_MS)
                        why = f"{peer.endpoint.text} does not know this node's key"
                        self._tell_trouble(peer, HandshakeRefused(name, why), inbound)
                    elif change == UNLIKE:
                        self._on_unlike(name, peer, inbound)

    def _on_unlike(self, name: str, peer: _Peer, inbound: list[Inbound]) -> None:
        if len(peer.keys) > 1:
            # The node's name is unknown: any of the keys may fit.
            self._plan_again(peer, (*peer.keys[1:], peer.keys[0]), RECONNECT_MS_MAX)
            return
        self._plan_again(peer, peer.keys, REFUSED_MS)
        why = f"{peer.endpoint.text} ended the connection in the handshake: " + (
            "does it require keys?" if self._guard is None else "it has another key, or none"
        )
        self._tell_trouble(peer, HandshakeRefused(name, why, by_key=False), inbound)

    @staticmethod
    def _plan_again(peer: _Peer, keys: tuple[str, ...], wait_ms: int) -> None:
        if peer.again_ms is None:
            peer.next_keys, peer.again_ms = keys, _now_ms() + wait_ms

    def troubles(self) -> dict[str, HandshakeRefused]:
        """Return the last failed handshake of each endpoint without a later connection."""
        peers = list(self._peers.items())
        return {
            peer.endpoint.text: HandshakeRefused(name, peer.trouble, by_key=False)
            for name, peer in peers
            if peer.trouble
        }

    def _tell_trouble(self, peer: _Peer, refused: HandshakeRefused, inbound: list[Inbound]) -> None:
        if peer.trouble != refused.why:
            peer.trouble = refused.why
            inbound.append(refused)

    def _read_router(self, inbound: list[Inbound]) -> None:
        """Read a round of messages; at least one message must be there."""
        bytes_left = self._part_bytes_max
        parts_left = ROUND_PARTS_MAX
        count = 0
        while count < ROUND_COUNT_MAX and bytes_left > 0 and parts_left > 0:
            if self._has_rest:
                done, self._has_rest = discard(self._router, parts_left)
                parts_left -= done
            else:
                count += 1
                parts = self._read_message(inbound)
                parts_left -= len(parts)
                bytes_left -= sum(map(len, parts))
            if not is_readable(self._router):
                self._unturned_count = 0
                return
        self._unturned_count += count

    def _read_message(self, inbound: list[Inbound]) -> list[bytes]:
        """Read one message; return its parts."""
        kept_max = LARGEST_PARTS_MAX * self._part_bytes_max
        sender, parts, self._has_rest = receive_with_sender(self._router, kept_max)
        identity, descriptor = sender.identity, sender.descriptor
        guard = self._guard
        key = "" if guard is None else sender.key
        try:
            if guard is not None and not key:
                raise ProtocolError("a message without a key")
            if self._has_rest:
                raise ProtocolError(f"a message of more than {len(parts)} parts")
            self._unpack(identity, parts, key, descriptor, inbound)
        except ProtocolError as error:
            self.garbage_count += 1
            self._door.end_for_garbage(descriptor, identity)
            inbound.append(Garbage(_source(identity), str(error)))
        else:
            is_node = guard is not None and identity[:1] == PEER_MARK and guard.is_any_node(key)
            self._door.took(descriptor, identity, parts, is_trusted=is_node)
        return parts

    def takes_turns(self, clients: int) -> bool:
        """Return true if each connection had a turn since the last true answer.

        Connections are read in turn, one message each, and a round may end before all are empty. A
        message of an unheard client may still be unread.

        Args:
            clients: number of client connections, beside the peers.
        """
        if self._unturned_count >= 2 * (clients + len(self._peers)):
            self._unturned_count = 0
        return self._unturned_count == 0

    def _unpack(
        self,
        identity: bytes,
        parts: list[bytes],
        key: str,
        descriptor: int,
        inbound: list[Inbound],
    ) -> None:
        if identity[:1] == CLIENT_CONTROL_MARK:
            identity = CLIENT_MARK + identity[len(CLIENT_MARK) :]
            for message in unpack(parts):
                inbound.append(ClientMessage(identity, message, CONTROL, key))
            return
        if identity[:1] != PEER_MARK:
            messages = unpack(parts)
            inbound.extend(
                [ClientMessage(identity, message, DATA, key, descriptor) for message in messages]
            )
            return
        known = self._known.get(identity)
        if known is None:
            if len(self._known) >= PEERS_KNOWN_MAX:
                self._known.clear()
            known = self._known[identity] = _parse_routing_id(identity)
        peer, incarnation, channel = known
        if self._guard is not None and not self._guard.is_node(key, peer):
            self.garbage_count += 1
            why = f"it calls itself node {peer}, and its key {key} is another's"
            inbound.append(Garbage(_source(identity), why))
            return
        if self._newest.get(peer, 0) < incarnation and peer in self._peers:
            self._newest[peer] = incarnation
        if channel == RAIL:
            self._read_rail(peer, incarnation, identity, parts, inbound)
            return
        messages = unpack(parts)
        inbound.extend([PeerMessage(peer, incarnation, channel, message) for message in messages])

    def _read_rail(
        self,
        peer: str,
        incarnation: int,
        identity: bytes,
        parts: list[bytes],
        inbound: list[Inbound],
    ) -> None:
        """Read a message of a peer's rail."""
        mark = rail.unpack_mark(parts)
        if mark is not None:
            inbound.append(RailMark(peer, incarnation, *mark))
        elif self._newest.get(peer) == incarnation:
            self._rails[peer] = identity

    def _read_probes(self, inbound: list[Inbound]) -> None:
        now_ms = _now_ms()
        for peer, probe in list(self._probes.items()):
            refused = probe.result(now_ms)
            if refused is None:
                continue
            self._end_probe(peer)
            if refused:
                self._doubted[peer] = probe.deadline_ms
            else:
                inbound.append(ProbeResult(peer, refused))
        for peer, deadline_ms in list(self._doubted.items()):
            # A dead process also ends its own connections: if they stand, something else closed the
            # port.
            stand = self._is_connected_from(peer)
            if not stand or now_ms >= deadline_ms:
                del self._doubted[peer]
                inbound.append(ProbeResult(peer, refused=not stand))

    def _is_connected_from(self, peer: str) -> bool:
        """Return true if a connection of the peer's newest incarnation stands."""
        newest, name = self._newest.get(peer, 0), peer.encode()
        return any(
            identity[:1] == PEER_MARK
            and identity[_ROUTING_ID.size :] == name
            and _parse_routing_id(identity)[1] == newest
            for identity in self._door.identities()
        )

    def _end_probe(self, peer: str) -> None:
        self._doubted.pop(peer, None)
        probe = self._probes.pop(peer, None)
        if probe is not None:
            probe.close()

    def address_of(self, message: ClientMessage) -> str:
        """Return a client's host:port; "" if unknown, or without an address."""
        return address_of(message.descriptor)

    # --- End ---

    def close(self, linger_ms: int = 0) -> None:
        """Close all sockets; sent messages get `linger_ms` to leave. A second call is no error.

        In a forked child a no-op: the sockets are the parent's.
        """
        if self._is_closed or os.getpid() != self._pid:
            return
        self.flush()
        self._is_closed = True
        for peer in list(self._probes):
            self._end_probe(peer)
        for peer_name, known in self._peers.items():
            self._close_rail(peer_name, known)
            for link in known.links:
                link.close(linger_ms)
        self._peers.clear()
        self._router.close(linger=linger_ms)
        self._door.close()
        if self._zap is not None:
            self._zap.close()
        self._context.term()
        self._waker.close()

    def abandon(self) -> None:
        """Close all sockets at once, and drop unsent messages."""
        self._dirty.clear()
        self._replies.clear()
        self.close()

    def _check_open(self) -> None:
        if os.getpid() != self._pid:
            raise MirrorQError(
                f"this node belongs to process {self._pid} and cannot be used in the forked "
                f"process {os.getpid()}: open it after the fork, or use mirrorq.connect()"
            )
        if self._is_closed:
            raise ShutDown("the node's sockets are closed")


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000


def _bind_private(router: zmq.Socket[bytes], endpoint: Endpoint) -> None:
    """Listen at a path for processes of the same user and of root.

    libzmq makes the file under the process's umask, and asks the kernel for the connecting user:
    effective even before the mode is set. For a libzmq without filters only the mode counts.
    """
    with suppress(zmq.ZMQError):
        for user in {0, os.geteuid()}:
            router.setsockopt(zmq.IPC_FILTER_UID, user)
    router.bind(endpoint.zmq_text)
    try:
        os.chmod(endpoint.path, system.PRIVATE_FILE)
    except OSError as error:
        raise ConfigError(f"cannot listen on {endpoint.text}: {error.strerror}") from None


def _bind_error(endpoint: Endpoint, error: zmq.ZMQError) -> ConfigError:
    if error.errno == errno.EADDRINUSE:
        return endpoint_in_use(endpoint)
    if error.errno in (errno.EADDRNOTAVAIL, errno.ENODEV):
        return ConfigError(
            f"cannot listen on {endpoint.text}: {endpoint.host} is not an address of this machine; "
            "give listen= one that is, or 0.0.0.0 for all"
        )
    return ConfigError(f"cannot listen on {endpoint.text}: {os.strerror(error.errno or 0)}")


def _parse_routing_id(identity: bytes) -> tuple[str, int, int]:
    """Return peer, incarnation and channel.

    Raises:
        ProtocolError: the id begins like a peer's, but is malformed.
    """
    size = _ROUTING_ID.size
    try:
        _, channel, incarnation, _ = _ROUTING_ID.unpack(identity[:size])
        peer = identity[size:].decode()
    except (struct.error, UnicodeDecodeError):
        raise ProtocolError("the sender's routing id is not that of a node") from None
    if channel not in (CONTROL, DATA, RAIL) or not peer:
        raise ProtocolError("the sender's routing id is not that of a node")
    return peer, incarnation, channel


def _source(identity: bytes) -> str:
    try:
        return "node " + _parse_routing_id(identity)[0]
    except ProtocolError:
        return f"connection {identity.hex()}"
