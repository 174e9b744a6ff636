"""The queues of a node: its copies, and the local handles that use queues. Pure.

A copy is a `Replica`. A copy is made when a view names the node, and dropped when the queue is
deleted or the catalog agrees. Events for a copy are collected until the end of the engine's step,
so that they form one step of the replica and one write.

Requests go to the master on any node. Replies come back to the handle or the courier.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import filterfalse, islice

from attrs import evolve

from mirrorq.cluster.catalog.catalog import Catalog
from mirrorq.cluster.catalog.records import QueueRecord
from mirrorq.cluster.controller.failure_detector import LivenessNews
from mirrorq.config import Config
from mirrorq.containers.timers import Deadlines
from mirrorq.engine.catalog_requests import CatalogRequests
from mirrorq.engine.commit_batches import CommitBatch, CommitBatches
from mirrorq.engine.events import EngineEffects, MasterChange, MasterLinkLost
from mirrorq.engine.local_sessions import NO_MORE, LocalSessions, News
from mirrorq.engine.orphaned_copies import OrphanedCopies
from mirrorq.engine.reports import QueueReports
from mirrorq.engine.sync_reports import SyncReports
from mirrorq.protocol.codec import OpCodec
from mirrorq.protocol.commands import DeleteQueue, DropCopy
from mirrorq.protocol.control import Yielded
from mirrorq.protocol.effects import (
    Notice,
    PageReader,
    Persisted,
    QueueImage,
    QueueWrite,
    RailDisarm,
    ReplicaEffects,
)
from mirrorq.protocol.identities import MemberId, SessionId
from mirrorq.protocol.policy import Definition
from mirrorq.protocol.sessions import SessionReply, SessionRequest
from mirrorq.protocol.views import find_store, view_text
from mirrorq.replication import events
from mirrorq.replication.disk_budget import Room
from mirrorq.replication.master.courier import courier_number, is_courier, source_of
from mirrorq.replication.master.master import Master
from mirrorq.replication.master.term import Lease
from mirrorq.replication.replica import Replica
from mirrorq.replication.state.pages import PageCache

EARLY_COUNT_MAX = 1000
"""Limit on stored requests of a term not known here yet. A handle whose request was dropped
attaches again after failure_ms."""
LEFTOVER_FACTOR = 5
"""A copy that no view names any more is kept for so many failure_ms. A member that leaves for a
moment, by a policy or a broken connection, then needs only a delta."""
CROWD_FACTOR = 5
"""The crowd stays together for so many failure_ms after the last news of it."""
RUN_MAX = 64
"""Copies stepped in one step of the engine. A lower limit means more commits."""
TOLD_MAX = 64
"""Per step: queues whose handles are notified of the master, and copies that are notified of
catalog changes."""
NEVER_MS = -(1 << 62)
"""Earlier than every time."""
TICK = events.Tick()
ORDINARY = (False,) * 5
"""The usual standing of a copy: see `_note_standing`."""


class _Targets:
    """The information that queues get about each other; see `courier.Targets`."""

    def __init__(self, hosting: Hosting) -> None:
        self._hosting = hosting
        self._counter = 0

    def find(self, name: str) -> int:
        catalog = self._hosting.catalog
        sharded = catalog.sharded_named(name)
        if sharded is not None:
            # The key of the message is not known here, so the shards take turns.
            self._counter += 1
            rings = [ring for ring in sharded.rings if catalog.queue(ring) is not None]
            running = [ring for ring in rings if (self.serving(ring) or (0, False))[1]] or rings
            return 0 if sharded.is_ending else running[self._counter % len(running)]
        record = catalog.queue_named(name)
        return 0 if record is None or record.is_ending else record.id

    def serving(self, queue_id: int) -> tuple[int, bool] | None:
        catalog = self._hosting.catalog
        record = catalog.queue(queue_id)
        if record is None:
            return None if catalog.is_deleted(queue_id) else (0, False)
        return record.view.master_epoch, self._hosting.is_alive(record.view.members[0].id)

    def name(self, queue_id: int) -> str:
        return self._hosting.catalog.name_of(queue_id)

    def session_number(self, queue_id: int) -> int:
        self._counter += 1
        return courier_number(queue_id, self._counter)


class Hosting:
    """All queues of which the node has a copy or a handle."""

    def __init__(
        self,
        me: MemberId,
        config: Config,
        codec: OpCodec,
        images: Iterable[QueueImage],
        catalog: Catalog,
        requests: CatalogRequests,
        is_alive: Callable[[MemberId], bool],
        read_page: PageReader | None = None,
    ) -> None:
        """Continue from the copies on disk.

        Args:
            read_page: reads pages of the node's disk.
            catalog: replaced when a snapshot is installed.
            requests: takes requests to the catalog.
            is_alive: returns true if an incarnation of a node runs, as far as known here.
        """
        self.me = me
        self.catalog = catalog
        self.is_alive = is_alive
        self.replicas: dict[int, Replica] = {}
        self.images = {image.queue_id: image for image in images}
        """Copies on disk that no view has named since the start."""
        self.lease = Lease()
        self.room = Room(most=config.store_bytes_max // 4 * 3, node=me.node)
        """Set by the driver before each step."""
        self.cache = PageCache(read_page)
        """Shared by all queues."""
        self.rounds = CommitBatches()
        self.sessions = LocalSessions()
        self.reports = QueueReports()
        self.sync_reports = SyncReports(me)
        self.promises: list[Yielded] = []
        """Promises to send to the catalog's leader."""
        self.has_asked = False
        """True if copies have made requests to the catalog in this step."""
        self.news = News()
        """Queues whose handles may need to learn of a new master."""
        self._config = config
        self._codec = codec
        self._requests = requests
        self._orphans = OrphanedCopies(LEFTOVER_FACTOR * config.failure_ms)
        self._targets = _Targets(self)
        self._early: list[SessionRequest] = []
        """Requests of a term not known here yet."""
        self.inbox: dict[int, list[events.ReplicaEvent]] = {}
        """Events for copies since their last step."""
        self._at_once: dict[int, None] = {}
        """Copies to be stepped before the engine's step ends."""
        self.runs_all = False
        """True if the next step of the engine must step all copies: the step may be the last."""
        self.due = Deadlines()
        """When each copy is to be stepped next, if no event comes."""
        self.stepped: Iterable[int] = ()
        """Queues whose copies were stepped in the last step of the engine."""
        self.led: Sequence[Replica] = ()
        """The masters among the stepped copies, and copies that were masters before the step."""
        self.handing_until_ms = NEVER_MS
        """A queue here wants the lease until then, if no queue has new work."""
        self._broken = {i: None for i, image in self.images.items() if image.broken}
        self._begin_notes()

    def _begin_notes(self) -> None:
        """Set up the indexes of queues by kind, so that no step scans all queues."""
        self.holding: dict[int, None] = {}
        """Queues that hold messages back from the store (`durability: replicated`)."""
        self._joining: dict[int, None] = {}
        """Queues whose copy here is a member that is not in sync."""
        self._neighbours: dict[int, None] = {}
        """Queues whose master here exchanges messages with other queues, in either direction."""
        self.mending: dict[int, None] = {}
        """Queues whose copy here is in sync and has damaged bodies."""
        self.damage_count = 0
        """Damaged frames found since the start."""
        self._crowd: dict[int, None] = {}
        """Copies that a connection or a new view has concerned lately: see `_take_portion`."""
        self._crowd_news: dict[int, None] = {}
        """The same, since the last step."""
        self._crowd_until_ms = NEVER_MS
        self._handing: dict[int, int] = {}
        """Queue mastered here -> time until which the queue wants the lease."""
        self.is_handing_stale = False
        """True if a master here has ended, so `handing_until_ms` may be out of date."""
        self._asked_to_yield: dict[int, None] = {}
        """Queues whose yield the leader waits for in this step."""
        self._yielding: dict[int, None] = {}
        """Queues that a master here has yielded in their epoch."""
        self._kinds = (
            self.holding,
            self._joining,
            self.mending,
            self._yielding,
            self._neighbours,
        )
        self._standing: dict[int, tuple[bool, ...]] = {}
        """Queue -> its kinds. Queues of no kind are left out."""
        self._definitions: dict[int, Definition] = {}
        """Definitions last sent to the copies here."""
        self.redefining: dict[int, None] = {}
        """Queues whose definition may have changed."""
        self.changed: dict[int, None] = {}
        """Queues whose copies have not been notified of catalog changes yet."""
        self.tells_left = TOLD_MAX
        """Remaining number of copies that may be notified in this step."""
        self._told_epochs: dict[int, int] = {}
        """Epochs of the views that have been reported to listeners."""
        self.out = EngineEffects()
        """Effects of the engine's current step."""

    # --- The step -------------------------------------------------------------------------

    def begin_step(self, out: EngineEffects) -> None:
        """Begin a step of the engine."""
        self.out = out
        self.stepped = self.led = ()
        self.tells_left = TOLD_MAX

    @property
    def broken(self) -> tuple[int, ...]:
        """Queues whose copies on disk are unreadable and must be fetched from other members."""
        if not self._broken:
            return ()
        for queue_id in list(self._broken):
            copy = self.replicas.get(queue_id) or self.images.get(queue_id)
            if copy is None or not copy.broken:
                del self._broken[queue_id]
        return tuple(self._broken)

    def count_held_back(self) -> None:
        """Reserve room in the store for messages that are held back."""
        for queue_id in self.holding:
            self.room.hold(self.replicas[queue_id].ring.log.append_cost)

    def post(self, queue_id: int, event: events.ReplicaEvent) -> None:
        """Add an event for a queue; drop it when there is no copy here. Catalog changes are
        delivered to the copy first."""
        if queue_id in self.changed:
            self._tell_changed(queue_id)
        if queue_id in self.replicas:
            self.inbox.setdefault(queue_id, []).append(event)

    def post_at_once(self, queue_id: int, event: events.ReplicaEvent) -> None:
        """Add an event of the rail. The copy is stepped in this step, however many copies wait,
        because the rail's ops count as written with the step."""
        self._at_once[queue_id] = None
        self.post(queue_id, event)

    def ask_to_yield(self, queue_id: int, epoch: int) -> None:
        """Ask the copy here to stop deliveries in an epoch and to confirm the end to the leader."""
        if queue_id in self.replicas:
            self.post(queue_id, events.YieldAsked(epoch))
            self._asked_to_yield[queue_id] = None

    def post_all(self, event: events.ReplicaEvent) -> None:
        for queue_id in self.replicas:
            self.inbox.setdefault(queue_id, []).append(event)

    def post_masters(
        self, event: events.ReplicaEvent, is_concerned: Callable[[Master], bool]
    ) -> None:
        """Add an event for the masters that it concerns: most need no step. Copies with events are
        included, because an event of the step may make a copy master."""
        inbox = self.inbox
        for queue_id in {**self._handing, **inbox}:
            master = self.replicas[queue_id].master
            if queue_id in inbox or (master is not None and is_concerned(master)):
                inbox.setdefault(queue_id, []).append(event)

    def post_node_gone(self, node: str, incarnation: int | None = None) -> None:
        """Tell masters with users on a node that it is gone, or its older incarnations are."""
        gone = events.NodeGone(node, incarnation)
        self.post_masters(gone, lambda master: master.may_have_users(node))

    def step_copies(self, now_ms: int, steady_us: int) -> None:
        """Step the copies that have events."""
        if self.due.next_ms <= now_ms:
            # Copies that are due have the room that copies with events leave, and an eighth at
            # least. After a node's death thousands of queues change hands: repeated marks and
            # checkpoints of the first queues must not delay the last.
            most = max(RUN_MAX - len(self.inbox), RUN_MAX // 8, 1)
            for queue_id in self.due.take_due(now_ms, most):
                self.inbox.setdefault(queue_id, []).append(TICK)
        self._gather_crowd(now_ms)
        self.stepped = inbox = self._take_portion()
        self.led = led = list[Replica]()
        for queue_id, inputs in inbox.items():
            replica = self.replicas.get(queue_id)
            if replica is not None:
                was_master = replica.master
                effects = replica.step(now_ms, steady_us, *inputs)
                if was_master is not None or replica.master is not None:
                    led.append(replica)
                    self._note_handing(replica, was_master)
                self._carry_out(replica, effects)
        if self._asked_to_yield:
            asked, self._asked_to_yield = self._asked_to_yield, {}
            for queue_id in asked:
                replica = self.replicas.get(queue_id)
                if queue_id in self.inbox:
                    self._asked_to_yield[queue_id] = None
                elif replica is not None:
                    self._promise(replica)
        if self.is_handing_stale:
            self.is_handing_stale = False
            self.handing_until_ms = max(self._handing.values(), default=NEVER_MS)

    def _gather_crowd(self, now_ms: int) -> None:
        if now_ms >= self._crowd_until_ms:
            self._crowd.clear()
        if self._crowd_news:
            self._crowd.update(self._crowd_news)
            self._crowd_news.clear()
            self._crowd_until_ms = now_ms + CROWD_FACTOR * self._config.failure_ms

    def _take_portion(self) -> dict[int, list[events.ReplicaEvent]]:
        """Take the events of the copies to step now. The engine steps again at once while events
        are left.

        The copy that waits longest is first. Copies outside the crowd have up to half of the room:
        a queue that a node's death does not concern does not wait for thousands that it does.
        """
        at_once, self._at_once = self._at_once, {}
        inbox = self.inbox
        chosen: Iterable[int] = tuple(inbox)
        if len(inbox) > RUN_MAX and not self.runs_all:
            apart = islice(filterfalse(self._crowd.__contains__, inbox), RUN_MAX // 2)
            first = dict.fromkeys((*filter(inbox.__contains__, at_once), *apart))
            most = max(RUN_MAX - len(first), RUN_MAX // 2)
            chosen = (*first, *islice(filterfalse(first.__contains__, inbox), most))
        self.runs_all = False
        if self.changed:
            # No copy is stepped with an older view than the catalog's.
            for queue_id in filter(self.changed.__contains__, chosen):
                self._tell_changed(queue_id)
        taken = dict.fromkeys(chosen)
        return {queue_id: inbox.pop(queue_id) for queue_id in taken if queue_id in inbox}

    def _note_handing(self, replica: Replica, was_master: Master | None) -> None:
        master = replica.master
        if was_master is not None and master is not was_master:
            self.is_handing_stale = True
            self._handing.pop(replica.queue_id, None)
        if master is not None:
            wanted_ms = self._handing[replica.queue_id] = master.lease_wanted_until_ms
            self.handing_until_ms = max(self.handing_until_ms, wanted_ms)

    def promise_again(self) -> None:
        """Repeat to the leader, until the view changes, that deliveries in the epoch have ended."""
        for queue_id in self._yielding:
            self._promise(self.replicas[queue_id])

    def _promise(self, replica: Replica) -> None:
        epoch = replica.yielded_epoch
        if epoch is not None:
            self.promises.append(Yielded(replica.queue_id, epoch, self.me))

    def _carry_out(self, replica: Replica, effects: ReplicaEffects) -> None:
        out, queue_id = self.out, replica.queue_id
        for member, message in effects.send:
            out.send_first.append((member.node, message))
        if effects.write is not None:
            out.writes.append(effects.write)
            self.rounds.note_write(queue_id, effects.write_number)
        for donor, fetch in effects.reads:
            out.reads.append((donor.node, fetch))
        for reply in effects.replies:
            self.take_reply(reply)
        for request in effects.requests:
            self.route(request)
        if effects.rail is not None:
            out.rail.append((queue_id, effects.rail))
        if effects.loads or effects.notices:
            self._carry_out_loads(queue_id, effects)
        if effects.propose is not None or effects.commands:
            wishes = () if effects.propose is None else (effects.propose,)
            for command in (*wishes, *effects.commands):
                self._requests.wish(command)
            self.has_asked = True
        self._note_standing(replica)
        self.reports.note_step(queue_id)
        self.due.set(queue_id, effects.wake_at_ms)

    def _note_standing(self, replica: Replica) -> None:
        """Update the kinds of a queue. In most steps nothing changes."""
        ring, master, queue_id = replica.ring, replica.master, replica.queue_id
        if ring.in_sync and not ring.log.append_cost and queue_id not in self._standing:
            is_known = master is not None and (master.has_yielded or master.has_neighbours)
            if not (is_known or replica.transfer.missing):
                return
        standing = (
            ring.log.append_cost > 0,
            ring.is_member and not ring.in_sync,
            ring.in_sync and bool(replica.transfer.missing),
            master is not None and master.has_yielded,
            master is not None and master.has_neighbours,
        )
        if standing != self._standing.get(queue_id, ORDINARY):
            if standing == ORDINARY:
                del self._standing[queue_id]
            else:
                self._standing[queue_id] = standing
            for queues, is_one in zip(self._kinds, standing, strict=True):
                _keep(queues, queue_id, is_one)

    def _carry_out_loads(self, queue_id: int, effects: ReplicaEffects) -> None:
        """Add effects that need queue names: loads for other queues, notices for listeners."""
        out = self.out
        record = self.catalog.queue(queue_id)
        for load in effects.loads:
            target = self.catalog.queue(load.target)
            names = (known.name if known is not None else "" for known in (record, target))
            out.loads.append(evolve(load, queue=next(names), target_name=next(names)))
        for kind, text in effects.notices:
            self.damage_count += kind == events.DAMAGE
            name = record.name if record is not None else queue_id
            out.notices.append(Notice(kind, f"queue {name!r}: {text}", queue_id))

    def take_reports(self, now_ms: int) -> list[object]:
        """Return the reports on the copies here that all nodes need for `status()`."""
        joining = self.sync_reports.due(now_ms, self._joining, self.replicas)
        return [*joining, *self.reports.due(self.replicas)]

    def on_committed(self, committed: CommitBatch) -> None:
        for queue_id, write_number in committed.writes:
            self.post(queue_id, Persisted(write_number))

    def on_link(self, node: str) -> None:
        """Handle a new connection: messages on the way may have been lost with the one before."""
        inbox, event = self.inbox, events.LinkLost(node)
        for queue_id in {**inbox, **self._crowd_at(node)}:
            inbox.setdefault(queue_id, []).append(event)
        self._tell_users_of(node)

    def on_link_down(self, node: str) -> None:
        """Handle a lost connection. Rings repeat nothing before there is a new one."""
        self._crowd_at(node)
        self.post_masters(events.LinkLost(node), lambda master: master.may_have_users(node))
        self._tell_users_of(node)

    def _crowd_at(self, node: str) -> dict[int, None]:
        """Count the copies that a node's connection concerns to the crowd, and return them."""
        copies = self.replicas.items()
        linked = dict.fromkeys(queue_id for queue_id, one in copies if one.is_linked_to(node))
        self._crowd_news.update(linked)
        return linked

    def _tell_users_of(self, node: str) -> None:
        """Tell users of the queues that the node is the master of."""
        for queue_id in self.sessions.queues():
            if self._is_mastered_by(queue_id, node):
                self.out.changes.append(MasterLinkLost(queue_id))
        for queue_id in self._neighbours:
            master = self.replicas[queue_id].master
            for target in () if master is None else master.departures.couriers.targets:
                if self._is_mastered_by(target, node):
                    self.post(queue_id, events.TargetLinkLost(target))

    def _is_mastered_by(self, queue_id: int, node: str) -> bool:
        record = self.catalog.queue(queue_id)
        return record is not None and record.view.members[0].id.node == node

    # --- What the catalog says ------------------------------------------------------------

    def on_catalog_replaced(self, catalog: Catalog) -> None:
        """Take the catalog of a snapshot, or the node's own at its start.

        A queue declared after the snapshot is in the entries behind it. The queue's copy may be on
        this disk already.
        """
        self.catalog = catalog
        self.news.of_all = True
        for queues in (self.replicas, self.images, catalog.queue_ids()):
            self.changed.update(dict.fromkeys(queues))

    def note_changed(self, queues: Iterable[int]) -> None:
        """Note queues that were declared, redefined, deleted or given a view. Most copies here are
        notified at once."""
        self.changed.update(dict.fromkeys(queues))
        self.tell_changed()

    def tell_changed(self) -> None:
        """Notify copies of catalog changes, at most `TOLD_MAX` in a step."""
        for queue_id in list(islice(self.changed, self.tells_left)):
            self.tells_left -= 1
            self._tell_changed(queue_id)

    def _tell_changed(self, queue_id: int) -> None:
        self.changed.pop(queue_id, None)
        record = self.catalog.queue(queue_id)
        self.news.queues[queue_id] = None
        if record is None:
            # A queue declared after the snapshot is in the log behind it.
            if self.catalog.is_deleted(queue_id):
                self._drop(queue_id)
        else:
            if self._is_ownerless(record):
                self._requests.wish(DeleteQueue(record.id))
            has_copy = queue_id in self.replicas or queue_id in self.images
            is_named = find_store(record.view, self.me.node, self.me.store) is not None
            self._orphans.mark(queue_id, has_copy and not is_named)
            replica = self._copy_for(record)
            if replica is not None:
                self._tell_copy(replica, record)
        self._take_early(queue_id)

    def note_policies(self) -> None:
        """Note a change of policies: the definition of every copy here may have changed."""
        self.redefining.update(dict.fromkeys(self.replicas))

    def redefine(self) -> None:
        """Notify copies whose definition has changed, at most `TOLD_MAX` at a time."""
        for queue_id in list(islice(self.redefining, TOLD_MAX)):
            del self.redefining[queue_id]
            record = self.catalog.queue(queue_id)
            if record is None or queue_id not in self.replicas:
                continue
            if self.catalog.definition_of(record.name) != self._definitions.get(queue_id):
                self._tell_changed(queue_id)

    def _copy_for(self, record: QueueRecord) -> Replica | None:
        """Return the node's copy of a queue. Make a copy if the view names the node."""
        replica = self.replicas.get(record.id)
        is_mine = any(member.id == self.me for member in record.view.members)
        if replica is None and is_mine:
            image = self.images.pop(record.id, QueueImage(record.id))
            replica = self.replicas[record.id] = Replica(
                self.me,
                record.id,
                self._config,
                self._codec,
                image,
                self.lease,
                self.room,
                self._targets,
                self.cache,
            )
        return replica

    def _tell_copy(self, replica: Replica, record: QueueRecord) -> None:
        was_master = replica.is_master
        queue_id = record.id
        report = self.reports.get(queue_id)
        if report is not None:
            replica.reported = report[0]
        definition = self.catalog.definition_of(record.name)
        self._definitions[queue_id] = definition
        self.post(queue_id, events.Defined(definition))
        has_outbox = self.catalog.may_have_outbox(record)
        if record.auto_delete or has_outbox or record.connection:
            known = (record.was_consumed, record.is_ending, has_outbox, record.connection)
            self.post(queue_id, events.Declared(record.auto_delete, *known))
        self.post(queue_id, events.Fetching(self.me in self.catalog.synchronising(queue_id)))
        self.post(queue_id, events.ViewInstalled(record.view))
        self._crowd_news[queue_id] = None
        if record.view.members[0].id == self.me and not was_master:
            text = f"master of queue {record.name!r} at epoch {record.view.epoch}"
            self.out.notices.append(Notice("became master", text, queue_id))
        if self._told_epochs.get(queue_id, 0) < record.view.epoch:
            self._told_epochs[queue_id] = record.view.epoch
            text = f"queue {record.name!r}: {view_text(record.view)}"
            self.out.notices.append(Notice("view", text, queue_id))

    def _drop(self, queue_id: int) -> None:
        """Drop a deleted queue: its store is emptied."""
        self.drop_copy(queue_id)
        self.reports.drop(queue_id)
        self.sync_reports.drop(queue_id)
        self._tell(self.sessions.tell_deleted(queue_id))

    def drop_copy(self, queue_id: int) -> None:
        """Remove the node's copy of a queue, on disk and in memory."""
        self._orphans.mark(queue_id, False)
        self.images.pop(queue_id, None)
        self.inbox.pop(queue_id, None)
        self._told_epochs.pop(queue_id, None)
        self._definitions.pop(queue_id, None)
        self.due.set(queue_id, None)
        self.reports.drop_copy(queue_id)
        replica = self.replicas.pop(queue_id, None)
        if replica is not None:
            self.out.rail.append((queue_id, RailDisarm()))
            self.is_handing_stale = True
            self._handing.pop(queue_id, None)
            if replica.master is not None:
                for request in replica.master.departures.couriers.end_term():
                    self.route(request)
        self._standing.pop(queue_id, None)
        for queues in self._kinds:
            queues.pop(queue_id, None)
        self.rounds.forget(queue_id)
        self.out.writes.append(QueueWrite(queue_id, reset=True))

    def ask_for_leftovers(self, now_ms: int) -> None:
        """Ask the leader to drop copies that no view names."""
        for queue_id in self._orphans.due(now_ms):
            record = self.catalog.queue(queue_id)
            if record is not None:
                self._requests.wish(DropCopy(queue_id, record.view.epoch, self.me))

    # --- Handles on this node -------------------------------------------------------------

    def open_session(self, session: SessionId, queue_id: int) -> None:
        self.sessions.open(session, queue_id)
        self.news.queues[queue_id] = None

    def close_session(self, session: SessionId, queue_id: int) -> None:
        self.sessions.close(session, queue_id)
        self.post(queue_id, events.SessionGone(session))
        self.end_owner(session)

    def end_owner(self, owner: SessionId) -> None:
        """End a handle's exclusive queue: the handle is closed, or its declaration has failed."""
        if self.sessions.disown(owner):
            for queue_id in self.catalog.load_counts.of_handles.get(owner, ()):
                self._requests.wish(DeleteQueue(queue_id))

    def _is_ownerless(self, record: QueueRecord) -> bool:
        """Return true if the owner was a handle on this incarnation of the node and is closed."""
        return (
            record.owner is not None
            and record.owner_incarnation == self.me
            and not self.sessions.is_owner(record.owner)
        )

    def note_liveness(self, news: LivenessNews) -> None:
        """Note nodes whose liveness has changed: handles of their queues may need news."""
        self.news.of_all |= news.of_all
        ends = (node for link in news.links for node in link)
        self.note_nodes((*news.nodes, *ends))

    def note_nodes(self, nodes: Iterable[str]) -> None:
        """Note a change of nodes: handles of the queues mastered there may need news."""
        for node in nodes:
            self.news.queues.update(self.catalog.load_counts.masters.get(node, {}))

    def tell_masters(self) -> None:
        """Notify local handles and neighbour queues of changed masters, at most `TOLD_MAX` queues
        at a time."""
        news = self.news
        if news.of_all:
            news.queues.update(dict.fromkeys(self.sessions.queues()))
            news.of_all = False
            self._tell_neighbours(None)
        told = list(islice(news.queues, TOLD_MAX))
        for queue_id in told:
            del news.queues[queue_id]
        self._tell_neighbours(told)
        for queue_id in self.sessions.among(told):
            record = self.catalog.queue(queue_id)
            if record is None:
                # The queue may have gone between its declaration and the opening of the handle.
                if self.catalog.is_deleted(queue_id):
                    self._tell(self.sessions.tell(queue_id, *NO_MORE))
            elif record.is_ending:
                # Users are done with the queue; only its outbox to other queues is left.
                self._tell(self.sessions.tell(queue_id, *NO_MORE))
            else:
                is_available = self.is_alive(record.view.members[0].id)
                self._tell(self.sessions.tell(queue_id, record.view.master_epoch, is_available))

    def _tell_neighbours(self, queues: Sequence[int] | None) -> None:
        """Notify queues here that exchange messages with changed queues.

        Args:
            queues: the changed queues. None: all may have changed.
        """
        for queue_id in self._neighbours:
            master = self.replicas[queue_id].master
            if queues is None:
                self.post(queue_id, events.NeighboursChanged(None))
            elif master is not None:
                changed = tuple(filter(master.knows, queues))
                if changed:
                    self.post(queue_id, events.NeighboursChanged(changed))

    def _tell(self, change: MasterChange | None) -> None:
        if change is not None:
            self.out.changes.append(change)

    # --- Requests and replies -------------------------------------------------------------

    def route(self, request: SessionRequest) -> None:
        """Send a request to the queue's master on any node. The master drops a stale epoch."""
        record = self.catalog.queue(request.queue_id)
        if record is None:
            return
        master = record.view.members[0].id
        if master == self.me:
            self.post(request.queue_id, events.Requested(request))
        else:
            self.out.send.append((master.node, request))

    def take_request(self, request: SessionRequest) -> None:
        """Take a request of another node. The other node may learn of a view before this node."""
        record = self.catalog.queue(request.queue_id)
        if record is None:
            is_early = not self.catalog.is_deleted(request.queue_id)
        else:
            is_early = record.view.master_epoch < request.epoch
        if not is_early:
            self.post(request.queue_id, events.Requested(request))
        elif len(self._early) < EARLY_COUNT_MAX:
            self._early.append(request)

    def _take_early(self, queue_id: int) -> None:
        """Take the requests that waited for a queue's new view."""
        if self._early:
            early, self._early = self._early, []
            for request in early:
                if request.queue_id == queue_id:
                    self.take_request(request)
                else:
                    self._early.append(request)

    def take_reply(self, reply: SessionReply) -> None:
        """Deliver a reply of any master to a local handle, or to a courier."""
        session, me = reply.session, self.me
        if not is_courier(session):
            self.out.replies.append(reply)
        elif session.node != me.node:
            self.out.send_first.append((session.node, reply))
        elif session.incarnation == me.incarnation:
            self.post(source_of(session), events.CourierReplied(reply))


def _keep(queues: dict[int, None], queue_id: int, is_one: bool) -> None:
    """Add the queue to a kind, or remove it."""
    if is_one:
        queues[queue_id] = None
    elif queue_id in queues:
        del queues[queue_id]
