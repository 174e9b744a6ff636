"""Producers and consumers of the simulator, on the real `session.Session`, and what they saw.

A producer publishes numbered bodies; a consumer takes, and acks or gives back. Each writes what
happened to it into a `Journal`, in Jepsen's words, and the checkers read nothing else of them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random

from attrs import define, field, frozen
from msgspec.structs import replace

from harness.cluster import SimulatedCluster
from mirrorq.api.publish_options import Terms
from mirrorq.containers.ranges import RangeSet
from mirrorq.engine.events import MasterChange, MasterLinkLost
from mirrorq.protocol.identities import SessionId
from mirrorq.protocol.sessions import Attach, Delivery, Detach, Purged, SessionReply, SessionRequest
from mirrorq.session.calls import (
    Closed,
    Delivered,
    DropBuffered,
    Failed,
    GiveBack,
    LinkLost,
    MasterChanged,
    Output,
    Put,
    Query,
    QueryDone,
    ReplyArrived,
    SessionEvent,
    SettleCall,
    SettleDone,
    Stored,
    pause_request,
    purge_request,
    range_request,
)
from mirrorq.session.machine import Session
from mirrorq.wire import frames
from mirrorq.wire.properties import digest_of, pack_properties

NEVER_MS = 1 << 62
KEY_SHARE = 0.4
"""Of a producer's batches, where some messages have unique keys."""
ENTRY_LOOK_MS = 50
"""A client notices after this that its entry node is gone, or looks for another one again."""
LEAVE_SHARE = 0.02
"""How often a client leaves a node that is well, at such a look."""
AWAY_MS = (0, 5, 50, 1500)
"""Before it is served by another node."""
SILENCES_MS = (0, 20, 1000)
"""Before the node that it has left notices."""


@define
class Attempt:
    """One message that a producer tried to publish."""

    body: bytes
    state: str = "open"
    """open, acknowledged (with its sequence), refused, repeated (not stored: `sequence` is that of
    another message with its unique key), unknown; by others than producers: result
    (of a message that was acked with it), sent on (from another queue)."""
    sequence: int = 0
    put_ms: int = 0
    ended_ms: int = 0
    """When its outcome came: it may have been stored until then."""
    persistent: bool = True
    delay_ms: int = 0
    unique: str = ""
    """Its unique key."""


@define
class PurgeCall:
    """A purge that somebody asked for."""

    ended_ms: int | None = None
    """When its outcome came; None: never."""
    count: int | None = None
    """Messages that it has ended."""

    @property
    def end_ms(self) -> int:
        """What was put later was not ended by it."""
        return NEVER_MS if self.ended_ms is None else self.ended_ms


@define
class PauseSpan:
    """A time in which the queue hands out nothing: it is paused, and nobody has asked to resume."""

    from_ms: int
    until_ms: int = NEVER_MS


@define
class Dispatch:
    """One message as a user received it."""

    sequence: int
    body: bytes
    count: int
    time_ms: int
    """When the master handed it out (P3); the user may have taken it later."""
    delivery: tuple[int, int]
    """(epoch, number)."""
    consumer: str
    acked: str = ""
    """"" not tried; open, ok, refused, lost (its handle ended first)."""
    answered: int = 0
    """The term in which the ack was taken; 0: it was that of the delivery."""


@define
class Journal:
    """All that producers and consumers of one queue saw."""

    attempts: dict[bytes, Attempt] = field(factory=dict)
    deliveries: list[Dispatch] = field(factory=list)
    ack_order: list[Dispatch] = field(factory=list)
    """Deliveries in the order in which their acks resolved ok."""
    resolved_ms: dict[int, int] = field(factory=dict)
    """sequence -> when an ack of it first resolved ok."""
    purges: list[PurgeCall] = field(factory=list)
    pauses: list[PauseSpan] = field(factory=list)
    pausers: set[object] = field(factory=set)
    """Who has asked to pause, or to resume, and has heard nothing: that may still come late. Calls
    that overlap take effect in any order."""
    pause_asks: int = 0
    ended: dict[int, tuple[str, int]] | None = None
    """sequence -> how and when it ended, by the ops that were applied (`Onlooker.ended`); None:
    nobody has looked at them, and what a purge may have ended is taken for ended."""
    cold_ms: int = -1
    """When the last cold promotion was applied, which ends transient messages."""
    unclean_ms: list[int] = field(factory=list)
    """When unclean promotions were applied: each ends a past, with all that only that one had."""
    reported_ms: list[int] = field(factory=list)
    """When the new master of each of these had last heard what the old one counts."""
    is_deleted: bool = False
    """The queue was deleted, with the messages that it had."""
    durable: bool = True
    """The queue outlives the end of all its nodes."""
    window_ms: int = 0
    """For which the queue remembers unique keys; 0: nobody puts any."""
    claimed: RangeSet = field(factory=RangeSet)
    """Sequences that who had the queue for itself has asked to ack, maybe without a delivery."""

    def is_past(self, time_ms: int, now_ms: int = NEVER_MS) -> bool:
        """Whether an unclean promotion came between these two."""
        return any(time_ms <= unclean_ms <= now_ms for unclean_ms in self.unclean_ms)


@frozen
class Place:
    """Where a handle is opened, its name, and the chance that it goes by."""

    cluster: SimulatedCluster
    node: str
    queue_id: int
    name: str
    random: Random


class SimulatedHandle:
    """One handle on a node of the simulator: the glue that `queue.MirroredQueue` is in real."""

    _owner: SessionId | None = None
    """Under which it declared an exclusive queue; None: it is another one."""

    def __init__(self, place: Place) -> None:
        self.cluster = cluster = place.cluster
        self.node = node = place.node
        self.queue_id = queue_id = place.queue_id
        self.name = place.name
        self.random = place.random
        self.is_open = True
        self.may_leave = True
        """A client leaves nodes that are well, too."""
        self._line = self._turn = 0
        """Of a client's handle, see `Attach`."""
        self._events: list[SessionEvent] = []
        self._due_ms: int | None = None
        """When it is stepped next."""
        self._session_id: SessionId = cluster.open_session(
            node, queue_id, partial(self._on_event, 0), self._owner
        )
        self.session = Session(self._session_id, queue_id, cluster.config)
        self._life = cluster.nodes[node].life

    def close(self) -> None:
        """The process that has the handle closes it."""
        if self.is_open:
            self.session.detach()
            self._flush()
            self._end("closed")
            self.cluster.close_session(self._session_id)

    def vanish(self) -> None:
        """The process that has the handle is killed; its node says so in its name."""
        if self.is_alive:
            self.session.flush(self.clock_ms)
            self.close()

    def die(self) -> None:
        """Its node was killed: nothing more is learned of what is open."""
        self._end("killed")

    def _end(self, reason: str) -> None:
        if self.is_open:
            outputs = self.session.step(self.clock_ms, [Closed(reason)])
            self.is_open = False
            self.take(outputs)

    @property
    def clock_ms(self) -> int:
        """What the clock of its node says; of a client, its own."""
        if self._line:
            return self.cluster.now_ms
        return self.cluster.clock_ms(self.cluster.nodes[self.node])

    @property
    def is_alive(self) -> bool:
        is_running = bool(self._line) or self._has_node
        return self.is_open and is_running and not self.session.closed

    @property
    def _has_node(self) -> bool:
        return self.cluster.nodes[self.node].life == self._life

    @property
    def paused_until_ms(self) -> int:
        return 0 if self._line else self.cluster.nodes[self.node].paused_until_ms

    # --- A client's -----------------------------------------------------------------------

    def be_of_client(self, line: int, random: Random) -> None:
        """It is a client's, and its node the one by which that enters: it outlives it. Before its
        first step.

        Args:
            line: another one for each handle.
            random: by which its client leaves nodes that are well, too.
        """
        self._line = line
        self.cluster.after(ENTRY_LOOK_MS, self._look_at_entry, random)

    def _look_at_entry(self, random: Random) -> None:
        if not self.is_alive:
            return
        if not self._has_node or (self.may_leave and random.random() < LEAVE_SHARE):
            self._leave_entry(random)
        else:
            self.cluster.after(ENTRY_LOOK_MS, self._look_at_entry, random)

    def _leave_entry(self, random: Random) -> None:
        """As `ClientDriver._on_left`: the loss is told first, then that nobody serves.

        A node that runs on notices later that its client is gone, and says goodbye for it; what
        that had sent it may still be on its way to the master.
        """
        session = self.session
        goodbye = SessionRequest(
            self.queue_id,
            session.epoch,
            self._session_id,
            session._attachment,
            session._request + 1,
            Detach(is_lost=True),
        )
        self.cluster.after(random.choice(SILENCES_MS), self._on_missed, goodbye)
        self._turn += 1
        self._events.append(LinkLost())
        if self.session.epoch:
            self._events.append(MasterChanged(self.session.epoch, False))
        self.poke()
        self.cluster.after(random.choice(AWAY_MS), self._enter, random)

    def _on_missed(self, goodbye: SessionRequest) -> None:
        self.cluster.request(goodbye)
        self.cluster.close_session(goodbye.session)

    def _enter(self, random: Random) -> None:
        """Go on at another node, as another session."""
        if not self.is_alive:
            return
        cluster, queue_id = self.cluster, self.queue_id
        names = [name for name in cluster.running if name != self.node] or cluster.running
        name = random.choice(names) if names else None
        catalog = None if name is None else cluster.engine(name).catalog
        if catalog is not None and catalog.is_deleted(queue_id):
            self._events.append(Closed("the queue was deleted"))
        elif name is not None and catalog is not None and catalog.queue(queue_id) is not None:
            self.node, self._life = name, cluster.nodes[name].life
            port = partial(self._on_event, self._turn)
            self._session_id = cluster.open_session(name, queue_id, port)
            self.session.session = self._session_id
            cluster.after(ENTRY_LOOK_MS, self._look_at_entry, random)
        else:
            cluster.after(ENTRY_LOOK_MS, self._enter, random)
        self.poke()

    def _on_event(self, turn: int, event: object) -> None:
        if turn != self._turn:
            return  # of a node that its client has left
        match event:
            case SessionReply():
                self._events.append(ReplyArrived(event))
            case MasterChange():
                if event.master_epoch:
                    self._events.append(MasterChanged(event.master_epoch, event.available))
                else:
                    self._events.append(Closed("the queue was deleted"))
            case MasterLinkLost():
                self._events.append(LinkLost())
        self.poke()

    def poke(self, delay_ms: int = 0) -> None:
        """Be stepped soon. What is wanted later than the next step is asked for again then."""
        due_ms = self.cluster.now_ms + delay_ms
        if self._due_ms is None or due_ms < self._due_ms:
            self._due_ms = due_ms
            self.cluster.at(due_ms, self._on_due, due_ms)

    def _on_due(self, due_ms: int) -> None:
        if self._due_ms == due_ms:
            self._due_ms = None
            self._step()

    def _step(self) -> None:
        if not self.is_alive:
            if self.is_open:
                self.die()
            return
        if self.cluster.now_ms < self.paused_until_ms:
            self.poke(self.paused_until_ms - self.cluster.now_ms)
            return
        events, self._events = self._events, []
        outputs = self.session.step(self.clock_ms, events)
        self.take(outputs)
        self.work()
        self.session.complete_attach()
        self.ask()
        self._flush()

    def _flush(self) -> None:
        for request in self.session.flush(self.clock_ms):
            if self._line and isinstance(request.request, Attach):
                request = replace(request, request=self.attach_request(request.request))
            self.cluster.request(request)
        wake = self.session.wake_at_ms()
        if wake is not None:
            node = self.cluster.nodes[self.node]
            at_ms = wake if self._line else self.cluster.true_ms(node, wake)
            self.poke(max(at_ms - self.cluster.now_ms, 0))

    def attach_request(self, attach: Attach) -> Attach:
        """What a client's entry node makes of it."""
        return replace(attach, line=self._line, turn=self._turn)

    def take(self, outputs: list[Output]) -> None:
        """What the session tells."""
        raise NotImplementedError

    def work(self) -> None:
        """What the user calls."""

    def ask(self) -> None:
        """Credit."""


class Producer(SimulatedHandle):
    """Publishes bodies `name/n`, n = 1, 2, …, in batches, with bounded messages in flight."""

    in_flight_max = 20
    persistent = True
    batch_max = 4
    priorities: tuple[int, ...] = (0,)
    """Each batch has one of these."""
    delays_ms: tuple[int, ...] = (0,)
    """And one of these."""
    ttl_ms = 0
    """Of all of them."""
    keys: Random | None = None
    """By which some batches are one message with a unique key."""

    def __init__(self, place: Place, journal: Journal, count: int) -> None:
        self.journal = journal
        self.count = count
        self.sent = 0
        super().__init__(place)

    @property
    def is_done(self) -> bool:
        return not self.is_open or (self.sent >= self.count and self.session.is_idle)

    def publish(self) -> None:
        """Put the next batch."""
        if not self.is_alive or self.sent >= self.count:
            return
        if self.session.unconfirmed_count < self.in_flight_max:
            if self.keys is not None and self.keys.random() < KEY_SHARE:
                self._publish_unique(self.keys)
                self.poke()
                return
            size = min(self.random.randint(1, self.batch_max), self.count - self.sent)
            bodies = [b"%s/%d" % (self.name.encode(), self.sent + i + 1) for i in range(size)]
            self.sent += size
            terms = self._terms()
            for body in bodies:
                self.journal.attempts[body] = Attempt(
                    body,
                    put_ms=self.cluster.now_ms,
                    persistent=self.persistent,
                    delay_ms=terms.delay_ms,
                )
            pack = packer(bodies, terms)
            whole = self.random.random() < 0.5
            self.session.put(Put(bodies, size, sum(map(len, bodies)), pack, whole))
        self.poke()

    def _publish_unique(self, chance: Random) -> None:
        self.sent += 1
        body, unique = b"%s/%d" % (self.name.encode(), self.sent), f"key {chance.randint(1, 5)}"
        put_ms, window_ms = self.cluster.now_ms, self.journal.window_ms
        self.journal.attempts[body] = Attempt(body, put_ms=put_ms, unique=unique)
        properties = pack_properties(None, None, None, unique=(digest_of(unique), window_ms))
        pack = packer([body], Terms(is_unique=True), [properties])
        self.session.put(Put([body], 1, len(body), pack, chance.random() < 0.5))

    def _terms(self) -> Terms:
        priority = _one_of(self.random, self.priorities)
        delay_ms = _one_of(self.random, self.delays_ms)
        return Terms(self.persistent, priority, delay_ms, self.ttl_ms)

    def take(self, outputs: list[Output]) -> None:
        for output in outputs:
            if isinstance(output, Stored | Failed):
                end_attempts(self.journal, output, self.cluster.now_ms)


def end_attempts(journal: Journal, output: Stored | Failed, now_ms: int) -> None:
    """Note the outcome of a batch whose token is the list of its bodies."""
    bodies = output.token
    assert isinstance(bodies, list)
    for offset in range(output.count):
        attempt = journal.attempts[bodies[output.index + offset]]
        assert attempt.state == "open", f"two outcomes for {attempt.body!r}"
        attempt.ended_ms = now_ms
        if isinstance(output, Stored):
            attempt.state = "repeated" if output.is_repeated else "acknowledged"
            attempt.sequence = output.first_sequence + offset
        else:
            attempt.state = "unknown" if output.unknown else "refused"


class Consumer(SimulatedHandle):
    """Takes messages; acks most, gives some back, and sometimes holds them for a while."""

    prefetch = 10
    number = 1
    """Of the consumer in its session; 0 is what get() uses."""
    nack_delays_ms: tuple[int, ...] = (0,)
    """What is given back has one of these."""

    def __init__(self, place: Place, journal: Journal, nack_share: float = 0.1) -> None:
        self.journal = journal
        self.nack_share = nack_share
        self._buffer: list[tuple[Delivery, int, bytes]] = []
        self._unsettled = 0
        super().__init__(place)
        self.session.subscribe(self.number, self.prefetch, False, False)

    def take(self, outputs: list[Output]) -> None:
        for output in outputs:
            match output:
                case Delivered():
                    self._on_deliver(output)
                case DropBuffered():
                    self.session.drop(self._empty_buffer())
                case GiveBack():
                    unseen = self._empty_buffer(self._kept())
                    self.session.withdraw(self.number, unseen)
                    self.session.recalled(output.number)
                case SettleDone():
                    self._on_settled(output)

    def _empty_buffer(self, kept: int = 0) -> tuple[Delivery, ...]:
        """What no call has taken is here no more, but for the first ones that are kept."""
        pieces = tuple(piece for piece, _, _ in self._buffer[kept:])
        self._unsettled -= len(pieces)
        del self._buffer[kept:]
        return pieces

    def _kept(self) -> int:
        """How many messages are for calls that wait: others asking for them changes nothing."""
        return 0

    def _on_deliver(self, output: Delivered) -> None:
        deliver = output.deliver
        bodies: list[bytes] = []
        for frame in deliver.frames:
            bodies += frames.split(frame)
        index = 0
        for piece in deliver.deliveries:
            for sequence in range(piece.first, piece.last + 1):
                one = Delivery(piece.epoch, piece.number, sequence, sequence, piece.count)
                self._buffer.append((one, sequence, bodies[index]))
                index += 1
        self._unsettled += index

    def work(self) -> None:
        """The user takes some of what is here, and settles it at once or later."""
        if not self._buffer:
            return
        take = self.random.randint(1, len(self._buffer))
        taken, self._buffer = self._buffer[:take], self._buffer[take:]
        for piece, sequence, body in taken:
            handed_ms = self.cluster.handed_ms[self.queue_id, piece.epoch, piece.number]
            name = (piece.epoch, piece.number)
            dispatch = Dispatch(sequence, body, piece.count, handed_ms, name, self.name)
            self.journal.deliveries.append(dispatch)
            hold_ms = self.random.choice((0, 0, 1, 5, 50))
            self.cluster.after(hold_ms, self._settle, piece, dispatch)
        if self._buffer:
            self.poke(self.random.randint(1, 5))

    def _settle(self, piece: Delivery, dispatch: Dispatch) -> None:
        if not self.is_alive:
            return
        if self.cluster.now_ms < self.paused_until_ms:
            self.cluster.at(self.paused_until_ms, self._settle, piece, dispatch)
            return
        self._unsettled -= 1
        nack = self.random.random() < self.nack_share
        if not nack:
            dispatch.acked = "open"
        delay_ms = _one_of(self.random, self.nack_delays_ms) if nack else 0
        kind = "nack" if nack else "ack"
        self.session.settle(SettleCall(None if nack else dispatch, kind, (piece,), delay_ms))
        self.poke()

    def _on_settled(self, done: SettleDone) -> None:
        dispatch = done.token
        if not isinstance(dispatch, Dispatch):
            return
        if not self.is_open:
            dispatch.acked = "lost"
        elif done.refused:
            dispatch.acked = "refused"
        else:
            dispatch.acked, dispatch.answered = "ok", self.session.epoch
            self.journal.ack_order.append(dispatch)
            self.journal.resolved_ms.setdefault(dispatch.sequence, self.cluster.now_ms)

    def ask(self) -> None:
        self.session.want(self.number, self._unsettled, self.prefetch)


class Purger(SimulatedHandle):
    """Asks for one purge, and closes when its outcome has come."""

    def __init__(self, place: Place, journal: Journal) -> None:
        super().__init__(place)
        self.call = PurgeCall()
        journal.purges.append(self.call)
        self.session.query(Query(self.call, purge_request))
        self.poke()

    def take(self, outputs: list[Output]) -> None:
        for output in outputs:
            if isinstance(output, QueryDone) and isinstance(output.reply, Purged):
                self.call.ended_ms = self.cluster.now_ms
                self.call.count = output.reply.count
        if self.is_open and self.call.ended_ms is not None:
            self.cluster.after(0, self.close)


class Remover(Purger):
    """Deletes a few messages by their sequences, and closes when the outcome has come."""

    def __init__(self, place: Place, journal: Journal, first: int, last: int) -> None:
        SimulatedHandle.__init__(self, place)
        self.call = PurgeCall()
        journal.purges.append(self.call)
        self.session.query(Query(self.call, range_request(first, last)))
        self.poke()


class Pauser(SimulatedHandle):
    """Pauses the queue, or resumes it, and closes when the outcome has come."""

    def __init__(self, place: Place, journal: Journal, is_paused: bool) -> None:
        super().__init__(place)
        self.journal = journal
        self.is_paused = is_paused
        self.is_done = False
        self._is_alone = not journal.pausers
        journal.pausers.add(self)
        journal.pause_asks += 1
        self._turn_of_mine = journal.pause_asks
        for span in () if is_paused else journal.pauses:
            span.until_ms = min(span.until_ms, self.cluster.now_ms)
        self.session.query(Query(self, pause_request(is_paused)))
        self.poke()

    def take(self, outputs: list[Output]) -> None:
        for output in outputs:
            if isinstance(output, QueryDone) and isinstance(output.reply, Purged):
                self.is_done = True
                self.journal.pausers.discard(self)
                is_last = self._turn_of_mine == self.journal.pause_asks
                if self.is_paused and self._is_alone and is_last:
                    self.journal.pauses.append(PauseSpan(self.cluster.now_ms))
        if self.is_open and self.is_done:
            self.cluster.after(0, self.close)


class Getter(Consumer):
    """Calls get() now and then, fetches ahead, and gives back what others wait for."""

    number = 0
    _calls = 0
    """Calls of get() that wait for a message."""

    def call(self) -> None:
        """The user asks for a few more."""
        self._calls = self.random.randint(1, 3)
        self.poke()

    def _kept(self) -> int:
        return self._calls

    def work(self) -> None:
        taken_before = len(self._buffer)
        if self._calls:
            super().work()
            self._calls = max(self._calls - (taken_before - len(self._buffer)), 0)

    def ask(self) -> None:
        ahead = self._calls + 4 if self._calls else 0
        self.session.want(self.number, len(self._buffer), ahead)


def _one_of(random: Random, values: tuple[int, ...]) -> int:
    """Of one value without asking for chance: runs of old seeds stay what they were."""
    return random.choice(values) if len(values) > 1 else values[0]


def packer(
    bodies: list[bytes], terms: Terms, properties: list[bytes] | None = None
) -> Callable[[int, int, int], bytes]:
    def pack(producer: int, first_number: int, settled: int) -> bytes:
        return frames.pack_publish(
            bodies,
            properties,
            producer=producer,
            first_number=first_number,
            settled=settled,
            flags=terms.flags,
            delay_ms=terms.delay_ms,
            ttl_ms=terms.ttl_ms,
        )

    return pack
