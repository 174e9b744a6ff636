"""A master's term over one queue: passes requests, applied ops and the end of a step to its parts.

`Master.on_applied` decides a confirm for publish entries; `confirms` sends it.
"""

from __future__ import annotations

from itertools import chain

from mirrorq.config import Config
from mirrorq.containers.fifo import Fifo
from mirrorq.containers.ranges import RangeSet
from mirrorq.containers.timers import FOREVER_MS, Timers, earliest
from mirrorq.protocol import ops, sessions
from mirrorq.protocol.codec import OpCodec
from mirrorq.protocol.commands import CatalogCommand
from mirrorq.protocol.identities import SessionId
from mirrorq.protocol.policy import Definition
from mirrorq.protocol.staged import AbortOp, AskOp, CommitOp, SealOp, Stage
from mirrorq.replication.disk_budget import Room
from mirrorq.replication.events import Declared
from mirrorq.replication.master.attachments import Attachment
from mirrorq.replication.master.auto_delete import AutoDelete, IdleExpiry
from mirrorq.replication.master.confirms import Confirms
from mirrorq.replication.master.courier import Targets, is_courier
from mirrorq.replication.master.delays import Delays
from mirrorq.replication.master.deliveries import Deliveries
from mirrorq.replication.master.departures import Departures
from mirrorq.replication.master.dispatch import Dispatch
from mirrorq.replication.master.endings import Endings
from mirrorq.replication.master.inquiries import Browses, counts
from mirrorq.replication.master.intake import Intake
from mirrorq.replication.master.length_limit import LengthLimit
from mirrorq.replication.master.producers import Producers
from mirrorq.replication.master.purging import Purging
from mirrorq.replication.master.settling import Settling
from mirrorq.replication.master.stages import Stages
from mirrorq.replication.master.term import Lease, Term
from mirrorq.replication.ring import Ring
from mirrorq.replication.state.queue_state import QueueState
from mirrorq.replication.transfer import Transfer

WAITING_COUNT = 64
"""`waiting` is cleared of void requests when it is twice as long as after the last time, plus
`WAITING_COUNT`."""
_STAGED = SealOp | CommitOp | AbortOp | AskOp


class Master:
    """A queue under its master, from promotion to successor. Made, stepped and dropped by `replica`
    on the node thread. Appends to the given ring."""

    def __init__(
        self,
        ring: Ring,
        state: QueueState,
        master_epoch: int,
        config: Config,
        codec: OpCodec,
        lease: Lease,
        bodies: Transfer,
        room: Room | None = None,
        targets: Targets | None = None,
    ) -> None:
        self.master_epoch = master_epoch
        self.active = False
        """True when `promoted` is applied, and all ready and delayed messages are sorted in."""
        self.yielded_epoch = 0
        """Epoch in which nothing is delivered any more (`handover`)."""
        self.auto_delete = AutoDelete(ring.queue_id, master_epoch)
        self.connection = ""
        """Owning connection of an exclusive queue, and its only consumer. The queue ends with
        it."""
        self.ownership = AutoDelete(ring.queue_id, master_epoch)
        """Auto-delete by handles of the owning connection instead of consumers."""
        self.idle_expiry = IdleExpiry(ring.queue_id, master_epoch)
        self._ring = ring
        self._state = state
        self._config = config
        self._term = Term(ring, state, master_epoch, config, codec, lease, bodies, room, targets)
        self.log = self._term.log
        self.attachments = self._term.attachments
        self.confirms = Confirms(self._term)
        self.producers = Producers(self._term, self.confirms)
        self.departures = Departures(self._term)
        self.endings = Endings(self._term, self.departures)
        self.length_limit = LengthLimit(self._term, self.endings)
        self.intake = Intake(
            self._term, self.producers, self.length_limit, self.endings, self.departures
        )
        self.settling = Settling(self._term, self.endings, self.departures)
        self.deliveries = Deliveries(self._term, self.settling)
        self.purging = Purging(self._term, self.settling, self.departures)
        self.browses = Browses(self._term)
        self.stages = Stages(
            self._term,
            self.producers,
            self.confirms,
            self.intake,
            self.length_limit,
            self.departures,
        )
        self.waiting: Fifo[sessions.SessionRequest] = Fifo()
        """Requests that came before `promoted` was applied."""
        self._waiting_max = WAITING_COUNT
        self.is_beginning = False
        """True when `promoted` is applied, and messages are still to be sorted in."""
        self._more = self._term.timers.new()
        """Wakes the queue to sort in, or to set aside, another portion of messages."""
        self._unused = self._term.timers.new()
        """Wakes the queue to judge again if it has been left by all users."""

    # --- Queries --------------------------------------------------------------------------

    @property
    def dispatch(self) -> Dispatch:
        return self._term.dispatch

    @property
    def delays(self) -> Delays:
        return self._term.delays

    @property
    def timers(self) -> Timers:
        """Timers at which parts of the master want to be woken."""
        return self._term.timers

    @property
    def definition(self) -> Definition:
        """Definition of the policy in force."""
        return self._term.definition

    @property
    def blocked_by(self) -> str:
        """Why publishes or their confirms wait, "" when they do not."""
        return self.confirms.withheld_by or self.intake.blocked_by

    @property
    def has_yielded(self) -> bool:
        return self.yielded_epoch == self._ring.epoch

    @property
    def delayed_count(self) -> int:
        """Number of messages that wait for a time, or are on their way back to the queue."""
        return self._term.delays.count + self.settling.returning_count

    @property
    def lease_wanted_until_ms(self) -> int:
        """Time until which this queue needs its node's lease, as far as is known."""
        return max(self.deliveries.lease_wanted_until_ms, self.confirms.lease_wanted_until_ms)

    def take_commands(self) -> list[CatalogCommand]:
        """Return the commands for the catalog, and forget them."""
        commands, self._term.commands = self._term.commands, []
        return commands

    # --- The term ------------------------------------------------------------------------

    def propose_first(self, now_ms: int, promoted: ops.PromotedOp) -> None:
        """Propose the first op of the term."""
        # Messages returned by the promotion may exceed a limit, as any return may.
        self.length_limit.is_enforcing = False
        self.log.propose(promoted)

    def declare(self, now_ms: int, declared: Declared) -> None:
        """Take in the queue's declaration from the catalog, without the policy."""
        self.departures.is_ending = declared.is_ending
        self.departures.is_known = declared.has_outbox
        self.auto_delete.declare(
            auto_delete=declared.auto_delete, was_consumed=declared.was_consumed
        )
        if declared.connection and not self.connection:
            self.connection = declared.connection
            self.ownership.declare(auto_delete=True, was_consumed=True)
            self.ownership.lose(None, now_ms, self._config.consumer_return_ms)

    def define(self, definition: Definition) -> None:
        """Use this definition of the policy from now on."""
        term = self._term
        before, term.definition = term.definition, definition
        if definition == before:
            return
        if definition.message_ttl != before.message_ttl:
            self.endings.collect_deadlines()
        self.intake.define(before)
        self.length_limit.define()
        if self.active:
            self.length_limit.count()
        term.dispatch.is_single = definition.single_active_consumer
        if definition.consumer_timeout != before.consumer_timeout:
            self.deliveries.set_overdue()
        self.idle_expiry.expires_ms = definition.expires
        if self.active:
            self._announce_unique_window(before.unique_window)

    def _announce_unique_window(self, known_ms: int) -> None:
        """Propose the window for unique keys: all copies use the window in the log, because
        policies reach nodes at different times."""
        window_ms = self._term.definition.unique_window
        if window_ms != known_ms:
            self.log.propose(ops.UniqueWindowOp(window_ms))

    def begin_portion(self, now_ms: int) -> None:
        """Sort in a portion of the messages at the begin of a term. No request is served before the
        end, so no op comes, and the state is as `promoted` has left it."""
        self.is_beginning = not self._term.begin_portion()
        if self.is_beginning:
            self._more.set(now_ms)
        else:
            self._more.clear()
            self._activate(now_ms)

    def on_judged(self, bodies: RangeSet, *, are_lost: bool) -> None:
        """Take in the judgement of members: these bodies are lost on all, or not lost any more."""
        if self.active:
            if are_lost:
                self._term.dispatch.ready.lose(bodies)
            else:
                self._term.dispatch.ready.find(bodies)

    def _activate(self, now_ms: int) -> None:
        lost = self._term.bodies.lost
        if lost:
            self._term.dispatch.ready.lose(lost.copy())
        self.endings.collect_deadlines()
        self.length_limit.count()
        self.active = True
        self._announce_unique_window(self._state.unique_window_ms)
        return_us = 2 * self._config.failure_ms * 1000
        self.idle_expiry.begin_term(self.log.time_us, self._state.idle_since_us, return_us)
        for users in (self.auto_delete, self.ownership):
            if users.was_consumed:
                users.lose(None, now_ms, self._config.consumer_return_ms)
                users.expect(now_ms + 2 * self._config.failure_ms)
        while self.waiting:
            self.on_request(now_ms, self.waiting.popleft())

    # --- Requests -------------------------------------------------------------------------

    def on_request(self, now_ms: int, request: sessions.SessionRequest) -> None:
        """Take a request of a handle."""
        if request.epoch != self.master_epoch:
            return
        if not self.active:
            self._wait(request)
            return
        session, body = request.session, request.request
        if isinstance(body, sessions.Attach):
            self._attach(now_ms, request, body)
            return
        if isinstance(body, sessions.Detach) and session in self.attachments:
            # Requests before it may be lost: the handle is closed, and all held messages go back.
            if request.attachment >= self.attachments.number_of(session):
                if body.is_lost:
                    self._lose(now_ms, session)
                self.on_session_gone(session, body.seen)
            return
        attachment = self.attachments.accept(request)
        if attachment is not None:
            self._serve(now_ms, session, attachment, body)

    def _wait(self, request: sessions.SessionRequest) -> None:
        """Keep a request until the term is active. Handles without answers attach again and repeat
        their requests, so requests of older attachments are dropped to save memory."""
        self.waiting.append(request)
        if len(self.waiting) > self._waiting_max:
            newest: dict[SessionId, int] = {}
            for one in self.waiting:
                newest[one.session] = max(newest.get(one.session, 0), one.attachment)
            kept = (one for one in self.waiting if one.attachment == newest[one.session])
            self.waiting = Fifo.of(kept)
            self._waiting_max = 2 * len(self.waiting) + WAITING_COUNT

    def _attach(self, now_ms: int, request: sessions.SessionRequest, body: sessions.Attach) -> None:
        session = request.session
        former = self.attachments.former(session, body)
        attachment = self.attachments.attach(request, body)
        if attachment is None:
            return
        self.ownership.find(attachment.handle(session))
        was_lost = self.auto_delete.find(attachment.handle(session))
        if was_lost or self._term.dispatch.consumers.has_callback(former or session):
            # The handle subscribes again next.
            self.auto_delete.expect(now_ms + self._config.failure_ms)
        if former is not None:
            self._succeed(former, session)
        if not is_courier(session):
            self.idle_expiry.use(self.log.time_us)
        self.deliveries.attach(session, body.held)
        if body.producer:
            self.producers.attach(session, attachment, body.producer)
        self.length_limit.tell(session, attachment)
        self._term.reply(session, sessions.Attached())

    def _succeed(self, former: SessionId, session: SessionId) -> None:
        """Give the former session's holdings to the client's session at another entry node.

        The order matters. Messages that wait at the old node would otherwise come behind later
        deliveries (P2), and acks of held messages would name another session.
        """
        attachment = self.attachments.detach(former)
        if attachment is not None:
            self.producers.drop(former, attachment)
        self.confirms.forget(former)
        self.deliveries.succeed(former, session)

    def _serve(
        self, now_ms: int, session: SessionId, attachment: Attachment, body: sessions.Request
    ) -> None:
        match body:
            case sessions.Publish():
                self._publish(now_ms, session, attachment, body)
            case sessions.Settle():
                self.settling.on_settle(session, body)
            case sessions.Subscribe() if self._is_foreign(attachment):
                self._term.reply(session, sessions.ConsumerRefused(body.number, self._owner_text))
            case sessions.Purge() if self._is_foreign(attachment):
                self._term.reply(session, sessions.Purged(body.request, 0, self._owner_text))
            case sessions.Credit():
                self.idle_expiry.use(self.log.time_us)
                self._term.dispatch.consumers.credit((session, body.number), body.total, body.size)
            case sessions.Subscribe():
                if not self._is_ending:
                    self.deliveries.subscribe(session, body)
            case sessions.Unsubscribe():
                self._term.dispatch.consumers.remove((session, body.number))
            case sessions.OpenProducer():
                self.producers.open(session)
            case sessions.Browse():
                self.browses.on_browse(now_ms, session, body)
            case sessions.Purge():
                self.purging.on_purge(now_ms, session, body)
            case sessions.Pause() if self._is_foreign(attachment):
                self._term.reply(session, sessions.Purged(body.request, 0, self._owner_text))
            case sessions.Pause():
                self._pause(session, body)
            case sessions.Extend():
                self.deliveries.extend(now_ms, session, body)
            case sessions.Recalled():
                self.purging.on_recalled(session, body.number)
            case sessions.AckRange():
                self.purging.on_ack_range(session, body)
            case sessions.Inquire():
                self._term.reply(session, counts(self._term, session, body, self.delayed_count))
            case sessions.Ping():
                self._term.reply(session, sessions.Pong())
            case _:
                pass

    def _pause(self, session: SessionId, body: sessions.Pause) -> None:
        """Pause or resume deliveries. The answer follows when the op is stable."""
        self.log.propose(ops.PauseOp(body.is_paused))
        self.settling.answer_purge(session, body.request, 0)

    @property
    def _is_ending(self) -> bool:
        """True when the queue's deletion is asked for: no consumer is seated any more."""
        return any(one.is_ending for one in (self.auto_delete, self.ownership, self.idle_expiry))

    @property
    def _owner_text(self) -> str:
        return f"the queue is exclusive: it belongs to connection {self.connection}"

    def _is_foreign(self, attachment: Attachment) -> bool:
        """Return true if the attachment is not the owner's of an exclusive queue."""
        return bool(self.connection) and attachment.connection != self.connection

    def _publish(
        self, now_ms: int, session: SessionId, attachment: Attachment, body: sessions.Publish
    ) -> None:
        header = self._term.codec.header(body.frame)
        if header.flags & ops.FLAG_STAGED:
            self.stages.on_publish(session, attachment.number, body)
        else:
            self.intake.on_publish(now_ms, (session, attachment.number, body, header))

    # --- Ended sessions -------------------------------------------------------------------

    def _lose(self, now_ms: int, session: SessionId) -> None:
        """Note that a handle is about to go without a close."""
        attachment = self.attachments.get(session)
        if attachment is None:
            return
        self._await_owner(now_ms, session, attachment)
        if self._term.dispatch.consumers.has_callback(session):
            wait_ms = self._config.consumer_return_ms
            self.auto_delete.lose(attachment.handle(session), now_ms, wait_ms)

    def _await_owner(self, now_ms: int, session: SessionId, attachment: Attachment) -> None:
        """Wait for an owner's handle that is about to go without a close."""
        if attachment.connection == self.connection:
            wait_ms = self._config.consumer_return_ms
            self.ownership.lose(attachment.handle(session), now_ms, wait_ms)

    def on_session_gone(self, session: SessionId, seen: int = sessions.ALL_SEEN) -> None:
        """End a closed or dead handle: held messages go back, as in `Deliveries.drop`."""
        self.waiting = Fifo.of(r for r in self.waiting if r.session != session)
        attachment = self.attachments.detach(session)
        if attachment is not None:
            self.producers.drop(session, attachment)
        self.confirms.forget(session)
        self.deliveries.drop(session, seen)

    def on_expelled(self, session: SessionId, consumer: int, why: str) -> None:
        """End a consumer that an operator has disconnected: held messages go back, counted."""
        self.deliveries.expel(session, consumer, why)

    @property
    def may_await_lease(self) -> bool:
        """Return true if a confirm or a consumer waits, perhaps for the lease."""
        waits = self.confirms.runs or self.confirms.repeats or self._term.dispatch.consumers.waiting
        return bool(waits)

    def may_have_users(self, node: str) -> bool:
        """Return true if handles are on the node, or consumers of a former term may be."""
        if self.auto_delete.was_consumed or self.ownership.was_consumed:
            return True
        holders = chain(self.attachments, (request.session for request in self.waiting))
        return any(holder.node == node for holder in holders)

    def on_node_gone(self, now_ms: int, node: str, incarnation: int | None) -> None:
        """End the handles of a node that is gone; with an incarnation, only handles of older
        incarnations. Clients that entered at the node move to another node."""
        waiting = [request.session for request in self.waiting]
        for session in dict.fromkeys([*self.attachments, *waiting]):
            if session.node == node and (incarnation is None or session.incarnation < incarnation):
                attachment = self.attachments.get(session)
                if attachment is not None and attachment.line:
                    self._lose(now_ms, session)
                elif attachment is not None and incarnation is None:
                    # The node may only be silent. Otherwise the catalog ends its exclusive queues
                    # with its next life.
                    self._await_owner(now_ms, session, attachment)
                self.on_session_gone(session)

    def on_link_lost(self, now_ms: int, node: str) -> None:
        """Let handles on the node attach again in time, or count them as gone.

        Handles of a former term are not known by name. A consumer on the node that has not attached
        in this term gets time, as all consumers had when the term began.
        """
        for users in (self.auto_delete, self.ownership):
            if users.was_consumed:
                users.expect(now_ms + 2 * self._config.failure_ms)
        self.waiting = Fifo.of(r for r in self.waiting if r.session.node != node)
        self.attachments.on_link_lost(now_ms, node)

    def knows(self, queue_id: int) -> bool:
        """Return true if numbers of messages to or from that queue are kept."""
        return queue_id in self._state.outbox or queue_id in self.producers.senders

    @property
    def has_neighbours(self) -> bool:
        """True if this queue knows any other queue."""
        return bool(self._state.outbox or self.producers.senders)

    def on_neighbours_changed(self, queues: tuple[int, ...] | None) -> None:
        """Take in that other queues have new masters, or are deleted; None: perhaps all."""
        self.departures.couriers.on_targets_changed(queues)
        self.producers.look_at_senders(queues)

    # --- Applied ops ----------------------------------------------------------------------

    def on_applied(self, now_ms: int, entry: ops.Entry) -> None:
        """Answer the requests that wait for this stable and applied op."""
        if isinstance(entry.step, Stage) or isinstance(entry.payload, _STAGED):
            self._on_staged(entry)
        elif entry.payload is None:
            self._on_published(now_ms, entry)
        else:
            self._on_op(now_ms, entry, entry.payload)
        self.settling.discharge(entry.header.lsn)

    def _on_published(self, now_ms: int, entry: ops.Entry) -> None:
        header = entry.header
        first, last = self.log.coming.on_applied(header.first_sequence, header.last_sequence)
        if isinstance(entry.step, ops.Step):
            first = max(first, header.first_sequence + 1)
            last = 0 if entry.step.target else last
        if header.delay_ms:
            for low, high, due_us in self._state.delayed.within(first, last):
                self._term.delays.wait(low, high, due_us)
        elif first <= last:
            priority = header.priority if header.flags & ops.FLAG_PRIORITY else 0
            ready = self._state.live.within(first, last) if entry.keys else [(first, last)]
            for piece in ready:
                self._term.dispatch.ready.add(*piece, priority)
            self.endings.expiry.add_ready(ready)
        if entry.keys:
            self.confirms.note_each(header)
            self.producers.expect_keys(now_ms)
        else:
            run = (header.first_number, header.count, header.first_sequence)
            self.confirms.record_numbers(header.producer, run)

    def _on_op(self, now_ms: int, entry: ops.Entry, payload: ops.Payload) -> None:
        match payload:
            case ops.ReturnOp():
                self._term.dispatch.ready.give_back(list(payload.ranges))
            case ops.ReturnLaterOp():
                for first, last in payload.ranges:
                    self._term.delays.wait(first, last, payload.due_us)
            case ops.DueOp():
                self._term.dispatch.ready.give_back(self._term.delays.on_entered(payload))
            case ops.PromotedOp():
                # The epoch is later when this node learned of the term from a snapshot.
                if entry.header.epoch >= self.master_epoch:
                    self._term.start_from_state()
                    self.is_beginning = True
            case ops.ProducerOp():
                self.producers.on_applied(entry.header.lsn, payload)
            case ops.RefusalOp():
                self.confirms.refuse(entry.header, payload.reason)
            case ops.PauseOp(is_paused=True):
                for fetcher, _ in self._term.dispatch.open.fetchers():
                    # Handles give back messages that no call has returned.
                    self._term.reply(fetcher, sessions.Recall(0, 0))
            case ops.HorizonOp() | ops.HorizonsOp():
                self._term.horizons.on_applied()
            case _:
                pass

    def _on_staged(self, entry: ops.Entry) -> None:
        op = entry.payload
        if isinstance(op, CommitOp):
            first, last = self.log.coming.on_applied(op.sequence + 1, op.sequence + op.count)
            if not self._state.verdict and first <= last:
                self._term.dispatch.ready.add(first, last, 0)
                self._term.dispatch.ready.look_for_lost(first, last)
                self.endings.expiry.add_ready(((first, last),))
        self.stages.on_applied(entry)

    # --- The end of a step ----------------------------------------------------------------

    def settle(self, now_ms: int) -> None:
        """Turn the requests of this step into ops, replies and deliveries.

        Parts that have nothing to do are not called: most steps are about marks only.
        """
        if not self.active:
            return
        settling, dispatch = self.settling, self._term.dispatch
        if dispatch.ready.losing:
            self._set_lost_aside(now_ms)
        if now_ms >= self._term.timers.next_ms:
            self._end_overdue(now_ms)
        if self.length_limit.is_counting:
            self.length_limit.count_portion(now_ms)
        self._end_idle(now_ms)
        self._take_in(now_ms)
        if settling.has_work or dispatch.open.leaving:
            settling.flush()
        if self.purging.is_open:
            self.purging.end_portion(now_ms)
        if self._term.delays.is_waiting:
            self._end_delays()
        if settling.duties:
            settling.discharge(self._state.applied)
        if dispatch.consumers.waiting:
            self._deliver(now_ms)
        elif self.intake.held_by:
            self.intake.admit_held(now_ms)
        self.departures.move_entries(now_ms)
        if self.length_limit.limit is not None or self.length_limit.has_told:
            self.length_limit.tell_all(now_ms)
        if self.confirms.runs or self.confirms.repeats:
            self.confirms.flush(now_ms)
        self._judge_use(now_ms)
        self._set_timers(now_ms)

    def _set_lost_aside(self, now_ms: int) -> None:
        if self._term.dispatch.ready.set_lost_aside():
            self._more.set(now_ms)
        else:
            self._more.clear()

    def _end_overdue(self, now_ms: int) -> None:
        """End overdue sessions, and run parts that only a timer wakes."""
        for session in self.attachments.overdue(now_ms):
            self._lose(now_ms, session)
            self.on_session_gone(session)
        self.deliveries.more.clear()
        self.browses.look_at_portion(now_ms)
        if now_ms >= self.deliveries.overdue.at_ms:
            self.deliveries.end_overdue(now_ms)

    def _end_idle(self, now_ms: int) -> None:
        """End producers and messages that have outlived their time."""
        producers, endings = self.producers, self.endings
        if now_ms >= producers.look_at_ms or producers.look_from is not None:
            producers.expire(now_ms)
        if producers.doubtful:
            producers.end_senders()
        if endings.expiry.next_ms is not None or self._term.dispatch.ready.came_back:
            endings.expire()
        if self.length_limit.is_enforcing:
            self.length_limit.enforce()

    def _take_in(self, now_ms: int) -> None:
        """Admit held requests that may go on by now."""
        intake, stages = self.intake, self.stages
        if self.settling.held_moves:
            self.settling.resume_moves()
        if intake.held or intake.held_by:
            intake.admit_held(now_ms)
        if stages.held:
            stages.admit()
        if now_ms >= stages.look_ms:
            stages.expire(now_ms)

    def _deliver(self, now_ms: int) -> None:
        """Deliver to consumers that wait."""
        # P2: returning messages come before messages behind them.
        is_held = self.has_yielded or self._state.is_paused
        is_free = not (self.settling.is_returning or is_held or self.purging.is_open)
        self.deliveries.deliver_ready(now_ms, is_free=is_free)
        if self.intake.held_by:
            # Deliveries have made room, and no other event may admit held publishes.
            self.intake.admit_held(now_ms)
        self.deliveries.move_horizon()

    def _end_delays(self) -> None:
        due = self._term.delays.due(self.log.time_us, self.log.next_sequence)
        if due is not None:
            self.log.propose(due)

    def _judge_use(self, now_ms: int) -> None:
        """Judge if the queue has been left by all users, and ask for its deletion."""
        dispatch, auto_delete, idle_expiry = self._term.dispatch, self.auto_delete, self.idle_expiry
        consumers = dispatch.consumers.callback_count
        is_used = bool(consumers or dispatch.open.unacknowledged or dispatch.consumers.waiting)
        time_us = self.log.time_us
        op = None if self.has_yielded else idle_expiry.look(time_us, is_used)
        if op is not None:
            self.log.propose(op)
        is_leavable = auto_delete.auto_delete or self.ownership.auto_delete
        if not is_leavable and idle_expiry.expires_ms is None:
            if self._unused.at_ms != FOREVER_MS:
                self._unused.clear()
            return
        for command in (
            auto_delete.judge(now_ms, consumers),
            self.ownership.judge(now_ms, self.attachments.count_of(self.connection)),
            idle_expiry.judge(time_us),
        ):
            if command is not None:
                self._term.commands.append(command)
        look_ms = earliest(auto_delete.wake_at_ms(), idle_expiry.wake_at_ms(now_ms, time_us))
        look_ms = earliest(look_ms, self.ownership.wake_at_ms())
        self._unused.set(FOREVER_MS if look_ms is None else look_ms)

    def _set_timers(self, now_ms: int) -> None:
        """Set the timers of parts that use the queue's time, or look again after a while."""
        endings, delays, intake = self.endings, self._term.delays, self.intake
        if endings.expiry.next_ms is not None or endings.look.at_ms != FOREVER_MS:
            endings.set_timer(now_ms)
        if delays.is_waiting or delays.look.at_ms != FOREVER_MS:
            delays.set_timer(now_ms, self.log.time_us)
        if intake.held or intake.look.at_ms != FOREVER_MS:
            intake.set_timer(now_ms)
