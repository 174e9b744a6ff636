"""A simulated network: replaces `transport` for nodes and clients, without sockets.

A connection is a FIFO that loses only its end, like TCP: a break loses messages on their way, and
both ends are told, unless the break is *silent* (packets vanish) or an end has ended. Connections
that nodes want come up again by themselves once they can.

*Threads*: every call needs the baton (`schedule`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from attrs import define, field

from mirrorq.config import Config
from mirrorq.errors import ConfigError, ShutDown
from mirrorq.testing.schedule import Process, Scheduler
from mirrorq.transport import inbound
from mirrorq.transport.link import part_bytes_max
from mirrorq.waiting import Doorbell

Message = inbound.PeerMessage | inbound.ClientMessage | inbound.ServerMessage

HOP_US = (50, 1000)
"""Least and most travel time of a message from process to process."""
UP_US = 1000
"""Time until both ends know of a connection, or of its end."""
LAP_US = 50_000
"""Wait of a client that has tried all endpoints before the next round."""


@define
class Link:
    """Link from a node to another node."""

    is_cut: bool = False
    is_silent: bool = False
    """Packets vanish, and no end is told."""
    delay_us: tuple[int, int] = (0, 0)
    """Added to the travel time of a message, at least and at most."""
    free_us: dict[int, int] = field(factory=dict)
    """Channel -> arrival of the channel's last message."""
    generation: int = 0
    """Messages of an older generation are lost."""

    def arrival_us(self, channel: int, due_us: int) -> int:
        """Return the arrival of a message due at `due_us`, never before earlier messages."""
        due_us = max(due_us, self.free_us.get(channel, 0))
        self.free_us[channel] = due_us
        return due_us


class Network:
    """All links and their ends, by the nodes' names."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self._links: dict[tuple[str, str], Link] = {}
        self._ends: dict[str, SimulatedTransport] = {}
        self.clients: dict[bytes, SimulatedClientSocket] = {}
        """Connected clients by identity."""

    def link(self, sender: str, receiver: str) -> Link:
        """Return the link from a node to another node; made at first use."""
        return self._links.setdefault((sender, receiver), Link())

    def is_connected(self, one: str, other: str) -> bool:
        """Return true if connections between two nodes can stand."""
        return not (self.link(one, other).is_cut or self.link(other, one).is_cut)

    def add(self, end: SimulatedTransport) -> None:
        """A node listens."""
        self._ends[end.name] = end
        self.refresh()

    def remove(self, end: SimulatedTransport) -> None:
        """Remove a node that no longer listens: its process has ended, or the end is closed."""
        if self._ends.get(end.name) is end:
            del self._ends[end.name]
            for other in self._ends:
                self.break_between(end.name, other)
            for client in tuple(self.clients.values()):
                if client.node == end.name:
                    self.break_between(end.name, client.name)
            self.refresh()

    def end(self, name: str) -> SimulatedTransport:
        """Return the end of the listening node of this name."""
        return self._ends[name]

    def find(self, endpoint: str) -> str:
        """Return the name of the node at an endpoint, "" if no node listens there."""
        return next((end.name for end in self._ends.values() if end.endpoint == endpoint), "")

    def cut(self, one: str, other: str, *, silent: bool, one_way: bool) -> None:
        """Cut the link between two nodes."""
        for pair in [(one, other)] if one_way else [(one, other), (other, one)]:
            link = self.link(*pair)
            link.generation += 1
            if silent:
                link.is_silent = True
            else:
                link.is_cut = True
        self.refresh()

    def heal(self, one: str, other: str) -> None:
        """Let the link between two nodes work, both ways and in normal time."""
        links = self.link(one, other), self.link(other, one)
        if any(link.is_silent for link in links):
            self.break_between(one, other)
        for link in links:
            link.is_cut = link.is_silent = False
            link.delay_us = (0, 0)
        self.refresh()

    def break_between(self, one: str, other: str) -> None:
        """End the connections between two nodes once; they may come up again at once."""
        for pair in ((one, other), (other, one)):
            link = self.link(*pair)
            link.generation += 1
            link.free_us.clear()
            if pair[0] in self._ends:
                self._ends[pair[0]].drop(pair[1])
            for client in tuple(self.clients.values()):
                if (client.name, client.node) == pair:
                    client.drop()

    def refresh(self) -> None:
        """Bring possible connections up, and impossible connections down."""
        for end in self._ends.values():
            end.refresh()
        for client in tuple(self.clients.values()):
            if not self.is_connected(client.name, client.node):
                client.drop()

    def carry(self, sender: str, receiver: End, message: Message) -> None:
        """Have a message arrive, if nothing breaks meanwhile."""
        link, scheduler = self.link(sender, receiver.name), self.scheduler
        if link.is_silent or link.is_cut:
            return
        delay_us = scheduler.random.randint(*HOP_US)
        if link.delay_us[1]:
            delay_us += scheduler.random.randint(*link.delay_us)
        due_us = link.arrival_us(message.channel, scheduler.now_us + delay_us)
        scheduler.at(due_us, _arrive, link, link.generation, receiver, message)


def _arrive(link: Link, generation: int, receiver: End, message: Message) -> None:
    if link.generation == generation:
        receiver.take(message)


class End:
    """One process's end of the network: arrived messages, and the waiting thread.

    Args:
        network: of all.
        process: process of this end.
    """

    def __init__(self, network: Network, process: Process) -> None:
        self.name = process.name
        self.dropped_count = 0
        self.garbage_count = 0
        self._network = network
        self._process = process
        self._inbox: list[Any] = []
        self._bell = Doorbell()
        self._is_closed = False

    def wake(self) -> None:
        """End a `poll`, or the next one."""
        self._network.scheduler.running()
        self._bell.ring()

    def poll(self, timeout_ms: int) -> list[Any]:
        """Wait until messages are there, and return them."""
        if not self._inbox:
            self._bell.wait(timeout_ms / 1000)
        inbox, self._inbox = self._inbox, []
        return inbox

    def close(self, linger_ms: int = 0) -> None:
        """Close this end; sent messages still arrive."""
        self._is_closed = True

    def flush(self) -> None:
        """Do nothing: sent messages have left already."""
        if self._is_closed:
            raise ShutDown("the sockets are closed")

    def take(self, message: object) -> None:
        """Something arrives."""
        if not self._is_closed and self._process.is_alive:
            self._inbox.append(message)
            self._bell.ring()


@define
class _Peer:
    endpoint: str
    name: str = ""
    """Which node is there, "" when there is no connection."""
    generation: int = 0
    """Events of an older connection are not reported any more."""


class SimulatedTransport(End):
    """One node's end of the network, with the methods of `transport.Transport`."""

    has_rails = False
    """Rails are threads beside the simulated time."""

    def __init__(
        self, network: Network, process: Process, incarnation: int, endpoint: str, config: Config
    ) -> None:
        super().__init__(network, process)
        self.endpoint = endpoint
        self.part_bytes_max = part_bytes_max(config)
        self._incarnation = incarnation
        self._failure_us = config.failure_ms * 1000
        self._peers: dict[str, _Peer] = {}
        network.add(self)

    # --- Of the node --------------------------------------------------------------------

    @property
    def peers(self) -> tuple[str, ...]:
        """Peers with wanted connections, standing or not."""
        return tuple(self._peers)

    @property
    def peer_count(self) -> int:
        """Peers to which connections stand."""
        return sum(bool(peer.name) for peer in self._peers.values())

    def connect_peer(self, peer: str, endpoint: str) -> None:
        """Keep a connection to the peer open from now on."""
        known = self._peers.get(peer)
        if known is None or known.endpoint != endpoint:
            self._peers[peer] = _Peer(endpoint)
            self.refresh()

    def forget_peer(self, peer: str) -> None:
        """Close the connection to the peer."""
        self._peers.pop(peer, None)

    def send(self, peer: str, channel: int, parts: Sequence[bytes | memoryview]) -> bool:
        """Send one message; False: dropped."""
        known = self._peers.get(peer)
        if known is None or not known.name or not self.takes(parts) or not self._process.is_alive:
            self.dropped_count += 1
            return False
        message = inbound.PeerMessage(
            self.name, self._incarnation, channel, [bytes(one) for one in parts]
        )
        self._network.carry(self.name, self._network.end(known.name), message)
        return True

    def reply(
        self, identity: bytes, parts: Sequence[bytes | memoryview], channel: int = inbound.DATA
    ) -> bool:
        """Send one message to a client; False: it is too large."""
        if not self.takes(parts):
            self.take(inbound.TooLarge(identity, max(map(len, parts))))
            return False
        client = self._network.clients.get(identity)
        if client is None or client.node != self.name:
            self.take(inbound.ReplyLost(identity, 1, True, sum(map(len, parts))))
        elif self._process.is_alive:
            message = inbound.ServerMessage([bytes(one) for one in parts], channel)
            self._network.carry(self.name, client, message)
        return True

    @property
    def connection_count(self) -> int:
        """Clients that are connected."""
        return sum(client.node == self.name for client in self._network.clients.values())

    def address_of(self, message: inbound.ClientMessage) -> str:
        """Return "": simulated clients have no addresses."""
        return ""

    def takes_turns(self, clients: int) -> bool:
        """Return true: all arrived messages are always taken."""
        return True

    def takes(self, parts: Sequence[bytes | memoryview]) -> bool:
        """Return true if the parts are small enough."""
        return all(len(part) <= self.part_bytes_max for part in parts)

    def probe(self, peer: str) -> None:
        """Find out whether the peer's host refuses a connection."""
        known = self._peers.get(peer)
        if known is None:
            return
        host = host_of(known.endpoint)
        can_reach = self._network.is_connected(self.name, host)
        is_silent = self._network.link(self.name, host).is_silent
        is_there = self._network.find(known.endpoint) != ""
        refused = can_reach and not is_silent and not is_there
        delay_us = UP_US if refused else self._failure_us
        self._network.scheduler.after(delay_us, self.take, inbound.ProbeResult(peer, refused))

    def close(self, linger_ms: int = 0) -> None:
        """Listen no more."""
        self._is_closed = True
        self._network.remove(self)

    def abandon(self) -> None:
        """The same."""
        self.close()

    # --- Of the network -----------------------------------------------------------------

    def refresh(self) -> None:
        """Bring possible connections up, and impossible connections down."""
        for key, peer in self._peers.items():
            name = self._network.find(peer.endpoint)
            can_stand = bool(name) and self._network.is_connected(self.name, name)
            if can_stand and not peer.name:
                peer.name = name
                self._tell(key, peer, inbound.Connected(key))
            elif peer.name and not can_stand:
                peer.name = ""
                self._tell(key, peer, inbound.Disconnected(key))

    def drop(self, name: str) -> None:
        """End the connections to a node."""
        for key, peer in self._peers.items():
            if peer.name == name:
                peer.name = ""
                self._tell(key, peer, inbound.Disconnected(key))

    def _tell(self, key: str, peer: _Peer, event: inbound.Connected | inbound.Disconnected) -> None:
        peer.generation += 1
        self._network.scheduler.after(UP_US, self._told, key, peer, peer.generation, event)

    def _told(
        self,
        key: str,
        peer: _Peer,
        generation: int,
        event: inbound.Connected | inbound.Disconnected,
    ) -> None:
        if self._peers.get(key) is peer and (
            isinstance(event, inbound.Disconnected) or peer.generation == generation
        ):
            self.take(event)


class SimulatedClientSocket(End):
    """A client's end of the network, with the methods of `transport.client.ClientSocket`."""

    retry_at_ms = None
    """The network tries by itself."""

    def __init__(
        self,
        network: Network,
        process: Process,
        endpoints: Sequence[str],
        config: Config,
        beside: SimulatedClientSocket | None = None,
    ) -> None:
        super().__init__(network, process)
        self._is_beside = beside is not None
        if beside is not None:
            self._bell = beside._bell
        self.node = ""
        """Name of the connected node, "" without a connection."""
        self.identity = (
            inbound.CLIENT_MARK + f"{self.name} {network.scheduler.new_number()}".encode()
        )
        self._endpoints = tuple(endpoints)
        self._index = 0
        self._part_bytes_max = part_bytes_max(config)
        self._failure_us = config.failure_ms * 1000
        self._try_after(UP_US)

    @property
    def endpoint(self) -> str:
        """The connected endpoint, or the endpoint in trial."""
        return self._endpoints[self._index]

    @property
    def is_up(self) -> bool:
        """True if connected."""
        return bool(self.node)

    @property
    def has_input(self) -> bool:
        """True if something has arrived."""
        return bool(self._inbox)

    def poll(self, timeout_ms: int) -> list[Any]:
        """Return what has arrived. A socket beside another does not wait."""
        if not self._is_beside:
            return super().poll(timeout_ms)
        inbox, self._inbox = self._inbox, []
        return inbox

    def leave(self, *, is_refused: bool = False) -> None:
        """Go to the next endpoint."""
        if self.node:
            self.drop()
        else:
            self._go_on()

    def send(self, parts: Sequence[bytes | memoryview], channel: int = inbound.DATA) -> bool:
        """Send one message to the node; False: dropped."""
        is_small = all(len(part) <= self._part_bytes_max for part in parts)
        if not self.node or not is_small or not self._process.is_alive:
            self.dropped_count += 1
            return False
        message = inbound.ClientMessage(self.identity, [bytes(one) for one in parts], channel)
        self._network.carry(self.name, self._network.end(self.node), message)
        return True

    def close(self, linger_ms: int = 0) -> None:
        """End the connection; sent messages still arrive."""
        self._is_closed = True
        self._network.clients.pop(self.identity, None)

    def drop(self) -> None:
        """The connection has ended: tell, and try the next endpoint."""
        self._network.clients.pop(self.identity, None)
        self.node = ""
        self.take(inbound.Disconnected(self.endpoint))
        self._go_on()

    def _go_on(self) -> None:
        self._index = (self._index + 1) % len(self._endpoints)
        self._try_after(LAP_US if self._index == 0 else UP_US)

    def _try_after(self, delay_us: int) -> None:
        self._network.scheduler.after(delay_us, self._try, self._index)

    def _try(self, index: int) -> None:
        if self._is_closed or not self._process.is_alive or self.node or index != self._index:
            return
        network, host = self._network, host_of(self.endpoint)
        links = network.link(self.name, host), network.link(host, self.name)
        if any(link.is_silent for link in links):
            network.scheduler.after(self._failure_us, self._give_up, index)
        elif network.find(self.endpoint) and not any(link.is_cut for link in links):
            self.node = host
            network.clients[self.identity] = self
            self.take(inbound.Connected(self.endpoint))
        else:
            self._go_on()

    def _give_up(self, index: int) -> None:
        if not self.node and index == self._index:
            self._go_on()


def host_of(endpoint: str) -> str:
    """Return the name of the node at an endpoint."""
    if not endpoint.startswith("tcp://"):
        raise ConfigError(f"{endpoint} is no endpoint of a simulated node")
    return endpoint.removeprefix("tcp://").rpartition(":")[0]
