"""The session's machine: attaching, publishing, settling, credit."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from attrs import define

from mirrorq.config import Config
from mirrorq.containers.ranges import Range, RangeSet
from mirrorq.protocol import sessions
from mirrorq.protocol.identities import SessionId
from mirrorq.session import calls

# --- State --------------------------------------------------------------------------------


@define(eq=False)
class _Batch:
    """Messages with producer numbers. At least one message has no outcome yet."""

    put: calls.Put
    first: int
    last: int
    frame: bytes
    count_before: int
    size_before: int
    """Messages and bytes of bodies that this handle put before the batch."""
    is_over: bool = False
    """All numbers of the batch have an outcome."""
    _parts: RangeSet | None = None
    """Numbers without an outcome; None: all of them, or none. Most batches end at once."""

    @property
    def first_open(self) -> int:
        """Return the first number without an outcome. At least one number must be open."""
        return self.first if self._parts is None else self._parts.first

    def end_numbers(self, first: int, last: int) -> Sequence[Range]:
        """End the numbers from first to last; return the numbers that had no outcome before."""
        if self.is_over:
            return ()
        if self._parts is None:
            if first <= self.first and self.last <= last:
                self.is_over = True
                return ((self.first, self.last),)
            self._parts = RangeSet(((self.first, self.last),))
        ended = self._parts.within(first, last)
        self._parts.remove(first, last)
        self.is_over = not self._parts
        return ended


@define
class _ConsumerState:
    """A consumer of the handle, and its credit in this attachment."""

    asked: sessions.Subscribe
    total: int = 0
    """Credit asked for in this attachment."""
    received: int = 0
    """Messages delivered in this attachment."""
    halted_until: int = 0
    """Messages that come before this Pong go back at once; 0: no message does."""


@define(eq=False)
class _OpenSettle:
    """A settlement without an outcome: sent again in each attachment."""

    call: calls.SettleCall
    request: int
    is_sent: bool = False


def _request_of(settle: _OpenSettle) -> sessions.Settle | sessions.Extend:
    call = settle.call
    if call.kind == calls.EXTEND:
        return sessions.Extend(settle.request, call.deliveries, call.delay_ms)
    return sessions.Settle(settle.request, call.kind, call.deliveries, call.delay_ms, call.target)


class Session:
    """The pure half of a handle: all calls to the queue's master that have no answer yet. The
    handle owns its session and steps the session on the host's thread."""

    def __init__(
        self, session: SessionId, queue_id: int, config: Config, *, producer: int = 0
    ) -> None:
        """Begin a conversation with the first master that `step` reports.

        Args:
            producer: an id that the caller keeps for ever and needs no op; 0: ask for an id.
        """
        self.session = session
        self.queue_id = queue_id
        self.epoch = 0
        self.available = False
        self.closed = ""
        """Reason of the close, "" while open."""
        self.unconfirmed_count = 0
        self.unconfirmed_bytes = 0
        self._count_sent = 0
        self._size_sent = 0
        """Messages and bytes of bodies that were given numbers, in total."""
        self._credit = calls.PutCredit()
        self._has_flow = False
        """True if a Flow came in this attachment."""
        self._config = config
        self._attachment = 0
        self._request = 0
        self._reply = 0
        self._pings = self._pongs = 0
        """Counts of this attachment. A Pong confirms all requests before its Ping."""
        self._left_until = 0
        """The session asks for no credit before this Pong: messages on their way to a consumer that
        has left must go back first."""
        self._attached = False
        self._attaching = False
        self._is_detached = False
        self._seen = 0
        """Number of the last delivery of this epoch that has arrived."""
        self._attached_epoch = 0
        """Epoch of the last attachment."""
        self._heard_ms = 0
        """When the master last answered, or when it began to owe an answer."""
        self._is_owed = False
        """The master owed an answer at the last `flush`."""
        self._pinged_ms = 0
        self._producer = producer
        self._has_own_id = bool(producer)
        self._opening = False
        self._next_number = 1
        self._published_ms = 0
        self._renew_ms = config.producer_expiry_ms // 2
        self._waiting: deque[calls.Put] = deque()
        self._batches: deque[_Batch] = deque()
        self._consumers: dict[int, _ConsumerState] = {}
        self._held: dict[tuple[int, int], tuple[sessions.Delivery, RangeSet]] = {}
        """(epoch, delivery number) -> delivery, and its unsettled sequences."""
        self._settles: dict[int, _OpenSettle] = {}
        self._queries: dict[int, calls.Query] = {}
        self._call_number = 0
        self._requests: list[sessions.SessionRequest] = []
        self._output: list[calls.Output] = []
        self._recalls: list[calls.Output] = []

    # --- Calls (between steps; take effect at the next `flush`) ---------------------------

    def put(self, put: calls.Put) -> None:
        self._waiting.append(put)
        self.unconfirmed_count += put.count
        self.unconfirmed_bytes += put.size

    def go_on_from(self, number: int) -> None:
        """Give the next message this number. No batch is open, and all lower numbers have ended."""
        self._next_number = number

    def settle(self, call: calls.SettleCall) -> None:
        """Ack or nack messages that users took."""
        self._call_number += 1
        settle = _OpenSettle(call, self._call_number)
        self._settles[self._call_number] = settle
        if self._attached:
            self._send_settle(settle)

    def _send_settle(self, settle: _OpenSettle) -> None:
        settle.is_sent = True
        self._send(_request_of(settle))

    def give_back(self, deliveries: tuple[sessions.Delivery, ...]) -> None:
        """Return messages that no call has taken."""
        for piece in deliveries:
            self._unhold(piece)
        current = tuple(piece for piece in deliveries if piece.epoch == self.epoch)
        if current and self._attached:
            self._send(sessions.Settle(0, "giveback", current))

    def withdraw(self, number: int, deliveries: tuple[sessions.Delivery, ...]) -> None:
        """Return a consumer's messages that no call has taken, and all later messages.

        Messages that the master sends before the master reads this request go back on arrival. The
        session asks for no messages before, or later messages would come before the returned ones.
        """
        self.give_back(deliveries)
        consumer = self._consumers.get(number)
        if not deliveries or consumer is None or not self._attached or consumer.halted_until:
            return
        if consumer.total > consumer.received:
            self._send(sessions.Credit(number, 0))
            consumer.halted_until = self._ping()

    def recalled(self, number: int) -> None:
        """Answer a recall after its messages went back."""
        if number and self._attached:
            self._send(sessions.Recalled(number))

    def query(self, query: calls.Query) -> None:
        self._call_number += 1
        self._queries[self._call_number] = query
        if self._attached:
            self._send(query.request(self._call_number))

    def forget_query(self, token: object) -> None:
        """Drop a query whose answer is no longer needed."""
        for number in [n for n, query in self._queries.items() if query.token is token]:
            del self._queries[number]

    def subscribe(
        self,
        number: int,
        prefetch: int,
        exclusive: bool,
        auto_ack: bool,
        bare: bool = False,
        label: str = "",
    ) -> None:
        asked = sessions.Subscribe(number, prefetch, exclusive, auto_ack, bare, label)
        known = self._consumers.get(number)
        if known is None:
            self._consumers[number] = _ConsumerState(asked)
        else:
            known.asked = asked
        if self._attached:
            self._send(asked)

    def unsubscribe(self, number: int) -> None:
        consumer = self._consumers.pop(number, None)
        if consumer is None or not self._attached:
            return
        self._send(sessions.Unsubscribe(number))
        if consumer.halted_until or consumer.total > consumer.received:
            self._left_until = self._ping()

    def want(self, number: int, buffered: int, wanted: int) -> None:
        """Let the master hand out until `wanted` are here, `buffered` of which are."""
        consumer = self._consumers.get(number)
        if consumer is None or not self._attached:
            return
        if consumer.halted_until or self._pongs < self._left_until:
            return
        total = consumer.received - buffered + wanted
        missing = total - consumer.total
        # Renewed in halves: one request covers many messages, and no consumer waits for a request.
        if missing > 0 and (missing * 2 >= wanted or consumer.total <= consumer.received):
            consumer.total = total
            self._send(sessions.Credit(number, total))

    def detach(self) -> None:
        """The last request: everything goes back, nothing more is asked for or taken."""
        if self._attachment and self._attached_epoch == self.epoch:
            # Also when the master seems gone: its term may go on, and hold this handle's messages.
            self._send(sessions.Detach(seen=self._seen))
        self._is_detached = True
        self._attached = self.available = False

    # --- The step -------------------------------------------------------------------------

    def step(self, now_ms: int, events: Sequence[calls.SessionEvent]) -> list[calls.Output]:
        """Process arrived events. `flush` returns the requests of the events and of the calls."""
        for event in events:
            match event:
                case calls.ReplyArrived():
                    self._on_reply(now_ms, event.reply)
                case calls.MasterChanged():
                    self._on_master(now_ms, event)
                case calls.LinkLost():
                    self._attach(now_ms)
                case calls.Closed():
                    self._close(event.reason)
                case calls.RightLost():
                    self._lose_right(now_ms, event)
        if self._is_pending and now_ms - self._heard_ms >= self._config.failure_ms:
            self._nudge(now_ms)
        # Recalls last: messages behind a recall in the same step go back with messages before it.
        output, self._output = [*self._output, *self._recalls], []
        self._recalls.clear()
        return output

    def flush(self, now_ms: int) -> tuple[sessions.SessionRequest, ...]:
        """Requests to route to the master now."""
        if self._attached:
            self._publish_waiting(now_ms)
        was_owed, self._is_owed = self._is_owed, self._is_pending
        if self._is_owed and not was_owed:
            self._heard_ms = now_ms
        requests = tuple(self._requests)
        self._requests.clear()
        return requests

    def wake_at_ms(self) -> int | None:
        """Return when the master has been silent for too long, while a call is open."""
        if not self._is_pending:
            return None
        return max(self._heard_ms, self._pinged_ms) + self._config.failure_ms

    @property
    def has_open_batches(self) -> bool:
        """Return true if a batch has no outcome."""
        return bool(self._waiting or self._batches)

    @property
    def is_idle(self) -> bool:
        """Nothing waits for an outcome."""
        return not (self._waiting or self._batches or self._settles or self._queries)

    @property
    def _is_pending(self) -> bool:
        if not self.available or self.closed:
            return False
        return bool(self._consumers) or not self._attached or not self.is_idle

    def _nudge(self, now_ms: int) -> None:
        """Handle silence: first ping the master, then attach again if no answer came."""
        if now_ms - self._pinged_ms < self._config.failure_ms:
            return
        silent_ms = now_ms - self._heard_ms
        self._pinged_ms = now_ms
        if self._attached and silent_ms < 2 * self._config.failure_ms:
            self._ping()
        else:
            self._attach(now_ms)

    def _ping(self) -> int:
        """Send a Ping; return the number of its Pong."""
        self._pings += 1
        self._send(sessions.Ping())
        return self._pings

    def _on_pong(self) -> None:
        """Handle a Pong: all requests before its Ping are done, and their replies have come."""
        self._pongs += 1
        for consumer in self._consumers.values():
            if consumer.halted_until == self._pongs:
                consumer.halted_until = 0
                consumer.total = consumer.received

    # --- Attaching --------------------------------------------------------------------------

    def _on_master(self, now_ms: int, event: calls.MasterChanged) -> None:
        if event.epoch < self.epoch or self.closed or self._is_detached:
            return
        if (event.epoch, event.available) == (self.epoch, self.available):
            return
        if event.epoch > self.epoch:
            self._seen = 0
        self.epoch = event.epoch
        self.available = event.available
        self._attach(now_ms)

    def _attach(self, now_ms: int) -> None:
        """Begin the next attachment or, without a master, only end the current attachment.

        Buffered messages are void at once: the next master may deliver them to another consumer
        before this handle notices.
        """
        failover = self.available and 0 < self._attached_epoch < self.epoch
        if self._attached or self._attaching or failover:
            self._output.append(calls.DropBuffered(failover))
        self._attached = False
        self._attaching = self.available and not self.closed
        self._requests.clear()
        if self._attaching:
            self._attachment += 1
            self._attached_epoch = self.epoch
            self._request = self._reply = 0
            self._pings = self._pongs = self._left_until = 0
            self._has_flow = False
            self._heard_ms = self._pinged_ms = now_ms

    def complete_attach(self) -> None:
        """Resend everything without an outcome, after the handle has dropped its buffer."""
        if not self._attaching:
            return
        self._attaching = False
        self._attached = True
        held = tuple(
            sessions.Delivery(piece.epoch, piece.number, first, last, piece.count)
            for piece, left in self._held.values()
            for first, last in left
        )
        self._send(sessions.Attach(held, self._producer))
        for consumer in self._consumers.values():
            consumer.total = consumer.received = consumer.halted_until = 0
            self._send(consumer.asked)
        for settle in self._settles.values():
            self._send_settle(settle)
        for request, query in self._queries.items():
            self._send(query.request(request))
        self._opening = False
        for batch in self._batches:
            self._send(sessions.Publish(batch.frame, batch.put.whole, batch.put.deliveries))

    def _send(self, request: sessions.Request) -> None:
        self._request += 1
        self._requests.append(
            sessions.SessionRequest(
                self.queue_id,
                self.epoch,
                self.session,
                self._attachment,
                self._request,
                request,
            )
        )

    # --- Publishing -------------------------------------------------------------------------

    def _publish_waiting(self, now_ms: int) -> None:
        if not self._waiting:
            return
        is_old = now_ms - self._published_ms >= self._renew_ms
        if not self._batches and is_old and not self._has_own_id:
            # Long before the queue forgets an idle id: a put under a forgotten id would end
            # unknown.
            self._producer = 0
            self._next_number = 1
        if not self._producer:
            if not self._opening:
                self._opening = True
                self._send(sessions.OpenProducer())
            return
        self._published_ms = now_ms
        while self._waiting:
            put = self._waiting.popleft()
            first = self._next_number
            frame = put.pack(self._producer, first, self._settled)
            self._next_number += put.count
            last = first + put.count - 1
            batch = _Batch(put, first, last, frame, self._count_sent, self._size_sent)
            self._batches.append(batch)
            self._count_sent += put.count
            self._size_sent += put.body_bytes
            self._send(sessions.Publish(frame, put.whole, put.deliveries))

    @property
    def _settled(self) -> int:
        """The highest number up to which every number has its outcome."""
        return self._batches[0].first_open - 1 if self._batches else self._next_number - 1

    def _on_outcome(
        self,
        first: int,
        count: int,
        sequence: int,
        reason: str,
        unknown: bool = False,
        is_repeated: bool = False,
    ) -> None:
        """End numbers first to first + count - 1. Ended numbers are reported once."""
        last = first + count - 1
        for batch in self._batches:
            if batch.first > last:
                break
            if batch.last >= first:
                self._end_numbers(
                    batch, first, last, sequence, reason, unknown, unknown, is_repeated
                )
        while self._batches and self._batches[0].is_over:
            self._batches.popleft()

    def _end_numbers(
        self,
        batch: _Batch,
        first: int,
        last: int,
        sequence: int,
        reason: str,
        unknown: bool,
        is_lost: bool = False,
        is_repeated: bool = False,
    ) -> None:
        put = batch.put
        ended = batch.end_numbers(first, last)
        if ended and batch.is_over:
            self.unconfirmed_bytes -= put.size
        for low, high in ended:
            index, count = low - batch.first, high - low + 1
            self.unconfirmed_count -= count
            if sequence:
                # Only now, as with an ack: until then the master must know that a user saw the
                # message.
                self.drop(put.deliveries)
                stored = calls.Stored(put.token, index, count, sequence + low - first, is_repeated)
                self._output.append(stored)
            else:
                self._output.append(calls.Failed(put.token, index, count, reason, unknown, is_lost))

    def _resend_from(self, number: int) -> None:
        """Resend from a number that the master misses. An unclean promotion has lost a confirmed
        number: the frames state the settled numbers again, or the master would wait for ever."""
        if number <= self._settled:
            for batch in self._batches:
                batch.frame = batch.put.pack(self._producer, batch.first, self._settled)
        for batch in self._batches:
            if batch.last >= number:
                self._send(sessions.Publish(batch.frame, batch.put.whole, batch.put.deliveries))

    def _lose_producer(self, producer: int) -> None:
        """Handle an expired producer id: open batches under the id end with unknown outcome."""
        if producer != self._producer:
            return
        self._end_batches("the producer id has expired at the queue's master")
        if self._has_own_id:
            return
        self._producer = 0
        self._next_number = 1
        self._opening = False

    def _end_batches(self, reason: str) -> None:
        while self._batches:
            batch = self._batches[0]
            self._end_numbers(batch, batch.first, batch.last, 0, reason, unknown=True)
            self._batches.popleft()

    # --- Replies ----------------------------------------------------------------------------

    def _on_reply(self, now_ms: int, reply: sessions.SessionReply) -> None:
        if reply.epoch != self.epoch or reply.attachment != self._attachment or self.closed:
            return
        self._heard_ms = now_ms
        if isinstance(reply.reply, sessions.Detached):
            self._attach(now_ms)
            return
        if reply.number != self._reply + 1:
            if reply.number > self._reply:
                self._attach(now_ms)
            return
        self._reply = reply.number
        self._take(now_ms, reply)

    def _take(self, now_ms: int, envelope: sessions.SessionReply) -> None:
        reply = envelope.reply
        match reply:
            case sessions.Deliver():
                self._on_deliver(reply)
            case sessions.Confirmed():
                if reply.producer == self._producer:
                    for first, count, sequence in reply.runs:
                        self._on_outcome(first, count, sequence, "")
                    for first, count, sequence in reply.repeats:
                        self._on_outcome(first, count, sequence, "", is_repeated=True)
            case sessions.Settled():
                settle = self._settles.pop(reply.request, None)
                if settle is not None:
                    if settle.call.kind != calls.EXTEND:
                        # Only now: an attachment in between must still report that a user saw the
                        # message.
                        self.drop(settle.call.deliveries)
                    done = calls.SettleDone(settle.call.token, reply.refused, reply.why)
                    self._output.append(done)
            case sessions.Refused():
                if reply.producer == self._producer:
                    first, count = reply.first_number, reply.count
                    self._on_outcome(first, count, 0, reply.reason, reply.is_lost)
            case sessions.ProducerOpened():
                if self._opening:
                    self._published_ms = now_ms
                    self._producer = reply.producer
                    self._opening = False
            case sessions.ProducerUnknown():
                self._lose_producer(reply.producer)
            case sessions.ResendNumber():
                if reply.producer == self._producer:
                    self._resend_from(reply.number)
            case sessions.Browsed() | sessions.Purged() | sessions.Counts():
                query = self._queries.pop(reply.request, None)
                if query is not None:
                    self._output.append(calls.QueryDone(query.token, reply))
            case sessions.Recall():
                self._recalls.append(calls.GiveBack(reply.consumer, reply.number))
            case sessions.ConsumerRefused():
                self._consumers.pop(reply.number, None)
                self._output.append(calls.ConsumerFailed(reply.number, reply.why))
            case sessions.Pong():
                self._on_pong()
            case sessions.Flow():
                self._has_flow = True
                self._on_flow(reply)
            case sessions.Attached():
                if not self._has_flow:
                    self._tell_credit(calls.PutCredit(True))
            case _:
                pass

    def _on_flow(self, flow: sessions.Flow) -> None:
        """Count room since the handle was made. A Flow counts room after number `highest`."""
        count, size = self._count_sent, self._size_sent
        for batch in self._batches:
            if flow.producer != self._producer or batch.last > flow.highest:
                count, size = batch.count_before, batch.size_before
                if flow.producer == self._producer:
                    count += max(flow.highest - batch.first + 1, 0)
                break
        count += flow.count
        size += flow.size
        limits = (flow.count_max, flow.size_max)
        credit = calls.PutCredit(True, True, count, size, *limits, flow.why)
        self._tell_credit(credit if flow.is_bounded else calls.PutCredit(True))

    def _tell_credit(self, credit: calls.PutCredit) -> None:
        if credit != self._credit:
            self._credit = credit
            self._output.append(credit)

    def _on_deliver(self, deliver: sessions.Deliver) -> None:
        consumer = self._consumers.get(deliver.consumer)
        count = 0
        for piece in deliver.deliveries:
            count += piece.last - piece.first + 1
            self._seen = max(self._seen, piece.number)
            self._held[piece.epoch, piece.number] = (
                piece,
                RangeSet(((piece.first, piece.last),)),
            )
        if consumer is None:
            self.give_back(deliver.deliveries)
            return
        consumer.received += count
        if consumer.halted_until:
            self.give_back(deliver.deliveries)
            return
        self._output.append(calls.Delivered(deliver))

    def drop(self, deliveries: Sequence[sessions.Delivery]) -> None:
        """Forget deliveries that no call has returned: `held` no longer has them."""
        for piece in deliveries:
            self._unhold(piece)

    @property
    def unsettled_count(self) -> int:
        """Messages that are delivered here, and that no settlement names."""
        named = sum(
            piece.last - piece.first + 1
            for settle in self._settles.values()
            if settle.call.kind != calls.EXTEND
            for piece in settle.call.deliveries
        )
        return sum(left.count for _, left in self._held.values()) - named

    def _unhold(self, piece: sessions.Delivery) -> None:
        known = self._held.get((piece.epoch, piece.number))
        if known is not None:
            known[1].remove(piece.first, piece.last)
            if not known[1]:
                del self._held[piece.epoch, piece.number]

    # --- Rights -----------------------------------------------------------------------------

    def _lose_right(self, now_ms: int, lost: calls.RightLost) -> None:
        """End the calls that needed a right that the key has lost; other calls go on.

        The node has passed on no request that needs the right. After the loss of the right to read,
        the next attachment holds nothing, so the master redelivers the held messages.
        """
        if lost.right == "write" or any(batch.put.deliveries for batch in self._batches):
            self._end_puts(lost.reason)
        if lost.right != "read":
            return
        self._end_calls(lost.reason)
        for number in self._consumers:
            self._output.append(calls.ConsumerFailed(number, lost.reason))
        self._consumers.clear()
        self._held.clear()
        self._attach(now_ms)

    # --- The end ----------------------------------------------------------------------------

    def _close(self, reason: str) -> None:
        """End all open calls with unknown outcome, except settlements that were never sent."""
        if self.closed:
            return
        self.closed = reason
        self._attached = self.available = False
        self._end_puts(reason)
        self._end_calls(reason)
        self._requests.clear()

    def _end_puts(self, reason: str) -> None:
        self._end_batches(reason)
        while self._waiting:
            put = self._waiting.popleft()
            self.unconfirmed_count -= put.count
            self.unconfirmed_bytes -= put.size
            self._output.append(calls.Failed(put.token, 0, put.count, reason, True))

    def _end_calls(self, reason: str) -> None:
        """End settlements and questions."""
        for settle in self._settles.values():
            call = settle.call
            why = (
                reason
                if settle.is_sent
                else f"it had not been sent when the handle ended: {reason}"
            )
            self._output.append(calls.SettleDone(call.token, call.deliveries, why, settle.is_sent))
        self._settles.clear()
        for query in self._queries.values():
            self._output.append(calls.QueryDone(query.token, None))
        self._queries.clear()
