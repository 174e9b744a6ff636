"""The bytes of a queue's state: as one value, as a head, and as the pages beside it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import msgspec

from mirrorq.containers.range_map import RangeMap
from mirrorq.containers.run_length import Column, Sizes
from mirrorq.errors import MALFORMED
from mirrorq.protocol.ops import PRIORITY_MAX
from mirrorq.replication.state.columns import Block
from mirrorq.replication.state.outbox import Image
from mirrorq.replication.state.producer import Producer
from mirrorq.replication.state.staging import Image as StagingImage

STATE_VERSION = 8
PLAIN_VERSION = 7
"""Names what has come back message by message. Version 8 does so by ranges, and is written only of
a queue to which more has come back than `PLAIN_COUNT`: others an older mirrorq reads, too."""
PLAIN_COUNT = 4096
OLDEST_VERSION = 1
"""The oldest version that is read. 1 knew no levels; 1 and 2 knew no sizes and no times: their
messages count 0 bytes, and no policy's TTL ends them. Up to 4 none knew delays, and
up to 5 none knew an outbox, up to 6 nothing staged, up to 7 no ranges of what has come back."""
PAGED_VERSION = 10
"""What of a state is in no page; the rest of it is in pages. No release wrote a 9, whose pages had
sizes and times beside what lives."""
UNTIMED_VERSION = 3
"""The first version with sizes and times; 4 has each message's ttl too."""
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
    returned: dict[_Number, tuple[_Number, _Number]]
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
    resting: dict[_Number, _Number] = {}
    outbox: Image = []
    staging: StagingImage = []
    time_us: _Number = 0
    returned_ranges: bytes = b""
    """From version 8 on, as `returned` and `resting` before."""
    resting_ranges: bytes = b""
    held: tuple[_Number, _Number, _Number] = (0, 0, 0)
    """Messages and producers in pages, and where the last block of columns begins and 1 more (0:
    there is nothing in it), so that no page can be missing."""
    producer_pages: _Number = 0
    """Which pages of producers there are (`Producers.seal`); 0: an older version did not say."""
    idle_since_us: _Number = 0


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
    if not OLDEST_VERSION <= image.version <= PAGED_VERSION:
        raise ValueError(
            f"a queue's state of version {image.version}, not {OLDEST_VERSION} to {PAGED_VERSION}"
        )
    return image


def block_of(image: StateImage) -> Block:
    """Sizes and times of a state that is one value. What an older version did not keep is 0."""
    block, last = Block(), image.next_sequence - 1
    block.sizes = Sizes.from_bytes(image.sizes)
    block.stamps = Column.from_bytes(image.stamps)
    block.ttls = Column.from_bytes(image.ttls)
    unknown = {UNTIMED_VERSION: (block.ttls,)}.get(image.version, ())
    for column in block.columns() if image.version < UNTIMED_VERSION else unknown:
        if image.live:
            column.append(1, last, 0)
    for column in block.columns():
        column.check_end(last)
    return block


def ranges_of(data: bytes, plain: Mapping[int, tuple[int, ...]], width: int) -> RangeMap:
    """What has come back: as version 8 writes it, or message by message as those before it do."""
    if not plain:
        return RangeMap.from_bytes(data, width)
    made = RangeMap(width)
    first = last = 0
    numbers: tuple[int, ...] = ()
    for sequence, each in sorted(plain.items()):
        if first and sequence == last + 1 and each == numbers:
            last = sequence
            continue
        if first:
            made.put(first, last, *numbers)
        first, last, numbers = sequence, sequence, each
    made.put(first, last, *numbers)
    return made
