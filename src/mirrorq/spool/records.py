"""What of a put stands in the file: its record, written and read."""

from __future__ import annotations

import msgspec

from mirrorq.store.spool_file import SpoolRecord


class PutRecord(msgspec.Struct, array_like=True):
    """A record of the file: what was put together, on the same terms."""

    stamp_ms: int
    """When, in milliseconds since 1970."""
    persistent: bool
    priority: int
    delay_ms: int
    ttl_ms: int
    whole: bool
    """One `put_many`: stored whole or not at all."""
    bodies: list[bytes]
    properties: list[bytes] | bytes = b""
    """One for each body, or one for all of them."""


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(PutRecord)


def encoded(record: PutRecord) -> bytes:
    """The bytes of a record."""
    return _ENCODER.encode(record)


def decoded(record: SpoolRecord) -> PutRecord | None:
    """What was put; None: it cannot be read."""
    if record.data is None:
        return None
    try:
        return _DECODER.decode(record.data)
    except msgspec.MsgspecError:
        return None
