"""One node's whole logic: catalog, leadership, leases and all its queues. Pure.

    effects = engine.step(now_ms, wall_us, events)

The driver (`node`, or the simulator) drains whatever has arrived, steps it all, makes one
commit of `effects.writes` and `effects.raft`, steps `Committed(effects.round)`, and carries
the other effects out in the order of their fields. Nothing here blocks or raises on what
peers send.

What goes where: ring messages to the queue's `replica`; session requests to the master's
node, wherever that is; Raft and founding messages to `raft` and `founding`; what the catalog's
leader decides is in `supervisor`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import get_args

from mirrorq.asks import NOBODY, Asks, PendingAsk
from mirrorq.catalog import Catalog, LaterVersion
from mirrorq.codec import OpCodec
from mirrorq.config import Config
from mirrorq.contacts import MARK
from mirrorq.courier import OutboxLoaded
from mirrorq.deadlines import FOREVER_MS
from mirrorq.doorkeeper import Doorkeeper, foreign_text
from mirrorq.effects import Persisted, QueueImage, RaftEntry, RaftImage
from mirrorq.engine_events import (
    Answer,
    Ask,
    Committed,
    EngineEffects,
    EngineEvent,
    Forget,
    FromPeer,
    FromSession,
    LinkDown,
    LinkUp,
    NotSent,
    Probed,
    Release,
    SessionClosed,
    SessionOpened,
    WriteAll,
)
from mirrorq.errors import ProtocolError
from mirrorq.founding import (
    FOUNDING_MESSAGES,
    AdmissionRequest,
    Founded,
    Founding,
    FoundingEvent,
    FoundingReceived,
    FoundingTick,
    PeerHello,
    joining,
    joins_through,
)
from mirrorq.hosting import Hosting
from mirrorq.lease import Leading, LeaseHolder
from mirrorq.liveness import Status
from mirrorq.messages import (
    CatalogAnswer,
    CatalogCommand,
    CatalogRequest,
    DeclareQueue,
    DeclareShards,
    DeleteQueue,
    Deliver,
    Directory,
    DropCopy,
    Hello,
    LeaseAnswer,
    LeaseRelease,
    LeaseRequest,
    MemberId,
    NameCluster,
    NodeStopped,
    QueueReport,
    RegisterNode,
    RingMessage,
    SessionReply,
    SessionRequest,
    StoreId,
    SyncReport,
    Unwelcome,
    Yield,
    Yielded,
)
from mirrorq.notice import Notice
from mirrorq.peers import Peer
from mirrorq.proposals import pack, recorded_endpoints, unpack
from mirrorq.raft import (
    KIND_COMMAND,
    RAFT_MESSAGES,
    Compact,
    Contact,
    Found,
    Late,
    PeerDead,
    Promise,
    Propose,
    ProposeVoters,
    Raft,
    RaftEffects,
    RaftEvent,
    Received,
    merge_writes,
)
from mirrorq.raft import Tick as RaftTick
from mirrorq.replica import (
    LeaseChanged,
    NodeGone,
    RingReceived,
    Undelivered,
    YieldAsked,
)
from mirrorq.replica import WriteAll as WriteAllOf
from mirrorq.supervisor import Supervisor
from mirrorq.supervisor_events import CatalogReplaced, Changes, Heard
from mirrorq.supervisor_events import Event as SupervisorEvent
from mirrorq.supervisor_events import LinkDown as SupervisorLinkDown
from mirrorq.supervisor_events import ProbeRefused as SupervisorProbeRefused
from mirrorq.supervisor_events import Tick as SupervisorTick
from mirrorq.view import in_sync_ids

COMPACT_ENTRIES = 1000
"""Raft's log is replaced by a snapshot after so many applied entries."""
LATE_FACTOR = 5
"""Steps that are late by more than a heartbeat divided by this are told to Raft."""


class Engine:
    """The pure half of a node."""

    def __init__(
        self,
        me: MemberId,
        endpoint: str,
        peers: Mapping[str, str],
        config: Config,
        codec: OpCodec,
        raft_image: RaftImage,
        queue_images: Iterable[QueueImage],
        *,
        join: tuple[str, ...] = (),
        witness: bool = False,
        seed: int = 0,
        now_ms: int = 0,
    ) -> None:
        """Continue from what the disk holds.

        Args:
            endpoint: where others reach this node, "" when it listens nowhere.
            peers: the nodes that the configuration names, with their endpoints.
            join: endpoints of a cluster through which an empty store joins it.
        """
        self.me = me
        self.config = config
        self.catalog = Catalog()
        self.asks = Asks()
        self.hosting = Hosting(
            me, config, codec, queue_images, self.catalog, self.asks, self.is_alive
        )
        self.replicas = self.hosting.replicas
        self.reports = self.hosting.reports
        self.sync_reports = self.hosting.sync_reports
        self.lease = self.hosting.lease
        self.room = self.hosting.room
        """Set by the driver before each step."""
        self.alarms: tuple[str, ...] = ()
        """Names of those that are raised here; set by the driver."""
        self._store = StoreId(me.node, me.store)
        self._endpoint = endpoint
        self._witness = witness
        self._named_term = 0
        """Term in which this leader has proposed an id for the cluster."""
        self._holder = LeaseHolder(me, config.lease_ms)
        self._supervisor = Supervisor(me, self.catalog, config, now_ms)
        self._raft = Raft(self._store, raft_image, config, seed)
        self._joins = join or joins_through(self._raft.founding)
        if self._raft.is_founded:
            self._joins = ()
        self._doorkeeper = Doorkeeper(me, endpoint, peers, self._joins, config.failure_ms)
        self._founding = Founding(
            self._store,
            self._doorkeeper.names,
            self._raft.founding,
            config,
            founded=self._raft.is_founded,
            may_found=not self._joins,
        )
        self._led_ms = now_ms
        """When this node last knew of a leader: of a majority that it is in contact with."""
        self._led_by: StoreId | None = None
        self._led_until_ms = now_ms
        """Until then at least it knows of that leader, if it leads on."""
        self._raft_number = 0
        self._has_raft_news = True
        """Raft or the founding has been stepped: there may be something to tend."""
        self._tended: object = None
        """Of Raft: what `_tend_cluster` has looked at; none of it changes while all is idle."""
        self._admissions: dict[StoreId, None] = {}
        self._was_registered = False
        """What `is_registered` said when the catalog was last applied."""
        self._changed = Changes()
        """What applied commands have changed and the supervisor is still to be told."""
        self._hello_ms = now_ms - config.heartbeat_ms
        self._probes: dict[str, int] = {}
        self._probes_next: dict[str, int] = {}
        self._wanted_ms = FOREVER_MS
        """When this node wanted to be stepped next."""
        self._raft_wake = self._founding_wake = self._supervisor_wake = now_ms
        self._contact_ms: int | None = None
        """Last majority contact that the supervisor was told of."""
        self._applied_since_compact = 0
        self.outdated = ""
        """Why this node has stopped following the catalog, "" as a rule. It still votes and keeps
        entries; it hands out nothing, for its queues' views may have changed."""
        self._applied_max = FOREVER_MS
        """The last entry before the one that it cannot apply."""
        self._is_released = False
        self._out = EngineEffects()
        self._begin(self._out)
        self._start(now_ms, raft_image)
        self._next_out = self._out

    def _start(self, now_ms: int, image: RaftImage) -> None:
        if image.snapshot is not None and image.snapshot.data:
            self._restore(now_ms, image.snapshot.data)
        for name, endpoint in recorded_endpoints(image).items():
            self._doorkeeper.meet(name, endpoint)
        if self._joins and self._raft.founding != joining(self._joins):
            self._step_raft(now_ms, Promise(joining(self._joins)))
        if not self._raft.is_founded:
            self._found(now_ms, FoundingTick())
        self._doorkeeper.end()

    def _begin(self, out: EngineEffects) -> None:
        self._out = out
        self.hosting.begin(out)
        self._doorkeeper.begin(out)

    # --- Queries ------------------------------------------------------------------------

    @property
    def leader(self) -> str | None:
        """Name of the catalog's leader as this node knows it."""
        leader = self._raft.leader
        return leader.node if leader is not None else None

    @property
    def is_founded(self) -> bool:
        return self._raft.is_founded

    @property
    def is_registered(self) -> bool:
        """Whether the catalog knows this life of the node: it takes part."""
        record = self.catalog.node(self.me.node)
        return record is not None and record.member == self.me

    @property
    def voters(self) -> tuple[StoreId, ...]:
        return self._raft.voters

    def is_paused(self, now_ms: int) -> bool:
        """No contact with a majority of the cluster."""
        return now_ms - self._led_ms > self.config.heartbeat_ms

    def is_alive(self, member: MemberId) -> bool:
        """Whether this life of a node runs, as far as this node knows."""
        if member == self.me:
            return True
        return self._supervisor.status(member) in (Status.ALIVE, Status.UNKNOWN)

    def alarms_of(self, member: MemberId) -> tuple[str, ...]:
        """Names of the alarms of this life of a node, as it last said."""
        if member == self.me:
            return self.alarms
        peer = self._doorkeeper.peers.find(member.node)
        if peer is None or peer.gone or peer.member != member or peer.greeting is None:
            return ()
        return peer.greeting[0].alarms

    @property
    def has_left(self) -> bool:
        """After `Release`: whether nothing more is to be waited for. The catalog knows that
        this end is a shutdown, and no queue with a mirror in sync is mastered here; or no
        majority runs that could do anything."""
        stores = [self._store]
        for peer in self._doorkeeper.peers.all():
            if peer.member is not None and not peer.gone:
                stores.append(StoreId(peer.member.node, peer.member.store))
        if 2 * sum(voter in stores for voter in self.voters) <= len(self.voters):
            return True
        if self.is_registered and not self.catalog.was_stopped(self.me):
            return False
        return not any(
            record.view.members[0].id == self.me and len(in_sync_ids(record.view)) > 1
            for record in self.catalog.queues()
        )

    def may_deliver(self, reply: SessionReply, now_ms: int) -> bool:
        """Whether a hand-out decided here may still be sent: the reign and the lease go on."""
        replica = self.hosting.replicas.get(reply.queue_id)
        master = replica.master if replica is not None else None
        is_reign = master is not None and master.reign == reply.epoch
        if not is_reign or master is None or master.has_yielded:
            return False
        return now_ms < self.hosting.lease.until_ms

    def waiting_text(self) -> str:
        """What keeps this node from taking part in a cluster, "" when nothing does."""
        if self.outdated:
            return f"has stopped following the catalog: {self.outdated}"
        if self._doorkeeper.unwelcome:
            return f"is kept out: {self._doorkeeper.unwelcome}"
        if self._raft.is_founded:
            return ""
        if self._joins:
            return f"waits to be admitted by the cluster at {', '.join(self._joins)}"
        if self._founding.stuck:
            return self._founding.stuck
        names = self._founding.waiting_for
        return f"waiting for {', '.join(names)}" if names else "waiting to be admitted"

    # --- The step -----------------------------------------------------------------------

    def step(self, now_ms: int, wall_us: int, events: Iterable[EngineEvent]) -> EngineEffects:
        """Take everything that arrived; see the module's text for what to do with the rest."""
        out = self._next_out
        self._begin(out)
        hosting = self.hosting
        if (now_ms - self._wanted_ms) * LATE_FACTOR > self.config.heartbeat_ms:
            # Others are not silent because this process was given no time.
            self._step_raft(now_ms, Late(now_ms - self._wanted_ms))
        hosting.count_held_back()
        for event in events:
            if type(event) is FromPeer:
                self._on_peer(now_ms, event)
            else:
                self._on_event(now_ms, event)
        self._run_timers(now_ms)
        if self.asks.has_endings:
            self._tell_endings(now_ms)
        if self.asks or not self._was_registered:
            self._ask(now_ms)
        self._hold_lease(now_ms)
        if hosting.is_due(now_ms):
            hosting.run(now_ms, wall_us)
            if hosting.has_asked:
                hosting.has_asked = False
                self._ask(now_ms)
            if hosting.promises:
                self._send_promises(now_ms)
            self._hold_lease(now_ms)
        if hosting.news:
            hosting.tell_masters()
        self._doorkeeper.end()
        if out.writes or out.raft is not None:
            out.round = hosting.rounds.close()
        self._next_out = EngineEffects()
        self._wanted_ms = wake_ms = self._wake_at_ms(now_ms)
        out.wake_at_ms = None if wake_ms == FOREVER_MS else wake_ms
        return out

    def _on_event(self, now_ms: int, event: EngineEvent) -> None:
        match event:
            case FromPeer():
                self._on_peer(now_ms, event)
            case FromSession():
                self.hosting.route(event.request)
            case Committed():
                self._on_committed(now_ms, event.round)
            case SessionOpened():
                self.hosting.open_session(event.session, event.queue_id)
            case SessionClosed():
                self.hosting.close_session(event.session, event.queue_id)
            case LinkUp():
                self.hosting.on_link(event.node)
                self._say_hello(event.node)
                self._doorkeeper.say_unwelcome(event.node)
            case LinkDown():
                self.hosting.on_link(event.node)
                if event.node[:1] != MARK:
                    self._supervise(now_ms, SupervisorLinkDown(event.node))
            case Probed():
                self._on_probed(now_ms, event)
            case Ask():
                self._new_ask(event.token, event.command)
            case Forget():
                for ask in self.asks.take_all(event.token):
                    self._end_ask(ask, "forgotten")
            case OutboxLoaded():
                self.hosting.post(event.queue_id, event)
            case NotSent():
                reply = event.reply
                if isinstance(reply.reply, Deliver):
                    undelivered = Undelivered(reply.session, reply.reply)
                    self.hosting.post(reply.queue_id, undelivered)
            case WriteAll():
                self.hosting.post_all(WriteAllOf())
            case Release():
                self._is_released = True
                self._to_leader(now_ms, self._holder.release(now_ms))
                if self.is_registered:
                    me = self.me
                    self.asks.add(NOBODY, NodeStopped(me.node, me.store, me.incarnation))

    # --- Peers --------------------------------------------------------------------------

    def _on_peer(self, now_ms: int, event: FromPeer) -> None:
        message = event.message
        if isinstance(message, Hello):
            if message.node == event.node and message.incarnation == event.incarnation:
                self._on_hello(now_ms, message)
            return
        peer = self._doorkeeper.peers.on_heard(now_ms, event.node, event.incarnation)
        if peer is None:
            return
        member, store = peer.member, peer.store
        assert member is not None
        assert store is not None
        if isinstance(message, RAFT_MESSAGES):
            self._step_raft(now_ms, Received(store, message))
        elif isinstance(message, FOUNDING_MESSAGES):
            if not isinstance(message, AdmissionRequest) or self._may_ask(member, message):
                self._found(now_ms, FoundingReceived(store, message))
        elif self._is_peer_foreign(peer, store):
            return
        elif type(message) in _OF_RINGS:
            queue_id: int = message.queue_id  # type: ignore[attr-defined]
            self.hosting.post(queue_id, RingReceived(member, message))  # type: ignore[arg-type]
        elif isinstance(message, SessionRequest):
            self.hosting.take_request(message)
        elif isinstance(message, SessionReply):
            self.hosting.take_reply(message)
        else:
            self._on_control(now_ms, member, message)

    def _on_control(self, now_ms: int, member: MemberId, message: object) -> None:
        match message:
            case LeaseAnswer():
                self._holder.on_answer(message)
            case LeaseRequest() | LeaseRelease():
                if message.member == member:
                    self._supervise(now_ms, message)
            case CatalogRequest():
                if message.member == member:
                    self._on_catalog_request(now_ms, message)
            case CatalogAnswer():
                self._on_catalog_answer(message)
            case Yield():
                self.hosting.post(message.queue_id, YieldAsked(message.epoch))
            case Yielded():
                if message.member == member:
                    self._supervise(now_ms, message)
            case QueueReport():
                self.hosting.reports.note(now_ms, self.catalog, member, message)
            case SyncReport():
                self.hosting.sync_reports.note(member, message)
            case Directory():
                if not self._raft.is_founded:
                    for name, endpoint in message.nodes:
                        self._doorkeeper.meet(name, endpoint)
            case Unwelcome():
                if not self.is_registered or self._raft.leader is None:
                    self._doorkeeper.on_unwelcome(message.text)
            case _:
                pass

    def _remind(self, node: str) -> None:
        """Tell a life that has just begun what the masters of queues that are down had said: it
        may be the one to go on with less, and to count the loss."""
        for report in self.hosting.reports.all():
            record = self.catalog.queue(report.queue_id)
            if record is not None and not self.is_alive(record.view.members[0].id):
                self._out.send.append((node, report))

    def _on_hello(self, now_ms: int, hello: Hello) -> None:
        peer = self._doorkeeper.peers.find(hello.node)
        seen = (self._raft.role, self._raft.term, self._raft.applied_index, self._raft.last_index)
        if peer is not None and peer.is_greeted(hello, seen):
            # The very same as before, and nothing has changed here by which it is judged.
            assert peer.member is not None
            peer.heard_ms = now_ms
            self._supervise(now_ms, Heard(peer.member, hello.unheard))
            return
        text = self._doorkeeper.reason_against(hello, self.catalog, self._raft.voters)
        if text is not None:
            self._keep_out(now_ms, hello, text)
            return
        is_new = self._doorkeeper.take_in(now_ms, hello)
        if is_new is None:
            return
        store = StoreId(hello.node, hello.store)
        member = MemberId(hello.node, hello.store, hello.incarnation)
        if is_new:
            self._welcome(member)
        if not self._raft.is_founded:
            self._found(now_ms, PeerHello(store, hello.founded))
        if self._is_foreign(store):
            if is_new and hello.founded:
                self._out.notices.append(Notice("foreign", foreign_text(store)))
            return
        if self._raft.is_founded:
            self._doorkeeper.peers.greet(hello, seen)
        self._supervise(now_ms, Heard(member, hello.unheard))

    def _welcome(self, member: MemberId) -> None:
        """Another life of a peer has come: nothing of the one before, nothing told to it yet."""
        text = f"node {member.node} has come, incarnation {member.incarnation}"
        self._out.notices.append(Notice("came", text))
        self.hosting.post_masters(NodeGone(member.node, member.incarnation))
        self.hosting.on_link(member.node)
        self.hosting.reports.tell_again()
        self.hosting.sync_reports.tell_again()
        self._say_hello(member.node)
        self._remind(member.node)

    def _keep_out(self, now_ms: int, hello: Hello, text: str) -> None:
        key = self._doorkeeper.keep_out(now_ms, hello, text) if text else ""
        if key:
            self._say_hello(key)
            self._doorkeeper.say_unwelcome(key)

    def _may_ask(self, member: MemberId, message: AdmissionRequest) -> bool:
        if not self._raft.is_founded:
            return False
        record = self.catalog.node(member.node)
        is_alive = record is not None and self.is_alive(record.member)
        return self._doorkeeper.may_ask(member, message, self.catalog, is_alive)

    def _is_foreign(self, store: StoreId) -> bool:
        """Whether a store is certainly none of this cluster's (or no longer): only the leader
        knows, for its voters are the newest."""
        raft = self._raft
        return raft.is_leader and raft.own_term_applied and store not in raft.voters

    def _is_peer_foreign(self, peer: Peer, store: StoreId) -> bool:
        """The same of one whose messages come often."""
        voters = self._raft.voters
        if peer.voters is not voters:
            if store not in voters:
                return self._is_foreign(store)
            peer.voters = voters
        return False

    def _on_probed(self, now_ms: int, event: Probed) -> None:
        number = self._probes.pop(event.node, None)
        newer = self._probes_next.pop(event.node, None)
        if newer is not None:
            self._probe(event.node, newer)
        if number is not None and event.refused:
            self._supervise(now_ms, SupervisorProbeRefused(event.node, number))

    def _probe(self, node: str, number: int) -> None:
        """One probe a node at a time: an old outcome must not explain a newer end."""
        if node in self._probes:
            self._probes_next[node] = number
            return
        self._probes[node] = number
        self._out.probes.append(node)

    def _say_hello(self, node: str) -> None:
        self._out.send.append((node, self._hello()))

    def _hello(self) -> Hello:
        me = self.me
        unheard = self._supervisor.unheard()
        return Hello(
            me.node,
            me.store,
            me.incarnation,
            self._raft.is_founded,
            unheard,
            self._endpoint,
            self.catalog.cluster,
            self.alarms,
        )

    # --- Time ---------------------------------------------------------------------------

    def _run_timers(self, now_ms: int) -> None:
        raft = self._raft
        if self._founding_wake <= now_ms and not raft.is_founded:
            self._found(now_ms, FoundingTick())
        if self._raft_wake <= now_ms:
            self._step_raft(now_ms, RaftTick())
        if raft.leader is not None:
            if now_ms >= self._led_until_ms or raft.leader is not self._led_by:
                self._led_by = raft.leader
                patience_ms = self.config.election_ms + self.config.election_spread_ms
                self._led_until_ms = raft.heard_ms + patience_ms
            if now_ms < self._led_until_ms:
                self._led_ms = now_ms
        if now_ms - self._hello_ms >= self.config.heartbeat_ms:
            # All nodes' ticks are at the same times, so that a node's queues wake it but once.
            self._hello_ms = now_ms - now_ms % self.config.heartbeat_ms
            self._show_life(now_ms)
        if self._supervisor_wake <= now_ms:
            self._supervise(now_ms, SupervisorTick())
        if self._has_raft_news:
            self._has_raft_news = False
            tended = (raft.role, raft.term, raft.commit_index, raft.last_index)
            if tended != self._tended or self._admissions:
                self._tended = tended
                self._tend_cluster(now_ms)

    def _show_life(self, now_ms: int) -> None:
        """At each heartbeat: hellos, reports, and a look at who is silent."""
        hosting, out = self.hosting, self._out
        hello = self._hello()
        out.send += [(peer.name, hello) for peer in self._doorkeeper.peers.all()]
        out.send += [(key, hello) for key in self._doorkeeper.contacts.seeds]
        for name in self._doorkeeper.newly_silent(now_ms):
            self._on_gone(name)
        reports = hosting.take_reports(now_ms)
        peers = self._doorkeeper.peers.all()
        out.send.extend((peer.name, report) for report in reports for peer in peers)
        if self.is_registered:
            hosting.ask_for_leftovers(now_ms)
        hosting.promise_again()
        self._send_promises(now_ms)

    def _on_gone(self, node: str) -> None:
        self.hosting.post_masters(NodeGone(node))
        self._out.notices.append(Notice("gone", f"node {node} is silent or dead"))

    def _wake_at_ms(self, now_ms: int) -> int:
        wake = min(self._raft_wake, self._supervisor_wake, self.hosting.wake_at_ms(now_ms))
        hello_ms = self._hello_ms + self.config.heartbeat_ms
        if hello_ms < wake and self._doorkeeper.has_listeners:
            wake = hello_ms
        if self._founding_wake < wake and not self._raft.is_founded:
            wake = self._founding_wake
        if now_ms < self.hosting.handing_until_ms and not self._is_released:
            wake = min(wake, max(self._holder.due_ms, now_ms))
        asks_ms = self.asks.wake_at_ms(self._raft.leader is not None)
        return wake if asks_ms is None else min(wake, asks_ms)

    # --- Founding, Raft, admission ------------------------------------------------------

    def _found(self, now_ms: int, event: FoundingEvent) -> None:
        self._has_raft_news = True
        effects = self._founding.step(now_ms, event)
        self._founding_wake = _or_forever(effects.wake_at_ms)
        if effects.promise is not None:
            self._step_raft(now_ms, Promise(effects.promise))
        if effects.found is not None:
            self._step_raft(now_ms, Found(effects.found))
        self._out.send.extend((store.node, message) for store, message in effects.send)
        self._admissions.update(dict.fromkeys(effects.admit))

    def _tend_cluster(self, now_ms: int) -> None:
        """As leader: give the cluster its id, end votes of forgotten stores, admit others."""
        raft = self._raft
        if not raft.is_leader:
            self._admissions.clear()
            return
        if not raft.own_term_applied:
            return
        if not self.catalog.cluster and self._named_term != raft.term:
            self._named_term = raft.term
            self._propose(now_ms, NameCluster(self.me.store or 1))
        if not raft.is_changing_voters:
            stay = tuple(voter for voter in raft.voters if not self.catalog.is_past(voter))
            if len(stay) < len(raft.voters):
                gone = next(voter for voter in raft.voters if voter not in stay)
                self._propose_voters(now_ms, tuple(v for v in raft.voters if v != gone))
            else:
                self._admit(now_ms)

    def _admit(self, now_ms: int) -> None:
        """Make stores that ask for it voters: the old one of that name goes first."""
        voters = self._raft.voters
        for store in list(self._admissions):
            if store in voters or self.catalog.is_past(store):
                del self._admissions[store]
                continue
            others = tuple(voter for voter in voters if voter.node != store.node)
            self._propose_voters(now_ms, others if len(others) < len(voters) else (*others, store))
            return

    def _propose_voters(self, now_ms: int, voters: tuple[StoreId, ...]) -> None:
        self._raft_number += 1
        self._step_raft(now_ms, ProposeVoters(self._raft_number, voters))

    def _step_raft(self, now_ms: int, event: RaftEvent) -> None:
        raft = self._raft
        was_founded, was_leader = raft.is_founded, raft.is_leader
        effects: RaftEffects = raft.step(now_ms, event)
        self._has_raft_news = True
        self._raft_wake = _or_forever(effects.wake_at_ms)
        if effects.persist is not None:
            self._out.raft = merge_writes(self._out.raft, effects.persist)
            self.hosting.rounds.note_raft(effects.write_number)
        for store, message in effects.send:
            self._out.send.append((store.node, message))
        if effects.install is not None:
            self._restore(now_ms, effects.install.data)
        for entry in effects.apply:
            self._apply(now_ms, entry)
        if not was_founded and raft.is_founded:
            self._found(now_ms, Founded())
            self._doorkeeper.contacts.end_seeds()
            self._doorkeeper.unwelcome = ""
            self._joins = ()
            self._out.notices.append(Notice("founded", "the cluster is founded"))
        is_news = was_leader is not raft.is_leader
        if is_news:
            leads = "leads" if raft.is_leader else "no longer leads"
            self._out.notices.append(Notice("leader", f"{leads} the catalog in term {raft.term}"))
        if self._supervisor.is_asked_for_leases:
            contact_ms = raft.majority_contact_ms
            is_news = is_news or contact_ms != self._contact_ms
            self._contact_ms = contact_ms
        if is_news or effects.apply:
            changed, self._changed = self._changed, Changes()
            self._supervise(now_ms, changed.told())

    def _apply(self, now_ms: int, entry: RaftEntry) -> None:
        if self.outdated:
            return
        self._applied_since_compact += 1
        if entry.kind == KIND_COMMAND:
            self._apply_command(now_ms, entry)
        if not self.outdated and self._applied_since_compact >= COMPACT_ENTRIES:
            self._applied_since_compact = 0
            self._step_raft(now_ms, Compact(entry.index, self.catalog.snapshot()))

    def _apply_command(self, now_ms: int, entry: RaftEntry) -> None:
        try:
            proposal, command = unpack(entry)
        except LaterVersion as error:
            self._stop_following(entry.index - 1, f"entry {entry.index}: {error}")
            return
        except ProtocolError as error:
            self._out.notices.append(Notice("catalog", f"entry {entry.index}: {error}"))
            return
        result = self.catalog.apply(entry.index, command, proposal.request)
        is_done = not result.error and not result.is_repeat
        if isinstance(command, DropCopy) and command.member == self.me and is_done:
            self.hosting.drop_copy(command.queue_id)
        self._was_registered = self.is_registered
        for queue_id in result.queues:
            self.hosting.on_queue_changed(queue_id)
        if result.nodes:
            self.hosting.news.of_all = True
            self._doorkeeper.list_nodes(self.catalog)
        if result.queues or result.nodes:
            self._changed.note(result.queues, result.nodes)
        is_mine = (proposal.node, proposal.incarnation) == (self.me.node, self.me.incarnation)
        ask = self.asks.take(proposal.number) if is_mine else None
        if ask is None:
            return
        answer = Answer(ask.token, result.value, result.error, result.text)
        if isinstance(command, DeleteQueue) and ask.token != NOBODY and not result.error:
            # As a rule its outbox is empty in a moment, and its name free when that is told.
            if self.catalog.is_ending(command.queue_id):
                until_ms = now_ms + self.config.failure_ms
                self.asks.await_end(command.queue_id, until_ms, ask, answer)
                return
        self._answer(ask, answer)

    def _stop_following(self, applied: int, text: str) -> None:
        """Others apply what this node cannot: left out, its catalog would be another one for good.
        Not applied, it is there for the version that knows it."""
        self.outdated, self._applied_max = text, applied
        self._out.notices.append(Notice("catalog", f"stops following the catalog: {text}"))

    def _tell_endings(self, now_ms: int) -> None:
        for ask, answer in self.asks.ended(now_ms, self.catalog.is_deleted):
            self._answer(ask, answer)

    def _answer(self, ask: PendingAsk, answer: Answer) -> None:
        self._end_ask(ask, answer.error)
        if ask.token != NOBODY:
            self._out.answers.append(answer)

    def _restore(self, now_ms: int, data: bytes) -> None:
        if not data:
            return
        try:
            self.catalog = Catalog.restore(data)
        except LaterVersion as error:
            self._stop_following(0, str(error))
            return
        except ProtocolError as error:
            self._out.notices.append(Notice("catalog", str(error)))
            return
        self.outdated, self._applied_max = "", FOREVER_MS
        self._was_registered = self.is_registered
        self.hosting.on_catalog_replaced(self.catalog)
        self._doorkeeper.list_nodes(self.catalog)
        self._supervise(now_ms, CatalogReplaced(self.catalog))

    # --- Leading and asking -------------------------------------------------------------

    @property
    def _leading(self) -> Leading | None:
        raft = self._raft
        if not raft.is_leader:
            return None
        contact_ms = raft.majority_contact_ms
        return Leading(
            raft.term,
            raft.own_term_applied,
            raft.commit_index,
            -1 if contact_ms is None else contact_ms,
            raft.voters,
        )

    def _supervise(self, now_ms: int, event: SupervisorEvent) -> None:
        effects = self._supervisor.step(now_ms, event, self._leading)
        self._supervisor_wake = _or_forever(effects.wake_at_ms)
        self.hosting.news.of_all |= effects.is_news
        for command in effects.propose:
            self._propose(now_ms, command)
        for node, answer in effects.send:
            if node == self.me.node:
                self._holder.on_answer(answer)
            else:
                self._out.send.append((node, answer))
        for name, wanted in effects.yields:
            if name == self.me.node:
                self.hosting.post(wanted.queue_id, YieldAsked(wanted.epoch))
            else:
                self._out.send.append((name, wanted))
        for probe in effects.probe:
            self._probe(probe.node, probe.number)
        for member in effects.known_dead:
            if self._doorkeeper.peers.end(member):
                self._on_gone(member.node)
            self._step_raft(now_ms, PeerDead(StoreId(member.node, member.store)))
        if effects.wants_round:
            self._step_raft(now_ms, Contact())
            if self._raft.majority_contact_ms == now_ms:
                self._supervise(now_ms, SupervisorTick())

    def _propose(self, now_ms: int, command: CatalogCommand) -> None:
        """A wish of the leader's own."""
        self._put_into_log(now_ms, pack(self.me, NOBODY, command))

    def _put_into_log(self, now_ms: int, data: bytes) -> None:
        self._raft_number += 1
        self._step_raft(now_ms, Propose(self._raft_number, data))

    def _new_ask(self, token: int, command: CatalogCommand) -> None:
        """What a user of this node wants of the catalog."""
        self.asks.add(token, command)
        if isinstance(command, DeclareQueue) and command.owner is not None:
            self.hosting.sessions.own(command.owner)

    def _ask(self, now_ms: int) -> None:
        """Send catalog requests to the leader, and again when nothing came of them."""
        if (
            not self._was_registered
            and self._raft.is_founded
            and not self.is_registered
            and not self.asks.is_open(RegisterNode)
        ):
            me = self.me
            register = RegisterNode(
                me.node, me.store, me.incarnation, self._endpoint, self._witness
            )
            self.asks.add(NOBODY, register)
        if not self.asks or self._raft.leader is None:
            return
        oldest = self.asks.oldest
        for ask in self.asks.due(now_ms):
            self._to_leader(now_ms, CatalogRequest(ask.number, self.me, ask.command, oldest))

    def _send_promises(self, now_ms: int) -> None:
        promises, self.hosting.promises = self.hosting.promises, []
        for promise in promises:
            self._to_leader(now_ms, promise)

    def _to_leader(
        self, now_ms: int, message: CatalogRequest | LeaseRequest | LeaseRelease | Yielded
    ) -> None:
        leader = self._raft.leader
        if leader is None:
            return
        if leader != self._store:
            self._out.send.append((leader.node, message))
        elif isinstance(message, CatalogRequest):
            self._on_catalog_request(now_ms, message)
        else:
            self._supervise(now_ms, message)

    def _on_catalog_request(self, now_ms: int, request: CatalogRequest) -> None:
        command = self._supervisor.admit(request, self._leading)
        if isinstance(command, DeclareQueue | DeclareShards) and self._is_assembling():
            command = CatalogAnswer(request.number, 0, retry=True)
        if not isinstance(command, CatalogAnswer):
            data = pack(request.member, request.number, command, request.oldest)
            self._put_into_log(now_ms, data)
        elif request.member == self.me:
            self._on_catalog_answer(command)
        else:
            self._out.send.append((request.member.node, command))
        # What the leader is asked for may need a judgement first.
        self._supervise(now_ms, SupervisorTick())

    def _is_assembling(self) -> bool:
        """Whether a voter that runs is about to register: a first view should have it."""
        for peer in self._doorkeeper.peers.all():
            member = peer.member
            if peer.gone or member is None:
                continue
            record = self.catalog.node(member.node)
            is_known = record is not None and record.member == member
            if not is_known and StoreId(member.node, member.store) in self._raft.voters:
                return True
        return not self.is_registered

    def _on_catalog_answer(self, answer: CatalogAnswer) -> None:
        """A refusal; what was done is seen when the command is applied here."""
        if answer.retry:
            self.asks.retry(answer.number)
            return
        ask = self.asks.take(answer.number)
        if ask is not None:
            self._answer(ask, Answer(ask.token, answer.value, answer.error, answer.text))

    # --- The lease ----------------------------------------------------------------------

    def _hold_lease(self, now_ms: int) -> None:
        holder, lease = self._holder, self.lease
        is_wanted = now_ms < self.hosting.handing_until_ms and not self._is_released
        if is_wanted and now_ms >= holder.due_ms:
            request = holder.poll(now_ms, True)
            if request is not None:
                self._to_leader(now_ms, request)
        was_held, was_paused = now_ms < lease.until_ms, lease.paused
        applied = min(self._raft.applied_index, self._applied_max)
        lease.until_ms = until_ms = holder.valid_until_ms(applied)
        is_paused = now_ms - self._led_ms > self.config.heartbeat_ms or self.outdated != ""
        lease.paused = is_paused
        if was_paused is is_paused and was_held is (now_ms < until_ms):
            return
        if was_paused != lease.paused:
            kind, has = ("paused", "no") if lease.paused else ("resumed", "has")
            self._out.notices.append(Notice(kind, f"{kind}: {has} contact with a majority"))
        self.hosting.post_masters(LeaseChanged())

    def _end_ask(self, ask: PendingAsk, error: str) -> None:
        """Who declared an exclusive queue and got none owns none."""
        command = ask.command
        if error and isinstance(command, DeclareQueue) and command.owner is not None:
            self.hosting.end_owner(command.owner)

    def _on_committed(self, now_ms: int, number: int) -> None:
        for committed in self.hosting.rounds.committed(number):
            self.hosting.on_committed(committed)
            if committed.raft:
                self._step_raft(now_ms, Persisted(committed.raft))


_OF_RINGS = frozenset(get_args(RingMessage))


def _or_forever(at_ms: int | None) -> int:
    return FOREVER_MS if at_ms is None else at_ms
