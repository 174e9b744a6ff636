"""Reading without taking: extents, live ranges, and batches of messages as parts of frames.

For programs that read long stretches of a queue, such as Spark: a `Batch` is the two columns of one
frame (docs/disk-format.md), directly usable as Arrow binary arrays, so no object is made for a
message. All reads use the copy at hand, which spares the master; only `extent` asks the master.

Ignored: priorities and delays. Reading goes by sequence, in the order of publishing.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING

from attrs import frozen

from mirrorq.api.arguments import SEQUENCE_MAX, check_count, check_sequence
from mirrorq.errors import ProtocolError
from mirrorq.wire import frames
from mirrorq.wire.properties import Properties, unpack_properties

if TYPE_CHECKING:
    from mirrorq.api.host import Host
    from mirrorq.containers.ranges import Range
    from mirrorq.protocol.copy_page import CopyPage
    from mirrorq.wire.frames import TwoBuffers

BATCH_BYTES = 4 << 20
"""About so many bytes of frames are asked for at once."""
TIMESTAMP_MAX = 10**12
"""Seconds; no message is as late."""


@frozen
class Extent:
    """End and counts of a queue at one moment, by its master."""

    next_sequence: int
    """Messages confirmed before have lesser sequences."""
    ready: int
    """Messages that wait for a consumer."""
    unacknowledged: int
    """Messages that consumers hold."""
    delayed: int
    """Messages whose delay has not ended."""
    applied: int
    """A copy that has applied this lsn shows the whole extent; a reader waits for an older copy."""
    is_paused: bool = False
    """True if the queue hands out nothing: `pause`."""

    @property
    def messages(self) -> int:
        """Sum of all three counts."""
        return self.ready + self.unacknowledged + self.delayed


@frozen(slots=False)
class Batch:
    """Neighbouring messages of one frame, as columns."""

    frame: bytes
    """Bytes of the checked frame."""
    first: int
    """Sequence of the first message; the others follow without a gap."""
    count: int
    """Number of messages."""
    delivery_count: int
    """Number of each message's next delivery: 1, unless the messages came back before."""
    timestamp_us: int
    """Time at which the master took the messages, in microseconds since 1970-01-01 UTC."""

    @property
    def last(self) -> int:
        """Sequence of the last message."""
        return self.first + self.count - 1

    @cached_property
    def columns(self) -> tuple[TwoBuffers, TwoBuffers | None]:
        """(int32 offsets, bytes) of the bodies, and of the properties or None: views of the
        frame. Offsets are one more than messages, from 0."""
        return frames.columns(self.frame)

    def bodies(self) -> list[bytes]:
        """The bodies as Python objects."""
        return frames.split(self.frame)

    def properties(self) -> list[Properties] | None:
        """Headers, message id and key of each message; None where none has any.

        Returns:
            One for each message, in their order.

        Raises:
            ProtocolError: their producer is of another version.
        """
        packed = frames.split_properties(self.frame)
        return None if packed is None else [unpack_properties(one) for one in packed]


class Reader:
    """Reads one queue from the copy at hand. Takes no message, and the master does not notice."""

    def __init__(self, host: Host, queue_id: int, name: str) -> None:
        self._name = name
        self._host = host
        self._queue_id = queue_id

    def live_ranges(self, first: int, last: int, extent: Extent | None = None) -> list[Range]:
        """Tell which sequences from `first` to `last` live, ready or not, in the copy at hand.

        Args:
            extent: that copy has to have come so far; None: however far it is.

        Returns:
            Pairs of first and last sequence, both included, in order.

        Raises:
            QueueDown: the node at hand has no copy in sync; another may.
        """
        last = _checked_span(first, last)
        found: list[Range] = []
        while first <= last:
            page = self._page(first, last, 0, extent)
            for low, high, _ in page.pieces:
                if found and found[-1][1] + 1 == low:
                    found[-1] = (found[-1][0], high)
                else:
                    found.append((low, high))
            first = page.next
        return found

    def read(
        self,
        first: int,
        last: int,
        *,
        extent: Extent | None = None,
        bytes_max: int = BATCH_BYTES,
    ) -> Iterator[Batch]:
        """Return live messages from sequence `first` to `last` in order, without taking them.

        Ended messages are left out: see `first` and `count` of the batches. The iteration may be
        left early; each step asks for about `bytes_max` bytes.

        Args:
            first, last: sequences, both included.
            extent: the copy at hand must have come this far; None: any state of the copy.
            bytes_max: limit of one batch; a larger message comes alone.

        Returns:
            An iterator over batches.

        Raises:
            QueueDown: the node at hand has no copy in sync, or a damaged one; another may.
            StoreCorrupt: a message is damaged in the only copy.
            ProtocolError: the received bytes are damaged.
        """
        last = _checked_span(first, last)
        check_count("bytes_max", bytes_max)
        return self._read(first, last, extent, bytes_max)

    def _read(
        self, first: int, last: int, extent: Extent | None, bytes_max: int
    ) -> Iterator[Batch]:
        while first <= last:
            page = self._page(first, last, bytes_max, extent)
            yield from _batches(page)
            first = page.next

    def sequence_at(self, timestamp: float, extent: Extent | None = None) -> int:
        """Find the first message that lives and was published at a time or later.

        Args:
            extent: as in `read`.
            timestamp: seconds since 1970-01-01 UTC, by the time of the queue.

        Returns:
            Its sequence; the next that will be given when there is none.

        Raises:
            ValueError: the timestamp is no number.
            QueueDown: the node at hand has no copy in sync; another may.
        """
        if not isinstance(timestamp, int | float) or timestamp != timestamp:
            raise ValueError(f"timestamp is {timestamp!r}: it is in seconds since 1970-01-01 UTC")
        stamp_ms = int(min(max(timestamp, 0), TIMESTAMP_MAX) * 1000)
        return self._host._seek_copy(self._queue_id, stamp_ms, extent.applied if extent else 0)

    def _page(self, first: int, last: int, bytes_max: int, extent: Extent | None) -> CopyPage:
        applied = extent.applied if extent else 0
        page = self._host._read_copy(self._queue_id, first, last, bytes_max, applied)
        if page.next <= first:
            raise ProtocolError(
                f"a page of queue {self._name!r} from {first} goes on at {page.next}: its node "
                "runs another version of mirrorq"
            )
        return page


def _checked_span(first: int, last: int) -> int:
    """Check a span; return `last`, cut to the highest possible sequence."""
    check_sequence("first", first)
    last = min(last, SEQUENCE_MAX - 1)  # the answer says where to go on
    check_sequence("last", max(last, 0))
    return last


def _batches(page: CopyPage) -> Iterator[Batch]:
    pieces = iter(page.pieces)
    first, last, count = next(pieces, (0, 0, 0))
    for frame in page.frames:
        header = frames.check(frame)
        while last < header.first_sequence:
            first, last, count = next(pieces, (0, 1 << 63, 0))
        if not first <= header.first_sequence <= header.last_sequence <= last:
            raise ProtocolError(
                f"a frame of messages {header.first_sequence} to {header.last_sequence} came, "
                f"which is of no piece that was named with it"
            )
        yield Batch(frame, header.first_sequence, header.count, count, header.timestamp_us)
