"""`Consumer`: a callback on a thread of its own, with a bound on what it holds."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import deque
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Self

from mirrorq.api.arguments import COUNT_MAX
from mirrorq.api.message import Chunk, Message, Run, names_of, runs_of
from mirrorq.api.publisher import FIRST_S
from mirrorq.errors import ConfigError, MirrorQError, PreconditionFailed
from mirrorq.protocol.sessions import HandOut
from mirrorq.waiting import Doorbell, Latch, ProcessEnded, begin_thread

if TYPE_CHECKING:
    from mirrorq.api.handle import Handle

__all__ = ["Consumer"]

log = logging.getLogger("mirrorq")

WAIT_S = 1.0
"""A call waits so long for the host's thread, which is busy or has ended, or for a callback."""
PAUSE_FIRST_S = 0.1
PAUSE_MAX_S = 5.0
"""Delay of a message that its callback has failed on: doubled with each of its deliveries."""

EXIT_TEXT = ". sys.exit() ends neither this consumer nor the process: cancel() does the former"


def _check_prefetch(value: object) -> None:
    if not isinstance(value, int) or not 1 <= value <= COUNT_MAX:
        raise ConfigError(
            f"prefetch is {value!r}: a consumer holds a whole number of messages, at least 1"
        )


class Consumer:
    """One consumer of one handle. Made by `MirroredQueue.consume`."""

    def __init__(
        self,
        handle: Handle,
        number: int,
        callback: Callable[[Message], object],
        *,
        prefetch: int,
        auto_ack: bool,
        exclusive: bool,
        on_cancel: Callable[[Consumer], object] | None,
        cancel_on_failover: bool,
    ) -> None:
        _check_prefetch(prefetch)
        self.number = number
        """Its number in its handle."""
        self.cancel_on_failover = cancel_on_failover
        """Whether it ends when another master takes over."""
        self.refused = ""
        """Why the queue did not take it, or it was ended by others; "" while all is well."""
        self._unsettled = 0
        """How many are delivered and neither acked nor given back; on the host's thread."""
        self._prefetch = prefetch
        self._handle = handle
        self._callback = callback
        self._auto_ack = auto_ack
        self._exclusive = exclusive
        self._on_cancel = on_cancel
        self._buffer: deque[Message] = deque()
        self._arrival = Doorbell()
        self._message: Message | None = None
        """The one that its thread is at."""
        self._is_ended = False
        self._is_begun = False
        self._finished = Latch()
        """Its thread has ended."""
        self._thread = threading.Thread(
            target=self._run, name=f"mirrorq-consumer-{number}", daemon=True
        )

    @property
    def prefetch(self) -> int:
        """Most messages held unacknowledged; may be set while it runs."""
        return self._prefetch

    @prefetch.setter
    def prefetch(self, value: int) -> None:
        _check_prefetch(value)
        self._prefetch = value
        self._ask_for_prefetch()

    def _ask_for_prefetch(self) -> None:
        """The bound has changed."""
        self._handle._on_host(self._subscribe)

    @property
    def is_active(self) -> bool:
        """Whether it takes messages: it was not cancelled, by nobody, and has not failed."""
        return not self._is_ended

    def cancel(self) -> None:
        """Stop. The message under way is finished; those not begun go back uncounted."""
        self._cancel(())

    def _cancel(self, callers: Collection[int]) -> None:
        """`callers`: threads that wait for this, which are not waited for."""
        if not self._is_ended:
            self._abandon().wait(WAIT_S)
        self._end()
        self._join(callers)

    def _abandon(self) -> Latch:
        """Have it stopped by the host's thread, whatever becomes of the caller."""
        left = Latch()

        def leave() -> None:
            self._leave()
            self._end()
            left.set()

        self._handle._on_host(leave)
        return left

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.cancel()

    def _join(self, callers: Collection[int]) -> None:
        is_waited_for = threading.get_ident() == self._thread.ident or self._thread.ident in callers
        if self._is_begun and not is_waited_for:
            self._finished.wait(WAIT_S)

    def _start(self) -> None:
        subscribed = Latch()

        def begin() -> None:
            self._handle._consumers[self.number] = self
            self._subscribe()
            subscribed.set()

        self._handle._on_host(begin)
        subscribed.wait(WAIT_S)
        session = self._handle._session
        publisher = self._handle._publisher
        if session is not None and not session.available and not publisher.knows():
            # A handle that was just opened, of a client above all, has not heard of a master yet.
            self._handle._outcomes.wait_for(publisher.knows, FIRST_S)
        if session is not None and session.available:
            # A refusal comes before the answer to a question that is asked after it.
            with contextlib.suppress(MirrorQError):
                self._handle._counts()
        if self.refused:
            raise PreconditionFailed(f"queue {self._handle.name!r}: {self.refused}")
        self._begin()

    def _begin(self) -> None:
        self._is_begun = True
        begin_thread(self._thread)

    # --- The host's thread ----------------------------------------------------------------

    @property
    def unsettled(self) -> int:
        """Messages delivered and neither acked nor given back."""
        return self._unsettled

    def _subscribe(self) -> None:
        session = self._handle._session
        if session is not None:
            session.subscribe(self.number, self._prefetch, self._exclusive, self._auto_ack)

    def _leave(self) -> None:
        session = self._handle._session
        if session is not None:
            session.give_back(tuple(self._drop()))
            session.unsubscribe(self.number)
        self._handle._consumers.pop(self.number, None)

    def _feed(self, chunks: list[Chunk]) -> None:
        for chunk in chunks:
            chunk.held = bytearray(b"\1" * chunk.count)
            self._unsettled += chunk.count
            self._buffer.extend(chunk.messages(0, chunk.count))
        self._arrival.ring()

    def reclaim(self, message: Message) -> Message | None:
        """Take the next delivery of a message out of the buffer, if it is there."""
        return next_delivery(self._buffer, message)

    def _release(self, run: Run) -> None:
        """They were acked or given back; told again it changes nothing."""
        held = run.chunk.held
        if held is not None:
            self._unsettled -= held.count(1, run.start, run.stop)
            held[run.start : run.stop] = bytes(run.stop - run.start)

    def _drop(self) -> list[HandOut]:
        """Forget what the callback has not been given; return its names."""
        unseen: list[Message] = []
        with contextlib.suppress(IndexError):
            while True:
                unseen.append(self._buffer.popleft())
        runs = runs_of(unseen)
        for run in runs:
            self._release(run)
        return names_of(runs)

    def _refuse(self, why: str) -> None:
        self.refused = why
        if self._is_begun:
            self._leave()
            self._cancelled()

    def _cancelled(self) -> None:
        """Ended by the queue, not by its user."""
        self._handle._consumers.pop(self.number, None)
        self._end()
        if self._on_cancel is not None:
            self._handle._outcomes.call_back(self._on_cancel, self)

    def _end(self) -> None:
        self._is_ended = True
        self._arrival.ring()

    # --- Its own thread -------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._serve()
        except ProcessEnded:
            raise
        except BaseException:
            log.critical(
                "consumer %d of queue %s has failed: its messages go back",
                self.number,
                self._handle.name,
                exc_info=True,
            )
            self._abandon()
            self._end()
            if self._message is not None and not self._message._is_settled:
                self._message.nack()
            if self._on_cancel is not None:
                self._handle._outcomes.call_back(self._on_cancel, self)
        finally:
            self._finished.set()

    def _serve(self) -> None:
        while not self._is_ended:
            self._message = message = self._next()
            if message is not None:
                self._handle_one(message)
            elif not self._has_message():
                self._arrival.wait()

    def _has_message(self) -> bool:
        return bool(self._buffer)

    def _next(self) -> Message | None:
        """The next message; None when it has gone back meanwhile."""
        try:
            return self._buffer.popleft()
        except IndexError:
            return None

    def _handle_one(self, message: Message) -> None:
        if self._auto_ack:
            message.ack()
        try:
            self._callback(message)
        except ProcessEnded:
            raise
        except BaseException as error:
            # Others are served meanwhile; where all fail, each waits longer every time. What is
            # no Exception is treated alike: the thread is the consumer's, not the callback's.
            delay_s = pause_s(message.delivery_count)
            log.exception(
                "a callback failed on message %d of queue %s; it comes again in %.1f s%s",
                message.sequence,
                message.queue,
                delay_s,
                EXIT_TEXT if isinstance(error, SystemExit) else "",
            )
            if not message._is_settled:
                message.nack(delay=delay_s)


def pause_s(delivery_count: int) -> float:
    """How long a message waits after its callback has failed for the so many-th time."""
    return min(PAUSE_FIRST_S * 2.0 ** min(delivery_count - 1, 30), PAUSE_MAX_S)


def next_delivery(buffer: deque[Message], message: Message) -> Message | None:
    """Take out of a buffer the delivery that followed `message` at a change of master."""
    sequence, count = message.sequence, message.delivery_count
    for found in list(buffer):
        if found.sequence == sequence and found.delivery_count == count + 1:
            # A call may have taken it meanwhile: then it is another delivery.
            with contextlib.suppress(ValueError):
                buffer.remove(found)
                return found
    return None
