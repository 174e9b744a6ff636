"""Hellos: the local node's state for other nodes, and the handling of hellos from other nodes."""

from __future__ import annotations

from mirrorq.cluster.bootstrap import AdmissionRequest, PeerHello
from mirrorq.cluster.controller.events import Heard
from mirrorq.engine.consensus import Consensus
from mirrorq.engine.context import EngineContext
from mirrorq.engine.leadership import Leadership
from mirrorq.engine.peer_admission import foreign_text
from mirrorq.protocol.control import Hello, Unwelcome
from mirrorq.protocol.identities import MemberId, StoreId


class Greetings:
    """Sends the node's hellos and handles received hellos. The engine owns the object.

    Args:
        context: shared by the engine's parts.
        endpoint: where other nodes reach the local node, "" when it listens nowhere.
    """

    def __init__(
        self, context: EngineContext, consensus: Consensus, leadership: Leadership, endpoint: str
    ) -> None:
        self._context = context
        self._consensus = consensus
        self._leadership = leadership
        self._endpoint = endpoint

    def hello(self) -> Hello:
        """Return the hello with the node's current state."""
        context = self._context
        me = context.me
        return Hello(
            me.node,
            me.store,
            me.incarnation,
            self._consensus.raft.is_founded,
            self._leadership.unheard(),
            self._endpoint,
            context.catalog.cluster,
            context.alarms,
            context.hosting.broken,
            context.spooled,
        )

    def say(self, node: str) -> None:
        """Send a hello to one peer."""
        self._context.out.send.append((node, self.hello()))

    def say_to_all(self) -> None:
        """Send a hello to every peer and to the endpoints through which the node joins."""
        out, admission = self._context.out, self._context.admission
        hello = self.hello()
        out.send += [(peer.name, hello) for peer in admission.peers.all()]
        out.send += [(key, hello) for key in admission.contacts.seeds]

    def on_hello(self, now_ms: int, hello: Hello) -> None:
        """Handle a hello: admit, welcome or keep out the process that sent it."""
        raft, admission = self._consensus.raft, self._context.admission
        peer = admission.peers.find(hello.node)
        seen = (raft.role, raft.term, raft.applied_index, raft.last_index)
        if peer is not None and peer.is_greeted(hello, seen):
            # An equal hello as before, and the state by which hellos are judged is unchanged.
            assert peer.member is not None
            peer.heard_ms = now_ms
            heard = Heard(peer.member, hello.unheard, hello.broken)
            self._leadership.supervise(now_ms, heard)
            return
        word = admission.reason_against(hello, self._context.catalog, raft.voters)
        if word is not None:
            self._keep_out(now_ms, hello, word)
            return
        is_new = admission.take_in(now_ms, hello)
        if is_new is None:
            return
        store = StoreId(hello.node, hello.store)
        member = MemberId(hello.node, hello.store, hello.incarnation)
        if is_new:
            self._welcome(member)
        if not raft.is_founded:
            self._consensus.found(now_ms, PeerHello(store, hello.founded))
        if self._consensus.is_foreign(store):
            if is_new and hello.founded:
                self._context.notice("foreign", foreign_text(store))
            return
        if raft.is_founded:
            admission.peers.greet(hello, seen)
        self._leadership.supervise(now_ms, Heard(member, hello.unheard, hello.broken))

    def _welcome(self, member: MemberId) -> None:
        """Welcome a new incarnation of a peer: old state ends, reports are sent again."""
        hosting = self._context.hosting
        self._context.notice(
            "came", f"node {member.node} has come, incarnation {member.incarnation}"
        )
        hosting.post_node_gone(member.node, member.incarnation)
        hosting.on_link(member.node)
        self.say_all(member.node)

    def say_all(self, node: str) -> None:
        """Send a hello, and have the reports that are normally sent once sent again.

        A peer's hello may come before the connection back to the peer is up. Messages sent in
        between are lost, so all are sent again when the connection is up.
        """
        hosting = self._context.hosting
        hosting.reports.tell_again()
        hosting.sync_reports.tell_again()
        self.say(node)
        hosting.reports.repeat_to(node)

    def repeat_reports(self) -> None:
        """Send newly started nodes the last reports about queues whose master is down, in portions.
        A node may be promoted with fewer messages and counts the loss against the report."""
        context = self._context
        for node, report in context.hosting.reports.next_repeats():
            record = context.catalog.queue(report.queue_id)
            if record is not None and not context.hosting.is_alive(record.view.members[0].id):
                context.out.send.append((node, report))

    def _keep_out(self, now_ms: int, hello: Hello, word: Unwelcome) -> None:
        admission = self._context.admission
        key = admission.keep_out(now_ms, hello, word) if word.text else ""
        if key:
            self.say(key)
            admission.say_unwelcome(key)

    def may_ask(self, member: MemberId, message: AdmissionRequest) -> bool:
        """Return true if a store may ask the node to be made a voter.

        A store with a log must belong to the same cluster. Terms and indices of another cluster's
        log may be equal, and Raft would mix the logs up. No store is ever a voter of two clusters.
        """
        raft = self._consensus.raft
        if not raft.is_founded:
            return False
        if message.voters and not any(voter.store in message.voters for voter in raft.voters):
            return False
        context = self._context
        record = context.catalog.node(member.node)
        is_alive = record is not None and context.hosting.is_alive(record.member)
        return context.admission.may_ask(member, message, context.catalog, is_alive)
