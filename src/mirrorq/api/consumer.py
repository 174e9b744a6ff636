"""`Consumer`: a callback on its own thread, with a bound on the messages that it holds."""

from __future__ import annotations

import contextlib
import itertools
import logging
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterator
from typing import Self, get_args

from mirrorq.api.arguments import COUNT_MAX, check_callable, check_flags, check_returned
from mirrorq.api.channel import FIRST_S, Channel, RingChannel, share
from mirrorq.api.closing import of_this_process
from mirrorq.api.message import Chunk, Message, MessageRun, names_of
from mirrorq.api.options import AckMode
from mirrorq.api.prefetch_buffer import Backlog
from mirrorq.api.publish_options import RETRY_MAX_S, RETRY_S, Seconds
from mirrorq.api.retries import Retries
from mirrorq.errors import ConfigError, MirrorQError, PreconditionFailed
from mirrorq.protocol.sessions import Delivery
from mirrorq.session.machine import Session
from mirrorq.session.window import AHEAD_BYTES, Window
from mirrorq.waiting import Doorbell, Latch, ProcessEnded, begin_thread

log = logging.getLogger("mirrorq")

WAIT_S = 1.0
"""Seconds that a call waits for a busy or ended host's thread, or for a callback."""

UNBOUNDED_COUNT = 4096
"""Messages sent to a consumer without a bound, beyond those that its callback was given."""

EXIT_TEXT = ". sys.exit() in a callback ends neither the consumer nor the process: call cancel()"


def _check_ack(value: object) -> None:
    if value not in get_args(AckMode):
        raise ConfigError(
            f'ack is {value!r}: give "return" (acked when the callback returns), "manual" (the '
            'program acks) or "receipt" (acked before the callback is called)'
        )


def _check_prefetch(value: object) -> None:
    if type(value) is not int or not 0 <= value <= COUNT_MAX:
        raise ConfigError(
            f"prefetch is {value!r}: a consumer holds a whole number of messages, 0 for no bound"
        )


class RingSubscription:
    """A consumer's subscription at one ring, with the messages that its thread has not taken.

    Held by the ring's handle. The host's thread makes all changes; only the consumer's thread takes
    from the left of `buffer`.
    """

    def __init__(
        self, channel: RingChannel, number: int, consumer: Consumer, prefetch: int
    ) -> None:
        self.number = number
        """Number in the ring's handle."""
        self.prefetch = prefetch
        """0: no bound."""
        self.unsettled = 0
        """Number of delivered messages that are neither acked nor released."""
        self.buffer = Backlog()
        self.refused = ""
        """Why the queue refused or ended the consumer; "": all is well."""
        self.is_active = True
        self.cancel_on_failover = consumer._ends_at_failover
        self._channel = channel
        self._consumer = consumer
        self._window = Window(prefetch or UNBOUNDED_COUNT)

    @property
    def idle_at_ms(self) -> int | None:
        """Time at which the buffered messages go back, if the callback takes none."""
        return self._window.idle_at_ms

    # --- The thread that makes the consumer ---------------------------------------------------

    def start(self) -> None:
        """Subscribe, and find out if the queue refuses the consumer."""
        channel = self._channel
        subscribed = Latch()

        def begin() -> None:
            channel.subscriptions[self.number] = self
            self.subscribe()
            subscribed.set()

        channel.on_host(begin)
        subscribed.wait(WAIT_S)
        session = channel.session
        if session is not None and not session.available and not channel.knows_credit():
            # A newly opened handle, above all of a client, may not know a master yet.
            channel.outcomes.wait_for(channel.knows_credit, FIRST_S)
        if session is not None and session.available:
            # A refusal comes before the answer to a later question.
            with contextlib.suppress(MirrorQError):
                channel.counts()
        if self.refused:
            raise PreconditionFailed(f"queue {channel.name!r}: {self.refused}")

    def ask_for(self, prefetch: int) -> None:
        """Change the bound."""
        self.prefetch = prefetch
        self._window.bound(prefetch or UNBOUNDED_COUNT)
        self._channel.on_host(self.subscribe)

    def abandon(self) -> Latch:
        """Have the host's thread end the subscription, even if the caller is interrupted."""
        left = Latch()

        def leave() -> None:
            self.leave()
            self.close()
            left.set()

        self._channel.on_host(leave)
        return left

    # --- The host's thread ----------------------------------------------------------------------

    def subscribe(self) -> None:
        """Send a Subscribe to the master, unless the subscription has ended."""
        session, consumer = self._channel.session, self._consumer
        if session is not None and self.is_active:
            auto_ack = consumer._acks_at == "receipt"
            session.subscribe(self.number, self.prefetch, consumer._exclusive, auto_ack)

    def leave(self) -> None:
        """Unsubscribe, and release the messages that the callback was not given."""
        session = self._channel.session
        if session is not None:
            session.give_back(tuple(self.drop()))
            session.unsubscribe(self.number)
        self._channel.subscriptions.pop(self.number, None)

    def fetch(self, session: Session, now_ms: int) -> None:
        """Ask for the message that the callback waits for, and for the next messages: few while the
        callback is slow, up to the bound while it is quick."""
        here = self.buffer.count()
        if self._window.look(now_ms, here, is_waiting=False):
            # The callback is slow: other consumers may be quicker.
            session.withdraw(self.number, tuple(self.drop()))
            here = 0
        begun = self.unsettled - here
        ahead = min(self._window.size, self._window.room(AHEAD_BYTES))
        wanted = max(begun + ahead + (not self._consumer._is_busy), 1)
        session.want(self.number, self.unsettled, min(wanted, self.prefetch or wanted))

    def feed(self, chunks: list[Chunk], size: int) -> None:
        """Take messages of `size` bytes into the buffer."""
        self._window.on_arrival(sum(chunk.count for chunk in chunks), size)
        for chunk in chunks:
            chunk.held = bytearray(b"\1" * chunk.count)
            self.unsettled += chunk.count
        self.buffer.add(chunks)
        self._consumer._ring()

    def reclaim(self, message: Message) -> Message | None:
        """Take the next delivery of a message out of the buffer, if it is there."""
        return self.buffer.take_out(message.sequence, message.delivery_count + 1)

    def release(self, run: MessageRun) -> None:
        """Note that messages were acked or released; a repeat changes nothing."""
        held = run.chunk.held
        if held is not None:
            self.unsettled -= held.count(1, run.start, run.stop)
            held[run.start : run.stop] = bytes(run.stop - run.start)

    def drop(self) -> list[Delivery]:
        """Drop the messages that the callback was not given; return their names."""
        self._window.on_idle()
        runs = self.buffer.shrink(0)
        for run in runs:
            self.release(run)
            self._window.arrived -= run.stop - run.start
        return names_of(runs)

    def refuse(self, why: str) -> None:
        """Note a refusal by the queue. `consume` raises it until the consumer has begun."""
        self.refused = why
        if self._consumer._is_begun:
            self.leave()
            self.cancelled(why)

    def cancelled(self, why: str) -> None:
        """End the subscription by the queue, not by its user."""
        self._channel.subscriptions.pop(self.number, None)
        self.refused = why
        self.is_active = False
        self._consumer._end_by_queue(why)

    def close(self) -> None:
        """End the subscription: no more messages come."""
        self.is_active = False
        self._consumer._end_with(self)

    def end_elsewhere(self) -> None:
        """End here because the consumer ended at another ring. From any host's thread."""
        if self.is_active:
            self.is_active = False
            self._channel.on_host(self.leave)


class Consumer:
    """One consumer of one handle. Made by `MirroredQueue.consume`.

    The prefetch of a sharded queue is divided over the shards, at least one message for each. An
    end at one shard, by its queue or with `cancel_on_failover`, ends the whole consumer.

    *Threads*: the callback runs on a thread of the consumer's own; `cancel` may be called from any,
    from the callback too.
    """

    def __init__(
        self,
        channel: Channel,
        callback: Callable[[Message], object],
        *,
        on_cancel: Callable[[Consumer], object] | None = None,
        prefetch: int | None = None,
        ack: AckMode = "return",
        exclusive: bool = False,
        cancel_on_failover: bool = False,
        retry_delay: Seconds = RETRY_S,
        retry_delay_max: Seconds = RETRY_MAX_S,
    ) -> None:
        """Take arguments as of `MirroredQueue.consume`. The queue is not asked before `_start`."""
        if not callable(callback):
            raise TypeError(f"callback is {callback!r}: give a function that takes a Message")
        check_callable("on_cancel", on_cancel)
        check_flags(exclusive=exclusive, cancel_on_failover=cancel_on_failover)
        _check_ack(ack)
        channel.check_for("read")
        if prefetch is None:
            prefetch = channel.config.prefetch
        _check_prefetch(prefetch)
        self._number = channel.next_consumer()
        self._ends_at_failover = cancel_on_failover
        self.refused: str = ""
        """Why the queue refused or ended the consumer; "": all is well."""
        self._acks_at = ack
        self._exclusive = exclusive
        self._retries = Retries.of(retry_delay, retry_delay_max)
        self._prefetch = prefetch
        self._channel = channel
        self._callback = callback
        self._on_cancel = on_cancel
        self._subscriptions: list[RingSubscription] = []
        """One subscription at each ring."""
        self._turns: Iterator[RingSubscription] = iter(())
        """Endless cycle of the subscriptions."""
        self._arrival = Doorbell()
        self._message: Message | None = None
        """The message in work."""
        self._untold = deque([None])
        """A token: the thread that takes it ends the consumer and may have to tell its user."""
        self._is_busy = False
        """Whether the callback has been given a message and has not returned."""
        self._is_ended = False
        self._is_begun = False
        """False: `consume` raises a refusal."""
        self._finished = Latch()
        """Set when no message is in work any more."""
        self._server = 0
        """Id of the thread that calls back, once it has begun."""

    @property
    def prefetch(self) -> int:
        """Most messages held unacknowledged, 0 for no bound; may be set while it runs, and changes
        nothing after its end."""
        return self._prefetch

    @prefetch.setter
    def prefetch(self, value: int) -> None:
        _check_prefetch(value)
        self._prefetch = value
        for subscription in self._subscriptions:
            subscription.ask_for(self._share)

    @property
    def _share(self) -> int:
        return self._prefetch and share(self._prefetch, self._channel.shards or 1)

    @property
    def is_active(self) -> bool:
        """Whether the consumer takes messages: it was not cancelled and has not failed."""
        return not self._is_ended

    @property
    def unsettled(self) -> int:
        """Messages delivered and neither acked nor released."""
        return sum(one.unsettled for one in self._subscriptions)

    def cancel(self, *, wait: bool = True) -> None:
        """Stop. The message in work is finished; other messages go back uncounted.

        Args:
            wait: for the message in work, a second at most.
        """
        check_flags(wait=wait)
        self._cancel(() if wait else (self._server,))

    def _cancel(self, callers: Collection[int]) -> None:
        """Cancel without a wait for the threads in `callers`, which wait for the end."""
        if not self._is_ended:
            for left in self._abandon():
                left.wait(WAIT_S)
        self._end()
        self._join(callers)

    def _abandon(self) -> list[Latch]:
        """Have the host's thread end it, even if the caller is interrupted."""
        self._untold.clear()
        self._channel.consumers.pop(self._number, None)
        return [one.abandon() for one in self._subscriptions]

    __reduce__ = of_this_process

    def __repr__(self) -> str:
        state = "" if self.is_active else ", ended"
        return f"<{type(self).__name__} of {self._channel.name!r}{state}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.cancel()

    def _join(self, callers: Collection[int]) -> None:
        if self._is_begun and self._server not in (threading.get_ident(), *callers):
            self._finished.wait(WAIT_S)

    def _begun(self) -> Self:
        """Begin, on a thread that no signal interrupts. A failure leaves no subscription behind."""
        try:
            self._start()
            return self
        except BaseException:
            self._abandon()
            raise

    def _start(self) -> None:
        """Subscribe at each ring and begin.

        Raises:
            PreconditionFailed: a ring refuses the consumer, which is then at no ring.
        """
        self._channel.consumers[self._number] = self
        try:
            for ring in self._channel.rings():
                number = self._number if ring is self._channel else ring.next_consumer()
                subscription = RingSubscription(ring, number, self, self._share)
                self._subscriptions.append(subscription)
                subscription.start()
            self._turns = itertools.cycle(self._subscriptions)
            self._is_begun = True
            self._begin_serving()
        except PreconditionFailed:
            self.cancel()
            raise

    # --- The host's thread ----------------------------------------------------------------

    def _end_with(self, subscription: RingSubscription) -> None:
        """Note the end of a subscription with its handle."""
        if not any(one.is_active for one in self._subscriptions):
            self._channel.consumers.pop(self._number, None)
            self._end()

    def _end_by_queue(self, why: str) -> None:
        """End at all rings because a ring ended the consumer, and tell its user once."""
        try:
            self._untold.pop()
        except IndexError:
            return
        self.refused = why
        self._channel.consumers.pop(self._number, None)
        for subscription in self._subscriptions:
            subscription.end_elsewhere()
        self._end()
        self._tell_cancelled()

    def _tell_cancelled(self) -> None:
        if self._on_cancel is not None:
            self._channel.outcomes.call_back(self._on_cancel, self)

    def _end(self) -> None:
        self._is_ended = True
        self._ring()

    def _ring(self) -> None:
        """Wake the consumer's thread after an arrival or the end."""
        self._arrival.ring()

    # --- What calls back: a thread of its own ---------------------------------------------

    def _begin_serving(self) -> None:
        name = f"mirrorq-consumer-{self._number}"
        begin_thread(threading.Thread(target=self._run, name=name, daemon=True))

    def _run(self) -> None:
        self._server = threading.get_ident()
        try:
            self._serve()
        except ProcessEnded:
            raise
        except BaseException:
            self._fail()
        finally:
            self._finished.set()

    def _fail(self) -> None:
        """End the consumer after an unexpected exception, in its handler, and log the failure."""
        self._abandon()
        self._end()
        if self._message is not None and not self._message._is_settled:
            self._message.nack()
        self._tell_cancelled()
        # Last: a handler of the log may raise.
        log.critical(
            "consumer %d of queue %s has failed: its messages go back",
            self._number,
            self._channel.name,
            exc_info=True,
        )

    def _serve(self) -> None:
        while not self._is_ended:
            self._message = message = self._next()
            if message is not None:
                self._handle_one(message)
            elif not self._has_more():
                self._arrival.wait()

    def _has_more(self) -> bool:
        return any(one.buffer.count() for one in self._subscriptions)

    def _next(self) -> Message | None:
        """Return the next message, of the rings in turn; None: there is none, or it went back."""
        # Before a message is taken: the host's thread must not fetch another beside it.
        self._is_busy = True
        for _ in self._subscriptions:
            try:
                return next(next(self._turns).buffer.first)
            except IndexError:
                continue
        self._is_busy = False
        if self._acks_at == "manual":
            # No ack tells the host's thread that the callback has returned.
            self._channel.wake()
        return None

    def _handle_one(self, message: Message) -> None:
        self._ack_if("receipt", message)
        try:
            check_returned("the callback", self._callback(message))
        except ProcessEnded:
            raise
        except BaseException as error:
            self._give_back_later(message, error)
        else:
            self._ack_if("return", message)

    def _ack_if(self, moment: AckMode, message: Message) -> None:
        """Ack the message if `ack` has the given mode, and the callback has not settled it."""
        if self._acks_at == moment and not message._is_settled:
            message.ack()

    def _give_back_later(self, message: Message, error: BaseException) -> None:
        """Release a message after an exception of its callback, in the handler. Exceptions beyond
        `Exception` are treated alike: they were meant for the callback.

        Other messages are served meanwhile; when all fail, each waits longer every time.
        """
        after = EXIT_TEXT if isinstance(error, SystemExit) else ""
        place = (message.sequence, message.queue)
        if message._is_settled:
            text = "a callback failed on message %d of queue %s, which is settled: it stays so%s"
            log.exception(text, *place, after)
            return
        delay_s = self._retries.delay_s(message)
        text = "a callback failed on message %d of queue %s; it comes again in %.1f s%s"
        message.nack(delay=delay_s)
        log.exception(text, *place, delay_s, after)
