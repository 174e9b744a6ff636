"""The incarnation of each peer to which the node talks, and when it was last heard. Pure.

Handles on a peer count as gone after failure_ms of silence, or when the peer is known dead. The
decision to *replace* a member is taken by `failure_detector`, with more care.
"""

from __future__ import annotations

from attrs import define

from mirrorq.protocol.control import Hello
from mirrorq.protocol.identities import MemberId, StoreId


@define
class Peer:
    """The local node's knowledge of one other node, by name."""

    name: str
    member: MemberId | None = None
    """Newest incarnation that has sent a hello; None before."""
    store: StoreId | None = None
    """The store of `member`."""
    voters: tuple[StoreId, ...] | None = None
    """The last list of voters in which `store` was found. An unchanged list needs no new search."""
    heard_ms: int = 0
    gone: bool = True
    is_past: bool = False
    """True if the store was forgotten: it may still vote, and nothing else."""
    is_kept_out: bool = False
    """True if messages about queues are dropped: the store is not a voter of the cluster."""
    rival: int = 0
    """Another store that sends hellos under the same name while the peer is alive; 0: none."""
    is_rival_told: bool = False
    greeting: tuple[Hello, object] | None = None
    """The peer's last hello, and the state of Raft with which it was admitted."""

    def is_greeted(self, hello: Hello, seen: object) -> bool:
        """Return true if the peer is well and was admitted with an equal hello and state."""
        if self.gone or self.rival or self.greeting is None:
            return False
        return self.greeting == (hello, seen)

    def bar(self) -> None:
        """Note that the peer's store was forgotten."""
        self.is_past = self.gone = True
        self.greeting = None


class Peers:
    """All other nodes that the local node knows by name."""

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
        """Note that a peer was admitted with a hello: see `Peer.is_greeted`."""
        self._peers[hello.node].greeting = (hello, seen)

    def __len__(self) -> int:
        return len(self._peers)

    def all(self) -> tuple[Peer, ...]:
        return tuple(self._peers.values())

    def is_outlived(self, member: MemberId) -> bool:
        """Return true if a later incarnation of the member's store lives: a message came late."""
        peer = self._peers.get(member.node)
        known = None if peer is None or peer.gone else peer.member
        return (
            known is not None
            and known.store == member.store
            and known.incarnation > member.incarnation
        )

    def on_hello(self, now_ms: int, hello: Hello) -> bool | None:
        """Note a hello. Return true for a new incarnation, None for an outdated incarnation."""
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
        """Note a hello of a second store under a peer's name. Return true if the peer lives.

        A restart with an empty store looks the same until the old incarnation is known to be gone.
        Two nodes with one name never stop.
        """
        peer = self.add(hello.node)
        if peer.gone or peer.member is None or peer.member.store == hello.store:
            return False
        if peer.rival != hello.store:
            peer.rival, peer.is_rival_told = hello.store, False
        return True

    def new_rival(self, node: str) -> bool:
        """Return true once if a peer still speaks although a rival has come: both are alive."""
        peer = self.add(node)
        is_news = peer.rival != 0 and not peer.is_rival_told
        peer.is_rival_told = peer.is_rival_told or is_news
        return is_news

    def on_heard(self, now_ms: int, name: str, incarnation: int) -> Peer | None:
        """Return the sender of a message; None if the incarnation has not sent a hello yet."""
        peer = self._peers.get(name)
        if peer is None or peer.member is None or peer.member.incarnation != incarnation:
            return None
        peer.heard_ms = now_ms
        peer.gone = False
        return peer

    def mark_dead(self, member: MemberId) -> bool:
        """Note that an incarnation is dead. Return true if the death is news."""
        peer = self._peers.get(member.node)
        if peer is None or peer.member != member or peer.gone:
            return False
        peer.gone = True
        return True

    def newly_silent(self, now_ms: int) -> tuple[Peer, ...]:
        """Return peers that have just reached failure_ms of silence."""
        found = []
        for peer in self._peers.values():
            if not peer.gone and now_ms - peer.heard_ms >= self._failure_ms:
                peer.gone = True
                found.append(peer)
        return tuple(found)
