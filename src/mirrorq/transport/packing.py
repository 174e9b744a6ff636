"""Many messages as one zmq message.

The first part of a zmq message is the *index*: a msgpack list of messages, each a list of
its parts, in which a small part stands itself and a large one as its size. The large parts
follow in order as parts of their own, and so are not copied here. In the common case a
round's messages to one destination are a single part: one call to send it and one to
receive it, however many messages there are.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from mirrorq.errors import MALFORMED, ProtocolError

Part = bytes | bytearray | memoryview

PART_BYTES_MAX = 64 * 1024
"""Larger parts travel on their own: copying this much costs less than a call beside a busy
thread, copying a megabyte does not."""
INDEX_BYTES_MAX = 1024 * 1024
"""A destination's messages leave when they reach this. Small parts beyond it travel on their
own too, so that no index is larger than what a peer accepts."""
MESSAGES_MAX = 4096
"""Messages in one index, for the same reason."""

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[list[bytes | int]]).decode


class SendBuffer:
    """Messages to one destination that wait for the end of the round."""

    __slots__ = ("_index", "_index_bytes", "_large", "bytes")

    def __init__(self) -> None:
        self.clear()

    def __len__(self) -> int:
        return len(self._index)

    @property
    def is_full(self) -> bool:
        return self.bytes >= INDEX_BYTES_MAX or len(self._index) >= MESSAGES_MAX

    def add(self, parts: Sequence[Part]) -> None:
        entry: list[Part | int] = list(parts)
        for position, part in enumerate(parts):
            size = len(part)
            self.bytes += size
            if size > PART_BYTES_MAX or self._index_bytes + size > INDEX_BYTES_MAX:
                entry[position] = size
                self._large.append(part)
            else:
                self._index_bytes += size
        self._index.append(entry)

    def take(self) -> list[Part]:
        """The parts of one zmq message with all that was added; empties the box."""
        parts: list[Part] = [_encode(self._index), *self._large]
        self.clear()
        return parts

    def clear(self) -> None:
        self._index: list[list[Part | int]] = []
        self._index_bytes = 0
        self._large: list[Part] = []
        self.bytes = 0
        """Bytes of all parts."""


def unpack(parts: Sequence[bytes]) -> list[list[bytes]]:
    """The messages in one zmq message.

    Raises:
        ProtocolError: the parts are not what `SendBuffer.take` makes.
    """
    if not parts:
        raise ProtocolError("a message without parts")
    try:
        index = _decode(parts[0])
    except MALFORMED as error:
        raise ProtocolError(f"the index of a message cannot be read: {error}") from None
    if len(parts) == 1:
        # Without large parts every part stands in the index itself, unless it lies.
        for message in index:
            for part in message:
                if part.__class__ is not bytes:
                    raise ProtocolError("the index of a message names a part that is missing")
        return index  # type: ignore[return-value]
    return _with_large(index, parts)


def _with_large(index: list[list[bytes | int]], parts: Sequence[bytes]) -> list[list[bytes]]:
    messages: list[list[bytes]] = []
    taken = 1
    for entry in index:
        message: list[bytes] = []
        for part in entry:
            if isinstance(part, bytes):
                message.append(part)
                continue
            if taken == len(parts) or len(parts[taken]) != part:
                raise ProtocolError(
                    f"large part {taken} of a message should have {part} bytes, it "
                    + ("is missing" if taken == len(parts) else f"has {len(parts[taken])}")
                )
            message.append(parts[taken])
            taken += 1
        messages.append(message)
    if taken != len(parts):
        raise ProtocolError(f"a message has {len(parts)} parts, its index names {taken}")
    return messages
