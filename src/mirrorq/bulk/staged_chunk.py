"""A chunk of messages for one queue, gathered until one op stages the chunk: objects, or Arrow
columns.

For an Arrow column no object is made for a message, and no bytes are copied before the frame:
lengths and bytes go into the frame unchanged. The column must not change until the chunk has its
outcome; record batches never change.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate
from operator import add

from attrs import define, field, frozen

from mirrorq.api.batching import MESSAGE_OVERHEAD, OwnBatch
from mirrorq.api.confirmation import Confirmation
from mirrorq.errors import ConfirmUnknown
from mirrorq.protocol.ops import FLAG_STAGED, FLAG_STEP
from mirrorq.protocol.staged import Stage, Staging
from mirrorq.session.calls import Failed, Put, Stored
from mirrorq.wire import frames
from mirrorq.wire.ops import encode_staged

CHUNK_BYTES = 1 << 20
"""A chunk is sent at about this many bytes. Each chunk is one op: large enough to cost little,
small beside the limit of unconfirmed bytes."""
CHUNK_SLACK = CHUNK_BYTES // 4
"""A smaller excess over a chunk is not cut: finding the place costs more than the rest."""
CHUNK_COUNT = 10_000
"""Messages in one chunk, at most."""


@frozen(eq=False)
class ArrowColumn:
    """Bodies in the form of an Arrow binary array, without nulls: views of its two buffers."""

    offsets: memoryview
    """int32, one more than bodies."""
    lengths: memoryview
    """int32, one for each body."""
    values: memoryview
    largest: int
    """Bytes of the longest body."""

    @classmethod
    def of(cls, offsets: frames.Frame, values: frames.Frame) -> ArrowColumn:
        """Take buffers that may be of a larger array: offsets need not begin with 0.

        Raises:
            ValueError: offsets begin below 0, fall, or go beyond the values.
        """
        lengths, largest = frames.lengths_between(offsets)
        numbers = memoryview(offsets).cast("B").cast("i")
        view = memoryview(values).cast("B")
        if numbers[-1] > len(view):
            raise ValueError(f"offsets go to {numbers[-1]}, and there are {len(view)} bytes")
        return cls(numbers, memoryview(lengths), view, largest)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def size(self, start: int, stop: int) -> int:
        """Bytes that bodies start to stop - 1 take in a chunk."""
        size: int = self.offsets[stop] - self.offsets[start]
        return size + (stop - start) * MESSAGE_OVERHEAD

    def place(self, start: int, stop: int, room: int) -> int:
        """Return the place at which bodies from `start` on take `room` bytes, or `stop`."""
        places = range(start + 1, stop)
        return start + 1 + bisect_left(places, room, key=lambda at: self.size(start, at))


@define(eq=False)
class Gathered:
    """Values of a frame's column before the frame is made. Belongs to one attempt, until sent."""

    count: int = 0
    size: int = 0
    """Bytes of the values."""
    _lengths: list[frames.Frame] = field(factory=list)
    _values: list[frames.Frame] = field(factory=list)

    def add(self, values: Sequence[bytes], size: int) -> None:
        """Add values with `size` bytes in all."""
        self._lengths.append(frames.lengths_of(values))
        self._values += values
        self.count += len(values)
        self.size += size

    def add_column(self, column: ArrowColumn, start: int, stop: int) -> None:
        """Add values start to stop of a column."""
        low, high = column.offsets[start], column.offsets[stop]
        self._lengths.append(column.lengths[4 * start : 4 * stop])
        self._values.append(column.values[low:high])
        self.count += stop - start
        self.size += high - low

    def behind(self, first: bytes) -> frames.Pieces:
        """Return the pieces of a frame's column: `first`, then the gathered values."""
        lengths = frames.lengths_of([first])
        return (lengths, *self._lengths, first, *self._values), len(first) + self.size


@define(eq=False)
class StagedChunk:
    """Gathered messages for one queue, and counts of sent messages. For the attempt's thread."""

    chunks: int = 0
    count: int = 0
    """Messages sent."""
    bodies: Gathered = field(factory=Gathered)
    properties: list[bytes] | None = None
    """Properties of each body; None: no body has properties."""
    size: int = 0
    """Bytes of the gathered messages."""

    @property
    def is_full(self) -> bool:
        return self.size >= CHUNK_BYTES or self.bodies.count >= CHUNK_COUNT

    def add_messages(
        self, bodies: Sequence[bytes], properties: Sequence[bytes] | None, start: int
    ) -> int:
        """Add messages from `start` on until the chunk is full or the messages end; return the end.
        Python does not look at each length: there are many."""
        most = bodies[start : start + CHUNK_COUNT - self.bodies.count]
        said = None if properties is None else list(properties[start : start + len(most)])
        own = sum(map(len, most))
        size = own + sum(map(len, said or ())) + MESSAGE_OVERHEAD * len(most)
        if self.size + size > CHUNK_BYTES + CHUNK_SLACK:
            sizes = map(len, most) if said is None else map(add, map(len, most), map(len, said))
            room = CHUNK_BYTES - self.size
            count, size = next(
                (at, upto + at * MESSAGE_OVERHEAD)
                for at, upto in enumerate(accumulate(sizes), 1)
                if upto + at * MESSAGE_OVERHEAD >= room
            )
            most, said = most[:count], None if said is None else said[:count]
            own = sum(map(len, most))
        self._add_properties(said, len(most))
        self.bodies.add(most, own)
        self.size += size
        return start + len(most)

    def take_column(self, column: ArrowColumn, start: int) -> int:
        """Add bodies without properties like `add_messages`."""
        stop = min(start + CHUNK_COUNT - self.bodies.count, len(column))
        if self.size + column.size(start, stop) > CHUNK_BYTES + CHUNK_SLACK:
            stop = column.place(start, stop, CHUNK_BYTES - self.size)
        self._add_properties(None, stop - start)
        self.bodies.add_column(column, start, stop)
        self.size += column.size(start, stop)
        return stop

    def _add_properties(self, said: list[bytes] | None, count: int) -> None:
        """Add properties of `count` more bodies, before the bodies are added."""
        if self.properties is None and said is not None:
            self.properties = [b""] * self.bodies.count
        if self.properties is not None:
            self.properties += said or [b""] * count

    def emptied(self) -> tuple[Gathered, list[bytes] | None]:
        """Take out the gathered messages for sending."""
        found = self.bodies, self.properties
        self.chunks += 1
        self.count += self.bodies.count
        self.bodies, self.properties, self.size = Gathered(), None, 0
        return found


@define(eq=False)
class StagedPut(OwnBatch):
    """A staged chunk or a staged request: first in a handle's inbox, then the token of its batch,
    on the host's thread."""

    confirmation: Confirmation
    """Confirmation with the session's outcome as its result."""
    asked: Stage | Staging
    bodies: Gathered = field(factory=Gathered)
    properties: Sequence[bytes] | None = None
    size: int = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.size = self.bodies.size + sum(map(len, self.properties or ()))

    @property
    def count(self) -> int:  # type: ignore[override]
        """Number of producer numbers that the batch uses."""
        return self.bodies.count + 1

    @property
    def own_bytes(self) -> int:  # type: ignore[override]
        """Return 0: no message is put into the queue now."""
        return 0

    def note_outcome(self, outcome: Stored | Failed) -> list[Confirmation]:
        """Note the outcome."""
        if not self.confirmation.done():
            self.confirmation._finish(outcome, None)
        return []

    def end_unknown(self, why: str) -> None:
        """The handle is closed."""
        self.confirmation._finish(None, ConfirmUnknown(why))

    def batch(self) -> Put:
        """Return the session's batch: one op, which makes no message yet."""
        bodies = self.bodies.behind(encode_staged(self.asked))
        said = self.properties or ()
        properties = frames.pieces_of([b"", *said]) if any(said) else None

        def pack(producer: int, first_number: int, settled: int) -> bytes:
            return frames.pack_pieces(
                self.count,
                bodies,
                properties,
                producer=producer,
                first_number=first_number,
                settled=settled,
                flags=FLAG_STEP | FLAG_STAGED,
            )

        return Put(self, self.count, self.size, pack, True)
