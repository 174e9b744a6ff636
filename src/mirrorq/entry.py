"""The entry node's side of `connect()`: what a node does for processes that are no nodes.

A client's handle speaks the same requests as one on this node. Here each of its sessions gets
a `SessionId` of this node and a port among the driver's, so that the engine and the master
need not know that clients exist: requests go in under that id, events come out and are sent on.

Everything runs on the node thread, and nothing that a client sends raises: what is wrong is
dropped with a log line. Clients, their sessions and their calls are bounded in number; what they
publish is bounded by R10 and their window, what they are sent by their credit and another window
(`client_flow`): masters hand out no more to a client than it reads.

A client is gone when it says so, when its connection refuses a reply, or when it is silent for
`session_expiry_ms`. Then each of its sessions ends with a Detach in its name, because the master
may be on another node: what it held goes back, counted.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec
from attrs import define, field

from mirrorq import clock
from mirrorq.attendance import Served
from mirrorq.catalog import exclusive_text
from mirrorq.client_flow import Seat, Window
from mirrorq.config import Config
from mirrorq.copy_page import pack_pieces
from mirrorq.copy_reader import seek_copy
from mirrorq.declaration import NAME_CHARS_MAX, declaration_error
from mirrorq.driver import check_publish
from mirrorq.engine import Engine
from mirrorq.engine_events import (
    Answer,
    Ask,
    FromSession,
    SessionClosed,
)
from mirrorq.errors import MirrorQError, ProtocolError
from mirrorq.exchange_watch import Seen
from mirrorq.expulsions import Expulsions, expulsion_text, outcome_of
from mirrorq.messages import (
    Attach,
    ClientAdminister,
    ClientAnswer,
    ClientBye,
    ClientCall,
    ClientClose,
    ClientClosed,
    ClientDeclare,
    ClientDelete,
    ClientDisconnect,
    ClientForget,
    ClientHello,
    ClientLinkLost,
    ClientLook,
    ClientMaster,
    ClientOpen,
    ClientPing,
    ClientPong,
    ClientRead,
    ClientRefused,
    ClientSeek,
    ClientUnknown,
    ClientWatch,
    ClientWelcome,
    Credit,
    DeclareQueue,
    DeclareShards,
    DeleteQueue,
    Deliver,
    Detach,
    Detached,
    Request,
    SessionId,
    SessionReply,
    SessionRequest,
    Subscribe,
    Unsubscribe,
)
from mirrorq.patience import Patience
from mirrorq.permits import Permits, lost_right
from mirrorq.rights import Right
from mirrorq.session import Closed, LinkLost, MasterChanged, ReplyArrived, SessionEvent
from mirrorq.shard_status import listed, shard_text
from mirrorq.sharding import ShardedRecord
from mirrorq.status import NodeStatus, PolicyStatus, QueueStatus
from mirrorq.transport import CONTROL, DATA
from mirrorq.wire.messages import WireMessage, decode, encode

if TYPE_CHECKING:
    from mirrorq.authority import Authority
    from mirrorq.catalog import QueueRecord
    from mirrorq.driver import Driver
    from mirrorq.transport import ClientMessage, Transport

__all__ = ["Entry"]

log = logging.getLogger("mirrorq")

CLIENTS_MAX = 4096
"""Clients of one node. Each costs a connection and some KB."""
EXPIRY_MS_MAX = 60_000
"""A client may ask to be waited for up to this: it holds messages meanwhile."""
SESSIONS_MAX = 4096
"""Handles of one client."""
SEATS_MAX = 1024
"""Consumers of one handle."""
CALLS_MAX = 256
"""Declarations and questions of one client under way."""
SILENT_MAX = 1024
"""Clients taken for gone that are remembered."""
JUDGE_MS = 50
"""How often it is looked for clients that are silent."""
SERVED_POLL_MS = 50
"""How often what clients wait for is looked for, beside each step of the engine."""

AnswerLater = Callable[[], ClientAnswer | None]


@define(eq=False)
class _Client:
    identity: bytes
    name: str
    since_us: int
    """When it came, by the wall clock."""
    heard_ms: int
    expiry_ms: int
    """Silence after which it is gone, times its patience."""
    window: Window
    key: str = ""
    """Its public key, "" without security."""
    address: str = ""
    """Of its connection."""
    permits: Permits | None = None
    """What its key allows; None: everything."""
    sessions: dict[int, _Session] = field(factory=dict)
    """By the client's own number."""
    owners: dict[int, SessionId] = field(factory=dict)
    """Sessions that own an exclusive queue or are to, by the client's own number."""
    calls: dict[int, int] = field(factory=dict)
    """Calls under way: number -> token of the Ask, 0 while there is none."""
    waiting: dict[int, AnswerLater] = field(factory=dict)
    """Calls that wait for something to come true on this node."""
    watches: dict[int, ClientWatch] = field(factory=dict)
    """Calls that wait for an exchange to change."""
    channel: int = DATA
    """On which it gives signs of life."""
    patience: int = 100
    """Percent, the last that it was told."""
    patience_before: int = 100
    """It may not have heard the last yet."""
    is_lossy: bool = False
    """Messages to it were dropped; its next pong says so."""


@define(eq=False)
class _Session:
    """One session of a client: a port of the driver that passes events on."""

    entry: Entry
    client: _Client
    number: int
    session: SessionId
    queue_id: int
    epoch: int = 0
    attachment: int = 0
    requests: int = 0
    """The client's number of the last request that was passed on."""
    sent: int = 0
    """The number under which it was: credits are passed on when there is room, and repeated."""
    seats: dict[int, Seat] = field(factory=dict)
    """Consumers of this attachment."""

    def step(
        self, now_ms: int, events: Sequence[SessionEvent]
    ) -> tuple[tuple[SessionRequest, ...], int | None]:
        for event in events:
            self.entry.on_event(self, event)
        return (), None

    def is_next(self, request: SessionRequest) -> bool:
        """Whether it follows what was passed on: the master must see no gap of our making,
        or it would not take the Detach that we add."""
        if request.attachment == self.attachment:
            return request.number == self.requests + 1
        return request.attachment > self.attachment and request.number == 1

    def shows_gap(self, request: SessionRequest) -> bool:
        """Whether requests before it are missing; else it is old or a repetition."""
        if request.attachment == self.attachment:
            return request.number > self.requests + 1
        return request.attachment > self.attachment

    def take(self, request: SessionRequest) -> None:
        """Note the client's next request."""
        if request.attachment != self.attachment:
            self.sent = 0
            self.seats.clear()
        self.epoch, self.attachment = request.epoch, request.attachment
        self.requests = request.number

    def in_own_name(self, request: Request) -> SessionRequest:
        """A request as that of this node's session."""
        self.sent += 1
        return SessionRequest(
            self.queue_id, self.epoch, self.session, self.attachment, self.sent, request
        )


class Entry:
    """All clients of one node. Every method is the node thread's.

    Args:
        driver: takes requests, and steps the ports.
        transport: carries replies.
        config: bounds and times.
        tokens: numbers for catalog requests, shared with the node.
        session_numbers: numbers for sessions, shared with the node.
        status: what the node knows of a queue.
        is_served: whether a new queue's master has been heard of.
        is_ready: whether the node takes part in a cluster that has a leader.
        authority: the keys of clients; None: no security, everybody may do everything.
    """

    def __init__(
        self,
        driver: Driver,
        transport: Transport,
        config: Config,
        *,
        tokens: Iterator[int],
        session_numbers: Iterator[int],
        status: Callable[[int], QueueStatus],
        is_served: Callable[[int], bool],
        is_ready: Callable[[], bool],
        authority: Authority | None = None,
    ) -> None:
        self.wake_ms: int | None = None
        """When `step` has something to do."""
        self._driver = driver
        self._transport = transport
        self._config = config
        self._tokens = tokens
        self._session_numbers = session_numbers
        self._status = status
        self._is_served = is_served
        self._is_ready = is_ready
        self._warn = driver.complaints.warn
        self._authority = authority
        self._keys_version = 0 if authority is None else authority.version
        self._clients: dict[bytes, _Client] = {}
        self._told_index = 0
        """Index of the catalog when watchers were last told."""
        self._stepped_ms = self._judged_ms = clock.now_ms()
        """When each client had had its turn to be read, and when it was looked who is silent."""
        self._patience = Patience()
        self._silent: dict[bytes, tuple[int, int]] = {}
        """Clients taken for gone of late: for how long they were waited for, and their expiry."""
        self._expulsions = Expulsions()
        self._waiting: dict[bytes, _Client] = {}
        """Clients with calls that wait for something to come true."""

    @property
    def client_count(self) -> int:
        return len(self._clients)

    @property
    def _engine(self) -> Engine:
        return self._driver.engine

    # --- Input --------------------------------------------------------------------------

    def on_message(self, inbound: ClientMessage) -> None:
        """Take one message of a client."""
        identity = inbound.identity
        client = self._clients.get(identity)
        if client is None:
            self._hear_again(identity)
        if self._authority is not None and not self._is_admitted(self._authority, inbound, client):
            return
        try:
            message = decode(inbound.parts)
            check_publish(message)
        except ProtocolError as error:
            self._warn("dropped a message of %s: %s", _label(identity, client), error)
            if client is None:
                self._send(identity, ClientRefused(str(error)))
            return
        if isinstance(message, ClientHello):
            self._on_hello(inbound, message)
        elif client is None:
            if not isinstance(message, ClientBye):
                self._send(identity, ClientUnknown())
        else:
            self._hear(client)
            if inbound.channel == DATA:
                client.window.on_received(sum(map(len, inbound.parts)))
                self._on_known(client, message)
                if client.window.is_report_due:
                    self._pong(client)
            elif isinstance(message, ClientPing):
                client.channel = CONTROL
                self._on_ping(client, message)
            else:
                kind = type(message).__name__
                self._warn("dropped a %s of client %s: it is data", kind, client.name)

    def _hear(self, client: _Client) -> None:
        """It lives."""
        now_ms = clock.now_ms()
        # Up to the last time that it was listened for: since then it may have spoken at any time.
        silence_ms = self._stepped_ms - client.heard_ms
        if silence_ms > 0:
            self._patience.on_heard(now_ms, silence_ms, client.expiry_ms)
        client.heard_ms = now_ms

    def _hear_again(self, identity: bytes) -> None:
        """Who was taken for gone for his silence was late, if he speaks: wait longer next time."""
        waited_ms, expiry_ms = self._silent.pop(identity, (0, 0))
        if waited_ms:
            self._patience.on_heard(clock.now_ms(), waited_ms, expiry_ms)

    def _on_known(self, client: _Client, message: WireMessage) -> None:
        match message:
            case SessionRequest():
                self._on_request(client, message)
            case ClientOpen():
                self._open(client, message)
            case ClientClose():
                session = client.sessions.pop(message.session, None)
                if session is not None:
                    self._end_session(session)
                self._end_owner(client, message.session)
            case ClientCall():
                self._on_call(client, message)
            case ClientForget():
                self._forget(client, message.number)
            case ClientPing():
                self._on_ping(client, message)
            case ClientBye():
                self._end(client, "said goodbye")
            case _:
                kind = type(message).__name__
                self._warn("dropped a %s of client %s: not from clients", kind, client.name)

    def _on_ping(self, client: _Client, ping: ClientPing) -> None:
        client.window.on_told(ping.received)
        self._pong(client)
        for session in client.sessions.values():
            self._pass_credits(session)

    def _pong(self, client: _Client) -> None:
        now_ms = clock.now_ms()
        paused = self._engine.is_paused(now_ms)
        lost, client.is_lossy = client.is_lossy, False
        client.patience_before = client.patience
        client.patience = self._patience.percent(now_ms, len(self._clients))
        pong = ClientPong(paused, lost, client.window.report(), client.patience)
        if client.channel == CONTROL:
            self._transport.reply(client.identity, encode(pong), CONTROL)
        else:
            self._send(client.identity, pong)

    def _pass_credits(self, session: _Session) -> None:
        """Let masters hand out what there is room for on the way to this client."""
        due = [seat for seat in session.seats.values() if seat.is_due]
        client = session.client
        room = client.window.size - client.window.on_way
        if not due or room <= 0:
            return
        seats = sum(len(other.seats) for other in client.sessions.values())
        for seat in due:
            self._driver.post(FromSession(session.in_own_name(seat.credit(room, seats))))

    def on_reply_lost(self, identity: bytes, gone: bool, size: int) -> None:
        """Replies were dropped."""
        client = self._clients.get(identity)
        if client is None:
            return
        client.window.on_lost(size)
        if gone:
            self._end(client, "its connection ended")
        else:
            client.is_lossy = True

    def on_event(self, session: _Session, event: SessionEvent) -> None:
        """Pass on what the driver tells a session."""
        identity, number = session.client.identity, session.number
        match event:
            case ReplyArrived():
                reply = event.reply
                own = SessionId(session.client.name, 0, number)
                self._send(
                    identity,
                    SessionReply(
                        reply.queue_id,
                        reply.epoch,
                        own,
                        reply.attachment,
                        reply.number,
                        reply.reply,
                    ),
                )
                if isinstance(reply.reply, Deliver):
                    seat = session.seats.get(reply.reply.consumer)
                    if seat is not None and reply.attachment == session.attachment:
                        seat.on_deliver(reply.reply)
                        self._pass_credits(session)
            case MasterChanged():
                self._send(identity, ClientMaster(number, event.epoch, event.available))
            case LinkLost():
                self._send(identity, ClientLinkLost(number))
            case Closed():
                # A node that closes says the same; its clients go on at another.
                if self._engine.catalog.is_deleted(session.queue_id):
                    self._on_deleted(session, event.reason)

    def _on_deleted(self, session: _Session, reason: str) -> None:
        if session.client.sessions.pop(session.number, None) is not None:
            self._driver.close_port(session.session)
        self._send(session.client.identity, ClientClosed(session.number, reason))

    # --- Clients ------------------------------------------------------------------------

    def _is_admitted(
        self, authority: Authority, inbound: ClientMessage, client: _Client | None
    ) -> bool:
        """Whether the sender may speak, in the name of this client if it is one."""
        if authority.key(inbound.key) is None:
            why = f"node {self._engine.me.node} does not list the key {inbound.key} any more"
            if client is not None:
                self._end(client, why)
            self._send(inbound.identity, ClientRefused(why))
            return False
        return client is None or client.key == inbound.key

    def _follow_keys(self, authority: Authority) -> None:
        """The list of keys has changed: nobody keeps what he has lost."""
        self._keys_version = authority.version
        for client in list(self._clients.values()):
            if authority.key(client.key) is None:
                self._end(client, "its key is no longer listed")
                self._send(client.identity, ClientRefused("its key is no longer listed"))
                continue
            before = client.permits
            client.permits = authority.permits(client.key, self._engine.catalog)
            for session in list(client.sessions.values()):
                why = lost_right(before, client.permits, session.queue_id)
                if why:
                    self._refuse_session(session, why)

    def _refuse_session(self, session: _Session, why: str) -> None:
        self._warn("ended a session of client %s: %s", session.client.name, why)
        del session.client.sessions[session.number]
        self._end_session(session)
        self._end_owner(session.client, session.number)
        self._send(session.client.identity, ClientClosed(session.number, why, refused=True))

    def _on_hello(self, inbound: ClientMessage, hello: ClientHello) -> None:
        identity = inbound.identity
        known = self._clients.get(identity)
        if known is not None:
            self._end(known, "began anew")
        if len(self._clients) >= CLIENTS_MAX:
            why = f"node {self._engine.me.node} has {CLIENTS_MAX} clients already"
            self._warn("refused a client: %s", why)
            self._send(identity, ClientRefused(why))
            return
        # It stands in logs: no line of it may look like another's.
        name = "".join(c if c.isprintable() else "?" for c in hello.name[:NAME_CHARS_MAX])
        why = self._expulsions.why(name)
        if why:
            self._send(identity, ClientRefused(why, final=True))
            return
        own_ms = self._config.session_expiry_ms
        expiry_ms = max(own_ms, min(hello.expiry_ms, EXPIRY_MS_MAX))
        self._send(identity, ClientWelcome(hello.number, self._engine.me.node, expiry_ms))
        window = Window(self._config.client_window_bytes)
        key, address = inbound.key, self._transport.address_of(inbound)
        now_us = clock.wall_us()
        client = _Client(identity, name, now_us, clock.now_ms(), expiry_ms, window, key, address)
        if self._authority is not None:
            client.permits = self._authority.permits(inbound.key, self._engine.catalog)
        self._clients[identity] = client
        log.info("client %s came", name)

    def served(self) -> tuple[Served, ...]:
        """Every client, for who asks who there is."""
        return tuple(map(self._served, self._clients.values()))

    def _served(self, client: _Client) -> Served:
        key = None if self._authority is None else self._authority.key(client.key)
        queue_ids = dict.fromkeys(session.queue_id for session in client.sessions.values())
        names = map(self._engine.catalog.name_of, queue_ids)
        return Served(
            client.name,
            client.address,
            client.since_us / 1_000_000,
            "" if key is None else key.name,
            "" if key is None else key.role.value,
            tuple(session.session.number for session in client.sessions.values()),
            tuple(name for name in names if name),
        )

    def disconnect(self, name: str, why: str) -> int:
        """End clients of this name, and take none that comes again; say how many there were."""
        text = expulsion_text(self._engine.me.node, why)
        self._expulsions.note(name, text)
        found = [client for client in self._clients.values() if client.name == name]
        for client in found:
            self._warn("client %s is %s", client.name, text)
            self._end(client, "an administrator disconnected it")
            self._send(client.identity, ClientRefused(text, final=True))
        return len(found)

    def step(self, now_ms: int) -> None:
        """End clients that are silent, answer calls that waited."""
        if self._authority is not None and self._authority.version != self._keys_version:
            self._follow_keys(self._authority)
        if self._transport.takes_turns(len(self._clients)):
            self._judge(now_ms)
        self._look_again()
        pause_ms = SERVED_POLL_MS if self._waiting else self._config.heartbeat_ms
        self.wake_ms = now_ms + pause_ms if self._clients else None

    def _judge(self, now_ms: int) -> None:
        """End clients that are silent: each has had its turn to be read."""
        # When this thread stood still, so did its reading: that is no silence of theirs.
        stood_ms = max(now_ms - self._stepped_ms - self._config.heartbeat_ms, 0)
        self._stepped_ms = now_ms
        if stood_ms:
            for client in self._clients.values():
                client.heard_ms = min(client.heard_ms + stood_ms, now_ms)
        if now_ms - self._judged_ms >= min(JUDGE_MS, self._config.heartbeat_ms):
            self._judged_ms = now_ms
            self._end_silent(now_ms)

    def _look_again(self) -> None:
        """Answer calls whose wait is over."""
        for client in list(self._waiting.values()):
            for look in list(client.waiting.values()):
                answer = look()
                if answer is not None:
                    self._answer(client, answer)

    def _end_silent(self, now_ms: int) -> None:
        now_percent = self._patience.percent(now_ms, len(self._clients))
        for client in list(self._clients.values()):
            patience = max(client.patience, client.patience_before, now_percent)
            if (now_ms - client.heard_ms) * 100 >= client.expiry_ms * patience:
                self._end(client, f"silent for {now_ms - client.heard_ms} ms")
                self._silent[client.identity] = (now_ms - client.heard_ms, client.expiry_ms)
        while len(self._silent) > SILENT_MAX:
            del self._silent[next(iter(self._silent))]

    def _end(self, client: _Client, why: str) -> None:
        log.info("client %s is gone: %s", client.name, why)
        del self._clients[client.identity]
        self._waiting.pop(client.identity, None)
        for session in client.sessions.values():
            self._end_session(session)
        for number in list(client.calls):
            self._forget(client, number)
        for number in list(client.owners):
            self._end_owner(client, number)

    def _send(self, identity: bytes, message: WireMessage) -> None:
        try:
            parts = encode(message)
        except ProtocolError as error:
            log.error("cannot answer a client: %s", error)
            return
        client = self._clients.get(identity)
        if client is None:
            self._transport.reply(identity, parts)
        elif client.window.is_overrun or not self._transport.reply(identity, parts):
            client.is_lossy = True
        else:
            client.window.on_sent(sum(map(len, parts)))

    # --- Sessions -----------------------------------------------------------------------

    def _open(self, client: _Client, message: ClientOpen) -> None:
        number, queue_id = message.session, message.queue
        if number in client.sessions:
            self._warn("client %s opened session %s twice", client.name, number)
            return
        if len(client.sessions) >= SESSIONS_MAX:
            reason = f"a client has at most {SESSIONS_MAX} handles: close some"
            self._send(client.identity, ClientClosed(number, reason))
            return
        if self._engine.catalog.is_deleted(queue_id):
            self._send(client.identity, ClientClosed(number, "the queue was deleted"))
            return
        if client.permits is not None and not client.permits.sees(queue_id):
            why = client.permits.refusal(Right.READ, queue_id)
            self._send(client.identity, ClientClosed(number, why, refused=True))
            return
        record = self._engine.catalog.queue(queue_id)
        session_id = client.owners.get(number) or self._new_session()
        if record is not None and record.exclusive and record.owner != session_id:
            self._end_left(client, number, record)
            return
        session = _Session(self, client, number, session_id, queue_id)
        client.sessions[number] = session
        self._driver.open_port(session_id, queue_id, session)

    def _new_session(self) -> SessionId:
        me = self._engine.me
        return SessionId(me.node, me.incarnation, next(self._session_numbers))

    def _end_left(self, client: _Client, number: int, record: QueueRecord) -> None:
        """A client comes back to its exclusive queue, on another connection: that ended it.

        Nobody else opens a session on a queue that was declared exclusive.
        """
        log.info("client %s has left its exclusive queue %r", client.name, record.name)
        self._driver.post(Ask(next(self._tokens), DeleteQueue(record.id)))
        reason = (
            f"the connection to node {record.view.members[0].id.node} ended, and with it the "
            "exclusive queue: declare it anew"
        )
        self._send(client.identity, ClientClosed(number, reason))

    def _end_owner(self, client: _Client, number: int) -> None:
        """The session is no more: an exclusive queue of it ends."""
        owner = client.owners.pop(number, None)
        if owner is not None:
            self._driver.post(SessionClosed(owner, 0))

    def _on_request(self, client: _Client, request: SessionRequest) -> None:
        session = client.sessions.get(request.session.number)
        if session is None:
            # As a rule one that was on the way when its session ended.
            log.debug("client %s: request of no session", client.name)
            return
        if session.queue_id != request.queue_id:
            self._warn(
                "dropped a request of client %s to queue %s: its session is on %s",
                client.name,
                request.queue_id,
                session.queue_id,
            )
            return
        if session.is_next(request):
            self._pass_request(session, request)
        elif session.shows_gap(request):
            self._send_detached(client, request)

    def _pass_request(self, session: _Session, request: SessionRequest) -> None:
        session.take(request)
        body, permits = request.request, session.client.permits
        if permits is not None:
            why = permits.refusal_of_request(session.queue_id, body)
            if why:
                self._refuse_session(session, why)
                return
        if isinstance(body, Attach):
            body = Attach(body.held, body.producer, session.client.key)
        if isinstance(body, Credit):
            seat = session.seats.get(body.number)
            if seat is not None and not body.total:
                self._driver.post(FromSession(session.in_own_name(seat.halt())))
            elif seat is not None:
                seat.total = max(seat.total, body.total)
                self._pass_credits(session)
            return
        if isinstance(body, Unsubscribe):
            session.seats.pop(body.number, None)
        elif isinstance(body, Subscribe) and body.number not in session.seats:
            if len(session.seats) >= SEATS_MAX:
                self._warn("dropped consumer %s of client %s", body.number, session.client.name)
                return
            session.seats[body.number] = Seat(body.number)
        self._driver.post(FromSession(session.in_own_name(body)))

    def _send_detached(self, client: _Client, request: SessionRequest) -> None:
        """Something of this attachment was lost or dropped: the session attaches again."""
        own, attachment = SessionId(client.name, 0, request.session.number), request.attachment
        self._send(
            client.identity,
            SessionReply(request.queue_id, request.epoch, own, attachment, 0, Detached()),
        )

    def _end_session(self, session: _Session) -> None:
        if session.attachment:
            self._driver.post(FromSession(session.in_own_name(Detach())))
        self._driver.close_port(session.session)

    # --- Calls --------------------------------------------------------------------------

    def _on_call(self, client: _Client, message: ClientCall) -> None:
        number, call = message.number, message.call
        if number in client.calls:
            return
        if len(client.calls) >= CALLS_MAX:
            text = f"more than {CALLS_MAX} calls of one client at a time: wait for some"
            self._answer(client, ClientAnswer(number, 0, "MirrorQError", text, b""))
            return
        why = "" if client.permits is None else client.permits.refusal_of_call(message)
        if why:
            self._answer(client, ClientAnswer(number, 0, "AuthenticationError", why, b""))
            return
        client.calls[number] = 0
        match call:
            case ClientDeclare():
                self._declare(client, number, call)
            case ClientDelete():
                self._delete(client, number, call)
            case ClientLook():
                self._look(client, number, call)
            case ClientAdminister():
                self._administer(client, number, call)
            case ClientWatch():
                client.watches[number] = call
                self._tell_watchers(client)
            case ClientRead() | ClientSeek():
                self._wait_for(client, number, lambda: self._read(number, call))
            case ClientDisconnect():
                self._disconnect(client, number, call)

    def after_step(self) -> None:
        """The engine may have applied commands to the catalog: tell who waits for that."""
        if self._waiting:
            self._look_again()
        index = self._engine.catalog.applied_index
        if index != self._told_index:
            self._told_index = index
            for client in self._clients.values():
                if client.watches:
                    self._tell_watchers(client)

    def _tell_watchers(self, client: _Client) -> None:
        """Answer watches of exchanges that have changed."""
        catalog = self._engine.catalog
        for number, watch in list(client.watches.items()):
            record = catalog.exchange(watch.exchange)
            version = 0 if record is None else record.version
            if version == watch.version or catalog.applied_index < watch.index:
                continue
            names: dict[int, str] = {}
            rings: dict[int, tuple[int, ...]] = {}
            for binding in () if record is None else record.bindings:
                sharded = catalog.sharded(binding.queue_id)
                queue = sharded or catalog.queue(binding.queue_id)
                if queue is not None:
                    names[queue.id] = queue.name
                if sharded is not None:
                    rings[sharded.id] = sharded.rings
            seen = Seen(version, catalog.applied_index, record, names, rings)
            self._answer(client, ClientAnswer(number, 0, "", "", msgspec.json.encode(seen)))

    def _answer(self, client: _Client, answer: ClientAnswer) -> None:
        client.calls.pop(answer.number, None)
        self._wait_no_more(client, answer.number)
        client.watches.pop(answer.number, None)
        self._send(client.identity, answer)

    def _wait_no_more(self, client: _Client, number: int) -> None:
        if client.waiting.pop(number, None) is not None and not client.waiting:
            self._waiting.pop(client.identity, None)

    def _forget(self, client: _Client, number: int) -> None:
        self._wait_no_more(client, number)
        client.watches.pop(number, None)
        token = client.calls.pop(number, 0)
        if token:
            self._driver.forget(token)

    def _wait_for(self, client: _Client, number: int, look: AnswerLater) -> None:
        """Answer now, or as soon as the look gives something."""
        answer = look()
        if answer is not None:
            self._answer(client, answer)
            return
        client.waiting[number] = look
        self._waiting[client.identity] = client
        self.wake_ms = clock.now_ms()

    def _declare(self, client: _Client, number: int, call: ClientDeclare) -> None:
        shards = call.shards or None
        wrong = declaration_error(
            call.name, call.exclusive, call.auto_delete, shards, passive=call.passive
        )
        if wrong:
            self._answer(client, ClientAnswer(number, 0, "ConfigError", wrong, b""))
            return
        if call.passive:
            self._wait_for(client, number, lambda: self._passive(client, number, call.name))
            return
        catalog = self._engine.catalog
        known = catalog.queue_named(call.name) or catalog.sharded_named(call.name)
        permits = client.permits
        if permits is not None and known is not None and not permits.may_declare(call.name):
            # Not by a command: it would make the queue anew if it was deleted this moment.
            self._answer(client, self._existing(client, number, known, call))
            return
        owner = None
        if call.exclusive:
            owner = client.owners.setdefault(call.session, self._new_session())
        command: DeclareQueue | DeclareShards = DeclareQueue(
            call.name,
            call.durable,
            call.exclusive,
            call.auto_delete,
            self._engine.me.node,
            owner,
            (),
        )
        if call.shards:
            me = self._engine.me.node
            command = DeclareShards(call.name, call.shards, call.durable, me, ())

        def served() -> ClientAnswer | None:
            if known is None and not answers[0].error and not self._is_served(answers[0].value):
                return None
            return self._found(client, _as_client_answer(number, answers[0]))

        answers: list[Answer] = []

        def answered(answer: Answer) -> None:
            answers.append(answer)
            self._wait_for(client, number, served)

        self._ask(client, number, Ask(next(self._tokens), command), answered)

    def _existing(
        self,
        client: _Client,
        number: int,
        record: QueueRecord | ShardedRecord,
        call: ClientDeclare,
    ) -> ClientAnswer:
        """A queue as it is, for who may not make it."""
        asked = (call.durable, call.auto_delete, call.exclusive, call.shards)
        found: tuple[bool, bool, bool, int]
        if isinstance(record, ShardedRecord):
            found = (record.durable, False, False, call.shards and len(record.rings))
        else:
            found = (record.durable, record.auto_delete, record.exclusive, 0)
        if asked == found and not call.exclusive:
            return self._found(client, ClientAnswer(number, record.id, "", "", b""))
        text = f"queue {call.name!r} exists with other properties: declare it as it is, or passive"
        return ClientAnswer(number, 0, "PreconditionFailed", text, b"")

    def _found(self, client: _Client, answer: ClientAnswer) -> ClientAnswer:
        """A declared queue, with what this client may not do to it."""
        if answer.error:
            return answer
        sharded = self._engine.catalog.sharded(answer.value)
        refused = b""
        if client.permits is not None:
            refused = msgspec.json.encode(client.permits.refusals(answer.value))
        rings = () if sharded is None else sharded.rings
        return ClientAnswer(answer.number, answer.value, "", "", refused, rings=rings)

    def _known_queue(self, number: int, name: str) -> ClientAnswer | None:
        sharded = self._engine.catalog.sharded_named(name)
        if sharded is not None:
            return ClientAnswer(number, sharded.id, "", "", b"")
        record = self._engine.catalog.queue_named(name)
        if record is not None and record.exclusive:
            return ClientAnswer(number, 0, "PreconditionFailed", exclusive_text(record), b"")
        if record is not None:
            return ClientAnswer(number, record.id, "", "", b"")
        if not self._is_ready():
            return None
        text = f"no queue is named {name!r}: declare it, or correct the name"
        return ClientAnswer(number, 0, "QueueNotFound", text, b"")

    def _passive(self, client: _Client, number: int, name: str) -> ClientAnswer | None:
        answer = self._known_queue(number, name)
        return None if answer is None else self._found(client, answer)

    def _delete(self, client: _Client, number: int, call: ClientDelete) -> None:
        status = self._status(call.queue)
        home = self._engine.catalog.home_of(call.queue)
        text = "" if home is None else shard_text(home)
        if not text and call.if_empty and status.messages:
            text = f"queue {status.name!r} has {status.messages} messages: purge it first"
        elif not text and call.if_unused and status.consumers:
            text = f"queue {status.name!r} has {status.consumers} consumers: cancel them first"
        if text:
            self._answer(client, ClientAnswer(number, 0, "PreconditionFailed", text, b""))
            return

        def answered(answer: Answer) -> None:
            self._pass_on(client, number, answer)

        ask = Ask(next(self._tokens), DeleteQueue(call.queue))
        self._ask(client, number, ask, answered)

    def _read(self, number: int, call: ClientRead | ClientSeek) -> ClientAnswer | None:
        """From this node's copy; None while it has not come so far."""
        try:
            if isinstance(call, ClientSeek):
                found = seek_copy(self._engine, call.queue, call.stamp_ms, call.applied)
                return None if found is None else ClientAnswer(number, found, "", "", b"")
            span = (call.first, call.last)
            page = self._driver.read_copy(call.queue, span, call.bytes_max, call.applied)
        except MirrorQError as error:
            return ClientAnswer(number, 0, type(error).__name__, str(error), b"")
        if page is None:
            return None
        data = pack_pieces(page.pieces)
        return ClientAnswer(number, page.next, "", "", data, page.frames)

    def _administer(self, client: _Client, number: int, call: ClientAdminister) -> None:
        def answered(answer: Answer) -> None:
            self._pass_on(client, number, answer)

        self._ask(client, number, Ask(next(self._tokens), call.command), answered)

    def _ask(
        self, client: _Client, number: int, ask: Ask, answered: Callable[[Answer], None]
    ) -> None:
        client.calls[number] = ask.token

        def if_awaited(answer: Answer) -> None:
            # A node that closes answers too; its clients ask another.
            if client.calls.get(number) == ask.token and answer.error != "ShutDown":
                client.calls[number] = 0
                answered(answer)

        self._driver.expect(ask.token, if_awaited)
        self._driver.post(ask)

    def _pass_on(self, client: _Client, number: int, answer: Answer) -> None:
        self._answer(client, _as_client_answer(number, answer))

    def _look(self, client: _Client, number: int, call: ClientLook) -> None:
        seen: object
        if call.what == "status":
            seen = self._status(call.queue)
        elif call.what in ("queues", "shards"):
            permits = client.permits
            seen = [
                self._status(queue_id)
                for queue_id in listed(self._engine.catalog, shards=call.what == "shards")
                if permits is None or permits.sees(queue_id)
            ]
        elif call.what == "nodes":
            seen = NodeStatus.all_of(self._engine)
        elif call.what == "policies":
            seen = PolicyStatus.all_of(self._engine)
        elif call.what == "attendance":
            self._look_for_attendance(client, number)
            return
        else:
            text = f"nothing to look at is called {call.what!r}"
            self._answer(client, ClientAnswer(number, 0, "ProtocolError", text, b""))
            return
        data = msgspec.json.encode(seen)
        self._answer(client, ClientAnswer(number, 0, "", "", data))

    def _look_for_attendance(self, client: _Client, number: int) -> None:
        roll_call = self._driver.roll_call
        asked = roll_call.ask_attendance()

        def look() -> ClientAnswer | None:
            found = roll_call.attendance(asked)
            if found is None:
                return None
            return ClientAnswer(number, 0, "", "", msgspec.json.encode(found))

        self._wait_for(client, number, look)

    def _disconnect(self, client: _Client, number: int, call: ClientDisconnect) -> None:
        roll_call = self._driver.roll_call
        asked = roll_call.ask_disconnect(call.name, call.why)

        def look() -> ClientAnswer | None:
            found = roll_call.disconnected(asked)
            if found is None:
                return None
            error, text = outcome_of(call.name, *found)
            return ClientAnswer(number, found[0], error, text, b"")

        self._wait_for(client, number, look)


def _as_client_answer(number: int, answer: Answer) -> ClientAnswer:
    return ClientAnswer(number, answer.value, answer.error, answer.text, b"")


def _label(identity: bytes, client: _Client | None) -> str:
    return f"connection {identity.hex()}" if client is None else f"client {client.name}"
