"""The way of a `put` into the session, and the bound on what is unconfirmed.

User threads append what they put to the handle's inbox, and count it; the host's thread packs
what has come together, and counts what it has taken and what has ended.

*Interrupts*: a put has happened when it is in the inbox, by one operation, and else it has not. The
users' counts are raised just before it, without a call in between, so that no other thread and no
signal handler comes between them; should one do so all the same (a tracer does), the host's thread
corrects them with its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from mirrorq.api.arguments import (
    _check_size,
    checked_body,
    deadline_of,
    left_until,
)
from mirrorq.api.batching import PACK_BYTES, PACK_COUNT, ManyPut, OnePut, PutRun, finish, frames_of
from mirrorq.api.confirmation import Confirmation
from mirrorq.errors import Full, ShutDown
from mirrorq.session.calls import Failed, PutCredit, Stored
from mirrorq.session.machine import Session
from mirrorq.waiting import Present, take_back

if TYPE_CHECKING:
    from mirrorq.api.handle import Handle
    from mirrorq.api.publish_options import Terms
    from mirrorq.api.staged import StagedPut
    from mirrorq.api.transactions import StepPut

__all__ = ["Publisher"]

FIRST_S = 1.0
"""A handle's first put waits so long for the master's first word, so that it knows a limit."""

Listener = Callable[[Confirmation], object] | None








class Waiting:
    """A call that waits for room."""

    __slots__ = ("__weakref__", "why")

    def __init__(self, why: str) -> None:
        self.why = why
        """Why, if it is the queue that has none; else ""."""


class Publisher:
    """Everything of one handle that has to do with publishing."""

    def __init__(self, handle: Handle) -> None:
        self.credit = PutCredit()
        """What the queue's limit leaves this handle."""
        self.is_held = False
        """Single puts need not wake the host's thread: it comes by itself (a shard's)."""
        self._put_count = self._put_size = self._put_bytes = 0
        """Messages, bytes of bodies and properties, and of bodies alone, that were ever put."""
        self._taken_count = self._taken_size = self._taken_bytes = 0
        """The same, of what the host's thread has taken."""
        self._over_count = self._over_size = 0
        """The same, of what has an outcome; the host's thread counts it."""
        self.is_curious = True
        """Whether the first put waits for the master's first word."""
        self._waiting: Present[Waiting] = Present()
        """Calls that wait for room."""
        self._handle = handle
        self._config = handle._config
        self._outcomes = handle._outcomes
        self._listeners: list[tuple[Listener, Listener]] = []

    # --- Users' threads -------------------------------------------------------------------

    def body(self, body: bytes | bytearray | memoryview) -> bytes:
        """As `checked_body`, by this handle's limit."""
        return checked_body(body, self._config.message_bytes_max)

    def bodies(self, bodies: Sequence[bytes | bytearray | memoryview]) -> list[bytes]:
        """Each as in `body`; for a list of bytes without looking at each in Python."""
        if isinstance(bodies, bytes | bytearray | memoryview | str):
            raise TypeError(f"put_many takes a list of bodies, not one {type(bodies).__name__}")
        made = list(bodies)
        is_plain = list(map(type, made)).count(bytes) == len(made)
        lengths = list(map(len, made)) if is_plain else []
        # Counting equal ones is quicker than looking for the largest.
        is_even = bool(lengths) and lengths.count(lengths[0]) == len(lengths)
        largest = lengths[0] if is_even else max(lengths, default=0)
        if is_plain and largest <= self._config.message_bytes_max:
            return made  # type: ignore[return-value]
        return [self.body(body) for body in made]

    def check_size(self, size: int) -> None:
        """Refuse a body of so many bytes, by this handle's limit.

        Raises:
            MessageTooLarge: it is above it.
        """
        _check_size(size, self._config.message_bytes_max)

    @property
    def count(self) -> int:
        """Messages without an outcome."""
        return self._put_count - self._over_count

    @property
    def is_over(self) -> bool:
        """Whether everything has an outcome."""
        return self._put_count <= self._over_count

    @property
    def size(self) -> int:
        """Their bytes."""
        return self._put_size - self._over_size

    def has_room(self, count: int, size: int) -> bool:
        """Whether this much more may be unconfirmed. A call larger than the bound goes alone."""
        unconfirmed = self._put_count - self._over_count
        if unconfirmed <= 0:
            return True
        config = self._config
        return (
            unconfirmed + count <= config.unconfirmed_count_max
            and self.size + size <= config.unconfirmed_bytes_max
        )

    def has_credit(self, count: int, body_bytes: int) -> bool:
        """Whether the queue's limit leaves room for this much more. What never fits goes on: it
        is the master that refuses it."""
        credit = self.credit
        if not credit.is_bounded or count > credit.count_max or body_bytes > credit.size_max:
            return True
        # What this handle has fetched ahead counts as ready, though the master handed it out.
        ahead = self._handle._receiver.buffered
        return (
            self._put_count + count + ahead <= credit.count
            and self._put_bytes + body_bytes <= credit.size
        )

    @property
    def accepted_count(self) -> int:
        """Messages put so far."""
        return self._put_count

    @property
    def ended_count(self) -> int:
        """How many of them have an outcome."""
        return self._over_count

    def on_taken(self) -> None:
        """A call has taken a message: a put that waits for the queue's limit may go on."""
        if self.credit.is_bounded and self._waiting:
            self._outcomes.notify()

    def takes(self, count: int, size: int, body_bytes: int) -> bool:
        """Whether this much more may be put now, by the handle's bounds and the queue's limit."""
        return self.has_room(count, size) and self.has_credit(count, body_bytes)

    def knows(self) -> bool:
        """Whether the master has said how much the queue takes, or never will."""
        handle = self._handle
        return self.credit.is_known or handle._is_shut or handle._is_closed

    def learn(self) -> None:
        """Wait, once in a handle's life, for the master's first word, at most FIRST_S."""
        if self.is_curious:
            self.is_curious = False
            self._outcomes.wait_for(self.knows, FIRST_S)

    @property
    def waits_for(self) -> str:
        """Why calls wait for the queue itself, "" when none does."""
        return next((call.why for call in self._waiting.all() if call.why), "")

    def accept_one(
        self,
        confirmation: Confirmation,
        body: bytes,
        properties: bytes,
        terms: Terms,
        block: bool,
        timeout: float | None,
    ) -> None:
        """Put one message into the inbox, when there is room: as `accept`.

        Nearly always there is, nobody bounds the queue, and the put before it still waits for the
        host's thread: that is what this is quick at.
        """
        body_bytes = len(body)
        size = body_bytes + len(properties)
        one = OnePut(confirmation, body, properties, terms)
        handle = self._handle
        config = self._config
        if (
            self._put_count - self._over_count >= config.unconfirmed_count_max
            or self._put_size - self._over_size + size > config.unconfirmed_bytes_max
            or self.credit.is_bounded
            or self.is_curious
            or handle._is_shut
            or timeout is not None
        ):
            self.accept(one, 1, size, body_bytes, block, timeout)
            return
        self._put_count += 1
        self._put_size += size
        self._put_bytes += body_bytes
        handle._inbox.append(one)
        if handle._is_closed:
            self._take_back(one)
        if handle._woken_at != handle._step_count and not (self.is_held and self._is_small):
            handle._wake()

    @property
    def _is_small(self) -> bool:
        """What waits for the host's thread is no whole batch."""
        return (
            self._put_count - self._taken_count < PACK_COUNT
            and self._put_size - self._taken_size < PACK_BYTES
        )

    def _take_back(self, item: object) -> None:
        """The handle is closed: the host's thread looks no more, or for the last time just now.

        Raises:
            ShutDown: nothing was put. Else the host's thread has it, and it ends unknown.
        """
        handle = self._handle
        if take_back(handle._inbox, item):
            raise ShutDown(f"the handle on queue {handle.name!r} is closed")

    def accept(
        self,
        item: OnePut | ManyPut | StepPut,
        count: int,
        size: int,
        body_bytes: int,
        block: bool,
        timeout: float | None,
    ) -> None:
        """Put an item into the inbox, when there is room.

        Args:
            size: bytes of bodies and properties: what a handle's bounds count.
            body_bytes: bytes of bodies: what a queue's limit counts.

        Raises:
            Full, NoQuorum, QueueDown: no room in time, and why.
            ShutDown: the handle is closed.
        """
        handle = self._handle
        deadline = deadline_of(timeout)
        if self.is_curious:
            self.learn()
        while True:
            if not self.takes(count, size, body_bytes):
                self.wait_for_room(count, size, body_bytes, block, left_until(deadline))
            if handle._is_closed or handle._is_shut:
                what = "closed" if handle._is_closed else "shut down: it takes no puts"
                raise ShutDown(f"the handle on queue {handle.name!r} is {what}")
            if not self.has_credit(count, body_bytes):
                continue  # another thread was quicker
            self._append(item, count, size, body_bytes)
            return

    def _append(self, item: object, count: int, size: int, body_bytes: int) -> None:
        """It is accepted when it is in the inbox."""
        handle = self._handle
        self._put_count += count
        self._put_size += size
        self._put_bytes += body_bytes
        handle._inbox.append(item)
        if handle._is_closed:
            self._take_back(item)
        handle._wake()

    def accept_free(self, item: StepPut | StagedPut, block: bool = True) -> None:
        """As `accept`, of what puts nothing into this queue: only the handle's bounds hold."""
        handle = self._handle

        def may_go_on() -> bool:
            return self.has_room(item.count, item.size) or handle._is_shut or handle._is_closed

        while True:
            if not self._outcomes.wait_for(may_go_on, None if block else 0):
                raise self._full(item.count, item.size, 0)
            handle._check_open_for_puts(right="")
            if handle._is_closed or not self.has_room(item.count, item.size):
                continue
            self._append(item, item.count, item.size, 0)
            return

    def wait_for_room(
        self, count: int, size: int, body_bytes: int, block: bool, timeout: float | None
    ) -> None:
        """Wait until so much more may be put; arguments and errors as of `accept`."""
        handle = self._handle
        call = Waiting(self._queue_full_text(count, body_bytes))
        if block:
            handle._wake()  # the host's thread corrects the counts

        def may_go_on() -> bool:
            has_room = self.takes(count, size, body_bytes)
            return has_room or handle._is_shut or handle._is_closed

        try:
            self._waiting.add(call)
            in_time = self._outcomes.wait_for(may_go_on, timeout if block else 0)
        finally:
            self._waiting.leave(call)
        if not in_time:
            full = self._full(count, size, body_bytes)
            if not block:
                raise full
            why = handle._host.status(handle._queue_id).blocked_by
            told = Full(f"{full}. They wait because {why}") if why not in str(full) else full
            raise handle._why_not(told)
        handle._check_open_for_puts(right="")

    def _full(self, count: int, size: int, body_bytes: int) -> Full:
        name = self._handle.name
        if not self.has_credit(count, body_bytes):
            return Full(f"queue {name!r}: {self._queue_full_text(count, body_bytes)}")
        config = self._config
        return Full(
            f"queue {name!r}: {self.count} messages ({self.size} bytes) are "
            f"unconfirmed; the limits are {config.unconfirmed_count_max} and "
            f"{config.unconfirmed_bytes_max}. Wait, or raise them"
        )

    def _queue_full_text(self, count: int, body_bytes: int) -> str:
        credit = self.credit
        if self.has_credit(count, body_bytes):
            return ""
        return credit.why or (
            f"the queue has no room for {count} more message(s) of {body_bytes} bytes: consume "
            "and ack, or raise the limit in its policy"
        )

    def wait_for_confirms(self, timeout: float | None) -> None:
        """Wait until nothing is unconfirmed.

        Raises:
            NoQuorum, QueueDown, Full: not in time, and why.
        """
        handle = self._handle
        if not self._outcomes.wait_for(lambda: self.is_over or handle._is_closed, timeout):
            raise handle._why_not(
                Full(
                    f"queue {handle.name!r}: {self.count} messages are still unconfirmed after "
                    f"{timeout} s: wait again"
                )
            )

    def listen(self, on_confirmed: Listener, on_not_confirmed: Listener) -> None:
        """Have functions called with every confirmation that ends."""
        self._listeners.append((on_confirmed, on_not_confirmed))

    # --- The host's thread ----------------------------------------------------------------

    def count_taken(self, item: PutRun | ManyPut | StepPut | StagedPut) -> None:
        """It has left the inbox."""
        self._taken_count += item.count
        self._taken_size += item.size
        self._taken_bytes += item.own_bytes

    def correct(self) -> None:
        """Where nothing waits, what users have counted is what was taken."""
        inbox = self._handle._inbox
        # No call from here on: no put of another thread comes between.
        if not inbox and (
            self._put_count != self._taken_count or self._put_size != self._taken_size
        ):
            self._put_count = self._taken_count
            self._put_size = self._taken_size
            self._put_bytes = self._taken_bytes

    def note_over(self, count: int, size: int) -> None:
        """So many messages have an outcome."""
        self._over_count += count
        self._over_size += size

    def end_all(self) -> None:
        """The handle is closed: everything has an outcome."""
        self._over_count, self._over_size = self._put_count, self._put_size

    def offer(self, session: Session, items: Sequence[PutRun | ManyPut]) -> None:
        """Pack what was put since the last step."""
        for put in frames_of(items, self._config.frame_bytes_max):
            session.put(put)

    def end(self, outcomes: Sequence[Stored | Failed]) -> None:
        """Note outcomes."""
        ended: list[Confirmation] = []
        for outcome in outcomes:
            ended += finish(outcome)
        for on_confirmed, on_not_confirmed in self._listeners:
            for confirmation in ended:
                function = on_confirmed if confirmation._error is None else on_not_confirmed
                if function is not None:
                    self._outcomes.call_back(function, confirmation)
