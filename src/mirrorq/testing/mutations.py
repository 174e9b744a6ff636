"""Deliberate bugs of the protocol, each one rule left out: does a checker notice?

    with mutation("watermark is received"):
        ...

Each entry of `MUTATIONS` patches the real module for as long as its `with` block lasts. The
names and what they stand for are in docs/protocol.md; nothing but the tests switches one on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from attrs import evolve

from mirrorq import catalog, outlook, ring, supervisor, view
from mirrorq.catalog import Catalog
from mirrorq.delivery import Delivery
from mirrorq.handover import HandOvers
from mirrorq.lease import Leading, LeaseGrantor, LeaseHolder
from mirrorq.liveness import Liveness
from mirrorq.master import Master
from mirrorq.messages import (
    AckOp,
    Data,
    HandOut,
    History,
    HistoryRequest,
    Mark,
    MemberId,
    OutboxDoneOp,
    OutboxOp,
    PromotedOp,
    Refused,
    TransferState,
    View,
    Watermark,
    Yielded,
)
from mirrorq.outbox import Outbox
from mirrorq.queue_state import NUMBER_MAX, QueueState
from mirrorq.replica import Replica, RingReceived
from mirrorq.ring import Ring
from mirrorq.transfer import Fetch, Transfer

__all__ = ["MUTATIONS", "mutation"]

Patch = tuple[Any, str, Any]
"""(where, name, what stands there instead)."""

MUTATIONS: dict[str, Callable[[], Sequence[Patch]]] = {}


@contextmanager
def mutation(name: str) -> Iterator[None]:
    """Switch one deliberate bug on."""
    with ExitStack() as undo:
        for where, attribute, value in MUTATIONS[name]():
            undo.callback(setattr, where, attribute, where.__dict__[attribute])
            setattr(where, attribute, value)
        yield


def _named(
    name: str,
) -> Callable[[Callable[[], Sequence[Patch]]], Callable[[], Sequence[Patch]]]:
    def note(patches: Callable[[], Sequence[Patch]]) -> Callable[[], Sequence[Patch]]:
        MUTATIONS[name] = patches
        return patches

    return note


# --- Marks --------------------------------------------------------------------------------


@_named("confirm before the own disk")
def _confirm_early() -> Sequence[Patch]:
    real = Ring._advance_stable

    def advance(self: Ring) -> None:
        kept, self.durable = self.durable, self.received
        real(self)
        self.durable = kept

    return [(Ring, "_advance_stable", advance)]


@_named("watermark is received")
def _watermark_received() -> Sequence[Patch]:
    real = Ring._pass_watermark

    def pass_on(self: Ring) -> None:
        kept, self.durable = self.durable, self.received
        real(self)
        self.durable = kept

    return [(Ring, "_pass_watermark", pass_on)]


@_named("own durable without the minimum")
def _own_durable() -> Sequence[Patch]:
    real = Ring._pass_watermark

    def pass_on(self: Ring) -> None:
        kept = self._w_left
        if not self.is_master:
            self._w_left = self.durable
        real(self)
        self._w_left = kept

    return [(Ring, "_pass_watermark", pass_on)]


@_named("watermark kept over a view change")
def _watermark_kept() -> Sequence[Patch]:
    real = Ring.install

    def install(self: Ring, new: View) -> None:
        kept = self._w_left
        real(self, new)
        self._w_left = kept

    return [(Ring, "install", install)]


@_named("watermark of another epoch")
def _watermark_epoch() -> Sequence[Patch]:
    return _any_epoch(Watermark)


@_named("data of another epoch")
def _data_epoch() -> Sequence[Patch]:
    """Links are FIFO, so the check of the epoch and the wait for repair guard the same: this
    leaves out both."""
    real = Ring.on_data

    def on_data(self: Ring, sender: MemberId, message: Data) -> None:
        kept, self.repaired = self.repaired, True
        real(self, sender, message)
        self.repaired = kept

    return [*_any_epoch(Data), (Ring, "on_data", on_data)]


@_named("stale repair answer")
def _history_epoch() -> Sequence[Patch]:
    return _any_epoch(History)


def _any_epoch(kind: type) -> Sequence[Patch]:
    """Messages of this kind count in whatever epoch they were sent."""
    real = Replica._on_event

    def on_event(self: Replica, now_ms: int, wall_us: int, event: Any) -> None:
        if isinstance(event, RingReceived) and isinstance(event.message, kind):
            message: Any = event.message
            event = RingReceived(event.sender, evolve(message, epoch=self.ring.epoch))
        real(self, now_ms, wall_us, event)

    return [(Replica, "_on_event", on_event)]


@_named("watermark before repair")
def _watermark_unrepaired() -> Sequence[Patch]:
    real_on, real_settle = Ring.on_watermark, Ring.settle

    def on_watermark(self: Ring, sender: MemberId, message: Watermark) -> None:
        kept, self.repaired = self.repaired, True
        real_on(self, sender, message)
        self.repaired = kept

    def settle(self: Ring) -> None:
        if not self.repaired and self.view is not None:
            self._pass_watermark()
        real_settle(self)

    return [(Ring, "on_watermark", on_watermark), (Ring, "settle", settle)]


@_named("durable not lowered by a cut")
def _durable_kept() -> Sequence[Patch]:
    real = Ring._cut

    def cut(self: Ring, lsn: int) -> None:
        durable, writes = self.durable, self._writes
        real(self, lsn)
        self.durable, self._writes = durable, writes

    def on_persisted(self: Ring, number: int) -> None:
        while self._writes and self._writes[0][0] <= number:
            self.durable = max(self.durable, self._writes.popleft()[1])

    return [(Ring, "_cut", cut), (Ring, "on_persisted", on_persisted)]


@_named("apply on received")
def _apply_received() -> Sequence[Patch]:
    real = Replica._apply_stable

    def apply(self: Replica, now_ms: int) -> None:
        kept, self.ring.stable = self.ring.stable, self.ring.received
        real(self, now_ms)
        self.ring.stable = kept

    return [(Replica, "_apply_stable", apply)]


# --- Repair -------------------------------------------------------------------------------


@_named("cut by length")
def _cut_by_length() -> Sequence[Patch]:
    def common(mine: list[tuple[int, int]], theirs: Any) -> int:
        pairs = list(theirs)
        return min(mine[-1][1], int(pairs[-1][1])) if mine and pairs else 0

    return [(ring, "common_lsn", common)]


@_named("cut by the last epoch alone")
def _cut_by_last() -> Sequence[Patch]:
    def common(mine: list[tuple[int, int]], theirs: Any) -> int:
        pairs = list(theirs)
        if not mine or not pairs:
            return 0
        (epoch, last), (their_epoch, their_last) = mine[-1], pairs[-1]
        return min(last, their_last) if epoch <= their_epoch else 0

    return [(ring, "common_lsn", common)]


@_named("cut to the left's length")
def _cut_to_left() -> Sequence[Patch]:
    real = Ring.on_mark

    def on_mark(self: Ring, sender: MemberId, message: Mark) -> None:
        if self.repaired and message.epoch == self.epoch and sender == self._left():
            self._cut(message.received)
        real(self, sender, message)

    return [(Ring, "on_mark", on_mark)]


@_named("unrepaired left answers")
def _unrepaired_answers() -> Sequence[Patch]:
    real = Ring.on_history_request

    def on_request(self: Ring, sender: MemberId, message: HistoryRequest) -> None:
        if not self.repaired and message.epoch == self.epoch and sender == self._right():
            answer = History(self.queue_id, self.epoch, tuple(self.history))
            self._send(sender, answer)
        real(self, sender, message)

    return [(Ring, "on_history_request", on_request)]


# --- Counting in --------------------------------------------------------------------------


@_named("counted in at once")
def _counted_at_once() -> Sequence[Patch]:
    def countable(self: Ring, excluded: Any = ()) -> tuple[MemberId, ...]:
        if self.view is None or not self.is_master:
            return ()
        self.gates.update((one, durable) for one, durable in self.joiners.items())
        return tuple(self.gates)

    return [(Ring, "countable", countable)]


@_named("counted in by the known stable mark only")
def _counted_by_stable() -> Sequence[Patch]:
    """A master that does not wait for its own promotion either: with that wait stable is
    beyond the history by itself."""
    real = Replica._count_in

    def count_in(self: Replica, now_ms: int, out: Any) -> None:
        if self.master is None:
            return
        start_last, active = self.ring.start_last, self.master.active
        self.ring.start_last, self.master.active = 0, True
        real(self, now_ms, out)
        self.ring.start_last, self.master.active = start_last, active

    return [(Replica, "_count_in", count_in)]


@_named("gate ended by a timeout")
def _gate_timeout() -> Sequence[Patch]:
    real = Ring.on_tick

    def on_tick(self: Ring) -> None:
        self.gates = {}
        self.joiners = {}
        real(self)

    return [(Ring, "on_tick", on_tick)]


@_named("joiner reports before its disk")
def _joiner_received() -> Sequence[Patch]:
    real = Ring._report_joiner

    def report(self: Ring) -> None:
        kept, self.durable = self.durable, self.received
        real(self)
        self.durable = kept

    return [(Ring, "_report_joiner", report)]


@_named("joiner reports before it is complete")
def _joiner_incomplete() -> Sequence[Patch]:
    real = Ring._report_joiner

    def report(self: Ring) -> None:
        kept, self.complete = self.complete, True
        real(self)
        self.complete = kept

    return [(Ring, "_report_joiner", report)]


@_named("natural drain on received acks")
def _drain_received() -> Sequence[Patch]:
    real = Ring._accept

    def accept(self: Ring, entry: Any) -> None:
        real(self, entry)
        if isinstance(entry.payload, AckOp):
            self._drained = entry.payload.ranges  # type: ignore[attr-defined]

    real_settle = Replica._settle

    def settle(self: Replica, now_ms: int, out: Any) -> None:
        self.transfer.on_ended(getattr(self.ring, "_drained", ()))
        real_settle(self, now_ms, out)

    return [(Ring, "_accept", accept), (Replica, "_settle", settle)]


@_named("gate of a dropped member ended at the proposal")
def _drop_at_proposal() -> Sequence[Patch]:
    real = Replica._move_slow_out

    def move(self: Replica, now_ms: int, out: Any) -> None:
        before = out.propose
        real(self, now_ms, out)
        if out.propose is not before:
            self.ring._w_left = self.ring.durable

    return [(Replica, "_move_slow_out", move)]


# --- Transfer -----------------------------------------------------------------------------


@_named("state taken from the received log")
def _state_received() -> Sequence[Patch]:
    real = Replica._give_state

    def give(self: Replica, sender: MemberId, message: Any) -> None:
        kept = self.state
        self.state = QueueState.decode(kept.encode())
        for lsn in range(kept.applied + 1, self.ring.received + 1):
            entry = self.ring.entry(lsn)
            if entry is not None:
                self.state.apply(entry)
        real(self, sender, message)
        self.state = kept

    return [(Replica, "_give_state", give)]


@_named("state merged, not replaced")
def _state_merged() -> Sequence[Patch]:
    real = Replica._take_state

    def take(self: Replica, now_ms: int, message: TransferState) -> None:
        before = self.state
        real(self, now_ms, message)
        if self.state is not before:
            for first, last in before.live:
                self.state.live.add(first, last)

    return [(Replica, "_take_state", take)]


@_named("late body makes an acked message live")
def _late_body() -> Sequence[Patch]:
    real = Transfer.accept_chunk

    def accept(self: Transfer, now_ms: int, message: Any, epoch: int, state: QueueState) -> Any:
        for entry in message.entries:
            state.live.add(entry.header.first_sequence, entry.header.last_sequence)
        return real(self, now_ms, message, epoch, state)

    return [(Transfer, "accept_chunk", accept)]


@_named("answer of a cancelled transfer")
def _cancelled_transfer() -> Sequence[Patch]:
    """Any chunk counts as the one asked for, and the copy as complete after it."""
    real = Transfer.accept_chunk

    def accept(self: Transfer, now_ms: int, message: Any, epoch: int, state: QueueState) -> Any:
        first, last = message.after_sequence + 1, message.upto_sequence
        self._fetches[message.number] = Fetch(self.me, first, last, False)
        found = real(self, now_ms, message, epoch, state)
        if message.upto_sequence >= self.missing.last if self.missing else False:
            self.missing.remove(1, message.upto_sequence)
        return found

    return [(Transfer, "accept_chunk", accept)]


# --- Views --------------------------------------------------------------------------------


@_named("promotion of one not in sync")
def _promote_joiner() -> Sequence[Patch]:
    def no_error(found: View, command: Any) -> str:
        return ""

    return [(catalog, "_promotion_error", no_error)]


@_named("unclean promotion although when-synced")
def _lose_anyway() -> Sequence[Patch]:
    def may_lose(self: catalog.Catalog, queue: Any) -> bool:
        return True

    return [(catalog.Catalog, "may_lose", may_lose)]


@_named("wiped store taken for the old member")
def _wiped_store() -> Sequence[Patch]:
    def find_store(found: View, node: str, store: int) -> Any:
        return next((one for one in found.members if one.id.node == node), None)

    return [(catalog, "find_store", find_store)]


@_named("restarted replicated member counted as in sync")
def _lives_do_not_count() -> Sequence[Patch]:
    def counts_lives(found: View) -> bool:
        return False

    return [(module, "counts_lives", counts_lives) for module in (catalog, outlook, supervisor)]


@_named("proposal without compare-and-set")
def _no_compare() -> Sequence[Patch]:
    real = catalog.Catalog._on_change_view

    def on_change(self: catalog.Catalog, command: Any) -> catalog.CatalogResult:
        known = self.queue(command.queue_id)
        if known is not None:
            command = evolve(command, replaces=known.view.epoch)
        return real(self, command)

    return [(catalog.Catalog, "_on_change_view", on_change)]


@_named("restarted master acts in its old epoch")
def _old_incarnation() -> Sequence[Patch]:
    def place_of(found: View, member_id: MemberId) -> int | None:
        for place, member in enumerate(found.members):
            if (member.id.node, member.id.store) == (member_id.node, member_id.store):
                return place
        return None

    def is_master(found: View, member_id: MemberId) -> bool:
        return place_of(found, member_id) == 0

    return [(view, "index", place_of), (view, "is_master", is_master)]


# --- Users --------------------------------------------------------------------------------


@_named("hand-out without lease")
def _no_lease() -> Sequence[Patch]:
    real = Master.settle

    def settle(self: Master, now_ms: int) -> None:
        kept, self._lease.until_ms = self._lease.until_ms, now_ms + 1
        real(self, now_ms)
        self._lease.until_ms = kept

    return [(Master, "settle", settle)]


@_named("hand-out before the promotion is applied")
def _serve_early() -> Sequence[Patch]:
    """The new master ignores what it inherited, acks too."""
    real = Master.begin

    def begin(self: Master, now_ms: int, promoted: PromotedOp) -> None:
        real(self, now_ms, promoted)
        self.active = True

    def on_applied(self: Master, now_ms: int, entry: Any) -> None:
        if not isinstance(entry.payload, PromotedOp):
            real_applied(self, now_ms, entry)

    real_applied = Master.on_applied
    return [(Master, "begin", begin), (Master, "on_applied", on_applied)]


@_named("hand-out above the horizon")
def _no_horizon() -> Sequence[Patch]:
    def horizon(self: Delivery, priority: int) -> int:
        return 1 << 62

    return [(Delivery, "_horizon", horizon)]


@_named("ack by epoch and sequence only")
def _ack_by_sequence() -> Sequence[Patch]:
    def take(self: Delivery, session: Any, piece: HandOut) -> Any:
        found: list[tuple[int, int]] = []
        for number, known in list(self.open.items()):
            for first, last in known.left.within(piece.first, piece.last):
                self.unacknowledged -= known.left.remove(first, last)
                found.append((first, last))
            if not known.left:
                del self.open[number]
        for priority in self.ready.priorities:
            lane = self.ready.lane(priority)
            for first, last in lane.within(piece.first, piece.last):
                lane.remove(first, last)
                found.append((first, last))
        return found

    return [(Delivery, "take", take)]


@_named("give-back without hand-out number")
def _giveback_by_sequence() -> Sequence[Patch]:
    real = Delivery.take

    def take(self: Delivery, session: Any, piece: HandOut) -> Any:
        for number, known in list(self.open.items()):
            if known.left.within(piece.first, piece.last):
                piece = HandOut(piece.epoch, number, piece.first, piece.last, known.count)
                return real(self, known.key[0], piece)
        return real(self, session, piece)

    return [(Delivery, "take", take)]


@_named("return not counted")
def _return_uncounted() -> Sequence[Patch]:
    def forget(self: QueueState, ranges: Any, lsn: int) -> None:
        return None

    return [(QueueState, "_return", forget)]


@_named("promotion not counted")
def _promotion_uncounted() -> Sequence[Patch]:
    real = QueueState._promote

    def promote(self: QueueState, payload: Any, lsn: int) -> Any:
        ended = real(self, payload, lsn)
        self.marks = []
        return ended

    return [(QueueState, "_promote", promote)]


@_named("ack told before it is stable")
def _ack_early() -> Sequence[Patch]:
    real = Master._flush_settles

    def flush(self: Master, now_ms: int) -> None:
        real(self, now_ms)
        self._discharge(self._ring.received)

    return [(Master, "_flush_settles", flush)]


# --- Moving a living master ------------------------------------------------------------------


@_named("moved without its promise")
def _move_unpromised() -> Sequence[Patch]:
    def has_yielded(self: HandOvers, queue_id: int, found: View) -> bool:
        return True

    return [(HandOvers, "has_yielded", has_yielded)]


@_named("promise of another epoch")
def _promise_epoch() -> Sequence[Patch]:
    real = HandOvers.on_yielded

    def on_yielded(self: HandOvers, promise: Yielded, found: View) -> None:
        real(self, evolve(promise, epoch=found.epoch), found)

    return [(HandOvers, "on_yielded", on_yielded)]


@_named("promise not honoured")
def _promise_broken() -> Sequence[Patch]:
    """The master promises, and goes on handing out."""
    real = Master.settle

    def settle(self: Master, now_ms: int) -> None:
        kept, self.yielded_epoch = self.yielded_epoch, 0
        real(self, now_ms)
        self.yielded_epoch = kept

    return [(Master, "settle", settle)]


# --- Producers ----------------------------------------------------------------------------


@_named("dedupe against the applied table only")
def _dedupe_applied() -> Sequence[Patch]:
    real = Master._admit

    def admit(self: Master, now_ms: int, session: Any, attachment: Any, body: Any) -> None:
        for number, producer in self._state.producers.items():
            self._highest[number] = producer.highest
        real(self, now_ms, session, attachment, body)

    return [(Master, "_admit", admit)]


@_named("producer gap accepted")
def _gap_accepted() -> Sequence[Patch]:
    real = Master._admit

    def admit(self: Master, now_ms: int, session: Any, attachment: Any, body: Any) -> None:
        header = self._codec.header(body.frame)
        known = self._highest.get(header.producer)
        if known is not None and header.first_number > known + 1:
            self._highest[header.producer] = header.first_number - 1
        real(self, now_ms, session, attachment, body)

    return [(Master, "_admit", admit)]


@_named("unknown producer taken as new")
def _unknown_producer() -> Sequence[Patch]:
    real = Master._admit

    def admit(self: Master, now_ms: int, session: Any, attachment: Any, body: Any) -> None:
        self._highest.setdefault(self._codec.header(body.frame).producer, 0)
        real(self, now_ms, session, attachment, body)

    return [(Master, "_admit", admit)]


@_named("refusal that is no op")
def _refusal_no_op() -> Sequence[Patch]:
    def refuse(self: Master, now_ms: int, header: Any, reason: str) -> None:
        answer = Refused(header.producer, header.first_number, header.count, reason)
        self._reply(self._owner[header.producer], answer)

    return [(Master, "refuse", refuse)]


@_named("confirm of an op that is not stable")
def _confirm_unstable() -> Sequence[Patch]:
    real = Master._append

    def append(self: Master, entry: Any) -> None:
        real(self, entry)
        header = entry.header
        owner = self._owner.get(header.producer)
        if entry.payload is None and owner is not None:
            run = (header.first_number, header.count, header.first_sequence)
            self._confirms.setdefault((owner, header.producer), []).append(run)

    return [(Master, "_append", append)]


# --- The lease ----------------------------------------------------------------------------


@_named("lease before an entry of the own term")
def _lease_early() -> Sequence[Patch]:
    real = LeaseGrantor.answers

    def answers(self: LeaseGrantor, now_ms: int, leading: Leading) -> Any:
        return real(self, now_ms, evolve(leading, own_term_applied=True))

    return [(LeaseGrantor, "answers", answers)]


@_named("lease without the commit index")
def _lease_any_catalog() -> Sequence[Patch]:
    real = LeaseHolder.valid_until_ms

    def valid_until(self: LeaseHolder, applied_index: int) -> int:
        return real(self, 1 << 62)

    return [(LeaseHolder, "valid_until_ms", valid_until)]


@_named("lease from the grant's receipt")
def _lease_from_receipt() -> Sequence[Patch]:
    """The holder has no clock at the receipt: any later time stands for it."""
    real = LeaseHolder.on_answer

    def on_answer(self: LeaseHolder, answer: Any) -> None:
        for number in self._sent:
            self._sent[number] += 1
        real(self, answer)

    return [(LeaseHolder, "on_answer", on_answer)]


@_named("lease without the new leader's wait")
def _lease_no_wait() -> Sequence[Patch]:
    real = LeaseGrantor.elected

    def elected(self: LeaseGrantor, now_ms: int) -> None:
        real(self, now_ms)
        self._elected_free_ms = now_ms

    return [(LeaseGrantor, "elected", elected)]


@_named("dead on a refused probe alone")
def _dead_on_refusal() -> Sequence[Patch]:
    def refused(self: Liveness, node: str, number: int) -> None:
        for peer in self._peers.values():
            if peer.member.node == node:
                peer.dead_ms = self._last_ms

    return [(Liveness, "on_probe_refused", refused)]


# --- The outbox ---------------------------------------------------------------------------


@_named("outbox published from an unstable op")
def _outbox_unstable() -> Sequence[Patch]:
    real = Master._run_couriers

    def run(self: Master, now_ms: int) -> None:
        state = self._state
        applied, shadow = state.outbox, Outbox.restore(state.outbox.image(), NUMBER_MAX)
        for lsn in range(state.applied + 1, self._ring.received + 1):
            entry = self._ring.entry(lsn)
            payload = entry.payload if entry is not None else None
            if isinstance(payload, OutboxOp):
                shadow.add(payload.target, payload.ranges, payload.reason, 0)
            elif isinstance(payload, OutboxDoneOp):
                shadow.done(payload.target, payload.number)
        state.outbox = shadow
        real(self, now_ms)
        state.outbox = applied

    return [(Master, "_run_couriers", run)]


@_named("outbox lost with its queue")
def _outbox_lost() -> Sequence[Patch]:
    real = Catalog._on_delete_queue

    def delete(self: Catalog, command: Any) -> Any:
        return real(self, evolve(command, is_drained=True))

    return [(Catalog, "_on_delete_queue", delete)]


@_named("outbox's id expires")
def _outbox_id_expires() -> Sequence[Patch]:
    def may_expire(self: Master, producer: int) -> bool:
        return producer in self._highest

    return [(Master, "_may_expire", may_expire)]
