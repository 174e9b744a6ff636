"""Reads message bodies for the master's decisions: frames from the store, cut to the named ranges.

The engine names messages; only the driver reads disks. Whole frames are passed on as they are on
disk. A frame that straddles the edge of a range is cut.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from attrs import frozen
from msgspec.structs import replace

from mirrorq.containers.ranges import Range
from mirrorq.errors import ProtocolError, StoreCorrupt
from mirrorq.protocol.ops import Entry, OpKind
from mirrorq.protocol.ring import FetchFrames, FrameChunk, PackedChunk
from mirrorq.protocol.sessions import Browsed, Deliver, Delivery, SessionReply
from mirrorq.replication.replica import Replica
from mirrorq.store.node_store import Store
from mirrorq.wire import frames


@frozen
class FrameReader:
    """Reads frames of a node's queues, from the store and from writes that wait in memory.

    With `durability: replicated` a message may be delivered before it is on the local disk. Frames
    reach the disk in the order of their sequences, so the missing frames follow the frames on disk.
    Staged messages are stored under their sequences at the time of staging. The reader stamps them
    with their current sequences and the commit's time. Node thread only.
    """

    store: Store
    replicas: Mapping[int, Replica]

    def read(self, queue_id: int, first: int, last: int, bytes_max: int) -> list[memoryview]:
        """Read live messages, at least one, from the store and from memory.

        Raises:
            StoreCorrupt: The first frame is damaged or missing. The error's span has the
                sequences under which the bodies are stored.
        """
        replica = self.replicas.get(queue_id)
        if replica is None or not replica.state.staging.origins:
            return self._joined(queue_id, first, last, bytes_max, 0)
        found: list[memoryview] = []
        while first <= last and bytes_max > 0:
            end, shift = replica.state.staging.piece(first, last)
            try:
                read = self._joined(queue_id, first - shift, end - shift, bytes_max, shift)
            except StoreCorrupt:
                if found:
                    return found
                raise
            if shift:
                stamp_us = replica.state.columns.stamp_ms(first) * 1000
                moved = (first - shift, end - shift, shift, stamp_us)
                read = [memoryview(frames.shifted(frame, *moved)) for frame in read]
            bytes_max -= sum(map(len, read))
            found += read
            reached = frames.span(read[-1])[1] + shift
            if reached < end:
                return found
            first = end + 1
        return found

    def _joined(
        self, queue_id: int, first: int, last: int, bytes_max: int, shift: int
    ) -> list[memoryview]:
        """Read bodies as `stored` does, and return the frames before the first gap.

        Raises:
            StoreCorrupt: there is no frame before the gap.
        """
        try:
            found = self.stored(queue_id, first, last, bytes_max)
        except StoreCorrupt as error:
            if error.span is not None:
                error.behind = min(max(error.span[1], first), last) + 1 + shift
            raise
        place = first
        for index, frame in enumerate(found):
            low, high = frames.span(frame)
            if low > place:
                del found[index:]
                last = low - 1
                break
            place = high + 1
        if not found:
            gap = StoreCorrupt(f"messages {first} to {last} of queue {queue_id} are not there")
            gap.span, gap.behind = (first, last), last + 1 + shift
            raise gap
        return found

    def stored(self, queue_id: int, first: int, last: int, bytes_max: int) -> list[memoryview]:
        """Read frames as `Store.read` does, and also from memory, without changes.

        Raises:
            StoreCorrupt: A frame is damaged.
        """
        replica = self.replicas.get(queue_id)
        behind = replica.ring.log.behind(first, last) if replica is not None else []
        if not behind:
            return self.store.read(queue_id, first, last, bytes_max)
        edge = behind[0].header.first_sequence
        found = self.store.read(queue_id, first, edge - 1, bytes_max) if first < edge else []
        size = sum(map(len, found))
        for entry in behind:
            if size >= bytes_max and found:
                break
            found.append(memoryview(entry.frame))
            size += len(entry.frame)
        return found


DELIVER_BYTES = 8 << 20
"""Approximate limit of a Deliver. The rest of the delivery is released and delivered next."""


def fill(reader: FrameReader, reply: SessionReply) -> tuple[SessionReply, SessionReply | None]:
    """Put the bodies into a Deliver; any other reply is returned unchanged.

    Returns:
        The reply, and a Deliver with the deliveries that did not fit and must be released.

    Raises:
        StoreCorrupt: the first frame is damaged.
    """
    body = reply.reply
    if isinstance(body, Deliver) and not body.frames and not body.bare:
        ranges = [(piece.first, piece.last) for piece in body.deliveries]
        found, whole, end = frames_of(reader, reply.queue_id, ranges)
        sent, rest = _split_at(body.deliveries, whole, end)
        filled = replace(reply, reply=Deliver(body.consumer, sent, found))
        return filled, replace(reply, reply=Deliver(body.consumer, rest)) if rest else None
    return reply, None


def shown(reader: FrameReader, reply: SessionReply) -> tuple[SessionReply, list[StoreCorrupt]]:
    """Put the undamaged bodies into a Browsed. Returns the reply and the damage."""
    body = reply.reply
    assert isinstance(body, Browsed)
    found: list[bytes] = []
    pieces: list[tuple[int, int, int]] = []
    damaged: list[StoreCorrupt] = []
    size = 0
    for low, last, count in body.ranges:
        first = low
        while first <= last and size < DELIVER_BYTES:
            piece = [(first, last)]
            try:
                read, whole, end = frames_of(reader, reply.queue_id, piece, DELIVER_BYTES - size)
            except StoreCorrupt as error:
                damaged.append(error)
                first = max(error.behind, first + 1)
                continue
            end = last if whole else end
            pieces.append((first, end, count))
            found += read
            size += sum(map(len, read))
            first = end + 1
    return replace(reply, reply=Browsed(body.request, tuple(pieces), tuple(found))), damaged


def frames_of(
    reader: FrameReader, queue_id: int, ranges: Sequence[Range], bytes_max: int = DELIVER_BYTES
) -> tuple[tuple[bytes, ...], int, int]:
    """Return the frames of the ranges, in their order, up to about `bytes_max`.

    Returns:
        The frames, the number of complete ranges, and the last sequence read of the next range;
        below the range if no message of the range was read.

    Raises:
        StoreCorrupt: the first frame is damaged or missing.
    """
    found: list[bytes] = []
    size = 0
    for whole, (first, last) in enumerate(ranges):
        while first <= last:
            if size >= bytes_max:
                return tuple(found), whole, first - 1
            try:
                read = reader.read(queue_id, first, last, bytes_max - size)
            except StoreCorrupt:
                if found:
                    return tuple(found), whole, first - 1
                raise
            for frame in read:
                header = frames.header(frame)
                start = max(first - header.first_sequence, 0)
                stop = min(last + 1 - header.first_sequence, header.count)
                found.append(frames.cut(bytes(frame), start, stop))
                size += len(found[-1])
                first = header.first_sequence + stop
    return tuple(found), len(ranges), 0


def _split_at(
    deliveries: Sequence[Delivery], whole: int, end: int
) -> tuple[tuple[Delivery, ...], tuple[Delivery, ...]]:
    """Split deliveries: the first `whole` and the part of the next up to `end`, and the rest."""
    sent, rest = list(deliveries[:whole]), list(deliveries[whole:])
    if rest and end >= rest[0].first:
        sent.append(replace(rest[0], last=end))
        rest[0] = replace(rest[0], first=end + 1)
    return tuple(sent), tuple(rest)


def chunk_of(
    reader: FrameReader,
    fetch: FetchFrames,
    lost: tuple[Range, ...] = (),
    on_damage: Callable[[StoreCorrupt], None] | None = None,
) -> PackedChunk:
    """Answer a member's fetch: frames after `after_sequence`, up to the requested bytes.

    Args:
        lost: ranges known to be damaged at every member.
        on_damage: called for each damaged place here; the answer leaves the place out.
    """
    first, last = fetch.after_sequence + 1, fetch.upto_sequence
    read: list[memoryview] = []
    size, at = 0, first
    while at <= last and size < fetch.bytes_max:
        try:
            got = reader.stored(fetch.queue_id, at, last, fetch.bytes_max - size)
        except StoreCorrupt as error:
            if on_damage is not None:
                on_damage(error)
            if error.span is None:
                break
            at = max(error.span[1], at) + 1
            continue
        if not got:
            break
        at = frames.span(got[-1])[1] + 1
        if fetch.is_continued and not read and frames.span(got[0])[0] < first:
            del got[0]
        size += sum(map(len, got))
        read += got
    upto = frames.span(read[-1])[1] if read and at <= last and size >= fetch.bytes_max else last
    return PackedChunk(
        fetch.queue_id,
        fetch.epoch,
        fetch.number,
        fetch.after_sequence,
        upto,
        b"".join(read),
        lost,
    )


def unpacked(chunk: PackedChunk) -> FrameChunk:
    """Check and split a donor's chunk; one call into C checks all frames.

    Raises:
        ProtocolError: the chunk is not a run of publish frames.
    """
    entries = []
    for view in frames.split_run(chunk.run):
        header = frames.header(view)
        if header.kind != OpKind.PUBLISH:
            raise ProtocolError(
                f"a chunk of a transfer holds op {header.lsn}, which publishes nothing"
            )
        entries.append(Entry(header, None, bytes(view)))
    return FrameChunk(
        chunk.queue_id,
        chunk.epoch,
        chunk.number,
        chunk.after_sequence,
        chunk.upto_sequence,
        tuple(entries),
        chunk.lost,
    )
