"""Bodies for what the master decided: frames read from the store, cut to what is named.

The engine names messages; only the driver reads disks. Whole frames are passed on as they
are on disk; one that straddles the edge of a range is cut.
"""

from __future__ import annotations

from collections.abc import Sequence

from attrs import evolve

from mirrorq.messages import (
    Browsed,
    Deliver,
    FetchFrames,
    FrameChunk,
    HandOut,
    Range,
    SessionReply,
)
from mirrorq.store import Store
from mirrorq.wire import frames
from mirrorq.wire.ops import make_entry

DELIVER_BYTES = 8 << 20
"""A Deliver carries about so much; what is left of the hand-out goes back and comes next."""


def fill(store: Store, reply: SessionReply) -> tuple[SessionReply, SessionReply | None]:
    """Put the bodies into a Deliver or Browsed; everything else is returned as it is.

    Returns:
        The reply, and a Deliver of what did not fit into it, which is to be given back.

    Raises:
        StoreCorrupt: a frame is not as it was written.
    """
    body = reply.reply
    if isinstance(body, Deliver) and not body.frames:
        ranges = [(piece.first, piece.last) for piece in body.handouts]
        found, end = _frames(store, reply.queue_id, ranges)
        sent, rest = _split_at(body.handouts, end)
        filled = evolve(reply, reply=Deliver(body.consumer, sent, found))
        return filled, evolve(reply, reply=Deliver(body.consumer, rest)) if rest else None
    if isinstance(body, Browsed) and not body.frames:
        ranges = [(first, last) for first, last, _ in body.ranges]
        found, end = _frames(store, reply.queue_id, ranges)
        shown = tuple((a, min(b, end), count) for a, b, count in body.ranges if a <= end)
        return evolve(reply, reply=Browsed(body.request, shown, found)), None
    return reply, None


def _frames(
    store: Store, queue_id: int, ranges: Sequence[Range]
) -> tuple[tuple[bytes, ...], int]:
    """Frames of the ranges, up to about DELIVER_BYTES, and the last sequence they hold.

    Ranges that are not in order of sequence (a message that came back) end the reading too:
    what follows comes next time.
    """
    found: list[bytes] = []
    size = end = 0
    for first, last in ranges:
        if first <= end:
            break
        while first <= last and size < DELIVER_BYTES:
            read = store.read(queue_id, first, last, DELIVER_BYTES - size)
            if not read:
                return tuple(found), end
            for frame in read:
                header = frames.header(frame)
                start = max(first - header.first_sequence, 0)
                stop = min(last + 1 - header.first_sequence, header.count)
                found.append(frames.cut(bytes(frame), start, stop))
                size += len(found[-1])
                end = first = header.first_sequence + stop
                end -= 1
        if size >= DELIVER_BYTES:
            break
    return tuple(found), end


def _split_at(
    handouts: Sequence[HandOut], end: int
) -> tuple[tuple[HandOut, ...], tuple[HandOut, ...]]:
    """Hand-outs up to sequence `end`, and the rest."""
    sent: list[HandOut] = []
    rest: list[HandOut] = []
    for piece in handouts:
        if rest or piece.first > end:
            rest.append(piece)
        elif piece.last <= end:
            sent.append(piece)
        else:
            sent.append(evolve(piece, last=end))
            rest.append(evolve(piece, first=end + 1))
    return tuple(sent), tuple(rest)


def chunk_of(store: Store, fetch: FetchFrames) -> FrameChunk:
    """Answer a joining member: frames after `after_sequence`, within the bytes asked for.

    Raises:
        StoreCorrupt: a frame is not as it was written.
    """
    first, last = fetch.after_sequence + 1, fetch.upto_sequence
    read = store.read(fetch.queue_id, first, last, fetch.bytes_max)
    size = sum(map(len, read))
    if read and fetch.is_continued:
        head = frames.header(read[0])
        if head.first_sequence < first:
            del read[0]
            if not read and head.last_sequence < last:
                read = store.read(fetch.queue_id, head.last_sequence + 1, last, fetch.bytes_max)
                size = sum(map(len, read))
    entries = tuple(make_entry(frame) for frame in read)
    is_cut = entries and size >= fetch.bytes_max
    upto = entries[-1].header.last_sequence if is_cut else last
    return FrameChunk(
        fetch.queue_id, fetch.epoch, fetch.number, fetch.after_sequence, upto, entries
    )
