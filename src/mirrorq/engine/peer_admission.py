"""Admission of peers: processes send hellos, and some are kept out. Pure.

A process is kept out if its node name is in use, or if it belongs to another cluster or was
forgotten. The refusal goes to the endpoint that the process names, where its user reads it. A node
uses a received refusal only to inform its user, and only while the node has no leader.
"""

from __future__ import annotations

from collections.abc import Mapping

from mirrorq.cluster.bootstrap import AdmissionRequest
from mirrorq.cluster.catalog.catalog import Catalog
from mirrorq.cluster.catalog.records import past_text, set_back_text
from mirrorq.engine.addresses import Addresses
from mirrorq.engine.events import EngineEffects
from mirrorq.engine.peers import Peers
from mirrorq.protocol.control import Directory, Hello, Unwelcome
from mirrorq.protocol.effects import Notice
from mirrorq.protocol.identities import MemberId, StoreId

STRANGER_FACTOR = 10
"""A process outside the cluster is dropped after a silence of so many failure_ms."""


class PeerAdmission:
    """Keeps the node's contacts, and its peers by name."""

    def __init__(
        self,
        me: MemberId,
        endpoint: str,
        peers: Mapping[str, str],
        joins: tuple[str, ...],
        failure_ms: int,
    ) -> None:
        self.me = me
        self.names = tuple(name for name in peers if name != me.node)
        """Nodes that the configuration names."""
        self.peers = Peers(failure_ms)
        self.contacts = Addresses(me.node, endpoint, peers, joins)
        self.unwelcome = ""
        """Reason why a cluster keeps the node out, as reported by a node of the cluster."""
        self.is_out_for_good = False
        """True if waiting cannot help."""
        self._failure_ms = failure_ms
        self._noticed: dict[str, None] = {}
        """Texts reported already: each is reported once in the life of the node."""
        self.out = EngineEffects()
        """Effects of the engine's current step."""
        for name in self.names:
            self.peers.add(name)

    def end_step(self) -> None:
        """End a step: add the wanted connections to the effects if they have changed."""
        wanted = self.contacts.take_change()
        if wanted is not None:
            self.out.contacts = wanted

    def on_founded(self) -> None:
        """Stop looking for a cluster: the node is in a cluster."""
        self.contacts.end_seeds()
        self.unwelcome, self.is_out_for_good = "", False

    @property
    def has_listeners(self) -> bool:
        """Whether any process expects hellos from the node."""
        return bool(self.peers) or bool(self.contacts.seeds)

    # --- Hellos ---------------------------------------------------------------------------

    def reason_against(
        self, hello: Hello, catalog: Catalog, voters: tuple[StoreId, ...]
    ) -> Unwelcome | None:
        """Return why the sender of a hello is kept out; None: admitted. An empty text means that no
        refusal is sent."""
        store = StoreId(hello.node, hello.store)
        if hello.node == self.me.node:
            text = f"another node calls itself {hello.node}: give each node a name of its own"
            self.out.notices.append(Notice("name", text))
            return Unwelcome(text, store=hello.store)
        known = catalog.cluster
        if hello.founded and 0 not in (known, hello.cluster) and known != hello.cluster:
            self._notice_once("foreign", foreign_text(store))
            return Unwelcome("")
        if catalog.is_past(store):
            self._notice_once("past", f"kept out: {past_text(hello.node)}")
            return Unwelcome(past_text(hello.node), is_final=True, store=hello.store)
        member = MemberId(hello.node, hello.store, hello.incarnation)
        if catalog.was_set_back(member) and not self.peers.is_outlived(member):
            self._notice_once("set back", f"kept out: {set_back_text(hello.node)}")
            return Unwelcome(set_back_text(hello.node), is_final=True, store=hello.store)
        if store not in voters and self.peers.on_rival(hello):
            # Believing each in turn would end the sessions of the other several times a second.
            return Unwelcome(
                f"a node named {hello.node} is alive in this cluster: use another name",
                store=hello.store,
            )
        return None

    def take_in(self, now_ms: int, hello: Hello) -> bool | None:
        """Note a hello. Return true for a new incarnation, None for an outdated incarnation."""
        is_new = self.peers.on_hello(now_ms, hello)
        if is_new is not None:
            self.contacts.learn(hello.node, hello.endpoint)
            if self.peers.new_rival(hello.node):
                text = f"two nodes call themselves {hello.node}: stop one, or give it another name"
                self.out.notices.append(Notice("name", text))
        return is_new

    def _notice_once(self, kind: str, text: str) -> None:
        if text not in self._noticed:
            self._noticed[text] = None
            self.out.notices.append(Notice(kind, text))

    # --- Words ----------------------------------------------------------------------------

    def keep_out(self, now_ms: int, hello: Hello, word: Unwelcome) -> str:
        """Have a refusal sent to a process's endpoint: its node name may be another process's.

        Returns the process's key here; "": no refusal is sent.
        """
        return self.contacts.tell(now_ms, hello.endpoint, word)

    def say_unwelcome(self, key: str) -> None:
        word = self.contacts.word_for(key)
        if word is not None:
            self.out.send.append((key, word))

    def on_unwelcome(self, text: str, *, is_final: bool = False) -> None:
        self.is_out_for_good = is_final
        if self.unwelcome != text:
            self.unwelcome = text
            self.out.notices.append(Notice("kept out", text))

    def may_ask(
        self, member: MemberId, message: AdmissionRequest, catalog: Catalog, is_alive: bool
    ) -> bool:
        """Return true if a store may ask to be a voter. The store gets a directory or a refusal.

        Args:
            is_alive: the incarnation that the catalog knows under the name runs.
        """
        record = catalog.node(member.node)
        is_expected = message.joins or self.contacts.is_static(member.node) or record is not None
        text = ""
        if not is_expected:
            text = (
                f"{member.node} is not among the peers that {self.me.node} was started with: start "
                "it with join= to have it admitted"
            )
        elif record is not None and record.store != member.store and is_alive:
            text = f"a node named {member.node} is alive in this cluster: use another name"
        nodes = tuple((node.name, node.endpoint) for node in catalog.nodes())
        answer = Unwelcome(text, store=member.store) if text else Directory(nodes)
        self.out.send.append((member.node, answer))
        return not text

    # --- Who is there ---------------------------------------------------------------------

    def meet(self, name: str, endpoint: str) -> None:
        """Note a reported endpoint of a node."""
        if self.contacts.learn(name, endpoint):
            self.peers.add(name)

    def directory(self, voters: tuple[StoreId, ...]) -> Directory:
        """Return the known endpoints of the voters, the local node included."""
        names = dict.fromkeys(voter.node for voter in voters)
        nodes = tuple((name, self.contacts.endpoint_of(name)) for name in names)
        return Directory(tuple(node for node in nodes if node[1]))

    def on_directory(self, told: Directory, voters: tuple[StoreId, ...]) -> Directory | None:
        """Look for silent voters where told. Return the own directory if it knows more, or None."""
        for name, endpoint in told.nodes:
            peer = self.peers.find(name)
            if any(voter.node == name for voter in voters) and (peer is None or peer.gone):
                self.meet(name, endpoint)
        known, names = self.directory(voters), dict(told.nodes)
        return known if any(name not in names for name, _ in known.nodes) else None

    def update_nodes(self, catalog: Catalog) -> tuple[str, ...]:
        """Connect to the catalog's nodes. Return those that left; configured ones stay."""
        nodes = {node.name: node.endpoint for node in catalog.nodes()}
        nodes.pop(self.me.node, None)
        forgotten = self.contacts.update_nodes(nodes)
        for name in forgotten:
            if not self.contacts.is_static(name):
                self.peers.remove(name)
                continue
            peer = self.peers.find(name)
            if peer is not None and peer.store is not None and catalog.is_past(peer.store):
                peer.bar()
        for name in nodes:
            self.peers.add(name)
        return forgotten

    def newly_silent(self, now_ms: int, voters: tuple[StoreId, ...]) -> list[str]:
        """Return peers that have just fallen silent, and drop silent peers that are not needed.

        Args:
            voters: needed even if not registered yet.
        """
        silent = [peer.name for peer in self.peers.newly_silent(now_ms)]
        for peer in self.peers.all():
            is_over = peer.gone and peer.member is not None
            if is_over and not (self.contacts.is_needed(peer.name) or peer.store in voters):
                self.contacts.forget(peer.name)
                self.peers.remove(peer.name)
        self.contacts.end_silent(now_ms - STRANGER_FACTOR * self._failure_ms)
        return silent


def foreign_text(store: StoreId) -> str:
    """Text for a store that does not belong to the cluster."""
    return (
        f"the store {store.store} of a node that calls itself {store.node} does not "
        "belong to this cluster: it is ignored. Two nodes have that name, or the store is of "
        "another cluster "
        "or an old copy: stop that node, or start it with an empty path"
    )
