"""The log of an only copy with damaged ops: stand-ins take their places. Pure.

A copy with other members is taken from another member. Of an only copy all whole ops go on. Each
missing op becomes an ack of nothing. The missing messages become one publish without bodies: the
messages keep their sequences, and each is known to be lost.

Messages ended by a lost ack live again. With damage at the log's end, all ops and messages up to
the last known op count as lost.
"""

from __future__ import annotations

from collections.abc import Sequence

from mirrorq.containers.ranges import Range
from mirrorq.protocol.ops import AckOp, Entry, OpKind
from mirrorq.wire import frames
from mirrorq.wire.ops import FrameCodec


def bridged(
    queue_id: int, entries: Sequence[Entry], after: tuple[int, int], end: tuple[int, int]
) -> tuple[list[Entry], list[Range]]:
    """Return the log without a gap, and the ranges of lost messages.

    Args:
        entries: the whole entries, in order.
        after: lsn and last sequence of the checkpoint.
        end: last lsn and last sequence known to the store.
    """
    lsn, sequence = after
    found: list[Entry] = []
    lost: list[Range] = []
    for index, entry in enumerate(entries):
        if entry.lsn > lsn + 1:
            following = next(filter(None, map(_first_sequence, entries[index:])), end[1] + 1)
            lost += _lost(sequence, following - 1)
            like = found[-1] if found else entry
            found += _stand_ins(queue_id, like, range(lsn + 1, entry.lsn), sequence, following - 1)
            sequence = max(sequence, following - 1)
        found.append(entry)
        lsn = entry.lsn
        if _first_sequence(entry):
            sequence = entry.header.last_sequence
    last = max(end[0], lsn + (end[1] > sequence))
    lost += _lost(sequence, end[1])
    like_last = found[-1] if found else None
    found += _stand_ins(queue_id, like_last, range(lsn + 1, last + 1), sequence, end[1])
    return found, lost


def _first_sequence(entry: Entry) -> int:
    return entry.header.first_sequence if entry.header.kind == OpKind.PUBLISH else 0


def _lost(before: int, last: int) -> list[Range]:
    return [(before + 1, last)] if last > before else []


def _stand_ins(
    queue_id: int, like: Entry | None, lsns: range, before: int, last: int
) -> list[Entry]:
    """Return stand-ins for the ops: the first publishes the messages after `before` up to `last`,
    if any."""
    codec = FrameCodec()
    epoch, timestamp_us = (like.epoch, like.header.timestamp_us) if like is not None else (1, 0)
    place = {"queue_id": queue_id, "epoch": epoch, "timestamp_us": timestamp_us}
    found: list[Entry] = []
    for lsn in lsns:
        if last > before:
            bodiless = frames.pack_publish([b""] * (last - before))
            found.append(codec.publish(bodiless, lsn=lsn, first_sequence=before + 1, **place))
            before = last
        else:
            found.append(codec.op(AckOp(()), lsn=lsn, **place))
    return found
