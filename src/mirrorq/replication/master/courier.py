"""Couriers: a master's way of bringing its outbox to other queues. Pure.

The source's master is a producer of the target, through an ordinary `Session` under the outbox's
own producer id. At most one batch is on its way to each target. Its number is `settled + 1`, so
that undelivered numbers (a cycle) leave no gap. Only *applied* entries are published: then every
possible successor has the same entry under the same number. A successor publishes it again until it
is marked done. The target's master knows the number, and takes the entry once.

The bodies lie in frames on this node's disk. The driver packs them (`OutboxLoad`, answered by
`OutboxLoaded`), and detects messages that go in a circle by their headers.

Queues with a reply queue for each client have had a hundred thousand targets. A courier therefore
works only on events of its target, or at its time. A courier without work for a while is dismissed.
Numbers for a deleted target are given up by an op.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from attrs import define, field

from mirrorq.config import Config
from mirrorq.containers.timers import Deadlines, Timer, earliest
from mirrorq.protocol.codec import OpCodec
from mirrorq.protocol.effects import OutboxEntry, OutboxLoad, OutboxLoaded
from mirrorq.protocol.identities import OUTBOX_BIT, MemberId, SessionId
from mirrorq.protocol.ops import OutboxDoneOp
from mirrorq.protocol.sessions import SessionReply, SessionRequest
from mirrorq.protocol.staged import DONE, AbortOp, AskOp, CommitOp, CrossQueueTask
from mirrorq.replication.state.outbox import TASK, TargetOutbox, producer_of
from mirrorq.replication.state.queue_state import QueueState
from mirrorq.session import calls
from mirrorq.session.machine import Session

LOAD_COUNT = 1000
"""Messages in a batch."""
LOAD_BYTES = 1 << 20
"""Approximate bytes of frames that are read for a batch."""
AGAIN_MS = 500
"""Delay before a retry, after a failed read or an unknown outcome."""
IDLE_MS = 10_000
"""A courier without work stays attached for this time: the next message needs no attachment."""
_SOURCE_SHIFT = 24
_COUNTER_MASK = (1 << _SOURCE_SHIFT) - 1

CIRCLE = "they have died there before, and would go in a circle"
"""Why messages are not sent on."""


class Targets(Protocol):
    """A master's view of the catalog."""

    def find(self, name: str) -> int:
        """Id of the queue with this name, 0 without such a queue."""

    def serving(self, queue_id: int) -> tuple[int, bool] | None:
        """(term, true if its master runs) of a queue; None when it has been deleted."""

    def name(self, queue_id: int) -> str:
        """The queue's name, "" when it has been deleted or is not known."""

    def session_number(self, queue_id: int) -> int:
        """A number for a courier of this queue, unique in this incarnation."""


class NoTargets:
    """A catalog without other queues."""

    def find(self, name: str) -> int:
        return 0

    def serving(self, queue_id: int) -> tuple[int, bool] | None:
        return 0, False

    def name(self, queue_id: int) -> str:
        return ""

    def session_number(self, queue_id: int) -> int:
        return courier_number(queue_id, 0)


def courier_number(queue_id: int, counter: int) -> int:
    """The number of a courier's session."""
    return OUTBOX_BIT | queue_id << _SOURCE_SHIFT | counter & _COUNTER_MASK


def is_courier(session: SessionId) -> bool:
    """Return true if the session is a courier of another queue's master, no handle."""
    return bool(session.number & OUTBOX_BIT)


def source_of(session: SessionId) -> int:
    """Id of the queue behind this courier."""
    return (session.number ^ OUTBOX_BIT) >> _SOURCE_SHIFT


@define
class Courier:
    """Sends the entries for one target."""

    session: Session
    known: tuple[int, bool] = (0, False)
    """(term, true if the master runs) of the target, as the session knows it."""
    sent: int = 0
    """Numbers up to here have been dealt with in this term."""
    loading: int = 0
    """First number of the batch that the driver packs; 0: none."""
    until: int = 0
    """Last number of the batch on its way; 0: none."""
    open_count: int = 0
    """Messages of the batch without an outcome."""
    refused: int = 0
    task: CrossQueueTask | None = None
    """Task that is the batch; None: the batch holds messages."""
    is_unsure: bool = False
    """True if an outcome is unknown: the batch is published again, under the same numbers."""
    again_ms: int = 0
    used_ms: int = 0
    """Time of the last entry for the target."""
    events: list[calls.SessionEvent] = field(factory=list)

    @property
    def is_busy(self) -> bool:
        return bool(self.loading or self.until)


def _is_idle_talk(task: CrossQueueTask | None, reason: str) -> bool:
    """Return true if a refused task loses nothing: all but a commit that came too late."""
    return task is not None and (task.what != "commit" or reason.startswith(DONE))


class Couriers:
    """Send on the entries of this queue's outbox, a `Courier` for each target, in a master's
    term."""

    def __init__(
        self,
        me: MemberId,
        queue_id: int,
        state: QueueState,
        config: Config,
        targets: Targets,
        codec: OpCodec,
        look: Timer,
    ) -> None:
        """Go on from the applied state.

        Args:
            look: wakes the master when a target must be served without an event.
        """
        self.requests: list[SessionRequest] = []
        self.loads: list[OutboxLoad] = []
        self.done: list[OutboxDoneOp] = []
        """Ops to propose."""
        self.lost: list[tuple[int, int, str]] = []
        """(target, messages, why) of undelivered messages, until an operator is told."""
        self._me = me
        self._queue_id = queue_id
        self._state = state
        self._config = config
        self._targets = targets
        self._codec = codec
        self._couriers: dict[int, Courier] = {}
        self._given_up: dict[int, int] = {}
        """Deleted target -> number up to which its entries are being dropped."""
        self._stirred: dict[int, None] = dict.fromkeys(
            (*state.outbox.target_outboxes, *state.outbox.idle)
        )
        """Targets to serve next, without new entries. At first all."""
        self._deadlines = Deadlines()
        """Next time to serve each target."""
        self._look = look

    # --- Events ---------------------------------------------------------------------------

    def on_reply(self, reply: SessionReply) -> None:
        courier = self._couriers.get(reply.queue_id)
        if courier is not None and courier.session.session == reply.session:
            courier.events.append(calls.ReplyArrived(reply))
            self._stirred[reply.queue_id] = None

    def on_target_link_lost(self, target: int) -> None:
        """Note that messages to or from the target's master may be lost."""
        courier = self._couriers.get(target)
        if courier is not None:
            courier.events.append(calls.LinkLost())
            self._stirred[target] = None

    def on_targets_changed(self, changed: Iterable[int] | None) -> None:
        """Note that these queues (None: perhaps all) have other masters, or are deleted."""
        outbox = self._state.outbox
        looked = (*outbox.target_outboxes, *outbox.idle) if changed is None else changed
        self._stirred.update((target, None) for target in looked if target in outbox)

    @property
    def targets(self) -> list[int]:
        """Queues to which entries may be on their way."""
        return list(self._couriers)

    def on_loaded(self, now_ms: int, loaded: OutboxLoaded) -> None:
        """Take a batch that the driver has packed."""
        courier = self._couriers.get(loaded.target)
        if courier is None or courier.loading != loaded.number:
            return
        courier.loading = 0
        self._stirred[loaded.target] = None
        if loaded.cycled:
            courier.sent = loaded.number + loaded.cycled - 1
            self.done.append(OutboxDoneOp(loaded.target, courier.sent, "cycle"))
            self.lost.append((loaded.target, loaded.cycled, CIRCLE))
        if loaded.count:
            courier.until = courier.sent + loaded.count
            courier.open_count = loaded.count
            courier.refused = 0
            courier.is_unsure = False
            courier.session.go_on_from(courier.sent + 1)
            frame = loaded.frame
            courier.session.put(calls.Put(None, loaded.count, len(frame), lambda *_: frame, False))
        elif not loaded.cycled:
            courier.again_ms = now_ms + AGAIN_MS

    # --- The end of a step ----------------------------------------------------------------

    def is_due(self, now_ms: int) -> bool:
        """Return true if a target is to be served."""
        has_come = self._stirred or self._state.outbox.fresh
        return bool(has_come) or self._deadlines.next_ms <= now_ms

    def pursue(self, now_ms: int) -> None:
        """Fill `requests`, `loads` and `done` with all that is due."""
        outbox, due = self._state.outbox, self._deadlines.take_due(now_ms)
        looked, self._stirred = {**outbox.fresh, **self._stirred, **dict.fromkeys(due)}, {}
        outbox.fresh.clear()
        for target in [one for one in self._given_up if one not in outbox]:
            del self._given_up[target]
        for target in looked:
            serving = self._targets.serving(target)
            if serving is None:
                self._give_up(target)
            elif target in outbox.target_outboxes or target in self._couriers:
                self._serve(now_ms, target, serving)
        self._look.set(self._deadlines.next_ms)

    def _waiting(self, courier: Courier, target_outbox: TargetOutbox | None) -> list[OutboxEntry]:
        """First entries for a target that are to be published. All are applied."""
        if target_outbox is None:
            return []
        sent = courier.sent
        found: list[OutboxEntry] = []
        count = 0
        for entry in target_outbox.entries:
            if entry.last_number <= sent:
                continue
            if entry.reason == TASK:
                # A task goes alone, after all entries before it.
                return found or [entry]
            skipped = max(sent + 1 - entry.number, 0)
            first = entry.first + skipped
            last = min(entry.last, first + LOAD_COUNT - count - 1)
            found.append(
                OutboxEntry(entry.number + skipped, first, last, entry.reason, entry.stamp_us)
            )
            count += last - first + 1
            if count >= LOAD_COUNT:
                break
        return found

    def _give_up(self, target: int) -> None:
        """Drop the entries for a deleted target and its numbers, by an op."""
        self._couriers.pop(target, None)
        self._deadlines.set(target, None)
        outbox = self._state.outbox
        number = outbox.next_number(target) - 1
        if target in outbox and self._given_up.get(target) != number:
            self._given_up[target] = number
            self.done.append(OutboxDoneOp(target, number, "deleted"))
            count = outbox.messages_for(target)
            if count:
                self.lost.append((target, count, "it was deleted"))

    def _serve(self, now_ms: int, target: int, serving: tuple[int, bool]) -> None:
        target_outbox = self._state.outbox.target_outboxes.get(target)
        courier = self._couriers.get(target)
        if courier is None:
            courier = self._couriers[target] = self._new_courier(target)
        if courier.known != serving and serving[0]:
            courier.known = serving
            courier.events.append(calls.MasterChanged(*serving))
        self._step(now_ms, target, courier)
        again_ms = None
        if not courier.is_busy:
            again_ms = self._go_on(now_ms, target, courier, target_outbox)
        courier.session.complete_attach()
        self.requests.extend(courier.session.flush(now_ms))
        if target_outbox is not None or courier.is_busy:
            courier.used_ms = now_ms
        elif now_ms >= courier.used_ms + IDLE_MS:
            self._dismiss(target, courier)
            return
        idle_ms = None if courier.is_busy else courier.used_ms + IDLE_MS
        self._deadlines.set(target, earliest(again_ms, idle_ms, courier.session.wake_at_ms()))

    def _go_on(
        self, now_ms: int, target: int, courier: Courier, target_outbox: TargetOutbox | None
    ) -> int | None:
        """Have the next batch packed; return the time of a retry."""
        waiting = self._waiting(courier, target_outbox)
        if not waiting or waiting[0].number != courier.sent + 1:
            return None
        if now_ms < courier.again_ms:
            return courier.again_ms
        self._load(target, courier, waiting)
        return None

    def _dismiss(self, target: int, courier: Courier) -> None:
        """Detach a courier without work. A later courier goes on from the applied state."""
        del self._couriers[target]
        self._deadlines.set(target, None)
        courier.session.detach()
        self.requests.extend(courier.session.flush(0))

    def _new_courier(self, target: int) -> Courier:
        number = self._targets.session_number(self._queue_id)
        name = SessionId(self._me.node, self._me.incarnation, number)
        producer = producer_of(self._queue_id, self._state.generation)
        courier = Courier(Session(name, target, self._config, producer=producer))
        courier.sent = self._state.outbox.target_outboxes[target].entries[0].number - 1
        return courier

    def _load(self, target: int, courier: Courier, waiting: list[OutboxEntry]) -> None:
        courier.task = self._state.staging.tasks.get((target, waiting[0].number))
        if courier.task is not None:
            self._say(courier, courier.task.op(self._queue_id), waiting[0].number)
            return
        courier.loading = waiting[0].number
        producer = producer_of(self._queue_id, self._state.generation)
        self.loads.append(OutboxLoad(self._queue_id, target, producer, tuple(waiting), LOAD_BYTES))

    def _say(self, courier: Courier, asked: CommitOp | AbortOp | AskOp, number: int) -> None:
        """Send a task to the target. No body is read."""

        def pack(producer: int, first_number: int, settled: int) -> bytes:
            return self._codec.request(
                asked, producer=producer, first_number=first_number, settled=settled
            )

        courier.until = number
        courier.open_count = 1
        courier.refused = 0
        courier.is_unsure = False
        courier.session.go_on_from(number)
        courier.session.put(calls.Put(None, 1, 0, pack, True))

    def _step(self, now_ms: int, target: int, courier: Courier) -> None:
        events, courier.events = courier.events, []
        for output in courier.session.step(now_ms, events):
            if isinstance(output, calls.Stored):
                courier.open_count -= output.count
            elif isinstance(output, calls.Failed):
                courier.open_count -= output.count
                if output.unknown:
                    courier.is_unsure = True
                elif not _is_idle_talk(courier.task, output.reason):
                    courier.refused += output.count
                    self.lost.append((target, output.count, output.reason))
        if courier.until and courier.open_count <= 0:
            until, courier.until = courier.until, 0
            if courier.is_unsure:
                courier.again_ms = now_ms + AGAIN_MS
            else:
                courier.sent = until
                outcome = "refused" if courier.refused else "confirmed"
                self.done.append(OutboxDoneOp(target, until, outcome))

    def end_term(self) -> list[SessionRequest]:
        """End the term: the next master goes on from the applied state. Returns last requests."""
        for target, courier in list(self._couriers.items()):
            self._dismiss(target, courier)
        requests, self.requests = self.requests, []
        return requests
