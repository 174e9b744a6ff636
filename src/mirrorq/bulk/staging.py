"""Staged publishing: writes of many processes that show all at once, exactly once.

    # the driver: transaction, version, queue
    staged = bulk.staged(client, "nightly-42", 0, "orders")
    # in any process, with the same names and run (`staged.run`):
    staged = bulk.staged(client, "nightly-42", 0, "orders", run=run)
    task = staged.attempt(partition=3, attempt=17)
    task.put_many(bodies)
    part = task.finish(timeout=60)                          # small, can be pickled
    # the driver, with the parts of the attempts that count:
    staged.commit(parts, timeout=60)

Staged messages of a task are on the disk of every member in sync and invisible. `commit` is one op:
the op shows all messages of the named attempts, in order of partitions, and drops all other staged
messages of the version. Any number of commits of one (transaction, version), by any driver, take
effect once; later commits get "committed already". A driver that begins a version again takes
another run. Staged messages without a commit expire.

A task may stage for several queues (`queue=`). The queue named in `staged` decides the commit, the
same queue in every run; each other queue shows its part a moment later, even after crashes.

*Threads*: a `Staged` may be used by several threads, each with attempts of its own.
"""

from __future__ import annotations

import itertools
import threading
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import add
from typing import TYPE_CHECKING, Protocol

from attrs import frozen

from mirrorq import clock
from mirrorq.api.arguments import (
    check_size,
    check_text,
    checked_bodies,
    deadline_of,
    left_until,
)
from mirrorq.api.batching import error_of
from mirrorq.api.closing import Closing
from mirrorq.api.confirmation import Confirmation
from mirrorq.api.waits import in_thread
from mirrorq.bulk.staged_chunk import ArrowColumn, Gathered, StagedChunk, StagedPut
from mirrorq.errors import (
    ConfigError,
    ConfirmUnknown,
    Full,
    MirrorQError,
    NotConfirmed,
    PreconditionFailed,
)
from mirrorq.protocol.shard_names import shard_name
from mirrorq.protocol.staged import DONE, WAIT, AbortOp, CommitOp, SealOp, Stage, Staging, Winner
from mirrorq.session.calls import Failed, Stored
from mirrorq.wire.frames import Frame
from mirrorq.wire.ops import NAME_LENGTH_MAX
from mirrorq.wire.properties import HeaderValue, pack_properties

if TYPE_CHECKING:
    from mirrorq.api.handle import Handle
    from mirrorq.api.queue import MirroredQueue

AGAIN_S = 0.1
"""Pause before the next try of a commit into a full queue."""


class _Opener(Protocol):
    """A node or a client, as opener of queues."""

    def queue(
        self, name: str, *, passive: bool = False, timeout: float | None = 30
    ) -> MirroredQueue: ...


@frozen
class StagedPart:
    """Result of one attempt, which a task gives to its driver. Can be pickled."""

    transaction: str
    version: int
    run: str
    partition: int
    attempt: int
    queues: tuple[tuple[str, int, int], ...]
    """(name, chunks, messages) of each queue."""
    is_committed: bool = False
    """The version is committed already: the attempt's messages are not needed."""

    @property
    def count(self) -> int:
        """Messages staged."""
        return sum(count for _, _, count in self.queues)


@frozen
class Committed:
    """The outcome of a commit."""

    sequences: range
    """Sequences of the messages in the first queue; empty if committed before."""
    already: bool
    """The version was committed before: this call had no effect."""


class Staged(Closing):
    """One run's work on one version of a transaction: names, and handles on the used queues.
    Belongs to a driver or a task; any of its threads may use the object."""

    def __init__(
        self, opener: _Opener, transaction: str, version: int, queue: str, run: str | None
    ) -> None:
        """See `bulk.staged`."""
        self._transaction = _name("transaction", transaction)
        self._version = version
        self._queue = queue
        """Name of the deciding queue."""
        self.run: str = _name("run", uuid.uuid4().hex if run is None else run)
        """Name of this try of the version."""
        if type(version) is not int or not 0 <= version < 2**63:
            raise ConfigError(f"a version is a whole number, 0 or more, not {version!r}")
        self._name = (self._transaction, version, self.run)
        self._opener = opener
        self._handles: dict[str, MirroredQueue] = {}
        self._lock = threading.RLock()

    def close(self) -> None:
        """Close the opened handles. Staged messages stay."""
        with self._lock:
            handles, self._handles = self._handles, {}
        for handle in handles.values():
            handle.close()

    # --- Tasks ----------------------------------------------------------------------------

    def attempt(self, partition: int, attempt: int) -> StagedAttempt:
        """Begin one try of one task.

        Args:
            partition: of the job's output, 0 or more: messages are in order of partitions.
            attempt: 0 or more; no two tries of a partition in one run have the same number.

        Returns:
            An object by which this try puts. May be sent to another process.

        Raises:
            ConfigError: a number is out of bounds.
        """
        for value in (partition, attempt):
            if type(value) is not int or not 0 <= value < 2**63:
                raise ConfigError(
                    f"partitions and attempts are whole numbers, 0 or more, not {value!r}"
                )
        return StagedAttempt(self, partition, attempt)

    # --- The driver -----------------------------------------------------------------------

    def commit(self, parts: Iterable[StagedPart], timeout: float | None = None) -> Committed:
        """Show the messages of the parts, and drop all other messages of the version.

        Args:
            parts: one for each partition.
            timeout: seconds to wait for the outcome, and for room in a queue whose policy lets
                puts wait.

        Returns:
            The committed messages: of this call, or of an earlier call.

        Raises:
            ValueError: the parts are not of this run, or two are of one partition.
            NotConfirmed: the commit was refused: the run was aborted or has expired, a part is not
                there whole, or the queue does not take so much. Nothing is shown, and nothing of
                this run ever will be, unless the error says that the queue is full.
            Full, NoQuorum, QueueDown: no outcome in time. Commit again, or look later: the commit
                has happened or not, and can only happen once.
        """
        listed = self._checked(parts)
        deadline = deadline_of(timeout)
        if any(part.is_committed for part in listed):
            return Committed(range(0), True)
        winners = _winners(listed, self._queue)
        others = self._seal(listed, deadline)
        op = CommitOp(*self._name, winners, others=others)
        outcome = self._decide(self._queue, op, deadline)
        if isinstance(outcome, Stored):
            first = outcome.first_sequence + 1
            return Committed(range(first, first + sum(one[3] for one in winners)), False)
        if outcome.reason.startswith(DONE):
            return Committed(range(0), True)
        raise NotConfirmed(f"version {self._version} was not committed: {outcome.reason}")

    def abort(self, parts: Iterable[StagedPart] = (), timeout: float | None = None) -> bool:
        """Give the run up: none of its messages will ever show.

        Args:
            timeout: seconds to wait for the outcome. None waits.
            parts: parts known to the driver: their staged messages are dropped now, others
                when another run commits, or at expiry.

        Returns:
            Whether the run is given up; False: the version is committed already, and stays so.

        Raises:
            Full, NoQuorum, QueueDown: no outcome in time.
        """
        deadline = deadline_of(timeout)
        others = tuple(self._ring(name).queue_id for name in self._others(parts))
        op = AbortOp(*self._name, others=others)
        outcome = self._decide(self._queue, op, deadline)
        if isinstance(outcome, Stored):
            return True
        if outcome.reason.startswith(DONE):
            return False
        raise NotConfirmed(f"run {self.run!r} was not aborted: {outcome.reason}")

    def _others(self, parts: Iterable[StagedPart]) -> list[str]:
        """Return the names of the other queues with staged messages of the parts."""
        named = [name for part in parts for name, chunks, _ in part.queues if chunks]
        return [name for name in dict.fromkeys(named) if name != self._queue]

    def _seal(self, parts: Sequence[StagedPart], deadline: float | None) -> tuple[int, ...]:
        """Have the other queues keep their winners for the deciding queue; return their ids.

        Raises:
            NotConfirmed: a queue does not have its winners whole: nothing is shown anywhere.
        """
        sealed = []
        home = self._ring(self._queue).queue_id
        for queue in self._others(parts):
            winners = _winners(parts, queue)
            op = SealOp(*self._name, winners, home)
            outcome = self._decide(queue, op, deadline)
            if isinstance(outcome, Failed) and not outcome.reason.startswith(DONE):
                raise NotConfirmed(
                    f"version {self._version} was not committed: queue {queue!r}: {outcome.reason}"
                )
            sealed.append(self._ring(queue).queue_id)
        return tuple(sealed)

    def _checked(self, parts: Iterable[StagedPart]) -> list[StagedPart]:
        """Return the parts by their partitions."""
        mine, given = self._name, list(parts)
        for part in given:
            if not isinstance(part, StagedPart):
                raise TypeError(f"{part!r} is not what StagedAttempt.finish() gave")
            if (part.transaction, part.version, part.run) != mine:
                raise ValueError(f"{part} is not part of {mine}")
        listed = sorted(given, key=lambda part: part.partition)
        for one, other in itertools.pairwise(listed):
            if one.partition == other.partition:
                raise ValueError(
                    f"attempts {one.attempt} and {other.attempt} are both of partition "
                    f"{one.partition}: name the one that counts"
                )
        return listed

    def _decide(self, queue: str, op: Staging, deadline: float | None) -> Stored | Failed:
        """Ask until there is an outcome: a request may be repeated any number of times."""
        why = "there is no outcome yet: ask again"
        while True:
            outcome = self._outcome(queue, self._send(queue, op), deadline, why)
            if isinstance(outcome, Stored):
                return outcome
            if not outcome.unknown and not outcome.reason.startswith(WAIT):
                return outcome
            why = outcome.reason
            if outcome.unknown and self._ring(queue).is_closed:
                raise ConfirmUnknown(
                    f"it is not known whether {self._transaction!r}, version {self._version}, was "
                    f"committed: {outcome.reason}. Ask again: it can only happen once"
                )
            left = left_until(deadline)
            if left == 0:
                raise Full(f"queue {queue!r}: {why}")
            clock.sleep(AGAIN_S if left is None else min(AGAIN_S, left))

    def _outcome(
        self, queue: str, confirmation: Confirmation, deadline: float | None, why: str
    ) -> Stored | Failed:
        """Wait for an outcome.

        Raises:
            Full, NoQuorum, QueueDown: not in time.
        """
        try:
            outcome = confirmation.result(left_until(deadline))
        except TimeoutError:
            raise self._ring(queue).why_not(Full(f"queue {queue!r}: {why}")) from None
        assert isinstance(outcome, Stored | Failed)
        return outcome

    def _send(
        self,
        queue: str,
        asked: Stage | Staging,
        bodies: Gathered | None = None,
        properties: Sequence[bytes] | None = None,
    ) -> Confirmation:
        ring = self._ring(queue)
        confirmation = Confirmation(ring.outcomes)
        item = StagedPut(confirmation, asked, bodies or Gathered(), properties)
        in_thread(ring.puts.accepting_free(item))
        return confirmation

    def _ring(self, queue: str) -> Handle:
        with self._lock:
            handle = self._handles.get(queue)
            if handle is None:
                handle = self._opener.queue(queue, passive=True)
                if handle.shards:
                    handle.close()
                    raise PreconditionFailed(
                        f"queue {queue!r} has {handle.shards} shards: stage into each of them by "
                        f"its name, the first is {shard_name(queue, 0)!r}"
                    )
                self._handles[queue] = handle
            return handle._ring_for("staged()")


class StagedAttempt:
    """One try of one task, with gathered, unsent messages. For one thread."""

    def __init__(self, staged: Staged, partition: int, attempt: int) -> None:
        self._staged = staged
        self._partition = partition
        self._attempt = attempt
        self._chunks: dict[str, StagedChunk] = {}
        self._open: deque[tuple[str, Confirmation]] = deque()
        """(queue, outcome) of chunks, in order."""
        self._is_committed = False
        self._is_over = False

    def put(
        self,
        body: bytes | bytearray | memoryview,
        *,
        headers: Mapping[str, HeaderValue] | None = None,
        message_id: str | None = None,
        key: str | bytes | None = None,
        reply_to: str | None = None,
        correlation_id: str | None = None,
        content_type: str | None = None,
        queue: str | None = None,
    ) -> None:
        """Stage one message; arguments as of `MirroredQueue.put`.

        Args:
            queue: name of the message's queue; None: the deciding queue.

        Raises:
            NotConfirmed: an earlier stage was refused: the run is given up.
        """
        properties = pack_properties(
            headers, message_id, key, reply_to, correlation_id, content_type
        )
        self.put_many([body], [properties], queue=queue)

    def put_many(
        self,
        bodies: Sequence[bytes | bytearray | memoryview],
        properties: Sequence[bytes] | None = None,
        *,
        queue: str | None = None,
    ) -> None:
        """Stage messages, in this order.

        Args:
            properties: of each, as `message.pack_properties` makes them; None: no properties.
            queue: as of `put`.

        Raises:
            NotConfirmed: an earlier stage was refused: the run is given up.
        """
        name, ring = self._target(queue)
        limit = ring.config.message_bytes_max
        made = checked_bodies(bodies, b"", limit)
        if properties is not None:
            if len(properties) != len(made):
                raise ValueError(
                    f"{len(made)} bodies and {len(properties)} properties: give as many of each"
                )
            if max(map(add, map(len, made), map(len, properties)), default=0) > limit:
                for body, own in zip(made, properties, strict=True):
                    check_size(len(body), len(own), limit)
        self._gather(
            name, len(made), lambda chunk, start: chunk.add_messages(made, properties, start)
        )

    def put_column(self, offsets: Frame, values: Frame, *, queue: str | None = None) -> None:
        """Stage messages of an Arrow binary array without nulls: no object is made for a message.
        The buffers must not change before `finish` returns.

        Args:
            offsets: int32, one more than messages; the first may be above 0.
            values: the bytes that the offsets point into.
            queue: as of `put`.

        Raises:
            ValueError: offsets begin below 0, fall, or go beyond the values.
            MessageTooLarge: a message is above message_bytes_max: no message of the call is staged.
            NotConfirmed: an earlier stage was refused: the run is given up.
        """
        name, ring = self._target(queue)
        column = ArrowColumn.of(offsets, values)
        check_size(column.largest, 0, ring.config.message_bytes_max)
        self._gather(name, len(column), lambda chunk, start: chunk.take_column(column, start))

    def _target(self, queue: str | None) -> tuple[str, Handle]:
        if self._is_over:
            raise ValueError("the attempt is finished: a task that begins again takes another one")
        name = self._staged._queue if queue is None else queue
        return name, self._staged._ring(name)

    def _gather(self, name: str, count: int, take: Callable[[StagedChunk, int], int]) -> None:
        """Gather messages, and send chunks that become full."""
        chunk = self._chunks.get(name)
        if chunk is None:
            chunk = self._chunks[name] = StagedChunk()
        start = 0
        while start < count:
            start = take(chunk, start)
            if chunk.is_full:
                self._flush(name, chunk)

    def finish(self, timeout: float | None = None) -> StagedPart:
        """Send the rest, and wait until all messages are on the disk of every member in sync.

        Args:
            timeout: seconds to wait for the disks. None waits.

        Returns:
            The part for the driver. `is_committed` is set when the version is committed already:
            a success for the task.

        Raises:
            NotConfirmed: a chunk was refused: the run is given up, or the store is full.
            ConfirmUnknown: some messages may not be staged: take another attempt.
            Full, NoQuorum, QueueDown: no outcome in time.
        """
        for name, chunk in self._chunks.items():
            if chunk.bodies.count:
                self._flush(name, chunk)
        self._is_over = True
        deadline = deadline_of(timeout)
        while self._open:
            self._take(deadline)
        staged = self._staged
        queues = tuple((name, one.chunks, one.count) for name, one in self._chunks.items())
        return StagedPart(
            *staged._name,
            self._partition,
            self._attempt,
            queues,
            self._is_committed,
        )

    def _flush(self, name: str, chunk: StagedChunk) -> None:
        self._look()
        bodies, properties = chunk.emptied()
        if not self._is_committed:
            staged = self._staged
            stage = Stage(
                *staged._name,
                self._partition,
                self._attempt,
                chunk.chunks,
            )
            confirmation = staged._send(name, stage, bodies, properties)
            self._open.append((name, confirmation))

    def _look(self) -> None:
        """Take outcomes that have come."""
        while self._open and self._open[0][1].done():
            self._take(0)

    def _take(self, deadline: float | None) -> None:
        """The oldest chunk's outcome."""
        queue, sent = self._open[0]
        outcome = self._staged._outcome(queue, sent, deadline, "not all is staged yet: wait again")
        self._open.popleft()
        if isinstance(outcome, Failed):
            if not outcome.reason.startswith(DONE):
                raise _error(outcome)
            self._is_committed = True


def _error(outcome: Failed) -> MirrorQError:
    if outcome.unknown:
        return error_of(outcome)
    return NotConfirmed(f"what was staged was refused: {outcome.reason}")


def _winners(parts: Iterable[StagedPart], queue: str) -> tuple[Winner, ...]:
    """Return the winners of the parts in a queue."""
    return tuple(
        (part.partition, part.attempt, chunks, count)
        for part in parts
        for name, chunks, count in part.queues
        if name == queue and chunks
    )


def _name(what: str, text: str) -> str:
    check_text(f"a {what}", text)
    if not 0 < len(text) <= NAME_LENGTH_MAX:
        raise ConfigError(
            f"a {what} is 1 to {NAME_LENGTH_MAX} characters, not {len(text)}: {text[:40]!r}"
        )
    return text
