"""Leases and claims: messages are held without their bodies, to be read elsewhere.

    with bulk.lease(queue, 10_000, "nightly job 7") as lease:
        …                                  # read lease.ranges, in this process or in others
        lease.ack(timeout=60)

A *lease* holds messages as a consumer does: no other consumer gets them. Each message goes back to
its place, with its count raised, when the lease gives the message back, when the handle is closed,
or when the process is gone. A lease lasts as long as the connection of the handle;
`consumer_timeout_ms` does not end a lease. After a change of master the messages are taken again,
as a rule before other consumers get them; a message that another consumer got shows as a refused
ack. An ack that crosses the new taking is resent, under the new delivery numbers.

A *claim* holds a whole queue: no other consumer gets a message while the claim lasts, and its
holder acks by sequence. A claim is granted only while no other consumer takes or holds messages;
the refusal names the consumer.

*Threads*: every method of `RangeLease` and `Claim` may be called from any thread; a `LeaseHolder`
belongs to the host's thread.
"""

from __future__ import annotations

import contextlib
import sys

from mirrorq import clock
from mirrorq.api.acks import PieceSettle
from mirrorq.api.arguments import (
    check_count,
    check_sequence,
    check_text,
    check_timeout,
    deadline_of,
    left_until,
)
from mirrorq.api.channel import RingChannel
from mirrorq.api.closing import Closing
from mirrorq.api.confirmation import Settlement
from mirrorq.api.lease_holder import LeaseHolder
from mirrorq.containers.ranges import Range, RangeSet
from mirrorq.errors import AckRefused, MirrorQError, PreconditionFailed, QueueDown
from mirrorq.protocol.sessions import Delivery, Purged
from mirrorq.session.calls import SettleCall, ack_range_request
from mirrorq.waiting import Latch

SOON_S = 0.001
"""Pause before a lease asks for more messages while messages come; else the pause grows."""
LOOK_S = 0.05
"""Interval of looks while waiting for messages or for a claim."""
CLOSE_S = 1.0
"""The end of a claim waits this long for the master to note the end."""
COUNT_MAX = 1 << 40
"""More messages than any queue has."""


class _Holding:
    """Common base of a lease and a claim: a holder at its handle. From any thread."""

    def __init__(self, handle: RingChannel, label: str, exclusive: bool, wanted: int) -> None:
        check_text("a label", label)
        self._handle = handle
        self._label = str.__str__(label)
        self._exclusive = exclusive
        self._holder = LeaseHolder(handle.next_consumer(), wanted)
        self._is_subscribed = False
        """The holder has subscribed, and has not left since."""

    def _subscribe(self) -> None:
        """Subscribe to the queue, and wait for a possible refusal."""
        handle, holder = self._handle, self._holder
        self._is_subscribed = True

        def begin() -> None:
            session = handle.session
            assert session is not None
            holder.refused = ""
            handle.holders[holder.number] = holder
            session.subscribe(holder.number, 1, self._exclusive, False, True, self._label)

        handle.on_host(begin)
        # A refusal comes before the answer to a later question.
        handle.counts()

    def _end(self) -> None:
        """Leave the queue: on the host's thread."""
        handle, holder = self._handle, self._holder
        session = handle.session
        if session is not None:
            holder.end_lease(session)
        handle.holders.pop(holder.number, None)

    def _leave(self) -> None:
        handle = self._handle
        left = Latch()

        def leave() -> None:
            self._end()
            left.set()

        if not handle.is_closed:
            handle.on_host(leave)
            self._is_subscribed = False
            left.wait(1.0)
            with contextlib.suppress(MirrorQError):
                # Others may have the queue right after the return: the answer comes after the
                # leaving.
                handle.counts()


class RangeLease(_Holding):
    """Messages that this handle holds without their bodies. See `bulk.lease`.

    *Threads*: any, one at a time.
    """

    def __init__(
        self, handle: RingChannel, count_max: int | None, label: str, timeout: float
    ) -> None:
        if count_max is not None:
            check_count("count_max", count_max)
        check_timeout(timeout)
        super().__init__(handle, label, False, count_max or COUNT_MAX)
        self.ranges: tuple[Range, ...] = ()
        """Their sequences, in order."""
        self.is_over: bool = False
        """Whether the messages were acked or given back."""
        try:
            self._take(count_max, timeout)
        except BaseException:
            # The caller gets no lease: no message may stay held.
            if not self.is_over:
                with contextlib.suppress(MirrorQError):
                    self.give_back(CLOSE_S)
            raise

    @property
    def count(self) -> int:
        """Number of messages at the lease's begin."""
        return self._holder.sequences.count

    def _take(self, count_max: int | None, timeout: float) -> None:
        handle, holder = self._handle, self._holder
        deadline = clock.monotonic() + timeout
        holder.wanted = min(handle.counts().ready, count_max or COUNT_MAX)
        self._subscribe()
        seen, pause = 0, SOON_S
        while not holder.refused and (count := holder.sequences.count) < holder.wanted:
            if handle.counts().ready == 0 or clock.monotonic() >= deadline:
                break
            # The master delivers a portion at each question: the next question follows soon.
            pause = SOON_S if count > seen else min(2 * pause, LOOK_S)
            clock.sleep(pause)
            seen = count
        done = Latch()

        def complete() -> None:
            holder.is_complete = True
            holder.wanted = holder.sequences.count
            self.ranges = tuple(holder.sequences)
            done.set()

        handle.on_host(complete)
        if not done.wait(max(timeout, 1.0)):
            raise QueueDown(f"the lease on queue {handle.name!r} did not begin within {timeout} s")
        if holder.refused:
            self._leave()
            raise PreconditionFailed(f"queue {handle.name!r}: {holder.refused}")

    def ack(self, timeout: float | None = None) -> int:
        """Ack all messages; return how many were acked.

        Args:
            timeout: seconds to wait for the master's answer. None waits.

        Raises:
            AckRefused: some messages had gone back to the queue before; the others are acked.
            NoQuorum, QueueDown: no outcome in time: the ack may still take effect.
        """
        lost, why = self._settle("ack", timeout)
        if lost:
            raise AckRefused(
                f"{lost.count} of {self.count} messages of queue {self._handle.name!r}, "
                f"{lost.first} the first of them, had left the lease before it was acked: {why}. "
                f"They come again; the other {self.count - lost.count} are acked"
            )
        return self.count

    def give_back(self, timeout: float | None = None) -> None:
        """Return all messages to their places, counted as a delivery.

        Args:
            timeout: seconds to wait for the master's answer. None waits.

        Raises:
            NoQuorum, QueueDown: no outcome in time: the return may still take effect.
        """
        self._settle("nack", timeout)

    def _settle(self, kind: str, timeout: float | None) -> tuple[RangeSet, str]:
        """End the lease; return which messages were refused, and why."""
        handle, deadline = self._handle, deadline_of(timeout)
        handle.check()
        if self.is_over:
            raise ValueError(f"the lease on queue {handle.name!r} is over already")
        lost, why = RangeSet(), ""
        refused: tuple[Delivery, ...] | None = None
        try:
            self.is_over = True
            while refused is None or refused:
                settle = self._send(kind, refused)
                settle.settlement.result(left_until(deadline))
                for piece in settle.pieces:
                    lost.remove(piece.first, piece.last)
                for piece in settle.refused:
                    lost.add(piece.first, piece.last)
                refused, why = settle.refused, settle.why or why
        except TimeoutError:
            raise handle.why_not(
                QueueDown(
                    f"the master of queue {handle.name!r} did not answer for {timeout} s: it "
                    f"is not known whether the lease's {kind} took effect"
                )
            ) from None
        finally:
            handle.on_host(self._end)
        return lost, why

    def _send(self, kind: str, refused: tuple[Delivery, ...] | None) -> PieceSettle:
        """Settle all messages, or the `refused` messages that have newer delivery numbers."""
        handle, holder = self._handle, self._holder
        settle = PieceSettle(Settlement(handle.outcomes))

        def send() -> None:
            session = handle.session
            assert session is not None
            settle.pieces = holder.settle(refused)
            if settle.pieces and not session.closed:
                session.settle(SettleCall(settle, kind, settle.pieces))
                return
            settle.refused, settle.why = settle.pieces, session.closed
            settle.settlement._finish(None, None)
            handle.outcomes.notify()

        handle.on_host(send)
        return settle

    def __enter__(self) -> RangeLease:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Give unacked messages back. When the interpreter ends, its node or client has done so.

        Raises:
            MirrorQError: the messages could not be given back, and the block has not raised.
        """
        if self.is_over or sys.is_finalizing():
            return
        try:
            self.give_back(30.0)
        except MirrorQError:
            # They go back by themselves, and the block's own exception says more.
            if kind is None:
                raise


class Claim(_Holding, Closing):
    """A queue that this handle holds alone. See `bulk.claim`.

    *Threads*: any, one at a time.
    """

    def __init__(self, handle: RingChannel, label: str, timeout: float) -> None:
        super().__init__(handle, label, True, 0)
        try:
            self.ensure(timeout)
        except BaseException:
            # The caller gets no claim: a forgotten claim would block the next claim.
            if self._is_subscribed:
                self._leave()
            raise

    def ensure(self, timeout: float) -> None:
        """Have the claim, again if the claim was lost meanwhile to a consumer that came first after
        a change of master.

        Raises:
            PreconditionFailed: others had the queue for `timeout` seconds; the text names them.
        """
        check_timeout(timeout)
        handle, holder = self._handle, self._holder
        deadline = clock.monotonic() + timeout
        while holder.refused or holder.number not in handle.holders:
            self._subscribe()
            if not holder.refused:
                return
            if clock.monotonic() >= deadline:
                why = holder.refused
                self._leave()
                raise PreconditionFailed(
                    f"queue {handle.name!r} could not be had alone within {timeout} s: {why}"
                )
            clock.sleep(min(LOOK_S * 4, max(timeout, 0.01)))

    def ack(self, first: int, last: int, timeout: float = 30.0) -> int:
        """Ack all live messages from `first` to `last`; return how many were acked.

        A repeated call acks the rest.

        Args:
            first, last: sequences, both included.
            timeout: seconds to wait for the master's answer.

        Raises:
            PreconditionFailed: the claim was lost; nothing is acked.
            NoQuorum, QueueDown: no outcome in time.
        """
        check_sequence("first", first)
        check_sequence("last", last)
        handle = self._handle
        reply = handle.ask(ack_range_request(self._holder.number, first, last), timeout)
        assert isinstance(reply, Purged)
        if reply.why:
            self._holder.refused = self._holder.refused or reply.why
            raise PreconditionFailed(f"queue {handle.name!r}: {reply.why}")
        return reply.count

    def close(self) -> None:
        """End the claim: other consumers can have the queue after the return. When the interpreter
        ends, its node or client has ended the claim."""
        if sys.is_finalizing():
            return
        self._leave()
        if not self._handle.is_closed:
            # The master answers after it has noted the leaving.
            with contextlib.suppress(MirrorQError):
                self._handle.counts(CLOSE_S)
