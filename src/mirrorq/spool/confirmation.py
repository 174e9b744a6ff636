"""`SpoolConfirmation`: what a put into a spool returns, and the batch whose outcome it shares.

Neighbouring messages that the local queue has confirmed together are one `Batch`; their
confirmations look into it. The spool knows it by a weak reference alone. So a put whose
confirmation nobody keeps leaves nothing in memory, however long the cluster is away.

*Threads*: the local host's thread makes a batch, the forwarder ends it. The lists of callbacks are
deques, which users' threads append to and whoever ends something pops from.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from msgspec import Struct

from mirrorq.api.arguments import deadline_of
from mirrorq.api.waits import Wait, Waits, in_thread
from mirrorq.errors import ConfirmUnknown, MirrorQError, NotConfirmed

if TYPE_CHECKING:
    from mirrorq.api.completion import Outcomes
    from mirrorq.spool.line import Flight

Callback = Callable[[Any], object]


class Accepting(Protocol):
    """A route, as a confirmation knows it."""

    outcomes: Outcomes
    """By which its users wait."""
    watched: set[Batch]
    """Batches whose callbacks are due: nobody else may keep them."""

    @property
    def why(self) -> str:
        """Why what waits is not being sent."""
        ...

    def note_many(self, sequences: Sequence[int]) -> tuple[tuple[Batch, int, int], ...]:
        """A put_many is on the own disk, under these local sequences: its batches."""
        ...


class Batch:
    """Neighbouring local messages: whether they are accepted, and what became of them."""

    __slots__ = ("__weakref__", "error", "failed", "first", "is_accepted", "is_over", "last",
                 "stored", "watched")  # fmt: skip

    def __init__(self, first: int, last: int, error: MirrorQError | None = None) -> None:
        self.first = first
        self.last = last
        """Local sequences; above the last: none."""
        self.is_accepted = error is None
        self.is_over = last < first or error is not None
        self.error = error
        """Why none of it was accepted, or of all that had no outcome when the spool ended."""
        self.stored: list[tuple[int, int, int]] = []
        """(index, count, first sequence)."""
        self.failed: list[tuple[int, int, str, bool]] = []
        """(index, count, reason, whether the target may have had them)."""
        self.watched: deque[SpoolConfirmation] = deque()
        """Those with callbacks."""

    def note(self, flight: Flight) -> bool:
        """A flight with messages of it has ended, in order; whether all of it has now."""
        shift = flight.first - self.first
        self.stored += [(shift + index, count, at) for index, count, at in flight.stored]
        self.failed += [(shift + one[0], *one[1:]) for one in flight.failed]
        self.is_over = flight.last >= self.last
        return self.is_over

    def tell(self) -> None:
        """Call back whoever waits for what has come true now."""
        for confirmation in list(self.watched):
            confirmation._tell()


class SpoolConfirmation(Struct, eq=False, gc=False):
    """The outcome of a put into a spool, in two steps: accepted here, confirmed by the queue.

    It stays open over partitions and failovers and ends once. It does not outlive its process: what
    a former process has put is sent all the same, and nobody is told.

    *Threads*: any may call any method.
    """

    # A Struct that the collector does not look at, because every put makes one. It is in a circle
    # with a batch only as long as callbacks of it are due.
    _route: Accepting
    _is_many: bool = False
    _batch: Batch | None = None
    """Of a single put, once it is accepted."""
    _index: int = 0
    """Its place in it."""
    _many: tuple[tuple[Batch, int, int], ...] = ()
    """(batch, index in it, count) of a put_many, once it is accepted."""
    _callbacks: deque[Callback] | None = None
    _accept_callbacks: deque[Callback] | None = None

    @property
    def _parts(self) -> tuple[tuple[Batch, int, int], ...]:
        batch = self._batch
        return self._many if batch is None else ((batch, self._index, 1),)

    # --- Users ----------------------------------------------------------------------------

    @property
    def is_accepted(self) -> bool:
        """Whether it is on the own disk, and will be sent whatever happens here."""
        parts = self._parts
        return bool(parts) and all(part[0].is_accepted for part in parts)

    def done(self) -> bool:
        """Whether the outcome is known."""
        parts = self._parts
        return bool(parts) and all(part[0].is_over for part in parts)

    def accepted(self, timeout: float | None = None) -> None:
        """Wait until it is on the own disk (fsynced).

        Raises:
            NotConfirmed: it could not be written; it will not be sent.
            ConfirmUnknown: the disk has failed as it was written.
            TimeoutError: it is not yet after `timeout` seconds.
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
        """Wait until the queue has it; return its sequence (put_many: a range).

        Durability: it is on disk on every member in sync then.

        Raises:
            NotConfirmed: certainly not stored: refused by the queue, or dropped here.
            ConfirmUnknown: it was stored, and lost by an unclean promotion; or it was dropped here
                after it was sent, before the queue answered; or the spool was closed, or has
                failed: what it has accepted is sent when it is opened again.
            TimeoutError: no outcome yet after `timeout` seconds. It stays spooled.
        """
        error = self.exception(timeout)
        if error is not None:
            raise error
        return self._value()

    def exception(self, timeout: float | None = None) -> MirrorQError | None:
        """Wait for the outcome; return its error, None when it went well.

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
        """Have `callback(self)` called when it has ended, on the spool's callback thread."""
        if self._callbacks is None:
            self._callbacks = deque()
        self._callbacks.append(callback)
        self._watch()

    def add_accept_callback(self, callback: Callback) -> None:
        """Have `callback(self)` called when it is accepted, or never will be."""
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

    def __repr__(self) -> str:
        if self.done():
            return f"<SpoolConfirmation {self._error() or self._value()!r}>"
        return f"<SpoolConfirmation {'accepted' if self.is_accepted else 'open'}>"

    # --- The spool --------------------------------------------------------------------------

    def _wait(self, timeout: float | None) -> None:
        self.exception(timeout)

    def _finish(self, value: Any, error: MirrorQError | None) -> None:
        """The local queue has an outcome; that of single puts comes by `_take_place`."""
        if error is not None:
            self._take_place(Batch(0, 0, error), 0)
            return
        self._many = self._route.note_many(value)
        if self._callbacks or self._accept_callbacks:
            self._watch()

    def _take_place(self, batch: Batch, index: int) -> None:
        """It is a part of this batch."""
        self._batch, self._index = batch, index
        if self._callbacks or self._accept_callbacks:
            self._watch()

    def _watch(self) -> None:
        """Be called when something changes; it may have changed already."""
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
        """Have called what is due, each by whoever takes it."""
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
    """The error of a message that was stored and lost."""
    return ConfirmUnknown(f"it is not known whether somebody has the message: {reason}")
