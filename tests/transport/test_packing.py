"""Many messages as one zmq message."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirrorq.errors import ProtocolError
from mirrorq.transport.packing import (
    INDEX_BYTES_MAX,
    MESSAGES_MAX,
    PART_BYTES_MAX,
    SendBuffer,
    unpack,
)

parts = st.binary(max_size=20) | st.sampled_from(
    [bytes(PART_BYTES_MAX), bytes(PART_BYTES_MAX + 1), bytes(3 * PART_BYTES_MAX)]
)
messages = st.lists(st.lists(parts, max_size=30), max_size=10)


def packed(given: list[list[bytes]]) -> list[bytes]:
    outbox = SendBuffer()
    for message in given:
        outbox.add(message)
    return [bytes(part) for part in outbox.take_parts()]


@given(messages)
def test_round_trip(given: list[list[bytes]]) -> None:
    """Messages come out as they went in, and no index is large."""
    parts = packed(given)
    assert unpack(parts) == given
    assert len(parts[0]) < 2 * INDEX_BYTES_MAX


def test_large_parts_are_not_copied() -> None:
    """A large part leaves as the object that was given."""
    outbox = SendBuffer()
    large = bytes(PART_BYTES_MAX + 1)
    outbox.add([b"head", large])
    assert outbox.take_parts()[1] is large
    assert len(outbox) == outbox.bytes == 0


def test_an_outbox_is_full_in_time() -> None:
    """By bytes, and by the number of messages."""
    by_bytes, by_count = SendBuffer(), SendBuffer()
    while not by_bytes.is_full:
        by_bytes.add([bytes(1000)])
    while not by_count.is_full:
        by_count.add([])
    assert INDEX_BYTES_MAX <= by_bytes.bytes < INDEX_BYTES_MAX + 1000
    assert len(by_count) == MESSAGES_MAX


@given(st.lists(st.binary(max_size=50), max_size=4))
def test_garbage(parts: list[bytes]) -> None:
    """Random parts raise ProtocolError or nothing."""
    try:
        unpack(parts)
    except ProtocolError as error:
        assert str(error)  # noqa: PT017


@given(messages, st.data())
def test_lost_parts_are_noticed(given: list[list[bytes]], data: st.DataObject) -> None:
    """A part that is missing, or one too many, is an error, never a shifted message."""
    parts = packed(given)
    if len(parts) > 1:
        lost = list(parts)
        del lost[data.draw(st.integers(1, len(parts) - 1))]
        with pytest.raises(ProtocolError):
            unpack(lost)
    with pytest.raises(ProtocolError):
        unpack([*parts, b"more"])
