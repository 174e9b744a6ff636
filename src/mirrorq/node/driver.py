"""The node thread: steps the engine and carries its effects out, in the order of their fields.

A round takes in all input and lets handles turn their users' calls into requests. It then steps the
engine once, sends frames at once, makes one commit for all queues, then sends, reads, replies. The
commit is made inline: the hand-off to another thread costs more than the write at low load, and at
high load rounds grow by themselves.

A commit that the disk or the map refuses (full) is kept and tried again. Effects that depend on the
commit wait for it, and everything else continues. Any other failure of the store ends the node: its
disk is in an unknown state.
"""

from __future__ import annotations

import itertools
import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Protocol

from attrs import define, field

from mirrorq import clock
from mirrorq.api.host import SessionPort
from mirrorq.api.host_thread import HostThread, Port
from mirrorq.containers.ranges import RangeSet
from mirrorq.engine import events
from mirrorq.engine.engine import Engine
from mirrorq.errors import ConfigError, ProtocolError, QueueDown, StoreCorrupt, StoreFull
from mirrorq.node.copy_reader import read_copy
from mirrorq.node.ending import Ending, endings
from mirrorq.node.frame_reader import FrameReader, chunk_of, fill, shown, unpacked
from mirrorq.node.log_limit import LogLimit
from mirrorq.node.node_queries import NodeQueries, ServesClients
from mirrorq.node.outbox_packing import packed
from mirrorq.node.oversize import Oversize
from mirrorq.node.sampling import CountsClients, Sampler
from mirrorq.node.steady_clock import SteadyClock
from mirrorq.node.timings import Timings
from mirrorq.node.waits import LOOK_MS, Waits
from mirrorq.node.watch import Watch
from mirrorq.protocol.commands import CatalogCommand
from mirrorq.protocol.control import NodeAnswer, NodeQuestion
from mirrorq.protocol.copy_page import CopyPage
from mirrorq.protocol.effects import Notice, OutboxLoad, OutboxLoaded, RailArm, RailDisarm
from mirrorq.protocol.identities import SessionId
from mirrorq.protocol.ring import STAR, Data, FetchFrames, JoinerDurable, PackedChunk
from mirrorq.protocol.sessions import Browsed, Deliver, SessionReply, SessionRequest
from mirrorq.replication.events import FrameDamaged, RailStopped, Undelivered
from mirrorq.session.calls import Closed, LinkLost, MasterChanged, ReplyArrived, SessionEvent
from mirrorq.store.node_store import Store
from mirrorq.transport.inbound import (
    CONTROL,
    DATA,
    ClientMessage,
    Connected,
    Disconnected,
    Garbage,
    HandshakeRefused,
    Inbound,
    PeerMessage,
    ProbeResult,
    RailMark,
    ReplyLost,
    SendLost,
    TooLarge,
)
from mirrorq.transport.link import too_large
from mirrorq.transport.transport import Transport
from mirrorq.waiting import Doorbell
from mirrorq.wire.frames import check_publish
from mirrorq.wire.messages import Part, decode, encode
from mirrorq.wire.rail import pack_data

if TYPE_CHECKING:
    from mirrorq.node.rail import NodeRail

log = logging.getLogger("mirrorq")

RETRY_MS = 100
"""Delay before a commit that found the disk full is tried again, in milliseconds."""
WAITING_SENDS_MAX = 1000
"""Limit on messages of rounds without a write that wait for an earlier commit. Beyond the limit the
older half is dropped."""
POLL_MS_MAX = 10_000
"""Longest wait of an idle node without peers, in milliseconds. Every event ends the wait."""

_DATA_TYPES = (SessionRequest, SessionReply)
_WITH_BODIES = (Deliver, Browsed)
_ABOUT_NODES = (NodeQuestion, NodeAnswer)
"""Messages that are served without the engine."""


class ClientSide(ServesClients, CountsClients, Protocol):
    """The part of a node that serves clients (implemented by `gateway`)."""

    wake_ms: int | None
    left_ms: int
    """When the last client left, or the gateway began."""

    def on_message(self, inbound: ClientMessage) -> None: ...

    def on_reply_lost(self, identity: bytes, gone: bool, size: int) -> None: ...

    def end_stale_clients(self, now_ms: int) -> None:
        """Called once a round, after its input."""


@define(eq=False)
class _Port(Port):
    """A handle on the node, or a client's session that the node serves."""

    session: SessionId = field(kw_only=True)


class Driver(HostThread[_Port]):
    """One node's thread, with its engine, its waiting commits, and the handles that it steps.

    `Node` makes the driver. All methods are for the node thread, except `call`, `wake` and methods
    that state otherwise. The driver closes the store, the transport and the rail at its end.
    """

    def __init__(
        self,
        engine: Engine,
        store: Store,
        transport: Transport | None,
        on_notice: Callable[[Notice], None],
        rail: NodeRail | None = None,
    ) -> None:
        super().__init__("mirrorq-node", f"node {engine.me.node}")
        self.engine = engine
        self.blocked_by = ""
        """Why commits wait; "": they do not wait."""
        self._blocked_since_ms = 0
        self.gateway: ClientSide | None = None
        """Takes messages of clients; called on the node thread."""
        self.complaints = LogLimit(log)
        """Rate-limited log of faults that other processes cause. Node thread only."""
        self.oversize = Oversize(log)
        self.queries = NodeQueries(self)
        self.timings = Timings()
        self.sampler = Sampler(self, store, transport)
        self.watch = Watch(engine, store, self.timings, self.oversize, on_notice)
        self._store = store
        self._steady = SteadyClock(store)
        self._frames = FrameReader(store, engine.replicas)
        self._transport = transport
        self._rail = rail
        self._on_notice = on_notice
        self._events: list[events.EngineEvent] = []
        self._session_numbers = itertools.count(1)
        self._tokens = itertools.count(1)
        self._answers: dict[int, Callable[[events.Answer], None]] = {}
        """Callbacks for answers of the catalog, by token."""
        self.waits = Waits()
        """Waits of calls. Node thread only."""
        self._commits: deque[events.EngineEffects] = deque()
        self._sends_lost = False
        """True if messages were dropped that waited long for a commit."""
        self._reads: deque[tuple[str, FetchFrames]] = deque()
        """Fetches of joining members. One chunk is read in a round, so that a round stays short."""
        self._is_room_set = False
        """True if the store's room is known: plenty, unchanged since the last check, and no queue
        wants more or holds messages back."""
        self._retry_at_ms = 0
        self._wake_at_ms: int | None = 0
        self._doorbell = Doorbell()

    # --- From other threads -------------------------------------------------------------

    def new_session(self) -> SessionId:
        """Return an id for one more handle that the node steps."""
        me = self.engine.me
        return SessionId(me.node, me.incarnation, next(self._session_numbers))

    def wake(self) -> None:
        """End the node thread's wait."""
        if self._transport is not None:
            self._transport.wake()
        else:
            self._doorbell.ring()

    # --- On the node thread -------------------------------------------------------------

    def read_copy(
        self, queue_id: int, span: tuple[int, int], bytes_max: int, applied: int
    ) -> CopyPage | None:
        """Read from the local copy: see `copy_reader`. None also while a damaged body is being
        fetched from another member.

        Raises:
            QueueNotFound, QueueDown: there is no readable copy here, or no reachable member has the
                first message undamaged.
            StoreCorrupt: the first message is damaged and there is no other member.
        """
        try:
            return read_copy(self.engine, self._frames, queue_id, span, bytes_max, applied)
        except StoreCorrupt as error:
            self._note_damage(queue_id, error)
            lost = self.engine.replicas[queue_id].transfer.lost
            if error.span is None or lost.within(*error.span):
                record = self.engine.catalog.queue(queue_id)
                if record is not None and len(record.view.members) == 1:
                    raise StoreCorrupt(
                        f"messages of queue {record.name!r} are damaged in their only copy: {error}"
                    ) from error
                raise QueueDown(
                    f"messages of queue {queue_id} are damaged on node {self.engine.me.node}: read "
                    f"from another node. {error}"
                ) from error
            return None

    def _note_damage(self, queue_id: int, error: StoreCorrupt) -> None:
        """Report damage to the engine, which fetches the messages from another member."""
        if error.span is None:
            log.error("queue %d: %s", queue_id, error)
        else:
            self.post(events.ToCopy(queue_id, FrameDamaged(*error.span, str(error))))

    def post(self, event: events.EngineEvent) -> None:
        """Give the engine an event in the next round."""
        self._events.append(event)

    def tell(self, node: str, message: NodeQuestion | NodeAnswer) -> None:
        """Send a message to another node, without the engine."""
        self._send([(node, message)])

    def ask(self, command: CatalogCommand, answered: Callable[[events.Answer], None]) -> int:
        """Request a catalog command; return its token. `answered` is called with the answer."""
        token = next(self._tokens)
        self._answers[token] = answered
        self.post(events.Ask(token, command))
        return token

    def when(self, key: object, holds: Callable[[], bool], function: Callable[[], None]) -> None:
        """Call a function once on the node thread: after the first step of the engine after which
        the condition holds, or at the end of the thread. On the node thread."""
        self.waits.add(key, lambda: holds() or None, lambda _: function(), at_end=function)

    def forget(self, token: int) -> None:
        """Drop the callback of a token: the answer is not wanted any more."""
        self._answers.pop(token, None)
        self.post(events.Forget(token))

    def open_port(self, session: SessionId, queue_id: int, handle: SessionPort) -> None:
        self._ports.open(_Port(session.number, handle, queue_id, session=session))
        self.post(events.SessionOpened(session, queue_id))

    def close_port(self, session: SessionId) -> None:
        port = self._take_out(session.number)
        if port is not None:
            self.post(events.SessionClosed(session, port.queue_id))

    def _run_rounds(self) -> None:
        self._attempt(self._make_rounds)
        for step in endings(lambda: self.failure is not None):
            self._attempt(partial(self._end, step))

    def _make_rounds(self) -> None:
        while not self.is_stopping:
            self._round()

    def _end(self, step: Ending) -> None:
        transport, rail, store = self._transport, self._rail, self._store
        match step:
            case Ending.STOP_RAIL if rail is not None:
                rail.stop()
            case Ending.WRITE_REST:
                self.post(events.WriteAll())
                self._round()
            case Ending.TELL_WAITING:
                self._tell_waiting()
            case Ending.CLOSE_TRANSPORT if transport is not None:
                transport.close()
            case Ending.ABANDON_TRANSPORT if transport is not None:
                transport.abandon()
            case Ending.FREE_RAIL if rail is not None:
                rail.free()
            case Ending.CLOSE_STORE:
                store.close()
            case Ending.ABANDON_STORE:
                store.abandon()

    def _tell_waiting(self) -> None:
        for port in self._ports:
            self._attempt(partial(self._end_port, port))
        for callback in self._answers.values():
            self._attempt(partial(callback, events.Answer(0, 0, "ShutDown", "the node is closed")))
        self.waits.close()

    def _end_port(self, port: _Port) -> None:
        self._ports.close(port)
        reason = (
            "the node is closed" if self.failure is None else f"the node failed: {self.failure}"
        )
        port.handle.step(clock.now_ms(), [*port.events, Closed(reason)])

    def _round(self) -> None:
        now_ms = self._poll()
        if self._calls:
            self._do_calls()
        if self.gateway is not None:
            self.gateway.end_stale_clients(now_ms)
        self._step_ports(now_ms)
        inputs, self._events = self._events, []
        if not self._is_room_set:
            self._set_room()
        now_ms = clock.now_ms()
        effects = self.engine.step(now_ms, self._steady.us(now_ms), inputs)
        self._wake_at_ms = effects.wake_at_ms
        hosting = self.engine.hosting
        if hosting.led:
            self.timings.note_steps(hosting.led)
        if self.waits.need_time or self.waits.on_catalog:
            self.waits.look(self.engine.catalog.applied_index)
        if effects.contacts is not None:
            self._connect(effects.contacts)
        if effects.send_first:
            self._send(effects.send_first)
        for reply in effects.replies:
            self._reply(reply)
        for change in effects.changes:
            self._tell_ports(change)
        if effects.round or hosting.room.wanted or hosting.holding:
            self._is_room_set = False
        if effects.round and self._ports.due:
            # Messages reach their users while the disk works.
            self._step_ports(clock.now_ms())
        if effects.round or self._commits:
            self._wait_for_disk(effects)
            self._commit_all()
        else:
            self._carry_out(effects)
        if effects.rail:
            self._carry_out_rail(effects.rail)
        if self._reads:
            self._read_next()
        now_ms = clock.now_ms()
        if self._ports.due:
            # Calls that users made meanwhile are for the next round, which begins at once.
            self._step_ports(now_ms)
        if self._transport is not None:
            self._transport.flush()
        if now_ms >= self.watch.look_ms:
            self.watch.look(now_ms)
        if self.sampler.is_busy:
            self.sampler.advance()

    def _carry_out_rail(self, wanted: Sequence[tuple[int, RailArm | RailDisarm]]) -> None:
        for queue_id, one in wanted:
            if self._rail is None:
                self.post(events.ToCopy(queue_id, RailStopped()))
            else:
                self._rail.carry_out(queue_id, one)

    def _set_room(self) -> None:
        """Tell the engine how much the store certainly takes in the commit of the round."""
        room = self.engine.room
        if self._commits:
            # Waiting commits come first; their size is known only after they are on disk.
            room.set(0, 0, self.blocked_by)
            return
        if room.wanted:
            self._store.make_room()
        room.set(*self._store.room(room.wanted))
        self._is_room_set = not room.advice

    def _connect(self, wanted: Mapping[str, str]) -> None:
        """Connect to exactly the wanted nodes; existing connections to them stay."""
        transport = self._transport
        if transport is None:
            return
        for node in transport.peers:
            if node not in wanted:
                transport.forget_peer(node)
        for node, endpoint in wanted.items():
            try:
                transport.connect_peer(node, endpoint)
            except ConfigError as error:
                # Other nodes reported the endpoint; the user's own endpoints were checked at start.
                self.complaints.warn("cannot connect to %s: %s", node, error)

    # --- Input --------------------------------------------------------------------------

    def _poll(self) -> int:
        """Wait for input and take it in. Returns the time."""
        timeout_ms = self._timeout_ms()
        began_ms = clock.now_ms()
        if self._transport is None:
            self._doorbell.wait(timeout_ms / 1000)
        else:
            for inbound in self._transport.poll(timeout_ms):
                if type(inbound) is PeerMessage:
                    self._on_peer_message(inbound)
                else:
                    self._on_inbound(inbound)
            if self._rail is not None:
                # First: ops of the rail came before messages that ask for the log's content.
                self._events[:0] = self._rail.take_events()
        now_ms = clock.now_ms()
        if now_ms - began_ms > timeout_ms:
            self.watch.note_late(now_ms - began_ms - timeout_ms)
        return now_ms

    def _timeout_ms(self) -> int:
        ports = self._ports
        if self._events or self._calls or ports.woken or ports.due or self._reads:
            return 0
        if self.is_stopping or self.sampler.is_busy:
            return 0
        if self._rail is not None and self._rail.is_due:
            return 0
        now_ms = clock.now_ms()
        wake = min(now_ms + POLL_MS_MAX, ports.deadlines.next_ms)
        if self._wake_at_ms is not None and self._wake_at_ms < wake:
            wake = self._wake_at_ms
        if self._commits:
            wake = min(wake, self._retry_at_ms)
        gateway = self.gateway
        if gateway is not None and gateway.wake_ms is not None:
            wake = min(wake, gateway.wake_ms)
        if self.waits.need_time:
            wake = min(wake, now_ms + LOOK_MS)
        return wake - now_ms if wake > now_ms else 0

    def _on_peer_message(self, inbound: PeerMessage) -> None:
        try:
            message: object = decode(inbound.parts)
            kind = type(message)
            if kind is SessionRequest:
                check_publish(message)
            elif kind is PackedChunk:
                message = unpacked(message)  # type: ignore[arg-type]
        except ProtocolError as error:
            self.complaints.warn("dropped a message of %s: %s", inbound.peer, error)
            return
        if kind in _ABOUT_NODES:
            self.queries.on_message(inbound.peer, inbound.incarnation, message)  # type: ignore[arg-type]
        else:
            self._events.append(events.FromPeer(inbound.peer, inbound.incarnation, message))

    def _on_inbound(self, inbound: Inbound) -> None:
        match inbound:
            case RailMark():
                mark = JoinerDurable(inbound.queue_id, inbound.epoch, inbound.lsn)
                self.post(events.FromPeer(inbound.peer, inbound.incarnation, mark))
            case Connected():
                self.post(events.LinkUp(inbound.peer))
            case Disconnected():
                self.post(events.LinkDown(inbound.peer))
            case SendLost():
                # The ring and the sessions repeat important messages, as after a reconnect.
                self.post(events.LinkUp(inbound.peer))
            case ProbeResult():
                self.post(events.Probed(inbound.peer, inbound.refused))
            case ClientMessage():
                if self.gateway is not None:
                    self.gateway.on_message(inbound)
            case ReplyLost():
                if self.gateway is not None:
                    self.gateway.on_reply_lost(inbound.identity, inbound.gone, inbound.size)
            case TooLarge():
                assert self._transport is not None
                limit = self._transport.part_bytes_max
                self.oversize.report("a client", "a reply", (0, ""), inbound.size, limit)
            case HandshakeRefused():
                self.complaints.warn("refused %s: %s", inbound.who, inbound.why)
            case Garbage():
                self.complaints.warn("garbage from %s: %s", inbound.source, inbound.why)

    def _carry(self, port: _Port, requests: tuple[SessionRequest, ...]) -> None:
        for request in requests:
            self._events.append(events.FromSession(request))

    # --- Effects ------------------------------------------------------------------------

    def _wait_for_disk(self, effects: events.EngineEffects) -> None:
        """Put a round behind the rounds that are not on disk. A round without a write is merged
        into the last waiting round: a full disk would make their number unbounded."""
        if effects.round or not self._commits:
            self._commits.append(effects)
            return
        last = self._commits[-1]
        last.send += effects.send
        last.reads += effects.reads
        last.loads += effects.loads
        last.answers += effects.answers
        last.notices += effects.notices
        last.probes += effects.probes
        if len(last.send) > WAITING_SENDS_MAX:
            # Lost, as on a link that breaks.
            self._sends_lost = True
            del last.send[: -WAITING_SENDS_MAX // 2], last.reads[:-WAITING_SENDS_MAX]

    def _commit_all(self) -> None:
        """Commit rounds in order: each waits for its own commit and all earlier commits."""
        if self._commits and clock.now_ms() < self._retry_at_ms:
            return
        while self._commits:
            effects = self._commits[0]
            if effects.round and not self._commit(effects):
                return
            self._commits.popleft()
            self._carry_out(effects)
            if effects.round:
                self.post(events.Committed(effects.round))
        if self._sends_lost and self._transport is not None:
            # The ring and the sessions repeat important messages, as after a reconnect.
            self._sends_lost = False
            for node in self._transport.peers:
                self.post(events.LinkUp(node))

    def _commit(self, effects: events.EngineEffects) -> bool:
        if self._transport is not None:
            self._transport.flush()
        try:
            began = clock.monotonic()
            self._store.commit(effects.writes, effects.raft)
            self.timings.note_commit(began)
        except StoreFull as error:
            if not self.blocked_by:
                log.error("commits wait: %s", error)
                self._blocked_since_ms = clock.now_ms()
            self.blocked_by = str(error)
            self._retry_at_ms = clock.now_ms() + RETRY_MS
            return False
        if self.blocked_by:
            log.warning("commits go on")
            self.blocked_by = ""
            self._retry_at_ms = 0
        return True

    @property
    def stuck_text(self) -> str:
        """Why the node's users are blocked; "": not blocked, or only for a moment."""
        why = self.blocked_by
        waited_ms = clock.now_ms() - self._blocked_since_ms
        return f"cannot write: {why}" if why and waited_ms >= self.engine.config.failure_ms else ""

    def _carry_out(self, effects: events.EngineEffects) -> None:
        if effects.send:
            self._send(effects.send)
        if effects.has_rest:
            self._carry_out_rest(effects)

    def _carry_out_rest(self, effects: events.EngineEffects) -> None:
        self._reads.extend(effects.reads)
        for load in effects.loads:
            self.post(events.ToCopy(load.queue_id, self._packed(load)))
        for answer in effects.answers:
            callback = self._answers.pop(answer.token, None)
            if callback is not None:
                callback(answer)
        for notice in effects.notices:
            self._on_notice(notice)
        for node in effects.probes:
            if self._transport is not None:
                self._transport.probe(node)

    def _packed(self, load: OutboxLoad) -> OutboxLoaded:
        """Return a batch for another queue, made from frames of the source queue."""
        try:
            return packed(load, lambda *span: self._frames.read(load.queue_id, *span))
        except StoreCorrupt as error:
            self._note_damage(load.queue_id, error)
            return OutboxLoaded(load.queue_id, load.target, load.number, 0, 0, b"")
        except ProtocolError as error:
            log.error("cannot bring messages to queue %s: %s", load.target_name, error)
            return OutboxLoaded(load.queue_id, load.target, load.number, 0, 0, b"")

    def _read_next(self) -> None:
        """Answer the next fetch of a joining member; fetches of older views are dropped."""
        while self._reads:
            node, fetch = self._reads.popleft()
            replica = self.engine.replicas.get(fetch.queue_id)
            if replica is None or replica.ring.epoch != fetch.epoch:
                continue
            lost = replica.transfer.lost if replica.ring.in_sync else RangeSet()
            span = (fetch.after_sequence + 1, fetch.upto_sequence)
            told = partial(self._note_damage, fetch.queue_id)
            self._send([(node, chunk_of(self._frames, fetch, tuple(lost.within(*span)), told))])
            return

    def _send(self, messages: list[tuple[str, object]]) -> None:
        if self._transport is None:
            return
        if self._transport.has_rails:
            # Rails of the peers: the local node need not have a rail.
            messages = self._send_by_rail(self._transport, messages)
        last: object = None
        parts: Sequence[Part] = ()
        for node, message in messages:
            if message is not last:
                # Equal messages for several nodes follow each other.
                last, parts = message, encode(message)  # type: ignore[arg-type]
            kind: Any = type(message)
            if not self._transport.send(node, _channel_of(kind), parts):
                self._note_unsent(self._transport, node, message, parts)

    def _send_by_rail(
        self, transport: Transport, messages: list[tuple[str, object]]
    ) -> list[tuple[str, object]]:
        """Send the messages that nodes' rails take. Returns the rest."""
        rest: list[tuple[str, object]] = []
        packed: dict[int, bytes] = {}
        for node, message in messages:
            if isinstance(message, Data) and message.mode == STAR:
                data = packed.get(id(message))
                if data is None:
                    data = packed[id(message)] = pack_data(message)
                if transport.send_rail(node, data):
                    continue
            rest.append((node, message))
        return rest

    def _note_unsent(
        self, transport: Transport, node: str, message: object, parts: Sequence[Part]
    ) -> None:
        """Handle an unsent message. A disconnected node gets important messages again; an oversized
        message never arrives. A local handle with an oversized request ends with the reason."""
        if transport.takes(parts):
            return
        queue_id: int = getattr(message, "queue_id", 0)
        queue = (queue_id, self.engine.catalog.name_of(queue_id) if queue_id else "")
        size = max(map(len, parts))
        kind = f"message {type(message).__name__}"
        self.oversize.report(f"node {node}", kind, queue, size, transport.part_bytes_max)
        port = self._port_of(message.session) if isinstance(message, SessionRequest) else None
        if port is not None:
            why = too_large(parts, transport.part_bytes_max)
            self._ports.tell(port, Closed(f"a request cannot be sent to node {node}: it {why}"))

    def _reply(self, reply: SessionReply) -> None:
        port: _Port | None = None
        if reply.session.node == self.engine.me.node:
            port = self._port_of(reply.session)
            if port is None:
                return
        body = reply.reply
        if not isinstance(body, _WITH_BODIES) or body.frames:
            self._pass_on(reply, port)
            return
        is_own = self._is_own_delivery(reply)
        if isinstance(body, Browsed):
            reply, damaged = shown(self._frames, reply)
            for one in damaged:
                self._note_damage(reply.queue_id, one)
        try:
            reply, rest = fill(self._frames, reply)
        except StoreCorrupt as error:
            # First: a message being fetched is not delivered again before its arrival.
            self._note_damage(reply.queue_id, error)
            self._post_undelivered(reply)
            return
        if is_own and not self.engine.may_deliver(reply, clock.now_ms()):
            self._post_undelivered(reply)
            return
        if rest is not None:
            self._post_undelivered(rest)
        if is_own and isinstance(reply.reply, Deliver):
            self.engine.replicas[reply.queue_id].tally.note_sent(reply.reply)
        self._pass_on(reply, port)

    def _post_undelivered(self, reply: SessionReply) -> None:
        """Tell the master here about a delivery that is not sent."""
        if isinstance(reply.reply, Deliver):
            self.post(events.ToCopy(reply.queue_id, Undelivered(reply.session, reply.reply)))

    def _pass_on(self, reply: SessionReply, port: _Port | None) -> None:
        """Pass a reply to its handle, here (at the given port) or on another node."""
        if port is not None:
            self._ports.tell(port, ReplyArrived(reply))
        else:
            self._send([(reply.session.node, reply)])

    def _port_of(self, session: SessionId) -> _Port | None:
        """Return the handle of a session; None for an earlier incarnation of the node."""
        port = self._ports.get(session.number)
        return port if port is not None and port.session == session else None

    def _is_own_delivery(self, reply: SessionReply) -> bool:
        """Return true if a master on the local node decided the delivery."""
        body = reply.reply
        if not isinstance(body, Deliver) or body.frames:
            return False
        replica = self.engine.replicas.get(reply.queue_id)
        master = replica.master if replica is not None else None
        return not body.bare or (master is not None and master.master_epoch == reply.epoch)

    def _tell_ports(self, change: events.MasterChange | events.MasterLinkLost) -> None:
        event: SessionEvent = LinkLost()
        ports: Iterable[_Port | None] = self._ports.of_queue(change.queue_id)
        if isinstance(change, events.MasterChange):
            event = MasterChanged(change.master_epoch, change.available)
            if not change.master_epoch:
                event = Closed("the queue was deleted", deleted=True)
            if change.sessions:
                ports = map(self._port_of, change.sessions)
        for port in filter(None, ports):
            self._ports.tell(port, event)


@cache
def _channel_of(kind: type) -> int:
    """Return the channel of a kind of message. Small urgent messages have their own connection."""
    if issubclass(kind, _DATA_TYPES) or hasattr(kind, "epoch"):
        return DATA
    return CONTROL
