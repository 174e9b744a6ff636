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

from collections import deque
from collections.abc import Iterable, Mapping
from typing import get_args

from attrs import define, evolve

from mirrorq.catalog import Catalog, QueueRecord, past_text
from mirrorq.codec import OpCodec
from mirrorq.config import Config
from mirrorq.contacts import MARK, Contacts
from mirrorq.courier import OutboxLoaded, courier_number, is_courier, source_of
from mirrorq.deadlines import Deadlines, earliest
from mirrorq.effects import Persisted, QueueImage, QueueWrite, RaftEntry, RaftImage
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
    MasterChange,
    MasterLinkLost,
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
from mirrorq.lease import Leading, LeaseHolder
from mirrorq.leftovers import Leftovers
from mirrorq.liveness import Status
from mirrorq.master import Lease
from mirrorq.messages import (
    CatalogAnswer,
    CatalogCommand,
    CatalogRequest,
    DeclareQueue,
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
    SessionId,
    SessionReply,
    SessionRequest,
    StoreId,
    SyncReport,
    Unwelcome,
    Yield,
    Yielded,
)
from mirrorq.notice import Notice
from mirrorq.peers import Peer, Peers
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
    CourierReplied,
    Declared,
    Defined,
    Fetching,
    LeaseChanged,
    LinkLost,
    NodeGone,
    Replica,
    ReplicaEvent,
    Requested,
    RingReceived,
    SessionGone,
    TargetLinkLost,
    TargetsChanged,
    Tick,
    Undelivered,
    ViewInstalled,
    YieldAsked,
)
from mirrorq.replica import WriteAll as WriteAllOf
from mirrorq.room import Room
from mirrorq.supervisor import Supervisor
from mirrorq.supervisor_events import CatalogChanged, CatalogReplaced, Heard
from mirrorq.supervisor_events import Event as SupervisorEvent
from mirrorq.supervisor_events import LinkDown as SupervisorLinkDown
from mirrorq.supervisor_events import ProbeRefused as SupervisorProbeRefused
from mirrorq.supervisor_events import Tick as SupervisorTick
from mirrorq.sync_reports import SyncReports
from mirrorq.view import find_store, in_sync_ids

ASK_AGAIN_MS = 500
"""A catalog request that nothing came of is sent again after this."""
RETRY_MS = 20
"""The same when the leader said that it cannot do it yet."""
COMPACT_ENTRIES = 1000
"""Raft's log is replaced by a snapshot after so many applied entries."""
EARLY_COUNT_MAX = 1000
"""Requests of a reign that is not known here yet; a handle whose request is dropped finds out
after failure_ms and asks again."""
LATE_FACTOR = 5
"""Steps that are late by more than a heartbeat divided by this are told to Raft."""
STRANGER_FACTOR = 10
"""Who is no node is left alone when it was silent for so many failure_ms."""
LEFTOVER_FACTOR = 5
"""A copy that no view names any more stays for so many failure_ms: who was out for a moment, by a
policy or a break, is sent a delta."""
NEVER_MS = -(1 << 62)
"""Before every time."""
TICK = Tick()
NOBODY = 0
"""Token of an Ask whose answer nobody waits for."""


@define
class _PendingAsk:
    number: int
    token: int
    command: CatalogCommand
    sent_ms: int = -ASK_AGAIN_MS


class _Targets:
    """What queues are told of each other; see `courier.Targets`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._counter = 0

    def find(self, name: str) -> int:
        record = self._engine.catalog.queue_named(name)
        return 0 if record is None or record.is_ending else record.id

    def serving(self, queue_id: int) -> tuple[int, bool] | None:
        catalog = self._engine.catalog
        record = catalog.queue(queue_id)
        if record is None:
            return None if catalog.is_deleted(queue_id) else (0, False)
        return record.view.reign, self._engine.is_alive(record.view.members[0].id)

    def session_number(self, queue_id: int) -> int:
        self._counter += 1
        return courier_number(queue_id, self._counter)


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
        self.replicas: dict[int, Replica] = {}
        self.reports: dict[int, tuple[QueueReport, int]] = {}
        """Last report of each queue's master, and when it came."""
        self.sync_reports = SyncReports(me)
        self.lease = Lease()
        self.room = Room()
        """Set by the driver before each step."""
        self._store = StoreId(me.node, me.store)
        self._endpoint = endpoint
        self._witness = witness
        self._codec = codec
        self._images = {image.queue_id: image for image in queue_images}
        self._peer_names = tuple(name for name in peers if name != me.node)
        self._peers = Peers(config.failure_ms)
        self._unwelcome = ""
        """Why a cluster keeps this node out, as one of its nodes has said."""
        self._named_term = 0
        """Term in which this leader has proposed an id for the cluster."""
        self._holder = LeaseHolder(me, config.lease_ms)
        self._supervisor = Supervisor(me, self.catalog, config, now_ms)
        self._raft = Raft(self._store, raft_image, config, seed)
        self._joins = join or joins_through(self._raft.founding)
        if self._raft.is_founded:
            self._joins = ()
        self._contacts = Contacts(me.node, endpoint, peers, self._joins)
        self._founding = Founding(
            self._store,
            self._peer_names,
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
        self._asks: dict[int, _PendingAsk] = {}
        self._ask_number = 0
        self._raft_number = 0
        self._has_raft_news = True
        """Raft or the founding has been stepped: there may be something to tend."""
        self._admissions: dict[StoreId, None] = {}
        self._sessions: dict[SessionId, int] = {}
        self._owners: dict[SessionId, None] = {}
        """Handles on this node that own an exclusive queue, or are to."""
        self._leftovers = Leftovers(LEFTOVER_FACTOR * config.failure_ms)
        self._endings: list[tuple[int, int, _PendingAsk, Answer]] = []
        """(queue, until, ask, answer) of deletions that wait for an outbox."""
        self._targets = _Targets(self)
        self._told: dict[int, tuple[int, bool]] = {}
        self._early: list[SessionRequest] = []
        """Of a reign that this node is still to learn of."""
        self._may_have_news = True
        """Something has changed that handles may have to be told: who serves their queue."""
        self._was_registered = False
        """What `is_registered` said when the catalog was last applied."""
        self._inbox: dict[int, list[ReplicaEvent]] = {}
        self._due = Deadlines()
        self._handing_until_ms = NEVER_MS
        """Until then some queue here wants the lease, if none of them does anything."""
        self._holding: dict[int, None] = {}
        """Queues that hold messages back from the store (`durability: replicated`)."""
        self._rounds: deque[tuple[int, list[tuple[int, int]], int]] = deque()
        self._round = 0
        self._round_writes: list[tuple[int, int]] = []
        self._round_raft = 0
        self._hello_ms = now_ms - config.heartbeat_ms
        self._reported: dict[int, QueueReport] = {}
        self._probes: dict[str, int] = {}
        self._probes_next: dict[str, int] = {}
        self._wanted_ms: int | None = None
        """When this node wanted to be stepped next."""
        self._raft_wake: int | None = now_ms
        self._founding_wake: int | None = now_ms
        self._supervisor_wake: int | None = now_ms
        self._contact_ms: int | None = None
        """Last majority contact that the supervisor was told of."""
        self._applied_since_compact = 0
        self._is_released = False
        self._noticed: dict[str, None] = {}
        """What is told once a life."""
        self._out = EngineEffects()
        for name in self._peer_names:
            self._peers.add(name)
        self._start(now_ms, raft_image)
        self._next_out = self._out

    def _start(self, now_ms: int, image: RaftImage) -> None:
        if image.snapshot is not None and image.snapshot.data:
            self._restore(now_ms, image.snapshot.data)
        for name, endpoint in recorded_endpoints(image).items():
            self._meet(name, endpoint)
        if self._joins and self._raft.founding != joining(self._joins):
            self._step_raft(now_ms, Promise(joining(self._joins)))
        if not self._raft.is_founded:
            self._found(now_ms, FoundingTick())
        self._take_contacts()

    def _meet(self, name: str, endpoint: str) -> None:
        if self._contacts.learn(name, endpoint):
            self._peers.add(name)

    def _take_contacts(self) -> None:
        contacts, out = self._contacts, self._out
        if contacts.connects or contacts.disconnects:
            out.connects += contacts.connects
            out.disconnects += contacts.disconnects
            contacts.connects, contacts.disconnects = [], []

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

    @property
    def has_left(self) -> bool:
        """After `Release`: whether nothing more is to be waited for. The catalog knows that
        this end is a shutdown, and no queue with a mirror in sync is mastered here; or no
        majority runs that could do anything."""
        stores = [self._store]
        for peer in self._peers.all():
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
        replica = self.replicas.get(reply.queue_id)
        master = replica.master if replica is not None else None
        is_reign = master is not None and master.reign == reply.epoch
        if not is_reign or master is None or master.has_yielded:
            return False
        return now_ms < self.lease.until_ms

    def waiting_text(self) -> str:
        """What keeps this node from taking part in a cluster, "" when nothing does."""
        if self._unwelcome:
            return f"is kept out: {self._unwelcome}"
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
        out = self._out = self._next_out
        self._note_lateness(now_ms)
        for queue_id in self._holding:
            self.room.bytes_left -= self.replicas[queue_id].ring.append_cost
        for event in events:
            if type(event) is FromPeer:
                self._on_peer(now_ms, event)
            else:
                self._on_event(now_ms, event)
        self._run_timers(now_ms)
        if self._endings:
            self._tell_endings(now_ms)
        self._ask(now_ms)
        self._hold_lease(now_ms)
        if self._run_replicas(now_ms, wall_us):
            self._hold_lease(now_ms)
        if self._may_have_news:
            self._tell_masters()
        self._take_contacts()
        if out.writes or out.raft is not None:
            self._close_round(out)
        self._next_out = EngineEffects()
        out.wake_at_ms = self._wanted_ms = self._wake_at_ms(now_ms)
        return out

    def _note_lateness(self, now_ms: int) -> None:
        """Others are not silent because this process was given no time."""
        if self._wanted_ms is not None:
            late_ms = now_ms - self._wanted_ms
            if late_ms * LATE_FACTOR > self.config.heartbeat_ms:
                self._step_raft(now_ms, Late(late_ms))

    def _on_event(self, now_ms: int, event: EngineEvent) -> None:
        match event:
            case FromPeer():
                self._on_peer(now_ms, event)
            case FromSession():
                self._route(event.request)
            case Committed():
                self._on_committed(now_ms, event.round)
            case SessionOpened():
                self._sessions[event.session] = event.queue_id
                self._told.pop(event.queue_id, None)
                self._may_have_news = True
            case SessionClosed():
                self._sessions.pop(event.session, None)
                if event.queue_id not in self._sessions.values():
                    self._told.pop(event.queue_id, None)
                self._queue(event.queue_id, SessionGone(event.session))
                self._end_owner(event.session)
            case LinkUp():
                self._on_link(event.node)
                self._say_hello(event.node)
                self._say_unwelcome(event.node)
            case LinkDown():
                self._on_link(event.node)
                if event.node[:1] != MARK:
                    self._supervise(now_ms, SupervisorLinkDown(event.node))
            case Probed():
                self._on_probed(now_ms, event)
            case Ask():
                self._new_ask(event.token, event.command)
            case Forget():
                for number in [n for n, ask in self._asks.items() if ask.token == event.token]:
                    self._end_ask(self._asks.pop(number), "forgotten")
            case OutboxLoaded():
                self._queue(event.queue_id, event)
            case NotSent():
                reply = event.reply
                if isinstance(reply.reply, Deliver):
                    self._queue(reply.queue_id, Undelivered(reply.session, reply.reply))
            case WriteAll():
                self._all_queues(WriteAllOf())
            case Release():
                self._is_released = True
                self._to_leader(now_ms, self._holder.release(now_ms))
                if self.is_registered:
                    me = self.me
                    self._new_ask(NOBODY, NodeStopped(me.node, me.store, me.incarnation))

    # --- Peers --------------------------------------------------------------------------

    def _on_peer(self, now_ms: int, event: FromPeer) -> None:
        message = event.message
        if isinstance(message, Hello):
            if message.node == event.node and message.incarnation == event.incarnation:
                self._on_hello(now_ms, message)
            return
        peer = self._peers.on_heard(now_ms, event.node, event.incarnation)
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
            self._queue(message.queue_id, RingReceived(member, message))  # type: ignore[attr-defined,arg-type]
        elif isinstance(message, SessionRequest):
            self._take_request(message)
        elif isinstance(message, SessionReply):
            self._take_reply(message)
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
                self._queue(message.queue_id, YieldAsked(message.epoch))
            case Yielded():
                if message.member == member:
                    self._supervise(now_ms, message)
            case QueueReport():
                self._on_report(now_ms, member, message)
            case SyncReport():
                self.sync_reports.note(member, message)
            case Directory():
                if not self._raft.is_founded:
                    for name, endpoint in message.nodes:
                        self._meet(name, endpoint)
            case Unwelcome():
                if not self.is_registered or self._raft.leader is None:
                    self._on_unwelcome(message.text)
            case _:
                pass

    def _on_report(self, now_ms: int, sender: MemberId, report: QueueReport) -> None:
        """A master's report, or what another node remembers of it: the newest reign counts."""
        known = self.reports.get(report.queue_id)
        record = self.catalog.queue(report.queue_id)
        is_masters = record is not None and record.view.members[0].id == sender
        if is_masters or known is None or known[0].reign < report.reign:
            self.reports[report.queue_id] = (report, now_ms)

    def _remind(self, node: str) -> None:
        """Tell a life that has just begun what the masters of queues that are down had said: it
        may be the one to go on with less, and to count the loss."""
        for queue_id, (report, _) in self.reports.items():
            record = self.catalog.queue(queue_id)
            if record is not None and not self.is_alive(record.view.members[0].id):
                self._out.send.append((node, report))

    def _on_hello(self, now_ms: int, hello: Hello) -> None:
        if hello.node == self.me.node:
            text = f"another node calls itself {hello.node}: give each node a name of its own"
            self._out.notices.append(Notice("name", text))
            self._keep_out(now_ms, hello, text)
            return
        store = StoreId(hello.node, hello.store)
        if self._is_of_another_cluster(hello):
            self._notice_once("foreign", _foreign_text(store))
            return
        if self.catalog.is_past(store):
            self._notice_once("past", f"kept out: {past_text(hello.node)}")
            self._keep_out(now_ms, hello, past_text(hello.node))
            return
        if store not in self._raft.voters and self._peers.on_rival(hello):
            # Believing each in turn would end the other's sessions several times a second.
            text = f"a node named {hello.node} is alive in this cluster: use another name"
            self._keep_out(now_ms, hello, text)
            return
        is_new = self._peers.on_hello(now_ms, hello)
        if is_new is None:
            return
        member = MemberId(hello.node, hello.store, hello.incarnation)
        self._contacts.learn(hello.node, hello.endpoint)
        if self._peers.new_rival(hello.node):
            text = f"two nodes call themselves {hello.node}: stop one, or give it another name"
            self._out.notices.append(Notice("name", text))
        if is_new:
            self._all_queues(NodeGone(member.node, member.incarnation))
            self._on_link(member.node)
            self._reported.clear()
            self.sync_reports.tell_again()
            self._say_hello(member.node)
            self._remind(member.node)
        if not self._raft.is_founded:
            self._found(now_ms, PeerHello(store, hello.founded))
        if self._is_foreign(store):
            if is_new and hello.founded:
                self._out.notices.append(Notice("foreign", _foreign_text(store)))
            return
        self._supervise(now_ms, Heard(member, hello.unheard))

    # --- Who is kept out ------------------------------------------------------------------

    def _is_of_another_cluster(self, hello: Hello) -> bool:
        known = self.catalog.cluster
        return hello.founded and 0 not in (known, hello.cluster) and known != hello.cluster

    def _notice_once(self, kind: str, text: str) -> None:
        if text not in self._noticed:
            self._noticed[text] = None
            self._out.notices.append(Notice(kind, text))

    def _keep_out(self, now_ms: int, hello: Hello, text: str) -> None:
        """Tell a process why it is ignored; its name leads to another, or to nobody."""
        key = self._contacts.tell(now_ms, hello.endpoint, text)
        if key:
            self._say_hello(key)
            self._say_unwelcome(key)

    def _say_unwelcome(self, key: str) -> None:
        text = self._contacts.word_for(key)
        if text:
            self._out.send.append((key, Unwelcome(text)))

    def _on_unwelcome(self, text: str) -> None:
        if self._unwelcome != text:
            self._unwelcome = text
            self._out.notices.append(Notice("kept out", text))

    def _may_ask(self, member: MemberId, message: AdmissionRequest) -> bool:
        """Whether a store may ask to be a voter here; it learns whom else to ask, or why not."""
        if not self._raft.is_founded:
            return False
        record = self.catalog.node(member.node)
        is_expected = message.joins or self._contacts.is_static(member.node) or record is not None
        if not is_expected:
            text = (
                f"{member.node} is none of the peers that {self.me.node} was started with: start "
                "it with join= to have it admitted"
            )
            self._out.send.append((member.node, Unwelcome(text)))
            return False
        if record is not None and record.store != member.store and self.is_alive(record.member):
            text = f"a node named {member.node} is alive in this cluster: use another name"
            self._out.send.append((member.node, Unwelcome(text)))
            return False
        nodes = tuple((node.name, node.endpoint) for node in self.catalog.nodes())
        self._out.send.append((member.node, Directory(nodes)))
        return True

    def _list_nodes(self) -> None:
        """Connect to who is in the catalog, and to no one who is no more."""
        nodes = {node.name: node.endpoint for node in self.catalog.nodes()}
        nodes.pop(self.me.node, None)
        for name in self._contacts.list_nodes(nodes):
            if not self._contacts.is_static(name):
                self._peers.remove(name)
        for name in nodes:
            self._peers.add(name)

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

    def _on_link(self, node: str) -> None:
        """A connection ended or came anew: what was on the way may be gone."""
        self._all_queues(LinkLost(node))
        for queue_id in dict.fromkeys(self._sessions.values()):
            record = self.catalog.queue(queue_id)
            if record is not None and record.view.members[0].id.node == node:
                self._out.changes.append(MasterLinkLost(queue_id))
        for queue_id, replica in self.replicas.items():
            for target in replica.state.outbox.outlets if replica.is_master else ():
                record = self.catalog.queue(target)
                if record is not None and record.view.members[0].id.node == node:
                    self._queue(queue_id, TargetLinkLost(target))

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
        )

    # --- Time ---------------------------------------------------------------------------

    def _run_timers(self, now_ms: int) -> None:
        raft = self._raft
        if not raft.is_founded and _is_due(self._founding_wake, now_ms):
            self._found(now_ms, FoundingTick())
        if _is_due(self._raft_wake, now_ms):
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
            hello = self._hello()
            self._out.send += [(peer.name, hello) for peer in self._peers.all()]
            self._out.send += [(key, hello) for key in self._contacts.seeds]
            for peer in self._peers.newly_silent(now_ms):
                self._on_gone(peer.name)
                if not self._contacts.is_needed(peer.name):
                    self._contacts.forget(peer.name)
                    self._peers.remove(peer.name)
            self._contacts.end_silent(now_ms - STRANGER_FACTOR * self.config.failure_ms)
            self._report(now_ms)
            self._ask_for_leftovers(now_ms)
            for replica in self.replicas.values():
                self._promise(now_ms, replica)
        if _is_due(self._supervisor_wake, now_ms):
            self._supervise(now_ms, SupervisorTick())
        if self._has_raft_news:
            self._has_raft_news = False
            self._tend_cluster(now_ms)

    def _on_gone(self, node: str) -> None:
        self._all_queues(NodeGone(node))
        self._out.notices.append(Notice("gone", f"node {node} is silent or dead"))

    def _wake_at_ms(self, now_ms: int) -> int | None:
        if self._inbox:
            return now_ms
        wake = earliest(earliest(self._raft_wake, self._supervisor_wake), self._due.next_ms)
        if self._peers or self._contacts.seeds:
            wake = earliest(wake, self._hello_ms + self.config.heartbeat_ms)
        if not self._raft.is_founded:
            wake = earliest(wake, self._founding_wake)
        if self._needs_lease(now_ms):
            wake = earliest(wake, self._holder.wake_at_ms(now_ms, True))
        for _, until_ms, _, _ in self._endings:
            wake = earliest(wake, until_ms)
        if self._asks and self._raft.leader is not None:
            wake = earliest(wake, min(a.sent_ms for a in self._asks.values()) + ASK_AGAIN_MS)
        return wake

    # --- Founding, Raft, admission ------------------------------------------------------

    def _found(self, now_ms: int, event: FoundingEvent) -> None:
        self._has_raft_news = True
        effects = self._founding.step(now_ms, event)
        self._founding_wake = effects.wake_at_ms
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
        self._raft_wake = effects.wake_at_ms
        if effects.persist is not None:
            self._out.raft = merge_writes(self._out.raft, effects.persist)
            self._round_raft = effects.write_number
        self._out.send.extend((store.node, message) for store, message in effects.send)
        if effects.install is not None:
            self._restore(now_ms, effects.install.data)
        for entry in effects.apply:
            self._apply(now_ms, entry)
        if not was_founded and raft.is_founded:
            self._found(now_ms, Founded())
            self._contacts.end_seeds()
            self._joins = ()
            self._unwelcome = ""
            self._out.notices.append(Notice("founded", "the cluster is founded"))
        is_news = was_leader is not raft.is_leader
        if self._supervisor.is_asked_for_leases:
            contact_ms = raft.majority_contact_ms
            is_news = is_news or contact_ms != self._contact_ms
            self._contact_ms = contact_ms
        if is_news or effects.apply:
            self._supervise(now_ms, SupervisorTick())

    def _apply(self, now_ms: int, entry: RaftEntry) -> None:
        self._applied_since_compact += 1
        if entry.kind == KIND_COMMAND:
            self._apply_command(now_ms, entry)
        if self._applied_since_compact >= COMPACT_ENTRIES:
            self._applied_since_compact = 0
            self._step_raft(now_ms, Compact(entry.index, self.catalog.snapshot()))

    def _apply_command(self, now_ms: int, entry: RaftEntry) -> None:
        try:
            proposal, command = unpack(entry)
        except ProtocolError as error:
            self._out.notices.append(Notice("catalog", f"entry {entry.index}: {error}"))
            return
        result = self.catalog.apply(entry.index, command, proposal.request)
        is_done = not result.error and not result.is_repeat
        if isinstance(command, DropCopy) and command.member == self.me and is_done:
            self._drop_copy(command.queue_id)
        self._was_registered = self.is_registered
        self._may_have_news = True
        for queue_id in result.queues:
            self._on_queue_changed(queue_id)
        if result.nodes:
            self._list_nodes()
        if result.queues or result.nodes:
            self._supervise(now_ms, CatalogChanged(result.queues, result.nodes))
        is_mine = (proposal.node, proposal.incarnation) == (self.me.node, self.me.incarnation)
        ask = self._asks.pop(proposal.number, None) if is_mine else None
        if ask is None:
            return
        answer = Answer(ask.token, result.value, result.error, result.text)
        if isinstance(command, DeleteQueue) and ask.token != NOBODY and not result.error:
            # As a rule its outbox is empty in a moment, and its name free when that is told.
            record = self.catalog.queue(command.queue_id)
            if record is not None and record.is_ending:
                until_ms = now_ms + self.config.failure_ms
                self._endings.append((command.queue_id, until_ms, ask, answer))
                return
        self._answer(ask, answer)

    def _tell_endings(self, now_ms: int) -> None:
        """Deletions that have ended, or that take long: their outbox is not empty."""
        waiting, self._endings = self._endings, []
        for ending in waiting:
            queue_id, until_ms, ask, answer = ending
            if now_ms < until_ms and self.catalog.queue(queue_id) is not None:
                self._endings.append(ending)
            else:
                self._answer(ask, answer)

    def _answer(self, ask: _PendingAsk, answer: Answer) -> None:
        self._end_ask(ask, answer.error)
        if ask.token != NOBODY:
            self._out.answers.append(answer)

    def _restore(self, now_ms: int, data: bytes) -> None:
        if not data:
            return
        try:
            self.catalog = Catalog.restore(data)
        except ProtocolError as error:
            self._out.notices.append(Notice("catalog", str(error)))
            return
        self._was_registered = self.is_registered
        self._may_have_news = True
        known = {record.id for record in self.catalog.queues()}
        for queue_id in [*self.replicas, *self._images]:
            if queue_id not in known:
                self._drop(queue_id)
        for record in self.catalog.queues():
            self._on_queue_changed(record.id)
        self._list_nodes()
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
        self._supervisor_wake = effects.wake_at_ms
        self._may_have_news |= effects.is_news
        for command in effects.propose:
            self._propose(now_ms, command)
        for node, answer in effects.send:
            if node == self.me.node:
                self._holder.on_answer(answer)
            else:
                self._out.send.append((node, answer))
        for name, wanted in effects.yields:
            if name == self.me.node:
                self._queue(wanted.queue_id, YieldAsked(wanted.epoch))
            else:
                self._out.send.append((name, wanted))
        for probe in effects.probe:
            self._probe(probe.node, probe.number)
        for member in effects.known_dead:
            if self._peers.end(member):
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
        self._ask_number += 1
        self._asks[self._ask_number] = _PendingAsk(self._ask_number, token, command)
        if isinstance(command, DeclareQueue) and command.owner is not None:
            self._owners[command.owner] = None

    def _ask(self, now_ms: int) -> None:
        """Send catalog requests to the leader, and again when nothing came of them."""
        if (
            not self._was_registered
            and self._raft.is_founded
            and not self.is_registered
            and not self._is_registering
        ):
            me = self.me
            register = RegisterNode(
                me.node, me.store, me.incarnation, self._endpoint, self._witness
            )
            self._new_ask(NOBODY, register)
        if not self._asks or self._raft.leader is None:
            return
        # Numbers grow, so the first is the oldest.
        oldest = next(iter(self._asks))
        for ask in list(self._asks.values()):
            if now_ms - ask.sent_ms >= ASK_AGAIN_MS:
                ask.sent_ms = now_ms
                self._to_leader(now_ms, CatalogRequest(ask.number, self.me, ask.command, oldest))

    @property
    def _is_registering(self) -> bool:
        return any(isinstance(ask.command, RegisterNode) for ask in self._asks.values())

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
        if isinstance(command, DeclareQueue) and self._is_assembling():
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
        for peer in self._peers.all():
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
            waiting = self._asks.get(answer.number)
            if waiting is not None:
                waiting.sent_ms -= ASK_AGAIN_MS - RETRY_MS
            return
        ask = self._asks.pop(answer.number, None)
        if ask is not None:
            self._answer(ask, Answer(ask.token, answer.value, answer.error, answer.text))

    # --- The lease ----------------------------------------------------------------------

    def _needs_lease(self, now_ms: int) -> bool:
        return now_ms < self._handing_until_ms and not self._is_released

    def _count_handing(self) -> None:
        """A master is no more: until when do the others want the lease?"""
        masters = (replica.master for replica in self.replicas.values())
        wanted = (master.lease_wanted_until_ms for master in masters if master is not None)
        self._handing_until_ms = max(wanted, default=NEVER_MS)

    def _hold_lease(self, now_ms: int) -> None:
        if self._needs_lease(now_ms):
            request = self._holder.poll(now_ms, True)
            if request is not None:
                self._to_leader(now_ms, request)
        lease = self.lease
        was_held, was_paused = now_ms < lease.until_ms, lease.paused
        lease.until_ms = until_ms = self._holder.valid_until_ms(self._raft.applied_index)
        lease.paused = is_paused = now_ms - self._led_ms > self.config.heartbeat_ms
        if was_paused is is_paused and was_held is (now_ms < until_ms):
            return
        if was_paused != lease.paused:
            kind = "paused" if lease.paused else "resumed"
            self._out.notices.append(Notice(kind, f"{kind}: contact with a majority"))
        self._all_queues(LeaseChanged())

    # --- Queues -------------------------------------------------------------------------

    def _on_queue_changed(self, queue_id: int) -> None:
        record = self.catalog.queue(queue_id)
        if record is None:
            self._drop(queue_id)
            self._take_early(queue_id)
            return
        if self._is_ownerless(record):
            self._end_queue(record)
        replica = self.replicas.get(queue_id)
        is_mine = any(member.id == self.me for member in record.view.members)
        has_copy = queue_id in self.replicas or queue_id in self._images
        is_named = find_store(record.view, self.me.node, self.me.store) is not None
        self._leftovers.note(queue_id, has_copy and not is_named)
        if replica is None and is_mine:
            image = self._images.pop(queue_id, QueueImage(queue_id))
            replica = Replica(
                self.me,
                queue_id,
                self.config,
                self._codec,
                image,
                self.lease,
                self.room,
                self._targets,
            )
            self.replicas[queue_id] = replica
        if replica is not None:
            was_master = replica.is_master
            if queue_id in self.reports:
                report, _ = self.reports[queue_id]
                replica.reported = report.ready + report.unacknowledged
            self._queue(queue_id, Defined(self.catalog.definition_of(record.name)))
            if record.auto_delete or record.has_outbox:
                known = (record.was_consumed, record.is_ending, record.has_outbox)
                self._queue(queue_id, Declared(record.auto_delete, *known))
            self._queue(queue_id, Fetching(self.me in self.catalog.synchronising(queue_id)))
            self._queue(queue_id, ViewInstalled(record.view))
            if record.view.members[0].id == self.me and not was_master:
                text = f"master of queue {record.name!r} at epoch {record.view.epoch}"
                self._out.notices.append(Notice("became master", text, queue_id))
        self._take_early(queue_id)

    def _end_ask(self, ask: _PendingAsk, error: str) -> None:
        """Who declared an exclusive queue and got none owns none."""
        command = ask.command
        if error and isinstance(command, DeclareQueue) and command.owner is not None:
            self._end_owner(command.owner)

    def _end_owner(self, owner: SessionId) -> None:
        """The handle is no more, and its exclusive queue ends with it."""
        if owner in self._owners:
            del self._owners[owner]
            for record in self.catalog.queues():
                if record.owner == owner:
                    self._end_queue(record)

    def _is_ownerless(self, record: QueueRecord) -> bool:
        """Whether its owner was a handle on this life of this node, and is no more."""
        return (
            record.owner is not None
            and record.owner_life == self.me
            and record.owner not in self._owners
        )

    def _end_queue(self, record: QueueRecord) -> None:
        command = DeleteQueue(record.id)
        if all(ask.command != command for ask in self._asks.values()):
            self._new_ask(NOBODY, command)

    def _drop(self, queue_id: int) -> None:
        """The queue is no more: its store is emptied."""
        self._drop_copy(queue_id)
        self.reports.pop(queue_id, None)
        self.sync_reports.drop(queue_id)
        self._told.pop(queue_id, None)
        if queue_id in self._sessions.values():
            self._told[queue_id] = (0, False)
            self._out.changes.append(MasterChange(queue_id, 0, False))

    def _drop_copy(self, queue_id: int) -> None:
        """Forget all that this node has of a queue, on disk and in memory."""
        self._leftovers.note(queue_id, False)
        self._images.pop(queue_id, None)
        self._inbox.pop(queue_id, None)
        self._due.set(queue_id, None)
        self._reported.pop(queue_id, None)
        if self.replicas.pop(queue_id, None) is not None:
            self._count_handing()
        self._holding.pop(queue_id, None)
        # A later copy counts its writes from 1 again: it must not take these for its own.
        self._round_writes = _without(self._round_writes, queue_id)
        for place, (number, writes, raft_number) in enumerate(self._rounds):
            self._rounds[place] = (number, _without(writes, queue_id), raft_number)
        self._out.writes.append(QueueWrite(queue_id, reset=True))

    def _ask_for_leftovers(self, now_ms: int) -> None:
        """Ask whether copies that no view names may go."""
        if not self.is_registered:
            return
        for queue_id in self._leftovers.due(now_ms):
            record = self.catalog.queue(queue_id)
            if record is not None:
                command = DropCopy(queue_id, record.view.epoch, self.me)
                if all(ask.command != command for ask in self._asks.values()):
                    self._new_ask(NOBODY, command)

    def _queue(self, queue_id: int, event: ReplicaEvent) -> None:
        if queue_id in self.replicas:
            self._inbox.setdefault(queue_id, []).append(event)

    def _all_queues(self, event: ReplicaEvent) -> None:
        for queue_id in self.replicas:
            self._inbox.setdefault(queue_id, []).append(event)

    def _run_replicas(self, now_ms: int, wall_us: int) -> bool:
        """Step the queues that something came for; say whether there was one."""
        for queue_id in self._due.take_due(now_ms):
            self._inbox.setdefault(queue_id, []).append(TICK)
        if not self._inbox:
            return False
        inbox, self._inbox = self._inbox, {}
        for queue_id, events in inbox.items():
            replica = self.replicas.get(queue_id)
            if replica is not None:
                self._run_replica(now_ms, wall_us, queue_id, replica, events)
        return True

    def _run_replica(
        self,
        now_ms: int,
        wall_us: int,
        queue_id: int,
        replica: Replica,
        events: list[ReplicaEvent],
    ) -> None:
        out = self._out
        was_master = replica.master
        effects = replica.step(now_ms, wall_us, *events)
        master = replica.master
        if master is not was_master:
            self._count_handing()
        elif master is not None and master.lease_wanted_until_ms > self._handing_until_ms:
            self._handing_until_ms = master.lease_wanted_until_ms
        if any(isinstance(event, YieldAsked) for event in events):
            self._promise(now_ms, replica)
        out.send_first.extend((member.node, message) for member, message in effects.send)
        if effects.write is not None:
            out.writes.append(effects.write)
            self._round_writes.append((queue_id, effects.write_number))
        out.reads.extend((member.node, fetch) for member, fetch in effects.reads)
        for reply in effects.replies:
            if is_courier(reply.session):
                self._answer_courier(reply)
            else:
                out.replies.append(reply)
        for request in effects.requests:
            self._route(request)
        record = self.catalog.queue(queue_id)
        for load in effects.loads:
            target = self.catalog.queue(load.target)
            names = (known.name if known is not None else "" for known in (record, target))
            out.loads.append(evolve(load, queue=next(names), target_name=next(names)))
        for kind, text in effects.notices:
            name = record.name if record is not None else queue_id
            out.notices.append(Notice(kind, f"queue {name!r}: {text}", queue_id))
        if effects.propose is not None:
            self._new_ask(NOBODY, effects.propose)
        for command in effects.commands:
            self._new_ask(NOBODY, command)
        if effects.propose is not None or effects.commands:
            self._ask(now_ms)
        if replica.ring.append_cost:
            self._holding[queue_id] = None
        else:
            self._holding.pop(queue_id, None)
        self._due.set(queue_id, effects.wake_at_ms)

    def _promise(self, now_ms: int, replica: Replica) -> None:
        """Tell the leader, until the view changes, that nothing more is handed out in it."""
        epoch = replica.yielded_epoch
        if epoch is not None:
            self._to_leader(now_ms, Yielded(replica.queue_id, epoch, self.me))

    def _close_round(self, out: EngineEffects) -> None:
        self._round += 1
        out.round = self._round
        self._rounds.append((self._round, self._round_writes, self._round_raft))
        self._round_writes = []
        self._round_raft = 0

    def _on_committed(self, now_ms: int, number: int) -> None:
        while self._rounds and self._rounds[0][0] <= number:
            _, writes, raft_number = self._rounds.popleft()
            for queue_id, write_number in writes:
                self._queue(queue_id, Persisted(write_number))
            if raft_number:
                self._step_raft(now_ms, Persisted(raft_number))

    # --- Sessions -----------------------------------------------------------------------

    def _route(self, request: SessionRequest) -> None:
        """To the queue's master, wherever it is. A stale epoch is dropped there."""
        record = self.catalog.queue(request.queue_id)
        if record is None:
            return
        master = record.view.members[0].id
        if master == self.me:
            self._queue(request.queue_id, Requested(request))
        else:
            self._out.send.append((master.node, request))

    def _take_request(self, request: SessionRequest) -> None:
        """One of another node. News of a view may reach that node before it comes here."""
        record = self.catalog.queue(request.queue_id)
        if record is None:
            is_early = not self.catalog.is_deleted(request.queue_id)
        else:
            is_early = record.view.reign < request.epoch
        if not is_early:
            self._queue(request.queue_id, Requested(request))
        elif len(self._early) < EARLY_COUNT_MAX:
            self._early.append(request)

    def _take_reply(self, reply: SessionReply) -> None:
        """One of another node, for a handle here or for a courier."""
        if is_courier(reply.session):
            self._answer_courier(reply)
        else:
            self._out.replies.append(reply)

    def _answer_courier(self, reply: SessionReply) -> None:
        session, me = reply.session, self.me
        if session.node != me.node:
            self._out.send_first.append((session.node, reply))
        elif session.incarnation == me.incarnation:
            self._queue(source_of(session), CourierReplied(reply))

    def _take_early(self, queue_id: int) -> None:
        """The queue's view has changed: requests that waited for it are no longer early."""
        if self._early:
            early, self._early = self._early, []
            for request in early:
                if request.queue_id == queue_id:
                    self._take_request(request)
                else:
                    self._early.append(request)

    def _tell_masters(self) -> None:
        """Tell handles on this node who serves their queue, when that has changed."""
        self._may_have_news = False
        for queue_id, replica in self.replicas.items():
            if replica.is_master and replica.state.outbox.outlets:
                self._queue(queue_id, TargetsChanged())
        for queue_id in dict.fromkeys(self._sessions.values()):
            record = self.catalog.queue(queue_id)
            if record is not None:
                self._tell_master(record)
            elif self.catalog.is_deleted(queue_id) and queue_id not in self._told:
                # It went between its declaration and the opening of the handle.
                self._told[queue_id] = (0, False)
                self._out.changes.append(MasterChange(queue_id, 0, False))

    def _tell_master(self, record: QueueRecord) -> None:
        known = (record.view.reign, self.is_alive(record.view.members[0].id))
        if record.is_ending:
            # Its users are done with it; what is left is between it and other queues.
            known = (0, False)
        if self._told.get(record.id) != known:
            self._told[record.id] = known
            self._out.changes.append(MasterChange(record.id, *known))

    def _report(self, now_ms: int) -> None:
        """Tell all nodes what the queues here count, for their status."""
        for progress in self.sync_reports.due(now_ms, self.replicas.values()):
            self._out.send.extend((peer.name, progress) for peer in self._peers.all())
        for queue_id, replica in self.replicas.items():
            master = replica.master
            if master is None or not master.active:
                continue
            delivery = master.delivery
            consumers = sum(1 for key in delivery.consumers if key[1] != 0)
            counts = (delivery.ready.count, delivery.unacknowledged, consumers)
            report = QueueReport(
                queue_id,
                master.reign,
                *counts,
                master.blocked_by,
                replica.state.lost,
                master.delays.count,
            )
            if self._reported.get(queue_id) != report:
                self._reported[queue_id] = report
                self._out.send.extend((peer.name, report) for peer in self._peers.all())


_OF_RINGS = frozenset(get_args(RingMessage))


def _without(writes: list[tuple[int, int]], queue_id: int) -> list[tuple[int, int]]:
    return [write for write in writes if write[0] != queue_id]


def _foreign_text(store: StoreId) -> str:
    return (
        f"the store {store.store} of a node that calls itself {store.node} is none of this "
        "cluster's: it is ignored. Two nodes have that name, or the store is of another cluster "
        "or an old copy: stop that node, or start it with an empty path"
    )


def _is_due(at_ms: int | None, now_ms: int) -> bool:
    return at_ms is not None and at_ms <= now_ms
