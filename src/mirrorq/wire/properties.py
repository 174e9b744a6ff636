"""Packed properties of a message: its headers, its key, and ids and names that users gave.

Bytes: an array of headers, message id and key. If any of reply_to, correlation_id, content_type and
unique is set, all four follow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import Any, TypeAlias

import msgspec

from mirrorq.errors import MALFORMED, ConfigError, ProtocolError
from mirrorq.protocol.identities import key_producer
from mirrorq.protocol.ops import UniqueKey
from mirrorq.protocol.plain import plain

HeaderValue: TypeAlias = (
    "str | bytes | int | float | bool | Sequence[HeaderValue] | Mapping[str, HeaderValue] | None"
)
"""Type of a header's value; a nested value comes back as lists and dicts."""


class Properties(msgspec.Struct, array_like=True):
    """A message's properties, in the frame's second column."""

    headers: dict[str, Any] = {}
    message_id: str | None = None
    key: Any = None
    reply_to: str | None = None
    correlation_id: str | None = None
    content_type: str | None = None
    unique: tuple[bytes, int] | None = None
    """Digest of the message's unique key, and the number of ms for which the queue remembers the
    key (0: as in its policy)."""


class _Three(msgspec.Struct, array_like=True):
    """Properties of most messages: the bytes of every version."""

    headers: dict[str, Any] = {}
    message_id: str | None = None
    key: Any = None


_ENCODER = msgspec.msgpack.Encoder(enc_hook=plain)


_DECODER = msgspec.msgpack.Decoder(Properties)


_PLAIN_TYPES = (str, bytes, bool, int, float, type(None))


DEPTH_MAX = 32
"""Lists and mappings in a header stand in each other so deep at most: what is written can be read,
by any reader's recursion."""


KEPT_KEYS = 4096


KEPT_KEY_LENGTH = 64
"""Longer keys are packed each time: the cache stays small."""


def pack_properties(
    headers: Mapping[str, HeaderValue] | None,
    message_id: str | None,
    key: str | bytes | None,
    reply_to: str | None = None,
    correlation_id: str | None = None,
    content_type: str | None = None,
    unique: tuple[bytes, int] | None = None,
) -> bytes:
    """Return the properties as bytes, b"" without properties.

    Raises:
        TypeError: a header's name or a text property is no str, or a value has a wrong type.
        ConfigError: a value is too deep, too large, or cannot be written as UTF-8.
    """
    texts = (message_id, reply_to, correlation_id, content_type)
    if headers is None and unique is None and texts == _NONE:
        if key is None:
            return b""
        if type(key) is str and len(key) <= KEPT_KEY_LENGTH:
            return _packed_key(key)
    if headers is not None and not isinstance(headers, Mapping):
        raise TypeError(
            f"headers is of type {type(headers).__name__}: give a mapping of names to values"
        )
    for name, text in zip(_TEXTS, texts, strict=True):
        if text is not None and not isinstance(text, str):
            raise TypeError(f"{name} is of type {type(text).__name__}, not str")
    return _packed(Properties(dict(headers or {}), message_id, key, *texts[1:], unique))


_TEXTS = ("message_id", "reply_to", "correlation_id", "content_type")
_NONE = (None,) * len(_TEXTS)


@lru_cache(maxsize=KEPT_KEYS)
def _packed_key(key: str) -> bytes:
    """Keys come again and again."""
    return _packed(Properties(key=key))


def _packed(checked: Properties) -> bytes:
    for name, value in checked.headers.items():
        if not isinstance(name, str) or not isinstance(value, _PLAIN_TYPES):
            checked.headers[name] = _plain(name, name, value, DEPTH_MAX)
    key = checked.key
    if key is not None and not isinstance(key, str | bytes):
        raise TypeError(f"a key is a str or bytes, not {type(key).__name__}")
    try:
        return encode_properties(checked)
    except OverflowError as error:
        raise ConfigError(f"a header's integer does not fit 64 bits: {error}") from error
    except UnicodeEncodeError as error:
        raise ConfigError(
            f"a header, an id, a name or the key has {error.object!r}, which cannot be written "
            f"as UTF-8: {error.reason}"
        ) from None


def _plain(header: object, name: object, value: object, depth: int) -> Any:
    """Return a header's value made of lists, dicts and plain types. Raises for other types."""
    if depth < 0:
        raise ConfigError(
            f"header {header!r} has more than {DEPTH_MAX} lists and mappings in each other"
        )
    if isinstance(name, str):
        if isinstance(value, _PLAIN_TYPES):
            return value
        if isinstance(value, list | tuple):
            return [_plain(header, name, one, depth - 1) for one in value]
        if isinstance(value, Mapping):
            return {inner: _plain(header, inner, one, depth - 1) for inner, one in value.items()}
    where = "" if name is header else f", in header {header!r},"
    raise TypeError(
        f"header {name!r}{where} has a value of type {type(value).__name__}: names are str, "
        "values str, bytes, int, float, bool or None, or lists and mappings of these"
    )


def encode_properties(properties: Properties) -> bytes:
    """Return the bytes of properties that were packed before, or are checked."""
    one = properties
    rest = (one.reply_to, one.correlation_id, one.content_type, one.unique)
    if rest == (None, None, None, None):
        return _ENCODER.encode(_Three(one.headers, one.message_id, one.key))
    return _ENCODER.encode(one)


DIGEST_BYTES = 16


def digest_of(unique: str | bytes) -> bytes:
    """Return the digest that stands for a user's unique key."""
    data = unique.encode() if isinstance(unique, str) else unique
    return blake2b(data, digest_size=DIGEST_BYTES).digest()


def key_of(packed: bytes) -> UniqueKey | None:
    """Return the unique key in a message's properties, or None.

    Raises:
        ProtocolError: the bytes are not properties.
    """
    unique = unpack_properties(packed).unique
    if unique is None:
        return None
    digest, window_ms = unique
    if len(digest) != DIGEST_BYTES or not 0 <= window_ms < 2**53:
        raise ProtocolError(f"a unique key of {len(digest)} bytes, for {window_ms} ms")
    number = int.from_bytes(digest[:8], "little")
    return UniqueKey(key_producer(number), digest[8:].hex(), window_ms)


def unpack_properties(packed: bytes) -> Properties:
    """Read the bytes of `pack_properties`.

    Raises:
        ProtocolError: the bytes are malformed.
    """
    try:
        return _DECODER.decode(packed) if packed else Properties()
    except MALFORMED as error:
        raise ProtocolError(
            f"properties of {len(packed)} bytes cannot be read ({error}): their producer "
            "runs another version of mirrorq"
        ) from None
