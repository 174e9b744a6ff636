"""The thread of a client: owns its socket, steps its handles, and keeps an entry node.

What `driver` is to a node this is to a client. It says hello on each connection, gives signs of
life, and leaves a node that is silent, refuses it, or has no contact with a majority. Handles
learn of each change as they would on a node: the link is lost, nobody serves; then who does.
"""

from __future__ import annotations

import itertools
import logging
import random
import secrets
import threading
from collections import deque
from collections.abc import Callable, Sequence

from attrs import define, field
from msgspec.structs import replace

from mirrorq import clock
from mirrorq.api.host import SessionPort
from mirrorq.client.keepalive import Pulse
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
    ClientUnknown,
    ClientWelcome,
)
from mirrorq.protocol.effects import Notice
from mirrorq.protocol.sessions import Attach, SessionReply
from mirrorq.security.settings import Security
from mirrorq.session.calls import Closed, LinkLost, MasterChanged, ReplyArrived, SessionEvent
from mirrorq.transport.client import ClientSocket
from mirrorq.transport.flow_control import Outflow, Parts, Window
from mirrorq.transport.inbound import (
    CONTROL,
    DATA,
    ClientInbound,
    Garbage,
    LinkDown,
    LinkUp,
    Refused,
    SendLost,
    ServerMessage,
)
from mirrorq.waiting import Latch, run_host
from mirrorq.wire.messages import WireMessage, decode, encode

log = logging.getLogger("mirrorq")

LINGER_MS = 200
"""The goodbye of a client that closes gets this long to leave. Without it the node finds out
by silence."""


@define(eq=False)
class _Port:
    number: int
    port: SessionPort
    queue_id: int
    epoch: int = 0
    """The newest that the port was told of."""
    events: list[SessionEvent] = field(factory=list)
    wake_ms: int | None = None
    line: int = field(factory=lambda: secrets.randbits(63))
    """By it a queue's master knows that a session goes on with what another one held."""


@define(eq=False)
class Call:
    """A question that somebody waits for; it moves on with the client."""

    message: ClientCall
    done: Latch = field(factory=Latch)
    send_count: int = 0
    answer: ClientAnswer | None = None
    on_answer: Callable[[ClientAnswer], None] | None = None
    """Called on the client's thread."""


def _closed(message: ClientClosed) -> Closed:
    return Closed(message.reason, deleted=not message.refused, refused=message.refused)


def _ignore(notice: Notice) -> None:
    """Nobody listens."""


class ClientDriver:
    """Runs one client on one thread.

    Args:
        name: what nodes call the client in their logs.
        endpoints: tried in order, beginning again at the end.
        config: bounds and times.
        security: its keys.

    Raises:
        ConfigError: an endpoint is malformed, or there is none.
    """

    def __init__(
        self,
        name: str,
        endpoints: Sequence[str],
        config: Config,
        security: Security | None = None,
    ) -> None:
        self.welcomed = Latch()
        """Set while an entry node serves this client."""
        self.entry_node = ""
        """Name of the last that did."""
        self.entry_paused = False
        """It has no contact with a majority."""
        self.has_told = False
        """Whether the node that serves this client has said how it is."""
        self.unfounded = ""
        """Which node takes part in no cluster, and why, as it said; "" once another one does."""
        self.unfounded_count = 0
        """How often a node has said so as its first word."""
        self.trouble = ""
        """The last thing that went wrong, for whoever waits in vain."""
        self.failure: BaseException | None = None
        """Why the thread has ended, if not by `stop`."""
        self.is_stopping = False
        self.expelled = ""
        """Why somebody has disconnected it for good, "" while nobody has."""
        self._name = name
        self._config = config
        self._endpoint_count = len(endpoints)
        self.refusals: dict[str, Refused] = {}
        """Endpoint -> why no handshake came to an end there. Never changed, but replaced."""
        self._socket = ClientSocket(
            endpoints,
            config,
            secret_key="" if security is None else security.secret_key,
            server_keys=() if security is None else security.node_keys(),
        )
        self._hello_numbers = itertools.count(1)
        self._inbox: deque[Callable[[], None]] = deque()
        self._woken: deque[int] = deque()
        self._ports: dict[int, _Port] = {}
        self._calls: dict[int, Call] = {}
        self._hello = 0
        """Number of the last hello on the present connection, 0 without one."""
        self._window = Window(config.client_window_bytes)
        self._outflow = Outflow(self._window, self._send_data)
        self._pulse = Pulse(config, random.random())
        self.on_notice: Callable[[Notice], None] = _ignore
        """Called on the thread: short."""
        self._ended = Latch()
        self.thread = threading.Thread(
            target=run_host, args=(self._run,), name="mirrorq-client", daemon=True
        )

    # --- From other threads ---------------------------------------------------------------

    def call(self, function: Callable[[], None]) -> None:
        """Have a function called on the thread."""
        self._inbox.append(function)
        self._socket.wake()

    def wake_session(self, number: int) -> None:
        self._woken.append(number)
        self._socket.wake()

    def stop(self, timeout: float) -> None:
        """End the thread; what is open in handles is told that the client is closed."""
        self.is_stopping = True
        self._socket.wake()
        self._ended.wait(timeout)

    @property
    def is_running(self) -> bool:
        """Whether its thread has not ended, or will begin in a moment."""
        return not self._ended.is_set()

    # --- On the thread --------------------------------------------------------------------

    def open_port(self, number: int, queue_id: int, port: SessionPort) -> None:
        self._ports[number] = _Port(number, port, queue_id, wake_ms=0)
        if self.welcomed.is_set():
            self._send(ClientOpen(number, queue_id))

    def close_port(self, number: int) -> None:
        known = self._ports.get(number)
        if known is None:
            return
        # What the user has called before closing is still sent.
        self._step_port(clock.now_ms(), known)
        del self._ports[number]
        if self.welcomed.is_set():
            self._outflow.offer(number, encode(ClientClose(number)))

    def start_call(self, call: Call) -> None:
        self._calls[call.message.number] = call
        if self.welcomed.is_set():
            self._send_call(call)

    def _send_call(self, call: Call) -> None:
        call.send_count += 1
        self._send(call.message)

    def forget_call(self, call: Call) -> None:
        number = call.message.number
        if self._calls.pop(number, None) is not None and self.welcomed.is_set():
            self._send(ClientForget(number))

    def _on_answer(self, answer: ClientAnswer) -> None:
        call = self._calls.pop(answer.number, None)
        if call is not None:
            call.answer = answer
            call.done.set()
            if call.on_answer is not None:
                call.on_answer(answer)

    def _run(self) -> None:
        try:
            while not self.is_stopping:
                self._round()
        except BaseException as error:
            # Also what is no Exception, of a user's log handler: handles must not wait for ever.
            self.failure = error
            log.critical("client %s has stopped: %s", self._name, error, exc_info=True)
        try:
            self._end()
        finally:
            self._ended.set()

    def _round(self) -> None:
        timeout_ms = self._timeout_ms()
        arrived = self._socket.poll(timeout_ms)
        now_ms = clock.now_ms()
        self._pulse.on_read(now_ms, timeout_ms)
        self._give_sign(now_ms)
        for inbound in arrived:
            self._on_inbound(inbound)
        self._outflow.go_on()
        while self._inbox:
            self._inbox.popleft()()
        self._keep_alive(clock.now_ms())
        self._step_ports(clock.now_ms())

    def _end(self) -> None:
        while self._inbox:
            self._inbox.popleft()()
        reason = self.expelled or "the client is closed"
        if self.failure is not None:
            reason = f"the client failed: {self.failure}"
        for known in self._ports.values():
            events = [*known.events, Closed(reason, cancels=bool(self.expelled))]
            known.port.step(clock.now_ms(), events)
        self._ports.clear()
        if self.welcomed.is_set():
            self._send(ClientBye())
        self.welcomed.clear()
        for call in self._calls.values():
            call.done.set()
        self._socket.close(LINGER_MS)

    def _timeout_ms(self) -> int:
        if self._inbox or self._woken or self.is_stopping:
            return 0
        now_ms = clock.now_ms()
        wake = min(now_ms + self._config.failure_ms, self._pulse.wake_at_ms)
        for known in self._ports.values():
            if known.wake_ms is not None:
                wake = min(wake, known.wake_ms)
        return max(wake - now_ms, 0)

    def _step_ports(self, now_ms: int) -> None:
        """Let handles that have something to do turn it into requests."""
        due: dict[int, None] = {}
        while self._woken:
            due[self._woken.popleft()] = None
        for number, known in self._ports.items():
            if known.events or (known.wake_ms is not None and known.wake_ms <= now_ms):
                due[number] = None
        for number in due:
            known_port = self._ports.get(number)
            if known_port is not None:
                self._step_port(now_ms, known_port)
                self._give_sign(clock.now_ms())

    def _step_port(self, now_ms: int, known: _Port) -> None:
        events, known.events = known.events, []
        requests, known.wake_ms = known.port.step(now_ms, events)
        if self.welcomed.is_set():
            try:
                for request in requests:
                    if isinstance(request.request, Attach):
                        self._outflow.forget(known.number)
                        attach = replace(request.request, line=known.line, turn=self._hello)
                        request = replace(request, request=attach)
                    self._outflow.offer(known.number, encode(request))
            except ProtocolError as error:
                known.events.append(Closed(str(error)))

    def _send(self, message: WireMessage) -> None:
        """Small, and not to wait behind requests."""
        self._send_data(encode(message))

    def _send_data(self, parts: Parts) -> None:
        """What does not reach the node shows as SendLost or LinkDown."""
        if self._socket.send(parts):
            self._window.on_sent(sum(map(len, parts)))

    def _ping(self) -> None:
        """A sign of life, and how much has come."""
        self._pulse.on_given(clock.now_ms())
        self._socket.send(encode(ClientPing(self._window.report())), CONTROL)

    def _give_sign(self, now_ms: int) -> None:
        """If it is time. It does not wait until everything that has come is done."""
        if self._pulse.is_due(now_ms):
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
            case LinkUp():
                self._say_hello()
            case LinkDown():
                if self._hello:
                    self._on_left(f"the connection to {inbound.peer} ended")
            case SendLost():
                if inbound.channel == DATA:
                    self._window.on_lost(inbound.size)
                    self._lose_link()
            case Refused():
                self.refusals = {**self.refusals, inbound.who: inbound}
                self._note(inbound.why)
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
            self._leave(message.why)
        elif self.welcomed.is_set():
            self._pulse.on_heard(now_ms)
            self._on_message(message)

    def _on_message(self, message: WireMessage) -> None:
        match message:
            case SessionReply():
                self._tell(message.session.number, ReplyArrived(message))
            case ClientMaster():
                known = self._ports.get(message.session)
                if known is not None:
                    if known.epoch and message.epoch > known.epoch:
                        text = f"a queue has a new master at epoch {message.epoch}"
                        self.on_notice(Notice("new master", text, known.queue_id))
                    known.epoch = max(known.epoch, message.epoch)
                    known.events.append(MasterChanged(message.epoch, message.available))
            case ClientLinkLost():
                self._tell(message.session, LinkLost())
            case ClientClosed():
                self._tell(message.session, _closed(message))
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
        known = self._ports.get(number)
        if known is not None:
            known.events.append(event)

    def _say_hello(self) -> None:
        self._hello = next(self._hello_numbers)
        self._pulse.on_connected(clock.now_ms())
        self._send(ClientHello(self._hello, self._name, self._config.session_expiry_ms))
        self._window.begin()

    def _on_welcome(self, message: ClientWelcome) -> None:
        if message.number != self._hello:
            return
        self._window.begin()
        self._pulse.on_welcome(clock.now_ms(), message.session_expiry_ms)
        self.entry_node = message.node
        self.entry_paused = False
        self.has_told = False
        self.trouble = ""
        self.refusals = {}
        for number, known in self._ports.items():
            self._send(ClientOpen(number, known.queue_id))
        for call in self._calls.values():
            self._send_call(call)
        self._ping()
        self.welcomed.set()
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
        self._window.on_told(message.received)
        self._pulse.on_pong(clock.now_ms(), message.paused, message.patience)
        self.entry_paused = message.paused
        # Last: who waits for it, on another thread, then looks at the rest.
        self.has_told = True
        if message.lost:
            self._lose_link()

    def _lose_link(self) -> None:
        """Something may be gone on the way: handles say it again."""
        for known in self._ports.values():
            known.events.append(LinkLost())
        for call in self._calls.values():
            self._send_call(call)

    def _keep_alive(self, now_ms: int) -> None:
        """Give signs of life; leave a node that gives none or is of no use."""
        pulse = self._pulse
        if pulse.is_silent:
            self._give_up(f"{self._socket.endpoint} was silent for {pulse.silence_ms} ms")
        elif pulse.is_cut_off and self._endpoint_count > 1:
            self._give_up(f"node {self.entry_node} has no contact with a majority")
        else:
            self._give_sign(now_ms)

    def _on_expelled(self, why: str) -> None:
        """Disconnected by somebody: to come again at once would undo that."""
        self._note(why)
        self.expelled = why
        self.is_stopping = True
        self.on_notice(Notice("disconnected", why))

    def _give_up(self, why: str) -> None:
        """The node may be well, and slow."""
        self._pulse.on_given_up()
        self._leave(why)

    def _leave(self, why: str) -> None:
        """Go on to the next endpoint."""
        self._on_left(why)
        self._socket.leave()

    def _on_left(self, why: str) -> None:
        """No node serves this client now."""
        self._hello = 0
        self._pulse.on_left()
        self._outflow.clear()
        self._note(why)
        if not self.welcomed.is_set():
            return
        self.welcomed.clear()
        self.on_notice(Notice("disconnected", why))
        for known in self._ports.values():
            # First the loss, while the handle still takes its master for there: it drops
            # what no call has returned (P3). Then it waits for the next entry node.
            known.events.append(LinkLost())
            if known.epoch:
                known.events.append(MasterChanged(known.epoch, False))

    def _note(self, trouble: str) -> None:
        """Keep it for who waits in vain; log it once."""
        if trouble != self.trouble:
            self.trouble = trouble
            log.warning("client %s: %s", self._name, trouble)
