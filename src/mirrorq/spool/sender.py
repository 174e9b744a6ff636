"""`Sender`: publishes waiting messages for a target, in order, under the numbers of its line.

A spool's route is a sender, and so is a forwarder between clusters. The two differ in the source of
messages, and in the handling of outcomes.

*Threads*: a host's thread calls `hear`; all other methods are for the sender's own thread.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from mirrorq import clock
from mirrorq.api import exit_flush
from mirrorq.api.batching import OwnBatch
from mirrorq.api.handle import Handle
from mirrorq.api.publish_options import Terms
from mirrorq.api.waits import in_thread
from mirrorq.errors import PreconditionFailed, StoreCorrupt
from mirrorq.protocol.ops import FLAG_TRANSIENT, FLAG_UNIQUE_LATER, FLAG_WHOLE
from mirrorq.session.calls import Failed, Put, Stored
from mirrorq.spool.line import Flight, Line, TargetMark, Turn
from mirrorq.wire import frames

if TYPE_CHECKING:
    from mirrorq.api.confirmation import Confirmation
    from mirrorq.api.host import Declared, Host
    from mirrorq.bulk.reading import Batch as Frames
    from mirrorq.waiting import Doorbell
    from mirrorq.wire.frames import Frame, Pieces, TwoBuffers

OPEN_S = 5.0
"""Time limit of one try to open a target."""


class Sending(OwnBatch):
    """A flight in the form for the target handle's inbox and session."""

    __slots__ = ("_bodies", "_properties", "_terms", "count", "flight", "generation", "own_bytes",
                 "pieces", "put_ms", "sender", "size", "whole")  # fmt: skip

    def __init__(self, sender: Sender, pieces: Sequence[Frames]) -> None:
        header = frames.header(pieces[0].frame)
        self.sender = sender
        self.generation = sender.generation
        self.flight: Flight | None = None
        self.pieces = pieces
        self.count = sum(piece.count for piece in pieces)
        self.whole = bool(header.flags & FLAG_WHOLE)
        self._bodies = _joined([(piece.count, piece.columns[0]) for piece in pieces])
        said = [(piece.count, piece.columns[1]) for piece in pieces]
        self._properties = _joined(said) if any(column for _, column in said) else None
        self.own_bytes = self._bodies[1]
        self.size = self.own_bytes + (self._properties[1] if self._properties else 0)
        age_ms = sender.age_ms(header.timestamp_us)
        self.put_ms = clock.now_ms() - age_ms
        self._terms = Terms(
            not header.flags & FLAG_TRANSIENT,
            header.priority,
            max(header.delay_ms - age_ms, 0),
            max(header.ttl_ms - age_ms, 1) if header.ttl_ms else 0,
            bool(header.flags & FLAG_UNIQUE_LATER),
        )

    def messages(self) -> list[tuple[bytes, bytes]]:
        """Body and properties of each."""
        found: list[tuple[bytes, bytes]] = []
        for piece in self.pieces:
            properties = frames.split_properties(piece.frame) or [b""] * piece.count
            found += zip(piece.bodies(), properties, strict=True)
        return found

    def batch(self) -> Put:
        """The batch of the session."""
        return Put(self, self.count, self.size, self._pack, self.whole, self.own_bytes)

    def _pack(self, producer: int, first_number: int, settled: int) -> bytes:
        line = self.sender.line
        assert self.flight is not None
        assert first_number == self.flight.first
        return frames.pack_pieces(
            self.count,
            self._bodies,
            self._properties,
            producer=producer,
            first_number=first_number,
            settled=line.settled(settled),
            flags=self._terms.flags,
            delay_ms=self._terms.delay_ms,
            ttl_ms=self._terms.ttl_ms,
        )

    def note_outcome(self, outcome: Stored | Failed) -> list[Confirmation]:
        """On the host's thread."""
        self.sender.hear(self, outcome)
        return []

    def end_unknown(self, why: str) -> None:
        """The handle was closed."""
        self.sender.hear(self, Failed(self, 0, self.count, why, True))


def _joined(parts: Sequence[tuple[int, TwoBuffers | None]]) -> Pieces:
    """Join columns into one: (number of values, offsets and values, or None for empty values)."""
    lengths: list[Frame] = []
    values: list[Frame] = []
    for count, column in parts:
        if column is None:
            lengths.append(bytes(4 * count))
        else:
            lengths.append(frames.lengths_between(column[0])[0])
            values.append(column[1])
    return [*lengths, *values], sum(map(len, values))


class Sender(ABC):
    """Brings messages to one target.

    Args:
        name: name of the target.
        bell: rung when an outcome has come.
    """

    def __init__(self, name: str, bell: Doorbell) -> None:
        self.name = name
        self.bell = bell
        self.line: Line
        """Set when the sender opens."""
        self.target: Handle | None = None
        self.generation = 0
        """Number of the target handle: outcomes of an earlier handle are ignored."""
        self.why_not = ""
        """Why no message is sent."""
        self._broken = ""
        self._due: deque[tuple[Sending, Stored | Failed]] = deque()
        self._pages: Iterator[list[Frames]] | None = None
        self._part: list[Frames] | None = None
        """The next frame, in one or more pieces."""
        self._made: Sending | None = None
        """`_part` in the form for sending."""

    @abstractmethod
    def age_ms(self, timestamp_us: int) -> int:
        """Return the age in ms of a message with this timestamp."""

    @abstractmethod
    def _next_part(self) -> list[Frames] | None:
        """Return the next frame of live messages, None without a frame."""

    @abstractmethod
    def _keep_mark(self, mark: TargetMark) -> None:
        """Have a mark on the disk."""

    @abstractmethod
    def _declared(self) -> tuple[Host, Declared]:
        """Return the host that reaches the target, and the declared target."""

    @abstractmethod
    def _on_forgotten(self, sent: Sending, outcome: Failed) -> None:
        """Handle numbers that the target has settled before, with forgotten outcomes."""

    def hear(self, sent: Sending, outcome: Stored | Failed) -> None:
        """A part of a flight has an outcome. On the target's host's thread."""
        self._due.append((sent, outcome))
        self.bell.ring()

    def take_outcomes(self) -> list[Flight]:
        """Take new outcomes; return flights that have ended and are not acked."""
        for _ in range(len(self._due)):
            sent, outcome = self._due.popleft()
            if sent.generation == self.generation:
                self._note(sent, outcome)
        return self.line.ended()

    def _note(self, sent: Sending, outcome: Stored | Failed) -> None:
        flight, line = sent.flight, self.line
        assert flight is not None
        if isinstance(outcome, Stored):
            line.on_stored(flight, outcome.index, outcome.count, outcome.first_sequence)
        elif outcome.is_lost or not outcome.unknown:
            lost = outcome.is_lost
            line.on_failed(flight, outcome.index, outcome.count, outcome.reason, is_lost=lost)
        elif self.target is not None and not self.target.is_closed:
            self._on_forgotten(sent, outcome)
        else:
            self._broken = outcome.reason

    def send(self) -> None:
        """Send all messages that may be sent.

        Raises:
            TimeoutError, MirrorQError: the target, its cluster or the local disk has refused.
        """
        line = self.line
        while (part := self._next_part()) is not None:
            first, count = part[0].first, sum(piece.count for piece in part)
            turn = line.turn(first, count)
            if turn is Turn.WAIT:
                return
            if turn is Turn.WRITE_MARK:
                mark = line.mark_due(first, count)
                self._keep_mark(mark)
                line.mark = mark
            elif turn is Turn.BEGIN:
                self._begin(first)
            else:
                self._made = self._made or Sending(self, part)
                if not self._send(first, self._made):
                    return

    def _send(self, first: int, sent: Sending) -> bool:
        """Send to the target's handle; return false if the handle has no room."""
        target = self.target
        assert target is not None
        if not target.puts.has_room(sent.count, sent.size):
            return False
        sent.flight = self.line.send(first, sent.count)
        sent.flight.payload = sent
        in_thread(target.puts.accepting_free(sent, block=False))
        self._part = self._made = None
        return True

    def _begin(self, first: int) -> None:
        """Have a session with the target that goes on from number `first`."""
        line = self.line
        target = self.target
        if target is not None and target.identity[0] != line.producer:
            self.drop_target("")
            target = None
        if target is None:
            target = self._opened(first)
            self.target, self.why_not, self.again_s = target, "", 0.0
        else:
            session = target.session
            assert session is not None
            target.on_host(lambda: session.go_on_from(first))
        line.begin_session(first)

    def _opened(self, first: int) -> Handle:
        """A handle on the target."""
        host, declared = self._declared()
        if declared.shards:
            raise PreconditionFailed(
                f"queue {self.name!r} is sharded: only queues without shards can be sent to"
            )
        target = Handle(host, declared, self.name)
        target.identity = (self.line.producer, first)
        target.open()
        exit_flush.forget(target)
        return target

    def drop_target(self, why: str) -> None:
        """Close the session with the target. The next session resends unacked messages."""
        target, self.target = self.target, None
        self._broken = ""
        self.generation += 1
        self.why_not = why
        self._pages = self._part = self._made = None
        self.line.begin_again()
        if target is not None:
            target.abandon()


def frames_of(pieces: Iterable[Frames]) -> Iterator[list[Frames]]:
    """Yield the pieces of each frame together: a page may end within a frame."""
    frame: list[Frames] = []
    try:
        for piece in pieces:
            if frame and (_lsn(piece) != _lsn(frame[0]) or piece.first != frame[-1].last + 1):
                yield frame
                frame = []
            frame.append(piece)
    except StoreCorrupt as error:
        if frame:
            yield frame
        raise error
    if frame:
        yield frame


def _lsn(piece: Frames) -> int:
    return frames.header(piece.frame).lsn
