"""`MirroredQueue`: the user's handle on one queue.

User threads append to an inbox and wait on outcomes; everything else happens on the thread of
the *host* (a node or a client), which steps the handle: `step` turns calls into requests of
the `session`, and the session's output into outcomes and messages.

*Threads*: every method may be called from any thread, except in a forked child.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from mirrorq.config import Config
from mirrorq.confirmation import Confirmation, Settlement
from mirrorq.errors import (
    AckRefused,
    ConfigError,
    ConfirmUnknown,
    Empty,
    Full,
    MirrorQError,
    NoQuorum,
    QueueDown,
    ShutDown,
)
from mirrorq.message import Chunk, HeaderValue, Message, pack_properties, pieces_of
from mirrorq.messages import (
    Browsed,
    Counts,
    Deliver,
    HandOut,
    Purged,
    SessionId,
    SessionRequest,
)
from mirrorq.outcomes import Outcomes
from mirrorq.puts import ManyPut, SinglePut, finish, frames_of
from mirrorq.session import (
    IDLE_GIVEBACK_MS,
    WINDOW_MAX_FACTOR,
    Closed,
    ConsumerFailed,
    Delivered,
    DropBuffered,
    Failed,
    GiveBack,
    Output,
    Query,
    QueryDone,
    Session,
    SessionEvent,
    SettleCall,
    SettleDone,
    Stored,
    Window,
    browse_request,
    inquire_request,
    purge_request,
)
from mirrorq.status import QueueStatus
from mirrorq.wire import frames

if TYPE_CHECKING:
    from mirrorq.as_queue import QueueAdapter
    from mirrorq.consumer import Consumer
    from mirrorq.driver import SessionPort
    from mirrorq.node import Node

__all__ = ["MirroredQueue"]

log = logging.getLogger("mirrorq")

CLOSE_S = 5.0
"""close() ends within this."""
ASK_S = 5.0
"""qsize(), browse() and purge() wait so long for the master before they say what is wrong."""
NOWAIT_S = 1.0
"""get_nowait() waits so long for the master's word on whether there is a message."""
BROWSE_PAGE = 1000


class MessageTooLarge(MirrorQError, ValueError):
    """A body above `message_bytes_max`."""


class Host(Protocol):
    """The process side of handles: `node.Node` or `client.Client`."""

    name: str
    config: Config

    def open_session(self, port: SessionPort, queue_id: int) -> SessionId: ...
    def close_session(self, session: SessionId) -> None: ...
    def wake(self, session: SessionId) -> None: ...
    def now_ms(self) -> int: ...
    def is_paused(self) -> bool: ...
    def closed(self) -> bool: ...
    def status(self, queue_id: int) -> QueueStatus: ...
    def delete(
        self, queue_id: int, *, if_empty: bool, if_unused: bool, timeout: float | None
    ) -> None: ...
    def close(self) -> None: ...


def _nothing() -> None:
    """What a handle on somebody else's host releases."""


class _Answer:
    """One Query's answer, waited for by one caller."""

    __slots__ = ("is_done", "reply")

    def __init__(self) -> None:
        self.is_done = False
        self.reply: object = None


class _Call:
    """Something for the host's thread that is no put and no settlement."""

    __slots__ = ("function",)

    def __init__(self, function: Callable[[], None]) -> None:
        self.function = function


class _SettleItem:
    __slots__ = ("kind", "messages", "settlement")

    def __init__(self, kind: str, messages: Sequence[Message], settlement: Settlement) -> None:
        self.kind = kind
        self.messages = messages
        self.settlement = settlement


class MirroredQueue:
    """A replicated work queue: `put` with confirmation, `get` with ack.

    Made here, it brings its node with it (a cluster of one without `peers`, no sockets); two
    on one path in one process share the node. `Node.queue()` and `Client.queue()` give the
    same object on a host of their own.

    Args:
        name: the queue's name, unique in the cluster.
        path: directory of the node's store.
        node: the node's name; "node" when there are no peers.
        peers, config, witness, security, insecure, listen: as in `Node`.
        durable, exclusive, auto_delete, passive, timeout: as in `Node.queue`.

    Raises:
        ConfigError: arguments that contradict each other or an open node on this path.
        StoreError: the store cannot be opened.
        NoQuorum: no majority within `timeout` seconds.
    """

    _release: Callable[[], None] = staticmethod(_nothing)
    """Called when the handle is closed: the node that came with it may be closed too."""

    def __init__(
        self,
        name: str,
        *,
        path: str | os.PathLike[str],
        node: str | None = None,
        peers: Mapping[str, str] | None = None,
        config: Config | None = None,
        witness: bool = False,
        security: None = None,
        insecure: bool = False,
        listen: str | None = None,
        durable: bool = True,
        exclusive: bool = False,
        auto_delete: bool = False,
        passive: bool = False,
        timeout: float | None = 30,
    ) -> None:
        from mirrorq.shared_node import acquire, release

        shared = acquire(
            node or "node",
            path=path,
            peers=peers,
            config=config,
            witness=witness,
            security=security,
            insecure=insecure,
            listen=listen,
        )
        try:
            queue_id = shared.declare(
                name,
                durable=durable,
                exclusive=exclusive,
                auto_delete=auto_delete,
                passive=passive,
                timeout=timeout,
            )
            self._open(shared, queue_id, name)
        except BaseException:
            release(shared)
            raise
        self._release = partial(release, shared)

    @classmethod
    def _attach(cls, host: Host, queue_id: int, name: str) -> MirroredQueue:
        """A handle on a host that exists: what `Node.queue` and `Client.queue` return."""
        handle = cls.__new__(cls)
        handle._open(host, queue_id, name)
        return handle

    def _open(self, host: Host, queue_id: int, name: str) -> None:
        self.name = name
        self._host = host
        self._queue_id = queue_id
        self._config = host.config
        self._pid = os.getpid()
        self._outcomes = Outcomes()
        self._lock = self._outcomes.lock
        self._inbox: deque[Any] = deque()
        self._is_woken = False
        self._is_closing = False
        self._is_closed = False
        self._open_count = 0
        self._open_bytes = 0
        self._listeners: list[tuple[Callable[..., object] | None, ...]] = []
        self._buffer: deque[Message] = deque()
        self._ready = threading.Condition()
        self._demand = 0
        self._low = 0
        self._window = Window(WINDOW_MAX_FACTOR * self._config.prefetch)
        self._arrived = 0
        self._seen_taken = 0
        self._idle_at_ms: int | None = None
        self._consumers: dict[int, Consumer] = {}
        self._consumer_number = 0
        self._session: Session | None = None
        self._early: list[SessionEvent] = []
        session_id = host.open_session(self, queue_id)
        self._session_id = session_id
        session = Session(session_id, queue_id, self._config)
        session.subscribe(0, self._config.prefetch, False, False)
        self._session = session
        host.wake(session_id)

    # --- The host's thread ----------------------------------------------------------------

    def step(
        self, now_ms: int, events: Sequence[SessionEvent]
    ) -> tuple[tuple[SessionRequest, ...], int | None]:
        """Called by the host: take events and users' calls; return requests and a time."""
        session = self._session
        if session is None:
            self._early.extend(events)
            return (), now_ms + 1
        if self._early:
            events = [*self._early, *events]
            self._early = []
        self._is_woken = False
        outputs = session.step(now_ms, events)
        self._drain(session)
        if outputs:
            self._take(session, now_ms, outputs)
        session.complete_attach()
        self._fetch(session, now_ms)
        if any(isinstance(event, Closed) for event in events):
            self._on_closed(session)
        requests = session.flush(now_ms)
        wake = session.wake_at_ms()
        if self._idle_at_ms is not None and (wake is None or self._idle_at_ms < wake):
            wake = self._idle_at_ms
        return requests, wake

    def _drain(self, session: Session) -> None:
        """Turn what users have called since the last step into calls of the session."""
        inbox = self._inbox
        puts: list[SinglePut | ManyPut] = []
        settles: dict[str, tuple[list[Message], list[Settlement]]] = {}
        while inbox:
            item = inbox.popleft()
            kind = type(item)
            if kind is SinglePut or kind is ManyPut:
                puts.append(item)
            elif kind is _SettleItem:
                messages, settlements = settles.setdefault(item.kind, ([], []))
                messages.extend(item.messages)
                settlements.append(item.settlement)
            else:
                item.function()
        for put in frames_of(puts, self._config.frame_bytes_max) if puts else ():
            session.put(put)
        for how, (messages, settlements) in settles.items():
            self._settle_now(session, how, messages, settlements)

    def _settle_now(
        self,
        session: Session,
        kind: str,
        messages: list[Message],
        settlements: list[Settlement],
    ) -> None:
        for message in messages:
            number = message._chunk.consumer
            if number:
                consumer = self._consumers.get(number)
                if consumer is not None:
                    consumer.unsettled -= 1
        if session.closed:
            error = AckRefused(f"the handle is closed: {session.closed}")
            with self._lock:
                for settlement in settlements:
                    settlement._finish(None, error)
                self._outcomes.notify()
            return
        session.settle(SettleCall(settlements, kind, tuple(pieces_of(messages))))

    def _take(self, session: Session, now_ms: int, outputs: list[Output]) -> None:
        confirmed: list[Confirmation] = []
        with self._lock:
            for output in outputs:
                match output:
                    case Stored() | Failed():
                        confirmed += finish(output)
                    case SettleDone():
                        self._finish_settles(output)
                    case QueryDone():
                        answer = output.token
                        assert isinstance(answer, _Answer)
                        answer.reply = output.reply
                        answer.is_done = True
            self._open_count = session.unconfirmed_count
            self._open_bytes = session.unconfirmed_bytes
            for item in self._inbox:
                self._count_item(item)
            self._outcomes.notify()
        for output in outputs:
            match output:
                case Delivered():
                    self._on_deliver(now_ms, output.deliver)
                case DropBuffered():
                    self._drop_buffered(session, output.failover)
                case GiveBack():
                    self._give_back(session)
                case ConsumerFailed():
                    self._on_consumer_failed(output)
        if confirmed and self._listeners:
            self._tell_listeners(confirmed)

    def _count_item(self, item: object) -> None:
        if isinstance(item, SinglePut):
            self._open_count += 1
            self._open_bytes += item.size
        elif isinstance(item, ManyPut):
            self._open_count += len(item.bodies)
            self._open_bytes += item.size

    def _finish_settles(self, done: SettleDone) -> None:
        settlements = done.token
        assert isinstance(settlements, list)
        error = None
        if done.refused:
            spans = ", ".join(f"{piece.first}-{piece.last}" for piece in done.refused)
            error = AckRefused(f"not taken for message(s) {spans}: {done.why}")
        for settlement in settlements:
            settlement._finish(None, error if settlement is not None else None)

    def _tell_listeners(self, confirmed: list[Confirmation]) -> None:
        for listener in self._listeners:
            for confirmation in confirmed:
                function = listener[0] if confirmation._error is None else listener[1]
                if function is not None:
                    self._outcomes.call_back(function, confirmation)

    def _on_closed(self, session: Session) -> None:
        self._is_closed = True
        with self._lock:
            error = ConfirmUnknown(f"the handle was closed: {session.closed}")
            while self._inbox:
                item = self._inbox.popleft()
                if isinstance(item, SinglePut | ManyPut):
                    item.confirmation._finish(None, error)
                elif isinstance(item, _SettleItem):
                    item.settlement._finish(None, AckRefused(str(error)))
            self._outcomes.notify()
        with self._ready:
            self._ready.notify_all()
        for consumer in list(self._consumers.values()):
            consumer._end()

    # --- Messages -------------------------------------------------------------------------

    def _on_deliver(self, now_ms: int, deliver: Deliver) -> None:
        messages = self._messages_of(deliver.consumer, deliver.handouts, deliver.frames)
        if deliver.consumer:
            consumer = self._consumers.get(deliver.consumer)
            if consumer is not None:
                consumer._feed(messages)
            return
        self._arrived += len(messages)
        self._buffer.extend(messages)
        if self._demand:
            with self._ready:
                self._ready.notify_all()

    def _messages_of(
        self, consumer: int, handouts: Sequence[HandOut], parts: Sequence[bytes]
    ) -> list[Message]:
        messages: list[Message] = []
        pieces = iter(handouts)
        piece = next(pieces)
        for frame in parts:
            header = frames.header(frame)
            while header.first_sequence > piece.last:
                piece = next(pieces)
            bodies = frames.split(frame)
            chunk = Chunk(
                self,
                consumer,
                piece,
                header.first_sequence,
                bodies,
                frames.split_properties(frame),
                header.timestamp_us,
            )
            messages += [Message(chunk, index) for index in range(len(bodies))]
        return messages

    def _fetch(self, session: Session, now_ms: int) -> None:
        """Ask for as many messages as callers want, and what they will want next."""
        buffered = len(self._buffer)
        taken = self._arrived - buffered
        if taken != self._seen_taken:
            self._seen_taken = taken
            self._window.on_taken(now_ms, buffered == 0)
            self._idle_at_ms = None
        if buffered and not self._demand:
            if self._idle_at_ms is None:
                self._idle_at_ms = now_ms + IDLE_GIVEBACK_MS
            elif now_ms >= self._idle_at_ms:
                self._give_back(session)
                buffered = 0
        else:
            self._idle_at_ms = None
        wanted = self._demand + self._window.size
        self._low = self._window.size // 2
        session.want(0, buffered, wanted)
        for consumer in self._consumers.values():
            session.want(consumer.number, consumer.unsettled, consumer.prefetch)

    def _empty_buffer(self) -> list[HandOut]:
        unseen: list[Message] = []
        with contextlib.suppress(IndexError):
            while True:
                unseen.append(self._buffer.popleft())
        self._arrived -= len(unseen)
        return pieces_of(unseen)

    def _drop_buffered(self, session: Session, failover: bool) -> None:
        session.drop(self._empty_buffer())
        for consumer in list(self._consumers.values()):
            session.drop(consumer._drop())
            if failover and consumer.cancel_on_failover:
                consumer._cancelled()
                session.unsubscribe(consumer.number)

    def _give_back(self, session: Session) -> None:
        self._window.on_idle()
        self._idle_at_ms = None
        unseen = self._empty_buffer()
        if unseen:
            session.give_back(tuple(unseen))

    def _on_consumer_failed(self, failed: ConsumerFailed) -> None:
        consumer = self._consumers.pop(failed.number, None)
        if consumer is not None:
            log.warning("consumer of queue %s refused: %s", self.name, failed.why)
            consumer._refuse(failed.why)

    # --- Users: helpers -------------------------------------------------------------------

    def _check(self) -> None:
        if os.getpid() != self._pid:
            raise MirrorQError(
                f"the handle on queue {self.name!r} was made in process {self._pid}; this is "
                f"process {os.getpid()}, forked from it: open the queue in the child"
            )
        if self._is_closing or self._is_closed or self._host.closed():
            raise ShutDown(f"the handle on queue {self.name!r} is closed")

    def _wake(self) -> None:
        if not self._is_woken:
            self._is_woken = True
            self._host.wake(self._session_id)

    def _why_not(self, otherwise: MirrorQError) -> MirrorQError:
        """The reason for a time-out."""
        if self._host.is_paused():
            return NoQuorum(
                f"queue {self.name!r}: node {self._host.name} has no contact with a majority "
                "of the cluster. Start more nodes, or mend the network"
            )
        session = self._session
        if session is not None and not session.available:
            return QueueDown(
                f"queue {self.name!r} has no master: no member in sync is running. Start the "
                "nodes that held it"
            )
        return otherwise

    def _on_host(self, function: Callable[[], None]) -> None:
        self._inbox.append(_Call(function))
        self._wake()

    def _ask(self, request: Callable[[int], Any], timeout: float) -> object:
        """A question to the master.

        Raises:
            NoQuorum, QueueDown: no answer in time, and why.
        """
        answer = _Answer()
        session = self._session
        assert session is not None
        self._on_host(lambda: session.query(Query(answer, request)))
        if not self._outcomes.wait_for(lambda: answer.is_done or self._is_closed, timeout):
            self._on_host(lambda: session.forget_query(answer))
            raise self._why_not(
                QueueDown(f"the master of queue {self.name!r} did not answer for {timeout} s")
            )
        if answer.reply is None:
            raise ShutDown(f"the handle on queue {self.name!r} is closed")
        return answer.reply

    # --- Publishing -----------------------------------------------------------------------

    def put(
        self,
        body: bytes | bytearray | memoryview,
        *,
        headers: Mapping[str, HeaderValue] | None = None,
        message_id: str | None = None,
        ttl: float | None = None,
        priority: int = 0,
        delay: float | None = None,
        key: str | bytes | None = None,
        persistent: bool = True,
        block: bool = True,
        timeout: float | None = None,
        on_confirm: Callable[[Confirmation], object] | None = None,
    ) -> Confirmation:
        """Publish a message; returns once it is accepted by this handle.

        Args:
            body: bytes-like; copied if it can change.
            headers: names to str, bytes, int, float or bool.
            message_id: carried, not used to find duplicates.
            persistent: False: lost when all nodes stop.
            block, timeout: wait so long while too much is unconfirmed.
            on_confirm: called with the confirmation when it has ended.

        Returns:
            The confirmation: it ends with the message's sequence when the message is on disk
            on every member in sync.

        Raises:
            Full: too much unconfirmed for `timeout` seconds (NoQuorum, QueueDown if that is
                why).
            TypeError, ValueError: a body that is not bytes-like or too large.
        """
        _refuse_later(ttl=ttl, priority=priority, delay=delay)
        data = self._body(body)
        properties = pack_properties(headers, message_id, key)
        confirmation = Confirmation(self._outcomes)
        if on_confirm is not None:
            confirmation._callbacks = [on_confirm]
        item = SinglePut(confirmation, data, properties, persistent)
        self._accept(item, 1, len(data) + len(properties), block, timeout)
        return confirmation

    def put_many(
        self,
        bodies: Sequence[bytes],
        *,
        headers: Mapping[str, HeaderValue] | None = None,
        message_id: str | None = None,
        ttl: float | None = None,
        priority: int = 0,
        delay: float | None = None,
        key: str | bytes | None = None,
        persistent: bool = True,
        block: bool = True,
        timeout: float | None = None,
        on_confirm: Callable[[Confirmation], object] | None = None,
    ) -> Confirmation:
        """Publish messages together: up to `frame_bytes_max` all or none.

        The confirmation ends with a `range` of sequences (a tuple, when several frames were
        needed and another producer came between), or `NotConfirmed` with `.stored` and
        `.refused`. Arguments and errors as in `put`.
        """
        _refuse_later(ttl=ttl, priority=priority, delay=delay)
        if isinstance(bodies, bytes | bytearray | memoryview | str):
            raise TypeError(f"put_many takes a list of bodies, not one {type(bodies).__name__}")
        limit = self._config.message_bytes_max
        data = list(bodies)
        if set(map(type, data)) != {bytes} or max(map(len, data), default=0) > limit:
            data = [self._body(body) for body in data]
        self._check()
        confirmation = Confirmation(self._outcomes)
        if on_confirm is not None:
            confirmation._callbacks = [on_confirm]
        if not data:
            with self._lock:
                confirmation._finish(range(0), None)
            return confirmation
        properties = pack_properties(headers, message_id, key)
        size = sum(map(len, data))
        item = ManyPut(confirmation, data, properties, persistent, size)
        self._accept(item, len(data), size + len(properties) * len(data), block, timeout)
        return confirmation

    def put_nowait(self, body: bytes | bytearray | memoryview) -> Confirmation:
        """`put` that raises Full at once instead of waiting."""
        return self.put(body, block=False)

    def _body(self, body: bytes | bytearray | memoryview) -> bytes:
        if type(body) is not bytes:
            if not isinstance(body, bytes | bytearray | memoryview):
                raise TypeError(f"a body is bytes-like, not {type(body).__name__}: encode it first")
            body = bytes(body)
        if len(body) > self._config.message_bytes_max:
            raise MessageTooLarge(
                f"a body of {len(body)} bytes is larger than message_bytes_max "
                f"{self._config.message_bytes_max}: split it, or raise the limit on all nodes"
            )
        return body

    def _has_room(self, count: int, size: int) -> bool:
        """Whether this much more may be unconfirmed. A single large call always fits alone."""
        if self._is_closing or self._is_closed or not self._open_count:
            return True
        config = self._config
        return (
            self._open_count + count <= config.unconfirmed_count_max
            and self._open_bytes + size <= config.unconfirmed_bytes_max
        )

    def _accept(
        self, item: SinglePut | ManyPut, count: int, size: int, block: bool, timeout: float | None
    ) -> None:
        self._check()
        outcomes = self._outcomes
        if not self._has_room(count, size):
            patience = timeout if block else 0
            if not outcomes.wait_for(lambda: self._has_room(count, size), patience):
                full = Full(
                    f"queue {self.name!r}: {self._open_count} messages "
                    f"({self._open_bytes} bytes) are unconfirmed; the limits are "
                    f"{self._config.unconfirmed_count_max} and "
                    f"{self._config.unconfirmed_bytes_max}. Wait, or raise them"
                )
                raise self._why_not(full) if block else full
            self._check()
        with outcomes.lock:
            self._open_count += count
            self._open_bytes += size
            self._inbox.append(item)
        self._wake()

    def wait_for_confirms(self, timeout: float | None = None) -> bool:
        """Wait until everything put so far has an outcome; True.

        Raises:
            NoQuorum, QueueDown, Full: not within `timeout` seconds, and why.
        """
        self._check()
        if not self._outcomes.wait_for(lambda: not self._open_count or self._is_closed, timeout):
            raise self._why_not(
                Full(
                    f"queue {self.name!r}: {self._open_count} messages are still unconfirmed "
                    f"after {timeout} s: wait again"
                )
            )
        return True

    def add_confirm_listener(
        self,
        on_confirmed: Callable[[Confirmation], object] | None,
        on_not_confirmed: Callable[[Confirmation], object] | None = None,
    ) -> None:
        """Have functions called with each confirmation that ends well, or otherwise."""
        self._listeners.append((on_confirmed, on_not_confirmed))

    def on_confirm(self, function: Callable[[Confirmation], object]) -> None:
        """Have a function called with each confirmation that ends, however it does."""
        self._listeners.append((function, function))

    # --- Consuming ------------------------------------------------------------------------

    def get(
        self, block: bool = True, timeout: float | None = None, *, auto_ack: bool = False
    ) -> Message:
        """Take the next message; it is held until it is acked or given back.

        Raises:
            Empty: none within `timeout` seconds (NoQuorum, QueueDown if that is why).
        """
        found = self._obtain(1, block, timeout)
        if not found:
            raise self._why_not(
                Empty(
                    f"queue {self.name!r} had no message ready"
                    + (f" within {timeout} s" if block else "")
                )
            )
        if auto_ack:
            self._settle("ack", found)
        return found[0]

    def get_nowait(self) -> Message:
        """`get` that does not wait for a message to be published."""
        return self.get(block=False)

    def get_many(self, count_max: int, timeout: float | None = None) -> list[Message]:
        """Take 1 to `count_max` messages as soon as there is one; [] at the time-out.

        Raises:
            NoQuorum, QueueDown: that is why there is none.
        """
        if count_max < 1:
            raise ValueError(f"count_max is {count_max}: ask for at least 1")
        found = self._obtain(count_max, True, timeout)
        if not found:
            reason = self._why_not(Empty(""))
            if not isinstance(reason, Empty):
                raise reason
        return found

    def _obtain(self, count: int, block: bool, timeout: float | None) -> list[Message]:
        self._check()
        found = self._pop(count)
        if found:
            if len(self._buffer) <= self._low:
                self._wake()
            return found
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._ready:
            self._demand += count
        self._wake()
        try:
            if not block:
                return self._obtain_now(count)
            return self._obtain_waiting(count, deadline)
        finally:
            with self._ready:
                self._demand -= count
            self._wake()

    def _obtain_waiting(self, count: int, deadline: float | None) -> list[Message]:
        is_warned = False
        while True:
            with self._ready:
                if not self._buffer:
                    left = 1.0 if deadline is None else min(deadline - time.monotonic(), 1.0)
                    if left > 0:
                        self._ready.wait(left)
            found = self._pop(count)
            if found:
                return found
            if deadline is not None and time.monotonic() >= deadline:
                return []
            self._check()
            if not is_warned and deadline is None:
                reason = self._why_not(Empty(""))
                if not isinstance(reason, Empty):
                    log.warning("get() waits: %s", reason)
                    is_warned = True

    def _obtain_now(self, count: int) -> list[Message]:
        """Without waiting for a publish: until the master says that nothing is ready."""
        deadline = time.monotonic() + NOWAIT_S
        while True:
            left = deadline - time.monotonic()
            if left <= 0:
                return []
            try:
                counts = self._ask(inquire_request, left)
            except (QueueDown, NoQuorum):
                return self._pop(count)
            with self._ready:
                if not self._buffer and isinstance(counts, Counts) and counts.ready:
                    self._ready.wait(min(left, 0.02))
            found = self._pop(count)
            if found or (isinstance(counts, Counts) and not counts.ready):
                return found

    def _pop(self, count: int) -> list[Message]:
        buffer = self._buffer
        found: list[Message] = []
        with contextlib.suppress(IndexError):
            if count == 1:
                found.append(buffer.popleft())
            else:
                for _ in range(min(count, len(buffer))):
                    found.append(buffer.popleft())
        return found

    def ack_many(self, messages: Sequence[Message]) -> Settlement:
        """Ack messages of this queue together: one outcome for all."""
        if not messages:
            settlement = Settlement(self._outcomes)
            with self._lock:
                settlement._finish(None, None)
            return settlement
        return self._settle("ack", messages)

    def _settle(self, kind: str, messages: Sequence[Message]) -> Settlement:
        if os.getpid() != self._pid:
            self._check()
        settlement = Settlement(self._outcomes)
        if self._is_closed:
            with self._lock:
                settlement._finish(None, AckRefused(f"the handle on queue {self.name!r} is closed"))
            return settlement
        self._inbox.append(_SettleItem(kind, messages, settlement))
        self._wake()
        return settlement

    def consume(
        self,
        callback: Callable[[Message], object],
        *,
        prefetch: int | None = None,
        auto_ack: bool = False,
        exclusive: bool = False,
        on_cancel: Callable[[Consumer], object] | None = None,
        cancel_on_failover: bool = False,
    ) -> Consumer:
        """Have `callback(message)` called for each message, on a thread of its own.

        An exception gives the message back after a growing pause. At most `prefetch`
        messages are held unacknowledged.

        Raises:
            PreconditionFailed: `exclusive`, and there are other consumers.
        """
        from mirrorq.consumer import Consumer

        self._check()
        with self._ready:
            self._consumer_number += 1
            number = self._consumer_number
        consumer = Consumer(
            self,
            number,
            callback,
            prefetch=self._config.prefetch if prefetch is None else prefetch,
            auto_ack=auto_ack,
            exclusive=exclusive,
            on_cancel=on_cancel,
            cancel_on_failover=cancel_on_failover,
        )
        consumer._start()
        return consumer

    def __iter__(self) -> Iterator[Message]:
        """Messages as they come, until the handle is closed; acking is the caller's."""
        while True:
            try:
                yield self.get()
            except ShutDown:
                return

    def browse(self, start: int | None = None, count_max: int = 1000) -> list[Message]:
        """Look at messages, ready and unacknowledged, without taking them.

        Args:
            start: first sequence, inclusive; None: the oldest.
            count_max: most messages returned.
        """
        self._check()
        found: list[Message] = []
        position = start or 1
        while len(found) < count_max:
            page = min(count_max - len(found), BROWSE_PAGE)
            reply = self._ask(browse_request(position, page), ASK_S)
            assert isinstance(reply, Browsed)
            pieces = [HandOut(0, 0, first, last, count) for first, last, count in reply.ranges]
            if not pieces:
                break
            found += self._messages_of(0, pieces, reply.frames)
            position = pieces[-1].last + 1
        return found

    # --- Questions ------------------------------------------------------------------------

    def _counts(self) -> Counts:
        reply = self._ask(inquire_request, ASK_S)
        assert isinstance(reply, Counts)
        return reply

    def qsize(self) -> int:
        """Messages ready: those that no call has returned."""
        self._check()
        return self._counts().ready + len(self._buffer)

    def empty(self) -> bool:
        """Whether no message is ready."""
        return self.qsize() == 0

    def full(self) -> bool:
        """Whether a `put` would wait."""
        return not self._has_room(1, 1)

    def status(self) -> QueueStatus:
        """What this handle's node knows of the queue. Never blocks, never raises."""
        return self._host.status(self._queue_id)

    @property
    def node(self) -> Node:
        """The node (or client) that this handle lives on."""
        return self._host  # type: ignore[return-value]

    def purge(self) -> int:
        """End all ready messages; those unacknowledged are left alone. Returns how many."""
        self._check()
        done = threading.Event()

        def give_back() -> None:
            session = self._session
            if session is not None:
                self._give_back(session)
            done.set()

        self._on_host(give_back)
        done.wait(ASK_S)
        reply = self._ask(purge_request, ASK_S)
        assert isinstance(reply, Purged)
        return reply.count

    def delete(self, if_empty: bool = False, if_unused: bool = False) -> None:
        """Delete the queue with everything in it.

        Raises:
            PreconditionFailed: it has messages or consumers, and that was asked.
        """
        self._check()
        self._host.delete(self._queue_id, if_empty=if_empty, if_unused=if_unused, timeout=30)

    # --- The end --------------------------------------------------------------------------

    def shutdown(self, immediate: bool = False) -> None:
        """Close this handle (never the queue); `immediate` does not wait for confirms."""
        self._shut(0.0 if immediate else CLOSE_S)

    def close(self) -> None:
        """Wait up to 5 s for what is open, give back what is held, and close the handle.

        What has no outcome then ends with ConfirmUnknown. The node goes with its last handle
        if it was made by `MirroredQueue(…)`.
        """
        self._shut(CLOSE_S)

    def _shut(self, timeout: float) -> None:
        if os.getpid() != self._pid:
            return
        with self._lock:
            if self._is_closing:
                return
            self._is_closing = True
        with self._ready:
            self._ready.notify_all()
        for consumer in list(self._consumers.values()):
            consumer.cancel()
        if not self._is_closed and not self._host.closed():
            if timeout and not self._host.is_paused():
                self._outcomes.wait_for(self._is_quiet, timeout * 0.8)
            self._end_session()
        self._is_closed = True
        self._outcomes.close(1.0)
        self._release()

    def _is_quiet(self) -> bool:
        session = self._session
        return self._is_closed or (session is not None and session.is_idle and not self._inbox)

    def _end_session(self) -> None:
        ended = threading.Event()
        session = self._session
        assert session is not None

        def detach() -> None:
            self._give_back(session)
            session.detach()
            ended.set()

        self._on_host(detach)
        ended.wait(0.5)
        closing = threading.Event()

        def close() -> None:
            outputs = session.step(0, [Closed("the handle was closed")])
            self._take(session, 0, outputs)
            self._on_closed(session)
            closing.set()

        self._on_host(close)
        closing.wait(0.5)
        self._host.close_session(self._session_id)

    def __enter__(self) -> MirroredQueue:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def as_queue(self) -> QueueAdapter:
        """A drop-in `queue.Queue` on this handle."""
        from mirrorq.as_queue import QueueAdapter

        return QueueAdapter(self)

    def __repr__(self) -> str:
        return f"<MirroredQueue {self.name!r} on {self._host.name}>"


def _refuse_later(**values: object) -> None:
    """What the frame has room for and this version does not do yet."""
    for name, value in values.items():
        if value:
            raise ConfigError(f"put({name}=…) is not supported by this version: leave it out")
