"""`Engine`: the pure half of a node. Hands each event, and each timer that is due, to a part.

The parts are the founding and Raft (`consensus`), the applied catalog (`follower`), the leader's
judgement (`leadership`), the lease (`lease_keeping`), greetings between nodes (`greetings`),
requests to the leader (`leader_requests`), and the copies of queues (`hosting`). The driver calls
`step` on the node's thread and carries out the effects. A step does a bounded portion of long work;
`wake_at_ms` is now while a portion is left.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import get_args

from mirrorq.cluster.bootstrap import (
    FOUNDING_MESSAGES,
    AdmissionRequest,
    FoundingMessage,
    FoundingReceived,
    joins_through,
)
from mirrorq.cluster.catalog.catalog import Catalog
from mirrorq.cluster.catalog.proposals import recorded_endpoints
from mirrorq.cluster.controller.events import ControllerTick, LinkBroken
from mirrorq.cluster.controller.leases import LeaseHolder
from mirrorq.cluster.raft.messages import Late, Received
from mirrorq.cluster.raft.raft import Raft
from mirrorq.config import Config
from mirrorq.containers.timers import FOREVER_MS
from mirrorq.engine import events
from mirrorq.engine.addresses import MARK
from mirrorq.engine.catalog_requests import CatalogRequests
from mirrorq.engine.consensus import Consensus
from mirrorq.engine.context import EngineContext
from mirrorq.engine.follower import Follower
from mirrorq.engine.greetings import Greetings
from mirrorq.engine.hosting import Hosting
from mirrorq.engine.leader_requests import LeaderRequests
from mirrorq.engine.leadership import Leadership
from mirrorq.engine.lease_keeping import LeaseKeeping
from mirrorq.engine.peer_admission import PeerAdmission
from mirrorq.protocol import control, effects
from mirrorq.protocol.codec import OpCodec
from mirrorq.protocol.commands import RegisterNode
from mirrorq.protocol.identities import MemberId, StoreId
from mirrorq.protocol.raft import RAFT_MESSAGES
from mirrorq.protocol.ring import RingMessage
from mirrorq.protocol.sessions import SessionReply, SessionRequest
from mirrorq.protocol.views import in_sync_ids
from mirrorq.replication.events import Railed, RailStopped, RingReceived
from mirrorq.replication.events import WriteAll as WriteAllOf

LATE_FACTOR = 5
"""Raft is told of a step that is late by more than a heartbeat divided by the factor."""


class Engine:
    """One node's state machine.

    *Threads*: the node's thread only.
    """

    def __init__(
        self,
        me: MemberId,
        endpoint: str,
        peers: Mapping[str, str],
        config: Config,
        codec: OpCodec,
        raft_image: effects.RaftImage,
        queue_images: Iterable[effects.QueueImage],
        *,
        join: tuple[str, ...] = (),
        witness: bool = False,
        seed: int = 0,
        now_ms: int = 0,
        read_page: effects.PageReader | None = None,
    ) -> None:
        """Go on from the images of the disk.

        Args:
            endpoint: endpoint at which other nodes reach this node; "": it listens nowhere.
            peers: names and endpoints of the nodes in the configuration.
            join: endpoints of a cluster through which an empty store joins it.
            read_page: reads pages of this node's disk.
        """
        self.me = me
        self.config = config
        self.requests = CatalogRequests()
        self.hosting = Hosting(
            me, config, codec, queue_images, Catalog(), self.requests, self.is_alive, read_page
        )
        self.replicas = self.hosting.replicas
        self.reports = self.hosting.reports
        self.sync_reports = self.hosting.sync_reports
        self.lease = self.hosting.lease
        self.room = self.hosting.room
        """Room in the store. The driver sets it before a step, if it may have changed."""
        raft = Raft(StoreId(me.node, me.store), raft_image, config, seed)
        joins = () if raft.is_founded else join or joins_through(raft.founding)
        self._admission = PeerAdmission(me, endpoint, peers, joins, config.failure_ms)
        self._context = context = EngineContext(me, config, self.hosting, self._admission)
        holder = LeaseHolder(me, config.lease_ms)
        self._consensus = Consensus(
            context, raft, joins, now_ms, self._on_installed, self._on_raft_stepped
        )
        self._leadership = Leadership(context, self._consensus, holder, now_ms)
        self._greetings = Greetings(context, self._consensus, self._leadership, endpoint)
        registration = RegisterNode(me.node, me.store, me.incarnation, endpoint, witness)
        self._leader_requests = LeaderRequests(
            context, self.requests, self._consensus, self._leadership, registration
        )
        self._follower = Follower(context, self._leadership, self._leader_requests)
        self._lease_keeping = LeaseKeeping(
            context, holder, self._consensus, self._follower, self._leader_requests
        )
        self._begin_timers(now_ms)
        self._next_out = context.out = self.hosting.out = self._admission.out = (
            events.EngineEffects()
        )
        self._start(now_ms, raft_image)

    def _begin_timers(self, now_ms: int) -> None:
        context, config = self._context, self.config
        self._hello = context.timers.new()
        """When the node sends its next hello, if another node listens."""
        self._is_hello_open = True
        """Whether the time of the next hello is still to be set."""
        self._hello_ms = now_ms - config.heartbeat_ms
        """When the node sent its last hello."""
        self._again = context.timers.new()
        """When requests to the catalog's leader are sent again."""
        self._wanted_ms = FOREVER_MS
        """Wake-up time that the last step returned."""
        self._late_ms = config.heartbeat_ms // LATE_FACTOR

    def _start(self, now_ms: int, image: effects.RaftImage) -> None:
        if image.snapshot is not None:
            self._follower.restore(image.snapshot)
        while self._follower.is_restoring:
            self._follower.restore_page(now_ms)
        for name, endpoint in recorded_endpoints(image).items():
            self._admission.meet(name, endpoint)
        self._consensus.start(now_ms)
        self._admission.end_step()

    # --- Raft ---------------------------------------------------------------------------

    def _on_installed(self, snapshot: effects.RaftSnapshot) -> None:
        self._follower.restore(snapshot)

    def _apply_portion(self, now_ms: int) -> None:
        """Apply a portion of what Raft has agreed on: a page of a snapshot, or entries."""
        follower, consensus = self._follower, self._consensus
        if follower.is_restoring:
            follower.restore_page(now_ms)
        else:
            follower.apply_portion(now_ms, consensus.raft)
        consensus.has_news = self._context.has_lease_news = True
        self._leadership.on_raft(now_ms, is_news=False, has_applied=True)

    def _make_page(self, now_ms: int) -> None:
        """Make one page of a snapshot of the catalog. A snapshot on its way is not replaced."""
        follower = self._follower
        if not follower.is_making_snapshot:
            if self._consensus.raft.is_sending_snapshot:
                return
            follower.begin_snapshot()
        self._consensus.step(now_ms, follower.next_page())

    def _on_raft_stepped(self, now_ms: int, is_news: bool) -> None:
        self._leadership.on_raft(now_ms, is_news=is_news, has_applied=False)

    # --- Queries ------------------------------------------------------------------------

    @property
    def catalog(self) -> Catalog:
        """The catalog, as far as the node has applied the log."""
        return self._context.catalog

    @property
    def alarms(self) -> tuple[str, ...]:
        """Names of the alarms raised at the node, set by the driver."""
        return self._context.alarms

    @alarms.setter
    def alarms(self, names: tuple[str, ...]) -> None:
        self._context.alarms = names

    def note_spooled(self, messages: int, oldest_s: int) -> None:
        """Note how many messages wait in the node's spools; hellos tell other nodes."""
        self._context.spooled = (messages, oldest_s) if messages else ()

    @property
    def leader(self) -> str | None:
        """Name of the catalog's leader, as far as the node knows; None: no leader."""
        leader = self._consensus.raft.leader
        return leader.node if leader is not None else None

    @property
    def is_founded(self) -> bool:
        return self._consensus.raft.is_founded

    @property
    def is_registered(self) -> bool:
        """Whether the catalog knows the node's incarnation. Then the node takes part."""
        return self._context.is_registered

    @property
    def outdated(self) -> str:
        """Why the node has stopped following the catalog; "": it follows."""
        return self._follower.outdated

    @property
    def voters(self) -> tuple[StoreId, ...]:
        return self._consensus.raft.voters

    def is_paused(self, now_ms: int) -> bool:
        """Return true if the node has no contact with a majority of the cluster."""
        return now_ms - self._consensus.led_at(now_ms) > self.config.heartbeat_ms

    def is_alive(self, member: MemberId) -> bool:
        """Return true if an incarnation of a node runs, as far as the local node knows."""
        return member == self.me or self._leadership.is_alive(member)

    def alarms_of(self, member: MemberId) -> tuple[str, ...]:
        """Return the alarms last reported by an incarnation of a node."""
        if member == self.me:
            return self.alarms
        said = self._last_hello(member)
        return () if said is None else said.alarms

    def spooled_by(self, member: MemberId) -> tuple[int, int]:
        """Return (messages, seconds of the oldest message's wait) of a node's spools."""
        said = self._last_hello(member)
        known = self._context.spooled if member == self.me else said.spooled if said else ()
        return (known[0], known[1]) if len(known) > 1 else (0, 0)

    def _last_hello(self, member: MemberId) -> control.Hello | None:
        peer = self._admission.peers.find(member.node)
        if peer is None or peer.gone or peer.member != member or peer.greeting is None:
            return None
        return peer.greeting[0]

    @property
    def has_portions(self) -> bool:
        """Whether a portion of long work is left."""
        hosting, follower = self.hosting, self._follower
        if hosting.inbox or hosting.changed or hosting.redefining or hosting.news:
            return True
        if hosting.reports.is_repeating:
            return True
        is_applying = follower.is_restoring or self._consensus.raft.has_committed
        return is_applying or follower.is_making_snapshot

    @property
    def may_end(self) -> bool:
        """Whether the process may end after `Release`.

        It may when the catalog knows that the end is a shutdown, and no queue with a mirror in sync
        has its master here. It may, too, when no majority runs.
        """
        stores = [self._context.store]
        for peer in self._admission.peers.all():
            if peer.member is not None and not peer.gone:
                stores.append(StoreId(peer.member.node, peer.member.store))
        if 2 * sum(voter in stores for voter in self.voters) <= len(self.voters):
            return True
        if self.is_registered and not self.catalog.was_stopped(self.me):
            return False
        return not any(
            record.view.members[0].id == self.me and len(in_sync_ids(record.view)) > 1
            for record in self.catalog.led_by(self.me.node)
        )

    def may_deliver(self, reply: SessionReply, now_ms: int) -> bool:
        """Whether a master's delivery may still be sent: the master's term and the lease go on."""
        replica = self.hosting.replicas.get(reply.queue_id)
        master = replica.master if replica is not None else None
        is_term = master is not None and master.master_epoch == reply.epoch
        if not is_term or master is None or master.has_yielded:
            return False
        record = self.catalog.queue(reply.queue_id)
        # The copy here may not know the newest view yet.
        is_newest = record is not None and record.view.master_epoch == reply.epoch
        return is_newest and now_ms < self.hosting.lease.until_ms

    def waiting_text(self) -> str:
        """Return why the node takes part in no cluster; "": it takes part."""
        if self.outdated:
            return f"has stopped following the catalog: {self.outdated}"
        if self._admission.unwelcome and self._may_be_kept_out:
            return f"is kept out: {self._admission.unwelcome}"
        return self._consensus.waiting_text()

    @property
    def is_out_for_good(self) -> bool:
        """Whether the cluster has forgotten the store: `waiting_text` says why."""
        return self._admission.is_out_for_good and self._may_be_kept_out

    @property
    def _may_be_kept_out(self) -> bool:
        """Whether the node believes that it is refused: not if registered and with a leader."""
        return not self.is_registered or self.leader is None

    # --- The step -----------------------------------------------------------------------

    def step(
        self, now_ms: int, steady_us: int, inputs: Iterable[events.EngineEvent]
    ) -> events.EngineEffects:
        """Take the events that have arrived and do what is due.

        Args:
            now_ms: the process's monotonic clock, in milliseconds.
            steady_us: the clock of messages' times, in microseconds; it never goes back.

        Returns:
            What the driver is to write, send and answer, and when to step again.
        """
        out, context, hosting = self._next_out, self._context, self.hosting
        requests, lease_keeping = self.requests, self._lease_keeping
        context.out = self._admission.out = out
        hosting.begin_step(out)
        if now_ms - self._wanted_ms > self._late_ms:
            # Other nodes are not silent just because this process was given no time.
            self._consensus.step(now_ms, Late(now_ms - self._wanted_ms))
        if hosting.holding:
            hosting.count_held_back()
        for event in inputs:
            if type(event) is events.FromPeer:
                self._on_peer(now_ms, event)
            else:
                self._on_event(now_ms, event)
        if context.timers.next_ms <= now_ms or self._is_hello_open:
            self._run_timers(now_ms)
        else:
            self._consensus.note_leader(now_ms)
        if self._follower.is_restoring or self._consensus.raft.has_committed:
            self._apply_portion(now_ms)
        if hosting.reports.is_repeating:
            self._greetings.repeat_reports()
        if self._consensus.has_news:
            self._consensus.tend(now_ms)
        if self._follower.is_making_snapshot or self._follower.is_log_long:
            self._make_page(now_ms)
        if requests.is_busy or not context.was_registered:
            self._leader_requests.continue_requests(now_ms)
        if context.has_lease_news or lease_keeping.next_ms <= now_ms:
            lease_keeping.hold(now_ms)
        if hosting.changed:
            hosting.tell_changed()
        if hosting.redefining:
            hosting.redefine()
        if hosting.inbox or hosting.due.next_ms <= now_ms or hosting.is_handing_stale:
            self._run_queues(now_ms, steady_us)
        if hosting.news.of_all or hosting.news.queues:
            hosting.tell_masters()
        if self._admission.contacts.has_changed:
            self._admission.end_step()
        if out.writes or out.raft is not None:
            out.round = hosting.rounds.close()
        self._next_out = events.EngineEffects()
        if requests.is_busy or self._is_hello_open:
            self._set_timers()
        wake_ms = now_ms if self.has_portions else hosting.due.next_ms
        if context.timers.next_ms < wake_ms:
            wake_ms = context.timers.next_ms
        self._wanted_ms = wake_ms
        out.wake_at_ms = None if wake_ms == FOREVER_MS else wake_ms
        return out

    def _run_queues(self, now_ms: int, steady_us: int) -> None:
        """Step the copies that have events or are due, and send their requests to the leader."""
        hosting = self.hosting
        until_ms = hosting.handing_until_ms
        hosting.step_copies(now_ms, steady_us)
        is_look_due = until_ms <= now_ms < hosting.handing_until_ms
        if hosting.has_asked:
            hosting.has_asked, is_look_due = False, True
            self._leader_requests.send(now_ms)
        if hosting.promises:
            is_look_due = True
            self._leader_requests.send_promises(now_ms)
        if is_look_due:
            self._lease_keeping.hold(now_ms)

    def _on_event(self, now_ms: int, event: events.EngineEvent) -> None:
        match event:
            case events.FromSession():
                self.hosting.route(event.request)
            case events.Committed():
                self._on_committed(now_ms, event.round)
            case events.SessionOpened():
                self.hosting.open_session(event.session, event.queue_id)
            case events.SessionClosed():
                self.hosting.close_session(event.session, event.queue_id)
            case events.LinkUp():
                self.hosting.on_link(event.node)
                self._greetings.say_all(event.node)
                self._admission.say_unwelcome(event.node)
            case events.LinkDown():
                self.hosting.on_link_down(event.node)
                if event.node[:1] != MARK:
                    self._leadership.supervise(now_ms, LinkBroken(event.node))
            case events.Probed():
                self._leadership.on_probed(now_ms, event.node, refused=event.refused)
                if event.refused:
                    # Hellos list unheard nodes. Other nodes need this hello to find that the
                    # probed node is dead (`failure_detector`).
                    self._greetings.say_to_all()
            case events.Ask():
                self._leader_requests.begin_request(event.token, event.command)
            case events.Forget():
                self._leader_requests.forget(event.token)
            case events.ToCopy(event=Railed() | RailStopped()):
                self.hosting.post_at_once(event.queue_id, event.event)
            case events.ToCopy():
                self.hosting.post(event.queue_id, event.event)
            case events.WriteAll():
                self.hosting.post_all(WriteAllOf())
                self.hosting.runs_all = True
            case events.Release():
                self._lease_keeping.release(now_ms)
                self._leader_requests.stop()

    def _on_committed(self, now_ms: int, number: int) -> None:
        for committed in self.hosting.rounds.committed(number):
            self.hosting.on_committed(committed)
            if committed.raft:
                self._consensus.step(now_ms, effects.Persisted(committed.raft))

    # --- Peers --------------------------------------------------------------------------

    def _on_peer(self, now_ms: int, event: events.FromPeer) -> None:
        message = event.message
        kind = type(message)
        if kind is control.Hello:
            self._on_hello(now_ms, event, message)  # type: ignore[arg-type]
            return
        peer = self._admission.peers.on_heard(now_ms, event.node, event.incarnation)
        if peer is None:
            return
        member, store = peer.member, peer.store
        assert member is not None
        assert store is not None
        if kind in _OF_QUEUES:
            is_foreign = self._consensus.is_peer_foreign(peer, store)
            if is_foreign and not peer.is_kept_out:
                # Requests of the node's handles were dropped: the handles have to attach again.
                self.hosting.on_link(member.node)
            peer.is_kept_out = is_foreign
            if not is_foreign:
                self._on_queue(member, kind, message)
        elif isinstance(message, RAFT_MESSAGES):
            self._consensus.step(now_ms, Received(store, message))
        elif isinstance(message, FOUNDING_MESSAGES):
            self._on_founding(now_ms, member, message)
        elif not self._consensus.is_peer_foreign(peer, store):
            self._on_control(now_ms, member, message)

    def _on_hello(self, now_ms: int, event: events.FromPeer, hello: control.Hello) -> None:
        if hello.node == event.node and hello.incarnation == event.incarnation:
            self._greetings.on_hello(now_ms, hello)

    def _on_queue(self, member: MemberId, kind: type, message: object) -> None:
        """Take a message of a queue's ring, or between a handle and the queue's master."""
        if kind is SessionRequest:
            self.hosting.take_request(message)  # type: ignore[arg-type]
        elif kind is SessionReply:
            self.hosting.take_reply(message)  # type: ignore[arg-type]
        else:
            queue_id: int = message.queue_id  # type: ignore[attr-defined]
            self.hosting.post(queue_id, RingReceived(member, message))  # type: ignore[arg-type]

    def _on_founding(self, now_ms: int, member: MemberId, message: FoundingMessage) -> None:
        if not isinstance(message, AdmissionRequest) or self._greetings.may_ask(member, message):
            store = StoreId(member.node, member.store)
            self._consensus.found(now_ms, FoundingReceived(store, message))

    def _on_control(self, now_ms: int, member: MemberId, message: object) -> None:
        match message:
            case control.LeaseAnswer():
                self._lease_keeping.on_answer(message)
            case control.LeaseRequest() | control.LeaseRelease():
                if message.member == member:
                    self._leadership.supervise(now_ms, message)
            case control.CatalogRequest():
                if message.member == member:
                    self._leader_requests.on_request(now_ms, message)
            case control.CatalogAnswer():
                self._leader_requests.on_answer(message)
            case control.Yield():
                self.hosting.ask_to_yield(message.queue_id, message.epoch)
            case control.Yielded():
                if message.member == member:
                    self._leadership.supervise(now_ms, message)
            case control.QueueReport():
                self.hosting.reports.record_report(now_ms, self.catalog, member, message)
            case control.SyncReport():
                self.hosting.sync_reports.record_report(member, message)
            case control.Directory():
                self._consensus.on_directory(now_ms, member.node, message)
            case control.Unwelcome():
                if self._may_be_kept_out and message.store in (0, self.me.store):
                    self._admission.on_unwelcome(message.text, is_final=message.is_final)
            case _:
                pass

    # --- Time ---------------------------------------------------------------------------

    def _run_timers(self, now_ms: int) -> None:
        self._consensus.run_timers(now_ms)
        self._consensus.note_leader(now_ms)
        if now_ms - self._hello_ms >= self.config.heartbeat_ms:
            # Hellos are at multiples of heartbeat_ms, as ticks of queues are: one wake for all.
            self._hello_ms = now_ms - now_ms % self.config.heartbeat_ms
            self._show_life(now_ms)
            self._hello.clear()
            self._is_hello_open = True
        if self._leadership.tick.at_ms <= now_ms:
            self._leadership.supervise(now_ms, ControllerTick())

    def _set_timers(self) -> None:
        """Set the timers that depend on the state at the end of the step."""
        if self._is_hello_open and self._admission.has_listeners:
            self._is_hello_open = False
            self._hello.set(self._hello_ms + self.config.heartbeat_ms)
        if self.requests.is_busy:
            has_leader = self._consensus.raft.leader is not None
            self._again.set(self.requests.next_ms(has_leader))

    def _show_life(self, now_ms: int) -> None:
        """Send hellos and reports, and find nodes that have fallen silent."""
        hosting, peers = self.hosting, self._admission.peers
        self._greetings.say_to_all()
        for name in self._admission.newly_silent(now_ms, self._consensus.raft.voters):
            self._context.on_gone(name)
        reports = hosting.take_reports(now_ms)
        sent = [(peer.name, report) for report in reports for peer in peers.all()]
        self._context.out.send.extend(sent)
        if self.is_registered:
            hosting.ask_for_leftovers(now_ms)
        hosting.promise_again()
        self._leader_requests.send_promises(now_ms)


_OF_QUEUES = frozenset((*get_args(RingMessage), SessionRequest, SessionReply))
