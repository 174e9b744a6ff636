"""Bodies for what the master decided: frames read from the store, cut to what is named.

The engine names messages; only the driver reads disks. Whole frames are passed on as they
are on disk; one that straddles the edge of a range is cut.
"""

from __future__ import annotations

from collections.abc import Iterable

from attrs import evolve

from mirrorq.messages import (
    Browsed,
    Deliver,
    FetchFrames,
    FrameChunk,
    Range,
    SessionReply,
)
from mirrorq.store import Store
from mirrorq.wire import frames
from mirrorq.wire.ops import make_entry

READ_BYTES = 64 << 20
"""Most bytes that one reply carries; a consumer's credit bounds it long before."""


def fill(store: Store, reply: SessionReply) -> SessionReply:
    """Put the bodies into a Deliver or Browsed; everything else is returned as it is.

    Raises:
        StoreCorrupt: a frame is not as it was written.
    """
    body = reply.reply
    if isinstance(body, Deliver) and not body.frames:
        ranges = [(piece.first, piece.last) for piece in body.handouts]
    elif isinstance(body, Browsed) and not body.frames:
        ranges = [(first, last) for first, last, _ in body.ranges]
    else:
        return reply
    found = tuple(_frames(store, reply.queue_id, ranges))
    return evolve(reply, reply=evolve(body, frames=found))


def _frames(store: Store, queue_id: int, ranges: Iterable[Range]) -> Iterable[bytes]:
    for first, last in ranges:
        while first <= last:
            read = store.read(queue_id, first, last, READ_BYTES)
            if not read:
                return
            for frame in read:
                header = frames.header(frame)
                start = max(first - header.first_sequence, 0)
                stop = min(last + 1 - header.first_sequence, header.count)
                yield frames.cut(bytes(frame), start, stop)
                first = header.last_sequence + 1


def chunk_of(store: Store, fetch: FetchFrames) -> FrameChunk:
    """Answer a joining member: frames after `after_sequence`, within the bytes asked for.

    Raises:
        StoreCorrupt: a frame is not as it was written.
    """
    first, last = fetch.after_sequence + 1, fetch.upto_sequence
    read = store.read(fetch.queue_id, first, last, fetch.bytes_max)
    entries = tuple(make_entry(frame) for frame in read)
    size = sum(len(entry.frame) for entry in entries)
    upto = entries[-1].header.last_sequence if size >= fetch.bytes_max else last
    return FrameChunk(
        fetch.queue_id, fetch.epoch, fetch.number, fetch.after_sequence, upto, entries
    )
