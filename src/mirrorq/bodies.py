"""Bodies for what the master decided: frames read from the shelf, cut to what is named.

The engine names messages; only the driver reads disks. Whole frames are passed on as they
are on disk; one that straddles the edge of a range is cut.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from mirrorq.errors import ProtocolError
from mirrorq.messages import (
    Browsed,
    Deliver,
    Entry,
    FetchFrames,
    FrameChunk,
    HandOut,
    OpKind,
    PackedChunk,
    Range,
    SessionReply,
)
from mirrorq.shelf import Shelf
from mirrorq.wire import frames

DELIVER_BYTES = 8 << 20
"""A Deliver carries about so much; what is left of the hand-out goes back and comes next."""


def fill(shelf: Shelf, reply: SessionReply) -> tuple[SessionReply, SessionReply | None]:
    """Put the bodies into a Deliver or Browsed; everything else is returned as it is.

    Returns:
        The reply, and a Deliver of what did not fit into it, which is to be given back.

    Raises:
        StoreCorrupt: a frame is not as it was written.
    """
    body = reply.reply
    if isinstance(body, Deliver) and not body.frames and not body.bare:
        ranges = [(piece.first, piece.last) for piece in body.handouts]
        found, whole, end = frames_of(shelf, reply.queue_id, ranges)
        sent, rest = _split_at(body.handouts, whole, end)
        filled = replace(reply, reply=Deliver(body.consumer, sent, found))
        return filled, replace(reply, reply=Deliver(body.consumer, rest)) if rest else None
    if isinstance(body, Browsed) and not body.frames:
        ranges = [(first, last) for first, last, _ in body.ranges]
        found, whole, end = frames_of(shelf, reply.queue_id, ranges)
        shown = body.ranges[:whole]
        if whole < len(ranges) and end >= ranges[whole][0]:
            shown += ((ranges[whole][0], end, body.ranges[whole][2]),)
        return replace(reply, reply=Browsed(body.request, shown, found)), None
    return reply, None


def frames_of(
    shelf: Shelf, queue_id: int, ranges: Sequence[Range], bytes_max: int = DELIVER_BYTES
) -> tuple[tuple[bytes, ...], int, int]:
    """Frames of the ranges, in their order, up to about `bytes_max`.

    Returns:
        The frames, how many ranges they hold whole, and the last sequence that they hold of the
        range after these; it is below that range when they hold nothing of it.
    """
    found: list[bytes] = []
    size = 0
    for whole, (first, last) in enumerate(ranges):
        while first <= last:
            read = size < bytes_max and shelf.read(queue_id, first, last, bytes_max - size)
            if not read:
                return tuple(found), whole, first - 1
            for frame in read:
                header = frames.header(frame)
                start = max(first - header.first_sequence, 0)
                stop = min(last + 1 - header.first_sequence, header.count)
                found.append(frames.cut(bytes(frame), start, stop))
                size += len(found[-1])
                first = header.first_sequence + stop
    return tuple(found), len(ranges), 0


def _split_at(
    handouts: Sequence[HandOut], whole: int, end: int
) -> tuple[tuple[HandOut, ...], tuple[HandOut, ...]]:
    """The first `whole` hand-outs and what of the next one is up to `end`, and the rest."""
    sent, rest = list(handouts[:whole]), list(handouts[whole:])
    if rest and end >= rest[0].first:
        sent.append(replace(rest[0], last=end))
        rest[0] = replace(rest[0], first=end + 1)
    return tuple(sent), tuple(rest)


def chunk_of(shelf: Shelf, fetch: FetchFrames) -> PackedChunk:
    """Answer a joining member: frames after `after_sequence`, within the bytes asked for.

    Raises:
        StoreCorrupt: a frame is not as it was written.
    """
    first, last = fetch.after_sequence + 1, fetch.upto_sequence
    read = shelf.stored(fetch.queue_id, first, last, fetch.bytes_max)
    size = sum(map(len, read))
    if read and fetch.is_continued:
        head = frames.header(read[0])
        if head.first_sequence < first:
            del read[0]
            if not read and head.last_sequence < last:
                read = shelf.stored(
                    fetch.queue_id, head.last_sequence + 1, last, fetch.bytes_max
                )
                size = sum(map(len, read))
    is_cut = read and size >= fetch.bytes_max
    upto = frames.header(read[-1]).last_sequence if is_cut else last
    return PackedChunk(
        fetch.queue_id, fetch.epoch, fetch.number, fetch.after_sequence, upto, b"".join(read)
    )


def unpacked(chunk: PackedChunk) -> FrameChunk:
    """Check and split what a donor sent; one call into C checks all frames.

    Raises:
        ProtocolError: these are not publish frames end to end.
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
    )
