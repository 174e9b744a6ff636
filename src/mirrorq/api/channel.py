"""`Channel` and `RingChannel`: the state and calls that the parts of a handle share.

A handle consists of a publisher, a receiver, consumers, leases and messages. They know each other
only through the channel. The channel checks if calls are still allowed, takes calls for the host's
thread, and reports the end of calls.

A `Channel` belongs to a queue, sharded or not. A `RingChannel` belongs to one ring: users' threads
reach its session through the inbox, and `handle.Handle` steps it.

*Threads*: each flag is set by one party, named beside the flag, and read by all. The host's thread
gives every item in the inbox its outcome. A thread that has put an item into the inbox looks at
`is_closed` afterwards, because the host's thread sets `is_closed` before its last look.
"""

from __future__ import annotations

import itertools
import os
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any
from weakref import ref

from mirrorq.api import acks, exit_flush
from mirrorq.api.acks import Extending, Settle
from mirrorq.api.arguments import check_flags, checked_body, deadline_of
from mirrorq.api.completion import Outcomes
from mirrorq.api.confirmation import Confirmation, Settlement
from mirrorq.api.host import FORK_LOCK, Declared, Host
from mirrorq.api.message import Message
from mirrorq.api.waits import Wait, Waits, in_thread
from mirrorq.errors import (
    AckRefused,
    AuthenticationError,
    Empty,
    EmptyNoQuorum,
    EmptyQueueDown,
    Full,
    FullNoQuorum,
    FullQueueDown,
    MirrorQError,
    NoQuorum,
    PreconditionFailed,
    QueueDown,
    ShutDown,
)
from mirrorq.protocol.sessions import Counts, Purged, Request
from mirrorq.protocol.shard_names import split_name
from mirrorq.session.calls import Query, SettleDone, inquire_request
from mirrorq.session.machine import Session
from mirrorq.waiting import Latch, Once, take_back

if TYPE_CHECKING:
    from mirrorq.api.publish_options import Terms
    from mirrorq.protocol.identities import SessionId

CLOSE_S = 5.0
"""close() ends within so many seconds."""
FLUSH_S = 4.0
"""Part of CLOSE_S for pending outcomes."""
ASK_S = 5.0
"""Seconds that a question waits for the master before an error."""
FIRST_S = 1.0
"""Seconds that a handle's first call waits for the master's first credit, to know the limit."""

STUCK: tuple[tuple[type[MirrorQError], type[MirrorQError], type[MirrorQError]], ...] = (
    (Empty, NoQuorum, EmptyNoQuorum),
    (Empty, QueueDown, EmptyQueueDown),
    (Full, NoQuorum, FullNoQuorum),
    (Full, QueueDown, FullQueueDown),
)
"""Combined error of a call's time-out and of the queue's fault: (time-out, fault, both)."""

AskedRequest = Callable[[int], Request]
"""Makes a request with a number."""


def share(bound: int, shards: int) -> int:
    """Return one shard's part of a limit of the whole handle, at least 1."""
    return max(-(-bound // shards), 1)


def _nothing() -> None:
    """Release nothing: the handle is on a host of another owner."""


def _itself(channel: Channel) -> object:
    """Return the channel: a handle without a face is its own face."""
    return channel


def purged_count(name: str, reply: object) -> int:
    """How many messages of a queue a purge has ended. Raises what it says else."""
    assert isinstance(reply, Purged)
    if reply.why:
        raise PreconditionFailed(f"queue {name!r}: {reply.why}")
    return reply.count


class Channel(ABC):
    """A handle on a queue, as its face (`MirroredQueue`) and its parts see it. Any thread."""

    name: str
    """Name of the queue."""
    queue_name: str
    """Name that users know: for a shard the name of the whole queue."""
    shard: int | None
    """Number of the handle's shard; None: not a shard."""
    shards: int
    """Number of shards; 0: the queue is not sharded."""

    def __init__(self, host: Host, declared: Declared, name: str) -> None:
        self.name = name
        self.queue_name, self.shard = split_name(name) or (name, None)
        self.ring_ids = declared.shards
        """Ids of the shards' rings; () if the queue is not sharded."""
        self.shards = len(declared.shards)
        self.host = host
        self.queue_id = declared.queue_id
        self.refusals = declared.refusals
        self.config = host.config
        self.release: Callable[[], None] = _nothing
        """Called when the handle is closed: may close a node that came with the handle."""
        self.is_closing = False
        self._face: Callable[[], object] = _nothing
        self._make_face: Callable[[Channel], object] = _itself

    def _own_outcomes(self) -> Outcomes:
        return Outcomes(self.shard)

    def open(self) -> None:
        """Begin in the current process: the first time, or in a forked child."""
        self.pid = os.getpid()
        self.outcomes = self._own_outcomes()
        self.is_shut = False
        """True: no more puts; gets continue until the queue is empty."""
        self.is_shut_for_gets = False
        self.is_closing = False
        self.is_closed = False
        """True: the handle was closed or the queue deleted."""
        self.is_deleted = False
        """True: the queue was deleted."""
        self.consumers: dict[int, Any] = {}
        """Users' consumers by number, to be cancelled when the handle is closed."""
        self.consumer_numbers = itertools.count(1)
        self.closing = Once(self._close)

    # --- What each kind does in its own way -------------------------------------------------

    @property
    @abstractmethod
    def why_closed(self) -> str:
        """Why the handle is closed, as far as known."""

    @abstractmethod
    def check(self) -> None:
        """Raise ShutDown or AuthenticationError when calls are useless."""

    @abstractmethod
    def wake(self) -> None:
        """Have the host's thread step the handle soon."""

    @abstractmethod
    def rings(self) -> Sequence[RingChannel]:
        """Return the served rings: several for a sharded queue."""

    @abstractmethod
    def ring_for(self, call: str) -> RingChannel:
        """Return the only ring for a call. Raises PreconditionFailed for a sharded queue."""

    @abstractmethod
    def part_of(self, key: str | bytes | None) -> RingChannel:
        """Return the ring for a message with the key."""

    @abstractmethod
    def source_of(self, message: Message) -> RingChannel | None:
        """Return the ring that holds a message, if the ring belongs to the handle."""

    @abstractmethod
    def stuck_for(self, otherwise: MirrorQError) -> MirrorQError | None:
        """Return the error of a blocked queue, or of the way to the queue; None if not blocked.

        Args:
            otherwise: the error of the waiting call: an `Empty` for a get, else for a put.
        """

    def why_not(self, otherwise: MirrorQError) -> MirrorQError:
        """Return the error of a call that has timed out: `otherwise`, unless the queue is blocked.

        The error is an Empty if `otherwise` is an Empty, and likewise for Full. So loops written
        for `queue.Queue` survive a failover.
        """
        why = self.stuck_for(otherwise)
        for kind, reason, both in STUCK:
            if isinstance(otherwise, kind) and isinstance(why, reason):
                return both(str(why))
        return why or otherwise

    @abstractmethod
    def asking(self, request: AskedRequest, timeout: float) -> Waits[object]:
        """Ask the master a question.

        Raises:
            NoQuorum, QueueDown: no answer in time, with the reason.
        """

    @abstractmethod
    def is_quiet(self) -> bool:
        """Return true if every call has an outcome."""

    @abstractmethod
    def shut_rings(self, *, immediate: bool) -> None:
        """Have the rings note the shutdown."""

    @abstractmethod
    def begin_close(self, callers: set[int]) -> None:
        """Allow no new calls; threads in `callers` wait for the close."""

    @abstractmethod
    def end_session(self) -> None:
        """Detach from the master, then end all open calls."""

    @abstractmethod
    def abandon(self) -> None:
        """Drop a handle whose creation was interrupted."""

    # --- What all calls share ---------------------------------------------------------------

    def show_as(self, face: object, make: Callable[[Channel], object]) -> None:
        """Note the `face` that users hold; `make` makes another face after it was dropped."""
        self._face, self._make_face = ref(face), make

    @property
    def face(self) -> Any:
        """The object that users hold: a `MirroredQueue`."""
        known = self._face()
        return self._make_face(self) if known is None else known

    def next_consumer(self) -> int:
        """Return a number for a consumer or a holder, unique in the handle."""
        return next(self.consumer_numbers)

    def closed_text(self) -> str:
        """Return the text for calls after the end."""
        return f"the handle on queue {self.name!r} is closed"

    def check_right(self, right: str) -> None:
        """Refuse an action without the key's right; a node would end the session."""
        why = self.refusals.get(right)
        if why:
            raise AuthenticationError(why)

    def check_for(self, right: str) -> None:
        """Refuse a call on a closed handle, or without the key's right."""
        self.check()
        self.check_right(right)

    def checked_body(self, body: bytes | bytearray | memoryview, properties: bytes = b"") -> bytes:
        """Return a body as immutable bytes, within the handle's size limit."""
        return checked_body(body, properties, self.config.message_bytes_max)

    def check_open_for_puts(self, right: str = "write") -> None:
        """Raise if puts are impossible. `right`: needed here; a step with only acks differs."""
        self.check_for(right)
        if self.is_shut:
            raise ShutDown(f"the handle on queue {self.name!r} was shut down: it takes no puts")

    def check_open_for_gets(self) -> None:
        """Raise ShutDown or AuthenticationError when get() is useless."""
        self.check()
        if self.refusals:
            self.check_right("read")
        if self.is_shut_for_gets:
            raise ShutDown(f"the handle on queue {self.name!r} was shut down")

    def on_forked(self) -> None:
        """Reopen at the first use in a child: the parent's threads and locks do not work here."""
        if not self.host._survives_fork:
            raise MirrorQError(
                f"the handle on queue {self.name!r} was made in process {self.pid}; this is "
                f"process {os.getpid()}, forked from it: open the queue in the child"
            )
        with FORK_LOCK:
            if os.getpid() != self.pid and not (self.is_closing or self.is_closed):
                self.open()

    def ask(self, request: AskedRequest, timeout: float = ASK_S) -> object:
        """Do the same as `asking`, on the calling thread."""
        return in_thread(self.asking(request, timeout))

    def counting(self, timeout: float = ASK_S) -> Waits[Counts]:
        """Ask the master for its counts."""
        reply = yield from self.asking(inquire_request, timeout)
        assert isinstance(reply, Counts)
        return reply

    def counts(self, timeout: float = ASK_S) -> Counts:
        """Do the same as `counting`, on the calling thread."""
        return in_thread(self.counting(timeout))

    # --- The end ------------------------------------------------------------------------------

    def shutdown(self, immediate: bool) -> None:
        """Shut the handle down, as `MirroredQueue.shutdown`."""
        check_flags(immediate=immediate)
        self.check()
        self.is_shut = True
        if immediate:
            self.is_shut_for_gets = True
            for consumer in list(self.consumers.values()):
                consumer.cancel()
        self.shut_rings(immediate=immediate)

    def close(self) -> None:
        """Close the handle, as `MirroredQueue.close`. An interrupted close continues by itself."""
        if os.getpid() != self.pid:
            return
        self.is_closing = True
        self.closing.run()

    def end_calls(self) -> None:
        """Allow no new calls, and wait for no callback. The host is closed next."""
        self.begin_close({consumer._server for consumer in self.consumers.values()})

    def _close(self) -> None:
        """Do the close once, on a thread without interrupts."""
        self.begin_close(self.closing.callers)
        if not self.is_closed and not self.host.is_closed:
            self.outcomes.wait_for(self.is_quiet, FLUSH_S)
            self.end_session()
        self.outcomes.close(CLOSE_S - FLUSH_S, self.closing.callers)
        exit_flush.forget(self)
        self.release()


class Answer:
    """Answer to one question, for one waiting caller. Set on the host's thread."""

    __slots__ = ("is_done", "reply")

    def __init__(self) -> None:
        self.is_done = False
        self.reply: object = None


class RingChannel(Channel):
    """A handle on one ring: users' threads append to its inbox and wake the host's thread."""

    session_id: SessionId | None = None

    def open(self) -> None:
        """Begin in the current process."""
        super().open()
        self.inbox: deque[Any] = deque()
        """OnePut, ManyPut, Settle, or a function to be called on the host's thread."""
        self.acks: deque[tuple[Message, Settlement]] = deque()
        """Acks of single messages, which may be many, beside the inbox."""
        self.step_count = 0
        """Number of steps that have begun to read the inbox."""
        self.woken_at = -1
        """`step_count` when the host was last woken, so that one step is woken once. Set after the
        wake-up, to a number of no later step."""
        self.is_refused = False
        """True: the client's key lacks the right, or has lost it."""
        self.ended = Latch()
        """Set when the host's thread has looked for the last time."""
        self.session: Session | None = None
        self.subscriptions: dict[int, Any] = {}
        """Consumers' subscriptions, by number. Changed on the host's thread only."""
        self.holders: dict[int, Any] = {}
        """Consumers without bodies, in the same numbering. On the host's thread only."""

    @abstractmethod
    def transact(
        self,
        bodies: Sequence[bytes],
        properties: Sequence[bytes],
        terms: Terms,
        messages: Sequence[Message],
    ) -> Waits[Confirmation]:
        """Send acks and puts as one op."""

    @abstractmethod
    def knows_credit(self) -> bool:
        """Return true if the master has given its limit, or never will."""

    @property
    def why_closed(self) -> str:
        return "" if self.session is None else self.session.closed

    def check(self) -> None:
        if os.getpid() != self.pid:
            self.on_forked()
        if self.is_refused and self.session is not None:
            raise AuthenticationError(self.session.closed)
        if self.is_closing or self.is_closed or self.host.is_closed:
            why = self.why_closed
            raise ShutDown(f"{self.closed_text()}{why and ': ' + why}")

    def wake(self) -> None:
        step_count = self.step_count
        if self.woken_at != step_count and self.session_id is not None:
            self.host._wake(self.session_id)
            self.woken_at = step_count

    def on_host(self, function: Callable[[], None]) -> None:
        """Have a function called on the host's thread, after all earlier calls."""
        self.inbox.append(function)
        self.wake()

    def stuck_for(self, otherwise: MirrorQError) -> MirrorQError | None:
        access_error = self.host._access_error
        if access_error is not None:
            return access_error
        stuck = self.host._stuck_text
        if self.host.is_paused:
            return NoQuorum(
                f"queue {self.name!r}: {stuck}"
                if stuck
                else f"queue {self.name!r}: {self.host.name} has no contact with a majority "
                "of the cluster. Start more nodes, or mend the network"
            )
        if stuck:
            return QueueDown(f"queue {self.name!r}: {stuck}")
        session = self.session
        if session is not None and not session.available:
            status = self.host._queue_status(self.queue_id)
            # Not by the state, which may be "paused" for a moment when the leader is late.
            why = status.warnings if status.master is None else ()
            return QueueDown(
                f"queue {self.name!r} has no master: "
                + ("; ".join(why) or "no member in sync is running: start the nodes that held it")
            )
        return None

    def why_pending(self, is_put: bool) -> str:
        """Return why there is no outcome yet, "" when not known."""
        why = str(self.why_not(Empty("")))
        return why or (self.host._queue_status(self.queue_id).blocked_by if is_put else "")

    # --- Questions --------------------------------------------------------------------------

    def asking(self, request: AskedRequest, timeout: float) -> Waits[object]:
        answer = self.begin_ask(request)
        until = deadline_of(timeout)
        yield Wait(self.outcomes.signal, lambda: answer.is_done or self.is_closed, until)
        return self.end_ask(answer, timeout)

    def begin_ask(self, request: AskedRequest) -> Answer:
        """Send a question."""
        answer = Answer()
        session = self.session
        assert session is not None
        self.on_host(lambda: session.query(Query(answer, request)))
        return answer

    def end_ask(self, answer: Answer, timeout: float) -> object:
        """Return the reply, or raise the reason for its absence."""
        session = self.session
        assert session is not None
        if answer.reply is not None:
            return answer.reply
        self.check()
        if answer.is_done:
            self.check_right("read")
        if self.is_closed or answer.is_done:
            raise ShutDown(self.closed_text())
        self.on_host(lambda: session.forget_query(answer))
        raise self.why_not(
            QueueDown(f"the master of queue {self.name!r} did not answer for {timeout} s")
        )

    # --- Acks -------------------------------------------------------------------------------

    def ack(self, message: Message) -> Settlement:
        """Ack a message, as `Message.ack`: by far the most frequent settlement."""
        chunk, place = message._chunk, message._index
        if os.getpid() != self.pid or chunk.settled[place]:
            return self.settle("ack", (message,))
        settlement = Settlement(self.outcomes)
        pair = (message, settlement)
        self.acks.append(pair)
        chunk.settled[place] = 1
        if self.is_closed:
            # The host's last look was before or after the append; either way there is an outcome.
            if take_back(self.acks, pair):
                settlement._finish(None, AckRefused(self.closed_text()))
        elif self.woken_at != self.step_count:
            self.wake()
        return settlement

    def extend(self, message: Message, duration_ms: int) -> Settlement:
        """Hold a message longer, as `Message.extend`."""
        if os.getpid() != self.pid:
            self.check()
        settlement = Settlement(self.outcomes)
        item = Extending(message, settlement)
        if message._is_settled:
            item.refuse(acks.AGAIN)
            return settlement

        def offer() -> None:
            item.offer(self.session, duration_ms)

        self.on_host(offer)
        if self.is_closed and take_back(self.inbox, offer):
            # The host has looked for the last time, before or after the append.
            item.refuse(self.closed_text())
        return settlement

    def settle(
        self,
        kind: str,
        messages: Sequence[Message],
        delay_ms: int = 0,
        target: int = 0,
        settlement: Settlement | None = None,
    ) -> Settlement:
        """Ack or release messages together: one outcome for all."""
        if os.getpid() != self.pid:
            self.check()
        settlement = settlement or Settlement(self.outcomes)
        item = Settle(kind, messages, settlement, delay_ms, target)
        if not item.runs:
            self.refuse_again(item)
            return settlement
        self.inbox.append(item)
        item.mark()
        if not self.is_closed:
            self.wake()
            return settlement
        # The host has looked into the inbox for the last time, before or after the append.
        if take_back(self.inbox, item):
            acks.refuse([item], self.closed_text())
        return settlement

    def refuse_again(self, item: Settle) -> None:
        """Refuse a call whose messages were all settled before."""
        item.settlement._finish(None, acks.error_of(item, SettleDone(None, (), "")))
        self.outcomes.notify()
