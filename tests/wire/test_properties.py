"""What is carried beside a body: its bytes, of this version and of those before."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

import msgspec
import pytest

from mirrorq.errors import ConfigError
from mirrorq.wire.properties import (
    DEPTH_MAX,
    Properties,
    encode_properties,
    pack_properties,
    unpack_properties,
)


class Before(msgspec.Struct, array_like=True, omit_defaults=True):
    """A reader of the first three properties."""

    headers: dict[str, Any] = {}
    message_id: str | None = None
    key: Any = None


def test_properties_that_are_not_there_take_no_bytes() -> None:
    assert pack_properties({"a": 1}, "id", "k") == msgspec.msgpack.encode(
        Before({"a": 1}, "id", "k")
    )
    assert pack_properties(None, None, "k") == b"\x93\x80\xc0\xa1k"
    assert pack_properties(None, None, None) == b""


def test_a_reader_of_the_first_properties_passes_over_the_others() -> None:
    """So properties can be added behind them."""
    nested = {"list": [1, None, {"x": b"\xff"}], "none": None}
    packed = pack_properties(nested, None, b"k", "replies", "c-1", "text/plain")
    assert msgspec.msgpack.decode(packed, type=Before) == Before(nested, None, b"k")
    assert unpack_properties(packed) == Properties(
        nested, None, b"k", "replies", "c-1", "text/plain"
    )
    old = msgspec.msgpack.encode(Before({"a": 1}, "id", "k"))
    assert unpack_properties(old) == Properties({"a": 1}, "id", "k")


def test_properties_that_are_written_again_keep_all() -> None:
    known = unpack_properties(pack_properties({"a": 1}, None, None, correlation_id="c"))
    assert unpack_properties(encode_properties(known)) == known


def test_nested_headers_are_lists_and_mappings_of_what_travels() -> None:
    """They are copied: what the caller changes later is not the message's."""
    inner = [1]
    packed = pack_properties({"t": (1, 2), "m": MappingProxyType({"a": inner})}, None, None)
    inner.append(2)
    assert unpack_properties(packed).headers == {"t": [1, 2], "m": {"a": [1]}}


@pytest.mark.parametrize(
    "bad", [{1: "x"}, {"x": object()}, {"x": {1: 2}}, {"x": [{"y": {1, 2}}]}, {"x": bytearray(1)}]
)
def test_headers_of_other_types_are_refused(bad: Any) -> None:
    with pytest.raises(TypeError, match="header"):
        pack_properties(bad, None, None)


def test_headers_are_not_nested_without_end() -> None:
    """One that is in itself is refused as well; what is packed can be read."""
    deep: list[Any] = []
    for _ in range(DEPTH_MAX - 1):
        deep = [deep]
    assert unpack_properties(pack_properties({"x": deep}, None, None)).headers == {"x": deep}
    endless: list[Any] = []
    endless.append(endless)
    for value in ([[deep]], endless):
        with pytest.raises(ConfigError, match="in each other"):
            pack_properties({"x": value}, None, None)


@pytest.mark.parametrize("name", ["message_id", "reply_to", "correlation_id", "content_type"])
def test_ids_and_names_are_texts(name: str) -> None:
    texts: dict[str, Any] = {"message_id": None, name: 5}
    with pytest.raises(TypeError, match=f"{name} is of type int, not str"):
        pack_properties(None, key=None, **texts)
    with pytest.raises(ConfigError, match="UTF-8"):
        pack_properties(None, key=None, **{"message_id": None, name: "\ud800"})
