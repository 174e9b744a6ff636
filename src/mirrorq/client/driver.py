"""The thread of a client: owns its sockets, steps its handles, and keeps entry nodes.

The client's counterpart of a node's `driver`. The thread says hello on each connection, gives signs
of life, and leaves a node that is silent, refuses the client, or has no contact with a majority.
Handles learn of each change as on a node: the link is lost, no master serves; then a master does.

The *home* entry serves calls and new handles. It tells where the master of a handle's queue is. If
that endpoint is one of the client's, the handle attaches by a *straight* connection to the master's
node: one hop less. When the straight connection ends, the handle goes on at the home entry.
"""

from __future__ import annotations

import itertools
import logging
import random
import secrets
from collections.abc import Callable, Sequence

from attrs import define, field
from msgspec.structs import replace

from mirrorq import clock
from mirrorq.api.host import SessionPort
from mirrorq.api.host_thread import HostThread, Port
from mirrorq.client.entry import Entry
from mirrorq.config import Config
from mirrorq.errors import ProtocolError
from mirrorq.protocol import clients
from mirrorq.protocol.effects import Notice
from mirrorq.protocol.sessions import Attach, SessionReply, SessionRequest
from mirrorq.security.settings import Security
from mirrorq.session import calls
from mirrorq.transport.client import ClientSocket
from mirrorq.transport.inbound import (
    DATA,
    ClientInbound,
    Connected,
    Disconnected,
    Garbage,
    HandshakeRefused,
    SendLost,
    ServerMessage,
)
from mirrorq.transport.link import part_bytes_max, too_large
from mirrorq.waiting import Latch, Waiters
from mirrorq.wire.messages import WireMessage, decode, encode

log = logging.getLogger("mirrorq")

LOGGED_MAX = 64
"""Number of remembered troubles. No remembered trouble is logged twice."""
STRAIGHT_WAIT_MS = 200
"""A handle waits so long for a connection to its master's node. Then the home entry serves it."""
STRAIGHT_REST_MS = 10_000
"""An endpoint that did not answer in that time is not tried again for this time."""
LINGER_MS = 200
"""Time for the goodbye of a closing client to leave. Without a goodbye the node detects the end by
silence."""


@define(eq=False)
class _Port(Port):
    """A handle of this client."""

    entry: Entry = field(kw_only=True)
    """The connection by which the handle is served."""
    is_owner: bool = False
    """The handle owns an exclusive queue, and stays with the home entry."""
    epoch: int = 0
    """Newest epoch that the handle was told."""
    former: Entry | None = None
    """The connection that served the handle before, where the handle is still open."""
    waiting: clients.ClientMaster | None = None
    """News of a master that the handle is told by another connection, which is being made."""
    turn: int = 0
    """Grows with each opening of the handle at an entry node."""
    line: int = field(factory=lambda: secrets.randbits(63))
    """Tells a queue's master that a session goes on with another session's held messages."""


@define(eq=False)
class Call:
    """A question of a waiting caller; the question moves on with the client."""

    message: clients.ClientCall
    done: Latch = field(factory=Latch)
    send_count: int = 0
    answer: clients.ClientAnswer | None = None
    on_answer: Callable[[clients.ClientAnswer], None] | None = None
    """Called on the client's thread."""


def _closed(message: clients.ClientClosed) -> calls.Closed:
    return calls.Closed(message.reason, deleted=not message.refused, refused=message.refused)


def _ignore(notice: Notice) -> None:
    """Ignore a notice without a listener."""


class ClientDriver(HostThread[_Port]):
    """One client's thread: has its socket, its calls without an answer, and the handles it steps.

    `Client` makes the driver. Everything is for the thread alone, except `call`, `wake` and members
    that say otherwise. Args:
        name: the client's name in logs of nodes.
        endpoints: tried in order, beginning again at the end.
        config: bounds and times.
        security: keys of the client.

    Raises:
        ConfigError: an endpoint is malformed, or the list is empty.
    """

    def __init__(
        self,
        name: str,
        endpoints: Sequence[str],
        config: Config,
        security: Security | None = None,
    ) -> None:
        super().__init__("mirrorq-client", f"client {name}")
        self.welcomed = Latch()
        """Set while an entry node serves this client."""
        self.entry_node = ""
        """Name of the last entry node."""
        self.entry_paused = False
        """The entry node has no contact with a majority."""
        self.lineage = 0
        """Number of this client's cluster, 0 before a node has told the number."""
        self.has_told = False
        """True once the present entry node has told its state."""
        self.unfounded = ""
        """Which node takes part in no cluster, and why, as the node said; "" once a node does."""
        self.unfounded_count = 0
        """How often a node has reported `unfounded` as its first message."""
        self.trouble = ""
        """The last trouble, for callers that wait in vain."""
        self._logged: tuple[str, ...] = ()
        """Logged troubles since a node last served this client."""
        self.news_count = 0
        """Number of times that a field above may have changed."""
        self.news = Waiters()
        """Notified at each such change, and at the end."""
        self.expelled = ""
        """Why an operator or a node has disconnected the client for good, "" otherwise."""
        self._name = name
        self._config = config
        self._security = security
        self._part_bytes_max = part_bytes_max(config)
        self._endpoints = tuple(endpoints)
        self.refusals: dict[str, HandshakeRefused] = {}
        """Endpoint -> why no handshake succeeded there. Replaced as a whole, never changed."""
        self._hello_numbers = itertools.count(1)
        self._turns = itertools.count(1)
        self._asked: dict[int, Call] = {}
        """Calls without an answer, by number."""
        self._home = Entry(self._open_socket(endpoints), config, self._chance())
        """Serves calls, and the handles that are not served straight."""
        self._straight: dict[str, Entry] = {}
        """Connections to masters' nodes, by endpoint."""
        self._resting_ms: dict[str, int] = {}
        """Endpoint where no straight connection came about -> when it may be tried again."""
        self.on_notice: Callable[[Notice], None] = _ignore
        """Called on the driver's thread: must return soon."""

    # What `mirrorq.testing` plays: the network, and chance.

    def _open_socket(
        self, endpoints: Sequence[str], beside: ClientSocket | None = None
    ) -> ClientSocket:
        security = self._security
        return ClientSocket(
            endpoints,
            self._config,
            secret_key="" if security is None else security.secret_key,
            server_keys=() if security is None else security.node_keys(),
            beside=beside,
        )

    def _chance(self) -> float:
        return random.random()

    # --- From other threads ---------------------------------------------------------------

    def wake(self) -> None:
        """End the thread's wait."""
        self._home.socket.wake()

    # --- On the thread --------------------------------------------------------------------

    @property
    def sockets(self) -> list[ClientSocket]:
        """Sockets of all connections, the home entry's first."""
        return [entry.socket for entry in self._entries()]

    def _entries(self) -> list[Entry]:
        return [self._home, *self._straight.values()]

    def open_port(self, number: int, queue_id: int, handle: SessionPort, *, is_owner: bool) -> None:
        """Open a handle.

        Args:
            is_owner: the handle owns an exclusive queue, which ends with the home connection.
        """
        port = _Port(number, handle, queue_id, entry=self._home, is_owner=is_owner)
        self._ports.open(port)
        self._open_at(port, self._home)

    def _open_at(self, port: _Port, entry: Entry) -> None:
        port.entry = entry
        if port.former is entry:
            self._close_former(port)
        if entry.is_welcomed:
            port.turn = next(self._turns)
            entry.send(clients.ClientOpen(port.number, port.queue_id))

    def close_port(self, number: int) -> None:
        port = self._take_out(number)
        if port is None:
            return
        self._close_former(port)
        if port.entry.is_welcomed:
            port.entry.outflow.offer(number, encode(clients.ClientClose(number)))

    def start_call(self, call: Call) -> None:
        self._asked[call.message.number] = call
        if self.welcomed.is_set():
            self._send_call(call)

    def _send_call(self, call: Call) -> None:
        """Ask the entry node."""
        call.send_count += 1
        parts = encode(call.message)
        why = too_large(parts, self._part_bytes_max)
        if why:
            text = f"this cannot be asked of a node: it {why}"
            self._on_answer(clients.ClientAnswer(call.message.number, 0, "ConfigError", text, b""))
            return
        self._home.send_data(parts)

    def forget_call(self, call: Call) -> None:
        number = call.message.number
        if self._asked.pop(number, None) is not None and self.welcomed.is_set():
            self._home.send(clients.ClientForget(number))

    def _on_answer(self, answer: clients.ClientAnswer) -> None:
        call = self._asked.pop(answer.number, None)
        if call is not None:
            call.answer = answer
            call.done.set()
            if call.on_answer is not None:
                call.on_answer(answer)

    def _run_rounds(self) -> None:
        for part in (self._make_rounds, self._end, self._close_socket, self._tell_news):
            self._attempt(part)

    def _make_rounds(self) -> None:
        while not self.is_stopping:
            self._round()

    def _round(self) -> None:
        timeout_ms = self._timeout_ms()
        arrived = self._poll(timeout_ms)
        now_ms = clock.now_ms()
        for entry in self._entries():
            entry.keepalive.on_read(now_ms, timeout_ms)
            entry.give_sign(now_ms)
        for entry, inbound in arrived:
            self._on_inbound(entry, inbound)
        for entry in self._entries():
            entry.outflow.continue_sending()
        self._do_calls()
        self._keep_alive(clock.now_ms())
        self._step_ports(clock.now_ms())

    def _poll(self, timeout_ms: int) -> list[tuple[Entry, ClientInbound]]:
        """Wait for input of any connection, and return all input."""
        home = self._home
        for entry in self._straight.values():
            entry.socket.flush()
            if entry.socket.has_input:
                timeout_ms = 0
        arrived = [(home, inbound) for inbound in home.socket.poll(timeout_ms)]
        for entry in self._straight.values():
            arrived += [(entry, inbound) for inbound in entry.socket.poll(0)]
        return arrived

    def _end(self) -> None:
        self._do_calls()
        reason = self.expelled or "the client is closed"
        if self.failure is not None:
            reason = f"the client failed: {self.failure}"
        for port in self._ports:
            self._ports.close(port)
            events = [*port.events, calls.Closed(reason, cancels=bool(self.expelled))]
            port.handle.step(clock.now_ms(), events)
        for entry in self._entries():
            if entry.is_welcomed:
                entry.send(clients.ClientBye())
        self.welcomed.clear()
        for call in self._asked.values():
            call.done.set()

    def _close_socket(self) -> None:
        for entry in (*self._straight.values(), self._home):
            entry.socket.close(LINGER_MS)

    def _timeout_ms(self) -> int:
        ports = self._ports
        if self._calls or ports.woken or ports.due or self.is_stopping:
            return 0
        now_ms = clock.now_ms()
        wakes = [entry.keepalive.wake_at_ms for entry in self._entries()]
        retries = [entry.socket.retry_at_ms for entry in self._straight.values()]
        wakes += [at_ms for at_ms in retries if at_ms is not None]
        wakes += [entry.until_ms for entry in self._straight.values() if not entry.is_welcomed]
        wake = min(now_ms + self._config.failure_ms, ports.deadlines.next_ms, *wakes)
        return max(wake - now_ms, 0)

    def _carry(self, port: _Port, requests: tuple[SessionRequest, ...]) -> None:
        entry = port.entry
        if entry.is_welcomed:
            try:
                for request in requests:
                    if isinstance(request.request, Attach):
                        entry.outflow.forget(port.number)
                        attach = replace(request.request, line=port.line, turn=port.turn)
                        request = replace(request, request=attach)
                    parts = encode(request)
                    why = too_large(parts, self._part_bytes_max)
                    if why:
                        raise ProtocolError(f"a request cannot be sent: it {why}")
                    entry.outflow.offer(port.number, parts)
            except ProtocolError as error:
                self._ports.tell(port, calls.Closed(str(error)))
        entry.give_sign(clock.now_ms())

    # --- Entry nodes ----------------------------------------------------------------------

    def _on_inbound(self, entry: Entry, inbound: ClientInbound) -> None:
        if entry.is_ended:
            return
        match inbound:
            case ServerMessage():
                if inbound.channel == DATA:
                    entry.window.on_received(sum(map(len, inbound.parts)))
                now_ms = clock.now_ms()
                self._on_parts(entry, now_ms, inbound.parts)
                if entry.window.is_report_due and entry.is_welcomed:
                    entry.ping()
                else:
                    entry.give_sign(now_ms)
            case Connected():
                self._say_hello(entry)
            case Disconnected():
                if entry.hello:
                    self._on_left(entry, f"the connection to {inbound.peer} ended")
            case SendLost():
                if inbound.channel == DATA:
                    entry.window.on_lost(inbound.size)
                    self._lose_link(entry)
            case HandshakeRefused():
                self._on_handshake_refused(entry, inbound)
            case Garbage():
                self._note(f"garbage from {inbound.source}: {inbound.why}")

    def _on_handshake_refused(self, entry: Entry, refused: HandshakeRefused) -> None:
        if entry is not self._home:
            self._on_left(entry, refused.why)
            return
        self.refusals = {**self.refusals, refused.who: refused}
        self._note(refused.why)
        self._tell_news()

    def _on_parts(self, entry: Entry, now_ms: int, parts: list[bytes]) -> None:
        try:
            message = decode(parts)
        except ProtocolError as error:
            self._note(f"dropped a message of {entry.socket.endpoint}: {error}")
            return
        if isinstance(message, clients.ClientWelcome):
            self._on_welcome(entry, message)
        elif isinstance(message, clients.ClientRefused) and message.final:
            self._on_expelled(message.why)
        elif isinstance(message, clients.ClientRefused):
            self._leave(entry, message.why, is_refused=True)
        elif entry.is_welcomed:
            entry.keepalive.on_heard(now_ms)
            self._on_message(entry, message)

    def _on_message(self, entry: Entry, message: WireMessage) -> None:
        match message:
            case SessionReply():
                self._on_reply(entry, message)
            case clients.ClientMaster():
                if (port := self._port_at(entry, message.session)) is not None:
                    self._on_master(port, message)
            case clients.ClientLinkLost():
                self._tell(entry, message.session, calls.LinkLost())
            case clients.ClientClosed():
                self._tell(entry, message.session, _closed(message))
            case clients.ClientRightLost():
                self._tell(entry, message.session, calls.RightLost(message.right, message.reason))
            case clients.ClientAnswer():
                self._on_answer(message)
            case clients.ClientPong():
                self._on_pong(entry, message)
            case clients.ClientUnknown():
                self._on_left(entry, f"node {entry.node} does not know this client any more")
                if not entry.is_ended:
                    self._say_hello(entry)
            case _:
                self._note(f"dropped a {type(message).__name__}: not for clients")

    def _on_reply(self, entry: Entry, reply: SessionReply) -> None:
        if (port := self._port_at(entry, reply.session.number)) is not None:
            if port.former is not None:
                # The master has taken the handle's messages over. Before that they would go back.
                self._close_former(port)
            self._ports.tell(port, calls.ReplyArrived(reply))

    def _tell(self, entry: Entry, number: int, event: calls.SessionEvent) -> None:
        if (port := self._port_at(entry, number)) is not None:
            self._ports.tell(port, event)

    def _port_at(self, entry: Entry, number: int) -> _Port | None:
        """Return a handle, if this connection serves it now: others may still send to it."""
        port = self._ports.get(number)
        return port if port is not None and port.entry is entry else None

    def _say_hello(self, entry: Entry) -> None:
        number, expiry_ms = next(self._hello_numbers), self._config.session_expiry_ms
        entry.say_hello(clients.ClientHello(number, self._name, expiry_ms, self.lineage))

    def _on_welcome(self, entry: Entry, message: clients.ClientWelcome) -> None:
        if message.number != entry.hello:
            return
        entry.on_welcome(message.node, message.session_expiry_ms)
        if entry is self._home:
            self._on_home(message)
        entry.ping()
        for port in self._ports:
            if port.entry is entry:
                self._open_at(port, entry)
            elif port.waiting is not None and port.waiting.straight == entry.socket.endpoint:
                self._move(port, entry)

    def _on_home(self, message: clients.ClientWelcome) -> None:
        """Tell callers and listeners that a node serves the client."""
        self.entry_node = message.node
        self.lineage = self.lineage or message.lineage
        self.entry_paused = False
        self.has_told = False
        self.trouble, self._logged = "", ()
        self.refusals = {}
        for call in list(self._asked.values()):
            self._send_call(call)
        self.welcomed.set()
        self._tell_news()
        log.info("client %s is served by node %s", self._name, message.node)
        self.on_notice(Notice("connected", f"served by node {message.node}"))

    def _on_pong(self, entry: Entry, message: clients.ClientPong) -> None:
        entry.window.on_told(message.received)
        entry.keepalive.on_pong(clock.now_ms(), message.paused, message.patience)
        if entry is self._home:
            self._on_home_pong(message)
        elif message.paused and not self.entry_paused:
            self._leave(entry, f"node {entry.node} has no contact with a majority")
        if message.lost:
            self._lose_link(entry)

    def _on_home_pong(self, message: clients.ClientPong) -> None:
        if message.paused != self.entry_paused:
            kind = "paused" if message.paused else "resumed"
            text = f"{kind}: contact of node {self.entry_node} with a majority"
            self.on_notice(Notice(kind, text))
        if message.waits and not self.has_told:
            self.unfounded_count += 1
        self.unfounded = f"node {self.entry_node} {message.waits}" if message.waits else ""
        self.lineage = self.lineage or message.lineage
        self.entry_paused = message.paused
        # Last: a waiting thread then looks at the other fields.
        self.has_told = True
        self._tell_news()

    def _tell_news(self) -> None:
        self.news_count += 1
        self.news.notify()

    def _lose_link(self, entry: Entry) -> None:
        """Handle a link that may have lost messages: handles and calls resend."""
        for port in self._ports:
            if port.entry is entry:
                self._ports.tell(port, calls.LinkLost())
        if entry is self._home:
            for call in list(self._asked.values()):
                self._send_call(call)

    # --- Straight to the master -----------------------------------------------------------

    def _on_master(self, port: _Port, message: clients.ClientMaster) -> None:
        if port.epoch and message.epoch > port.epoch:
            text = f"a queue has a new master at epoch {message.epoch}"
            self.on_notice(Notice("new master", text, port.queue_id))
        port.waiting = None
        entry = self._straight_entry(message.straight)
        if entry is None or entry is port.entry or port.is_owner:
            self._tell_master(port, message)
        elif entry.is_welcomed:
            self._move(port, entry)
        else:
            port.waiting = message

    def _tell_master(self, port: _Port, message: clients.ClientMaster) -> None:
        port.epoch = max(port.epoch, message.epoch)
        self._ports.tell(port, calls.MasterChanged(message.epoch, message.available))

    def _straight_entry(self, endpoint: str) -> Entry | None:
        """Return the connection to a master's node, perhaps just begun, or None."""
        now_ms = clock.now_ms()
        if endpoint not in self._endpoints or self._resting_ms.get(endpoint, 0) > now_ms:
            return None
        if endpoint == self._home.socket.endpoint:
            return self._home
        if endpoint not in self._straight:
            socket = self._open_socket([endpoint], beside=self._home.socket)
            until_ms = now_ms + STRAIGHT_WAIT_MS
            self._straight[endpoint] = Entry(socket, self._config, self._chance(), until_ms)
        return self._straight[endpoint]

    def _move(self, port: _Port, entry: Entry) -> None:
        """Have another entry node serve a handle, which has just heard of a master."""
        self._close_former(port)
        port.waiting = None
        if port.entry.is_welcomed:
            port.former = port.entry
            port.former.outflow.forget(port.number)
        self._tell_left(port)
        self._open_at(port, entry)

    def _close_former(self, port: _Port) -> None:
        """Close a handle at the entry node that served it before."""
        former, port.former = port.former, None
        if former is not None and former.is_welcomed:
            former.send(clients.ClientClose(port.number, goes_on=True))

    def _tell_left(self, port: _Port) -> None:
        """Tell a handle that its entry node serves it no more.

        First the loss, while the handle still considers its master present: the handle drops
        messages that no call has returned (P3). Then the handle waits for the next entry node.
        """
        self._ports.tell(port, calls.LinkLost())
        if port.epoch:
            self._ports.tell(port, calls.MasterChanged(port.epoch, False))

    def _drop_straight(self, entry: Entry) -> None:
        """End a straight connection: its handles go on at the home entry."""
        endpoint = entry.socket.endpoint
        del self._straight[endpoint]
        entry.is_ended = True
        entry.socket.close()
        for port in self._ports:
            if port.entry is entry:
                self._tell_left(port)
                self._open_at(port, self._home)

    def _give_up_straight(self, entry: Entry) -> None:
        """Handle a straight connection that does not come: handles that wait for it stay."""
        endpoint = entry.socket.endpoint
        log.info("client %s: %s does not answer: other nodes serve", self._name, endpoint)
        self._resting_ms[endpoint] = clock.now_ms() + STRAIGHT_REST_MS
        self._drop_straight(entry)
        for port in self._ports:
            if port.waiting is not None and port.waiting.straight == endpoint:
                message, port.waiting = port.waiting, None
                self._tell_master(port, message)

    # --- Leaving ----------------------------------------------------------------------------

    def _keep_alive(self, now_ms: int) -> None:
        """Give signs of life; leave a node that is silent or useless."""
        for entry in self._entries():
            keepalive = entry.keepalive
            can_leave = entry is not self._home or len(self._endpoints) > 1
            if now_ms >= entry.until_ms and not entry.is_welcomed:
                self._give_up_straight(entry)
            elif keepalive.is_silent:
                text = f"{entry.socket.endpoint} was silent for {keepalive.silence_ms} ms"
                self._give_up(entry, text)
            elif keepalive.is_cut_off and can_leave:
                self._give_up(entry, f"node {entry.node} has no contact with a majority")
            else:
                entry.give_sign(now_ms)

    def _on_expelled(self, why: str) -> None:
        """Stop after a forced disconnection: a new connection would undo the disconnection."""
        self._note(why)
        self.expelled = why
        self.is_stopping = True
        self.on_notice(Notice("disconnected", why))

    def _give_up(self, entry: Entry, why: str) -> None:
        """The node may be well, and slow."""
        entry.keepalive.on_given_up()
        self._leave(entry, why)

    def _leave(self, entry: Entry, why: str, *, is_refused: bool = False) -> None:
        """Go on to the next endpoint; leave a straight connection for good."""
        self._on_left(entry, why)
        if entry is self._home:
            entry.socket.leave(is_refused=is_refused)

    def _on_left(self, entry: Entry, why: str) -> None:
        """Handle the loss of an entry node."""
        was_welcomed = entry.is_welcomed
        entry.on_left()
        self._note(why)
        if entry is not self._home and was_welcomed:
            self._drop_straight(entry)
        elif entry is not self._home:
            self._give_up_straight(entry)
        elif was_welcomed:
            self._on_home_left(why)

    def _on_home_left(self, why: str) -> None:
        self.welcomed.clear()
        self._tell_news()
        self.on_notice(Notice("disconnected", why))
        for port in self._ports:
            if port.entry is self._home:
                port.waiting = None
                self._tell_left(port)

    def _note(self, trouble: str) -> None:
        """Keep a trouble for callers that wait in vain. Log each trouble once until a node serves
        this client, also where each endpoint has its own trouble."""
        self.trouble = trouble
        if trouble not in self._logged:
            self._logged = (*self._logged[1 - LOGGED_MAX :], trouble)
            log.warning("client %s: %s", self._name, trouble)
