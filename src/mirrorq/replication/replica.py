"""A replica: passes events, marks, stable ops and the end of a step to its parts."""

from __future__ import annotations

from typing import Any

from mirrorq.config import Config
from mirrorq.containers.ranges import Range, RangeSet
from mirrorq.containers.timers import FOREVER_MS, Timers, earliest
from mirrorq.protocol.codec import OpCodec
from mirrorq.protocol.control import QueueReport
from mirrorq.protocol.effects import OutboxLoaded, Persisted, QueueImage, ReplicaEffects
from mirrorq.protocol.identities import MemberId
from mirrorq.protocol.ops import Entry, PromotedOp, UnknownOp
from mirrorq.protocol.policy import DEFAULT
from mirrorq.protocol.ring import (
    Data,
    FetchFrames,
    FrameChunk,
    History,
    HistoryRequest,
    JoinerDurable,
    Mark,
    Repaired,
    ResendFrom,
    RingMessage,
    TooOld,
    TransferRequest,
    TransferState,
    Watermark,
)
from mirrorq.protocol.views import View, is_in_sync
from mirrorq.replication import events
from mirrorq.replication.checkpoints import Checkpoints
from mirrorq.replication.counters import Tally
from mirrorq.replication.disk_budget import Room
from mirrorq.replication.donor import Donor
from mirrorq.replication.master.courier import Targets
from mirrorq.replication.master.master import Master
from mirrorq.replication.master.term import Lease
from mirrorq.replication.membership import Membership
from mirrorq.replication.rail import RailGuard
from mirrorq.replication.ring import Ring
from mirrorq.replication.state.pages import PageCache
from mirrorq.replication.state.queue_state import QueueState
from mirrorq.replication.transfer import Transfer
from mirrorq.replication.writes import Writes, quiet_tick_ms

ROOM_LOOK_MS = 50
"""Time between two looks for room, after a frame was refused for want of room."""
LOST_PIECES = 512
"""Lost ranges that the op of an unclean promotion names. Beyond, stretches around them."""
NO_ROOM_MS = 1000
NO_ROOM_MS_MAX = 10_000
"""A joining member without room for the next frame takes the state again after the first time.
Later waits double, up to the second time."""
_NONE: Any = ()
NO_EFFECTS = ReplicaEffects(_NONE, None, 0, _NONE, _NONE, _NONE, _NONE, None, _NONE, _NONE)
"""Effects of a copy between two steps: nothing can be put into them."""


class Replica:
    """A member's copy of a queue."""

    __slots__ = (
        "_cache", "_codec", "_config", "_declared", "_donor", "_is_preparing", "_is_ticking",
        "_lease", "_membership", "_next_tick_ms", "_no_room_ms", "_rail", "_room_look", "_targets",
        "_tick", "_wanted_room_ms", "_writes", "broken", "definition", "halted", "master",
        "may_fetch", "me", "queue_id", "reported", "ring", "room", "state", "tally", "timers",
        "transfer",
    )  # fmt: skip
    """A dict of so many fields is 1.6 kB, for each copy on a node."""

    def __init__(
        self,
        me: MemberId,
        queue_id: int,
        config: Config,
        codec: OpCodec,
        image: QueueImage,
        lease: Lease,
        room: Room | None = None,
        targets: Targets | None = None,
        cache: PageCache | None = None,
    ) -> None:
        self.me = me
        self.queue_id = queue_id
        self.broken = image.broken
        """Why the copy on this disk is unusable, or "". The copy takes part in nothing until it
        joins again in a view, from scratch."""
        self.halted = image.broken and f"the copy here is damaged and is not used: {image.broken}"
        """Why this copy has stopped: damage, or an op of a later version."""
        self._cache = cache or PageCache()
        self.state = QueueState.of_image(image, self._cache)
        self.room = room or Room()
        self.timers = Timers()
        """Timers at which parts of this copy want to be woken. A master has its own timers."""
        self._tick, self._room_look = self.timers.new(), self.timers.new()
        self.ring = Ring(
            me,
            queue_id,
            config.joiner_bytes_max,
            self.room,
            config.mark_delay_ms,
            image.time_ahead_us,
            self.timers,
            may_star=config.star,
        )
        self.transfer = Transfer(
            me, queue_id, config.transfer_chunk_bytes, config.sync_bytes_per_s, self._cache
        )
        self._donor = Donor()
        self._config = config
        self._codec = codec
        self._lease = lease
        self._targets = targets
        self._begin()
        stale = image.stale if self.state.is_paged else (*image.stale, *image.pages)
        checkpoints = Checkpoints(stale, image.state_lsn, len(image.state or b""))
        self._writes = Writes(self.ring, self.transfer, config, self.room, checkpoints, self.timers)
        self._membership = Membership(self.ring, config)
        self._rail = RailGuard(self.ring, may_arm=config.rail)
        self._load(image)

    def _begin(self) -> None:
        """Set the fields that other parts fill, or that steps remember."""
        self.master: Master | None = None
        self.tally = Tally()
        """Totals for metrics."""
        self.definition = DEFAULT
        """Definition of the policy in force. Only the master's decisions use it."""
        self._declared = events.Declared(False, False)
        self.may_fetch = True
        """True if a joiner may fetch bodies, by policy or request (`Catalog.synchronising`)."""
        self.reported: QueueReport | None = None
        """Counts of the queue in the last master's report, from which a loss is computed."""
        self._next_tick_ms = 0
        self._wanted_room_ms: int | None = None
        """Time since which there is no room for the next frame; None: there is room."""
        self._no_room_ms = NO_ROOM_MS
        self._is_preparing = False
        """True while the next op waits because snapshots need pages that it changes. Some pages are
        made in each step, until the op can be applied."""
        self._is_ticking = False
        """True if the ring had something to repeat at the end of the last step."""

    def _load(self, image: QueueImage) -> None:
        self.ring.time.record_stamp(self.state.time_us)
        applied = self.state.applied
        stable = max(image.stable, applied)
        self.ring.log.load(image.entries, applied, self.state.history, stable)
        while self.state.applied < min(self.ring.log.stable, self.ring.log.received):
            entry = self.ring.log.entry(self.state.applied + 1)
            assert entry is not None, "the store gives every op after its checkpoint"
            if not self._apply(0, entry):
                break
        self.transfer.compute_missing(self.state, RangeSet(image.lacking))
        self.transfer.note_damaged(image.damaged)

    # --- Queries ------------------------------------------------------------------------

    @property
    def is_master(self) -> bool:
        return self.master is not None

    def is_linked_to(self, node: str) -> bool:
        """Return true if a member of the view, or a user of this master, may be on the node."""
        view, master = self.ring.view, self.master
        is_named = view is not None and any(one.id.node == node for one in view.members)
        return is_named or (master is not None and master.may_have_users(node))

    @property
    def is_serving(self) -> bool:
        """Return true if this copy is the master and its promotion is applied."""
        return self.master is not None and self.master.active

    @property
    def blocked_by(self) -> str:
        """Why publishes wait here, "" when they do not."""
        if self.master is not None:
            return self.master.blocked_by
        return self.room.full_text if self.ring.is_member and self.room.is_short else ""

    @property
    def copied_share(self) -> float:
        """Share of live messages on this disk, 0 to 1. 0 while the live messages are unknown."""
        if not self.ring.has_state:
            return 0.0
        missing, live = self.transfer.missing.count, self.state.live.count
        return 1 - min(missing, live) / live if live else 1.0

    @property
    def yielded_epoch(self) -> int | None:
        """The present epoch, if its master delivers nothing more; else None."""
        master = self.master
        return master.yielded_epoch if master is not None and master.has_yielded else None

    # --- The step -----------------------------------------------------------------------

    def step(self, now_ms: int, steady_us: int, *inputs: events.ReplicaEvent) -> ReplicaEffects:
        out = ReplicaEffects()
        ring, rail = self.ring, self._rail
        ring.out = out
        ring.time.begin_step(steady_us)
        for event in inputs:
            if rail.state:
                self._on_event_beside_rail(now_ms, event)
            elif type(event) is events.RingReceived and not self.broken:
                self._on_ring(now_ms, event.sender, event.message)
            else:
                self._on_event(now_ms, event)
        if not self.halted:
            self._settle(now_ms, out)
            if rail.may_arm:
                rail.settle(now_ms)
        if not self.broken:
            self._writes.make(now_ms, self.state, out)
            if ring.is_placing or self._writes.has_state_come:
                ring.on_placing(is_placing=self._writes.is_placing)
        master = self.master
        if master is not None:
            couriers = master.departures.couriers
            if couriers.requests or couriers.loads:
                out.requests += couriers.requests
                out.loads, couriers.requests, couriers.loads = couriers.loads, [], []
            attachments = master.attachments
            if attachments.replies:
                out.replies, attachments.replies = attachments.replies, []
                self.tally.note_replies(out.replies)
            out.commands = master.take_commands()
        self._set_timers(now_ms)
        is_to_go_on = self._is_preparing and not self.state.is_full
        out.wake_at_ms = self._next_ms(now_ms if is_to_go_on else out.wake_at_ms)
        ring.out = NO_EFFECTS
        return out

    def _on_event_beside_rail(self, now_ms: int, event: events.ReplicaEvent) -> None:
        rail = self._rail
        if type(event) is events.RailStopped:
            for held in rail.on_stopped(now_ms):
                self._on_event(now_ms, held)
        elif type(event) is events.Railed:
            self.ring.on_railed(event.message, is_marked=rail.is_marking)
        elif not rail.holds(event):
            self._on_event(now_ms, event)

    def _on_event(self, now_ms: int, event: events.ReplicaEvent) -> None:
        if self.broken and not isinstance(
            event, events.ViewInstalled | events.Defined | events.Declared | events.Fetching
        ):
            return
        if type(event) is events.RingReceived:
            self._on_ring(now_ms, event.sender, event.message)
            return
        master = self.master
        match event:
            case events.Requested():
                if master is not None:
                    master.on_request(now_ms, event.request)
            case Persisted():
                self.ring.log.on_persisted(event.number)
                self._writes.on_persisted(now_ms, event.number, self.state)
                for first, last in self.transfer.on_written(event.number):
                    named = _messages_text(first, last)
                    text = f"fetched, and whole again on this disk: {named}"
                    self.ring.out.notices.append((events.MENDED, text))
            case events.Tick():
                if now_ms >= self._next_tick_ms:
                    self._next_tick_ms = self._tick_after(now_ms)
                    self.ring.on_tick()
                    self._donor.on_tick(now_ms)
                    self._membership.sample(now_ms)
            case events.FrameDamaged():
                self._on_damage(now_ms, event)
            case events.ViewInstalled():
                self._install(now_ms, event.view)
            case events.Defined():
                self.definition = event.definition
                if master is not None:
                    master.define(event.definition)
            case events.Declared():
                self._declared = event
                self._declare(now_ms)
            case events.Fetching():
                self.may_fetch = event.allowed
            case events.LeaseChanged():
                pass  # The end of the step delivers and confirms all that is due.
            case events.LinkLost():
                self.ring.on_link_lost(event.node)
                self.transfer.on_link_lost(event.node)
                if master is not None:
                    master.on_link_lost(now_ms, event.node)
            case events.WriteAll():
                self._writes.end_behind()
            case _:
                if master is not None:
                    self._tell_master(now_ms, master, event)

    def _tell_master(self, now_ms: int, master: Master, event: events.ReplicaEvent) -> None:
        """Pass on an event that concerns only a master."""
        couriers = master.departures.couriers
        match event:
            case events.CourierReplied():
                couriers.on_reply(event.reply)
            case OutboxLoaded():
                couriers.on_loaded(now_ms, event)
            case events.TargetLinkLost():
                couriers.on_target_link_lost(event.target)
            case events.NeighboursChanged():
                master.on_neighbours_changed(event.queues)
            case events.NodeGone():
                master.on_node_gone(now_ms, event.node, event.incarnation)
            case events.SessionGone():
                master.on_session_gone(event.session)
            case events.SubscriptionExpelled():
                master.on_expelled(event.session, event.consumer, event.why)
            case events.Undelivered():
                master.deliveries.on_undelivered(event.session, event.deliver)
            case events.YieldAsked():
                # The event means nothing in another epoch: the leader asks again.
                if event.epoch == self.ring.epoch:
                    master.yielded_epoch = event.epoch

    def _on_ring(self, now_ms: int, sender: MemberId, message: RingMessage) -> None:
        ring = self.ring
        if ring.view is None or message.epoch != ring.epoch:
            if type(message) is History:
                ring.keep_early(sender, message)
            return
        match message:
            case Data():
                ring.on_data(sender, message)
            case Mark():
                ring.on_mark(sender, message)
            case Watermark():
                ring.on_watermark(sender, message)
            case JoinerDurable():
                ring.on_joiner_durable(sender, message)
            case History():
                received = ring.log.received
                if ring.on_history(sender, message):
                    self._on_repaired(now_ms, received)
            case HistoryRequest():
                ring.on_history_request(sender, message)
            case Repaired():
                ring.on_repaired(sender, message)
            case ResendFrom():
                ring.on_resend(sender, message)
            case TooOld():
                if ring.too_old(sender, message):
                    ring.has_state = False
            case TransferRequest():
                self._give_state(now_ms, sender, message)
            case TransferState():
                self._take_state(now_ms, message)
            case FetchFrames():
                if ring.is_member:
                    # A joining member, too, may have the frames: the requester knows its needs.
                    ring.out.reads.append((sender, message))
            case FrameChunk():
                self._take_chunk(now_ms, message)

    # --- Views --------------------------------------------------------------------------

    def _install(self, now_ms: int, view: View) -> None:
        ring = self.ring
        if ring.view is not None and view.epoch <= ring.view.epoch:
            return
        if self.broken:
            if is_in_sync(view, self.me):
                return  # An unusable copy leads and vouches for nothing.
            self.broken = self.halted = ""
            self._start_over()
        ring.install(view)
        self._wanted_room_ms, self._no_room_ms = None, NO_ROOM_MS
        self.transfer.forget()
        if ring.in_sync:
            self._writes.drop_retained()
        self._donor.forget()
        self._next_tick_ms = self._tick_after(now_ms)
        before = self.master
        if not ring.is_master:
            self.master = None
        elif self.master is None or self.master.master_epoch != view.master_epoch:
            self._begin_term(now_ms, view)
        if before is not None and before is not self.master:
            ring.out.requests += before.departures.couriers.end_term()
        early = ring.take_early()
        if early is not None:
            self._on_ring(now_ms, *early)

    def _begin_term(self, now_ms: int, view: View) -> None:
        master = Master(
            self.ring,
            self.state,
            view.master_epoch,
            self._config,
            self._codec,
            self._lease,
            self.transfer,
            self.room,
            self._targets,
        )
        master.define(self.definition)
        self.master = master
        self._declare(now_ms)
        if self.halted:
            return
        master.propose_first(now_ms, self._promoted(view))

    def _declare(self, now_ms: int) -> None:
        if self.master is not None:
            self.master.declare(now_ms, self._declared)

    def _promoted(self, view: View) -> PromotedOp:
        """The term's first op. Unclean when the view's last unclean promotion is not in this log.
        Then it begins now, or its first master died before the op was stable."""
        begun = self.state.generation
        for entry in self.ring.log.entries:
            if isinstance(entry.payload, PromotedOp):
                begun = max(begun, entry.payload.generation)
        if begun >= view.generation:
            return PromotedOp("cold" if view.how == "cold" else "clean")
        lost = self.transfer.given_up()
        for entry in self._writes.chunk:
            lost.remove(entry.header.first_sequence, entry.header.last_sequence)
        count = max(lost.count, self._lost_by_report(lost.count))
        ranges = self._lost_ranges(lost)
        return PromotedOp("unclean", view.generation, view.master_epoch, ranges, count)

    def _lost_by_report(self, known: int) -> int:
        """Lost messages according to the last master's report. Acked messages may live here again,
        so the difference of counts is not enough. All messages with sequences beyond this log are
        lost."""
        report = self.reported
        if report is None:
            return 0
        had = report.ready + report.unacknowledged + report.delayed
        unapplied = (
            e for e in self.ring.log.entries if e.lsn > self.state.applied and e.payload is None
        )
        kept = self.state.live.count - known + sum(e.header.count for e in unapplied)
        beyond = max(report.next_sequence - self._last_sequence_in_log() - 1, 0)
        return max(had - kept, min(had, known + beyond))

    def _lost_ranges(self, lost: RangeSet) -> tuple[Range, ...]:
        """Ranges that the op names as lost. Too many ranges are replaced by the stretches around
        them, in which no other message lives. (With staged bodies, which lie under other sequences,
        ranges are always named.)"""
        if len(lost) <= LOST_PIECES or self.state.staging:
            return tuple(lost)
        lacking = self.transfer.lacking.copy()
        for entry in self._writes.chunk:
            lacking.remove(entry.header.first_sequence, entry.header.last_sequence)
        return tuple(lacking)

    def _on_repaired(self, now_ms: int, received: int) -> None:
        """Act on a repaired log. Before the repair the log went up to `received`."""
        ring = self.ring
        is_new_past = ring.view is not None and ring.view.generation > self.state.generation
        if is_new_past and ring.log.received < received:
            text = _dropped_text(ring.log.received, received, self.state)
            ring.out.notices.append(("copy dropped", text))
        elif ring.log.received < self.state.applied:
            assert ring.view is not None
            master = ring.view.members[0].id.node
            text = _set_back_text(master, ring.log.received, self.state)
            ring.out.notices.append(("copy dropped", text))
        if ring.log.received < self.state.applied:
            # Ops applied here are not in the history: this copy is of another past.
            self._start_over()
        if ring.has_state:
            ring.announce()

    def _last_sequence_in_log(self) -> int:
        for entry in reversed(self.ring.log.entries):
            if entry.payload is None:
                return entry.header.last_sequence
        return self.state.next_sequence - 1

    def _start_over(self) -> None:
        self.state = QueueState()
        self.state.keep_in(self._cache, self.queue_id)
        self._writes.start_over()
        self.ring.reset(0, [])
        self.ring.log.stable = 0
        self.ring.has_state = False
        self.transfer.start_over()

    # --- Transfer -----------------------------------------------------------------------

    def _give_state(self, now_ms: int, sender: MemberId, message: TransferRequest) -> None:
        if self.ring.in_sync and self.ring.repaired:
            answer = self._donor.answer(now_ms, sender, message, self.state)
            if answer is not None:
                self.ring.out.send.append((sender, answer))

    def _take_state(self, now_ms: int, message: TransferState) -> None:
        ring = self.ring
        state = self.transfer.accept_state(now_ms, message, ring.epoch, ring.log.received)
        self._writes.stage(*self.transfer.take_pages())
        if state is None:
            return
        if (ring.has_state and not self._wants_state(now_ms)) or ring.log.has_append:
            self.transfer.drop_state()
            return
        lacking = self.transfer.lacking.copy()
        held = self._last_sequence_in_log()
        first, last = held + 1, state.next_sequence - 1
        if first <= last:
            lacking.add(first, last)
        if self._wanted_room_ms is not None:
            self._wanted_room_ms = None
            self._no_room_ms = min(2 * self._no_room_ms, NO_ROOM_MS_MAX)
        if state.applied == self.state.applied:
            state = self.state  # Lemma 3
        else:
            self._writes.on_state(self.state, state, held)
            state.keep_in(self._cache, self.queue_id)
        self.state = state
        ring.time.record_stamp(state.time_us)
        ring.reset(state.applied, state.history)
        ring.has_state = True
        self.transfer.compute_missing(state, lacking)
        ring.announce()

    def _take_chunk(self, now_ms: int, message: FrameChunk) -> None:
        chunk = self.transfer.accept_chunk(now_ms, message, self.ring.epoch, self.state) or ()
        if all(self.room.reserve(len(entry.frame)) for entry in chunk):
            self._writes.chunk += chunk
        else:
            self.transfer.on_no_room(now_ms)

    def _wants_state(self, now_ms: int) -> bool:
        """Return true if a joining member without room for a frame should take a newer state.

        Acks behind this frame would make room, but cannot reach the member. A state brings no
        bodies.
        """
        since_ms = None if self.ring.in_sync else self._wanted_room_ms
        return since_ms is not None and now_ms - since_ms >= self._no_room_ms

    def _look_for_room(self, now_ms: int) -> None:
        ring = self.ring
        ring.look_for_room()
        if not ring.refused_bytes:
            self._wanted_room_ms = None
        elif self._wanted_room_ms is None:
            self._wanted_room_ms = now_ms

    # --- The end of a step --------------------------------------------------------------

    def _settle(self, now_ms: int, out: ReplicaEffects) -> None:
        ring = self.ring
        if ring.refused_bytes or self._wanted_room_ms is not None:
            self._look_for_room(now_ms)
        is_whole = not self.transfer.missing
        ring.complete = is_whole or self.transfer.is_complete
        is_lacking = not (is_whole and ring.in_sync)
        if is_lacking and ring.is_member and ring.repaired and ring.view is not None:
            lost = self.transfer.lost.count
            wake = self.transfer.pursue(
                now_ms,
                ring.view,
                ring.has_state and not self._wants_state(now_ms),
                (self.may_fetch or ring.in_sync) and not self._writes.is_placing,
                self.definition.ha_sync_batch_size,
                out,
                self._writes.retained,
            )
            out.wake_at_ms = earliest(out.wake_at_ms, wake)
            if ring.in_sync and self.transfer.lost.count > lost:
                self._tell_of_lost()
        ring.settle(now_ms)
        received = ring.log.received
        self._apply_stable(now_ms)
        if self._is_preparing or ring.is_stalled:
            was_stalled = ring.is_stalled
            ring.is_stalled = self._is_preparing and self.state.is_full
            if was_stalled and not ring.is_stalled:
                ring.settle(now_ms)
        if self.transfer.judged:
            self._tell_of_judged()
        if self.master is not None:
            if self.master.is_beginning:
                self.master.begin_portion(now_ms)
            self.master.settle(now_ms)
            if ring.log.received != received:
                ring.settle(now_ms)
            self._membership.count_in(now_ms, out, is_active=self.master.active)
            self._membership.move_slow_out(now_ms, out)

    # --- Damage -------------------------------------------------------------------------

    def _on_damage(self, now_ms: int, found: events.FrameDamaged) -> None:
        """Fetch the live messages of a damaged frame again."""
        if self.halted:
            return
        needed = self.state.needed(found.first, found.last)
        for first, last in self.transfer.on_damage(now_ms, needed):
            text = f"damaged on this disk: {_messages_text(first, last)}: {found.text}"
            self.ring.out.notices.append((events.DAMAGE, text))

    def _tell_of_lost(self) -> None:
        first, last = self.transfer.lost.front()
        count = self.transfer.lost.count
        more = "" if count == last - first + 1 else f", {count} messages in all"
        text = (
            f"set aside: {_messages_text(first, last)}{more}: no member that could be asked has "
            "them whole. They wait until one comes that has; the others are delivered"
        )
        self.ring.out.notices.append((events.SET_ASIDE, text))

    def _tell_of_judged(self) -> None:
        """Tell the master which messages are lost, and not delivered, or found again."""
        judged = self.transfer.judged
        while judged:
            bodies, are_lost = judged.popleft()
            if self.master is not None:
                self.master.on_judged(bodies, are_lost=are_lost)

    def _apply_stable(self, now_ms: int) -> None:
        ring = self.ring
        self._is_preparing = False
        if self.state.applied >= ring.log.stable:
            return
        while ring.has_state and self.state.applied < min(ring.log.stable, ring.log.received):
            entry = ring.log.entry(self.state.applied + 1)
            assert entry is not None, "entries are kept until they are applied"
            if not self.state.is_ready_for(entry):
                self._is_preparing = True
                return
            if not self._apply(now_ms, entry):
                return

    def _apply(self, now_ms: int, entry: Entry) -> bool:
        if isinstance(entry.payload, UnknownOp):
            why = entry.payload.why
            self.halted = (
                f"op {entry.lsn} is of kind {entry.header.kind}, which this version does not "
                f"{f'understand ({why})' if why else 'know'}: upgrade this node to the version of "
                "the queue's master"
            )
            return False
        ended = self.state.apply(entry)
        if isinstance(entry.payload, PromotedOp) and entry.payload.how == "unclean":
            self.ring.out.notices.append(("loss", _loss_text(entry.payload)))
        self.transfer.on_ended(ended)
        self._writes.on_applied(now_ms, entry, ended)
        if self.master is not None:
            repeat_count = len(self.state.repeats) if entry.keys else 0
            self.tally.count_op(entry, self.state.verdict, repeat_count)
            self.master.on_applied(now_ms, entry)
        return True

    # --- Time ---------------------------------------------------------------------------

    def _tick_after(self, now_ms: int) -> int:
        """Time of the next tick: all queues tick with the node's heartbeats, in one wake."""
        heartbeat_ms = self._config.heartbeat_ms
        next_ms = now_ms - now_ms % heartbeat_ms + heartbeat_ms
        return next_ms if 2 * (next_ms - now_ms) >= heartbeat_ms else next_ms + heartbeat_ms

    def _set_timers(self, now_ms: int) -> None:
        """Set the timers that depend on the state of the ring, at the end of a step."""
        ring = self.ring
        is_waiting, was_ticking = ring.is_waiting, self._is_ticking
        self._is_ticking = ring.is_member and (is_waiting or ring.ticks_left > 0)
        if self._is_ticking:
            if not was_ticking and self._next_tick_ms <= now_ms:
                # There was nothing to repeat: news of this step must not be repeated at once.
                self._next_tick_ms = self._tick_after(now_ms)
            tick_ms = max(self._next_tick_ms, now_ms + 1)
            if not (is_waiting or ring.has_joiners):
                # The tick only repeats things known to all, if nothing was lost.
                tick_ms = quiet_tick_ms(self._config, tick_ms)
            self._tick.set(tick_ms)
        elif was_ticking:
            self._tick.clear()
        if ring.refused_bytes:
            self._room_look.set(now_ms + ROOM_LOOK_MS)
        elif self._room_look.at_ms != FOREVER_MS:
            self._room_look.clear()

    def _next_ms(self, wake_ms: int | None) -> int | None:
        """Time of the next step without an event: `wake_ms`, or the first timer."""
        next_ms = self.timers.next_ms
        if self.halted:
            # Only ticks and the disk are served.
            self.ring.mark_timer.clear()
            self._room_look.clear()
            next_ms = self.timers.next_ms
        elif self.master is not None and self.master.timers.next_ms < next_ms:
            next_ms = self.master.timers.next_ms
        if wake_ms is not None and wake_ms < next_ms:
            return wake_ms
        return None if next_ms == FOREVER_MS else next_ms


def _messages_text(first: int, last: int) -> str:
    return f"message {first}" if first == last else f"messages {first} to {last}"


def _loss_text(promoted: PromotedOp) -> str:
    return (
        f"unclean promotion {promoted.generation} in epoch {promoted.master_epoch}: the new master "
        f"was not in sync, {promoted.lost_count} messages are known to be lost"
    )


def _dropped_text(kept: int, received: int, state: QueueState) -> str:
    text = f"after an unclean promotion the queue goes on without ops {kept + 1} to {received}"
    if kept < state.applied:
        return f"{text}: this copy, of {state.live.count} messages, is dropped and copied again"
    return f"{text}: they are cut from this copy"


def _set_back_text(master: str, kept: int, state: QueueState) -> str:
    """Report a master without applied ops and without an unclean promotion: its disk must have had
    them."""
    return (
        f"node {master} is master of the queue without ops {kept + 1} to {state.applied}, which "
        "were confirmed: its store is an earlier copy of itself, or its disk has lost what it had "
        f"synced. This copy, of {state.live.count} messages, is dropped and copied again"
    )
