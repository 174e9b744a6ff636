"""The catalog's whole state as a snapshot's bytes."""

from __future__ import annotations

import msgspec
from attrs import frozen

from mirrorq.cluster.catalog.commands import LaterVersion
from mirrorq.cluster.catalog.deduplication import AskerRecord
from mirrorq.cluster.catalog.records import NodeRecord, QueueRecord
from mirrorq.cluster.catalog.sharding import ShardedRecord
from mirrorq.errors import MALFORMED, ProtocolError
from mirrorq.protocol.identities import StoreId
from mirrorq.protocol.routing import ExchangeRecord

SNAPSHOT_VERSION = 1
"""Any change of the image raises it."""


@frozen
class Image:
    """A snapshot's content, after its version: everything that the catalog holds at one index of
    the log."""

    index: int
    next_queue_id: int
    nodes: tuple[NodeRecord, ...]
    queues: tuple[QueueRecord, ...]
    policies: tuple[tuple[str, str], ...] = ()
    """(name, text)."""
    exchanges: tuple[ExchangeRecord, ...] = ()
    cluster: int = 0
    past: tuple[StoreId, ...] = ()
    askers: tuple[AskerRecord, ...] = ()
    sharded: tuple[ShardedRecord, ...] = ()


def encode_image(image: Image) -> bytes:
    """Return the snapshot. Equal images give equal bytes."""
    return msgspec.msgpack.encode((SNAPSHOT_VERSION, image))


def decode_image(data: bytes) -> Image:
    """Return the image that `encode_image` wrote.

    Raises:
        ProtocolError: the bytes are no snapshot, or one of another version.
    """
    try:
        version, raw = msgspec.msgpack.decode(data, type=tuple[int, msgspec.Raw])
        if version != SNAPSHOT_VERSION:
            raise LaterVersion(
                f"catalog snapshot has version {version}, this node reads {SNAPSHOT_VERSION}: "
                "run the version that wrote it"
            )
        return msgspec.msgpack.decode(raw, type=Image)
    except MALFORMED as error:
        raise ProtocolError(
            f"a catalog snapshot of {len(data)} bytes cannot be read: {error}"
        ) from error
