"""`Handle`: what is behind a `MirroredQueue`: its inbox, its session, and who waits on it.

User threads append to an inbox and wait on outcomes; everything else happens on the thread of
the *host* (a node or a client), which steps the handle: `step` turns calls into requests of
the `session`, and the session's output into outcomes and messages. `publisher`, `receiver` and
`acks` are the three ways through it: of puts, of messages, of acks.

*Threads*: what is said to be the host's is touched by nobody else. An item in the inbox has its
outcome from the host's thread. Who has put one in looks at `_is_closed` after that: the host's
thread sets it before it looks for the last time.

*Interrupts*: no lock is shared with a user's thread, which an exception may leave, or a signal
handler call from, anywhere (`waiting`). A call has an effect by one `append`; what it would do
after that, waking above all, the next call does, or `close`.
"""

from __future__ import annotations

import itertools
import logging
import os
from collections import deque
from collections.abc import Callable, Sequence
from itertools import groupby, islice
from typing import TYPE_CHECKING, Any

from mirrorq.api import acks as settles
from mirrorq.api import exit_flush
from mirrorq.api.acks import Acks, Settle
from mirrorq.api.batching import ManyPut, OnePut, PutRun, runs_of_puts
from mirrorq.api.completion import Outcomes
from mirrorq.api.confirmation import Settlement
from mirrorq.api.host import FORK_LOCK, Declared, Host
from mirrorq.api.message import Message, Run, messages_in, runs_of
from mirrorq.api.publisher import Publisher
from mirrorq.api.receiver import Receiver, chunks_of
from mirrorq.api.staged import StagedPut
from mirrorq.api.transactions import StepPut, step_put
from mirrorq.errors import (
    AckRefused,
    AuthenticationError,
    ConfirmUnknown,
    Empty,
    MirrorQError,
    NoQuorum,
    ProtocolError,
    QueueDown,
    ShutDown,
)
from mirrorq.protocol.sessions import Counts, Deliver, SessionRequest
from mirrorq.protocol.shard_names import split_name
from mirrorq.session.calls import (
    Closed,
    ConsumerFailed,
    Delivered,
    DropBuffered,
    Failed,
    GiveBack,
    LinkLost,
    Output,
    PutCredit,
    Query,
    QueryDone,
    SessionEvent,
    SettleDone,
    Stored,
    inquire_request,
)
from mirrorq.session.machine import Session
from mirrorq.waiting import Latch, Once, take_back

if TYPE_CHECKING:
    from mirrorq.api.consumer import Consumer
    from mirrorq.api.leases import Taker
    from mirrorq.config import Config
    from mirrorq.protocol.identities import SessionId

__all__ = ["ASK_S", "CLOSE_S", "FLUSH_S", "Answer", "Handle"]

log = logging.getLogger("mirrorq")

CLOSE_S = 5.0
"""close() ends within this."""
FLUSH_S = 4.0
"""Part of it that is for outcomes to come."""
ASK_S = 5.0
"""A question waits so long for the master before it says what is wrong."""


class Answer:
    """One Query's answer, waited for by one caller."""

    __slots__ = ("is_done", "reply")

    def __init__(self) -> None:
        self.is_done = False
        self.reply: object = None


class Handle:
    """One handle, as its host and its own parts see it."""

    name: str
    """The queue's name."""
    _session_id: SessionId | None = None

    def _open(self, host: Host, declared: Declared, name: str) -> None:
        self.name = name
        self._shard: int | None
        self._queue_name, self._shard = split_name(name) or (name, None)
        """The name that users know, and of which shard this is the handle."""
        self._host = host
        self._queue_id = queue_id = declared.queue_id
        self._refusals = declared.refusals
        self._config = self._own_config(host)
        self._pid = os.getpid()
        self._outcomes = self._own_outcomes()
        self._outcomes.why_open = self._why_open
        self._inbox: deque[Any] = deque()
        """OnePut, ManyPut, Settle, or a function to be called on the host's thread."""
        self._acks: deque[tuple[Message, Settlement]] = deque()
        """Beside it: acks of single messages, of which there may be many."""
        self._step_count = 0
        """Steps that have begun, as far as they look into the inbox."""
        self._woken_at = -1
        """`_step_count` when the host was last woken: it is not woken twice for one step. Set
        after that is done, to a number that no later step has."""
        self._is_shut = False
        """No puts any more; gets until the queue is empty."""
        self._is_shut_for_gets = False
        self._is_closing = False
        self._is_closed = False
        """Set by the host's thread: what comes into the inbox after it has no outcome."""
        self._is_deleted = False
        """The queue is no more."""
        self._is_refused = False
        """The client's key does not allow it (any more)."""
        self._close_reason = ""
        self._ended = Latch()
        self._closing = Once(self._close)
        self._publisher = self._own_publisher()
        self._receiver = Receiver(self)
        self._consumers: dict[int, Consumer] = {}
        """Changed on the host's thread only."""
        self._takers: dict[int, Taker] = {}
        """Consumers that get no bodies; numbered with the others. On the host's thread only."""
        self._consumer_numbers = itertools.count(1)
        self._session: Session | None = None
        self._events_due: list[SessionEvent] = []
        self._session_id = session_id = host.open_session(self, queue_id, declared.owner)
        self._session = Session(session_id, queue_id, self._config)
        host.wake(session_id)
        self._remember()

    def _remember(self) -> None:
        """A process that ends before this is closed waits for its outcomes."""
        exit_flush.remember(self)

    def _own_config(self, host: Host) -> Config:
        return host.config

    def _own_outcomes(self) -> Outcomes:
        return Outcomes(self._shard)

    def _own_publisher(self) -> Publisher:
        return Publisher(self)

    # --- The host's thread ----------------------------------------------------------------

    def step(
        self, now_ms: int, events: Sequence[SessionEvent]
    ) -> tuple[tuple[SessionRequest, ...], int | None]:
        """Called by the host: take events and users' calls; return requests and a time."""
        session = self._session
        if session is None:
            self._events_due.extend(events)
            return (), None if self._is_closing else now_ms + 1
        if self._events_due or self._close_reason:
            events = [*self._events_due, *events]
            self._events_due = []
            if self._close_reason:
                events.append(Closed(self._close_reason))
        self._step_count += 1
        is_deleted = any(isinstance(event, Closed) and event.deleted for event in events)
        self._is_deleted |= is_deleted
        is_cancelled = is_deleted or any(
            isinstance(event, Closed) and event.cancels for event in events
        )
        self._is_refused |= any(isinstance(event, Closed) and event.refused for event in events)
        open_before = session.unconfirmed_count, session.unconfirmed_bytes
        outputs = session.step(now_ms, events)
        ended_count = open_before[0] - session.unconfirmed_count
        ended_size = open_before[1] - session.unconfirmed_bytes
        if not session.closed:
            self._drain(session)
        if outputs:
            for output in outputs:
                # Before answers: who has asked after subscribing looks for a refusal then.
                if isinstance(output, ConsumerFailed):
                    self._on_consumer_failed(output)
            self._end(outputs, ended_count, ended_size)
            self._take(session, outputs)
        session.complete_attach()
        self._receiver.fetch(session, now_ms)
        for consumer in self._consumers.values():
            session.want(consumer.number, consumer.unsettled, consumer.prefetch)
        for taker in self._takers.values():
            session.want(taker.number, taker.held_in(session.epoch), taker.wanted)
        if session.closed:
            self._on_closed(session, is_cancelled)
        requests = session.flush(now_ms)
        wake_ms, idle_ms = session.wake_at_ms(), self._receiver.idle_at_ms
        if idle_ms is not None and (wake_ms is None or idle_ms < wake_ms):
            wake_ms = idle_ms
        return requests, wake_ms

    def _drain(self, session: Session) -> None:
        """Turn what users have called since the last step into calls of the session."""
        puts: list[PutRun | ManyPut] = []
        settled: list[Settle | Acks] = []
        functions: list[Callable[[], None]] = []
        for kind, items in groupby(self._take_inbox(), type):
            if kind is OnePut:
                puts += self._taken_runs(list(items))
                continue
            for item in items:
                if kind is ManyPut:
                    self._publisher.count_taken(item)
                    puts.append(item)
                elif kind is StepPut:
                    self._publisher.count_taken(item)
                    # In the order of calls: what was put before it is stored before it.
                    self._publisher.offer(session, puts)
                    puts = []
                    self._offer_step(session, item)
                elif kind is StagedPut:
                    self._publisher.count_taken(item)
                    session.put(item.batch())
                elif kind is Settle:
                    item.take()
                    if item.runs:
                        settled.append(item)
                    else:
                        self._refuse_again(item)
                else:
                    functions.append(item)
        if puts:
            self._publisher.offer(session, puts)
        self._publisher.correct()
        if self._acks and (acks := self._take_acks()).runs:
            settled.append(acks)
        if settled:
            self._offer_settles(session, settled)
        for function in functions:
            function()
        if functions and self._outcomes.waiters:
            # Who waits until nothing is open any more, close() and the process' end, may go on.
            self._outcomes.notify()

    def _take_inbox(self) -> list[Any]:
        """What is in it now; a user may take out again what he has just put in."""
        items: list[Any] = []
        try:
            items += islice(iter(self._inbox.popleft, None), len(self._inbox))
        except IndexError:
            return items
        return items

    def _refuse_again(self, item: Settle) -> None:
        """All that it settles was settled before."""
        item.settlement._finish(None, settles.error_of(item, SettleDone(None, (), "")))
        self._outcomes.notify()

    def _taken_runs(self, puts: list[OnePut]) -> list[PutRun]:
        runs = runs_of_puts(puts)
        for run in runs:
            self._publisher.count_taken(run)
        return runs

    def _take_acks(self) -> Acks:
        take = self._acks.popleft
        return Acks([take() for _ in range(len(self._acks))])

    def _offer_step(self, session: Session, item: StepPut) -> None:
        for run in runs_of(item.messages):
            run.chunk.take(run.start, run.stop)
        item.messages = self._settled_now(session, item.messages)
        session.put(step_put(item))

    def _settled_now(self, session: Session, messages: Sequence[Message]) -> list[Message]:
        """The deliveries by which these are settled; their consumers may be given others."""
        newest = [self._newest(session, message) for message in messages]
        self._release_runs([*runs_of(messages), *runs_of(newest)])
        return newest

    def _offer_settles(self, session: Session, settled: list[Settle | Acks]) -> None:
        for item in settled:
            self._release_runs(item.runs)
            if any(run.chunk.handout.epoch != session.epoch for run in item.runs):
                item.runs = runs_of([self._newest(session, one) for one in messages_in(item.runs)])
                self._release_runs(item.runs)
        settles.offer(session, settled)

    def _release_runs(self, runs: Sequence[Run]) -> None:
        """Their consumers may be given others."""
        for run in runs if self._consumers else ():
            consumer = self._consumers.get(run.chunk.consumer)
            if consumer is not None:
                consumer._release(run)

    def _newest(self, session: Session, message: Message) -> Message:
        """The delivery by which a message is settled.

        After a failover the new master may have handed a message that its user still holds to
        this same handle again, before the ack came. As long as no call has returned that one,
        the ack is meant for it too.
        """
        if message._chunk.handout.epoch == session.epoch:
            return message
        again = self._receiver.reclaim(message)
        for consumer in self._consumers.values():
            again = again or consumer.reclaim(message)
        return again or message

    def _end(self, outputs: list[Output], ended_count: int, ended_size: int) -> None:
        """Tell users' threads what has an outcome."""
        puts = [output for output in outputs if isinstance(output, Stored | Failed)]
        self._publisher.end(puts)
        self._publisher.note_over(ended_count, ended_size)
        for output in outputs:
            if isinstance(output, SettleDone):
                settles.finish(output)
            elif isinstance(output, QueryDone):
                answer = output.token
                assert isinstance(answer, Answer)
                answer.reply = output.reply
                answer.is_done = True
            elif isinstance(output, PutCredit):
                self._publisher.credit = output
        self._outcomes.notify()

    def _take(self, session: Session, outputs: list[Output]) -> None:
        """Messages, and what became of them."""
        for output in outputs:
            match output:
                case Delivered():
                    self._on_deliver(session, output.deliver)
                case DropBuffered():
                    self._drop_buffered(session, output.failover)
                case GiveBack():
                    self._receiver.give_back(session)
                    session.recalled(output.number)

    def _on_deliver(self, session: Session, deliver: Deliver) -> None:
        if deliver.bare:
            taker = self._takers.get(deliver.consumer)
            if taker is not None:
                taker.take(session, deliver.handouts)
            else:
                session.give_back(deliver.handouts)
            return
        if deliver.consumer and deliver.consumer not in self._consumers:
            # It was cancelled in this very step: the session had it still.
            session.give_back(deliver.handouts)
            return
        try:
            chunks = chunks_of(self, deliver.consumer, deliver.handouts, deliver.frames)
        except ProtocolError as error:
            log.error("queue %s: a delivery was damaged on its way: %s", self.name, error)
            session.drop(deliver.handouts)
            # What is not held goes back to the queue, and comes again, when we attach again.
            self._events_due.append(LinkLost())
            self._wake()
            return
        if not deliver.consumer:
            self._receiver.feed(chunks, sum(map(len, deliver.frames)))
            return
        self._consumers[deliver.consumer]._feed(chunks)

    def _drop_buffered(self, session: Session, failover: bool) -> None:
        self._receiver.drop(session)
        for consumer in list(self._consumers.values()):
            session.drop(consumer._drop())
            if failover and consumer.cancel_on_failover:
                consumer._cancelled()
                session.unsubscribe(consumer.number)

    def _on_consumer_failed(self, failed: ConsumerFailed) -> None:
        if not failed.number:
            self._receiver.on_refused(failed.why)
            return
        taker = self._takers.get(failed.number)
        if taker is not None:
            taker.refuse(failed.why)
            return
        consumer = self._consumers.pop(failed.number, None)
        if consumer is not None:
            log.warning("consumer of queue %s refused: %s", self.name, failed.why)
            consumer._refuse(failed.why)

    def _on_closed(self, session: Session, is_cancelled: bool) -> None:
        """End what is in the inbox; the first time also all who wait."""
        why = f"the handle on queue {self.name!r} is closed: {session.closed}"
        functions: list[Callable[[], None]] = []
        is_first = not self._is_closed
        self._is_closed = True
        for item in self._take_inbox():
            if isinstance(item, PutRun):
                for confirmation in item.confirmations:
                    confirmation._finish(None, ConfirmUnknown(why))
            elif isinstance(item, OnePut | ManyPut | StepPut | StagedPut):
                item.confirmation._finish(None, ConfirmUnknown(why))
            elif isinstance(item, Settle):
                settles.refuse([item], why)
            else:
                functions.append(item)
        if self._acks:
            self._take_acks().refuse(why)
        self._publisher.end_all()
        self._outcomes.notify()
        for function in functions:
            function()
        if not is_first:
            return
        self._receiver.notify()
        for consumer in list(self._consumers.values()):
            if is_cancelled:
                consumer.refused = session.closed
                consumer._cancelled()
            else:
                consumer._end()
            consumer._buffer.clear()
        # Messages are not looked at by the collector: nothing here refers to them any more.
        self._consumers.clear()
        self._ended.set()
        if self._close_reason and self._session_id is not None:
            self._host.close_session(self._session_id)

    # --- Users' threads: what all calls share ---------------------------------------------

    def _check(self) -> None:
        if os.getpid() != self._pid:
            self._on_forked()
        if self._is_refused and self._session is not None:
            raise AuthenticationError(self._session.closed)
        if self._is_closing or self._is_closed or self._host.closed():
            why = "" if self._session is None else self._session.closed
            raise ShutDown(f"the handle on queue {self.name!r} is closed{why and ': ' + why}")

    def _closed_text(self) -> str:
        return f"the handle on queue {self.name!r} is closed"

    def _next_consumer(self) -> int:
        """A number for a consumer or a taker, of its own in this handle."""
        return next(self._consumer_numbers)

    def _check_right(self, right: str) -> None:
        """What the key does not allow is refused here; a node would end the session."""
        why = self._refusals.get(right)
        if why:
            raise AuthenticationError(why)

    def _on_forked(self) -> None:
        """First use in a child: nothing of the parent's threads and locks works here."""
        if not self._host.survives_fork:
            raise MirrorQError(
                f"the handle on queue {self.name!r} was made in process {self._pid}; this is "
                f"process {os.getpid()}, forked from it: open the queue in the child"
            )
        with FORK_LOCK:
            if os.getpid() != self._pid and not (self._is_closing or self._is_closed):
                declared = Declared(self._queue_id, refusals=self._refusals)
                self._open(self._host, declared, self.name)

    def _check_open_for_puts(self, right: str = "write") -> None:
        """`right`: that is needed here; a step that only acks here needs another."""
        self._check()
        self._check_right(right)
        if self._is_shut:
            raise ShutDown(f"the handle on queue {self.name!r} was shut down: it takes no puts")

    def _check_open_for_gets(self) -> None:
        self._check()
        if self._refusals:
            self._check_right("read")
        if self._is_shut_for_gets:
            raise ShutDown(f"the handle on queue {self.name!r} was shut down")

    def _wake(self) -> None:
        step_count = self._step_count
        if self._woken_at != step_count and self._session_id is not None:
            self._host.wake(self._session_id)
            self._woken_at = step_count

    def _why_not(self, otherwise: MirrorQError) -> MirrorQError:
        """The reason for a time-out."""
        stuck = self._host.stuck_text
        if self._host.is_paused():
            return NoQuorum(
                f"queue {self.name!r}: {stuck}"
                if stuck
                else f"queue {self.name!r}: node {self._host.name} has no contact with a majority "
                "of the cluster. Start more nodes, or mend the network"
            )
        if stuck:
            return QueueDown(f"queue {self.name!r}: {stuck}")
        session = self._session
        if session is not None and not session.available:
            status = self._host.status(self._queue_id)
            why = status.warnings if status.state == "down" else ()
            return QueueDown(
                f"queue {self.name!r} has no master: "
                + ("; ".join(why) or "no member in sync is running: start the nodes that held it")
            )
        return otherwise

    def _why_open(self, is_put: bool) -> str:
        """Why there is no outcome yet, "" when that is not known."""
        why = str(self._why_not(Empty("")))
        if why or not is_put:
            return why
        return self._host.status(self._queue_id).blocked_by or self._publisher.waits_for

    def _on_host(self, function: Callable[[], None]) -> None:
        self._inbox.append(function)
        self._wake()

    def _ask(
        self,
        request: Callable[[int], Any],
        timeout: float,
        first: Callable[[], None] | None = None,
    ) -> object:
        """A question to the master; `first` is called just before it is sent.

        Raises:
            NoQuorum, QueueDown: no answer in time, and why.
        """
        answer = self._begin_ask(request, first)
        self._outcomes.wait_for(lambda: answer.is_done or self._is_closed, timeout)
        return self._end_ask(answer, timeout)

    def _begin_ask(
        self, request: Callable[[int], Any], first: Callable[[], None] | None = None
    ) -> Answer:
        answer = Answer()
        session = self._session
        assert session is not None

        def begin() -> None:
            if first is not None:
                first()
            session.query(Query(answer, request))

        self._on_host(begin)
        return answer

    def _end_ask(self, answer: Answer, timeout: float) -> object:
        """The reply, or why there is none."""
        session = self._session
        assert session is not None
        if answer.reply is not None:
            return answer.reply
        self._check()
        if self._is_closed or answer.is_done:
            raise ShutDown(f"the handle on queue {self.name!r} is closed")
        self._on_host(lambda: session.forget_query(answer))
        raise self._why_not(
            QueueDown(f"the master of queue {self.name!r} did not answer for {timeout} s")
        )

    def _counts(self, timeout: float = ASK_S) -> Counts:
        reply = self._ask(inquire_request, timeout)
        assert isinstance(reply, Counts)
        return reply

    def _take_one(self, found: list[Message]) -> None:
        """Take the next message that is here, if one is: the quickest way of a get."""
        if (
            self._is_shut_for_gets
            or self._is_closing
            or self._is_closed
            or self._is_refused
            or self._refusals
            or os.getpid() != self._pid
        ):
            # Not asked each time is the host: when it ends, it ends its handles.
            self._check_open_for_gets()
        self._receiver.take_one(found)

    def _unsee(self, found: Sequence[Message]) -> None:
        """A call was interrupted before it has returned these."""
        for source, messages in groupby(found, lambda message: message._chunk.handle):
            source._receiver.put_back(list(messages))
            source._on_host(source._drop_stale)

    def _drop_stale(self) -> None:
        if self._session is not None:
            self._receiver.drop_stale(self._session)

    def _ack(self, message: Message) -> Settlement:
        """`Message.ack`: by far the most frequent way to settle."""
        chunk, place = message._chunk, message._index
        if os.getpid() != self._pid or chunk.settled[place]:
            return self._settle("ack", (message,))
        settlement = Settlement(self._outcomes)
        pair = (message, settlement)
        self._acks.append(pair)
        chunk.settled[place] = 1
        if self._is_closed:
            # The host has looked for the last time, before or after this: then it has an outcome.
            if take_back(self._acks, pair):
                settlement._finish(None, AckRefused(self._closed_text()))
        elif self._woken_at != self._step_count:
            self._wake()
        return settlement

    def _settle(
        self,
        kind: str,
        messages: Sequence[Message],
        delay_ms: int = 0,
        target: int = 0,
        settlement: Settlement | None = None,
    ) -> Settlement:
        if os.getpid() != self._pid:
            self._check()
        settlement = settlement or Settlement(self._outcomes)
        item = Settle(kind, messages, settlement, delay_ms, target)
        if not item.runs:
            self._refuse_again(item)
            return settlement
        self._inbox.append(item)
        item.mark()
        if not self._is_closed:
            self._wake()
            return settlement
        # The host has looked into the inbox for the last time, before or after this item.
        if take_back(self._inbox, item):
            settles.refuse([item], self._closed_text())
        return settlement

    # --- The end --------------------------------------------------------------------------

    def _is_quiet(self) -> bool:
        session = self._session
        is_empty = not self._inbox and not self._acks
        return self._is_closed or (session is not None and session.is_idle and is_empty)

    def _close(self) -> None:
        """What `close` does, once, on a thread that nothing interrupts."""
        raise NotImplementedError

    def _abandon(self) -> None:
        """Nobody will have this handle: who made it was interrupted."""
        self._is_closing = True
        exit_flush.forget(self)
        if self._session_id is not None:
            self._host.close_session(self._session_id)

    def _end_session(self) -> None:
        """Say good-bye to the master, then end what is open."""
        self._detach()
        self._ended.wait(CLOSE_S - FLUSH_S)

    def _detach(self) -> None:
        session = self._session
        assert session is not None

        def detach() -> None:
            self._receiver.give_back(session, keep=0)
            session.detach()
            self._close_reason = "it was closed by its user"
            self._wake()

        self._on_host(detach)
