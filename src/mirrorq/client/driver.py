"""The thread of a client: owns its socket, steps its handles, and keeps an entry node.

The client's counterpart of a node's `driver`. The thread says hello on each connection, gives signs
of life, and leaves a node that is silent, refuses the client, or has no contact with a majority.
Handles learn of each change as on a node: the link is lost, no master serves; then a master does.
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
from mirrorq.client.keepalive import Keepalive
from mirrorq.config import Config
from mirrorq.errors import ProtocolError
from mirrorq.protocol.clients import (
    ClientAnswer,
    ClientBye,
    ClientCall,
    ClientClose,
    ClientClosed,
    ClientForget,
    ClientHello,
    ClientLinkLost,
    ClientMaster,
    ClientOpen,
    ClientPing,
    ClientPong,
    ClientRefused,
    ClientRightLost,
    ClientUnknown,
    ClientWelcome,
)
from mirrorq.protocol.effects import Notice
from mirrorq.protocol.sessions import Attach, SessionReply, SessionRequest
from mirrorq.security.settings import Security
from mirrorq.session.calls import (
    Closed,
    LinkLost,
    MasterChanged,
    ReplyArrived,
    RightLost,
    SessionEvent,
)
from mirrorq.transport.client import ClientSocket
from mirrorq.transport.flow_control import Outflow, Parts, Window
from mirrorq.transport.inbound import (
    CONTROL,
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
LINGER_MS = 200
"""Time for the goodbye of a closing client to leave. Without a goodbye the node detects the end by
silence."""


@define(eq=False)
class _Port(Port):
    """A handle of this client."""

    epoch: int = 0
    """Newest epoch that the handle was told."""
    line: int = field(factory=lambda: secrets.randbits(63))
    """Tells a queue's master that a session goes on with another session's held messages."""


@define(eq=False)
class Call:
    """A question of a waiting caller; the question moves on with the client."""

    message: ClientCall
    done: Latch = field(factory=Latch)
    send_count: int = 0
    answer: ClientAnswer | None = None
    on_answer: Callable[[ClientAnswer], None] | None = None
    """Called on the client's thread."""


def _closed(message: ClientClosed) -> Closed:
    return Closed(message.reason, deleted=not message.refused, refused=message.refused)


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
        self._part_bytes_max = part_bytes_max(config)
        self._endpoint_count = len(endpoints)
        self.refusals: dict[str, HandshakeRefused] = {}
        """Endpoint -> why no handshake succeeded there. Replaced as a whole, never changed."""
        self._socket = self._open_socket(endpoints, security)
        self._hello_numbers = itertools.count(1)
        self._asked: dict[int, Call] = {}
        """Calls without an answer, by number."""
        self._hello = 0
        """Number of the last hello on the present connection, 0 without one."""
        self._window = Window(config.client_window_bytes)
        self._outflow = Outflow(self._window, self._send_data)
        self._keepalive = Keepalive(config, self._chance())
        self.on_notice: Callable[[Notice], None] = _ignore
        """Called on the driver's thread: must return soon."""

    # What `mirrorq.testing` plays: the network, and chance.

    def _open_socket(self, endpoints: Sequence[str], security: Security | None) -> ClientSocket:
        return ClientSocket(
            endpoints,
            self._config,
            secret_key="" if security is None else security.secret_key,
            server_keys=() if security is None else security.node_keys(),
        )

    def _chance(self) -> float:
        return random.random()

    # --- From other threads ---------------------------------------------------------------

    def wake(self) -> None:
        """End the thread's wait."""
        self._socket.wake()

    # --- On the thread --------------------------------------------------------------------

    def open_port(self, number: int, queue_id: int, handle: SessionPort) -> None:
        self._ports.open(_Port(number, handle, queue_id))
        if self.welcomed.is_set():
            self._send(ClientOpen(number, queue_id))

    def close_port(self, number: int) -> None:
        port = self._take_out(number)
        if port is not None and self.welcomed.is_set():
            self._outflow.offer(number, encode(ClientClose(number)))

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
            self._on_answer(ClientAnswer(call.message.number, 0, "ConfigError", text, b""))
            return
        self._send_data(parts)

    def forget_call(self, call: Call) -> None:
        number = call.message.number
        if self._asked.pop(number, None) is not None and self.welcomed.is_set():
            self._send(ClientForget(number))

    def _on_answer(self, answer: ClientAnswer) -> None:
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
        arrived = self._socket.poll(timeout_ms)
        now_ms = clock.now_ms()
        self._keepalive.on_read(now_ms, timeout_ms)
        self._give_sign(now_ms)
        for inbound in arrived:
            self._on_inbound(inbound)
        self._outflow.continue_sending()
        self._do_calls()
        self._keep_alive(clock.now_ms())
        self._step_ports(clock.now_ms())

    def _end(self) -> None:
        self._do_calls()
        reason = self.expelled or "the client is closed"
        if self.failure is not None:
            reason = f"the client failed: {self.failure}"
        for port in self._ports:
            self._ports.close(port)
            events = [*port.events, Closed(reason, cancels=bool(self.expelled))]
            port.handle.step(clock.now_ms(), events)
        if self.welcomed.is_set():
            self._send(ClientBye())
        self.welcomed.clear()
        for call in self._asked.values():
            call.done.set()

    def _close_socket(self) -> None:
        self._socket.close(LINGER_MS)

    def _timeout_ms(self) -> int:
        ports = self._ports
        if self._calls or ports.woken or ports.due or self.is_stopping:
            return 0
        now_ms = clock.now_ms()
        longest = now_ms + self._config.failure_ms
        wake = min(longest, self._keepalive.wake_at_ms, ports.deadlines.next_ms)
        return max(wake - now_ms, 0)

    def _carry(self, port: _Port, requests: tuple[SessionRequest, ...]) -> None:
        if self.welcomed.is_set():
            try:
                for request in requests:
                    if isinstance(request.request, Attach):
                        self._outflow.forget(port.number)
                        attach = replace(request.request, line=port.line, turn=self._hello)
                        request = replace(request, request=attach)
                    parts = encode(request)
                    why = too_large(parts, self._part_bytes_max)
                    if why:
                        raise ProtocolError(f"a request cannot be sent: it {why}")
                    self._outflow.offer(port.number, parts)
            except ProtocolError as error:
                self._ports.tell(port, Closed(str(error)))
        self._give_sign(clock.now_ms())

    def _send(self, message: WireMessage) -> None:
        """Small, and not to wait behind requests."""
        self._send_data(encode(message))

    def _send_data(self, parts: Parts) -> None:
        """Send parts. Parts that do not reach the node cause SendLost or Disconnected."""
        if self._socket.send(parts):
            self._window.on_sent(sum(map(len, parts)))

    def _ping(self) -> None:
        """A sign of life, and how much has come."""
        self._keepalive.on_given(clock.now_ms())
        self._socket.send(encode(ClientPing(self._window.report())), CONTROL)

    def _give_sign(self, now_ms: int) -> None:
        """Give a sign of life if due, before all arrived messages are handled."""
        if self._keepalive.is_due(now_ms):
            self._ping()
            self._socket.flush()

    # --- The entry node -----------------------------------------------------------------

    def _on_inbound(self, inbound: ClientInbound) -> None:
        match inbound:
            case ServerMessage():
                if inbound.channel == DATA:
                    self._window.on_received(sum(map(len, inbound.parts)))
                now_ms = clock.now_ms()
                self._on_parts(now_ms, inbound.parts)
                if self._window.is_report_due and self.welcomed.is_set():
                    self._ping()
                else:
                    self._give_sign(now_ms)
            case Connected():
                self._say_hello()
            case Disconnected():
                if self._hello:
                    self._on_left(f"the connection to {inbound.peer} ended")
            case SendLost():
                if inbound.channel == DATA:
                    self._window.on_lost(inbound.size)
                    self._lose_link()
            case HandshakeRefused():
                self.refusals = {**self.refusals, inbound.who: inbound}
                self._note(inbound.why)
                self._tell_news()
            case Garbage():
                self._note(f"garbage from {inbound.source}: {inbound.why}")

    def _on_parts(self, now_ms: int, parts: list[bytes]) -> None:
        try:
            message = decode(parts)
        except ProtocolError as error:
            self._note(f"dropped a message of {self._socket.endpoint}: {error}")
            return
        if isinstance(message, ClientWelcome):
            self._on_welcome(message)
        elif isinstance(message, ClientRefused) and message.final:
            self._on_expelled(message.why)
        elif isinstance(message, ClientRefused):
            self._leave(message.why, is_refused=True)
        elif self.welcomed.is_set():
            self._keepalive.on_heard(now_ms)
            self._on_message(message)

    def _on_message(self, message: WireMessage) -> None:
        match message:
            case SessionReply():
                self._tell(message.session.number, ReplyArrived(message))
            case ClientMaster():
                port = self._ports.get(message.session)
                if port is not None:
                    if port.epoch and message.epoch > port.epoch:
                        text = f"a queue has a new master at epoch {message.epoch}"
                        self.on_notice(Notice("new master", text, port.queue_id))
                    port.epoch = max(port.epoch, message.epoch)
                    self._ports.tell(port, MasterChanged(message.epoch, message.available))
            case ClientLinkLost():
                self._tell(message.session, LinkLost())
            case ClientClosed():
                self._tell(message.session, _closed(message))
            case ClientRightLost():
                self._tell(message.session, RightLost(message.right, message.reason))
            case ClientAnswer():
                self._on_answer(message)
            case ClientPong():
                self._on_pong(message)
            case ClientUnknown():
                self._on_left(f"node {self.entry_node} does not know this client any more")
                self._say_hello()
            case _:
                self._note(f"dropped a {type(message).__name__}: not for clients")

    def _tell(self, number: int, event: SessionEvent) -> None:
        port = self._ports.get(number)
        if port is not None:
            self._ports.tell(port, event)

    def _say_hello(self) -> None:
        self._hello = next(self._hello_numbers)
        self._keepalive.on_connected(clock.now_ms())
        expiry_ms = self._config.session_expiry_ms
        self._send(ClientHello(self._hello, self._name, expiry_ms, self.lineage))
        self._window.reset()

    def _on_welcome(self, message: ClientWelcome) -> None:
        if message.number != self._hello:
            return
        self._window.reset()
        self._keepalive.on_welcome(clock.now_ms(), message.session_expiry_ms)
        self.entry_node = message.node
        self.lineage = self.lineage or message.lineage
        self.entry_paused = False
        self.has_told = False
        self.trouble, self._logged = "", ()
        self.refusals = {}
        for port in self._ports:
            self._send(ClientOpen(port.number, port.queue_id))
        for call in list(self._asked.values()):
            self._send_call(call)
        self._ping()
        self.welcomed.set()
        self._tell_news()
        log.info("client %s is served by node %s", self._name, message.node)
        self.on_notice(Notice("connected", f"served by node {message.node}"))

    def _on_pong(self, message: ClientPong) -> None:
        if message.paused != self.entry_paused:
            kind = "paused" if message.paused else "resumed"
            text = f"{kind}: contact of node {self.entry_node} with a majority"
            self.on_notice(Notice(kind, text))
        if message.waits and not self.has_told:
            self.unfounded_count += 1
        self.unfounded = f"node {self.entry_node} {message.waits}" if message.waits else ""
        self.lineage = self.lineage or message.lineage
        self._window.on_told(message.received)
        self._keepalive.on_pong(clock.now_ms(), message.paused, message.patience)
        self.entry_paused = message.paused
        # Last: a waiting thread then looks at the other fields.
        self.has_told = True
        self._tell_news()
        if message.lost:
            self._lose_link()

    def _tell_news(self) -> None:
        self.news_count += 1
        self.news.notify()

    def _lose_link(self) -> None:
        """Handle a link that may have lost messages: handles and calls resend."""
        for port in self._ports:
            self._ports.tell(port, LinkLost())
        for call in list(self._asked.values()):
            self._send_call(call)

    def _keep_alive(self, now_ms: int) -> None:
        """Give signs of life; leave a node that is silent or useless."""
        keepalive = self._keepalive
        if keepalive.is_silent:
            self._give_up(f"{self._socket.endpoint} was silent for {keepalive.silence_ms} ms")
        elif keepalive.is_cut_off and self._endpoint_count > 1:
            self._give_up(f"node {self.entry_node} has no contact with a majority")
        else:
            self._give_sign(now_ms)

    def _on_expelled(self, why: str) -> None:
        """Stop after a forced disconnection: a new connection would undo the disconnection."""
        self._note(why)
        self.expelled = why
        self.is_stopping = True
        self.on_notice(Notice("disconnected", why))

    def _give_up(self, why: str) -> None:
        """The node may be well, and slow."""
        self._keepalive.on_given_up()
        self._leave(why)

    def _leave(self, why: str, *, is_refused: bool = False) -> None:
        """Go on to the next endpoint."""
        self._on_left(why)
        self._socket.leave(is_refused=is_refused)

    def _on_left(self, why: str) -> None:
        """Handle the loss of the entry node."""
        self._hello = 0
        self._keepalive.on_left()
        self._outflow.clear()
        self._note(why)
        if not self.welcomed.is_set():
            return
        self.welcomed.clear()
        self._tell_news()
        self.on_notice(Notice("disconnected", why))
        for port in self._ports:
            # First the loss, while the handle still considers its master present: the handle drops
            # messages that no call has returned (P3). Then the handle waits for the next entry
            # node.
            # what no call has returned (P3). Then it waits for the next entry node.
            self._ports.tell(port, LinkLost())
            if port.epoch:
                self._ports.tell(port, MasterChanged(port.epoch, False))

    def _note(self, trouble: str) -> None:
        """Keep a trouble for callers that wait in vain. Log each trouble once until a node serves
        this client, also where each endpoint has its own trouble."""
        self.trouble = trouble
        if trouble not in self._logged:
            self._logged = (*self._logged[1 - LOGGED_MAX :], trouble)
            log.warning("client %s: %s", self._name, trouble)
