"""Shards of a queue: their names, and which of them a key belongs to. Pure.

A sharded queue is one name for several rings. Each shard is a queue like any other, with a name
made of the queue's name and its number, "orders#shard3". Names of this form are nobody else's.
"""

from __future__ import annotations

import re
from zlib import crc32

SHARDS_MAX = 256
"""Of one queue: each is a ring with copies of its own."""
_SHARD = re.compile(r"(.+)#shard(0|[1-9][0-9]{0,8})", re.DOTALL)


def shard_name(queue: str, shard: int) -> str:
    """The name of one shard, from 0, of a queue."""
    return f"{queue}#shard{shard}"


def split_name(name: str) -> tuple[str, int] | None:
    """(queue, shard) of a shard's name; None for another queue's."""
    found = _SHARD.fullmatch(name)
    return None if found is None else (found[1], int(found[2]))


def logical_name(name: str) -> str:
    """The name that users know: of a shard that of its queue."""
    split = split_name(name) if "#" in name else None
    return name if split is None else split[0]


def key_bytes(key: str | bytes) -> bytes:
    """A key as it is hashed.

    Raises:
        TypeError: it is neither str nor bytes.
    """
    if isinstance(key, str):
        return key.encode()
    if isinstance(key, bytes):
        return key
    raise TypeError(f"a key is a str or bytes, not {type(key).__name__}")


def shard_of(key: str | bytes, shards: int) -> int:
    """The shard of a key: the CRC-32 (that of zip, PNG, `zlib.crc32` and Spark's `crc32()`) of its
    UTF-8 bytes, modulo the number of shards. The same in every process and for ever."""
    return crc32(key_bytes(key)) % shards
