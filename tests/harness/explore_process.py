"""One node of an exploration: the real `Replica`, its disk, and the writes on the way to it.

A node is a value: `Process` is copied before each step and interned by its key afterwards,
so that equal nodes are one number, and what a node does with an event is worked out once.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from attrs import define, evolve, field, frozen

from harness.explore_codec import ModelCodec
from harness.explore_copy import copy, key, still
from harness.explore_owner import OWNER
from harness.explore_time import ToldTime
from harness.rail import MARKED, Rail, Record, replayed
from mirrorq.config import Config
from mirrorq.containers.fifo import Fifo
from mirrorq.containers.timers import FOREVER_MS
from mirrorq.protocol import views
from mirrorq.protocol.commands import ChangeView, DeleteQueue
from mirrorq.protocol.effects import Persisted, QueueWrite, RailArm, ReplicaEffects
from mirrorq.protocol.identities import MemberId, SessionId
from mirrorq.protocol.ops import Entry
from mirrorq.protocol.ring import STAR, Data, FetchFrames, FrameChunk, RingMessage
from mirrorq.protocol.sessions import (
    Attach,
    Credit,
    Delivery,
    Detach,
    OpenProducer,
    Publish,
    Purge,
    Request,
    SessionReply,
    SessionRequest,
    Settle,
    Subscribe,
)
from mirrorq.protocol.views import View
from mirrorq.replication.events import (
    Declared,
    LeaseChanged,
    LinkLost,
    Railed,
    RailStopped,
    ReplicaEvent,
    Requested,
    RingReceived,
    SessionGone,
    Tick,
    ViewInstalled,
    YieldAsked,
)
from mirrorq.replication.master.term import Lease
from mirrorq.replication.replica import Replica
from mirrorq.testing.disk import QueueFiles

QUEUE = 1
NAMES = ("a", "b", "c", "d")
NOW_MS = 1_000_000
"""The hour of every step but ticks; nothing in a replica is due at it."""
LATER_MS = 10_000_000
"""The hour of a tick: everything that waits for time is due."""
FAR_MS = 1 << 60
FAR_US = 1 << 60
PRODUCER_SESSION = SessionId("user", 1, 1)
CONSUMER_SESSION = SessionId("user", 1, 2)
"""Of an exclusive queue: its owner's."""
STRANGER_SESSION = SessionId("user", 1, 3)


# --- Events ---------------------------------------------------------------------------


@frozen
class Installs:
    """The node's catalog has applied this view."""

    view: View
    leased: bool
    """Whether the catalog's leader grants its lease under this view."""


@frozen
class Hears:
    sender: MemberId
    message: RingMessage


@frozen
class Writes:
    """The oldest write on its way is synced."""


@frozen
class Logs:
    """The rail's group is synced."""


@frozen
class TakesOver:
    """What the rail has taken comes to the copy."""


@frozen
class Loses:
    """The link to a node broke and came back."""

    node: str


@frozen
class Ticks:
    """Time passes, more than any wait is long."""


@frozen
class OpensProducer:
    """A handle asks for its producer id."""


@frozen
class Expires:
    """The producer's id has been idle for longer than ids live."""


@frozen
class Publishes:
    number: int
    settled: int


@frozen
class Settles:
    request: int
    kind: str
    piece: Delivery


@frozen
class ConsumerEnds:
    """The consumer's handle is closed, and another one attaches."""


@frozen
class Reattaches:
    """The consumer's link broke: what it has not taken is seen by nobody."""

    held: tuple[Delivery, ...]
    attachment: int


@frozen
class OwnerAttaches:
    """The owner of an exclusive queue comes, or comes back, with what its user holds."""

    number: int
    held: tuple[Delivery, ...]


@frozen
class OwnerDetaches:
    """It closes its handle, or its entry node misses it and says so in its name."""

    number: int
    is_lost: bool


@frozen
class Meddles:
    """Somebody else asks for messages of an exclusive queue, and for their end."""


@frozen
class LeaseEnds:
    pass


@frozen
class Yields:
    """The leader asks the master to hand out nothing more in the epoch in which it is."""


@frozen
class Crashes:
    """SIGKILL: what was not synced is gone."""


@frozen
class Wiped:
    """The stopped node's disk is replaced by an empty one: another store."""


@frozen
class Starts:
    """The process starts again, at this epoch of the catalog."""

    epoch: int


ProcessEvent = (
    Installs
    | Hears
    | Writes
    | Logs
    | TakesOver
    | Loses
    | Ticks
    | OpensProducer
    | Expires
    | Publishes
    | Settles
    | ConsumerEnds
    | Reattaches
    | OwnerAttaches
    | OwnerDetaches
    | Meddles
    | LeaseEnds
    | Yields
    | Crashes
    | Wiped
    | Starts
)


@frozen
class Done:
    """What one event made a node do."""

    process: int
    """Number of the node as it is now."""
    send: tuple[tuple[str, MemberId, RingMessage], ...] = ()
    """(to, from, message)."""
    replies: tuple[SessionReply, ...] = ()
    propose: tuple[ChangeView, ...] = ()
    declared: tuple[Entry, ...] = ()
    """What a master has called stable in this step."""
    declared_from: int = 0
    deletes: tuple[int, ...] = ()
    """Terms that asked for the queue's deletion."""
    error: str = ""
    """The node raised, or broke an invariant of its own."""


@define
class Process:
    """A node, running or not."""

    name: str
    files: QueueFiles = field(factory=QueueFiles)
    store: int = 1
    incarnation: int = 1
    is_up: bool = True
    epoch: int = 0
    """Of the newest view that its catalog has applied."""
    replica: Replica | None = None
    pending: list[tuple[int, QueueWrite, int]] = field(factory=list)
    """Writes on their way to the disk, with their numbers, and the last record of the rail before
    each."""
    rail: Rail = field(factory=Rail)
    records: list[Record] = field(factory=list)
    """The rail's log on the disk."""
    has: int = 0
    """The last record that the files have."""
    taken: int = 0
    """The last record that the copy was handed."""

    @property
    def found(self) -> QueueFiles:
        """What a restart would find on the disk."""
        files = self.files
        write = replayed(files, QUEUE, self.records, self.has) if self.records else None
        if write is None:
            return files
        after = evolve(files, ops=dict(files.ops), frames=dict(files.frames))
        after.apply(write)
        return after

    @property
    def member(self) -> MemberId:
        return _member(self.name, self.store, self.incarnation)

    @property
    def master(self) -> Any:
        return self.replica.master if self.replica is not None else None


@frozen
class Scope:
    """What nodes of one exploration are configured with."""

    consumes: bool = False
    is_late: bool = False
    """The consumer comes when the first message is applied, not before."""
    credit: int = 8
    joiner_bytes_max: int = 4096
    star: bool = False
    rail: bool = False
    in_memory: bool = False
    """`durability: replicated`."""
    owned: bool = False
    """The queue belongs to one connection, which is the consumer's."""


class Processes:
    """All nodes ever met, each once; and what each did with each event."""

    def __init__(self, scope: Scope) -> None:
        self.codec = ModelCodec()
        # A mark that waits is one on a slow link, which the scopes have.
        self.config = Config(
            joiner_bytes_max=scope.joiner_bytes_max,
            mark_delay_ms=0,
            star=scope.star,
            rail=scope.rail,
        )
        self.scope = scope
        self.producer = 0
        """The producer's id: the lsn of its op."""
        self._known: list[Process] = []
        self._numbers: dict[Any, int] = {}
        self._done: dict[tuple[int, ProcessEvent], Done] = {}

    def __getitem__(self, number: int) -> Process:
        return self._known[number]

    def __len__(self) -> int:
        return len(self._known)

    def add(self, process: Process) -> int:
        """The number of a node that equals this one."""
        files = process.files
        mark = (
            process.name,
            process.store,
            process.incarnation,
            process.is_up,
            process.epoch,
            None if process.replica is None else key(process.replica),
            tuple([(number, key(write), railed) for number, write, railed in process.pending]),
            (tuple(process.rail.queues.items()), *process.rail.group, 0, *process.rail.out),
            (process.rail.number, process.taken, *process.records),
            tuple(sorted(files.ops)),
            tuple(files.ops.values()),
            tuple(sorted(files.frames)),
            tuple(files.frames.values()),
            (files.state, files.state_lsn, files.lacking, files.stable),
        )
        number = self._numbers.get(mark)
        if number is None:
            number = self._numbers[mark] = len(self._known)
            self._known.append(process)
        return number

    def step(self, number: int, event: ProcessEvent) -> Done:
        """What node `number` does with an event."""
        done = self._done.get((number, event))
        if done is None:
            done = self._step(self._known[number], event)
            self._done[number, event] = done
        return done

    # --- One step -----------------------------------------------------------------------

    def _step(self, known: Process, event: ProcessEvent) -> Done:
        process = _copied(known)
        work = _Work(self, process)
        try:
            work.run(event)
        except AssertionError as error:
            work.error = f"assertion in a machine: {error}"
        process.files.ops = dict(sorted(process.files.ops.items()))
        process.files.frames = dict(sorted(process.files.frames.items()))
        _renumber(process)
        done = work.done(0)
        return evolve(done, process=self.add(process))


class _Work:
    """One event carried out on one copy of a node."""

    def __init__(self, processes: Processes, process: Process) -> None:
        self._all = processes
        self._process = process
        self._send: list[tuple[str, MemberId, RingMessage]] = []
        self._replies: list[SessionReply] = []
        self._propose: list[ChangeView] = []
        self._declared: list[Entry] = []
        self._declared_from = 0
        self._deletes: list[int] = []
        self.error = ""

    def done(self, number: int) -> Done:
        return Done(
            number,
            tuple(self._send),
            tuple(self._replies),
            tuple(self._propose),
            tuple(self._declared),
            self._declared_from,
            tuple(self._deletes),
            self.error,
        )

    def run(self, event: ProcessEvent) -> None:
        process = self._process
        match event:
            case Installs():
                self._install(event)
            case Hears():
                self._hear(event)
            case Logs():
                self._log()
            case TakesOver():
                self._take_over()
            case Writes():
                self._write()
            case Loses():
                self._events(LinkLost(event.node))
            case Ticks():
                self._events(Tick(), now_ms=LATER_MS)
            case OpensProducer():
                self._raw(PRODUCER_SESSION, 1, 1, Attach((), 0))
                self._request(PRODUCER_SESSION, OpenProducer())
            case Expires():
                process.master.producers.look_at_ms = 0
                self._events(Tick(), time_us=FAR_US)
            case Publishes():
                self._publish(event)
            case Settles():
                settle = Settle(event.request, event.kind, (event.piece,))
                self._request(CONSUMER_SESSION, settle)
            case ConsumerEnds():
                self._events(SessionGone(CONSUMER_SESSION))
            case Reattaches():
                self._attach(event.attachment, event.held)
            case OwnerAttaches():
                self._own(event)
            case OwnerDetaches():
                detach = Detach(event.is_lost)
                self._raw(CONSUMER_SESSION, event.number, FAR_MS, detach)
            case Meddles():
                self._meddle()
            case LeaseEnds():
                self._lease(False)
            case Yields():
                self._events(YieldAsked(process.epoch))
            case Crashes():
                process.replica = None
                process.pending = []
                process.rail, process.taken = Rail(), 0
                process.is_up = False
            case Wiped():
                process.files = QueueFiles()
                process.records, process.has = [], 0
                process.store += 1
            case Starts():
                process.incarnation += 1
                process.is_up = True
                process.files, process.records, process.has = process.found, [], 0
                process.epoch = event.epoch
        self._seat_consumer()

    def _install(self, event: Installs) -> None:
        process = self._process
        process.epoch = event.view.epoch
        if process.replica is None:
            if views.find(event.view, process.member) is None:
                return
            process.replica = Replica(
                process.member,
                QUEUE,
                self._all.config,
                self._all.codec,
                process.files.image(QUEUE),
                Lease(),
            )
            process.replica.ring.time = ToldTime()
        self._lease_of(process.replica).until_ms = FAR_MS if event.leased else 0
        if self._all.scope.owned:
            self._events(Declared(False, False, connection=OWNER), ViewInstalled(event.view))
        else:
            self._events(ViewInstalled(event.view))

    def _write(self) -> None:
        process = self._process
        number, write, process.has = process.pending.pop(0)
        process.files.apply(write)
        process.records = [one for one in process.records if one.number > process.has]
        self._events(Persisted(number))

    # --- The rail -----------------------------------------------------------------------

    def _hear(self, event: Hears) -> None:
        message = event.message
        if self._all.scope.rail and isinstance(message, Data) and message.mode == STAR:
            self._process.rail.hear((event.sender.node, event.sender.incarnation), message)
        else:
            self._events(RingReceived(event.sender, message))

    def _log(self) -> None:
        record, marks = self._process.rail.sync()
        if record is not None:
            self._process.records.append(record)
        me = self._process.member
        self._send.extend((node, me, mark) for (node, _), mark in marks)

    def _take_over(self) -> None:
        """All at once: of a record that was taken in part the files would be said to have all."""
        events: list[ReplicaEvent] = []
        for one in self._process.rail.take():
            self._process.taken = max(self._process.taken, one.number)
            if one.data is None:
                events.append(RailStopped())
            elif one.kind in MARKED:
                events.append(Railed(one.data))
            else:
                node, incarnation = one.sender
                events.append(RingReceived(_member(node, 1, incarnation), one.data))
        self._events(*events)

    def _lease_of(self, replica: Replica) -> Lease:
        return replica._lease

    def _lease(self, held: bool) -> None:
        if self._process.replica is not None:
            self._lease_of(self._process.replica).until_ms = FAR_MS if held else 0
            self._events(LeaseChanged())

    # --- Sessions -----------------------------------------------------------------------

    def _publish(self, event: Publishes) -> None:
        master = self._process.master
        if PRODUCER_SESSION not in master.attachments:
            self._raw(PRODUCER_SESSION, 1, 1, Attach((), self._all.producer))
        frame = self._all.codec.frame(self._all.producer, event.number, settled=event.settled)
        self._request(PRODUCER_SESSION, Publish(frame, False))

    def _request(self, session: SessionId, body: Request) -> None:
        attachment = self._process.master.attachments.get(session)
        if attachment is None and self._all.scope.owned:
            return  # its goodbye came last; it is told, and attaches again
        assert attachment is not None
        self._raw(session, attachment.number, attachment.requests + 1, body)

    def _raw(self, session: SessionId, attachment: int, number: int, body: Request) -> None:
        master_epoch = self._process.master.master_epoch
        self._events(
            Requested(SessionRequest(QUEUE, master_epoch, session, attachment, number, body))
        )

    def _seat_consumer(self) -> None:
        """A consumer finds each new master at once."""
        replica = self._process.replica
        if not self._all.scope.consumes or replica is None or not replica.is_serving:
            return
        if self._all.scope.owned:
            return
        if self._all.scope.is_late and replica.state.next_sequence == 1:
            return
        assert replica.master is not None
        if CONSUMER_SESSION not in replica.master.attachments:
            self._attach(1, ())

    def _attach(self, attachment: int, held: tuple[Delivery, ...]) -> None:
        self._raw(CONSUMER_SESSION, attachment, 1, Attach(held, 0))
        self._request(CONSUMER_SESSION, Subscribe(0, 1))
        self._request(CONSUMER_SESSION, Credit(0, self._all.scope.credit))

    def _own(self, event: OwnerAttaches) -> None:
        """A client's handle, as its entry node passes it on."""
        attach = Attach(event.held, 0, line=1, turn=event.number, connection=OWNER)
        self._raw(CONSUMER_SESSION, event.number, 1, attach)
        self._request(CONSUMER_SESSION, Subscribe(0, 1))
        self._request(CONSUMER_SESSION, Credit(0, self._all.scope.credit))

    def _meddle(self) -> None:
        if STRANGER_SESSION not in self._process.master.attachments:
            self._raw(STRANGER_SESSION, 1, 1, Attach((), 0))
        for body in (Subscribe(0, 1), Credit(0, self._all.scope.credit), Purge(1)):
            self._request(STRANGER_SESSION, body)

    # --- The replica --------------------------------------------------------------------

    def _events(self, *events: ReplicaEvent, now_ms: int = NOW_MS, time_us: int = 0) -> None:
        replica = self._process.replica
        if replica is None:
            return
        ring = replica.ring
        before = {entry.lsn: entry for entry in ring.log.entries}
        stable = ring.log.stable
        effects = replica.step(now_ms, time_us, *events)
        ring.time.begin_step(0)
        still(replica)
        replica._rail._rest_ms = 0
        if now_ms == LATER_MS:
            _set_back(replica)
        before.update((entry.lsn, entry) for entry in ring.log.entries)
        if ring.is_master and ring.log.stable > stable:
            lsns = range(stable + 1, ring.log.stable + 1)
            self._declared_from = self._declared_from or stable + 1
            self._declared.extend(before[lsn] for lsn in lsns if lsn in before)
        self._carry_out(effects)

    def _carry_out(self, effects: ReplicaEffects) -> None:
        process = self._process
        me = process.member
        self._send.extend((to.node, me, message) for to, message in effects.send)
        if effects.write is not None:
            process.pending.append((effects.write_number, effects.write, process.taken))
        if isinstance(effects.rail, RailArm):
            process.rail.arm(QUEUE, effects.rail)
        elif effects.rail is not None:
            process.rail.disarm(QUEUE)
        for to, fetch in effects.reads:
            self._send.append((to.node, me, self._chunk(fetch)))
        self._replies.extend(effects.replies)
        for command in effects.commands:
            if isinstance(command, DeleteQueue):
                self._deletes.append(command.master_epoch)
        if effects.propose is not None:
            self._propose.append(effects.propose)

    def _chunk(self, fetch: FetchFrames) -> FrameChunk:
        """The oldest frame asked for: chunks as small as can be."""
        found = [
            entry
            for first, entry in sorted(self._process.files.frames.items())
            if first <= fetch.upto_sequence
            and entry.header.last_sequence > fetch.after_sequence
            and not (fetch.is_continued and first <= fetch.after_sequence)
        ]
        taken = tuple(found[:1])
        upto = taken[-1].header.last_sequence if len(found) > 1 else fetch.upto_sequence
        return FrameChunk(QUEUE, fetch.epoch, fetch.number, fetch.after_sequence, upto, taken)


@cache
def _member(name: str, store: int, incarnation: int) -> MemberId:
    return MemberId(name, store, incarnation)


def _copied(process: Process) -> Process:
    memo: dict[int, Any] = {}
    files = process.files
    return evolve(
        process,
        files=evolve(files, ops=dict(files.ops), frames=dict(files.frames)),
        replica=None if process.replica is None else copy(process.replica, memo),
        pending=list(process.pending),
        rail=process.rail.copy(),
        records=list(process.records),
    )


def _set_back(replica: Replica) -> None:
    """After a tick the clock is set back: hours noted in it become those of other steps."""
    replica._next_tick_ms = 0
    writes, membership = replica._writes, replica._membership
    writes._applied_ms = min(writes._applied_ms, NOW_MS)
    membership._proposed = (membership._proposed[0], min(membership._proposed[1], NOW_MS))
    membership._samples = Fifo.of(
        (min(time_ms, NOW_MS), lsn) for time_ms, lsn in membership._samples
    )
    membership._slow_until_ms = dict.fromkeys(membership._slow_until_ms, NOW_MS + 1)
    transfer = replica.transfer
    transfer._heard_ms = min(transfer._heard_ms, NOW_MS)
    if transfer._wait_until_ms > LATER_MS:
        transfer._wait_until_ms = NOW_MS + 1
    if replica.master is not None:
        for _, attachment in replica.master.attachments.all():
            if attachment.lost_ms is not None:
                attachment.lost_ms = min(attachment.lost_ms, NOW_MS)
        ownership = replica.master.ownership
        ownership._back_by_ms = _sooner(ownership._back_by_ms)
        ownership._away = {one: _sooner(by_ms) for one, by_ms in ownership._away.items()}
        look_ms = ownership.wake_at_ms()
        replica.master._unused.set(FOREVER_MS if look_ms is None else look_ms)


def _sooner(until_ms: int) -> int:
    """A time to wait for, by the clock that is set back: what is over stays so."""
    return max(until_ms - (LATER_MS - NOW_MS), 0)


def _renumber(process: Process) -> None:
    """Count writes from 1 again: how many there have been is no state."""
    replica = process.replica
    if replica is None:
        return
    _renumber_records(process)
    ring, transfer = replica.ring, replica.transfer
    base = process.pending[0][0] - 1 if process.pending else ring.log._write_number
    process.pending = [(number - base, write, last) for number, write, last in process.pending]
    ring.log._write_number -= base
    ring.log._writes = Fifo.of((number - base, end) for number, end in ring.log._writes)
    transfer._landing = Fifo.of((number - base, piece) for number, piece in transfer._landing)


def _renumber_records(process: Process) -> None:
    """The same of the rail's records."""
    base, rail = process.has, process.rail
    if base == 0:
        return
    rail.number -= base
    rail.out = [one._replace(number=max(one.number - base, 0)) for one in rail.out]
    process.records = [one._replace(number=one.number - base) for one in process.records]
    process.pending = [(number, write, last - base) for number, write, last in process.pending]
    process.taken -= base
    process.has = 0


__all__ = [
    "NAMES",
    "STRANGER_SESSION",
    "ConsumerEnds",
    "Crashes",
    "Done",
    "Expires",
    "Hears",
    "Installs",
    "LeaseEnds",
    "Logs",
    "Loses",
    "Meddles",
    "OpensProducer",
    "OwnerAttaches",
    "OwnerDetaches",
    "Process",
    "ProcessEvent",
    "Processes",
    "Publishes",
    "Reattaches",
    "Scope",
    "Settles",
    "Starts",
    "TakesOver",
    "Ticks",
    "Wiped",
    "Writes",
    "Yields",
]
