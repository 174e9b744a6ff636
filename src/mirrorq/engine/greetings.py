"""Hellos: what this node says of itself, and what it does when another one has come."""

from __future__ import annotations

from mirrorq.cluster.bootstrap import AdmissionRequest, PeerHello
from mirrorq.cluster.controller.events import Heard
from mirrorq.engine.consensus import Consensus
from mirrorq.engine.context import EngineContext
from mirrorq.engine.leadership import Leadership
from mirrorq.engine.peer_admission import foreign_text
from mirrorq.protocol.control import Hello, Unwelcome
from mirrorq.protocol.identities import MemberId, StoreId
from mirrorq.replication.events import NodeGone


class Greetings:
    """Says this node's hellos and takes in those of others. The engine has it.

    Args:
        context: what the engine's parts share.
        endpoint: where others reach this node, "" when it listens nowhere.
    """

    def __init__(
        self, context: EngineContext, consensus: Consensus, leadership: Leadership, endpoint: str
    ) -> None:
        self._context = context
        self._consensus = consensus
        self._leadership = leadership
        self._endpoint = endpoint

    def hello(self) -> Hello:
        """What this node says of itself now."""
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
        """Say hello to who is reached under this name."""
        self._context.out.send.append((node, self.hello()))

    def say_to_all(self) -> None:
        """Say hello to every peer, and to those through whom this node joins."""
        out, admission = self._context.out, self._context.admission
        hello = self.hello()
        out.send += [(peer.name, hello) for peer in admission.peers.all()]
        out.send += [(key, hello) for key in admission.contacts.seeds]

    def on_hello(self, now_ms: int, hello: Hello) -> None:
        """A process says that it is a node, and lives."""
        raft, admission = self._consensus.raft, self._context.admission
        peer = admission.peers.find(hello.node)
        seen = (raft.role, raft.term, raft.applied_index, raft.last_index)
        if peer is not None and peer.is_greeted(hello, seen):
            # The very same as before, and nothing has changed here by which it is judged.
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
        """Another incarnation of a peer has come: nothing of the old one, nothing told to it."""
        hosting = self._context.hosting
        self._context.notice(
            "came", f"node {member.node} has come, incarnation {member.incarnation}"
        )
        hosting.post_masters(NodeGone(member.node, member.incarnation))
        hosting.on_link(member.node)
        self.say_all(member.node)

    def say_all(self, node: str) -> None:
        """Say hello to who may have heard nothing yet, and what else is said only once.

        Its hello may come before there is a way back to it: what is said then is gone, so all of
        it is said again when the connection to it is up.
        """
        hosting = self._context.hosting
        hosting.reports.tell_again()
        hosting.sync_reports.tell_again()
        self.say(node)
        hosting.reports.remind(node)

    def remind(self) -> None:
        """Tell incarnations that have just begun what the masters of queues that are down had said,
        a portion of it: one of them may go on with less, and counts the loss."""
        context = self._context
        for node, report in context.hosting.reports.next_reminders():
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
        """Whether a store may ask this node to be made a voter.

        One that has a log has to have this cluster's: of another's, terms and indices may be the
        same, and Raft would take one for the other. No store is ever a voter of two clusters.
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
