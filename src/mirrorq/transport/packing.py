"""Many messages as one zmq message.

The first part of a zmq message is the *index*: a msgpack list of messages, each a list of its
parts. The index holds a small part itself and only the size of a large part. The large parts follow
in order as parts of their own, and so are not copied here. In the common case a round's messages to
a destination are a single part: one call to send and one call to receive, however many messages.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from mirrorq.errors import MALFORMED, ProtocolError

Part = bytes | bytearray | memoryview

PART_BYTES_MAX = 64 * 1024
"""Larger parts travel alone: a copy of this size costs less than a call beside a busy thread, a
copy of a megabyte does not."""
INDEX_BYTES_MAX = 1024 * 1024
"""A destination's messages leave at this size. Small parts beyond travel alone too, so no index
exceeds the limit of a peer."""
MESSAGES_MAX = 4096
"""Limit of messages in one index, for the same reason."""

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[list[bytes | int]]).decode


class SendBuffer:
    """Messages to one destination, waiting for the end of the round."""

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

    def take_parts(self) -> list[Part]:
        """Return the parts of a zmq message with all added messages; empties the buffer."""
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
    """Return the messages in one zmq message.

    Raises:
        ProtocolError: the parts do not come from `SendBuffer.take_parts`.
    """
    if not parts:
        raise ProtocolError("a message without parts")
    try:
        index = _decode(parts[0])
    except MALFORMED as error:
        raise ProtocolError(f"the index of a message cannot be read: {error}") from None
    if len(parts) == 1:
        # Without large parts every part is in the index itself, unless the index lies.
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
