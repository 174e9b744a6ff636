"""The bytes of a queue's state: as one value, as a head, and as the pages beside the head. Pure."""

from __future__ import annotations

from typing import Annotated

import msgspec

from mirrorq.containers.run_length import Column, Sizes
from mirrorq.errors import MALFORMED
from mirrorq.protocol.ops import PRIORITY_MAX
from mirrorq.protocol.policy import DEFAULT
from mirrorq.replication.state.columns import Block
from mirrorq.replication.state.outbox import Image
from mirrorq.replication.state.producer import Producer
from mirrorq.replication.state.staging import Image as StagingImage

STATE_VERSION = 1
"""Version of a whole state in one value. Any change of the layout raises both versions."""
PAGED_VERSION = 2
"""Version of a head: the part of a state that is in no page."""
NUMBER_MAX = 2**63 - 1
"""Greatest number that a frame's header and the store's keys can hold."""

_Number = Annotated[int, msgspec.Meta(ge=0, le=NUMBER_MAX)]


_Priority = Annotated[int, msgspec.Meta(ge=1, le=PRIORITY_MAX)]


class StateImage(msgspec.Struct, array_like=True):
    """The state as bytes: a checkpoint, or the content of a transfer."""

    version: int
    applied: _Number
    next_sequence: _Number
    horizon: _Number
    live: bytes
    transient: bytes
    returned: bytes
    marks: list[tuple[_Number, _Number]]
    producers: dict[_Number, Producer]
    history: list[tuple[_Number, _Number]]
    levels: list[tuple[_Priority, _Number, list[tuple[_Number, _Number]], bytes]] = []
    """(priority, horizon, marks, members), in order of priority."""
    sizes: bytes = b""
    stamps: bytes = b""
    generation: _Number = 0
    fence: _Number = 0
    lost: _Number = 0
    ttls: bytes = b""
    delayed: bytes = b""
    places: bytes = b""
    resting: bytes = b""
    outbox: Image = []
    staging: StagingImage = []
    time_us: _Number = 0
    held: tuple[_Number, _Number, _Number] = (0, 0, 0)
    """Messages and producers in pages, and the beginning of the last block of columns plus 1 (0:
    the block is empty). The numbers reveal a missing page."""
    producer_pages: _Number = 0
    """Checksum of the pages of producers (`Producers.seal`)."""
    idle_since_us: _Number = 0
    unique_window_ms: _Number = DEFAULT.unique_window
    is_paused: bool = False


class MessagesPage(msgspec.Struct, array_like=True):
    """Live messages of a stretch of sequences, and lines of blocks that begin there."""

    live: bytes
    blocks: bytes
    transient: bytes
    delayed: bytes
    places: bytes
    returned: bytes
    resting: bytes
    levels: list[tuple[_Priority, bytes]]


def image_of(data: bytes) -> StateImage:
    """Read a state, or its head. Raises ValueError for malformed bytes or another version."""
    try:
        image = msgspec.msgpack.decode(data, type=StateImage)
    except MALFORMED as error:
        raise ValueError(f"a queue's state of {len(data)} bytes: {error}") from error
    if image.version not in (STATE_VERSION, PAGED_VERSION):
        raise ValueError(
            f"a queue's state of version {image.version}, not {STATE_VERSION} or {PAGED_VERSION}"
        )
    return image


def block_of(image: StateImage) -> Block:
    """Sizes and times of a state in a single value."""
    block, last = Block(), image.next_sequence - 1
    block.sizes = Sizes.from_bytes(image.sizes)
    block.stamps = Column.from_bytes(image.stamps)
    block.ttls = Column.from_bytes(image.ttls)
    for column in block.columns():
        column.check_end(last)
    return block
