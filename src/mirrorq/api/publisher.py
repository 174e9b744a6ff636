"""A `put` on its way into the session, and the bound on unconfirmed messages.

Users' threads append puts to the handle's inbox and count them. The host's thread packs the puts
that have come together, and counts taken and ended puts.

*Interrupts*: a put has happened when it is in the inbox; one operation puts it there. The users'
counts are raised just before, without a call in between, so no thread and no signal handler comes
between the two. After an interruption by a tracer, the host's thread corrects the counts by its
own.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import NamedTuple

from mirrorq import clock
from mirrorq.api.arguments import check_callable, deadline_of
from mirrorq.api.batching import (
    PACK_BYTES,
    Counted,
    ManyPut,
    OnePut,
    PutRun,
    finish,
    frames_of,
)
from mirrorq.api.channel import FIRST_S, Channel, RingChannel
from mirrorq.api.completion import Outcomes
from mirrorq.api.confirmation import Confirmation
from mirrorq.api.publish_options import PACK_COUNT, Terms
from mirrorq.api.waits import Wait, Waits, telling
from mirrorq.errors import Full, ShutDown
from mirrorq.session.calls import Failed, PutCredit, Stored
from mirrorq.session.machine import Session
from mirrorq.waiting import Present, take_back

ALL_KNOWN_S = 0.3
"""Seconds that a first put waits for all masters' first credits; then any credit is enough."""

Listener = Callable[[Confirmation], object] | None
OnConfirm = Callable[[Confirmation], object] | None


class PutCall(NamedTuple):
    """The options of a put call, beside the bodies."""

    properties: bytes
    terms: Terms
    key: str | bytes | None
    block: bool
    timeout: float | None
    on_confirm: OnConfirm

    def at_once(self) -> PutCall:
        """Return the call without key and waiting: its caller waits for room at any shard."""
        return self._replace(key=None, block=False, timeout=None)


def confirmation_of(outcomes: Outcomes, on_confirm: OnConfirm) -> Confirmation:
    """Return the confirmation for `put`, before anything is put."""
    confirmation = Confirmation(outcomes)
    if on_confirm is not None:
        check_callable("on_confirm", on_confirm)
        confirmation._first = on_confirm
    return confirmation


class Waiting:
    """A call that waits for room. Held by its thread, and known to the publisher meanwhile."""

    __slots__ = ("__weakref__", "why")

    def __init__(self, why: str) -> None:
        self.why = why
        """Reason if the queue itself has no room; else ""."""


class Publishing(ABC):
    """The puts of a handle: sums over its rings, conditions of its waits, and errors after a wait
    in vain. Held by the handle; from any thread."""

    def __init__(self, channel: Channel, rings: Sequence[Publisher]) -> None:
        """`rings`: the puts of each ring; () for a `Publisher`, which counts by itself."""
        self.waiting: Present[Waiting] = Present()
        """Calls that wait for room."""
        self.wants_credit = True
        """True: the first put waits for the master's first credit."""
        self._channel: Channel = channel
        self._outcomes = channel.outcomes
        self._config = channel.config
        self._rings = rings

    @property
    def count(self) -> int:
        """Number of messages without an outcome."""
        return sum(ring.count for ring in self._rings)

    @property
    def size(self) -> int:
        """Bytes of the messages without an outcome."""
        return sum(ring.size for ring in self._rings)

    @property
    def is_over(self) -> bool:
        """Whether every message has an outcome."""
        return all(ring.is_over for ring in self._rings)

    @property
    def accepted_count(self) -> int:
        """Number of messages put so far."""
        return sum(ring.accepted_count for ring in self._rings)

    @property
    def ended_count(self) -> int:
        """Number of messages with an outcome."""
        return sum(ring.ended_count for ring in self._rings)

    @abstractmethod
    def takes(self, count: int, size: int, body_bytes: int) -> bool:
        """Return true if more may be put now, by the handle's bounds and the queue's limit."""

    def learning(self) -> Waits[None]:
        """Wait for the masters' first credits, once in a handle's life."""
        if not self.wants_credit:
            return
        self.learn_nothing()
        signal, knows = self._outcomes.signal, [ring.knows for ring in self._rings]
        are_all = Wait(signal, lambda: all(one() for one in knows), clock.monotonic() + ALL_KNOWN_S)
        if not (yield are_all):
            until = clock.monotonic() + FIRST_S
            yield Wait(signal, lambda: any(one() for one in knows), until, is_short=True)

    def learn_nothing(self) -> None:
        """Have the first put not wait for the first credit."""
        self.wants_credit = False
        for ring in self._rings:
            ring.learn_nothing()

    def listen(self, on_confirmed: Listener, on_not_confirmed: Listener) -> None:
        """Have functions called with every confirmation that ends."""
        for ring in self._rings:
            ring.listen(on_confirmed, on_not_confirmed)

    @property
    def waits_for(self) -> str:
        """Why calls wait for the queue itself, "" when no call does."""
        return next((call.why for call in self.waiting.all() if call.why), "")

    def filling(self) -> Waits[bool]:
        """Return true if a put would wait, for `full`."""
        if os.getpid() != self._channel.pid:
            self._channel.check()
        yield from self.learning()
        return not self.takes(1, 1, 1)

    def _unconfirmed_text(self) -> str:
        why = str(self._channel.why_not(Full(self.waits_for)))
        said = f": {why}" if why else ""
        return f"queue {self._channel.name!r}: {self.count} messages are not confirmed yet{said}"

    def confirming(self, timeout: float | None) -> Waits[bool]:
        """Wait until nothing is unconfirmed; return True.

        Raises:
            NoQuorum, QueueDown, Full: not in time, with the reason.
        """
        channel = self._channel
        channel.check()
        until = deadline_of(timeout)
        signal = self._outcomes.signal
        wait = Wait(signal, lambda: self.is_over or channel.is_closed, until)
        if not (yield from telling(wait, self._unconfirmed_text)):
            raise channel.why_not(
                Full(
                    f"queue {channel.name!r}: {self.count} messages are still unconfirmed after "
                    f"{timeout} s: wait again"
                )
            )
        return True


class Publisher(Publishing):
    """The puts of a handle on one ring. Users' threads put; the last section is the host's."""

    def __init__(self, channel: RingChannel, ahead: Callable[[], int]) -> None:
        """`ahead`: returns the number of messages that the handle has fetched ahead of calls."""
        super().__init__(channel, ())
        self._channel: RingChannel = channel
        self._ahead = ahead
        self.credit = PutCredit()
        """The handle's share of the queue's limit."""
        self.is_held = False
        """True: single puts need not wake the host's thread, which comes by itself (a shard's)."""
        self._put_count = self._put_size = self._put_bytes = 0
        """Messages, bytes of bodies and properties, and of bodies alone, that were ever put."""
        self._taken_count = self._taken_size = self._taken_bytes = 0
        """The same counts of puts that the host's thread has taken."""
        self._over_count = self._over_size = 0
        """The same counts of ended puts. Host's thread."""
        self._listeners: list[tuple[Listener, Listener]] = []

    # --- Users' threads -------------------------------------------------------------------

    @property
    def count(self) -> int:
        return self._put_count - self._over_count

    @property
    def is_over(self) -> bool:
        return self._put_count <= self._over_count

    @property
    def size(self) -> int:
        return self._put_size - self._over_size

    @property
    def accepted_count(self) -> int:
        return self._put_count

    @property
    def ended_count(self) -> int:
        return self._over_count

    def has_room(self, count: int, size: int) -> bool:
        """Return true if more may be unconfirmed. A call larger than the bound goes alone."""
        unconfirmed = self._put_count - self._over_count
        if unconfirmed <= 0:
            return True
        config = self._config
        return (
            unconfirmed + count <= config.unconfirmed_count_max
            and self.size + size <= config.unconfirmed_bytes_max
        )

    def has_credit(self, count: int, body_bytes: int) -> bool:
        """Return true if the queue's limit leaves room for more. A put that never fits goes on: the
        master refuses it."""
        credit = self.credit
        if not credit.is_bounded or count > credit.count_max or body_bytes > credit.size_max:
            return True
        # Messages fetched ahead count as ready, though the master delivered them.
        return (
            self._put_count + count + self._ahead() <= credit.count
            and self._put_bytes + body_bytes <= credit.size
        )

    def on_taken(self) -> None:
        """Let puts go on that wait for the queue's limit: a call has taken a message."""
        if self.credit.is_bounded and self.waiting:
            self._outcomes.notify()

    def takes(self, count: int, size: int, body_bytes: int) -> bool:
        return self.has_room(count, size) and self.has_credit(count, body_bytes)

    def knows(self) -> bool:
        """Return true if the master has given its limit, or never will."""
        channel = self._channel
        return self.credit.is_known or channel.is_shut or channel.is_closed

    def learning(self) -> Waits[None]:
        if self.wants_credit:
            self.wants_credit = False
            until = clock.monotonic() + FIRST_S
            yield Wait(self._outcomes.signal, self.knows, until, is_short=True)

    def accept_one(
        self,
        confirmation: Confirmation,
        body: bytes,
        properties: bytes,
        terms: Terms,
    ) -> OnePut | None:
        """Put one message into the inbox if there is room, and return None. Otherwise return the
        put for `accepting`.

        In the usual case there is room, and the earlier put still waits for the host's thread. The
        method is optimised for the usual case.
        """
        body_bytes = len(body)
        size = body_bytes + len(properties)
        one = OnePut(confirmation, body, properties, terms)
        channel = self._channel
        config = self._config
        if (
            self._put_count - self._over_count >= config.unconfirmed_count_max
            or self._put_size - self._over_size + size > config.unconfirmed_bytes_max
            or (self.credit.is_bounded and not self.has_credit(1, body_bytes))
            or self.wants_credit
            or channel.is_shut
        ):
            return one
        self._put_count += 1
        self._put_size += size
        self._put_bytes += body_bytes
        channel.inbox.append(one)
        if channel.is_closed:
            self._take_back(one)
        if channel.woken_at != channel.step_count and not (self.is_held and self._is_small):
            channel.wake()
        return None

    @property
    def _is_small(self) -> bool:
        """Whether the puts that wait for the host's thread are less than a batch."""
        return (
            self._put_count - self._taken_count < PACK_COUNT
            and self._put_size - self._taken_size < PACK_BYTES
        )

    def _take_back(self, item: object) -> None:
        """Take back an item of a closed handle, if the host's thread has not taken it.

        Raises:
            ShutDown: nothing was put. Else the host's thread has it, and it ends unknown.
        """
        if take_back(self._channel.inbox, item):
            raise ShutDown(self._channel.closed_text())

    def accepting_one(self, one: OnePut, block: bool, timeout: float | None) -> Waits[None]:
        """Put the result of `accept_one`, as `accepting`."""
        body_bytes = len(one.body)
        size = body_bytes + len(one.properties)
        return self.accepting(one, 1, size, body_bytes, block, timeout)

    def accepting(
        self,
        item: object,
        count: int,
        size: int,
        body_bytes: int,
        block: bool,
        timeout: float | None,
    ) -> Waits[None]:
        """Put an item into the inbox, after a wait for room as in `making_room`."""
        channel = self._channel
        until = deadline_of(timeout)
        if self.wants_credit:
            yield from self.learning()
        while True:
            if not self.takes(count, size, body_bytes):
                yield from self.making_room(count, size, body_bytes, block, until)
            if channel.is_closed or channel.is_shut:
                what = "closed" if channel.is_closed else "shut down: it takes no puts"
                raise ShutDown(f"the handle on queue {channel.name!r} is {what}")
            if not self.has_credit(count, body_bytes):
                continue  # another thread was quicker
            self._append(item, count, size, body_bytes)
            return

    def _append(self, item: object, count: int, size: int, body_bytes: int) -> None:
        """Count an item and append it to the inbox, which accepts it."""
        channel = self._channel
        self._put_count += count
        self._put_size += size
        self._put_bytes += body_bytes
        channel.inbox.append(item)
        if channel.is_closed:
            self._take_back(item)
        channel.wake()

    def accepting_free(self, item: Counted, block: bool = True) -> Waits[None]:
        """Accept an item that puts nothing into the own queue: only the handle's bounds hold."""
        channel = self._channel
        count, size = item.count, item.size

        def may_go_on() -> bool:
            return self.has_room(count, size) or channel.is_shut or channel.is_closed

        while True:
            until = None if block else clock.monotonic()
            if not (yield Wait(self._outcomes.signal, may_go_on, until)):
                raise self.full(count, size, 0)
            channel.check_open_for_puts(right="")
            if channel.is_closed or not self.has_room(count, size):
                continue
            self._append(item, count, size, 0)
            return

    def making_room(
        self, count: int, size: int, body_bytes: int, block: bool, until: float | None
    ) -> Waits[None]:
        """Wait until more may be put.

        Args:
            size: bytes of bodies and properties, counted by a handle's bounds.
            body_bytes: bytes of bodies, counted by a queue's limit.

        Raises:
            Full, NoQuorum, QueueDown: no room in time, with the reason.
            ShutDown: the handle is closed.
        """
        channel = self._channel
        call = Waiting(self.queue_full_text(count, body_bytes))
        if block:
            channel.wake()  # the host's thread corrects the counts

        def may_go_on() -> bool:
            has_room = self.takes(count, size, body_bytes)
            return has_room or channel.is_shut or channel.is_closed

        try:
            self.waiting.add(call)
            signal = self._outcomes.signal
            wait = Wait(signal, may_go_on, until if block else clock.monotonic())
            in_time = yield from telling(wait, lambda: self._full_text(count, size, body_bytes))
        finally:
            self.waiting.leave(call)
        if not in_time:
            if not block:
                raise self.full(count, size, body_bytes)
            raise channel.why_not(self._full_because(count, size, body_bytes))
        channel.check_open_for_puts(right="")

    def _full_because(self, count: int, size: int, body_bytes: int) -> Full:
        full = self.full(count, size, body_bytes)
        why = self._channel.host._queue_status(self._channel.queue_id).blocked_by
        return Full(f"{full}. They wait because {why}") if why not in str(full) else full

    def _full_text(self, count: int, size: int, body_bytes: int) -> str:
        full = self._full_because(count, size, body_bytes)
        return f"put() waits: {self._channel.why_not(full)}"

    def full(self, count: int, size: int, body_bytes: int) -> Full:
        """Return the error of a put without room."""
        name = self._channel.name
        if not self.has_credit(count, body_bytes):
            return Full(f"queue {name!r}: {self.queue_full_text(count, body_bytes)}")
        config = self._config
        return Full(
            f"queue {name!r}: {self.count} messages ({self.size} bytes) are "
            f"unconfirmed; the limits are {config.unconfirmed_count_max} and "
            f"{config.unconfirmed_bytes_max}. Wait, or raise them"
        )

    def queue_full_text(self, count: int, body_bytes: int) -> str:
        """Return why the queue itself has no room; "": it has room."""
        credit = self.credit
        if self.has_credit(count, body_bytes):
            return ""
        return credit.why or (
            f"the queue has no room for {count} more message(s) of {body_bytes} bytes: consume "
            "and ack, or raise the limit in its policy"
        )

    def listen(self, on_confirmed: Listener, on_not_confirmed: Listener) -> None:
        self._listeners.append((on_confirmed, on_not_confirmed))

    # --- The host's thread ----------------------------------------------------------------

    def count_taken(self, item: Counted) -> None:
        """Count an item that has left the inbox."""
        self._taken_count += item.count
        self._taken_size += item.size
        self._taken_bytes += item.own_bytes

    def correct(self) -> None:
        """With an empty inbox, set the users' counts to the counts of taken puts."""
        inbox = self._channel.inbox
        # No call from here on: no put of another thread comes between.
        if not inbox and (
            self._put_count != self._taken_count or self._put_size != self._taken_size
        ):
            self._put_count = self._taken_count
            self._put_size = self._taken_size
            self._put_bytes = self._taken_bytes

    def note_over(self, count: int, size: int) -> None:
        """Count messages with an outcome."""
        self._over_count += count
        self._over_size += size

    def end_all(self) -> None:
        """Count everything as ended: the handle is closed."""
        self._over_count, self._over_size = self._put_count, self._put_size

    def offer(self, session: Session, items: Sequence[PutRun | ManyPut]) -> None:
        """Pack the puts since the last step."""
        for put in frames_of(items, self._config.frame_bytes_max):
            session.put(put)

    def note_outcomes(self, outcomes: Sequence[Stored | Failed]) -> None:
        """Note outcomes."""
        ended: list[Confirmation] = []
        for outcome in outcomes:
            ended += finish(outcome)
        for on_confirmed, on_not_confirmed in self._listeners:
            for confirmation in ended:
                function = on_confirmed if confirmation._error is None else on_not_confirmed
                if function is not None:
                    self._outcomes.call_back(function, confirmation)
