"""The catalog's whole state as pages of bytes, each of a bounded number of records.

A page is a version, then (index, number, true for the last page, records). Each record has a tag.
Equal states give equal pages.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Annotated, Any

import msgspec
from attrs import evolve, frozen

from mirrorq.cluster.catalog.commands import LaterVersion
from mirrorq.cluster.catalog.deduplication import AskerRecord
from mirrorq.cluster.catalog.records import NodeRecord, QueueRecord
from mirrorq.cluster.catalog.sharding import ShardedRecord
from mirrorq.errors import MALFORMED, ProtocolError
from mirrorq.protocol.identities import StoreId
from mirrorq.protocol.routing import ExchangeRecord

IMAGE_VERSION = 2
"""Any change of the image raises the version."""
PAGE_BYTES = 64 * 1024
"""The record which reaches this size ends the page. Every record fits one message of Raft
(`messages.COMMAND_BYTES_MAX`)."""
BINDINGS_AT_ONCE = 32
"""Bindings of an exchange in one record; a larger exchange takes several records."""


@frozen
class ImageHead:
    """Values which appear once in an image."""

    next_queue_id: int
    cluster: int


@frozen
class PolicyRecord:
    """A policy."""

    name: str
    text: str


@frozen
class SendingPattern:
    """Pattern of a present or past policy with dead letters: matching queues may have sent some."""

    pattern: str


Record = (
    ImageHead
    | NodeRecord
    | StoreId
    | PolicyRecord
    | QueueRecord
    | ShardedRecord
    | ExchangeRecord
    | AskerRecord
    | SendingPattern
)
_KINDS: dict[int, Any] = {
    1: ImageHead,
    2: NodeRecord,
    3: StoreId,
    4: PolicyRecord,
    5: QueueRecord,
    6: ShardedRecord,
    7: ExchangeRecord,
    8: AskerRecord,
    9: SendingPattern,
}
_TAGS = {kind: tag for tag, kind in _KINDS.items()}
_Tag = Annotated[int, msgspec.Meta(ge=1, le=len(_KINDS))]
_Body = tuple[int, int, bool, list[tuple[_Tag, msgspec.Raw]]]


def encode_pages(index: int, records: Iterable[Record]) -> Iterator[tuple[bytes, bool]]:
    """Give the pages of an image after an index of the log, one at a time, each with true for the
    last page."""
    number, size = 0, 0
    page: list[tuple[int, msgspec.Raw]] = []
    for record in records:
        if size >= PAGE_BYTES:
            yield _encode_page(index, number, False, page), False
            number, size, page = number + 1, 0, []
        data = msgspec.msgpack.encode(record)
        size += len(data)
        page.append((_TAGS[type(record)], msgspec.Raw(data)))
    yield _encode_page(index, number, True, page), True


def _encode_page(
    index: int, number: int, is_last: bool, records: list[tuple[int, msgspec.Raw]]
) -> bytes:
    return msgspec.msgpack.encode((IMAGE_VERSION, (index, number, is_last, records)))


def parts_of(exchange: ExchangeRecord) -> Iterator[ExchangeRecord]:
    """Give the records of an exchange: each holds a part of the bindings."""
    bindings = exchange.bindings
    for first in range(0, max(len(bindings), 1), BINDINGS_AT_ONCE):
        yield evolve(exchange, bindings=bindings[first : first + BINDINGS_AT_ONCE])


@frozen
class ImagePage:
    """One page read back."""

    index: int
    number: int
    is_last: bool
    records: list[Record]


def decode_page(data: bytes) -> ImagePage:
    """Return the page.

    Raises:
        ProtocolError: the bytes are no page, or a page of another version.
    """
    try:
        version, raw = msgspec.msgpack.decode(data, type=tuple[int, msgspec.Raw])
        if version != IMAGE_VERSION:
            raise LaterVersion(
                f"catalog snapshot has version {version}, this node reads {IMAGE_VERSION}: "
                "run the version that wrote it"
            )
        index, number, is_last, tagged = msgspec.msgpack.decode(raw, type=_Body)
        records = [msgspec.msgpack.decode(one, type=_KINDS[tag]) for tag, one in tagged]
    except MALFORMED as error:
        raise ProtocolError(
            f"a catalog snapshot of {len(data)} bytes cannot be read: {error}"
        ) from error
    return ImagePage(index, number, is_last, records)
