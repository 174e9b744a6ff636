"""`SpoolConfirmation`: the result of a put into a spool, and its `Batch` with the outcome.

Neighbouring messages that the local queue has confirmed together are one `Batch`; their
confirmations read the batch. The spool refers to a batch only by a weak reference. So a put whose
confirmation is dropped leaves nothing in memory, even while the cluster is away for long.

*Threads*: the local host's thread makes a batch, the forwarder ends the batch. Lists of callbacks
are deques: users' threads append, and the thread that ends a batch pops.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from msgspec import Struct

from mirrorq.api.arguments import deadline_of
from mirrorq.api.waits import Wait, Waits, in_thread
from mirrorq.errors import ConfirmUnknown, MirrorQError, NotConfirmed

if TYPE_CHECKING:
    from mirrorq.api.completion import Outcomes
    from mirrorq.spool.line import Flight

Callback = Callable[[Any], object]


class Accepting(Protocol):
    """A route, as a confirmation needs it."""

    outcomes: Outcomes
    """Wakes waiting users."""
    watched: set[Batch]
    """Batches whose callbacks are due: no other reference may keep them."""

    @property
    def why(self) -> str:
        """Why waiting messages are not being sent."""

    def note_many(self, sequences: Sequence[int]) -> tuple[tuple[Batch, int, int], ...]:
        """Return the batches of a put_many that is on the local disk under `sequences`."""


class Batch:
    """Neighbouring local messages, their acceptance, and their outcomes."""

    __slots__ = ("__weakref__", "error", "failed", "first", "is_accepted", "is_over", "last",
                 "stored", "watched")  # fmt: skip

    def __init__(self, first: int, last: int, error: MirrorQError | None = None) -> None:
        self.first = first
        self.last = last
        """Last local sequence; less than `first` without messages."""
        self.is_accepted = error is None
        self.is_over = last < first or error is not None
        self.error = error
        """Why the batch was not accepted, or why messages had no outcome when the spool ended."""
        self.stored: list[tuple[int, int, int]] = []
        """(index, count, first sequence)."""
        self.failed: list[tuple[int, int, str, bool]] = []
        """(index, count, reason, true if the target may have had the messages)."""
        self.watched: deque[SpoolConfirmation] = deque()
        """Confirmations with callbacks."""

    def record_flight(self, flight: Flight) -> bool:
        """Note an ended flight, in order; return true if the whole batch has ended."""
        shift = flight.first - self.first
        self.stored += [(shift + index, count, at) for index, count, at in flight.stored]
        self.failed += [(shift + one[0], *one[1:]) for one in flight.failed]
        self.is_over = flight.last >= self.last
        return self.is_over

    def tell(self) -> None:
        """Call the callbacks that are due now."""
        for confirmation in list(self.watched):
            confirmation._tell()


class SpoolConfirmation(Struct, eq=False, gc=False):
    """The outcome of a put into a spool, in two steps: accepted here, confirmed by the queue.

    A confirmation stays open over partitions and failovers and ends once. Confirmations end with
    their process: accepted puts of a former process are sent all the same, without a report.

    *Threads*: any may call any method.
    """

    # A Struct that the collector does not look at, because every put makes one. A confirmation is
    # in a circle with a batch only as long as its callbacks are due.
    _route: Accepting
    _is_many: bool = False
    _batch: Batch | None = None
    """Batch of a single put, once accepted."""
    _index: int = 0
    """Index of a single put in its batch."""
    _many: tuple[tuple[Batch, int, int], ...] = ()
    """(batch, index in the batch, count) of a put_many, once accepted."""
    _callbacks: deque[Callback] | None = None
    _accept_callbacks: deque[Callback] | None = None

    @property
    def _parts(self) -> tuple[tuple[Batch, int, int], ...]:
        batch = self._batch
        return self._many if batch is None else ((batch, self._index, 1),)

    # --- Users ----------------------------------------------------------------------------

    @property
    def is_accepted(self) -> bool:
        """True once the message is on the local disk and will certainly be sent."""
        parts = self._parts
        return bool(parts) and all(part[0].is_accepted for part in parts)

    def done(self) -> bool:
        """Return true if the outcome is known."""
        parts = self._parts
        return bool(parts) and all(part[0].is_over for part in parts)

    def accepted(self, timeout: float | None = None) -> None:
        """Wait until the message is on the local disk (fsynced).

        Raises:
            NotConfirmed: the message could not be written, and will not be sent.
            ConfirmUnknown: the disk failed during the write.
            TimeoutError: not accepted after `timeout` seconds.
        """
        in_thread(self._accepting(timeout))

    def _accepting(self, timeout: float | None) -> Waits[None]:
        """`accepted`, for threads and for asyncio."""
        if not self.is_accepted and not self.done():
            signal = self._route.outcomes.signal
            wait = Wait(signal, lambda: self.is_accepted or self.done(), deadline_of(timeout))
            if not (yield wait):
                raise TimeoutError(f"not on the own disk after {timeout} s: wait again")
        if not self.is_accepted:
            self.result(0)

    def result(self, timeout: float | None = None) -> Any:
        """Wait until the queue has the message; return its sequence (put_many: a range).

        Durability: the message is on disk on every member in sync then.

        Raises:
            NotConfirmed: certainly not stored: refused by the queue, or dropped here.
            ConfirmUnknown: the message was stored, and lost by an unclean promotion. Or the message
                was dropped here after it was sent, before the queue answered. Or the spool was
                closed or has failed: the next opening sends all accepted messages.
            TimeoutError: no outcome yet after `timeout` seconds. The message stays spooled.
        """
        error = self.exception(timeout)
        if error is not None:
            raise error
        return self._value()

    def exception(self, timeout: float | None = None) -> MirrorQError | None:
        """Wait for the outcome; return its error, None on success.

        Raises:
            TimeoutError: no outcome yet after `timeout` seconds.
        """
        in_thread(self._ending(timeout))
        return self._error()

    def _ending(self, timeout: float | None) -> Waits[None]:
        """Wait for the outcome, for threads and for asyncio."""
        if self.done() or (
            yield Wait(self._route.outcomes.signal, self.done, deadline_of(timeout))
        ):
            return
        why = self._route.why if timeout else ""
        state = "accepted, and not yet confirmed" if self.is_accepted else "not yet accepted"
        raise TimeoutError(
            f"{state} after {timeout} s: it stays spooled, wait again"
            + (f". It waits because {why}" if why else "")
        )

    def add_done_callback(self, callback: Callback) -> None:
        """Have `callback(self)` called at the outcome, on the spool's callback thread."""
        if self._callbacks is None:
            self._callbacks = deque()
        self._callbacks.append(callback)
        self._watch()

    def add_accept_callback(self, callback: Callback) -> None:
        """Have `callback(self)` called when the message is accepted, or never will be."""
        if self._accept_callbacks is None:
            self._accept_callbacks = deque()
        self._accept_callbacks.append(callback)
        self._watch()

    @property
    def shard(self) -> int | None:
        """None: sharded queues have no spools."""
        return None

    def __await__(self) -> Generator[Any, None, Any]:
        if not self.done():
            loop = asyncio.get_running_loop()
            future: asyncio.Future[None] = loop.create_future()

            def resolve() -> None:
                if not future.done():
                    future.set_result(None)

            self.add_done_callback(lambda _: loop.call_soon_threadsafe(resolve))
            yield from future
        return self.result(0)

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"{self!r} ends in this process and cannot be pickled: send its result")

    def __repr__(self) -> str:
        if self.done():
            return f"<SpoolConfirmation {self._error() or self._value()!r}>"
        return f"<SpoolConfirmation {'accepted' if self.is_accepted else 'open'}>"

    # --- The spool --------------------------------------------------------------------------

    def _wait(self, timeout: float | None) -> None:
        self.exception(timeout)

    def _finish(self, value: Any, error: MirrorQError | None) -> None:
        """Take the outcome of the local queue; single puts get theirs by `_take_place`."""
        if error is not None:
            self._take_place(Batch(0, 0, error), 0)
            return
        self._many = self._route.note_many(value)
        if self._callbacks or self._accept_callbacks:
            self._watch()

    def _take_place(self, batch: Batch, index: int) -> None:
        """Set the batch and the index of a single put."""
        self._batch, self._index = batch, index
        if self._callbacks or self._accept_callbacks:
            self._watch()

    def _watch(self) -> None:
        """Register for changes of the batches, and check for earlier changes."""
        parts = self._parts
        for batch, _, _ in parts:
            self._route.watched.add(batch)
            batch.watched.append(self)
        self._tell()
        for batch, _, _ in parts:
            if batch.is_over:
                batch.watched.clear()
                self._route.watched.discard(batch)

    def _tell(self) -> None:
        """Queue the due callbacks, each at most once."""
        is_done = self.done()
        if self._accept_callbacks and (is_done or self.is_accepted):
            self._route.outcomes.call_all(self._accept_callbacks, self)
        if self._callbacks and is_done:
            self._route.outcomes.call_all(self._callbacks, self)

    def _error(self) -> MirrorQError | None:
        refused: list[range] = []
        reason, is_lost, offset = "", False, 0
        for batch, index, count in self._parts:
            if batch.error is not None:
                return batch.error
            for first, number, why, may_be_there in batch.failed:
                low, high = max(first, index), min(first + number, index + count)
                if low < high:
                    refused.append(range(offset + low - index, offset + high - index))
                    reason, is_lost = why, is_lost or may_be_there
            offset += count
        if not refused:
            return None
        if is_lost:
            return unknown_error(reason)
        if not self._is_many:
            return NotConfirmed(f"the message was not stored: {reason}")
        number = sum(map(len, refused))
        text = f"{number} of {offset} messages were not stored: {reason}"
        return NotConfirmed(text, self._stored(), refused)

    def _stored(self) -> list[range]:
        found: list[range] = []
        for batch, index, count in self._parts:
            for first, number, sequence in sorted(batch.stored):
                low, high = max(first, index), min(first + number, index + count)
                if low < high:
                    piece = range(sequence + low - first, sequence + high - first)
                    if found and found[-1].stop == piece.start:
                        piece = range(found.pop().start, piece.stop)
                    found.append(piece)
        return found

    def _value(self) -> Any:
        stored = self._stored()
        if not self._is_many:
            return stored[0].start
        if len(stored) <= 1:
            return stored[0] if stored else range(0)
        return tuple(sequence for piece in stored for sequence in piece)


def unknown_error(reason: str) -> ConfirmUnknown:
    """Return the error of a message that was stored and lost."""
    return ConfirmUnknown(f"it is not known whether somebody has the message: {reason}")
