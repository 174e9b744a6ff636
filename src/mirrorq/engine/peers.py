"""Which incarnation of each peer this node talks to, and when it was last heard. Pure.

Handles that live on a peer are taken for gone when nothing came from it for failure_ms, or
when it is known dead; who may be *replaced* is judged by `failure_detector`, with more care.
"""

from __future__ import annotations

from attrs import define

from mirrorq.protocol.control import Hello
from mirrorq.protocol.identities import MemberId, StoreId


@define
class Peer:
    """What this node knows of one other, by name."""

    name: str
    member: MemberId | None = None
    """Its newest incarnation that has said hello; None before."""
    store: StoreId | None = None
    """The store of that incarnation."""
    voters: tuple[StoreId, ...] | None = None
    """The voters among which that store is, when they were last looked at."""
    heard_ms: int = 0
    gone: bool = True
    is_past: bool = False
    """That store was forgotten: it may still vote, and nothing else."""
    is_kept_out: bool = False
    """Its messages about queues are dropped: it is no voter of this cluster, or not any more."""
    rival: int = 0
    """Another store that says hello under this name while this one is alive; 0: none."""
    is_rival_told: bool = False
    greeting: tuple[Hello, object] | None = None
    """Its last hello, and the state of the catalog by which it was taken in."""

    def is_greeted(self, hello: Hello, seen: object) -> bool:
        """Whether it is well and has said just this, and been taken in in this very state."""
        if self.gone or self.rival or self.greeting is None:
            return False
        return self.greeting == (hello, seen)

    def bar(self) -> None:
        """Its store was forgotten."""
        self.is_past = self.gone = True
        self.greeting = None


class Peers:
    """All other nodes that this one knows by name."""

    def __init__(self, failure_ms: int) -> None:
        self._failure_ms = failure_ms
        self._peers: dict[str, Peer] = {}

    def add(self, name: str) -> Peer:
        return self._peers.setdefault(name, Peer(name))

    def remove(self, name: str) -> None:
        self._peers.pop(name, None)

    def find(self, name: str) -> Peer | None:
        return self._peers.get(name)

    def greet(self, hello: Hello, seen: object) -> None:
        """It was taken in: see `Peer.is_greeted`."""
        self._peers[hello.node].greeting = (hello, seen)

    def __len__(self) -> int:
        return len(self._peers)

    def all(self) -> tuple[Peer, ...]:
        return tuple(self._peers.values())

    def is_outlived(self, member: MemberId) -> bool:
        """Whether a later incarnation of its store is here: what it said has come late."""
        peer = self._peers.get(member.node)
        known = None if peer is None or peer.gone else peer.member
        return (
            known is not None
            and known.store == member.store
            and known.incarnation > member.incarnation
        )

    def on_hello(self, now_ms: int, hello: Hello) -> bool | None:
        """Note a sign of life: whether its incarnation is new; None when it is of an old one."""
        peer = self.add(hello.node)
        member = MemberId(hello.node, hello.store, hello.incarnation)
        known = peer.member
        if known is not None and known.store == member.store:
            if member.incarnation < known.incarnation:
                return None
        if known is None or known.store != member.store:
            peer.rival, peer.is_past = 0, False
        if known != member:
            peer.member = member
            peer.store, peer.voters = StoreId(hello.node, hello.store), None
            peer.greeting = None
        peer.heard_ms = now_ms
        peer.gone = False
        return member != known

    def on_rival(self, hello: Hello) -> bool:
        """Note a hello of a second store under the name of a peer that is taken for alive.

        A restart with an empty store looks like this until the old incarnation is known to be gone;
        two nodes with one name go on like this. True: this peer was alive.
        """
        peer = self.add(hello.node)
        if peer.gone or peer.member is None or peer.member.store == hello.store:
            return False
        if peer.rival != hello.store:
            peer.rival, peer.is_rival_told = hello.store, False
        return True

    def new_rival(self, node: str) -> bool:
        """This peer speaks though another has come: both live. True when that is news."""
        peer = self.add(node)
        is_news = peer.rival != 0 and not peer.is_rival_told
        peer.is_rival_told = peer.is_rival_told or is_news
        return is_news

    def on_heard(self, now_ms: int, name: str, incarnation: int) -> Peer | None:
        """Something came; who from, or None when that incarnation has not said hello yet."""
        peer = self._peers.get(name)
        if peer is None or peer.member is None or peer.member.incarnation != incarnation:
            return None
        peer.heard_ms = now_ms
        peer.gone = False
        return peer

    def end(self, member: MemberId) -> bool:
        """This incarnation is known dead. True when that is news."""
        peer = self._peers.get(member.node)
        if peer is None or peer.member != member or peer.gone:
            return False
        peer.gone = True
        return True

    def newly_silent(self, now_ms: int) -> tuple[Peer, ...]:
        """Peers that have now been silent for failure_ms."""
        found = []
        for peer in self._peers.values():
            if not peer.gone and now_ms - peer.heard_ms >= self._failure_ms:
                peer.gone = True
                found.append(peer)
        return tuple(found)
