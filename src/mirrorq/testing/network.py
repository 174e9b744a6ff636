"""A network that is played: what `transport.Transport` is to a node, without sockets.

A connection is a FIFO that loses only its end, as TCP's is: what is on its way when it breaks is
lost, and both ends are told, unless the break is *silent* (packets vanish) or an end is no more.
Connections that nodes want come up again by themselves once they can.

*Threads*: everything is called with the baton held (`schedule`).
"""

from __future__ import annotations

from collections.abc import Sequence

from attrs import define, field

from mirrorq.config import Config
from mirrorq.errors import ConfigError, ShutDown
from mirrorq.testing.schedule import Process, Scheduler
from mirrorq.transport.inbound import (
    ClientMessage,
    Inbound,
    LinkDown,
    LinkUp,
    PeerMessage,
    ProbeResult,
)
from mirrorq.transport.link import part_bytes_max
from mirrorq.waiting import Doorbell

__all__ = ["Link", "Network", "SimulatedTransport"]

HOP_US = (50, 1000)
"""What a message takes from process to process, at least and at most."""
UP_US = 1000
"""What it takes until both ends know of a connection, or of its end."""


@define
class Link:
    """From one node to another."""

    is_cut: bool = False
    is_silent: bool = False
    """Packets vanish, and nobody is told."""
    delay_us: tuple[int, int] = (0, 0)
    """Added to what a message takes, at least and at most."""
    free_us: dict[int, int] = field(factory=dict)
    """Channel -> when the last message on it arrives."""
    generation: int = 0
    """What was sent in an older one is lost."""

    def arrival_us(self, channel: int, due_us: int) -> int:
        """When a message arrives that would do so at `due_us` if it were alone."""
        due_us = max(due_us, self.free_us.get(channel, 0))
        self.free_us[channel] = due_us
        return due_us


class Network:
    """All links and all ends of them, by the nodes' names."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self._links: dict[tuple[str, str], Link] = {}
        self._ends: dict[str, SimulatedTransport] = {}

    def link(self, sender: str, receiver: str) -> Link:
        """The link from one node to another; made when first asked for."""
        return self._links.setdefault((sender, receiver), Link())

    def is_connected(self, one: str, other: str) -> bool:
        """Whether connections between two nodes can stand."""
        return not (self.link(one, other).is_cut or self.link(other, one).is_cut)

    def add(self, end: SimulatedTransport) -> None:
        """A node listens."""
        self._ends[end.name] = end
        self.refresh()

    def remove(self, end: SimulatedTransport) -> None:
        """A node listens no more, because its process has ended or it is closed."""
        if self._ends.get(end.name) is end:
            del self._ends[end.name]
            for other in self._ends:
                self.break_between(end.name, other)
            self.refresh()

    def find(self, endpoint: str) -> str:
        """The name of the node at an endpoint, "" when nobody listens there."""
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

    def refresh(self) -> None:
        """Bring connections up that can stand, and down those that cannot."""
        for end in self._ends.values():
            end.refresh()

    def carry(self, sender: SimulatedTransport, name: str, message: PeerMessage) -> None:
        """Have a message arrive, if nothing breaks meanwhile."""
        link, scheduler = self.link(sender.name, name), self.scheduler
        if link.is_silent or link.is_cut:
            return
        delay_us = scheduler.random.randint(*HOP_US)
        if link.delay_us[1]:
            delay_us += scheduler.random.randint(*link.delay_us)
        due_us = link.arrival_us(message.channel, scheduler.now_us + delay_us)
        scheduler.at(due_us, self._arrive, link, link.generation, name, message)

    def _arrive(self, link: Link, generation: int, name: str, message: PeerMessage) -> None:
        end = self._ends.get(name)
        if end is not None and link.generation == generation:
            end.take(message)


@define
class _Peer:
    endpoint: str
    name: str = ""
    """Which node is there, "" when there is no connection."""
    generation: int = 0
    """What was to be told of an older connection is not told any more."""


class SimulatedTransport:
    """One node's end of the network. See `transport.Transport`, of which it has the methods."""

    def __init__(
        self, network: Network, process: Process, incarnation: int, endpoint: str, config: Config
    ) -> None:
        self.name = process.name
        self.endpoint = endpoint
        self.part_bytes_max = part_bytes_max(config)
        self.dropped_count = 0
        self.garbage_count = 0
        self.connection_count = 0
        self._network = network
        self._process = process
        self._incarnation = incarnation
        self._failure_us = config.failure_ms * 1000
        self._peers: dict[str, _Peer] = {}
        self._inbox: list[Inbound] = []
        self._bell = Doorbell()
        self._is_closed = False
        network.add(self)

    # --- Of the node --------------------------------------------------------------------

    @property
    def peers(self) -> tuple[str, ...]:
        """To whom connections are kept, standing or not."""
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
        message = PeerMessage(self.name, self._incarnation, channel, [bytes(one) for one in parts])
        self._network.carry(self, known.name, message)
        return True

    def reply(self, identity: bytes, parts: Sequence[bytes | memoryview], channel: int = 1) -> bool:
        """There are no clients."""
        return True

    def address_of(self, message: ClientMessage) -> str:
        """There are no clients."""
        return ""

    def takes_turns(self, clients: int) -> bool:
        """Whether each connection had a turn: all that has come is always taken."""
        return True

    def takes(self, parts: Sequence[bytes | memoryview]) -> bool:
        """Whether the parts are small enough."""
        return all(len(part) <= self.part_bytes_max for part in parts)

    def flush(self) -> None:
        """What is sent has left already."""
        if self._is_closed:
            raise ShutDown("the node's sockets are closed")

    def probe(self, peer: str) -> None:
        """Find out whether the peer's host refuses a connection."""
        known = self._peers.get(peer)
        if known is None:
            return
        host = known.name or host_of(known.endpoint)
        can_reach = self._network.is_connected(self.name, host)
        is_silent = self._network.link(self.name, host).is_silent
        is_there = self._network.find(known.endpoint) != ""
        refused = can_reach and not is_silent and not is_there
        delay_us = UP_US if refused else self._failure_us
        self._network.scheduler.after(delay_us, self.take, ProbeResult(peer, refused))

    def wake(self) -> None:
        """End a `poll`, or the next one."""
        self._network.scheduler.running()
        self._bell.ring()

    def poll(self, timeout_ms: int) -> list[Inbound]:
        """Wait until something is there, and return it."""
        if not self._inbox:
            self._bell.wait(timeout_ms / 1000)
        inbox, self._inbox = self._inbox, []
        return inbox

    def close(self, linger_ms: int = 0) -> None:
        """Listen no more."""
        self._is_closed = True
        self._network.remove(self)

    def abandon(self) -> None:
        """The same."""
        self.close()

    # --- Of the network -----------------------------------------------------------------

    def take(self, message: Inbound) -> None:
        """Something arrives."""
        if not self._is_closed:
            self._inbox.append(message)
            self._bell.ring()

    def refresh(self) -> None:
        """Bring up what can stand, and down what cannot."""
        for key, peer in self._peers.items():
            name = self._network.find(peer.endpoint)
            can_stand = bool(name) and self._network.is_connected(self.name, name)
            if can_stand and not peer.name:
                peer.name = name
                self._tell(key, peer, LinkUp(key))
            elif peer.name and not can_stand:
                peer.name = ""
                self._tell(key, peer, LinkDown(key))

    def drop(self, name: str) -> None:
        """Connections to this node have ended."""
        for key, peer in self._peers.items():
            if peer.name == name:
                peer.name = ""
                self._tell(key, peer, LinkDown(key))

    def _tell(self, key: str, peer: _Peer, event: LinkUp | LinkDown) -> None:
        peer.generation += 1
        self._network.scheduler.after(UP_US, self._told, key, peer, peer.generation, event)

    def _told(self, key: str, peer: _Peer, generation: int, event: LinkUp | LinkDown) -> None:
        if self._peers.get(key) is peer and (
            isinstance(event, LinkDown) or peer.generation == generation
        ):
            self.take(event)


def host_of(endpoint: str) -> str:
    """The name of the node whose endpoint this is."""
    if not endpoint.startswith("tcp://"):
        raise ConfigError(f"{endpoint} is no endpoint of a simulated node")
    return endpoint.removeprefix("tcp://").rpartition(":")[0]
