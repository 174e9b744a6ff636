"""Batches for other queues: frames of this queue's messages, packed anew with why they came.

The driver's half of `courier`: it reads the frames that hold a batch's first messages, and makes
one publish frame of as many as go under one header. Each message keeps its body, its headers, its
message_id and its key; its ttl and delay are left behind, or it would die again of the same. What
was put for the target comes as it was put.

It gets headers that begin with `x-death-`: where it ended last, why, how often it has ended by now,
its sequence there, when (seconds since 1970), and the queues in which it ended since it last came
into one by somebody's will, a line each.

*Circles.* A message that would come, by itself, into a queue in which it has died before goes
nowhere, as in RabbitMQ; it would go round for ever. Where a consumer rejected it on the way, or
somebody moved it, it did not come by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from mirrorq.errors import MALFORMED, StoreCorrupt
from mirrorq.protocol.effects import OutboxEntry, OutboxLoad, OutboxLoaded
from mirrorq.protocol.ops import (
    FLAG_PRIORITY,
    FLAG_TRANSIENT,
    FLAG_UNIQUE,
    UNIQUE_COUNT_MAX,
    Header,
)
from mirrorq.replication.state.outbox import PUT
from mirrorq.wire import frames
from mirrorq.wire.properties import Properties, encode_properties

MOVED = "moved"
REJECTED = "rejected"

Read = Callable[[int, int, int], Sequence[frames.Frame]]
"""(first, last, most bytes) -> frames that hold these sequences, in order."""

_DECODER = msgspec.msgpack.Decoder(Properties)


def packed(load: OutboxLoad, read: Read) -> OutboxLoaded:
    """Pack what `load` names, as much of it as one frame can hold.

    Raises:
        StoreCorrupt: as `read` does.
        ProtocolError: a frame is none.
    """
    bodies: list[bytes] = []
    properties: list[bytes] = []
    cycled = size = 0
    terms = (0, 0, 0)
    for entry, header, chosen in _messages(load, read):
        own = _terms(entry, header)
        if bodies and (own != terms or size >= load.bytes_max):
            break
        count_max = UNIQUE_COUNT_MAX if own[0] & FLAG_UNIQUE else len(chosen) + len(bodies)
        is_cut = False
        for sequence, body, old in chosen:
            new = _properties(load, entry, sequence, old)
            is_full = size >= load.bytes_max or len(bodies) >= count_max
            if bodies and (new is None or is_full):
                is_cut = True
                break
            if new is None:
                cycled += 1
                continue
            terms = own
            bodies.append(body)
            properties.append(new)
            size += len(body) + len(new)
        if is_cut:
            break
    frame = b""
    if bodies:
        first_number = load.number + cycled
        frame = frames.pack_publish(
            bodies,
            properties,
            producer=load.producer,
            first_number=first_number,
            settled=first_number - 1,
            flags=terms[0],
            delay_ms=terms[1],
            ttl_ms=terms[2],
        )
    return OutboxLoaded(load.queue_id, load.target, load.number, cycled, len(bodies), frame)


def _terms(entry: OutboxEntry, header: Header) -> tuple[int, int, int]:
    """(flags, delay, ttl) of a frame for the target."""
    flags = header.flags & (FLAG_TRANSIENT | FLAG_PRIORITY)
    if entry.reason == PUT:
        return flags | header.flags & FLAG_UNIQUE, header.delay_ms, header.ttl_ms
    return flags, 0, 0


def _messages(
    load: OutboxLoad, read: Read
) -> list[tuple[OutboxEntry, Header, list[tuple[int, bytes, bytes]]]]:
    """(entry, header, (sequence, body, properties) of each message), up to the bytes asked for
    and to the first message that is not there."""
    found: list[tuple[OutboxEntry, Header, list[tuple[int, bytes, bytes]]]] = []
    size = 0
    for entry in load.entries:
        first = entry.first
        while first <= entry.last:
            if size >= load.bytes_max:
                return found
            try:
                got = read(first, entry.last, load.bytes_max - size)
            except StoreCorrupt:
                if found:
                    return found
                raise
            if not got:
                return found
            for frame in got:
                header = frames.header(frame)
                start = first - header.first_sequence
                if not 0 <= start < header.count:
                    return found
                stop = min(entry.last + 1 - header.first_sequence, header.count)
                columns = frames.split_properties(frame) or [b""] * header.count
                split = frames.split(frame)
                sequences = range(first, header.first_sequence + stop)
                chosen = zip(sequences, split[start:stop], columns[start:stop], strict=True)
                found.append((entry, header, list(chosen)))
                size += len(frame)
                first = header.first_sequence + stop
    return found


def _properties(load: OutboxLoad, entry: OutboxEntry, sequence: int, old: bytes) -> bytes | None:
    """The message's properties with why it comes; None: it would go in a circle."""
    if entry.reason == PUT:
        return old
    try:
        known = _DECODER.decode(old) if old else Properties()
    except MALFORMED:
        known = Properties({"x-death-properties": old})
    headers = dict(known.headers)
    if entry.reason == MOVED:
        headers.pop("x-death-path", None)
        return encode_properties(msgspec.structs.replace(known, headers=headers))
    before = headers.get("x-death-path")
    path = before.split("\n") if isinstance(before, str) and before else []
    path = [] if entry.reason == REJECTED else [*path, load.queue]
    if load.target_name in path:
        return None
    count = headers.get("x-death-count")
    headers.update(
        {
            "x-death-queue": load.queue,
            "x-death-reason": entry.reason,
            "x-death-count": count + 1 if isinstance(count, int) else 1,
            "x-death-sequence": sequence,
            "x-death-time": entry.stamp_us / 1e6,
            "x-death-path": "\n".join(path),
        }
    )
    return encode_properties(msgspec.structs.replace(known, headers=headers))
