"""One queue on one node: its ring, its applied state, a transfer, and a master's reign.

    effects = replica.step(now_ms, wall_us, *events)

Takes all that has arrived for the queue in one round, and answers with one `ReplicaEffects`
whose field order is the order of execution. It never blocks, reads no clock, and never raises
on remote input.

Order within a step: events, marks of the ring, ops that have become stable are applied (R3),
the master's answers and new ops, marks and frames again, one write.

The applied state reaches the disk as a checkpoint now and then; the ops after it are kept and
replayed at start. Message runs are deleted only at a checkpoint, when the state on disk no
longer needs them.
"""

from __future__ import annotations

from collections import deque

from msgspec import Struct

from mirrorq.checkpoints import quiet_ms
from mirrorq.codec import OpCodec
from mirrorq.config import Config
from mirrorq.courier import OutboxLoaded, Targets
from mirrorq.deadlines import earliest
from mirrorq.effects import Persisted, QueueImage, QueueWrite, ReplicaEffects
from mirrorq.master import Lease, Master
from mirrorq.messages import (
    ChangeView,
    Data,
    Deliver,
    Entry,
    FetchFrames,
    FrameChunk,
    History,
    HistoryRequest,
    JoinerDurable,
    Mark,
    Member,
    MemberId,
    PromotedOp,
    Repaired,
    ResendFrom,
    RingMessage,
    SessionId,
    SessionReply,
    SessionRequest,
    TooOld,
    TransferRequest,
    TransferState,
    UnknownOp,
    View,
    Watermark,
)
from mirrorq.policy import DEFAULT, Definition
from mirrorq.queue_state import QueueState
from mirrorq.ranges import RangeSet
from mirrorq.ring import Ring
from mirrorq.room import Room
from mirrorq.tally import Tally
from mirrorq.transfer import Transfer

SLOW_FACTOR = 5
"""A member that was too slow is not counted in again for so many lag_ms_max."""
PROPOSE_AGAIN_MS = 500
"""A proposal to count a member in that nothing came of is made again after this."""
WRITE_BEHIND_MS = 50
"""`durability: replicated`: ops are given to the store at multiples of this, those of all queues
of a node in one commit. It bounds what is lost when the power of all members fails at once."""
WRITE_BEHIND_COST = 4 << 20
"""The same when messages would take so much room on the disk."""


class ViewInstalled(Struct, frozen=True, gc=False):
    view: View


class Defined(Struct, frozen=True, gc=False):
    """What the policy in force says of this queue."""

    definition: Definition


class Declared(Struct, frozen=True, gc=False):
    """What the catalog says of the queue beside its view and its policy."""

    auto_delete: bool
    was_consumed: bool
    is_ending: bool = False
    """It is being deleted."""
    has_outbox: bool = False
    """It may send messages to other queues."""


class CourierReplied(Struct, frozen=True, gc=False):
    """The master of another queue answers this one's courier."""

    reply: SessionReply


class TargetsChanged(Struct, frozen=True, gc=False):
    """Other queues have other masters now, or are no more."""


class TargetLinkLost(Struct, frozen=True, gc=False):
    """Between this node and the master of another queue something may be gone."""

    target: int


class Fetching(Struct, frozen=True, gc=False):
    """Whether this copy, when it joins, may fetch the bodies that it lacks."""

    allowed: bool


class RingReceived(Struct, frozen=True, gc=False):
    sender: MemberId
    message: RingMessage


class Requested(Struct, frozen=True, gc=False):
    request: SessionRequest


class LinkLost(Struct, frozen=True, gc=False):
    """The connection to a node ended or came anew: what was on the way may be gone."""

    node: str


class NodeGone(Struct, frozen=True, gc=False):
    """A node's handles are gone: all (None) or those of lives before `incarnation`."""

    node: str
    incarnation: int | None = None


class SessionGone(Struct, frozen=True, gc=False):
    session: SessionId


class SeatExpelled(Struct, frozen=True, gc=False):
    """Somebody has disconnected one consumer."""

    session: SessionId
    consumer: int
    why: str


class LeaseChanged(Struct, frozen=True, gc=False):
    """The lease shared with the node has come, gone, or the pause has begun or ended."""


class Undelivered(Struct, frozen=True, gc=False):
    session: SessionId
    deliver: Deliver


class Tick(Struct, frozen=True, gc=False):
    pass


class WriteAll(Struct, frozen=True, gc=False):
    """The node is about to end: nothing is held back from the disk any more."""


class YieldAsked(Struct, frozen=True, gc=False):
    """The catalog's leader asks the master to hand out nothing more in this epoch."""

    epoch: int


ReplicaEvent = (
    ViewInstalled
    | Defined
    | Declared
    | Fetching
    | RingReceived
    | Requested
    | Persisted
    | LinkLost
    | NodeGone
    | SessionGone
    | SeatExpelled
    | LeaseChanged
    | Undelivered
    | YieldAsked
    | CourierReplied
    | OutboxLoaded
    | TargetsChanged
    | TargetLinkLost
    | WriteAll
    | Tick
)


class Replica:
    """One member's copy of one queue."""

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
    ) -> None:
        self.me = me
        self.queue_id = queue_id
        self.halted = ""
        """Why this copy has stopped: an op of a version to come."""
        self.state = QueueState() if image.state is None else QueueState.decode(image.state)
        self.room = room or Room()
        self.ring = Ring(me, queue_id, config.joiner_bytes_max, self.room, config.mark_delay_ms)
        self.transfer = Transfer(me, queue_id, config.transfer_chunk_bytes, config.sync_bytes_per_s)
        self.master: Master | None = None
        self.tally = Tally()
        """For metrics."""
        self.definition = DEFAULT
        """What the policy in force says; only what the master decides by it counts."""
        self._declared = Declared(False, False)
        self.may_fetch = True
        """By policy, or because somebody said so: see `Catalog.synchronising`."""
        self.reported = 0
        """Messages that the last master said the queue has: what a loss is counted by."""
        self._config = config
        self._codec = codec
        self._lease = lease
        self._targets = targets
        self._ended = RangeSet()
        """Messages that ended since the last checkpoint."""
        self._ops_since = 0
        self._bytes_since = 0
        self._checkpoint_bytes = len(image.state or b"")
        self._applied_ms = 0
        self._reset = False
        self._state_came = False
        self._chunk: tuple[Entry, ...] = ()
        self._writes_behind = True
        """Where the view allows it; not any more when the node is about to end."""
        self._write_due_ms: int | None = None
        """When ops that are held back go to the disk."""
        self._proposed: tuple[int, int] = (0, 0)
        self._next_tick_ms = 0
        self._samples: deque[tuple[int, int]] = deque()
        """R9: (time, received) of the master, one a tick."""
        self._slow_until_ms: dict[MemberId, int] = {}
        self._load(image)

    def _load(self, image: QueueImage) -> None:
        self.ring.load(image.entries, self.state.applied, self.state.history)
        self.ring.stable = max(image.stable, self.state.applied)
        self.ring._recount_unstable()
        while self.state.applied < min(self.ring.stable, self.ring.received):
            entry = self.ring.entry(self.state.applied + 1)
            assert entry is not None, "the store gives every op after its checkpoint"
            if not self._apply(0, entry):
                break
        self.transfer.begin(self.state, RangeSet(image.lacking))
        self.transfer.lacking_changed = False

    # --- Queries ------------------------------------------------------------------------

    @property
    def is_master(self) -> bool:
        return self.master is not None

    @property
    def is_serving(self) -> bool:
        """Whether this is the master and its promotion is applied."""
        return self.master is not None and self.master.active

    @property
    def yielded_epoch(self) -> int | None:
        """The present epoch, when its master hands out nothing in it any more."""
        master = self.master
        return master.yielded_epoch if master is not None and master.has_yielded else None

    # --- The step -----------------------------------------------------------------------

    def step(self, now_ms: int, wall_us: int, *events: ReplicaEvent) -> ReplicaEffects:
        out = ReplicaEffects()
        self.ring.out = out
        if self.master is not None:
            self.master.log.wall_us = wall_us
        for event in events:
            self._on_event(now_ms, wall_us, event)
        if not self.halted:
            self._settle(now_ms, out)
        self._make_write(now_ms, out)
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
        out.wake_at_ms = self._wake_at_ms(now_ms, out.wake_at_ms)
        return out

    def _on_event(self, now_ms: int, wall_us: int, event: ReplicaEvent) -> None:
        master = self.master
        match event:
            case RingReceived():
                if self.ring.view is not None and event.message.epoch == self.ring.epoch:
                    self._on_ring(now_ms, event.sender, event.message)
            case Requested():
                if master is not None:
                    master.on_request(now_ms, event.request)
            case Persisted():
                self.ring.on_persisted(event.number)
                self.transfer.on_written(event.number)
            case ViewInstalled():
                self._install(now_ms, wall_us, event.view)
            case Defined():
                self.definition = event.definition
                if master is not None:
                    master.define(event.definition)
            case Declared():
                self._declared = event
                self._declare()
            case Fetching():
                self.may_fetch = event.allowed
            case CourierReplied():
                if master is not None:
                    master.departures.couriers.on_reply(event.reply)
            case OutboxLoaded():
                if master is not None:
                    master.departures.couriers.on_loaded(now_ms, event)
            case TargetLinkLost():
                if master is not None:
                    master.departures.couriers.on_target_link_lost(event.target)
            case LeaseChanged() | TargetsChanged():
                pass  # the end of the step hands out and confirms what is due
            case LinkLost():
                self.ring.on_link_lost(event.node)
                self.transfer.on_link_lost(event.node)
                if master is not None:
                    master.on_link_lost(now_ms, event.node)
            case NodeGone():
                if master is not None:
                    master.on_node_gone(event.node, event.incarnation)
            case SessionGone():
                if master is not None:
                    master.on_session_gone(event.session)
            case SeatExpelled():
                if master is not None:
                    master.on_expelled(event.session, event.consumer, event.why)
            case Undelivered():
                if master is not None:
                    master.hand_outs.on_undelivered(event.session, event.deliver)
            case YieldAsked():
                # Of another epoch it means nothing: the leader asks again.
                if master is not None and event.epoch == self.ring.epoch:
                    master.yielded_epoch = event.epoch
            case WriteAll():
                self._writes_behind = False
            case Tick():
                if now_ms >= self._next_tick_ms:
                    self._next_tick_ms = self._tick_after(now_ms)
                    self.ring.on_tick()
                    self._sample(now_ms)

    def _on_ring(self, now_ms: int, sender: MemberId, message: RingMessage) -> None:
        ring = self.ring
        match message:
            case Data():
                ring.on_data(sender, message)
            case Watermark():
                ring.on_watermark(sender, message)
            case Mark():
                ring.on_mark(sender, message)
            case JoinerDurable():
                ring.on_joiner_durable(sender, message)
            case History():
                received = ring.received
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
                self._give_state(sender, message)
            case TransferState():
                self._take_state(now_ms, message)
            case FetchFrames():
                if ring.in_sync:
                    ring.out.reads.append((sender, message))
            case FrameChunk():
                self._take_chunk(now_ms, message)

    # --- Views --------------------------------------------------------------------------

    def _install(self, now_ms: int, wall_us: int, view: View) -> None:
        ring = self.ring
        if ring.view is not None and view.epoch <= ring.view.epoch:
            return
        ring.install(view)
        self.transfer.forget()
        self._next_tick_ms = self._tick_after(now_ms)
        before = self.master
        if not ring.is_master:
            self.master = None
        elif self.master is None or self.master.reign != view.reign:
            self._reign(now_ms, wall_us, view)
        if before is not None and before is not self.master:
            couriers = before.departures.couriers
            couriers.end()
            ring.out.requests += couriers.requests

    def _reign(self, now_ms: int, wall_us: int, view: View) -> None:
        master = Master(
            self.ring,
            self.state,
            view.reign,
            self._config,
            self._codec,
            self._lease,
            self.room,
            self._targets,
        )
        master.log.wall_us = wall_us
        master.define(self.definition)
        self.master = master
        self._declare()
        if self.halted:
            return
        master.begin(now_ms, self._promoted(view))

    def _declare(self) -> None:
        if self.master is not None:
            known = self._declared
            self.master.departures.is_ending = known.is_ending
            self.master.departures.is_known = known.has_outbox
            self.master.vacancy.declare(
                auto_delete=known.auto_delete, was_consumed=known.was_consumed
            )

    def _promoted(self, view: View) -> PromotedOp:
        """The reign's first op. Unclean when the view's last unclean promotion is not in this
        log: it is this one, or the master that was to begin with it died before it did."""
        begun = self.state.generation
        for entry in self.ring.log:
            if isinstance(entry.payload, PromotedOp):
                begun = max(begun, entry.payload.generation)
        if begun >= view.generation:
            return PromotedOp("cold" if view.how == "cold" else "clean")
        lost = self.transfer.given_up()
        for entry in self._chunk:
            lost.remove(entry.header.first_sequence, entry.header.last_sequence)
        unapplied = (e for e in self.ring.log if e.lsn > self.state.applied and e.payload is None)
        kept = self.state.live.count - lost.count + sum(e.header.count for e in unapplied)
        count = max(lost.count, self.reported - kept)
        return PromotedOp("unclean", view.generation, view.reign, tuple(lost), count)

    def _on_repaired(self, now_ms: int, received: int) -> None:
        """The log agrees with the master's; before it was cut it went up to `received`."""
        ring = self.ring
        is_new_past = ring.view is not None and ring.view.generation > self.state.generation
        if is_new_past and ring.received < received:
            text = _dropped_text(ring.received, received, self.state)
            ring.out.notices.append(("copy dropped", text))
        if ring.received < self.state.applied:
            # What was applied here is not in the history: this copy is of another past.
            self._start_over()
        if ring.has_state:
            ring.announce()

    def _last_sequence_in_log(self) -> int:
        for entry in reversed(self.ring.log):
            if entry.payload is None:
                return entry.header.last_sequence
        return self.state.next_sequence - 1

    def _start_over(self) -> None:
        self._reset = True
        self.state = QueueState()
        self._ended = RangeSet()
        self.ring.reset(0, [])
        self.ring.stable = 0
        self.ring.has_state = False
        self.transfer.start_over()
        self._chunk = ()

    # --- Transfer -----------------------------------------------------------------------

    def _give_state(self, sender: MemberId, message: TransferRequest) -> None:
        if self.ring.in_sync and self.ring.repaired:
            answer = TransferState(
                self.queue_id,
                self.ring.epoch,
                message.number,
                self.state.applied,
                self.state.encode(),
            )
            self.ring.out.send.append((sender, answer))

    def _take_state(self, now_ms: int, message: TransferState) -> None:
        ring = self.ring
        state = self.transfer.accept_state(now_ms, message, ring.epoch, ring.received)
        if state is None or ring.has_state:
            return
        lacking = self.transfer.lacking.copy()
        first, last = self._last_sequence_in_log() + 1, state.next_sequence - 1
        if first <= last:
            lacking.add(first, last)
        self.state = state
        ring.reset(state.applied, state.history)
        ring.has_state = True
        self.transfer.begin(state, lacking)
        self._state_came = True
        ring.announce()

    def _take_chunk(self, now_ms: int, message: FrameChunk) -> None:
        chunk = self.transfer.accept_chunk(now_ms, message, self.ring.epoch, self.state) or ()
        if all(self.room.take(len(entry.frame)) for entry in chunk):
            self._chunk += chunk
        else:
            self.transfer.on_no_room(now_ms)

    # --- The end of a step --------------------------------------------------------------

    def _settle(self, now_ms: int, out: ReplicaEffects) -> None:
        ring = self.ring
        ring.complete = self.transfer.is_complete
        if ring.is_member and not ring.in_sync and ring.repaired and ring.view is not None:
            wake = self.transfer.pursue(
                now_ms,
                ring.view,
                ring.has_state,
                self.may_fetch,
                self.definition.ha_sync_batch_size,
                out,
            )
            out.wake_at_ms = earliest(out.wake_at_ms, wake)
        ring.settle(now_ms)
        received = ring.received
        self._apply_stable(now_ms)
        if self.master is not None:
            self.master.settle(now_ms)
            if ring.received != received:
                ring.settle(now_ms)
            self._count_in(now_ms, out)
            self._move_slow_out(now_ms, out)

    def _apply_stable(self, now_ms: int) -> None:
        ring = self.ring
        if self.state.applied >= ring.stable:
            return
        while ring.has_state and self.state.applied < min(ring.stable, ring.received):
            entry = ring.entry(self.state.applied + 1)
            assert entry is not None, "entries are kept until they are applied"
            if not self._apply(now_ms, entry):
                return

    def _apply(self, now_ms: int, entry: Entry) -> bool:
        if isinstance(entry.payload, UnknownOp):
            self.halted = (
                f"op {entry.lsn} is of kind {entry.header.kind}, which this version does not "
                "know: upgrade this node to the version of the queue's master"
            )
            return False
        ended = self.state.apply(entry)
        if isinstance(entry.payload, PromotedOp) and entry.payload.how == "unclean":
            self.ring.out.notices.append(("loss", _loss_text(entry.payload)))
        self.transfer.on_ended(ended)
        for first, last in ended:
            self._ended.add(first, last)
        self._ops_since += 1
        self._bytes_since += len(entry.frame)
        self._applied_ms = now_ms
        if self.master is not None:
            self.tally.note(entry, self.state.verdict)
            self.master.on_applied(now_ms, entry)
        return True

    def _count_in(self, now_ms: int, out: ReplicaEffects) -> None:
        """R8: only the master proposes, and it waits for the member from here on.

        It also ends a settling view. A member counted in by the same proposal has on its disk
        what the others have there, for R8 asks it of this epoch's whole history too.
        """
        ring = self.ring
        if not ring.has_joiners and not ring.is_settling:
            return
        slow = {member: t for member, t in self._slow_until_ms.items() if now_ms < t}
        if any(member in slow for member in ring.joiners):
            # Nothing else would look again in a queue that is idle by then.
            out.wake_at_ms = earliest(out.wake_at_ms, min(slow.values()))
        gates, settled = ring.countable(slow), ring.is_settled
        if not (gates or settled) or ring.view is None:
            return
        if self.master is None or not self.master.active:
            return
        epoch, asked_ms = self._proposed
        if epoch == ring.epoch and now_ms - asked_ms < PROPOSE_AGAIN_MS:
            out.wake_at_ms = earliest(out.wake_at_ms, asked_ms + PROPOSE_AGAIN_MS)
            return
        self._proposed = (ring.epoch, now_ms)
        counted = tuple(Member(m.id, m.in_sync or m.id in gates) for m in ring.view.members)
        in_sync = tuple(member for member in counted if member.in_sync)
        joining = tuple(member for member in counted if not member.in_sync)
        out.propose = ChangeView(self.queue_id, ring.epoch, in_sync + joining, settled=settled)
        out.wake_at_ms = earliest(out.wake_at_ms, now_ms + PROPOSE_AGAIN_MS)

    def _sample(self, now_ms: int) -> None:
        if self.ring.is_master:
            self._samples.append((now_ms, self.ring.received))
            while (
                len(self._samples) > 1 and now_ms - self._samples[1][0] >= self._config.lag_ms_max
            ):
                self._samples.popleft()
        else:
            self._samples.clear()

    def _move_slow_out(self, now_ms: int, out: ReplicaEffects) -> None:
        """R9: who has not on disk what the master had lag_ms_max ago goes to the tail."""
        ring = self.ring
        if not self._samples or ring.view is None or out.propose is not None:
            return
        sampled_ms, old = self._samples[0]
        if (
            now_ms - sampled_ms < self._config.lag_ms_max
            or ring.stable >= old
            or ring.assured < old
        ):
            return
        behind = [m.id for m in ring.view.members if ring.reported.get(m.id, old) < old]
        epoch, asked_ms = self._proposed
        if not behind or (epoch == ring.epoch and now_ms - asked_ms < PROPOSE_AGAIN_MS):
            return
        self._proposed = (ring.epoch, now_ms)
        # Only the first: those to its right may lag for no reason but that it is their left.
        slow = behind[0]
        self._slow_until_ms[slow] = now_ms + SLOW_FACTOR * self._config.lag_ms_max
        kept = tuple(member for member in ring.view.members if member.id != slow)
        out.propose = ChangeView(self.queue_id, ring.epoch, (*kept, Member(slow, False)))

    # --- Disk ---------------------------------------------------------------------------

    def _make_write(self, now_ms: int, out: ReplicaEffects) -> None:
        ring = self.ring
        if not self._has_to_write(now_ms) or self._holds_back(now_ms):
            ring.trim(self.state.applied)
            return
        cut, entries = ring.take_write()
        checkpoint = self._state_came or self._checkpoint_due(now_ms)
        number = 0
        if self._chunk:
            number = ring.note_write()
            self.transfer.on_writing(number, self._chunk)
        lacking = self.transfer.take_lacking()
        needed = cut is not None or entries or checkpoint or self._chunk or self._reset
        if not needed and lacking is None:
            ring.trim(self.state.applied)
            return
        out.write_number = number or ring.note_write()
        out.write = QueueWrite(
            self.queue_id,
            reset=self._reset,
            truncate_to=cut,
            append=entries,
            fetched=self._chunk,
            state=self._checkpoint() if checkpoint else None,
            state_lsn=self.state.applied,
            release=self._released() if checkpoint else (),
            lacking=lacking,
            stable=min(ring.stable, ring.received),
        )
        self._chunk = ()
        self._reset = self._state_came = False
        ring.trim(self.state.applied)

    def _has_to_write(self, now_ms: int) -> bool:
        """Whether anything at all has come for the disk; most steps are about marks only."""
        ring = self.ring
        return (
            ring.has_append
            or ring.has_cut
            or bool(self._chunk)
            or self._state_came
            or self._reset
            or self.transfer.lacking_changed
            or self._write_due_ms is not None
            or self._checkpoint_due(now_ms)
        )

    def _holds_back(self, now_ms: int) -> bool:
        """Whether what this step wants on disk waits: confirms do not rest on it.

        What changes the past of the copy goes at once, and all that waits with it.
        """
        ring = self.ring
        is_urgent = bool(self._chunk) or self._reset or self._state_came or ring.has_cut
        is_behind = ring.is_at_receipt and self._writes_behind and ring.has_append
        if not is_behind or is_urgent or self.transfer.lacking_changed:
            self._write_due_ms = None
            return False
        if self._write_due_ms is None:
            self._write_due_ms = now_ms + WRITE_BEHIND_MS - now_ms % WRITE_BEHIND_MS
        if now_ms < self._write_due_ms and ring.append_cost < WRITE_BEHIND_COST:
            return True
        self._write_due_ms = None
        return False

    def _checkpoint_due(self, now_ms: int) -> bool:
        if not self._ops_since:
            return False
        config = self._config
        due = self._ops_since >= config.checkpoint_ops
        due = due or self._bytes_since >= config.checkpoint_bytes
        if due and self._bytes_since < 4 * self._checkpoint_bytes:
            # A state of many ranges is dear to write: let it wait until it pays.
            due = self._ops_since >= 16 * config.checkpoint_ops
        return due or now_ms >= self._applied_ms + quiet_ms(self.state.bytes_about)

    def _checkpoint(self) -> bytes:
        data = self.state.encode()
        self._ops_since = self._bytes_since = 0
        self._checkpoint_bytes = len(data)
        return data

    def _released(self) -> tuple[tuple[int, int], ...]:
        """The widest dead ranges around what has ended since the last checkpoint."""
        state = self.state
        dead = RangeSet()
        if self._state_came and state.next_sequence > 1:
            dead.add(1, state.next_sequence - 1)
            for first, last in state.needed(1, state.next_sequence - 1):
                dead.remove(first, last)
        for piece in state.dead_around(self._ended):
            dead.add(*piece)
        self._ended = RangeSet()
        return tuple(dead)

    # --- Time ---------------------------------------------------------------------------

    def _tick_after(self, now_ms: int) -> int:
        """All queues of a node tick together, with its signs of life: it wakes once."""
        heartbeat_ms = self._config.heartbeat_ms
        next_ms = now_ms - now_ms % heartbeat_ms + heartbeat_ms
        return next_ms if 2 * (next_ms - now_ms) >= heartbeat_ms else next_ms + heartbeat_ms

    def _wake_at_ms(self, now_ms: int, wake: int | None) -> int | None:
        tick_ms = checkpoint_ms = master_ms = None
        if self.ring.needs_tick:
            tick_ms = max(self._next_tick_ms, now_ms + 1)
        if self._ops_since:
            checkpoint_ms = self._applied_ms + quiet_ms(self.state.bytes_about)
        if self.master is not None:
            master_ms = self.master.wake_at_ms(now_ms)
        mark_ms = self.ring.mark_at_ms
        return earliest(wake, tick_ms, self._write_due_ms, mark_ms, checkpoint_ms, master_ms)


def _loss_text(promoted: PromotedOp) -> str:
    return (
        f"unclean promotion {promoted.generation} in epoch {promoted.reign}: the new master was "
        f"not in sync, {promoted.lost_count} messages are known to be lost"
    )


def _dropped_text(kept: int, received: int, state: QueueState) -> str:
    text = f"after an unclean promotion the queue goes on without ops {kept + 1} to {received}"
    if kept < state.applied:
        return f"{text}: this copy, of {state.live.count} messages, is dropped and made anew"
    return f"{text}: they are cut from this copy"


__all__ = [
    "CourierReplied",
    "Declared",
    "Defined",
    "Fetching",
    "LeaseChanged",
    "LinkLost",
    "NodeGone",
    "Replica",
    "ReplicaEvent",
    "Requested",
    "RingReceived",
    "SeatExpelled",
    "SessionGone",
    "TargetLinkLost",
    "TargetsChanged",
    "Tick",
    "Undelivered",
    "ViewInstalled",
    "WriteAll",
    "YieldAsked",
    "earliest",
]
