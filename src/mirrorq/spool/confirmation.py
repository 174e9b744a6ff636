"""`SpoolConfirmation`: the outcome of a put into a spool, in two steps.

The local queue ends the first step (`_finish`, on its host's thread): the message is accepted. The
forwarder ends the second one (`_end`): the target has it. In between the spool knows it by a weak
reference alone. So a put whose confirmation nobody keeps leaves nothing in memory, however long
the cluster is away.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from mirrorq.api.confirmation import Confirmation
from mirrorq.errors import ConfirmUnknown, MirrorQError, NotConfirmed

if TYPE_CHECKING:
    from mirrorq.api.confirmation import Callback
    from mirrorq.spool.line import Flight


class Accepting(Protocol):
    """A route, as a confirmation knows it."""

    @property
    def why(self) -> str:
        """Why what waits is not being sent."""
        ...

    def note_accepted(self, confirmation: SpoolConfirmation, local: Any) -> None:
        """It is on the own disk, under these local sequences."""
        ...


class SpoolConfirmation(Confirmation, weakref=True):
    """The outcome of a put into a spool, in two steps: accepted here, confirmed by the queue.

    It stays open over partitions and failovers and ends once. It does not outlive its process: what
    a former process has put is sent all the same, and nobody is told.

    *Threads*: any may call any method. Callbacks run on the spool's callback thread.
    """

    _route: Accepting | None = None
    _is_many: bool = False
    _local: Any = None
    """The local sequence, or those of a put_many: once it is accepted."""
    _left: int = 0
    """Messages of a put_many without an outcome."""
    _stored: list[tuple[int, int, int]] | None = None
    """Of a put_many: (local sequence, count, first sequence) of messages that the queue has."""
    _failed: list[tuple[int, int, str]] | None = None
    """(local sequence, count, reason) of those that it has refused or lost."""
    _is_lost: bool = False
    _on_accept: deque[Callback] | None = None

    # --- Users ----------------------------------------------------------------------------

    def is_accepted(self) -> bool:
        """Whether it is on the own disk, and will be sent whatever happens here."""
        return self._local is not None

    def accepted(self, timeout: float | None = None) -> None:
        """Wait until it is on the own disk (fsynced).

        Raises:
            NotConfirmed: it could not be written; it will not be sent.
            ConfirmUnknown: the disk has failed as it was written.
            TimeoutError: it is not yet after `timeout` seconds.
        """

        def is_decided() -> bool:
            return self.is_accepted() or self.done()

        if not self._outcomes.wait_for(is_decided, timeout):
            raise TimeoutError(f"not on the own disk after {timeout} s: wait again")
        if not self.is_accepted():
            self.result(0)

    def result(self, timeout: float | None = None) -> Any:
        """Wait until the queue has it; return its sequence (put_many: a range).

        Durability: it is on disk on every member in sync then.

        Raises:
            NotConfirmed: certainly not stored: refused by the queue, or dropped here.
            ConfirmUnknown: it was stored, and lost by an unclean promotion; or the spool was
                closed, or has failed: what it has accepted is sent when it is opened again.
            TimeoutError: no outcome yet after `timeout` seconds. It stays spooled.
        """
        return self._result(timeout)

    def add_accept_callback(self, callback: Callback) -> None:
        """Have `callback(self)` called when it is accepted, or never will be."""
        if self._on_accept is None:
            self._on_accept = deque()
        self._on_accept.append(callback)
        if self.is_accepted() or self.done():
            self._tell_accepted()

    def _wait(self, timeout: float | None) -> None:
        try:
            super()._wait(timeout)
        except TimeoutError:
            why = self._why_open() if timeout else ""
            state = "accepted, and not yet confirmed" if self.is_accepted() else "not yet accepted"
            raise TimeoutError(
                f"{state} after {timeout} s: it stays spooled, wait again"
                + (f". It waits because {why}" if why else "")
            ) from None

    def _why_open(self) -> str:
        return "" if self._route is None else self._route.why

    def __repr__(self) -> str:
        if not self.done() and self.is_accepted():
            return "<SpoolConfirmation accepted>"
        return super().__repr__()

    # --- The spool --------------------------------------------------------------------------

    def _finish(self, value: Any, error: MirrorQError | None) -> None:
        """The local queue has an outcome."""
        if error is not None:
            self._end(None, error)
            return
        self._local = value
        assert self._route is not None
        self._route.note_accepted(self, value)
        if self._on_accept:
            self._tell_accepted()

    def _finish_empty(self) -> None:
        """It is a put_many of nothing."""
        self._local = range(0)
        self._end(range(0), None)

    def _end(self, value: Any, error: MirrorQError | None) -> None:
        """It has ended."""
        if self._is_done:
            return
        super()._finish(value, error)
        if self._on_accept:
            self._tell_accepted()

    def _tell_accepted(self) -> None:
        assert self._on_accept is not None
        self._outcomes.call_all(self._on_accept, self)

    def _note(self, flight: Flight) -> None:
        """Messages of this put_many are among those of a flight that has ended."""
        for first, last in _pieces(self._local):
            for index, count, sequence in flight.stored:
                low, high = _common(flight.first + index, count, first, last)
                if low <= high:
                    shift = low - flight.first - index
                    self._stored = self._stored or []
                    self._stored.append((low, high - low + 1, sequence + shift))
                    self._left -= high - low + 1
            for index, count, reason in flight.failed:
                low, high = _common(flight.first + index, count, first, last)
                if low <= high:
                    self._note_failed(low, high, reason, is_lost=flight.is_lost)
        self._end_many()

    def _note_failed(self, first: int, last: int, reason: str, *, is_lost: bool = False) -> None:
        self._failed = self._failed or []
        self._failed.append((first, last - first + 1, reason))
        self._is_lost |= is_lost
        self._left -= last - first + 1

    def _note_dropped(self, first: int, last: int, reason: str) -> None:
        """Messages of this put_many have ended here."""
        for low, high in _pieces(self._local):
            low, high = max(low, first), min(high, last)
            if low <= high:
                self._note_failed(low, high, reason)
        self._end_many()

    def _end_many(self) -> None:
        if self._left:
            return
        stored = _ranges(self._stored or ())
        if not self._failed:
            single = len(stored) == 1
            self._end(stored[0] if single else tuple(n for one in stored for n in one), None)
            return
        reason = self._failed[-1][2]
        if self._is_lost:
            self._end(None, unknown_error(reason))
            return
        places = _places(self._local, self._failed)
        text = f"{sum(map(len, places))} of {len(self._local)} messages were not stored: {reason}"
        self._end(None, NotConfirmed(text, stored, places))


def unknown_error(reason: str) -> ConfirmUnknown:
    """The error of a message that was stored and lost."""
    return ConfirmUnknown(f"it is not known whether somebody has the message: {reason}")


def _pieces(local: Any) -> list[tuple[int, int]]:
    """First and last of each run of local sequences, in order."""
    if isinstance(local, range):
        return [(local.start, local.stop - 1)]
    found: list[tuple[int, int]] = []
    for sequence in local:
        if found and found[-1][1] + 1 == sequence:
            found[-1] = (found[-1][0], sequence)
        else:
            found.append((sequence, sequence))
    return found


def _common(first: int, count: int, low: int, high: int) -> tuple[int, int]:
    return max(first, low), min(first + count - 1, high)


def _ranges(stored: Sequence[tuple[int, int, int]]) -> list[range]:
    """The queue's sequences in the order of the put, neighbours as one range."""
    found: list[range] = []
    for _, count, sequence in sorted(stored):
        if found and found[-1].stop == sequence:
            found[-1] = range(found[-1].start, sequence + count)
        else:
            found.append(range(sequence, sequence + count))
    return found


def _places(local: Any, failed: Sequence[tuple[int, int, str]]) -> list[range]:
    """Places in the list of a put_many, of the messages that were not stored."""
    offsets = {sequence: place for place, sequence in enumerate(local)}
    found: list[range] = []
    for first, count, _ in sorted(failed):
        start = offsets[first]
        if found and found[-1].stop == start:
            found[-1] = range(found[-1].start, start + count)
        else:
            found.append(range(start, start + count))
    return found
