"""The bytes of a queue's state: as one value, as a head, and as the pages beside it. Pure."""

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
"""The whole state in one value. Any change of the layout raises it, and `PAGED_VERSION`."""
PAGED_VERSION = 2
"""The part of a state that is in no page; the rest is in pages."""
NUMBER_MAX = 2**63 - 1
"""What a frame's header and the store's keys can hold."""

_Number = Annotated[int, msgspec.Meta(ge=0, le=NUMBER_MAX)]
"""What a frame's header and the store's keys can hold."""


_Priority = Annotated[int, msgspec.Meta(ge=1, le=PRIORITY_MAX)]


class StateImage(msgspec.Struct, array_like=True):
    """The state as bytes: a checkpoint, or what a transfer carries."""

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
    """Messages and producers in pages, and where the last block of columns begins and 1 more (0:
    there is nothing in it), so that no page can be missing."""
    producer_pages: _Number = 0
    """Which pages of producers there are (`Producers.seal`)."""
    idle_since_us: _Number = 0
    unique_window_ms: _Number = DEFAULT.unique_window
    is_paused: bool = False


class MessagesPage(msgspec.Struct, array_like=True):
    """What lives of a stretch of sequences, and the lines of the blocks that begin in it."""

    live: bytes
    blocks: bytes
    transient: bytes
    delayed: bytes
    places: bytes
    returned: bytes
    resting: bytes
    levels: list[tuple[_Priority, bytes]]


def image_of(data: bytes) -> StateImage:
    """Read a state, or its head. Raises ValueError when it is none, or of another version."""
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
    """Sizes and times of a state that is one value."""
    block, last = Block(), image.next_sequence - 1
    block.sizes = Sizes.from_bytes(image.sizes)
    block.stamps = Column.from_bytes(image.stamps)
    block.ttls = Column.from_bytes(image.ttls)
    for column in block.columns():
        column.check_end(last)
    return block
