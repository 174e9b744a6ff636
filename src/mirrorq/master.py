"""What the master of a queue does beside the ring: admit, hand out, settle, answer.

One object lives for one *reign*: from the view that made this member the master until one
that makes another member so, or changes it from one incarnation to the next. All state
changes go through ops (`_propose`); every outcome that a user learns, yes or no, comes from
a stable one (R3). Where a confirm is decided: `on_applied`, for publish entries.

Until the reign's first op, `promoted`, is applied, requests wait in `_waiting`: nothing is
handed out, no ack is answered, nothing is refused (DESIGN 4.4).

Producers are judged on the whole log, unstable ops too: `_highest` holds each producer's
highest number in the log; what is at or below it is known, and is confirmed when its op is
stable. A batch is cut at the first new number.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from attrs import define, field

from mirrorq.attachments import Attachment, Attachments
from mirrorq.claims import Claims
from mirrorq.codec import OpCodec
from mirrorq.columns import sizes_of
from mirrorq.config import Config
from mirrorq.courier import Couriers, NoTargets, Targets, is_courier
from mirrorq.deadlines import earliest
from mirrorq.delays import Delays
from mirrorq.delivery import ConsumerKey, ConsumerSeat, Delivery
from mirrorq.disuse import Disuse
from mirrorq.errors import ProtocolError
from mirrorq.expiry import Expiry
from mirrorq.lanes import Horizons
from mirrorq.limits import Depth, InLog, Verdict, full_text, judge, limit_of
from mirrorq.messages import (
    FLAG_PRIORITY,
    FLAG_STAGED,
    FLAG_STEP,
    AckOp,
    AckRange,
    Attach,
    Attached,
    Browse,
    Browsed,
    CatalogCommand,
    Confirmed,
    ConsumerRefused,
    Counts,
    Credit,
    DeleteQueue,
    Deliver,
    Detach,
    Detached,
    DiscardOp,
    DropHeadOp,
    Entry,
    ExpiryOp,
    HandOut,
    Header,
    HorizonOp,
    HorizonsOp,
    Inquire,
    LaneOp,
    NoteOutbox,
    OpenProducer,
    OpKind,
    OutboxOp,
    Payload,
    Ping,
    Pong,
    ProducerOp,
    ProducerOpened,
    ProducerUnknown,
    PromotedOp,
    Publish,
    Purge,
    Purged,
    PurgeOp,
    Range,
    Recall,
    Recalled,
    RefusalOp,
    Refused,
    Reply,
    Request,
    ResendNumber,
    ReturnLaterOp,
    ReturnOp,
    SessionId,
    SessionRequest,
    Settle,
    Settled,
    Step,
    Subscribe,
    Unsubscribe,
)
from mirrorq.messages.staged import AbortOp, AskOp, CommitOp, SealOp, Stage
from mirrorq.outbox import is_outbox
from mirrorq.pace import Pace, has_same_pace, pace_of
from mirrorq.policy import DEFAULT, Definition
from mirrorq.purges import OpenPurge, Purges
from mirrorq.queue_state import GENERATION_BITS, NUMBER_MAX, REFUSED, QueueState
from mirrorq.ranges import RangeSet
from mirrorq.ring import Ring
from mirrorq.room import Room
from mirrorq.stages import Stages
from mirrorq.vacancy import Vacancy
from mirrorq.view import in_sync_ids

EXPIRY_LOOKS = 16
"""Idle producer ids are looked for so often in one expiry time."""
LEASE_IDLE_MS = 2000
"""The lease is kept up for so long after the last hand-out; the first one after that waits for
a round trip to the catalog's leader."""
EXPIRY_LOOK_MS = 60_000
"""Deadlines of messages are compared with the wall clock at least so often."""
NOT_TAKEN = "an ack was not taken"
"""How the refusal of a step begins whose acks are to blame."""
HELD_MS = 50
"""Publishes that wait for room are looked at again after this."""
LABEL_CHARS_MAX = 200
"""What is kept of how a consumer names itself."""
BROWSE_COUNT_MAX = 10_000
"""Most messages one Browse answers; the caller goes on from there."""


@define
class Lease:
    """One object a node, shared by all its queues: a renewal steps none of them."""

    until_ms: int = 0
    """Messages may be handed out before this moment."""
    paused: bool = False
    """No contact with a majority: nothing is confirmed."""


@define
class PendingSettle:
    session: SessionId
    request: int
    refused: tuple[HandOut, ...]
    why: str


@define
class Duties:
    """What waits for an lsn to be applied."""

    settles: list[PendingSettle] = field(factory=list)
    purges: list[tuple[SessionId, int, int]] = field(factory=list)


class Master:
    """One reign over one queue. Called by `replica`; appends to the ring it is given."""

    def __init__(
        self,
        ring: Ring,
        state: QueueState,
        reign: int,
        config: Config,
        codec: OpCodec,
        lease: Lease,
        room: Room | None = None,
        targets: Targets | None = None,
    ) -> None:
        self.reign = reign
        self.active = False
        """Whether `promoted` is applied."""
        self.delivery = Delivery(state, reign)
        self.delays = Delays(state)
        self.wall_us = 0
        """Wall-clock time of this step in microseconds: a stamp on ops, and ends delays."""
        self.store_bytes = 0
        self.definition = DEFAULT
        self.ended: dict[str, int] = {}
        """Messages of this reign that ended without an ack, by reason."""
        self.is_ending = False
        """The queue is being deleted: it goes when its outbox is empty."""
        self.yielded_epoch = 0
        """In this epoch nothing is handed out any more (`handover`)."""
        self.attachments = Attachments(ring.queue_id, reign)
        self.commands: list[CatalogCommand] = []
        """What to ask the catalog for."""
        self.vacancy = Vacancy(ring.queue_id, reign)
        self.disuse = Disuse(ring.queue_id, reign)
        self._targets = targets or NoTargets()
        self.couriers = Couriers(ring.me, ring.queue_id, state, config, self._targets, codec)
        self.has_outbox = False
        """The catalog knows that the queue may send to others."""
        self._has_asked = False
        self._held_moves: list[tuple[SessionId, Settle]] = []
        self._moves: dict[int, list[Range]] = {}
        """Target -> messages that are to go there in this step's op."""
        self._is_deleted = False
        self._outbox_lsn = 0
        """Last op in the log that put something into the outbox."""
        self._missing_target = ""
        """The dead-letter queue that was not there when it was last looked for."""
        self._ring = ring
        self._state = state
        self._config = config
        self._codec = codec
        self._lease = lease
        self._room = room or Room()
        self._waiting: deque[SessionRequest] = deque()
        self._held_publishes: deque[tuple[SessionId, int, Publish]] = deque()
        self._limit = limit_of(DEFAULT)
        self._pace: Pace | None = None
        self._in_log = InLog()
        self._held_by_limit = ""
        """Why the first of the held publishes waits, if a limit is why."""
        self._expiry = Expiry(state)
        self._rejects: list[Range] = []
        self._is_enforcing = False
        """A limit has changed: what is ready may be too much."""
        self._duties: dict[int, Duties] = {}
        self._confirms: dict[tuple[SessionId, int], list[tuple[int, int, int]]] = {}
        """(session, producer) -> runs to confirm at the end of the step."""
        self._openers: dict[int, SessionId] = {}
        self._claims = Claims()
        self._purges = Purges()
        self._acks: list[Range] = []
        self._returns: list[Range] = []
        self._settles: list[PendingSettle] = []
        self._expire_at_ms = 0
        self._wanted_ms = -LEASE_IDLE_MS
        """When there was last something to hand out."""
        self._return_lsn = 0
        """Last return in the log."""
        self._horizons = Horizons()
        self._recalled: dict[ConsumerKey, int] = {}
        """Newest hand-out at the time of the last recall."""
        self.stages = Stages(self, state)
        self._next_sequence = state.next_sequence
        self._highest = {number: p.highest for number, p in state.producers.items()}
        for lsn in range(state.applied + 1, ring.received + 1):
            entry = ring.entry(lsn)
            assert entry is not None, "an unapplied op is always in memory"
            self._note_in_log(entry)
            if isinstance(entry.payload, ProducerOp):
                for number in entry.payload.expired:
                    self._highest.pop(number, None)

    def begin(self, now_ms: int, promoted: PromotedOp) -> None:
        """The first op of the reign."""
        # What the promotion returns may exceed a limit, as any return may.
        self._is_enforcing = False
        self._propose(now_ms, promoted)

    def define(self, definition: Definition) -> None:
        """What the policy in force says, from now on."""
        if definition == self.definition:
            return
        if definition.message_ttl != self.definition.message_ttl:
            self._expiry.begin(definition.message_ttl, self.delivery.ready_sequences())
        if not has_same_pace(definition, self.definition):
            self._pace = pace_of(definition)
        self.definition = definition
        self.delivery.is_single = definition.single_active_consumer
        self.disuse.expires_ms = definition.expires
        limit = limit_of(definition)
        self._is_enforcing = self._is_enforcing or limit != self._limit
        self._limit = limit

    def _note_in_log(self, entry: Entry) -> None:
        header = entry.header
        if isinstance(entry.payload, PromotedOp):
            least = entry.payload.generation << GENERATION_BITS
            self._next_sequence = max(self._next_sequence, least)
        if header.kind in _NUMBERED and header.producer:
            number = header.producer
            self._highest[number] = max(self._highest.get(number, 0), header.last_number)
        if header.kind == OpKind.PUBLISH:
            self._next_sequence = header.last_sequence + 1
            if not isinstance(entry.step, Stage):
                self._in_log.note(entry)
        elif isinstance(entry.payload, CommitOp):
            op = entry.payload
            self._next_sequence = op.sequence + op.count + 1
            self._in_log.note_pieces(op.sequence + 1, self.stages.sizes_of(op))
        elif isinstance(entry.payload, AskOp):
            self._outbox_lsn = header.lsn
        elif isinstance(entry.payload, LaneOp):
            self._next_sequence = entry.payload.next_place
        elif isinstance(entry.payload, OutboxOp):
            self._outbox_lsn = header.lsn
        if isinstance(entry.payload, CommitOp | AbortOp) and entry.payload.others:
            self._outbox_lsn = header.lsn
        if isinstance(entry.step, Step) and entry.step.target:
            self._outbox_lsn = header.lsn

    # --- Requests -----------------------------------------------------------------------

    def on_request(self, now_ms: int, request: SessionRequest) -> None:
        if request.epoch != self.reign:
            return
        if not self.active:
            self._waiting.append(request)
            return
        session, body = request.session, request.request
        if isinstance(body, Attach):
            self._attach(now_ms, request, body)
            return
        if isinstance(body, Detach) and session in self.attachments:
            # Whatever was lost before it: the handle is closed, and all that it held goes back.
            if request.attachment >= self.attachments.number_of(session):
                self.on_session_gone(session)
            return
        attachment = self.attachments.accept(request)
        if attachment is not None:
            self._serve(now_ms, session, attachment, body)

    def _reply(self, session: SessionId, reply: Reply) -> None:
        self.attachments.reply(session, reply)

    def _attach(self, now_ms: int, request: SessionRequest, body: Attach) -> None:
        session = request.session
        attachment = self.attachments.begin(request)
        if attachment is None:
            return
        if any(key[0] == session and key[1] for key in self.delivery.consumers):
            # It subscribes again next.
            self.vacancy.expect(now_ms + self._config.failure_ms)
        self.disuse.use(now_ms)
        self.delivery.unsubscribe_session(session)
        self._keep_only(session, body.held)
        attachment.owner = body.owner
        if body.producer and self._owns(session, attachment, body.producer):
            attachment.producer = body.producer
            self._claims.take(body.producer, session)
        self._tell_flow(session, attachment, self._depth())
        self._reply(session, Attached())

    def _owns(self, session: SessionId, attachment: Attachment, producer: int) -> bool:
        """Whether what a session publishes may go under this id."""
        if is_outbox(producer) != is_courier(session):
            return False
        return producer not in self._highest or self._claims.admits(producer, attachment.owner)

    def _keep_only(self, session: SessionId, held: tuple[HandOut, ...]) -> None:
        """What the session does not hold was seen by nobody: it goes back uncounted."""
        keep: dict[int, RangeSet] = {}
        for piece in held:
            if piece.epoch == self.reign:
                keep.setdefault(piece.number, RangeSet()).add(piece.first, piece.last)
        for number, handout in self.delivery.holdings(session):
            unseen = handout.left.copy()
            for first, last in keep.get(number, ()):
                unseen.remove(first, last)
            for first, last in list(unseen):
                piece = HandOut(self.reign, number, first, last, handout.count)
                self.delivery.give_back(self.delivery.take(session, piece))

    def _serve(
        self, now_ms: int, session: SessionId, attachment: Attachment, body: Request
    ) -> None:
        delivery = self.delivery
        match body:
            case Publish():
                self._publish(now_ms, session, attachment, body)
            case Settle():
                self._settle(session, body)
            case Credit():
                self.disuse.use(now_ms)
                delivery.credit((session, body.number), body.total, body.size)
            case Subscribe():
                self._subscribe(session, body)
            case Unsubscribe():
                delivery.unsubscribe((session, body.number))
            case OpenProducer():
                self._propose(now_ms, ProducerOp(f"{session.node}/{session.number}"))
                self._openers[self._ring.received] = session
            case Browse():
                self._browse(session, body)
            case Purge():
                self._purge(now_ms, session, body)
            case Recalled():
                self._purges.on_recalled(session, body.number)
            case AckRange():
                self._ack_range(now_ms, session, body)
            case Inquire():
                self._count(session, body)
            case Ping():
                self._reply(session, Pong())
            case _:
                pass

    def _subscribe(self, session: SessionId, body: Subscribe) -> None:
        if self.vacancy.is_ending or self.disuse.is_ending:
            return
        key = (session, body.number)
        seat = ConsumerSeat(
            key,
            body.prefetch,
            body.exclusive,
            body.auto_ack,
            bare=body.bare,
            label=body.label[:LABEL_CHARS_MAX],
        )
        why = self._crowd_text(key) or self.delivery.subscribe(seat)
        if why:
            self._reply(session, ConsumerRefused(body.number, why))

    def _crowd_text(self, key: ConsumerKey) -> str:
        """Why there is no room for one consumer more, "" when there is."""
        most, consumers = self.definition.max_consumers, self.delivery.consumers
        if most is None or not key[1] or key in consumers:
            return ""
        count = sum(1 for _, number in consumers if number)
        if count < most:
            return ""
        return f"the queue has {count} consumers, its policy says max-consumers {most}"

    def _ack_range(self, now_ms: int, session: SessionId, body: AckRange) -> None:
        """Who holds a claim has read these elsewhere. Told when stable, as any ack; asked again,
        it ends what is left."""
        claim = self.delivery.claim()
        if claim is None or claim.key != (session, body.number):
            why = f"{claim.who} holds the queue" if claim else "nobody holds the queue exclusively"
            self._reply(session, Purged(body.request, 0, f"the claim has ended: {why}"))
            return
        first, last = max(body.first, 1), min(body.last, self._state.next_sequence - 1)
        delayed = self.delays.take(first, last)
        ended = RangeSet((*self.delivery.take_out(RangeSet(((first, last),))), *delayed))
        if ended:
            self._propose(now_ms, AckOp(tuple(ended)))
        self._duty().purges.append((session, body.request, ended.count))

    def _browse(self, session: SessionId, body: Browse) -> None:
        wanted = min(body.count_max, BROWSE_COUNT_MAX)
        found: list[tuple[int, int, int]] = []
        for low, high in self._state.live.within(max(body.start, 1), self._state.next_sequence):
            first = low
            while first <= high and wanted > 0:
                count, last = self._state.count_run(first, min(high, first + wanted - 1))
                found.append((first, last, count))
                wanted -= last - first + 1
                first = last + 1
            if wanted <= 0:
                break
        self._reply(session, Browsed(body.request, tuple(found)))

    def _purge(self, now_ms: int, session: SessionId, body: Purge) -> None:
        """Ready and delayed messages end, and what handles have fetched that nobody has seen."""
        holders = {
            session: self.attachments.number_of(session)
            for session, _ in self.delivery.holders(0)
            if session in self.attachments
        }
        until_ms = now_ms + self._config.failure_ms
        number = self._purges.begin(session, body.request, until_ms, holders)
        for holder in holders:
            self._reply(holder, Recall(0, number))

    def _purge_now(self, now_ms: int, purge: OpenPurge) -> None:
        ended = RangeSet((*self.delivery.take_ready(), *self.delays.take_all()))
        if ended:
            self._propose(now_ms, PurgeOp(tuple(ended)))
        self._duty().purges.append((purge.session, purge.request, ended.count))

    def _count(self, session: SessionId, body: Inquire) -> None:
        self._reply(
            session,
            Counts(
                body.request,
                self.delivery.ready.count,
                self.delivery.unacknowledged,
                sum(1 for key in self.delivery.consumers if key[1] != 0),
                self._state.next_sequence,
                self.store_bytes,
                self.delays.count,
                self._state.applied,
            ),
        )

    def on_session_gone(self, session: SessionId) -> None:
        """A handle was closed or its process is gone: what it held goes back, counted."""
        self._waiting = deque(r for r in self._waiting if r.session != session)
        attachment = self.attachments.end(session)
        if attachment is not None:
            self._claims.drop(attachment.producer, session)
        for key in [key for key in self._confirms if key[0] == session]:
            del self._confirms[key]
        self.delivery.unsubscribe_session(session)
        for number, _ in self.delivery.holdings(session):
            self._returns.extend(self.delivery.drop(number))

    def on_node_gone(self, node: str, incarnation: int | None) -> None:
        """A node's handles are gone; with an incarnation, only those of older lives."""
        waiting = [request.session for request in self._waiting]
        for session in dict.fromkeys([*self.attachments, *waiting]):
            if session.node == node and (incarnation is None or session.incarnation < incarnation):
                self.on_session_gone(session)

    def on_link_lost(self, now_ms: int, node: str) -> None:
        """Handles on that node must attach again; who does not is gone."""
        self._waiting = deque(r for r in self._waiting if r.session.node != node)
        self.attachments.on_link_lost(now_ms, node)

    def _expire_producers(self, now_ms: int) -> None:
        """Ids that were idle for long end by an op; from here on they are unknown."""
        if now_ms < self._expire_at_ms:
            return
        expiry_ms = self._config.producer_expiry_ms
        self._expire_at_ms = now_ms + expiry_ms // EXPIRY_LOOKS
        least_us = self.wall_us - expiry_ms * 1000
        old = tuple(
            number
            for number, producer in self._state.producers.items()
            if producer.used_us < least_us and self._may_expire(number)
        )
        if old:
            self._propose(now_ms, ProducerOp("", old))
            for number in old:
                del self._highest[number]
                self._claims.forget(number)

    def _may_expire(self, producer: int) -> bool:
        """Another queue's id never does: what that queue sends again must be known here."""
        return producer in self._highest and not is_outbox(producer)

    def _end_lost(self, now_ms: int) -> None:
        for session in self.attachments.overdue(now_ms, 2 * self._config.failure_ms):
            self.on_session_gone(session)

    def _end_overdue(self, now_ms: int) -> None:
        """Messages held for too long go back; their consumer hangs and is cancelled."""
        timeout_ms = self._config.consumer_timeout_ms
        oldest_ms = self.delivery.oldest_ms
        if oldest_ms is None or oldest_ms >= now_ms - timeout_ms:
            return
        for number in self.delivery.handed_before(now_ms - timeout_ms):
            session, consumer = key = self.delivery.open[number].key
            seat = self.delivery.consumers.get(key)
            if seat is not None and seat.bare:
                # A lease: it runs for as long as its session gives signs of life.
                self.delivery.renew(number, now_ms)
                continue
            self._returns.extend(self.delivery.drop(number))
            if consumer and key in self.delivery.consumers:
                self.delivery.unsubscribe(key)
                why = (
                    f"it held a message unacknowledged for {timeout_ms} ms (consumer_timeout_ms): "
                    "the message went back. Ack sooner, or raise the time"
                )
                self._reply(session, ConsumerRefused(consumer, why))

    def on_undelivered(self, session: SessionId, deliver: Deliver) -> None:
        """Too late or too much to send: nobody has seen these, and they were not handed over."""
        for piece in deliver.handouts:
            self.delivery.unhand((session, deliver.consumer), piece)

    # --- Publishing ---------------------------------------------------------------------

    def _publish(
        self, now_ms: int, session: SessionId, attachment: Attachment, body: Publish
    ) -> None:
        if self._codec.header(body.frame).flags & FLAG_STAGED:
            self.stages.on_publish(now_ms, session, attachment.number, body)
            return
        self._held_publishes.append((session, attachment.number, body))
        if len(self._held_publishes) == 1:
            self._admit_held(now_ms)

    def _takes(self, body: Publish) -> bool:
        """R10, and a store that can still be drained."""
        is_bounded = self._ring.unstable_bytes < self._config.unstable_bytes_max
        return is_bounded and self._room.has(len(body.frame))

    @property
    def blocked_by(self) -> str:
        """Why publishes or their confirms wait, "" when they do not."""
        withheld = self._lacks_members() or self._lacks_disks()
        if withheld:
            return withheld
        if self._held_by_limit and self._held_publishes:
            return self._held_by_limit
        if self._limit is not None and self._limit.overflow == "block":
            depth = self._depth()
            if self._limit.is_reached(depth):
                return full_text(self._limit, depth)
        if not self._held_publishes:
            return ""
        if not self._room.has(len(self._held_publishes[0][2].frame)):
            return "the master's store is full: consume and ack, or raise store_bytes_max"
        return (
            f"{self._ring.unstable_bytes} bytes are not yet on every member in sync; the bound "
            f"is unstable_bytes_max {self._config.unstable_bytes_max}"
        )

    def _admit_held(self, now_ms: int) -> None:
        """Publishes that waited for unstable ops to become stable, for room on the disk, or for
        the queue to become shorter."""
        held = self._held_publishes
        self._held_by_limit = ""
        while held and not self._held_by_limit:
            if self._pace is not None and not self._pace.is_open(now_ms):
                self._held_by_limit = self._pace.text
                return
            session, number, body = held[0]
            attachment = self.attachments.get(session)
            is_current = attachment is not None and attachment.number == number
            if is_current and not self._takes(body):
                return
            held.popleft()
            if attachment is not None and is_current:
                self._admit(now_ms, session, attachment, body)

    def _admit(
        self, now_ms: int, session: SessionId, attachment: Attachment, body: Publish
    ) -> None:
        header = self._codec.header(body.frame)
        producer, last = header.producer, header.last_number
        if is_outbox(producer) and is_courier(session):
            # It never expires: who is not known has published nothing yet.
            self._highest.setdefault(producer, 0)
        if producer not in self._highest or not self._owns(session, attachment, producer):
            self._reply(session, ProducerUnknown(producer))
            return
        attachment.producer = producer
        self._claims.take(producer, session)
        if last <= header.settled:
            return
        expected = max(self._highest[producer], header.settled) + 1
        if header.first_number > expected:
            self._reply(session, ResendNumber(producer, expected))
            return
        if header.first_number < expected:
            self._answer_known(session, producer, header.first_number, min(last, expected - 1))
        if last < expected:
            return
        if body.whole and header.first_number < expected:
            self._reply(session, Detached())
            return
        if header.flags & FLAG_STAGED:
            self.stages.take(now_ms, session, header, body)
            return
        if header.flags & FLAG_STEP:
            self._take_step(now_ms, (session, attachment.number, body), header)
            return
        frame = self._codec.cut(body.frame, expected - header.first_number, header.count)
        self._take_in(now_ms, (session, attachment.number, Publish(frame, body.whole)))

    def _take_step(
        self, now_ms: int, item: tuple[SessionId, int, Publish], header: Header
    ) -> None:
        """Acks and puts in one op: all of it, a refusal of all of it, or it waits."""
        session, _, body = item
        try:
            step = self._codec.step(body.frame)
        except ProtocolError:
            step = None
        step = step if isinstance(step, Step) else None
        why = self._step_error(session, body, step)
        if step is None or why:
            self.refuse(now_ms, header, why)
            return
        if step.target and not self.has_outbox:
            # The catalog must know first: the queue is not to be deleted over it.
            self._hold_for_outbox()
            self._held_publishes.appendleft(item)
            return
        if self._limit is not None and not step.target and header.count > 1:
            depth = self._depth()
            sizes = sizes_of(self._codec.offsets(body.frame), header.count)[1:]
            verdict = judge(self._limit, depth, sizes, True)
            if verdict.action == "hold":
                self._held_by_limit = verdict.reason
                self._held_publishes.appendleft(item)
                return
            if verdict.action == "refuse":
                self.refuse(now_ms, header, verdict.reason)
                return
            if self._limit.overflow == "drop-head":
                need = Depth(depth.count + verdict.room.count, depth.size + verdict.room.size)
                self._drop_head(now_ms, self._limit.exceeded_by(need))
                self._is_enforcing = True
        for piece in body.handouts:
            self.delivery.take(session, piece)
        self._store(body.frame)

    def _step_error(self, session: SessionId, body: Publish, step: Step | None) -> str:
        """Why nothing of a step can be done, "" when all can."""
        if step is None or not body.whole or is_courier(session):
            return "it is no step"
        acked = RangeSet((piece.first, piece.last) for piece in body.handouts)
        if acked != RangeSet(step.ranges):
            return "the deliveries that it acks are not those of its op"
        if sum(piece.last - piece.first + 1 for piece in body.handouts) != acked.count:
            return f"{NOT_TAKEN}: one was to be acked twice"
        for piece in body.handouts:
            if not self.delivery.may_take(session, piece):
                return (
                    f"{NOT_TAKEN}: message {piece.first} went back to the queue or was settled "
                    "by somebody else"
                )
        if step.target and (self.is_ending or self._targets.serving(step.target) is None):
            return f"queue {step.target}, or this one, is deleted"
        return ""

    def _hold_for_outbox(self) -> None:
        self._held_by_limit = "the catalog is to know first that the queue sends to another"
        if not self._has_asked:
            self._has_asked = True
            self.commands.append(NoteOutbox(self._ring.queue_id))

    def _take_in(self, now_ms: int, item: tuple[SessionId, int, Publish]) -> None:
        """Store, refuse or hold a producer's new messages, as the queue's limit has it."""
        session, number, body = item
        frame: bytes = body.frame
        while self._limit is not None:
            count = self._codec.header(frame).count
            depth = self._depth()
            sizes = sizes_of(self._codec.offsets(frame), count)
            attachment = self.attachments.get(session)
            verdict = judge(self._limit, depth, sizes, body.whole)
            if verdict.action == "refuse" and is_courier(session):
                break  # Nobody would hear of it, and the message would be lost.
            if verdict.action == "hold":
                self._held_by_limit = verdict.reason
                self._held_publishes.appendleft((session, number, Publish(frame, body.whole)))
                return
            piece = self._codec.cut(frame, 0, verdict.count)
            if verdict.action == "refuse":
                self.refuse(now_ms, self._codec.header(piece), verdict.reason)
            elif self._limit.overflow == "drop-head":
                self._store_dropping(now_ms, piece, depth, verdict)
            else:
                if attachment is not None:
                    attachment.told.size_since += sum(sizes[: verdict.count])
                self._store(piece)
            if verdict.count == count:
                return
            frame = self._codec.cut(frame, verdict.count, count)
        self._store(frame)

    def _store_dropping(self, now_ms: int, frame: bytes, depth: Depth, verdict: Verdict) -> None:
        """Make room, store, and drop what of a batch larger than the limit is too old."""
        assert self._limit is not None
        need = Depth(depth.count + verdict.room.count, depth.size + verdict.room.size)
        excess = self._limit.exceeded_by(need)
        is_all_older = verdict.keep < verdict.count
        self._drop_head(now_ms, Depth(depth.count, 0) if is_all_older else excess)
        self._store(frame)
        self._drop_head(now_ms, Depth(verdict.count - verdict.keep, 0))

    def _store(self, frame: bytes) -> None:
        entry = self._codec.publish(
            frame,
            queue_id=self._ring.queue_id,
            epoch=self._ring.epoch,
            lsn=self._ring.received + 1,
            first_sequence=self._next_sequence,
            timestamp_us=self.wall_us,
        )
        self._room.take(len(frame))
        if self._pace is not None:
            # The first body of a step says what comes with its messages, and is none.
            first = 1 if entry.header.flags & FLAG_STEP else 0
            sizes = sizes_of(entry.offsets, entry.header.count)[first:]
            self._pace.take(len(sizes), sum(sizes))
        if entry.header.flags & FLAG_PRIORITY:
            self._horizons.announce(entry.header.priority)
        self._append(entry)

    # --- Limits ---------------------------------------------------------------------------

    def _depth(self) -> Depth:
        """What is ready or on its way there, judged on the whole log."""
        coming = self._in_log.depth()
        ready = self.delivery.ready.count
        if self._limit is None or not self._limit.counts_bytes:
            return Depth(ready + coming.count, 0)
        return Depth(ready + coming.count, self.delivery.ready_size + coming.size)

    def _drop_head(self, now_ms: int, excess: Depth) -> None:
        """End the oldest messages; those that are still on their way to being ready last."""
        ranges, excess = self.delivery.drop_oldest(excess)
        if excess.count or excess.size:
            more, _ = self._in_log.drop_oldest(excess)
            ranges += more
        self._ended(now_ms, ranges, "maxlen")

    def _ended(self, now_ms: int, ranges: Iterable[Range], reason: str) -> None:
        """Messages end without an ack: the one place where they do, but for a purge.

        They are ready no more, and held by nobody; the op makes it so on every copy.

        Args:
            reason: expired, maxlen, rejected or delivery_limit, as RabbitMQ calls them.
        """
        ending = RangeSet(ranges)
        if not ending:
            return
        self.ended[reason] = self.ended.get(reason, 0) + ending.count
        named = tuple(ending)
        target = self._dead_letter_target(ending.count)
        match reason:
            case _ if target:
                self._propose(now_ms, OutboxOp(named, target, reason))
            case "expired":
                self._propose(now_ms, ExpiryOp(named))
            case "maxlen":
                self._propose(now_ms, DropHeadOp(named))
            case _:
                self._propose(now_ms, DiscardOp(named, reason))
        if reason == "delivery_limit":
            text = (
                f"{ending.count} message(s), the first of them {ending.first}, were returned "
                f"more than delivery-limit {self.definition.delivery_limit} times and have ended"
            )
            self._ring.out.notices.append(("delivery limit", text))

    def _dead_letter_target(self, count: int) -> int:
        """The queue to which messages go that end without an ack; 0: nowhere."""
        name = self.definition.dead_letter_queue
        if name is None or self.is_ending:
            return 0
        target = self._targets.find(name)
        if not target:
            self.ended["no_dead_letter_queue"] = self.ended.get("no_dead_letter_queue", 0) + count
            if self._missing_target != name:
                text = (
                    f"dead-letter-queue {name!r} does not exist: {count} message(s) have ended "
                    "and went nowhere, and so will others. Declare it"
                )
                self._ring.out.notices.append(("dead letters lost", text))
        self._missing_target = "" if target else name
        return target

    # --- The outbox -----------------------------------------------------------------------

    def _run_couriers(self, now_ms: int) -> None:
        couriers = self.couriers
        couriers.pursue(now_ms)
        done, couriers.done = couriers.done, []
        for op in done:
            self._propose(now_ms, op)
            if op.outcome != "confirmed":
                text = f"messages for queue {op.target} went nowhere: {op.outcome}"
                self._ring.out.notices.append(("dead letters lost", text))
        if self.is_ending and not self._is_deleted and not self._has_outbox():
            self._is_deleted = True
            self.commands.append(DeleteQueue(self._ring.queue_id, is_drained=True))

    def _has_outbox(self) -> bool:
        """Whether something is on its way to another queue, or about to be."""
        return bool(self._state.outbox.count) or self._outbox_lsn > self._state.applied

    def _expire(self, now_ms: int) -> None:
        """Messages whose time is over are handed to nobody."""
        if self.delivery.came_back:
            self._expiry.note(self.delivery.came_back)
            self.delivery.came_back = []
        over = self._expiry.due(self.wall_us // 1000)
        if over:
            self._ended(now_ms, self.delivery.take_out(over), "expired")

    def _enforce(self, now_ms: int) -> None:
        """A limit that has become lower holds at once where the oldest messages go."""
        self._is_enforcing = False
        limit = self._limit
        if limit is not None and limit.overflow == "drop-head":
            self._drop_head(now_ms, limit.exceeded_by(self._depth()))

    def _tell_flows(self) -> None:
        """Before the confirms: who sees one and puts again knows that the queue is full."""
        is_bounded = self._limit is not None and self._limit.overflow == "block"
        depth = self._depth() if is_bounded else Depth(0, 0)
        for session, attachment in self.attachments.all():
            if is_bounded or attachment.told.flow is not None:
                self._tell_flow(session, attachment, depth)

    def _tell_flow(self, session: SessionId, attachment: Attachment, depth: Depth) -> None:
        """How much the queue takes before puts wait, when the handle should know."""
        producer = attachment.producer
        highest = self._highest.get(producer, 0)
        count_max = self._config.unconfirmed_count_max
        flow = attachment.told.news(self._limit, depth, producer, highest, count_max)
        if flow is not None:
            self._reply(session, flow)

    def _answer_known(self, session: SessionId, producer: int, first: int, last: int) -> None:
        """Numbers that the log holds: the applied ones now, the others when they are stable."""
        known = self._state.producers.get(producer)
        if known is None:
            return
        for number, count, sequence, reason in known.outcomes_of(first, last):
            if sequence == REFUSED:
                self._reply(session, Refused(producer, number, count, reason))
            else:
                runs = self._confirms.setdefault((session, producer), [])
                runs.append((number, count, sequence))

    def refuse(self, now_ms: int, header: Header, reason: str) -> None:
        """A refusal is an op: it uses the numbers, and is told when it is stable."""
        self._propose(
            now_ms,
            RefusalOp(reason),
            count=header.count,
            producer=header.producer,
            first_number=header.first_number,
            settled=header.settled,
        )

    # --- Settling -----------------------------------------------------------------------

    def _settle(self, session: SessionId, body: Settle) -> None:
        if body.kind == "move" and not self.has_outbox:
            self._hold_for_outbox()
            self._held_moves.append((session, body))
            return
        if body.kind == "move" and (
            self.is_ending or self._targets.serving(body.target) is None or not body.target
        ):
            why = f"queue {body.target}, to which it was to be moved, is deleted"
            self._settles.append(PendingSettle(session, body.request, body.handouts, why))
            return
        refused: list[HandOut] = []
        for piece in body.handouts:
            before = self.delivery.taken_before(session, piece)
            taken = RangeSet(self.delivery.take(session, piece))
            if body.kind == "giveback":
                self.delivery.give_back(list(taken))
                continue
            if body.kind == "nack" and body.delay_ms:
                due_us = min(self.wall_us + body.delay_ms * 1000, NUMBER_MAX)
                self.delays.give_back(list(taken), due_us)
            else:
                ways = {"ack": self._acks, "reject": self._rejects}
                if body.kind == "move":
                    ways["move"] = self._moves.setdefault(body.target, [])
                ways.get(body.kind, self._returns).extend(taken)
            done = taken.copy()
            for first, last in before:
                done.add(first, last)
            if piece.epoch != self.reign:
                for first, last in self.delivery.already_ended(piece):
                    done.add(first, last)
            refused.extend(_pieces_without(piece, done))
        if body.kind != "giveback":
            why = "the message went back to the queue or was settled by somebody else"
            pending = PendingSettle(session, body.request, tuple(refused), why if refused else "")
            self._settles.append(pending)

    def _flush_settles(self, now_ms: int) -> None:
        """All acks and returns of this step are one op each."""
        if self._acks:
            self._propose(now_ms, AckOp(tuple(RangeSet(self._acks))))
            self._acks = []
        for target, ranges in self._moves.items():
            if ranges:
                self._propose(now_ms, OutboxOp(tuple(RangeSet(ranges)), target, "moved"))
        self._moves = {}
        if self._rejects:
            self._ended(now_ms, self._rejects, "rejected")
            self._rejects = []
        if self._returns:
            self._return(now_ms, RangeSet(self._returns))
            self._returns = []
        for due_us, later in self.delays.returns():
            self._return(now_ms, later, due_us)
        if self._settles:
            # A refusal, too, is told only when everything before it is stable.
            self._duty().settles.extend(self._settles)
            self._settles = []

    def _return(self, now_ms: int, ranges: RangeSet, due_us: int | None = None) -> None:
        """Messages go back to their places, now or later, but for those back too often."""
        limit = self.definition.delivery_limit
        if limit is not None:
            spent = self._state.returned_often(ranges, limit)
            for first, last in spent:
                ranges.remove(first, last)
            self._ended(now_ms, spent, "delivery_limit")
        if ranges and due_us is not None:
            self._propose(now_ms, ReturnLaterOp(tuple(ranges), due_us))
        elif ranges:
            self._propose(now_ms, ReturnOp(tuple(ranges)))
            self._return_lsn = self._ring.received

    def _duty(self) -> Duties:
        return self._duties.setdefault(self._ring.received, Duties())

    # --- Applying -----------------------------------------------------------------------

    def on_applied(self, now_ms: int, entry: Entry) -> None:
        """The op is stable and applied: tell who waits for it."""
        header = entry.header
        payload = entry.payload
        if isinstance(entry.step, Stage) or isinstance(payload, _STAGED):
            self._on_staged(entry)
        elif payload is None:
            first, last = self._in_log.on_applied(header.first_sequence, header.last_sequence)
            if isinstance(entry.step, Step):
                first = max(first, header.first_sequence + 1)
                last = 0 if entry.step.target else last
            priority = header.priority if header.flags & FLAG_PRIORITY else 0
            if header.delay_ms:
                for low, high, due_us in self._state.delayed.within(first, last):
                    self.delays.wait(low, high, due_us)
            elif first <= last:
                self.delivery.add_ready(first, last, priority)
                self._expiry.note(((first, last),))
            run = (header.first_number, header.count, header.first_sequence)
            for session in self._claims.of(header.producer):
                self._confirms.setdefault((session, header.producer), []).append(run)
        elif isinstance(payload, ReturnOp):
            self.delivery.give_back(list(payload.ranges))
        elif isinstance(payload, ReturnLaterOp):
            for first, last in payload.ranges:
                self.delays.wait(first, last, payload.due_us)
        elif isinstance(payload, LaneOp):
            self.delivery.give_back(self.delays.on_entered(payload))
        elif isinstance(payload, PromotedOp):
            # Its epoch is a later one when this node learned of the reign from a snapshot.
            if header.epoch >= self.reign:
                self._activate(now_ms)
        elif isinstance(payload, ProducerOp):
            if not payload.expired:
                self._highest.setdefault(self._state.producer_id(header.lsn), 0)
            opener = self._openers.pop(header.lsn, None)
            if opener is not None:
                opened = self._state.producer_id(header.lsn)
                attached = self.attachments.get(opener)
                self._claims.open(opened, "" if attached is None else attached.owner)
                self._reply(opener, ProducerOpened(opened))
        elif isinstance(payload, RefusalOp):
            refused = Refused(header.producer, header.first_number, header.count, payload.reason)
            for session in self._claims.of(header.producer):
                self._reply(session, refused)
        elif isinstance(payload, HorizonOp | HorizonsOp):
            self._horizons.on_applied()
        self._discharge(header.lsn)

    def _on_staged(self, entry: Entry) -> None:
        op = entry.payload
        if isinstance(op, CommitOp):
            first, last = op.sequence + 1, op.sequence + op.count
            first, last = self._in_log.on_applied(first, last)
            if not self._state.verdict and first <= last:
                self.delivery.add_ready(first, last, 0)
                self._expiry.note(((first, last),))
        self.stages.on_applied(entry)

    def _activate(self, now_ms: int) -> None:
        self.delivery = Delivery(self._state, self.reign)
        self.delays = Delays(self._state)
        self.delivery.is_single = self.definition.single_active_consumer
        self._expiry.begin(self.definition.message_ttl, self.delivery.ready_sequences())
        self.active = True
        self.disuse.use(now_ms)
        if self.vacancy.was_consumed:
            self.vacancy.expect(now_ms + 2 * self._config.failure_ms)
        while self._waiting:
            self.on_request(now_ms, self._waiting.popleft())

    def _discharge(self, lsn: int) -> None:
        duties = self._duties.pop(lsn, None)
        if duties is None:
            return
        for settle in duties.settles:
            self._reply(settle.session, Settled(settle.request, settle.refused, settle.why))
        for session, request, count in duties.purges:
            self._reply(session, Purged(request, count))

    # --- The end of a step --------------------------------------------------------------

    def settle(self, now_ms: int) -> None:
        """Turn what this step's requests have made due into ops, replies and hand-outs."""
        if not self.active:
            return
        delivery = self.delivery
        self._end_lost(now_ms)
        self._end_overdue(now_ms)
        self._expire_producers(now_ms)
        if delivery.came_back or self._expiry.next_ms is not None:
            self._expire(now_ms)
        if self._is_enforcing:
            self._enforce(now_ms)
        if self.has_outbox and self._held_moves:
            held, self._held_moves = self._held_moves, []
            for session, body in held:
                self._settle(session, body)
        self._admit_held(now_ms)
        self.stages.admit(now_ms)
        self.stages.expire(now_ms, self.wall_us)
        self._flush_settles(now_ms)
        for purge in self._purges.take_due(now_ms, self.attachments):
            self._purge_now(now_ms, purge)
        due = self.delays.due(self.wall_us, self._next_sequence)
        if due is not None:
            self._propose(now_ms, due)
        self._discharge(self._state.applied)
        has_takers = delivery.hungry and bool(delivery.ready)
        if has_takers:
            self._wanted_ms = now_ms
        # P2: what is on its way back comes before what is behind it.
        is_returning = self._state.applied < self._return_lsn
        is_free = not is_returning and not self.has_yielded and not self._purges
        if now_ms < self._lease.until_ms and is_free:
            if has_takers:
                for (session, _), deliver in delivery.hand_out(now_ms):
                    self._reply(session, deliver)
            self._recall()
        if self._held_by_limit:
            # What was handed out has made room, and nothing else may come to look at it.
            self._admit_held(now_ms)
        self._move_horizon(now_ms)
        self._run_couriers(now_ms)
        self._tell_flows()
        self._flush_confirms()
        consumers = 0
        for _, number in delivery.consumers:
            consumers += number != 0
        is_used = bool(consumers or delivery.unacknowledged or delivery.hungry)
        for command in (
            self.vacancy.judge(now_ms, consumers),
            self.disuse.judge(now_ms, is_used),
        ):
            if command is not None:
                self.commands.append(command)

    def _lacks_members(self) -> str:
        """`min-in-sync`: why no confirm may be given in the present view, "" when it may.

        Whatever is stable in a view is on the disk of all its members in sync, whenever it
        became so (R8, Lemma 1): the number of members now decides, for old ops too.
        """
        least = self.definition.min_in_sync
        if least <= 1 or self._ring.view is None:
            return ""
        in_sync = [one.node for one in in_sync_ids(self._ring.view)]
        if len(in_sync) >= least:
            return ""
        return f"min-in-sync {least}, have {len(in_sync)}: {', '.join(in_sync)}"

    def _lacks_disks(self) -> str:
        """`durability`: why no confirm may be given on the way from replicated to fsync.

        From the moment at which this master knows the policy no confirm rests on memory.
        """
        view = self._ring.view
        if self.definition.durability != "fsync" or view is None or view.durability == "fsync":
            return ""
        if self._ring.is_settled:
            return ""
        return "durability is fsync from now on: what was confirmed in memory goes to disk first"

    def _flush_confirms(self) -> None:
        if self._lease.paused or not self._confirms:
            return
        if self._lacks_members() or self._lacks_disks():
            return
        for (session, producer), runs in self._confirms.items():
            self._reply(session, Confirmed(producer, tuple(runs)))
        self._confirms.clear()

    def _move_horizon(self, now_ms: int) -> None:
        """Keep the horizons ahead of demand, so that handing out waits for no round trip."""
        delivery = self.delivery
        if not delivery.hungry:
            return
        state = self._state
        due = self._horizons.due(
            delivery.ready,
            state.horizon,
            state.lanes,
            state.next_sequence,
            delivery.wanted(),
            delivery.prefetch_max(),
        )
        if due is not None:
            self._propose(now_ms, due)

    def _recall(self) -> None:
        """A consumer waits while handles hold messages that no call has asked for."""
        delivery = self.delivery
        if not delivery.open or delivery.ready or not delivery.hungry:
            return
        hungry = [key for key, seat in delivery.consumers.items() if seat.wants > 0]
        for holder, newest in delivery.holders(0).items():
            # Once for each hand-out: who was asked has given back all that nobody had seen.
            others_wait = any(other != holder for other in hungry)
            if others_wait and self._recalled.get(holder) != newest:
                self._recalled[holder] = newest
                self._reply(holder[0], Recall(holder[1]))

    @property
    def has_yielded(self) -> bool:
        return self.yielded_epoch == self._ring.epoch

    @property
    def lease_wanted_until_ms(self) -> int:
        """Something is to be handed out, or was lately: an idle queue asks for no lease."""
        return self._wanted_ms + LEASE_IDLE_MS

    def wake_at_ms(self, now_ms: int) -> int | None:
        """When a handle whose link broke is given up, a held publish is looked at again, or a
        delay ends."""
        wake = self.attachments.wake_at_ms(2 * self._config.failure_ms)
        if self._held_publishes and not self._held_by_limit:
            wake = earliest(wake, now_ms + HELD_MS)
        if self._held_publishes and self._pace is not None:
            wake = earliest(wake, self._pace.opens_at_ms(now_ms))
        oldest_ms = self.delivery.oldest_ms
        if oldest_ms is not None:
            wake = earliest(wake, oldest_ms + self._config.consumer_timeout_ms + 1)
        wake = earliest(wake, self._purges.wake_at_ms())
        return earliest(wake, self._active_wake_at_ms(now_ms)) if self.active else wake

    def _active_wake_at_ms(self, now_ms: int) -> int | None:
        """The same of what time alone brings about."""
        wake = earliest(self.vacancy.wake_at_ms(), self.disuse.wake_at_ms())
        expiry_ms = self._expiry.next_ms
        if expiry_ms is not None:
            # The wall clock may be set: look again at times, however far away it seems.
            left_ms = expiry_ms - self.wall_us // 1000
            wake = earliest(wake, now_ms + min(max(left_ms, 1), EXPIRY_LOOK_MS))
        wake = earliest(wake, self.couriers.wake_at_ms)
        wake = earliest(wake, self.stages.wake_at_ms())
        return earliest(wake, self.delays.wake_at_ms(now_ms, self.wall_us))

    # --- Ops ----------------------------------------------------------------------------

    def _propose(
        self,
        now_ms: int,
        payload: Payload,
        *,
        count: int = 1,
        producer: int = 0,
        first_number: int = 0,
        settled: int = 0,
    ) -> None:
        ring = self._ring
        entry = self._codec.op(
            payload,
            queue_id=ring.queue_id,
            epoch=ring.epoch,
            lsn=ring.received + 1,
            timestamp_us=self.wall_us,
            count=count,
            producer=producer,
            first_number=first_number,
            settled=settled,
        )
        self._append(entry)

    def _append(self, entry: Entry) -> None:
        self._note_in_log(entry)
        self._ring.append(entry)


_STAGED = SealOp | CommitOp | AbortOp | AskOp
_NUMBERED = (
    OpKind.PUBLISH,
    OpKind.REFUSAL,
    OpKind.SEAL,
    OpKind.COMMIT,
    OpKind.ABORT,
    OpKind.ASK,
)
"""Kinds of ops that use numbers of a producer."""


def _pieces_without(piece: HandOut, done: RangeSet) -> list[HandOut]:
    """The parts of a hand-out that are not in `done`."""
    rest = RangeSet(((piece.first, piece.last),))
    for first, last in done:
        rest.remove(first, last)
    return [HandOut(piece.epoch, piece.number, low, high, piece.count) for low, high in rest]
