"""Messages of the rail, and what it hands over, for its tests."""

from __future__ import annotations

import struct

from rail_model import DATA, MAGIC, Batch
from reference import Fields, encode


def frame_of(queue_id: int, epoch: int, lsn: int, size: int = 8) -> bytes:
    return encode(Fields((b"x" * size,), queue_id=queue_id, epoch=epoch, lsn=lsn))


def data_of(queue_id: int, epoch: int, frames: bytes, stable: int = 0, time_us: int = 0) -> bytes:
    return DATA.pack(MAGIC, 1, queue_id, epoch, stable, time_us) + frames


def run_of(queue_id: int, epoch: int, first: int, count: int, size: int = 8) -> bytes:
    return b"".join(frame_of(queue_id, epoch, first + index, size) for index in range(count))


def batches_of(data: bytes) -> list[Batch]:
    batches = []
    at = 0
    while at < len(data):
        *head, size, reserved = struct.unpack_from("<IIQQQQQQQ", data, at)
        assert reserved == 0
        batches.append(Batch(*head, data[at + 64 : at + 64 + size]))
        at += 64 + size
    return batches
