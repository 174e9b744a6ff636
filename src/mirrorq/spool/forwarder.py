"""`Forwarder`: moves the messages of one queue into a queue of another cluster, each once.

A forwarder has the source alone (a claim), reads messages in order, publishes into the target, and
acks messages at the source after the target's confirm. A forwarder keeps nothing on a disk of its
own. A message's number is its sequence in the source, and the producer id is made of the two queues
and the filter: a forwarder that restarts, on any machine, sends the same messages under the same
numbers, and the target takes each once.

Not guaranteed: a message that a consumer of the source takes while the claim is lost may be in both
queues. A source that is set back to an older copy of its stores uses sequences again: new messages
under used sequences are not moved and stay in the source, and `ForwardStatus.kept` counts them.

Messages that the target refuses stay in the source too, and are refused again under their numbers;
a forwarder of another label has other numbers.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterator
from contextlib import suppress
from math import inf
from typing import TYPE_CHECKING

from attrs import frozen

from mirrorq import bulk, clock
from mirrorq.api.arguments import SEQUENCE_MAX, check_flags, check_text
from mirrorq.bulk.reading import Batch as Frames
from mirrorq.containers.ranges import RangeSet
from mirrorq.errors import ConfigError, Full, MirrorQError, NoQuorum, QueueDown
from mirrorq.protocol.identities import spool_producer
from mirrorq.protocol.ops import FLAG_PRIORITY, FLAG_TRANSIENT
from mirrorq.spool.line import Line, TargetMark
from mirrorq.spool.sender import OPEN_S, Sender, Sending
from mirrorq.waiting import Doorbell
from mirrorq.wire import frames

if TYPE_CHECKING:
    from mirrorq.api.host import Declared, Host
    from mirrorq.api.queue import MirroredQueue
    from mirrorq.bulk.leases import Claim
    from mirrorq.session.calls import Failed

log = logging.getLogger("mirrorq")

LOOK_S = 0.5
"""Interval of looks at the source's end, and of status reports."""
AGAIN_S = 1.0
"""Wait before the next try after a failed connection."""
CLAIM_S = 10.0
"""Time for other consumers of the source to leave."""
ACK_S = 30.0
PART_COUNT = 1000
PART_BYTES = 256 << 10
"""Small frames are sent together, up to this size."""
CLOSE_S = 5.0
"""Time for messages on their way to be confirmed at the end."""


@frozen
class ForwardStatus:
    """Progress of a forwarder."""

    moved: int
    """Messages moved since the forwarder began."""
    left: int
    """Messages in the source, including messages of other keys and kept messages."""
    oldest_s: float
    """Seconds since the put of the oldest message that is being moved; 0: there is none."""
    kept: int
    """Messages that the target has refused: they stay in the source."""
    why: str
    """Why nothing is moved, or why messages are kept; "" when all is well."""


class Forwarder:
    """Moves messages from one queue into another, of another cluster or of the same one.

    Durability: a message is acked at the source when the target has confirmed it. A killed process
    never doubles a message in the target, as long as both clusters keep their stores.

    Args:
        source: a handle on the queue to be emptied, without shards. No other consumer may be there
            meanwhile.
        target: a handle on the queue to be filled, without shards.
        key: only messages with this key are moved; the others stay. Forwarders of the same pair of
            queues, with another key, are other producers to the target.
        rate: most messages a second, on average; None: no limit.
        label: a forwarder of another label is another producer: refused messages are tried
            again. The former forwarder must have ended with no message on its way.

    Raises:
        ConfigError: both are the same queue, the rate is not above 0 or is infinite, or the key is
            no string.
    *Threads*: `run` belongs to one thread; any may call `status` and `stop`.
    """

    def __init__(
        self,
        source: MirroredQueue,
        target: MirroredQueue,
        *,
        key: str | None = None,
        rate: float | None = None,
        label: str = "",
    ) -> None:
        self._moving = Moving(source, target, key=key, rate=rate, label=label)

    def run(
        self, *, once: bool = False, on_status: Callable[[ForwardStatus], object] | None = None
    ) -> None:
        """Move messages until `stop` is called.

        Args:
            once: until all messages of the source are moved, rather.
            on_status: called twice a second.

        Raises:
            PreconditionFailed: others consume the source, or one of the queues has shards.
            ShutDown: one of the handles is closed.
            MirrorQError: one of the queues is gone, or this process may not use it.
        """
        check_flags(once=once)
        self._moving.run(once=once, on_status=on_status)

    def stop(self) -> None:
        """Have `run` return once messages on their way are confirmed."""
        self._moving.stop()

    def status(self) -> ForwardStatus:
        """Return the progress. Never waits."""
        return self._moving.status()


class Moving(Sender):
    """A forwarder at work. Arguments and errors as of `Forwarder`."""

    def __init__(
        self,
        source: MirroredQueue,
        target: MirroredQueue,
        *,
        key: str | None,
        rate: float | None,
        label: str,
    ) -> None:
        super().__init__(target.name, Doorbell())
        identity = bulk.identity(source)
        if identity == bulk.identity(target):
            raise ConfigError(f"queue {source.name!r} is the source and the target: name another")
        if rate is not None and not 0 < rate < inf:
            raise ConfigError(f"rate is {rate!r}: give messages a second, above 0, or None")
        check_text("key", "" if key is None else key)
        digest = hashlib.blake2b(repr((identity, target.name, key, label)).encode(), digest_size=8)
        producer = spool_producer(int.from_bytes(digest.digest()))
        self.line = Line(1, TargetMark(producer, SEQUENCE_MAX), producer)
        self._source = source
        self._into = target
        self._key = key
        self._rate = rate
        self._next_at = 0.0
        """Time at which the rate allows the next message."""
        self._is_stopping = False
        self._claim: Claim
        self._end = self._pages_to = 0
        """Last known sequence of the source; last sequence of the present read."""
        self._look_at = 0.0
        self._moved = self._left = 0
        self._kept = RangeSet()
        self._why_kept = ""

    def run(self, *, once: bool, on_status: Callable[[ForwardStatus], object] | None) -> None:
        with bulk.claim(self._source, f"forwarder to {self.name}", CLAIM_S) as self._claim:
            self._look_at = 0.0
            try:
                while not self._is_stopping and not (once and self._is_done):
                    pause_s = self._round()
                    if on_status is not None:
                        on_status(self.status())
                    self.bell.wait(pause_s)
            finally:
                self._finish()

    def stop(self) -> None:
        self._is_stopping = True
        self.bell.ring()

    def status(self) -> ForwardStatus:
        flight = next(iter(list(self.line.flights)), None)
        sent, part = flight.payload if flight is not None else None, self._part
        oldest_s = 0.0
        if isinstance(sent, Sending):
            oldest_s = (clock.now_ms() - sent.put_ms) / 1000
        elif part is not None:
            oldest_s = self.age_ms(part[0].timestamp_us) / 1000
        why = self.why_not or self._why_kept
        return ForwardStatus(self._moved, self._left, oldest_s, self._kept.count, why)

    # --- The rounds of the thread --------------------------------------------------------------

    @property
    def _is_done(self) -> bool:
        return bool(self._look_at) and not self.line.flights and self.line.read_to >= self._end

    def _round(self) -> float:
        """Do all due work; return the seconds until the next round."""
        try:
            self._look()
            self._settle()
            self.send()
        except (NoQuorum, QueueDown, Full, TimeoutError) as error:
            if not self.why_not:
                log.warning("queue %s is not moved: %s", self._source.name, error)
            self.drop_target(str(error))
            return AGAIN_S
        now = clock.monotonic()
        return max(min(self._look_at, max(self._next_at, now + 0.001)) - now, 0.0)

    def _look(self) -> None:
        """Look how far the source goes, and whether the target is still open."""
        now = clock.monotonic()
        if now >= self._look_at:
            self._into._ring_for("Forwarder").check()
            extent = bulk.extent(self._source)
            self._end, self._left = extent.next_sequence - 1, extent.messages
            self._look_at = now + LOOK_S

    def _settle(self) -> None:
        """Ack messages at the source that the target has."""
        ended = self.take_outcomes()
        stored, count = RangeSet(), 0
        for flight in ended:
            for index, number, _ in flight.stored:
                stored.add(flight.first + index, flight.first + index + number - 1)
                count += number
            for index, number, why, _ in flight.failed:
                self._keep(flight.first + index, flight.first + index + number - 1, why)
        for first, last in stored:
            self._claim.ensure(CLAIM_S)
            self._claim.ack(first, last, ACK_S)
        self.line.on_acked(ended)
        self._moved += count
        self._left = max(self._left - count, 0)
        if self._broken:
            self.drop_target(self._broken)

    def _keep(self, first: int, last: int, why: str) -> None:
        """Keep messages first to last in the source."""
        if why != self._why_kept:
            log.warning("messages of queue %s stay there: %s", self._source.name, why)
        self._why_kept = why
        self._kept.add(first, last)

    def _finish(self) -> None:
        """Wait for outcomes of messages on their way, up to `CLOSE_S`."""
        until = clock.monotonic() + CLOSE_S
        with suppress(MirrorQError, TimeoutError):
            while self.line.flights and self.target is not None and clock.monotonic() < until:
                self._settle()
                self.bell.wait(0.1)
        self.drop_target("")

    # --- As a sender ----------------------------------------------------------------------------

    def age_ms(self, timestamp_us: int) -> int:
        return max(clock.wall_us() - timestamp_us, 0) // 1000

    def _next_part(self) -> list[Frames] | None:
        while self._part is None:
            if self._pages is None:
                if self.line.read_to >= self._end:
                    return None
                self._pages_to = self._end
                self._pages = self._parts(self.line.read_to + 1, self._pages_to)
            self._part = next(self._pages, None)
            first = self._pages_to + 1 if self._part is None else self._part[0].first
            self.line.pass_over(max(first - 1, self.line.read_to))
            if self._part is None:
                self._pages = None
        return self._part

    def _parts(self, first: int, last: int) -> Iterator[list[Frames]]:
        """Yield the messages to move; similar neighbours come together."""
        part: list[Frames] = []
        size = 0
        count_max = PART_COUNT if self._rate is None else min(max(int(self._rate), 1), PART_COUNT)
        for piece in self._chosen(first, last, count_max):
            size += len(piece.frame)
            if part and (size > PART_BYTES or not _fits(part, piece, count_max)):
                yield part
                part, size = [], len(piece.frame)
            part.append(piece)
        if part:
            yield part

    def _chosen(self, first: int, last: int, count_max: int) -> Iterator[Frames]:
        """Yield the messages to move, as parts of frames."""
        for batch in bulk.reader(self._source).read(first, last):
            if self._key is None and not self._kept and batch.count <= count_max:
                yield batch
                continue
            for start, stop in self._runs(batch, count_max):
                frame = frames.cut(batch.frame, start, stop)
                at, count = batch.first + start, stop - start
                yield Frames(frame, at, count, batch.delivery_count, batch.timestamp_us)

    def _runs(self, batch: Frames, count_max: int) -> list[tuple[int, int]]:
        """Return the runs of a frame's messages to move: (start, stop) indexes."""
        properties = batch.properties() if self._key is not None else None
        found: list[tuple[int, int]] = []
        for index in range(batch.count):
            is_chosen = self._key is None or (
                properties is not None and properties[index].key in (self._key, self._key.encode())
            )
            if is_chosen and batch.first + index not in self._kept:
                start, stop = found[-1] if found else (0, -1)
                if stop == index and index - start < count_max:
                    found[-1] = (start, index + 1)
                else:
                    found.append((index, index + 1))
        return found

    def _send(self, first: int, sent: Sending) -> bool:
        now = clock.monotonic()
        if now < self._next_at or not super()._send(first, sent):
            return False
        if self._rate is not None:
            self._next_at = max(now, self._next_at) + sent.count / self._rate
        return True

    def _keep_mark(self, mark: TargetMark) -> None:
        """Do nothing: a forwarder's mark covers all sequences, and is on no disk."""

    def _declared(self) -> tuple[Host, Declared]:
        host = self._into._ring_for("Forwarder").host
        return host, host._declare(self.name, timeout=OPEN_S)

    def _on_forgotten(self, sent: Sending, outcome: Failed) -> None:
        """Keep forgotten messages in the source, unless another forwarder has moved them."""
        flight = sent.flight
        assert flight is not None
        first = flight.first + outcome.index
        extent = bulk.extent(self._source)
        self.drop_target("another forwarder was at work")
        last = first + outcome.count - 1
        for low, high in bulk.reader(self._source).live_ranges(first, last, extent):
            self._keep(low, high, f"queue {self.name} has refused them before, or had others then")


def _fits(part: list[Frames], piece: Frames, count_max: int) -> bool:
    """Return true if a piece of a frame may be sent together with the pieces before."""
    one, other = frames.header(part[0].frame), frames.header(piece.frame)
    return (
        piece.first == part[-1].last + 1
        and piece.last - part[0].first < count_max
        and not (one.flags ^ other.flags) & (FLAG_TRANSIENT | FLAG_PRIORITY)
        and not any((one.delay_ms, one.ttl_ms, other.delay_ms, other.ttl_ms))
    )
