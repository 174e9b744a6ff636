"""Keys and checksummed values of everything except frames.

A value is CRC-32C (4 bytes, little-endian) of key and data, then the data. The key is part of the
sum: a value under a wrong key is as wrong as a changed value.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import TypeVar

from mirrorq.errors import MALFORMED
from mirrorq.wire.frames import crc32c

Decoded = TypeVar("Decoded")
Buffer = bytes | memoryview

_CRC = struct.Struct("<I")
_U64 = struct.Struct("<Q")
_I64 = struct.Struct("<q")
_PLACE = struct.Struct(">QQQ")
_PREFIX = struct.Struct(">QQ")
_QUEUE = struct.Struct(">Q")
_PAGE = struct.Struct(">QcQBQQ")
PAGE_KEY_BYTES = _PAGE.size


class Damaged(Exception):
    """A value differs from the written value; the environment raises `StoreCorrupt` instead."""

    def __init__(
        self, database: str, key: Buffer, why: str, span: tuple[int, int] | None = None
    ) -> None:
        super().__init__(f"database {database!r}, key {bytes(key).hex()}: {why}")
        self.span = span
        """Range of sequences which a damaged frame of messages may have held; else None."""


SEAL_BYTES = _CRC.size
"""Bytes of a stored value beside its data."""


def seal(key: bytes, data: bytes) -> bytes:
    """The value to store `data` as under `key`."""
    return _CRC.pack(crc32c(key + data)) + data


def unseal(database: str, key: Buffer, value: Buffer) -> bytes:
    """The data of a stored value.

    Raises:
        Damaged: The checksum does not match.
    """
    if len(value) < _CRC.size:
        raise Damaged(database, key, f"the value has {len(value)} bytes, at least 4 were written")
    data = bytes(value[_CRC.size :])
    expected = _CRC.unpack_from(value)[0]
    actual = crc32c(bytes(key) + data)
    if actual != expected:
        raise Damaged(database, key, f"checksum {actual:08x}, written was {expected:08x}")
    return data


def decoded(
    database: str, key: Buffer, value: Buffer, decode: Callable[[bytes], Decoded]
) -> Decoded:
    """Return the decoded data of a stored value; undecodable data is damage too."""
    data = unseal(database, key, value)
    try:
        return decode(data)
    except (*MALFORMED, struct.error) as error:
        raise Damaged(database, key, f"{len(data)} bytes that mean nothing ({error})") from error


def pack_u64(number: int) -> bytes:
    return _U64.pack(number)


def unpack_u64(data: bytes) -> int:
    return int(_U64.unpack(data)[0])


def pack_i64(number: int) -> bytes:
    return _I64.pack(number)


def unpack_i64(data: bytes) -> int:
    return int(_I64.unpack(data)[0])


def place_key(queue_id: int, generation: int, number: int) -> bytes:
    """Key of a run: queue, generation, last sequence or last lsn."""
    return _PLACE.pack(queue_id, generation, number)


def place_prefix(queue_id: int, generation: int) -> bytes:
    """Common prefix of the keys of one queue's runs."""
    return _PREFIX.pack(queue_id, generation)


def place_number(key: Buffer) -> int:
    """The last sequence or last lsn in the key of a run."""
    return int(_PLACE.unpack(key)[2])


def record_key(queue_id: int) -> bytes:
    """Key of a queue's record."""
    return _QUEUE.pack(queue_id) + b"q"


def state_key(queue_id: int) -> bytes:
    """Key of a queue's checkpoint."""
    return _QUEUE.pack(queue_id) + b"s"


def page_key(queue_id: int, generation: int, kind: int, first: int, lsn: int) -> bytes:
    """Key of a page of a queue's checkpoint."""
    return _PAGE.pack(queue_id, b"t", generation, kind, first, lsn)


def page_prefix(queue_id: int, generation: int) -> bytes:
    """Common prefix of the keys of all pages in a queue's generation."""
    return page_key(queue_id, generation, 0, 0, 0)[:17]


def page_place(key: Buffer) -> tuple[int, int, int]:
    """(kind, first, lsn) of the page under a key."""
    _, _, _, kind, first, lsn = _PAGE.unpack(key)
    return kind, first, lsn


def page_generation(key: Buffer) -> int:
    """The generation of the page under a key."""
    return int(_PAGE.unpack(key)[2])


def lacking_key(queue_id: int) -> bytes:
    """Key of the sequences which a queue's copy may lack."""
    return _QUEUE.pack(queue_id) + b"l"


def time_key(queue_id: int) -> bytes:
    """Key, in `meta`, of the lead of a queue's time over the node's time: a small value of the
    node."""
    return b"value time " + _QUEUE.pack(queue_id)


def queue_of(key: Buffer) -> int:
    """Return the queue id in a key of `queues`."""
    return int(_QUEUE.unpack_from(key)[0])
