"""Who is alive, who is certainly dead, and which links are broken, as one node hears it.

It runs on every node, leader or not, so that a new catalog leader need not begin to listen.

A process (node, store, incarnation) is
    alive    when it was heard within `failure_ms`;
    silent   when it was not: it may still run, so it keeps what its lease gives it;
    dead     when that is certain: a higher incarnation of its store was heard; or the open
             connection to it ended *and* a probe sent after that was refused, *and* more than half
             of the nodes that are heard, this one among them, find the same;
    unknown  when it was never heard and this node has not listened for `failure_ms` yet.

A refused probe alone says nothing (a node that has not yet opened its listener refuses too),
nor does an ended connection alone (a cut cable ends it). The probe is repeated while the end
is unexplained: a dying process may close its connections before its listener. Both together may
be the doing of something between two nodes that ends connections and refuses new ones (a firewall
that resets, a proxy): therefore the others are asked, in what each says whom it does not hear, and
what the node itself says later ends the doubt. Around a whole node, or between a minority and the
rest, such a thing cannot be told from death: `trust_refused` says that there is none.

Links (R11). Each node says in its signs of life whom it does not hear. A link is broken when
both ends say so, or one end does for twice `failure_ms`: loss in one direction. It counts as
working again only when nobody has reported it for a while, longer with each new break; and so
does a process that was silent and is heard again. Nothing flaps faster than that.

The silence of others is counted only while this node itself ran: after a pause of its own it
gives them time to be heard.
"""

from __future__ import annotations

from enum import Enum

from attrs import define, field, frozen

from mirrorq.config import Config
from mirrorq.protocol.identities import MemberId, StoreId

GONE_TIMES = 5
"""Who was not heard for so many times `failure_ms` may be forgotten: before, it may only be
busy."""

PROBE_GAP_MS = 10
"""First pause between two probes of one ended connection; doubled up to failure_ms."""
CALM_FACTOR = 3
"""What came back must stay up for this many failure_ms before it counts."""
CALM_DOUBLINGS_MAX = 4
"""That time is doubled with each new break, at most this often."""
FORGET_FACTOR = 300
"""Breaks are forgotten after this many failure_ms without one."""


class Status(Enum):
    """What is made of one process of a node; the module's text says what each means."""

    ALIVE = "alive"
    UNKNOWN = "unknown"
    SILENT = "silent"
    DEAD = "dead"


@frozen
class WantedProbe:
    """Ask the driver to try a plain TCP connection to the node's endpoint."""

    node: str
    number: int
    """Told again with the outcome, so that an old outcome explains no newer end."""


@define
class _Calm:
    """How long something that broke must stay well before it counts as well."""

    breaks: int = 0
    broken_ms: int = 0
    """Last time at which it was seen broken."""
    shaky: bool = False

    def breaks_at(self, now_ms: int) -> None:
        self.breaks += not self.shaky
        self.shaky = True
        self.broken_ms = now_ms

    def settles_ms(self, failure_ms: int) -> int:
        doublings = min(self.breaks - 1, CALM_DOUBLINGS_MAX)
        return self.broken_ms + (CALM_FACTOR * failure_ms << doublings)

    def settle(self, now_ms: int, failure_ms: int) -> bool:
        """Return whether it became well just now."""
        if self.shaky and now_ms >= self.settles_ms(failure_ms):
            self.shaky = False
            return True
        if now_ms >= self.broken_ms + FORGET_FACTOR * failure_ms:
            self.breaks = 0
        return False


@define
class _Peer:
    """The newest incarnation heard of one store."""

    member: MemberId
    heard_ms: int
    status: Status = Status.ALIVE
    calm: _Calm = field(factory=_Calm)
    unheard: dict[str, int] = field(factory=dict)
    """Nodes that it does not hear -> since when it says so."""
    ended_ms: int | None = None
    """The open connection to it ended then, and nothing has been heard since."""
    dead_ms: int | None = None
    """A probe was refused then, after that end: it is dead, as far as this node alone can tell."""
    first_probe: int = 0
    """Number of the first probe sent after that end; 0: none yet."""
    probe_due_ms: int = 0
    probe_gap_ms: int = PROBE_GAP_MS


def _is_calm(peer: _Peer) -> bool:
    """Whether only silence could change what is thought of it."""
    is_well = peer.status is Status.ALIVE and peer.ended_ms is None and peer.dead_ms is None
    return is_well and not peer.unheard and not peer.calm.shaky and not peer.calm.breaks


class FailureDetector:
    """The judgement of one node about all others. `advance` first, then the input."""

    def __init__(self, own: MemberId, config: Config, now_ms: int) -> None:
        self._own = own
        self._failure_ms = config.failure_ms
        self._heartbeat_ms = config.heartbeat_ms
        self._trusts_refused = config.trust_refused
        self._pace_ms = max(config.failure_ms // 4, 1)
        self._known_ms = now_ms + config.failure_ms
        """From then on who was never heard is silent, no longer unknown; 0: it is so."""
        self._last_ms = now_ms
        self._peers: dict[StoreId, _Peer] = {}
        self._named: dict[str, StoreId] = {}
        """The store last heard under each node name."""
        self._links: dict[tuple[str, str], _Calm] = {}
        self._probe_number = 0
        self._deaths: list[MemberId] = []
        self._changed = True
        self._calm_until_ms = now_ms
        """Before this `refresh` would find nothing new: all is well. Input that is more than a
        sign of life sets it back."""

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
            # It is heard but hears nothing from here: no view or lease can reach it.
            return Status.SILENT
        return peer.status

    def later(self, member: MemberId) -> MemberId | None:
        """Return a later incarnation of this member's store, if one is alive."""
        peer = self._peers.get(StoreId(member.node, member.store))
        if peer is None or peer.member.incarnation <= member.incarnation:
            return None
        return peer.member if self.status(peer.member) is Status.ALIVE else None

    def is_heard(self, name: str) -> bool:
        """Say whether some incarnation of this node is alive."""
        peer = self._peer_named(name)
        return peer is not None and peer.status is Status.ALIVE

    def may_come_back(self, name: str) -> bool:
        """Say whether a node that is silent is so for a moment only, as far as can be told: its
        machine may be busy."""
        peer = self._peer_named(name)
        if peer is None or peer.status is not Status.SILENT:
            return False
        return self._last_ms < peer.heard_ms + GONE_TIMES * self._failure_ms

    def is_steady(self, member: MemberId) -> bool:
        """Say whether this incarnation was never silent, or has been heard again for a while."""
        peer = self._peers.get(StoreId(member.node, member.store))
        return peer is None or not peer.calm.shaky

    def is_broken(self, one: str, other: str) -> bool:
        """Say whether the link between two nodes counts as broken."""
        link = self._links.get((min(one, other), max(one, other)))
        return link is not None and link.shaky

    @property
    def knows_breaks(self) -> bool:
        """Whether any link may count as broken."""
        return bool(self._links)

    def unheard(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """Return which of these nodes this one does not hear: what its signs of life say."""
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
        """Return when `refresh` is wanted next; None: there is nobody to judge."""
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
        """Take note of the time. A pause of this node is not the silence of the others."""
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
        """A sign of life of this incarnation, and whom it does not hear."""
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
        self._changed = True
        return peer

    def _is_sign(self, peer: _Peer) -> bool:
        """Count a sign of the incarnation that is known; False: it was sent before its death."""
        now_ms = self._last_ms
        if peer.dead_ms is None and peer.ended_ms is None:
            return True
        self._calm_until_ms = now_ms
        if peer.dead_ms is not None:
            # Others who hear it doubt its death: then what it says now is no leftover.
            wait_ms = self._failure_ms if peer.status is Status.DEAD else self._heartbeat_ms
            if now_ms < peer.dead_ms + wait_ms:
                return False
            # Still heard long after a connection ended and a probe was refused: it lives.
            peer.dead_ms = None
        if peer.ended_ms is not None and now_ms >= peer.ended_ms + self._heartbeat_ms:
            # Later than anything that was still on its way when the connection ended.
            peer.ended_ms = None
        return True

    def on_elected(self) -> None:
        """This node leads from now on: a majority has answered it a moment ago. That others did
        not hear it before is of the past, and counts when they go on saying so."""
        own = self._own.node
        for peer in self._peers.values():
            if own in peer.unheard:
                peer.unheard[own] = self._last_ms
        for pair, link in self._links.items():
            self._changed |= own in pair and link.shaky
            link.shaky &= own not in pair

    def on_link_down(self, node: str) -> None:
        """An open connection to this node ended."""
        self._calm_until_ms = self._last_ms
        for peer in self._peers.values():
            if peer.member.node == node and peer.ended_ms is None and peer.dead_ms is None:
                peer.ended_ms = peer.probe_due_ms = self._last_ms
                peer.probe_gap_ms = PROBE_GAP_MS
                peer.first_probe = 0

    def on_probe_refused(self, node: str, number: int) -> None:
        """The node's endpoint refused the probe of this number."""
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
        """Return, once, the incarnations that have become known dead."""
        if not self._deaths:
            return ()
        deaths = tuple(self._deaths)
        self._deaths.clear()
        return deaths

    def refresh(self) -> bool:
        """Judge everything anew; return whether any answer has changed since the last time."""
        if self._last_ms < self._calm_until_ms:
            return False
        if self._last_ms >= self._known_ms > 0:
            self._known_ms = 0
            self._changed = True
        for peer in self._peers.values():
            self._judge(peer)
        self._judge_links()
        changed, self._changed = self._changed, False
        if not self._known_ms and not self._links and all(map(_is_calm, self._peers.values())):
            heard_ms = min((peer.heard_ms for peer in self._peers.values()), default=self._last_ms)
            self._calm_until_ms = heard_ms + self._failure_ms
        return changed

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
            self._changed = True
        if status is peer.status:
            return
        peer.status = status
        self._changed = True
        if status is Status.DEAD:
            self._deaths.append(peer.member)

    def _is_agreed(self, peer: _Peer) -> bool:
        """Whether more than half of the nodes that are heard, this one among them, find it gone.

        Something between two nodes that ends connections and refuses new ones looks like a death
        to these two: those whom it does not stand between know better. Once judged it stays.
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
                self._changed |= not link.shaky
                link.breaks_at(self._last_ms)
        for pair, link in list(self._links.items()):
            self._changed |= link.settle(self._last_ms, self._failure_ms)
            if not link.shaky and not link.breaks:
                del self._links[pair]

    def _reported(self) -> dict[tuple[str, str], bool]:
        """Return the links between living nodes that an end reports; True: broken for sure."""
        pairs: dict[tuple[str, str], bool] = {}
        for name in self._named:
            peer = self._peer_named(name)
            if peer is None or peer.status is not Status.ALIVE:
                continue
            for other, since_ms in peer.unheard.items():
                far = self._peer_named(other)
                if other == name or (far is not None and far.status is not Status.ALIVE):
                    continue  # a node that nobody hears is no matter of links
                both = far is not None and name in far.unheard
                long = self._last_ms >= since_ms + 2 * self._failure_ms
                pair = (min(name, other), max(name, other))
                pairs[pair] = pairs.get(pair, False) or both or long
        return pairs
