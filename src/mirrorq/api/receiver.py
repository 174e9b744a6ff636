"""A message on its way from the session to a `get`, and the number of messages fetched ahead.

get() is the session's consumer number 0. Its credit is the demand of waiting calls, plus a window
that grows while calls take messages as fast as they come. A message that no call has returned
counts as ready. It goes back when calls stop coming, when another consumer waits for it (Recall),
and when the handle loses its master.

Fetched messages are a `Backlog`: users' threads take from its left end, the host's thread adds.

*Interrupts*: a call takes messages into a list that its outermost function holds. If an exception
ends the call before it has returned them, they are the next messages again.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby, islice

from mirrorq import clock
from mirrorq.api.arguments import check_timeout, deadline_of
from mirrorq.api.channel import Channel, RingChannel, share
from mirrorq.api.message import Chunk, Holder, Message, names_of, runs_of
from mirrorq.api.prefetch_buffer import Backlog
from mirrorq.api.publisher import Publisher, Publishing
from mirrorq.api.waits import Signal, Wait, Waits
from mirrorq.errors import (
    Empty,
    NoQuorum,
    PreconditionFailed,
    ProtocolError,
    QueueDown,
    ShutDown,
)
from mirrorq.protocol.ops import OpKind
from mirrorq.protocol.sessions import Counts, Delivery
from mirrorq.session.machine import Session
from mirrorq.session.window import AHEAD_BYTES, Window
from mirrorq.waiting import Present
from mirrorq.wire import frames

log = logging.getLogger("mirrorq")

NONE_YET = (
    ". This handle has had none yet: is it the right name? Opening a queue makes one that is not "
    "there, unless with passive=True"
)
NOWAIT_S = 1.0
"""Seconds that get_nowait() waits for the master's answer about messages."""
RECALL_ASKS = 3
"""Limit on questions by get_nowait() while other handles hold messages that may come back."""
MANY = 64
"""A demand for so many messages is not divided over the rings of a handle."""
CALLS_AHEAD = 4
"""Multiple of a call's count fetched ahead for calls that take many, as long as calls are as fast
as messages. With less, calls would wait for each credit's way to the master and back."""
CALL_COUNT_MAX = 4096
"""Limit on the call's count that `CALLS_AHEAD` multiplies: the messages of one Deliver."""
ON_WAY_S = 0.02
"""Seconds that a call waits for messages reported as ready before it asks again."""
LOOK_S = 1.0
"""Interval in seconds at which a waiting get() checks if the handle or its host is closed."""


class Demand:
    """The demand of one waiting call. Held by its thread, and known to the receiver during the
    wait."""

    __slots__ = ("__weakref__", "count", "parts")

    def __init__(self, count: int) -> None:
        self.count = count
        self.parts: list[Demand] = []
        """For a sharded queue, the demand at each shard."""


def unsee(found: Iterable[Message]) -> None:
    """Put the messages of an interrupted call back in front."""
    for holder, messages in groupby(found, lambda message: message._chunk.handle):
        holder.put_back(list(messages))


class Receiving(ABC):
    """The gets of a handle: sums over its rings, conditions of its waits, and errors after a wait
    in vain. Held by the handle; from any thread."""

    def __init__(self, channel: Channel, publisher: Publishing, rings: Sequence[Receiver]) -> None:
        """`rings`: the gets of each ring; () for a `Receiver`, which counts by itself."""
        self.signal = Signal()
        """Notified when waiting calls should look again."""
        self._channel: Channel = channel
        self._puts = publisher
        self._rings = rings

    @property
    def has_had_some(self) -> bool:
        """Whether messages have come here and have not all gone back."""
        return any(ring.has_had_some for ring in self._rings)

    @property
    def buffered(self) -> int:
        """Number of messages here that no call has returned."""
        return sum(ring.buffered for ring in self._rings)

    @property
    def went_back(self) -> int:
        """Number of times that messages have gone back, or are about to."""
        return sum(ring.went_back for ring in self._rings)

    @property
    def refused(self) -> str:
        """Why the master refused get() as a consumer; "": not refused."""
        return next((why for ring in self._rings if (why := ring.refused)), "")

    @property
    def has_waiting(self) -> bool:
        """Whether a call waits for a message."""
        return any(ring.has_waiting for ring in self._rings)

    def want(self, demand: Demand) -> None:
        """Add a demand at each ring until `unwant`; also from a loop.

        A small demand is divided over the rings. A large demand is placed whole at each ring,
        within the handle's limit on fetched messages: six pieces cost six times as much as one.
        Remaining messages are for the next call, or go back.
        """
        each = demand.count
        if each < MANY:
            each = share(each, len(self._rings))
        demand.parts = [Demand(each) for _ in self._rings]
        for ring, wanted in zip(self._rings, demand.parts, strict=True):
            ring.want(wanted)

    def unwant(self, demand: Demand) -> None:
        """Remove the demand of an ended call."""
        for ring, wanted in zip(self._rings, demand.parts, strict=False):
            ring.unwant(wanted)

    @abstractmethod
    def take_one(self, found: list[Message]) -> None:
        """Take one message as `take_buffered(found, 1)`, the fastest way."""

    @abstractmethod
    def take_buffered(self, found: list[Message], count: int) -> None:
        """Take up to `count` messages that are here; have more fetched when few are left."""

    @abstractmethod
    def take_more(self, found: list[Message], count: int) -> None:
        """Take messages for a call that has waited: its demand is known already."""

    def getting(self, found: list[Message], block: bool, timeout: float | None) -> Waits[None]:
        """Take one message into a list that the caller still has after an interrupt, for `get`.

        Raises:
            Empty, NoQuorum, QueueDown: no message in time, with the reason.
            PreconditionFailed: a consumer holds the queue exclusively.
            ShutDown: the handle is closed, or was shut down and nothing is ready.
        """
        channel = self._channel
        yield from self._obtaining(found, 1, block, timeout)
        if not found:
            within = f" within {timeout} s" if block else ""
            text = f"queue {channel.name!r} had no message ready{within}"
            raise channel.why_not(Empty(text + ("" if self.has_had_some else NONE_YET)))

    def getting_many(self, found: list[Message], count: int, timeout: float | None) -> Waits[None]:
        """Take messages for `get_many` into a list; no message when none is ready in time."""
        yield from self._obtaining(found, count, True, timeout)
        if not found:
            nothing = Empty("")
            reason = self._channel.why_not(nothing)
            if reason is not nothing:
                raise reason

    def _obtaining(
        self, found: list[Message], count: int, block: bool, timeout: float | None
    ) -> Waits[None]:
        """Take 1 to `count` messages as soon as any is ready; no message after the time-out."""
        channel = self._channel
        channel.check_open_for_gets()
        if timeout is not None:
            check_timeout(timeout)
        self.take_buffered(found, count)
        if found:
            return
        until = deadline_of(timeout)
        demand = Demand(count)
        try:
            self.want(demand)
            if not block or timeout == 0:
                yield from self._obtaining_now(found, count)
            else:
                yield from self._obtaining_in_time(found, count, until)
        finally:
            self.unwant(demand)
        if not found and channel.is_shut:
            raise ShutDown(f"the handle on queue {channel.name!r} was shut down")

    def _may_look(self) -> bool:
        channel = self._channel
        return bool(self.buffered or channel.is_shut or channel.is_closed or self.refused)

    def _obtaining_in_time(
        self, found: list[Message], count: int, until: float | None
    ) -> Waits[None]:
        channel = self._channel
        is_warned = False
        while True:
            look = clock.monotonic() + LOOK_S
            yield Wait(self.signal, self._may_look, look if until is None else min(until, look))
            # From here to the return there is no wait: a call that gives up has no message.
            self.take_more(found, count)
            if found:
                return
            channel.check_open_for_gets()
            self.check_refused()
            if channel.is_shut:
                yield from self._obtaining_now(found, count)
                return
            if until is not None and clock.monotonic() >= until:
                return
            if not is_warned and until is None:
                reason = channel.stuck_for(Empty(""))
                if reason is not None:
                    log.warning("get() waits: %s", reason)
                    is_warned = True

    def _obtaining_now(self, found: list[Message], count: int) -> Waits[None]:
        """Take messages that are published already. End when the master has none ready.

        Earlier puts of the handle count as published: the call waits for their outcomes.
        """
        until = clock.monotonic() + NOWAIT_S
        own_count = self._puts.accepted_count
        asks = 0
        while (left := until - clock.monotonic()) > 0:
            is_published = self._puts.ended_count >= own_count
            try:
                counts = yield from self._channel.counting(left)
            except (QueueDown, NoQuorum):
                break
            if counts.ready:
                here = clock.monotonic() + min(left, ON_WAY_S)
                yield Wait(self.signal, lambda: bool(self.buffered), here)
            self.take_more(found, count)
            if found:
                return
            self.check_refused()
            asks += is_published
            if not is_published:
                here = clock.monotonic() + min(left, ON_WAY_S)
                yield Wait(self._channel.outcomes.signal, lambda: self._has_put(own_count), here)
                continue
            if counts.ready:
                continue
            if not counts.unacknowledged or asks >= RECALL_ASKS:
                break
        self.take_more(found, count)

    def _has_put(self, count: int) -> bool:
        return self._puts.ended_count >= count or bool(self.buffered) or self._channel.is_closed

    def sizing(self) -> Waits[int]:
        """Return the number of ready messages that no call has returned, for `qsize`."""
        self._channel.check()
        return (yield from self.counting_ready(self._channel.counting))

    def counting_ready(self, counting: Callable[[], Waits[Counts]]) -> Waits[int]:
        """Return the number of ready messages: at the master, by `counting`, and here.

        If messages went back after the answer, both miss them and the master is asked again.
        """
        while True:
            went_back = self.went_back
            counts = yield from counting()
            ready = counts.ready + self.buffered
            if self.went_back == went_back:
                return ready

    def check_refused(self) -> None:
        """Raise PreconditionFailed when the master refused get() as a consumer."""
        if self.refused:
            raise PreconditionFailed(f"get() on queue {self._channel.name!r}: {self.refused}")


class Receiver(Receiving):
    """The gets of a handle on one ring. Users' threads take from the left of its buffer; the last
    section is the host's."""

    def __init__(self, channel: RingChannel, publisher: Publisher, backlog: Backlog) -> None:
        super().__init__(channel, publisher, ())
        self._channel: RingChannel = channel
        self._publisher = publisher
        self._buffer = backlog
        self._calls: Present[Demand] = Present()
        """Demands of waiting calls."""
        self._low = 0
        """A call that leaves so few in the buffer wakes the host, to fetch more."""
        self._prefetch = channel.config.prefetch
        self._window = Window(self._prefetch)
        self.asked = 1
        """Number of messages that the last call asked for."""
        self.ahead_bytes = AHEAD_BYTES
        """Approximate limit in bytes on messages fetched ahead of calls."""
        self._went_back = 0
        self._is_subscribed = False
        self._refused = ""
        """Why the master refused get() as a consumer, until the next call."""
        self._hint = 0
        """Number of messages that will be taken soon, though no call waits at the handle."""

    # --- Users' threads -------------------------------------------------------------------

    @property
    def has_had_some(self) -> bool:
        return self._window.arrived > 0

    @property
    def buffered(self) -> int:
        return self._buffer.count()

    @property
    def went_back(self) -> int:
        return self._went_back

    @property
    def refused(self) -> str:
        return self._refused

    @property
    def has_waiting(self) -> bool:
        return self._demand > 0

    @property
    def _demand(self) -> int:
        """Number of messages that waiting calls would take."""
        return sum(call.count for call in self._calls.all()) if self._calls else 0

    def want(self, demand: Demand) -> None:
        self._refused = ""
        self._calls.add(demand)
        self._channel.wake()

    def unwant(self, demand: Demand) -> None:
        self._calls.leave(demand)
        if self._buffer.count():
            self._channel.wake()

    @property
    def ahead(self) -> int:
        """Number of messages fetched ahead of calls."""
        return self._window.size

    def hint(self, count: int) -> None:
        """Have messages fetched though no call waits here, until calls stop coming. A call that
        takes from several handles in turn waits at none of them while another has messages."""
        if self._hint < count and not self._buffer.count():
            self._hint = count
            self._channel.wake()

    def take_buffered(self, found: list[Message], count: int) -> None:
        self.asked = count
        self.take_more(found, count)
        if found and self._buffer.count() <= self._low:
            self._channel.wake()

    def take_one(self, found: list[Message]) -> None:
        self.asked = 1
        buffer = self._buffer
        try:
            found += islice(buffer.first, 1)
        except IndexError:
            return
        publisher = self._publisher
        if publisher.credit.is_bounded:
            publisher.on_taken()
        channel = self._channel
        if buffer.count() <= self._low and channel.woken_at != channel.step_count:
            channel.wake()

    def take_more(self, found: list[Message], count: int) -> None:
        self._buffer.take_into(found, count)
        if found:
            self._publisher.on_taken()

    def put_back(self, messages: Sequence[Message]) -> None:
        """Put the messages of an interrupted call back in front."""
        self._buffer.put_back([one for one in messages if not one._is_settled])

    # --- The host's thread ----------------------------------------------------------------

    @property
    def idle_at_ms(self) -> int | None:
        """Time at which buffered messages go back, if no call comes."""
        return self._window.idle_at_ms

    def feed(self, chunks: Sequence[Chunk], size: int) -> None:
        """Take messages of `size` bytes into the buffer."""
        self._window.on_arrival(sum(chunk.count for chunk in chunks), size)
        self._buffer.add(chunks)
        if self._demand or self.signal.listeners:
            self.signal.notify()

    def fetch(self, session: Session, now_ms: int) -> None:
        """Ask for as many messages as calls want now and will want next."""
        demand = self._demand
        if not self._is_subscribed:
            if self._refused or not (demand or self._hint):
                return
            self._is_subscribed = True
            session.subscribe(0, self._prefetch, False, False)
        ahead = CALLS_AHEAD * min(self.asked, CALL_COUNT_MAX)
        self._window.bound(max(self._prefetch, ahead))
        if self._window.look(now_ms, self._buffer.count(), is_waiting=demand > 0):
            self.give_back(session)
        room = self._window.room(self.ahead_bytes)
        wanted = min(demand + max(self._window.size, self._hint), room)
        self._low = self._window.size // 2
        session.want(0, self._buffer.count(), wanted)

    def give_back(self, session: Session, keep: int | None = None) -> None:
        """Return untaken messages after the first `keep` (None: the demand of waiting calls)."""
        self._window.on_idle()
        self._hint = 0
        unseen = self._empty(self._demand if keep is None else keep)
        if unseen:
            session.withdraw(0, tuple(unseen))

    def drop_stale(self, session: Session) -> None:
        """Drop messages that calls have put back, if the master has changed since."""
        stale = self._buffer.take_all(lambda one: one._chunk.delivery.epoch != session.epoch)
        self._window.arrived -= len(stale)
        session.drop(names_of(runs_of(stale)))

    def drop(self, session: Session) -> None:
        """Drop all buffered messages: they are void."""
        # After the loss of a master, first ask for waiting calls' demand only, so that acks of held
        # messages find the messages in place.
        self._window.on_idle()
        self._hint = 0
        session.drop(self._empty(0))

    def _empty(self, keep: int) -> list[Delivery]:
        """Take all messages after the first `keep` out of the buffer; return their names."""
        # Before they are gone: a call that finds none must also see the change.
        self._went_back += self._buffer.count() > keep
        unseen = self._buffer.shrink(keep)
        self._window.arrived -= sum(run.stop - run.start for run in unseen)
        return names_of(unseen)

    def reclaim(self, message: Message) -> Message | None:
        """Take the next delivery of a message out of the buffer, if it is there."""
        return self._buffer.take_out(message.sequence, message.delivery_count + 1)

    def on_refused(self, why: str) -> None:
        """Note that the master refused get() as a consumer."""
        self._is_subscribed = False
        self._hint = 0
        self._refused = why
        self.signal.notify()


def chunks_of(
    handle: Holder, consumer: int, deliveries: Sequence[Delivery], parts: Sequence[bytes]
) -> list[Chunk]:
    """Return the chunks in the frames with the bodies of deliveries.

    Raises:
        ProtocolError: a frame is damaged.
    """
    chunks: list[Chunk] = []
    pieces = iter(deliveries)
    piece = next(pieces, None)
    for frame in parts:
        header = frames.check(frame)
        if header.kind != OpKind.PUBLISH:
            raise ProtocolError(f"op {header.lsn} of kind {header.kind} holds no messages")
        first, count = header.first_sequence, header.count
        while piece is not None and not piece.first <= first <= piece.last:
            piece = next(pieces, None)
        if piece is None:
            break
        chunks.append(Chunk(handle, consumer, piece, first, count, header.timestamp_us, frame))
    return chunks
