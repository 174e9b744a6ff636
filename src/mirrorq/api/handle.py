"""`Handle`: the object behind a `MirroredQueue` on one ring, with a session and three parts.

User threads append to an inbox and wait on outcomes (`channel`). Everything else happens on the
thread of the *host* (a node or a client), which steps the handle. `step` turns calls into requests
of the `session`, and the session's output into outcomes and messages. `publisher`, `receiver` and
`acks` are the three parts: for puts, for messages, for acks.

*Threads*: state of the host's thread is not touched by any other thread.

*Interrupts*: no lock is shared with a user's thread. An exception may end a user's call anywhere,
and a signal handler may make calls anywhere (`waiting`). A call has an effect by one `append`. Its
later work, above all waking, is done by the next call or by `close`.
"""

from __future__ import annotations

import itertools
import logging
import os
from collections.abc import Callable, Sequence
from itertools import groupby, islice
from typing import Any

from mirrorq.api import acks, exit_flush
from mirrorq.api.acks import Acks, Settle
from mirrorq.api.arguments import check_timeout, not_a_message
from mirrorq.api.batching import ManyPut, OnePut, OwnBatch, PutRun, runs_of_puts
from mirrorq.api.channel import ASK_S, CLOSE_S, FLUSH_S, Answer, RingChannel
from mirrorq.api.confirmation import Confirmation, Settlement
from mirrorq.api.consumer import RingSubscription
from mirrorq.api.host import Declared, Host
from mirrorq.api.lease_holder import LeaseHolder
from mirrorq.api.message import Message, MessageRun, Target, messages_in, runs_of
from mirrorq.api.prefetch_buffer import Backlog
from mirrorq.api.publish_options import Terms
from mirrorq.api.publisher import OnConfirm, Publisher, PutCall, confirmation_of
from mirrorq.api.receiver import Receiver, chunks_of
from mirrorq.api.transactions import StepPut, step_put
from mirrorq.api.waits import Waits, in_thread
from mirrorq.containers.timers import earliest
from mirrorq.errors import AuthenticationError, ConfirmUnknown, ProtocolError, QueueNotFound
from mirrorq.protocol.sessions import Browsed, Deliver, Delivery, SessionRequest
from mirrorq.protocol.shard_names import shard_of
from mirrorq.session import calls
from mirrorq.session.machine import Session

log = logging.getLogger("mirrorq")

HELD_TEXT = (
    "the handle on queue %s is closed with %d message(s) that get() or a consumer gave out and "
    "nobody acked: they go back, and come again"
)
BROWSE_PAGE = 1000
"""Messages per request of browse()."""


class Handle(RingChannel):
    """A handle on one ring. Held by its face, or by the handle on a sharded queue. The host steps
    the handle on its thread; all other calls come from users' threads."""

    subscriptions: dict[int, RingSubscription]
    holders: dict[int, LeaseHolder]
    identity: tuple[int, int] = (0, 0)
    """A permanent producer id of the caller, and its next number; 0: the queue gives an id."""

    def __init__(self, host: Host, declared: Declared, name: str) -> None:
        """Make a handle that its host does not know before `open`."""
        super().__init__(host, declared, name)
        self._owner = declared.owner

    def open(self) -> None:
        """Begin in the current process."""
        super().open()
        self.outcomes.why_open = self._why_open
        self._close_reason = ""
        self._is_leaving = False
        backlog = Backlog()
        self.puts = self._own_publisher(backlog)
        self.receiver = Receiver(self, self.puts, backlog)
        self._events_due: list[calls.SessionEvent] = []
        owner, self._owner = self._owner, None
        self.session_id = session_id = self.host._open_session(self, self.queue_id, owner)
        producer, first_number = self.identity
        self.session = Session(session_id, self.queue_id, self.config, producer=producer)
        if producer:
            self.session.go_on_from(first_number)
        self.host._wake(session_id)
        self._remember()

    def _remember(self) -> None:
        """Have the end of the process wait for the handle's outcomes."""
        exit_flush.remember(self)

    def _own_publisher(self, backlog: Backlog) -> Publisher:
        return Publisher(self, backlog.count)

    def rings(self) -> Sequence[Handle]:
        return (self,)

    def ring_for(self, call: str) -> Handle:
        return self

    def part_of(self, key: str | bytes | None) -> Handle:
        return self

    def source_of(self, message: Message) -> Handle | None:
        return self if message._chunk.handle is self else None

    # --- The host's thread ----------------------------------------------------------------

    def step(
        self, now_ms: int, events: Sequence[calls.SessionEvent]
    ) -> tuple[tuple[SessionRequest, ...], int | None]:
        """Called by the host: take events and users' calls; return requests and a time."""
        session = self.session
        if session is None:
            self._events_due.extend(events)
            return (), None if self.is_closing else now_ms + 1
        if self._events_due or self._close_reason:
            events = [*self._events_due, *events]
            self._events_due = []
            if self._close_reason:
                events.append(calls.Closed(self._close_reason))
        self.step_count += 1
        is_cancelled = bool(events) and self._note_ends(events)
        count_before, bytes_before = session.unconfirmed_count, session.unconfirmed_bytes
        outputs = session.step(now_ms, events)
        ended_count = count_before - session.unconfirmed_count
        ended_size = bytes_before - session.unconfirmed_bytes
        if not session.closed:
            self._drain(session)
        if outputs:
            for output in outputs:
                # Before answers: a caller that asks after subscribing then looks for a refusal.
                if isinstance(output, calls.ConsumerFailed):
                    self._on_consumer_failed(output)
            self._end(outputs, ended_count, ended_size)
            self._take(session, outputs)
        if self._is_leaving:
            self._leave(session)
        session.complete_attach()
        self.receiver.fetch(session, now_ms)
        for place in self.subscriptions.values():
            place.fetch(session, now_ms)
        for holder in self.holders.values():
            session.want(holder.number, holder.held_in(session.epoch), holder.wanted)
        if session.closed:
            self._on_closed(session, is_cancelled)
        requests = session.flush(now_ms)
        idle_ms = [place.idle_at_ms for place in self.subscriptions.values()]
        return requests, earliest(session.wake_at_ms(), self.receiver.idle_at_ms, *idle_ms)

    def _note_ends(self, events: Sequence[calls.SessionEvent]) -> bool:
        """Note events that end the handle or take a right; return true if consumers are to be told
        of a cancellation."""
        for event in events:
            if type(event) is calls.RightLost:
                self.refusals[event.right] = event.reason
        ends = [event for event in events if type(event) is calls.Closed]
        if not ends:
            return False
        is_deleted = any(event.deleted for event in ends)
        self.is_deleted |= is_deleted
        self.is_refused |= any(event.refused for event in ends)
        return is_deleted or any(event.cancels for event in ends)

    def _drain(self, session: Session) -> None:
        """Turn users' calls since the last step into calls of the session."""
        if not self.inbox and not self.acks:
            self.puts.correct()
            return
        puts: list[PutRun | ManyPut] = []
        settled: list[Settle | Acks] = []
        functions: list[Callable[[], None]] = []
        for kind, items in groupby(self._take_inbox(), type):
            if kind is OnePut:
                puts += self._taken_runs(list(items))
                continue
            for item in items:
                if kind is ManyPut:
                    self.puts.count_taken(item)
                    puts.append(item)
                elif kind is StepPut:
                    self.puts.count_taken(item)
                    # In the order of calls: earlier puts are stored before the step.
                    self.puts.offer(session, puts)
                    puts = []
                    self._offer_step(session, item)
                elif issubclass(kind, OwnBatch):
                    self.puts.count_taken(item)
                    session.put(item.batch())
                elif kind is Settle:
                    item.drop_settled()
                    if item.runs:
                        settled.append(item)
                    else:
                        self.refuse_again(item)
                else:
                    functions.append(item)
        if puts:
            self.puts.offer(session, puts)
        self.puts.correct()
        if self.acks and (singles := self._take_acks()).runs:
            settled.append(singles)
        if settled:
            self._offer_settles(session, settled)
        for function in functions:
            function()
        if functions and self.outcomes.waiters:
            # Threads that wait for the end of all calls, as close() and the exit, may go on.
            self.outcomes.notify()

    def _take_inbox(self) -> list[Any]:
        """Return the inbox's items; a user may take an item out again just after the append."""
        items: list[Any] = []
        try:
            items += islice(iter(self.inbox.popleft, None), len(self.inbox))
        except IndexError:
            return items
        return items

    def _taken_runs(self, puts: list[OnePut]) -> list[PutRun]:
        runs = runs_of_puts(puts)
        for run in runs:
            self.puts.count_taken(run)
        return runs

    def _take_acks(self) -> Acks:
        take = self.acks.popleft
        return Acks([take() for _ in range(len(self.acks))])

    def _offer_step(self, session: Session, item: StepPut) -> None:
        for run in runs_of(item.messages):
            run.chunk.take_settlements(run.start, run.stop)
        item.messages = self._settled_now(session, item.messages)
        session.put(step_put(item))

    def _settled_now(self, session: Session, messages: Sequence[Message]) -> list[Message]:
        """Return the newest deliveries of messages; their consumers may get more messages."""
        newest = [self._newest(session, message) for message in messages]
        self._release_runs([*runs_of(messages), *runs_of(newest)])
        return newest

    def _offer_settles(self, session: Session, settled: list[Settle | Acks]) -> None:
        if self.refusals.get("read"):
            self._refuse_settles(settled, self.refusals["read"])
            return
        for item in settled:
            self._release_runs(item.runs)
            if any(run.chunk.delivery.epoch != session.epoch for run in item.runs):
                item.runs = runs_of([self._newest(session, one) for one in messages_in(item.runs)])
                self._release_runs(item.runs)
        acks.offer(session, settled)

    def _refuse_settles(self, settled: Sequence[Settle | Acks], why: str) -> None:
        for item in settled:
            if isinstance(item, Acks):
                item.refuse(why)
            else:
                acks.refuse([item], why)
        self.outcomes.notify()

    def _release_runs(self, runs: Sequence[MessageRun]) -> None:
        """Release runs at their consumers, which may get more messages."""
        for run in runs if self.subscriptions else ():
            place = self.subscriptions.get(run.chunk.consumer)
            if place is not None:
                place.release(run)

    def _newest(self, session: Session, message: Message) -> Message:
        """Return the delivery by which a message is settled.

        After a failover the new master may deliver a message again that its user still holds,
        before the ack came. Until a call has returned the new delivery, the ack counts for it too.
        """
        if message._chunk.delivery.epoch == session.epoch:
            return message
        again = self.receiver.reclaim(message)
        for place in self.subscriptions.values():
            again = again or place.reclaim(message)
        return again or message

    def _end(self, outputs: list[calls.Output], ended_count: int, ended_size: int) -> None:
        """Report outcomes to users' threads."""
        puts = [output for output in outputs if isinstance(output, calls.Stored | calls.Failed)]
        self.puts.note_outcomes(puts)
        self.puts.note_over(ended_count, ended_size)
        for output in outputs:
            if isinstance(output, calls.SettleDone):
                acks.finish(output)
            elif isinstance(output, calls.QueryDone):
                answer = output.token
                assert isinstance(answer, Answer)
                answer.reply = output.reply
                answer.is_done = True
            elif isinstance(output, calls.PutCredit):
                self.puts.credit = output
        self.outcomes.notify()

    def _take(self, session: Session, outputs: list[calls.Output]) -> None:
        """Take delivered messages, and recalls."""
        for output in outputs:
            match output:
                case calls.Delivered():
                    self._on_deliver(session, output.deliver)
                case calls.DropBuffered():
                    self._drop_buffered(session, output.failover)
                case calls.GiveBack():
                    self.receiver.give_back(session)
                    session.recalled(output.number)

    def _on_deliver(self, session: Session, deliver: Deliver) -> None:
        if deliver.bare:
            holder = self.holders.get(deliver.consumer)
            if holder is not None:
                holder.add_deliveries(session, deliver.deliveries)
            else:
                session.give_back(deliver.deliveries)
            return
        if deliver.consumer and deliver.consumer not in self.subscriptions:
            # It was cancelled in the current step: the session still had the consumer.
            session.give_back(deliver.deliveries)
            return
        try:
            chunks = chunks_of(self, deliver.consumer, deliver.deliveries, deliver.frames)
        except ProtocolError as error:
            log.error("queue %s: a delivery was damaged on its way: %s", self.name, error)
            session.drop(deliver.deliveries)
            # Messages that are not held go back, and come again at the next attachment.
            self._events_due.append(calls.LinkLost())
            self.wake()
            return
        taking = self.subscriptions[deliver.consumer] if deliver.consumer else self.receiver
        taking.feed(chunks, sum(map(len, deliver.frames)))

    def _drop_buffered(self, session: Session, failover: bool) -> None:
        self.receiver.drop(session)
        for place in list(self.subscriptions.values()):
            session.drop(place.drop())
            if failover and place.cancel_on_failover:
                place.cancelled("")
                session.unsubscribe(place.number)

    def _on_consumer_failed(self, failed: calls.ConsumerFailed) -> None:
        if not failed.number:
            self.receiver.on_refused(failed.why)
            return
        holder = self.holders.get(failed.number)
        if holder is not None:
            holder.refuse(failed.why)
            return
        place = self.subscriptions.pop(failed.number, None)
        if place is not None:
            log.warning("consumer of queue %s refused: %s", self.name, failed.why)
            place.refuse(failed.why)

    def _on_closed(self, session: Session, is_cancelled: bool) -> None:
        """End the items in the inbox; the first time also wake all waiting threads."""
        why = f"the handle on queue {self.name!r} is closed: {session.closed}"
        functions: list[Callable[[], None]] = []
        is_first = not self.is_closed
        if is_first:
            self._note_closed()
        for item in self._take_inbox():
            if isinstance(item, PutRun):
                for confirmation in item.confirmations:
                    confirmation._finish(None, ConfirmUnknown(why))
            elif isinstance(item, OwnBatch):
                item.end_unknown(why)
            elif isinstance(item, OnePut | ManyPut | StepPut):
                item.confirmation._finish(None, ConfirmUnknown(why))
            elif isinstance(item, Settle):
                acks.refuse([item], why)
            else:
                functions.append(item)
        if self.acks:
            self._take_acks().refuse(why)
        self.puts.end_all()
        self.outcomes.notify()
        for function in functions:
            function()
        if not is_first:
            return
        self.receiver.signal.notify()
        for place in list(self.subscriptions.values()):
            if is_cancelled:
                place.cancelled(session.closed)
            else:
                place.close()
            place.buffer.shrink(0)
        # The garbage collector skips messages: nothing here refers to them any more.
        self.subscriptions.clear()
        self.ended.set()
        if self._close_reason and self.session_id is not None:
            self.host._close_session(self.session_id)

    def _note_closed(self) -> None:
        self.is_closed = True

    # --- Users' threads: putting ------------------------------------------------------------

    def put(
        self,
        body: bytes,
        properties: bytes,
        terms: Terms,
        key: str | bytes | None,
        block: bool,
        timeout: float | None,
        on_confirm: OnConfirm,
    ) -> Confirmation:
        """Put a message, as `MirroredQueue.put`, with checked and packed arguments."""
        if (
            self.is_shut
            or self.is_closing
            or self.is_closed
            or self.is_refused
            or self.refusals
            or os.getpid() != self.pid
        ):
            # The host is not checked each time: at its end it ends its handles.
            self.check_open_for_puts()
        confirmation = Confirmation(self.outcomes)
        if on_confirm is not None:
            confirmation = confirmation_of(self.outcomes, on_confirm)
        if timeout is not None:
            check_timeout(timeout)
        left = self.puts.accept_one(confirmation, body, properties, terms)
        if left is not None:
            in_thread(self.puts.accepting_one(left, block, timeout))
        return confirmation

    def putting(self, body: bytes, how: PutCall) -> Waits[Confirmation]:
        """Put a message as `put`, for any kind of waiting."""
        self.check_open_for_puts()
        confirmation = confirmation_of(self.outcomes, how.on_confirm)
        if how.timeout is not None:
            check_timeout(how.timeout)
        left = self.puts.accept_one(confirmation, body, how.properties, how.terms)
        if left is not None:
            yield from self.puts.accepting_one(left, how.block, how.timeout)
        return confirmation

    def putting_many(self, bodies: Sequence[bytes], how: PutCall) -> Waits[Confirmation]:
        """Put messages, as `MirroredQueue.put_many`, with checked and packed arguments."""
        self.check_open_for_puts()
        confirmation = confirmation_of(self.outcomes, how.on_confirm)
        if not bodies:
            confirmation._finish(range(0), None)
            return confirmation
        body_bytes = sum(map(len, bodies))
        size = body_bytes + len(how.properties) * len(bodies)
        item = ManyPut(confirmation, bodies, how.properties, how.terms, size)
        block, timeout = how.block, how.timeout
        yield from self.puts.accepting(item, len(bodies), size, body_bytes, block, timeout)
        return confirmation

    def transact(
        self,
        bodies: Sequence[bytes],
        properties: Sequence[bytes],
        terms: Terms,
        messages: Sequence[Message],
    ) -> Waits[Confirmation]:
        confirmation = Confirmation(self.outcomes)
        item = StepPut(confirmation, bodies, properties, terms, messages)
        yield from self._stepping(item, block=True)
        return confirmation

    def acking_and_putting(
        self,
        message: Message,
        ring: int,
        body: bytes | bytearray | memoryview,
        properties: bytes,
        terms: Terms,
        *,
        block: bool,
    ) -> Waits[Settlement]:
        """Ack and put, as `Message.ack_and_put`, with packed properties, into the queue with the id
        `ring`."""
        data = self.checked_body(body, properties)
        settlement = Settlement(self.outcomes)
        item = StepPut(settlement, [data], [properties], terms, (message,), ring)
        yield from self._stepping(item, block=block)
        return settlement

    def ack_and_put(
        self,
        message: Message,
        target: str | Target,
        key: str | bytes | None,
        body: bytes | bytearray | memoryview,
        properties: bytes,
        terms: Terms,
        *,
        block: bool,
    ) -> Settlement:
        """Do the same as `acking_and_putting`, on the calling thread."""
        ring = self.id_of(target, key)
        return in_thread(
            self.acking_and_putting(message, ring, body, properties, terms, block=block)
        )

    def _stepping(self, item: StepPut, *, block: bool) -> Waits[None]:
        """Send acks and puts as one op. Raises Full without room if `block` is false."""
        bodies, messages, target = item.bodies, item.messages, item.target
        self.check_open_for_puts("write" if bodies and not target else "read")
        if not bodies and not messages:
            item.confirmation._finish(range(0), None)
            return
        if item.frame_bytes > self.config.frame_bytes_max:
            raise ValueError(
                f"{len(bodies)} puts and {len(messages)} acks need {item.frame_bytes} bytes, one "
                f"op has at most frame_bytes_max {self.config.frame_bytes_max}: do less at once"
            )
        if any(message._is_settled for message in messages):
            raise ValueError("a message is settled already, or was only browsed")
        try:
            for message in messages:
                message._is_settled = True
            if target or not bodies:
                yield from self.puts.accepting_free(item, block)
            else:
                size = item.own_bytes
                yield from self.puts.accepting(item, item.count, item.size, size, block, None)
        except BaseException:
            for message in messages:
                message._is_settled = False
            raise

    def id_of(self, queue: str | Target, key: str | bytes | None = None) -> int:
        """Return the id of another queue to write, given a handle or a name. For a sharded queue
        return the id of the key's shard.

        Raises:
            AuthenticationError: the client's key may not write the queue.
            QueueNotFound: no queue has the name.
        """
        if isinstance(queue, Target):
            return queue._target_id(key)
        if not isinstance(queue, str):
            raise TypeError(f"a queue is named by a str or a handle, not {queue!r}")
        try:
            declared = self.host._declare(queue, passive=True, timeout=ASK_S)
        except QueueNotFound:
            raise QueueNotFound(f"no queue is named {queue!r}: declare it first") from None
        if "write" in declared.refusals:
            raise AuthenticationError(declared.refusals["write"])
        if declared.shards:
            number = next(_turns) if key is None else shard_of(key, len(declared.shards))
            return declared.shards[number % len(declared.shards)]
        return declared.queue_id

    def knows_credit(self) -> bool:
        return self.puts.knows()

    def _why_open(self, is_put: bool) -> str:
        """Return why there is no outcome yet, "" when not known."""
        return self.why_pending(is_put) or (self.puts.waits_for if is_put else "")

    # --- Users' threads: taking -------------------------------------------------------------

    def take_one(self, found: list[Message]) -> None:
        """Take the next buffered message, if there is any: the fastest way of a get."""
        if (
            self.is_shut_for_gets
            or self.is_closing
            or self.is_closed
            or self.is_refused
            or self.refusals
            or os.getpid() != self.pid
        ):
            # The host is not checked each time: at its end it ends its handles.
            self.check_open_for_gets()
        self.receiver.take_one(found)

    def put_back(self, messages: Sequence[Message]) -> None:
        """Put the messages of an interrupted call back in front."""
        self.receiver.put_back(messages)
        self.on_host(self._drop_stale)

    def give_back(self, messages: Sequence[Message]) -> None:
        """Give messages that no user has seen back to the queue, uncounted."""
        session = self.session
        if messages and session is not None:
            self.put_back(messages)
            self.on_host(lambda: self.receiver.give_back(session))

    def _drop_stale(self) -> None:
        if self.session is not None:
            self.receiver.drop_stale(self.session)

    def ack_many(self, messages: Sequence[Message]) -> Settlement:
        """Ack messages, as `MirroredQueue.ack_many`."""
        try:
            is_foreign = any(message._chunk.handle is not self for message in messages)
        except AttributeError:
            raise not_a_message(messages) from None
        if is_foreign:
            raise ValueError(f"not all messages came from this handle on queue {self.name!r}")
        if messages:
            return self.settle("ack", messages)
        settlement = Settlement(self.outcomes)
        settlement._finish(None, None)
        return settlement

    def browsing(self, start: int, count_max: int) -> Waits[list[Message]]:
        """Browse, as `MirroredQueue.browse`."""
        found: list[Message] = []
        position: int | None = start
        while position is not None and len(found) < count_max:
            page = min(count_max - len(found), BROWSE_PAGE)
            reply = yield from self.asking(calls.browse_request(position, page), ASK_S)
            assert isinstance(reply, Browsed)
            messages, position = self._browsed(reply)
            found += messages
        return found

    def _browsed(self, reply: Browsed) -> tuple[list[Message], int | None]:
        """Return the messages of one page, and the start of the next page if there is any."""
        pieces = [Delivery(0, 0, first, last, count) for first, last, count in reply.ranges]
        messages: list[Message] = []
        for chunk in chunks_of(self, 0, pieces, reply.frames):
            chunk.settled = bytearray(b"\1" * chunk.count)  # not held: an ack is refused
            messages += chunk.messages(0, chunk.count)
        return messages, pieces[-1].last + 1 if pieces else None

    # --- The end --------------------------------------------------------------------------

    def is_quiet(self) -> bool:
        session = self.session
        is_empty = not self.inbox and not self.acks
        return self.is_closed or (session is not None and session.is_idle and is_empty)

    def shut_rings(self, *, immediate: bool) -> None:
        self.is_shut = True
        if immediate:
            self.is_shut_for_gets = True
            session = self.session
            assert session is not None
            self.on_host(lambda: self.receiver.give_back(session, keep=0))
        self.receiver.signal.notify()
        self.outcomes.notify()

    def begin_close(self, callers: set[int]) -> None:
        self.is_closing = True
        self.outcomes.notify()
        self.receiver.signal.notify()
        for consumer in list(self.consumers.values()):
            consumer._cancel(callers)

    def abandon(self) -> None:
        self.is_closing = True
        exit_flush.forget(self)
        if self.session_id is not None:
            self.host._close_session(self.session_id)

    def end_session(self) -> None:
        self.detach()
        self.ended.wait(CLOSE_S - FLUSH_S)

    def detach(self) -> None:
        """Detach from the master."""
        session = self.session
        assert session is not None

        def note() -> None:
            self._is_leaving = True

        self.on_host(note)

    def _leave(self, session: Session) -> None:
        """Detach, after the step has taken its deliveries: no user has seen them."""
        self._is_leaving = False
        self.receiver.give_back(session, keep=0)
        fetched = sum(one.buffer.count() for one in self.subscriptions.values())
        if (held := session.unsettled_count - fetched) > 0:
            log.info(HELD_TEXT, self.name, held)
        session.detach()
        self._close_reason = "it was closed by its user"
        self.wake()


_turns = itertools.count()
"""Turn counter for the shards of other queues."""
