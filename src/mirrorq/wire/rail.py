"""Messages and output of the rail as bytes: `_native`, rail.h, has the layouts."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence

from msgspec import Struct

from mirrorq.errors import ProtocolError
from mirrorq.protocol.ops import Entry
from mirrorq.protocol.ring import STAR, Data
from mirrorq.wire.frames import split_run
from mirrorq.wire.ops import make_logged_entry

RAW, LOGGED, STOPPED = 1, 2, 3
DISK = 7
"""Reason of `STOPPED`: the rail could not write its log, and no longer uses the log."""
_MAGIC = 0x3172716D
_DATA = struct.Struct("<IIQQQQ")
_MARK = struct.Struct("<IIQQQ")
_HELLO = struct.pack("<II", _MAGIC, 3)
_BATCH = struct.Struct("<IIQQQQQQQ")


def pack_data(message: Data) -> bytes:
    """Return a message for the rail: the same ops."""
    head = _DATA.pack(_MAGIC, 1, message.queue_id, message.epoch, message.stable, message.time_us)
    return b"".join((head, *[entry.frame for entry in message.entries]))


def unpack_mark(parts: Sequence[bytes]) -> tuple[int, int, int] | None:
    """Return queue, epoch and lsn of a mark; None: the rail only announces itself.

    Raises:
        ProtocolError: the message is not from a rail.
    """
    if len(parts) == 1 and parts[0] == _HELLO:
        return None
    if len(parts) == 1 and len(parts[0]) == _MARK.size:
        magic, kind, *mark = _MARK.unpack(parts[0])
        if (magic, kind) == (_MAGIC, 2) and max(mark) < 1 << 63:
            return mark[0], mark[1], mark[2]
    raise ProtocolError("nothing that a rail says")


class Handed(Struct, frozen=True, gc=False):
    """An item that the rail hands over, in the order of receipt."""

    kind: int
    """`RAW`: unchanged from the wire. `LOGGED`: in the record `number`. `STOPPED`: the rail has
    released the queue."""
    peer: int
    queue_id: int
    message: Data | None
    number: int = 0
    why: int = 0
    """Reason of `STOPPED`."""


def handed_in(data: memoryview) -> Iterator[Handed]:
    """Yield the items that stand end to end in `data`."""
    at = 0
    while at < len(data):
        kind, peer, queue_id, epoch, stable, time_us, number, size, _ = _BATCH.unpack_from(data, at)
        at += _BATCH.size
        if kind == STOPPED:
            yield Handed(kind, peer, queue_id, None, why=stable)
            continue
        entries = _entries(data[at : at + size], is_checked=kind == LOGGED)
        at += size
        if entries is not None:
            message = Data(queue_id, epoch, stable, entries, time_us, STAR)
            yield Handed(kind, peer, queue_id, message, number)


def _entries(run: memoryview, *, is_checked: bool) -> tuple[Entry, ...] | None:
    """Return the ops of a run; None: they are damaged, and lost as on a broken link."""
    try:
        return tuple([make_logged_entry(bytes(frame)) for frame in split_run(run)]) if run else ()
    except ProtocolError:
        if is_checked:
            raise
        return None
