"""Live nodes, certainly dead nodes and broken links, as one node hears them.

The detector runs on every node, leader or not, so a new catalog leader need not begin to listen.

A process (node, store, incarnation) is
    alive    when heard within `failure_ms`;
    silent   when not: the process may still run, so it keeps the rights of its lease;
    dead     when certain. Either a higher incarnation of its store was heard. Or the open
             connection ended *and* a later probe was refused, *and* more than half of the
             heard nodes, with this node, find the same;
    unknown  when never heard, and this node has not listened for `failure_ms` yet.

A refused probe alone proves nothing (a node without an open listener refuses too). An ended
connection alone proves nothing (a cut cable ends it). The probe is repeated while the end is
unexplained: a dying process may close its connections before its listener. Both together may come
from a device between two nodes (a resetting firewall, a proxy). So the other nodes count too: each
hello lists the nodes unheard by its sender. Later signs of the node end the doubt. Around a whole
node, or between a minority and the rest, a device looks like death: `trust_refused` excludes one.

Links (R11). Each node lists in its signs of life the nodes which it does not hear. A link is broken
when both ends report it, or one end for twice `failure_ms`: loss in one direction. A link works
again only after some time without reports, longer with each new break. So does a process heard
again after silence. Nothing flaps faster.

Silence of other nodes counts only while this node itself ran. After a pause of its own the node
gives them time to be heard.
"""

from __future__ import annotations

from enum import Enum

from attrs import define, field, frozen

from mirrorq.config import Config
from mirrorq.protocol.identities import MemberId, StoreId

GONE_TIMES = 5
"""Nodes unheard for so many times `failure_ms` may be forgotten: before, a node may only be busy.
"""

PROBE_GAP_MS = 10
"""First pause between two probes of an ended connection; doubled up to failure_ms."""
CALM_FACTOR = 3
"""A recovered node or link must stay up for this many failure_ms before it counts."""
CALM_DOUBLINGS_MAX = 4
"""Each new break doubles the calm time, at most this often."""
FORGET_FACTOR = 300
"""Breaks are forgotten after this many failure_ms without a break."""


class Status(Enum):
    """Judgement of one process of a node; the module docstring explains the values."""

    ALIVE = "alive"
    UNKNOWN = "unknown"
    SILENT = "silent"
    DEAD = "dead"


@define
class LivenessNews:
    """Judgements changed since the last `refresh`."""

    of_all: bool = True
    """Any node may have changed."""
    nodes: dict[str, None] = field(factory=dict)
    links: dict[tuple[str, str], None] = field(factory=dict)

    def __bool__(self) -> bool:
        return self.of_all or bool(self.nodes or self.links)


@frozen
class WantedProbe:
    """Ask the driver to try a plain TCP connection to the node's endpoint."""

    node: str
    number: int
    """Returned with the outcome, so an old outcome explains no newer end."""


@define
class _Calm:
    """Time for which a broken node or link must stay well before it counts as well."""

    breaks: int = 0
    broken_ms: int = 0
    """Last time seen broken."""
    shaky: bool = False

    def breaks_at(self, now_ms: int) -> None:
        self.breaks += not self.shaky
        self.shaky = True
        self.broken_ms = now_ms

    def settles_ms(self, failure_ms: int) -> int:
        doublings = min(self.breaks - 1, CALM_DOUBLINGS_MAX)
        return self.broken_ms + (CALM_FACTOR * failure_ms << doublings)

    def settle(self, now_ms: int, failure_ms: int) -> bool:
        """Return true if the calm time has just ended."""
        if self.shaky and now_ms >= self.settles_ms(failure_ms):
            self.shaky = False
            return True
        if now_ms >= self.broken_ms + FORGET_FACTOR * failure_ms:
            self.breaks = 0
        return False


@define
class _Peer:
    """The newest incarnation heard of a store."""

    member: MemberId
    heard_ms: int
    status: Status = Status.ALIVE
    calm: _Calm = field(factory=_Calm)
    unheard: dict[str, int] = field(factory=dict)
    """Nodes unheard by this peer -> start of the reports."""
    ended_ms: int | None = None
    """End of the open connection, if nothing has been heard since."""
    dead_ms: int | None = None
    """Refusal of a probe after the end: dead, as far as this node alone can tell."""
    first_probe: int = 0
    """Number of the first probe sent after the end; 0: none yet."""
    probe_due_ms: int = 0
    probe_gap_ms: int = PROBE_GAP_MS


NO_NEWS = LivenessNews(of_all=False)


def _is_calm(peer: _Peer) -> bool:
    """Return true if only silence could change the judgement of the peer."""
    is_well = peer.status is Status.ALIVE and peer.ended_ms is None and peer.dead_ms is None
    return is_well and not peer.unheard and not peer.calm.shaky and not peer.calm.breaks


class FailureDetector:
    """The judgement of one node about all others. Call `advance` first, then the input."""

    def __init__(self, own: MemberId, config: Config, now_ms: int) -> None:
        self._own = own
        self._failure_ms = config.failure_ms
        self._heartbeat_ms = config.heartbeat_ms
        self._trusts_refused = config.trust_refused
        self._pace_ms = max(config.failure_ms // 4, 1)
        self._known_ms = now_ms + config.failure_ms
        """From then on a node never heard is silent, no longer unknown; 0: already so."""
        self._last_ms = now_ms
        self._peers: dict[StoreId, _Peer] = {}
        self._named: dict[str, StoreId] = {}
        """The store last heard under each node name."""
        self._links: dict[tuple[str, str], _Calm] = {}
        self._probe_number = 0
        self._deaths: list[MemberId] = []
        self._news = LivenessNews()
        self._calm_until_ms = now_ms
        """Until then `refresh` would find nothing new. Input other than a plain sign of life resets
        the time."""

    # --- Questions --------------------------------------------------------------------

    def status(self, member: MemberId) -> Status:
        """Judge one incarnation, as of the last `refresh`."""
        if (member.node, member.store) == (self._own.node, self._own.store):
            return Status.ALIVE if member == self._own else Status.DEAD
        peer = self._peers.get(StoreId(member.node, member.store))
        if peer is not None and peer.member.incarnation > member.incarnation:
            return Status.DEAD
        if peer is None or peer.member != member:
            return Status.UNKNOWN if self._last_ms < self._known_ms else Status.SILENT
        if peer.status is Status.ALIVE and self.is_broken(self._own.node, member.node):
            # The node is heard but does not hear this node: no view or lease can reach it.
            return Status.SILENT
        return peer.status

    def later(self, member: MemberId) -> MemberId | None:
        """Return a later living incarnation of the member's store, or None."""
        peer = self._peers.get(StoreId(member.node, member.store))
        if peer is None or peer.member.incarnation <= member.incarnation:
            return None
        return peer.member if self.status(peer.member) is Status.ALIVE else None

    def is_heard(self, name: str) -> bool:
        """Return true if any incarnation of the node is alive."""
        peer = self._peer_named(name)
        return peer is not None and peer.status is Status.ALIVE

    def may_come_back(self, name: str) -> bool:
        """Return true if a silent node may be silent for a moment only: its machine may be busy."""
        peer = self._peer_named(name)
        if peer is None or peer.status is not Status.SILENT:
            return False
        return self._last_ms < peer.heard_ms + GONE_TIMES * self._failure_ms

    def is_steady(self, member: MemberId) -> bool:
        """Return true if the incarnation was never silent, or has been heard again for a while."""
        peer = self._peers.get(StoreId(member.node, member.store))
        return peer is None or not peer.calm.shaky

    def is_broken(self, one: str, other: str) -> bool:
        """Return true if the link between two nodes counts as broken."""
        link = self._links.get((min(one, other), max(one, other)))
        return link is not None and link.shaky

    @property
    def knows_breaks(self) -> bool:
        """Return true if any link may count as broken."""
        return bool(self._links)

    def unheard(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """Return the names not heard by this node: for its signs of life."""
        return tuple(name for name in names if name != self._own.node and self._is_unheard(name))

    def _is_unheard(self, name: str) -> bool:
        peer = self._peer_named(name)
        if peer is None:
            return self._last_ms >= self._known_ms
        return peer.status is not Status.ALIVE or peer.dead_ms is not None

    def _peer_named(self, name: str) -> _Peer | None:
        store = self._named.get(name)
        return None if store is None else self._peers[store]

    def wake_at_ms(self) -> int | None:
        """Return when `refresh` is wanted next; None: no node to judge."""
        if not self._peers and self._last_ms >= self._known_ms:
            return None
        due_ms = self._last_ms + self._pace_ms
        for peer in self._peers.values():
            if peer.status is Status.ALIVE:
                due_ms = min(due_ms, peer.heard_ms + self._failure_ms)
            if peer.ended_ms is not None:
                due_ms = min(due_ms, peer.probe_due_ms)
        return max(due_ms, self._last_ms)

    # --- Input ------------------------------------------------------------------------

    def advance(self, now_ms: int) -> None:
        """Take note of the time. A pause of this node is no silence of other nodes."""
        pause_ms = now_ms - self._last_ms - self._pace_ms
        if now_ms > self._last_ms:
            self._last_ms = now_ms
        if pause_ms <= self._pace_ms:
            return
        self._calm_until_ms = self._last_ms
        if self._known_ms:
            self._known_ms += pause_ms
        for peer in self._peers.values():
            peer.heard_ms += pause_ms
            for name in peer.unheard:
                peer.unheard[name] += pause_ms

    def on_heard(self, member: MemberId, unheard: tuple[str, ...]) -> None:
        """Take a sign of life of an incarnation, with the nodes which it does not hear."""
        if member.node == self._own.node:
            return
        store = StoreId(member.node, member.store)
        peer = self._peers.get(store)
        if peer is None or member.incarnation > peer.member.incarnation:
            peer = self._begin_incarnation(store, member)
        elif member.incarnation < peer.member.incarnation or not self._is_sign(peer):
            return
        self._named[member.node] = store
        peer.heard_ms = self._last_ms
        if not unheard and not peer.unheard:
            return
        self._calm_until_ms = self._last_ms
        known = [n for n in unheard if n == self._own.node or n in self._named]
        peer.unheard = {name: peer.unheard.get(name, self._last_ms) for name in known}

    def _begin_incarnation(self, store: StoreId, member: MemberId) -> _Peer:
        old = self._peers.get(store)
        if old is not None and old.status is not Status.DEAD:
            self._deaths.append(old.member)
        peer = self._peers[store] = _Peer(member, self._last_ms)
        self._calm_until_ms = self._last_ms
        for pair in [pair for pair in self._links if member.node in pair]:
            del self._links[pair]
        self._news.nodes[member.node] = None
        return peer

    def _is_sign(self, peer: _Peer) -> bool:
        """Count a sign of the known incarnation; False: sent before its death."""
        now_ms = self._last_ms
        if peer.dead_ms is None and peer.ended_ms is None:
            return True
        self._calm_until_ms = now_ms
        if peer.dead_ms is not None:
            # Other nodes hear the peer and doubt its death: then the sign is no leftover.
            wait_ms = self._failure_ms if peer.status is Status.DEAD else self._heartbeat_ms
            if now_ms < peer.dead_ms + wait_ms:
                return False
            # Heard long after a connection ended and a probe was refused: the peer lives.
            peer.dead_ms = None
        if peer.ended_ms is not None and now_ms >= peer.ended_ms + self._heartbeat_ms:
            # Later than any message on its way when the connection ended.
            peer.ended_ms = None
        return True

    def on_elected(self) -> None:
        """Note the start of leadership: a majority has answered a moment ago. Old reports about
        this node are of the past, and count anew only if they go on."""
        own = self._own.node
        for peer in self._peers.values():
            if own in peer.unheard:
                peer.unheard[own] = self._last_ms
        for pair, link in self._links.items():
            if own in pair and link.shaky:
                self._news.links[pair] = None
            link.shaky &= own not in pair

    def on_link_down(self, node: str) -> None:
        """Note the end of an open connection to the node."""
        self._calm_until_ms = self._last_ms
        for peer in self._peers.values():
            if peer.member.node == node and peer.ended_ms is None and peer.dead_ms is None:
                peer.ended_ms = peer.probe_due_ms = self._last_ms
                peer.probe_gap_ms = PROBE_GAP_MS
                peer.first_probe = 0

    def on_probe_refused(self, node: str, number: int) -> None:
        """Note a refusal of the probe with the number by the node's endpoint."""
        if not self._trusts_refused:
            return
        self._calm_until_ms = self._last_ms
        for peer in self._peers.values():
            asked = peer.member.node == node and 0 < peer.first_probe <= number
            if asked and peer.ended_ms is not None:
                peer.ended_ms = None
                peer.dead_ms = self._last_ms

    # --- Output -----------------------------------------------------------------------

    def probes(self) -> tuple[WantedProbe, ...]:
        """Return the probes to send now."""
        if self._last_ms < self._calm_until_ms:
            return ()
        due = []
        for peer in self._peers.values():
            if peer.ended_ms is not None and self._last_ms >= peer.probe_due_ms:
                self._probe_number += 1
                peer.first_probe = peer.first_probe or self._probe_number
                peer.probe_due_ms = self._last_ms + peer.probe_gap_ms
                peer.probe_gap_ms = min(2 * peer.probe_gap_ms, self._failure_ms)
                due.append(WantedProbe(peer.member.node, self._probe_number))
        return tuple(due)

    def deaths(self) -> tuple[MemberId, ...]:
        """Return, once, the incarnations newly known dead."""
        if not self._deaths:
            return ()
        deaths = tuple(self._deaths)
        self._deaths.clear()
        return deaths

    def refresh(self) -> LivenessNews:
        """Judge all peers and links anew; return the changes since the last call."""
        if self._last_ms < self._calm_until_ms:
            return NO_NEWS
        if self._last_ms >= self._known_ms > 0:
            self._known_ms = 0
            self._news.of_all = True
        for peer in self._peers.values():
            self._judge(peer)
        self._judge_links()
        news, self._news = self._news, LivenessNews(of_all=False)
        if not self._known_ms and not self._links and all(map(_is_calm, self._peers.values())):
            heard_ms = min((peer.heard_ms for peer in self._peers.values()), default=self._last_ms)
            self._calm_until_ms = heard_ms + self._failure_ms
        return news

    def _judge(self, peer: _Peer) -> None:
        status = Status.ALIVE
        if peer.dead_ms is not None and self._is_agreed(peer):
            status = Status.DEAD
        elif self._last_ms >= peer.heard_ms + self._failure_ms:
            status = Status.SILENT
        if status is not Status.ALIVE:
            peer.calm.breaks_at(self._last_ms)
            peer.unheard = {}
        elif peer.calm.settle(self._last_ms, self._failure_ms):
            self._news.nodes[peer.member.node] = None
        if status is peer.status:
            return
        peer.status = status
        self._news.nodes[peer.member.node] = None
        if status is Status.DEAD:
            self._deaths.append(peer.member)

    def _is_agreed(self, peer: _Peer) -> bool:
        """Return true if more than half of the heard nodes, with this node, find the peer gone.

        A device between two nodes which resets connections looks like death to both ends. Other
        nodes behind no device know better. A judgement of death stays.
        """
        if peer.status is Status.DEAD:
            return True
        name = peer.member.node
        others = [
            other
            for other in self._peers.values()
            if other is not peer and other.status is Status.ALIVE and other.dead_ms is None
        ]
        return 2 * (1 + sum(name in other.unheard for other in others)) > 1 + len(others)

    def _judge_links(self) -> None:
        reported = self._reported()
        for pair, bad in reported.items():
            link = self._links.get(pair)
            if link is None and bad:
                link = self._links[pair] = _Calm()
            if link is not None and (bad or link.shaky):
                if not link.shaky:
                    self._news.links[pair] = None
                link.breaks_at(self._last_ms)
        for pair, link in list(self._links.items()):
            if link.settle(self._last_ms, self._failure_ms):
                self._news.links[pair] = None
            if not link.shaky and not link.breaks:
                del self._links[pair]

    def _reported(self) -> dict[tuple[str, str], bool]:
        """Return links between living nodes reported by an end; True: certainly broken."""
        pairs: dict[tuple[str, str], bool] = {}
        for name in self._named:
            peer = self._peer_named(name)
            if peer is None or peer.status is not Status.ALIVE:
                continue
            for other, since_ms in peer.unheard.items():
                far = self._peer_named(other)
                if other == name or (far is not None and far.status is not Status.ALIVE):
                    continue  # an unheard node is no matter of links
                both = far is not None and name in far.unheard
                long = self._last_ms >= since_ms + 2 * self._failure_ms
                pair = (min(name, other), max(name, other))
                pairs[pair] = pairs.get(pair, False) or both or long
        return pairs
