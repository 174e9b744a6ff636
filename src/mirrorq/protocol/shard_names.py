"""Shards of a queue: their names, and the shard of a key. Pure.

A sharded queue is one name for several rings. Each shard is an ordinary queue with a name made of
the queue's name and its number, "orders#shard3". No other queue has a name of this form.
"""

from __future__ import annotations

import re
from zlib import crc32

from mirrorq.errors import ConfigError

SHARDS_MAX = 256
"""Limit of shards of one queue: each is a ring with copies of its own."""
_SHARD = re.compile(r"(.+)#shard(0|[1-9][0-9]{0,8})", re.DOTALL)


def shard_name(queue: str, shard: int) -> str:
    """The name of a shard, from 0, of a queue."""
    return f"{queue}#shard{shard}"


def split_name(name: str) -> tuple[str, int] | None:
    """(queue, shard) of a shard's name; None for another queue's."""
    found = _SHARD.fullmatch(name)
    return None if found is None else (found[1], int(found[2]))


def logical_name(name: str) -> str:
    """Return the name known to users: for a shard the name of its queue."""
    split = split_name(name) if "#" in name else None
    return name if split is None else split[0]


def key_bytes(key: str | bytes) -> bytes:
    """Return a key's bytes for hashing.

    Raises:
        TypeError: the key is neither str nor bytes.
        ConfigError: it cannot be encoded.
    """
    if isinstance(key, str):
        try:
            return key.encode()
        except UnicodeEncodeError as error:
            text = f"the key {key!r} cannot be written as UTF-8: {error.reason}"
            raise ConfigError(text) from None
    if isinstance(key, bytes):
        return key
    raise TypeError(f"a key is a str or bytes, not {type(key).__name__}")


def shard_of(key: str | bytes, shards: int) -> int:
    """Return the shard of a key: the CRC-32 (as in zip, PNG, `zlib.crc32` and Spark's `crc32()`) of
    its UTF-8 bytes, modulo the number of shards. The same in every process and for ever."""
    return crc32(key_bytes(key)) % shards
