"""Batches for other queues: frames of the source queue's messages, packed anew with the reason.

The driver's half of `courier`: it reads the frames of a batch's first messages, and makes one
publish frame of as many as fit under one header. Each message keeps its body, its headers, its
message_id and its key. Its ttl and delay are removed, or the message would die again for the same
reason. A message that was put for the target is not changed.

A dead-lettered message gets headers that begin with `x-death-`. They hold the last queue, the
reason, the number of deaths, the last sequence, and the time (seconds since 1970). They also list
the queues in which the message died since its last rejection or move, one per line.

*Circles.* A message that would return automatically to a queue in which it died is dropped, as in
RabbitMQ; it would circle for ever. When a consumer rejects a message or a user moves it, the list
begins anew, and the message is not dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from mirrorq.errors import MALFORMED, StoreCorrupt
from mirrorq.protocol import ops
from mirrorq.protocol.effects import OutboxEntry, OutboxLoad, OutboxLoaded
from mirrorq.replication.state.outbox import PUT
from mirrorq.wire import frames
from mirrorq.wire.properties import Properties, encode_properties

MOVED = "moved"
REJECTED = "rejected"

Read = Callable[[int, int, int], Sequence[frames.Frame]]
"""(first, last, maximum bytes) -> frames that hold the sequences, in order."""

_DECODER = msgspec.msgpack.Decoder(Properties)


def packed(load: OutboxLoad, read: Read) -> OutboxLoaded:
    """Pack the messages of a load, as many as one frame can hold.

    Raises:
        StoreCorrupt: as `read` does.
        ProtocolError: a frame is malformed.
    """
    bodies: list[bytes] = []
    properties: list[bytes] = []
    cycled = size = 0
    terms = (0, 0, 0)
    for entry, header, chosen in _messages(load, read):
        own = _terms(entry, header)
        if bodies and (own != terms or size >= load.bytes_max):
            break
        count_max = ops.UNIQUE_COUNT_MAX if own[0] & ops.FLAG_UNIQUE else len(chosen) + len(bodies)
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


def _terms(entry: OutboxEntry, header: ops.Header) -> tuple[int, int, int]:
    """Return (flags, delay, ttl) of a frame for the target."""
    flags = header.flags & (ops.FLAG_TRANSIENT | ops.FLAG_PRIORITY)
    if entry.reason == PUT:
        return flags | header.flags & ops.FLAG_UNIQUE, header.delay_ms, header.ttl_ms
    return flags, 0, 0


def _messages(
    load: OutboxLoad, read: Read
) -> list[tuple[OutboxEntry, ops.Header, list[tuple[int, bytes, bytes]]]]:
    """Return (entry, header, (sequence, body, properties) of each message), up to the limit in
    bytes and to the first missing message."""
    found: list[tuple[OutboxEntry, ops.Header, list[tuple[int, bytes, bytes]]]] = []
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
    """Return the message's properties with the reason; None: the message would circle."""
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
