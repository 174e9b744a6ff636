"""What the store's tests write: ops of a queue in the order of its log."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from mirrorq import config
from mirrorq.config import Config
from mirrorq.protocol.identities import first_incarnation
from mirrorq.protocol.ops import AckOp, Entry
from mirrorq.store.node_store import Store
from mirrorq.wire import frames
from mirrorq.wire.ops import FrameCodec

QUEUE = 7
NEIGHBOUR = 8
"""Another queue, whose keys come right after."""
MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None
SOURCES = str(Path(config.__file__).parents[1])
PYTHON = sys.executable

_codec = FrameCodec()


def open_store(path: Path, *, node: str = "a", store_bytes_max: int = 64 << 20) -> Store:
    return Store(path, node=node, config=Config(store_bytes_max=store_bytes_max))


def starts_before(store: Store) -> int:
    """How often it was opened before."""
    return (store.incarnation >> 20) - (first_incarnation(store.store_id) >> 20)


class Writer:
    """Makes ops with consecutive lsns and sequences, as a master does."""

    def __init__(self, queue_id: int = QUEUE, epoch: int = 1) -> None:
        self.queue_id = queue_id
        self.epoch = epoch
        self.lsn = 0
        self.sequence = 0

    def publish(self, bodies: Sequence[bytes]) -> Entry:
        self.lsn += 1
        first = self.sequence + 1
        self.sequence += len(bodies)
        return _codec.publish(
            frames.pack_publish(bodies),
            queue_id=self.queue_id,
            epoch=self.epoch,
            lsn=self.lsn,
            first_sequence=first,
            timestamp_us=1,
        )

    def ack(self, first: int, last: int) -> Entry:
        self.lsn += 1
        return _codec.op(
            AckOp(((first, last),)),
            queue_id=self.queue_id,
            epoch=self.epoch,
            lsn=self.lsn,
            timestamp_us=1,
        )


def bodies_of(read: Sequence[memoryview | bytes]) -> dict[int, bytes]:
    """Sequence -> body of frames that were read; they must be in order and not overlap."""
    found: dict[int, bytes] = {}
    last = 0
    for frame in read:
        header = frames.check(frame)
        assert header.first_sequence > last
        last = header.last_sequence
        found.update(zip(range(header.first_sequence, last + 1), frames.split(frame), strict=True))
    return found


def frames_of(entries: Sequence[Entry]) -> list[bytes]:
    return [entry.frame for entry in entries]
