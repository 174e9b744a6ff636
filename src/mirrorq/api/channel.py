"""`Channel` and `RingChannel`: the state and calls that the parts of a handle share.

A handle consists of a publisher, a receiver, consumers, leases and messages. They know each other
only through the channel. It tells which calls are still allowed, takes calls for the host's thread,
and tells when a call has ended.

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

from mirrorq import clock
from mirrorq.api import acks, exit_flush
from mirrorq.api.acks import Extending, Settle
from mirrorq.api.arguments import checked_body
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
"""close() ends within this."""
FLUSH_S = 4.0
"""Part of it that is for outcomes to come."""
PAUSED_S = 1.0
"""The same where nobody serves: a client whose node is gone is served by another within moments."""
ASK_S = 5.0
"""A question waits so long for the master before it says what is wrong."""
FIRST_S = 1.0
"""A handle's first call waits so long for the master's first word, so that it knows a limit."""

STUCK: tuple[tuple[type[MirrorQError], type[MirrorQError], type[MirrorQError]], ...] = (
    (Empty, NoQuorum, EmptyNoQuorum),
    (Empty, QueueDown, EmptyQueueDown),
    (Full, NoQuorum, FullNoQuorum),
    (Full, QueueDown, FullQueueDown),
)
"""The error that is both: of a call that ran out of time, and of what holds up the queue."""

AskedRequest = Callable[[int], Request]
"""Makes a request of its number."""


def share(bound: int, shards: int) -> int:
    """One shard's part of a bound that is the whole handle's, at least 1."""
    return max(-(-bound // shards), 1)


def _nothing() -> None:
    """What a handle on somebody else's host releases."""


def _itself(channel: Channel) -> object:
    """A handle that users do not see has no other face."""
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
    """The queue's name."""
    queue_name: str
    """The name that users know: of a shard that of the whole queue."""
    shard: int | None
    """Of which shard this is the handle."""
    shards: int
    """How many shards the queue has; 0: it is not sharded."""

    def __init__(self, host: Host, declared: Declared, name: str) -> None:
        self.name = name
        self.queue_name, self.shard = split_name(name) or (name, None)
        self.ring_ids = declared.shards
        """Ids of the shards' rings; () where it is not sharded."""
        self.shards = len(declared.shards)
        self.host = host
        self.queue_id = declared.queue_id
        self.refusals = declared.refusals
        self.config = host.config
        self.release: Callable[[], None] = _nothing
        """Called when the handle is closed: the node that came with it may be closed too."""
        self.is_closing = False
        self._face: Callable[[], object] = _nothing
        self._make_face: Callable[[Channel], object] = _itself

    def _own_outcomes(self) -> Outcomes:
        return Outcomes(self.shard)

    def open(self) -> None:
        """Begin, in this process: the first time, or in a forked child."""
        self.pid = os.getpid()
        self.outcomes = self._own_outcomes()
        self.is_shut = False
        """No puts any more; gets until the queue is empty."""
        self.is_shut_for_gets = False
        self.is_closing = False
        self.is_closed = False
        """Nobody serves it any more: it was closed, or the queue deleted."""
        self.is_deleted = False
        """The queue is no more."""
        self.consumers: dict[int, Any] = {}
        """Those of its users, by number, to be cancelled when it is closed."""
        self.consumer_numbers = itertools.count(1)
        self.closing = Once(self._close)

    # --- What each kind does in its own way -------------------------------------------------

    @property
    @abstractmethod
    def why_closed(self) -> str:
        """Why it is closed, as far as that is known."""

    @abstractmethod
    def check(self) -> None:
        """Raise ShutDown, AuthenticationError when calls are of no use any more."""

    @abstractmethod
    def wake(self) -> None:
        """Have the host's thread look soon."""

    @abstractmethod
    def rings(self) -> Sequence[RingChannel]:
        """The rings that are served: of a sharded queue several."""

    @abstractmethod
    def ring_for(self, call: str) -> RingChannel:
        """The one ring that a call is of. Raises PreconditionFailed where there are several."""

    @abstractmethod
    def part_of(self, key: str | bytes | None) -> RingChannel:
        """The ring that takes a message with this key."""

    @abstractmethod
    def source_of(self, message: Message) -> RingChannel | None:
        """The ring that a message is held by, if that is this one or a part of it."""

    @abstractmethod
    def stuck_for(self, otherwise: MirrorQError) -> MirrorQError | None:
        """What holds up the queue, or this process's way to it; None if nothing does.

        Args:
            otherwise: the error of the call that waits: an `Empty` for a get, else for a put.
        """

    def why_not(self, otherwise: MirrorQError) -> MirrorQError:
        """The error of a call that has run out of time: `otherwise`, unless the queue is held up.

        It is an Empty where `otherwise` is one, and a Full likewise: loops that were written for
        `queue.Queue` outlive a failover.
        """
        why = self.stuck_for(otherwise)
        for kind, reason, both in STUCK:
            if isinstance(otherwise, kind) and isinstance(why, reason):
                return both(str(why))
        return why or otherwise

    @abstractmethod
    def asking(self, request: AskedRequest, timeout: float) -> Waits[object]:
        """A question to the master.

        Raises:
            NoQuorum, QueueDown: no answer in time, and why.
        """

    @abstractmethod
    def is_quiet(self) -> bool:
        """Whether everything that was called has an outcome."""

    @abstractmethod
    def begin_close(self, callers: set[int]) -> None:
        """Let nobody begin anything more; `callers` wait for this."""

    @abstractmethod
    def end_session(self) -> None:
        """Say good-bye to the master, then end what is open."""

    @abstractmethod
    def abandon(self) -> None:
        """Nobody will have this handle: who made it was interrupted."""

    # --- What all calls share ---------------------------------------------------------------

    def show_as(self, face: object, make: Callable[[Channel], object]) -> None:
        """Users hold this as `face`; `make` gives them another one when they have dropped it."""
        self._face, self._make_face = ref(face), make

    @property
    def face(self) -> Any:
        """What users hold: a `MirroredQueue`."""
        known = self._face()
        return self._make_face(self) if known is None else known

    def next_consumer(self) -> int:
        """A number for a consumer or a holder, of its own in this handle."""
        return next(self.consumer_numbers)

    def closed_text(self) -> str:
        """What is told to who calls after the end."""
        return f"the handle on queue {self.name!r} is closed"

    def check_right(self, right: str) -> None:
        """What the key does not allow is refused here; a node would end the session."""
        why = self.refusals.get(right)
        if why:
            raise AuthenticationError(why)

    def checked_body(self, body: bytes | bytearray | memoryview, properties: bytes = b"") -> bytes:
        """The body as bytes of its own, of a message within this handle's limit."""
        return checked_body(body, properties, self.config.message_bytes_max)

    def check_open_for_puts(self, right: str = "write") -> None:
        """`right`: that is needed here; a step that only acks here needs another."""
        self.check()
        self.check_right(right)
        if self.is_shut:
            raise ShutDown(f"the handle on queue {self.name!r} was shut down: it takes no puts")

    def check_open_for_gets(self) -> None:
        """Raise ShutDown, AuthenticationError when get() is of no use any more."""
        self.check()
        if self.refusals:
            self.check_right("read")
        if self.is_shut_for_gets:
            raise ShutDown(f"the handle on queue {self.name!r} was shut down")

    def on_forked(self) -> None:
        """First use in a child: nothing of the parent's threads and locks works here."""
        if not self.host._survives_fork:
            raise MirrorQError(
                f"the handle on queue {self.name!r} was made in process {self.pid}; this is "
                f"process {os.getpid()}, forked from it: open the queue in the child"
            )
        with FORK_LOCK:
            if os.getpid() != self.pid and not (self.is_closing or self.is_closed):
                self.open()

    def ask(self, request: AskedRequest, timeout: float = ASK_S) -> object:
        """As `asking`, with this thread."""
        return in_thread(self.asking(request, timeout))

    def counting(self, timeout: float = ASK_S) -> Waits[Counts]:
        """Ask the master what there is."""
        reply = yield from self.asking(inquire_request, timeout)
        assert isinstance(reply, Counts)
        return reply

    def counts(self, timeout: float = ASK_S) -> Counts:
        """As `counting`, with this thread."""
        return in_thread(self.counting(timeout))

    # --- The end ------------------------------------------------------------------------------

    def close(self) -> None:
        """What `MirroredQueue.close` does. Interrupted it goes on by itself."""
        if os.getpid() != self.pid:
            return
        self.is_closing = True
        self.closing.run()

    def _close(self) -> None:
        """The same, once, on a thread that nothing interrupts."""
        self.begin_close(self.closing.callers)
        if not self.is_closed and not self.host.is_closed:
            self.outcomes.wait_for(self.is_quiet, PAUSED_S if self.host.is_paused else FLUSH_S)
            self.end_session()
        self.outcomes.close(CLOSE_S - FLUSH_S, self.closing.callers)
        exit_flush.forget(self)
        self.release()


class Answer:
    """One question's answer, waited for by one caller, noted on the host's thread."""

    __slots__ = ("is_done", "reply")

    def __init__(self) -> None:
        self.is_done = False
        self.reply: object = None


class RingChannel(Channel):
    """A handle on one ring: users' threads append to its inbox and wake the host's thread."""

    session_id: SessionId | None = None

    def open(self) -> None:
        """Begin, in this process."""
        super().open()
        self.inbox: deque[Any] = deque()
        """OnePut, ManyPut, Settle, or a function to be called on the host's thread."""
        self.acks: deque[tuple[Message, Settlement]] = deque()
        """Beside it: acks of single messages, of which there may be many."""
        self.step_count = 0
        """Steps that have begun, as far as they look into the inbox."""
        self.woken_at = -1
        """`step_count` when the host was last woken: it is not woken twice for one step. Set
        after that is done, to a number that no later step has."""
        self.is_refused = False
        """The client's key does not allow it (any more)."""
        self.ended = Latch()
        """The host's thread has looked for the last time."""
        self.session: Session | None = None
        self.subscriptions: dict[int, Any] = {}
        """Places of consumers, by number. Changed on the host's thread only."""
        self.holders: dict[int, Any] = {}
        """Consumers that get no bodies; numbered with the others. On the host's thread only."""

    @abstractmethod
    def transact(
        self,
        bodies: Sequence[bytes],
        properties: Sequence[bytes],
        terms: Terms,
        messages: Sequence[Message],
    ) -> Waits[Confirmation]:
        """Send acks and puts that are one op."""

    @abstractmethod
    def knows_credit(self) -> bool:
        """Whether the master has said how much the queue takes, or never will."""

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
        """Have a function called on the host's thread, after all that was called before."""
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
                else f"queue {self.name!r}: node {self.host.name} has no contact with a majority "
                "of the cluster. Start more nodes, or mend the network"
            )
        if stuck:
            return QueueDown(f"queue {self.name!r}: {stuck}")
        session = self.session
        if session is not None and not session.available:
            status = self.host._queue_status(self.queue_id)
            # Not by its state: for a moment that may be "paused" when the leader is late.
            why = status.warnings if status.master is None else ()
            return QueueDown(
                f"queue {self.name!r} has no master: "
                + ("; ".join(why) or "no member in sync is running: start the nodes that held it")
            )
        return None

    def why_pending(self, is_put: bool) -> str:
        """Why there is no outcome yet, "" when that is not known."""
        why = str(self.why_not(Empty("")))
        return why or (self.host._queue_status(self.queue_id).blocked_by if is_put else "")

    # --- Questions --------------------------------------------------------------------------

    def asking(self, request: AskedRequest, timeout: float) -> Waits[object]:
        answer = self.begin_ask(request)
        until = clock.monotonic() + timeout
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
        """The reply, or why there is none."""
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
        """`Message.ack`: by far the most frequent way to settle."""
        chunk, place = message._chunk, message._index
        if os.getpid() != self.pid or chunk.settled[place]:
            return self.settle("ack", (message,))
        settlement = Settlement(self.outcomes)
        pair = (message, settlement)
        self.acks.append(pair)
        chunk.settled[place] = 1
        if self.is_closed:
            # The host has looked for the last time, before or after this: then it has an outcome.
            if take_back(self.acks, pair):
                settlement._finish(None, AckRefused(self.closed_text()))
        elif self.woken_at != self.step_count:
            self.wake()
        return settlement

    def extend(self, message: Message, duration_ms: int) -> Settlement:
        """`Message.extend`."""
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
            # The host has looked for the last time, before or after this.
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
        """Ack messages, or give them back, together: one outcome for all."""
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
        # The host has looked into the inbox for the last time, before or after this item.
        if take_back(self.inbox, item):
            acks.refuse([item], self.closed_text())
        return settlement

    def refuse_again(self, item: Settle) -> None:
        """All that it settles was settled before."""
        item.settlement._finish(None, acks.error_of(item, SettleDone(None, (), "")))
        self.outcomes.notify()
