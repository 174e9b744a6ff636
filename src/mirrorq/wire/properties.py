"""Headers, message id and key of a message, packed: what travels beside its body."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import msgspec

from mirrorq.errors import MALFORMED, ConfigError, ProtocolError

__all__ = [
    "KEPT_KEYS",
    "KEPT_KEY_LENGTH",
    "HeaderValue",
    "Properties",
    "pack_properties",
    "unpack_properties",
]


HeaderValue = str | bytes | int | float | bool


class Properties(msgspec.Struct, array_like=True, omit_defaults=True):
    """A message's properties, in the frame's second column."""

    headers: dict[str, Any] = {}
    message_id: str | None = None
    key: Any = None


_ENCODER = msgspec.msgpack.Encoder()


_DECODER = msgspec.msgpack.Decoder(Properties)


_HEADER_TYPES = (str, bytes, bool, int, float)


KEPT_KEYS = 4096


KEPT_KEY_LENGTH = 64
"""Longer ones are packed each time: what is kept stays small."""


def pack_properties(
    headers: Mapping[str, HeaderValue] | None, message_id: str | None, key: str | bytes | None
) -> bytes:
    """The properties as bytes, b"" when there are none.

    Raises:
        TypeError: a header's name is no str, or its value is none of str, bytes, int, float,
            bool.
    """
    if headers is None and message_id is None:
        if key is None:
            return b""
        if type(key) is str and len(key) <= KEPT_KEY_LENGTH:
            return _packed_key(key)
    if headers is not None and not isinstance(headers, Mapping):
        raise TypeError(
            f"headers is of type {type(headers).__name__}: give a mapping of names to values"
        )
    return _packed(dict(headers or {}), message_id, key)


@lru_cache(maxsize=KEPT_KEYS)
def _packed_key(key: str) -> bytes:
    """Keys come again and again."""
    return _packed({}, None, key)


def _packed(
    checked: dict[str, HeaderValue], message_id: str | None, key: str | bytes | None
) -> bytes:
    for name, value in checked.items():
        if not isinstance(name, str) or not isinstance(value, _HEADER_TYPES):
            raise TypeError(
                f"header {name!r} has a value of type {type(value).__name__}: names are str, "
                "values str, bytes, int, float or bool"
            )
    if message_id is not None and not isinstance(message_id, str):
        raise TypeError(f"message_id is of type {type(message_id).__name__}, not str")
    if key is not None and not isinstance(key, str | bytes):
        raise TypeError(f"a key is a str or bytes, not {type(key).__name__}")
    try:
        return _ENCODER.encode(Properties(checked, message_id, key))
    except OverflowError as error:
        raise ConfigError(f"a header's integer does not fit 64 bits: {error}") from error
    except UnicodeEncodeError as error:
        raise ConfigError(
            f"a header, the message id or the key has {error.object!r}, which cannot be written "
            f"as UTF-8: {error.reason}"
        ) from None


def unpack_properties(packed: bytes) -> Properties:
    """What `pack_properties` made.

    Raises:
        ProtocolError: it is something else.
    """
    try:
        return _DECODER.decode(packed) if packed else Properties()
    except MALFORMED as error:
        raise ProtocolError(
            f"properties of {len(packed)} bytes cannot be read ({error}): their producer is of "
            "another version"
        ) from None
