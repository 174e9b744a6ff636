"""Puts that have come, on their way into as few records as may be."""

from __future__ import annotations

import msgspec

from mirrorq.api.batching import PACK_BYTES, PACK_COUNT, parts_of
from mirrorq.api.publish_options import Terms
from mirrorq.spool.confirmation import Batch, SpoolConfirmation
from mirrorq.spool.records import PutRecord, encoded
from mirrorq.spool.route import Route
from mirrorq.store.spool_file import SpoolRecord, SpoolWrites, stored_size


class NewRecord:
    """What becomes one record: puts of one queue on the same terms."""

    __slots__ = ("batch", "bodies", "ordinal", "properties", "route", "size", "stored", "terms",
                 "whole", "writer")  # fmt: skip

    def __init__(self, route: Route, terms: Terms, whole: bool) -> None:
        self.route = route
        self.terms = terms
        self.whole = whole
        self.batch = Batch()
        self.bodies: list[bytes] = []
        self.properties: list[bytes] = []
        self.size = 0
        self.ordinal = 0
        self.stored: SpoolRecord | None = None
        self.writer: PutRecord | None = None

    def write(self, writes: SpoolWrites, now_ms: int) -> None:
        """Add it to a commit."""
        route = self.route
        head = writes.heads.get(route.number)
        if head is None:
            head = writes.heads[route.number] = msgspec.structs.replace(route.head)
        self.ordinal = head.next_ordinal
        terms, said = self.terms, self.properties
        is_same = not said or said.count(said[0]) == len(said)
        self.writer = PutRecord(
            now_ms,
            terms.persistent,
            terms.priority,
            terms.delay_ms,
            terms.ttl_ms,
            self.whole,
            self.bodies,
            (said[0] if said else b"") if is_same else said,
        )
        data = encoded(self.writer)
        size = stored_size(data)
        count = len(self.bodies)
        self.stored = SpoolRecord(self.ordinal, count, size, None)
        writes.puts.append((route.number, self.ordinal, count, data))
        head.next_ordinal += 1
        head.count += count
        head.size += size
        if route.handle is not None and head.sent_to == self.ordinal - 1 and route.is_all_read:
            head.sent_to = self.ordinal

    def on_written(self) -> None:
        """It is accepted."""
        route = self.route
        self.batch.is_accepted = True
        route.batches[self.ordinal] = self.batch
        assert self.stored is not None
        assert self.writer is not None
        route.sent_due = max(route.sent_due, route.head.sent_to)
        if route.head.sent_to >= self.ordinal and route.read_to == self.ordinal - 1:
            route.ready.append((self.stored, self.writer))
            route.read_to = self.ordinal


def gathered(
    entries: list[tuple[Route, SpoolConfirmation]], frame_bytes_max: int
) -> list[NewRecord]:
    """What came, as few records as may be; each confirmation is told its place."""
    made: list[NewRecord] = []
    open_: dict[Route, NewRecord] = {}
    for route, item in entries:
        if item._is_many:
            open_.pop(route, None)
            made += _parts(route, item, frame_bytes_max)
            continue
        record = open_.get(route)
        if (
            record is None
            or len(record.bodies) >= PACK_COUNT
            or record.size + item._size > PACK_BYTES
            or record.terms != item._terms
        ):
            record = open_[route] = NewRecord(route, item._terms, False)
            made.append(record)
        bodies = record.bodies
        item._index = len(bodies)
        item._batch = record.batch
        bodies.append(item._body)
        item._body = b""
        record.properties.append(item._properties)
        record.size += item._size
        if item._callbacks or item._accept_callbacks:
            item._watch()
    return made


def _parts(route: Route, item: SpoolConfirmation, frame_bytes_max: int) -> list[NewRecord]:
    """A put_many: one record, or as many as frames are needed."""
    bodies, properties = item._bodies, item._properties
    made: list[NewRecord] = []
    for start, stop in parts_of(bodies, properties, item._size, frame_bytes_max):
        record = NewRecord(route, item._terms, True)
        record.bodies = bodies[start:stop]
        record.properties = [properties] * (stop - start)
        record.size = sum(map(len, record.bodies)) + len(properties) * (stop - start)
        made.append(record)
    item._take_place(tuple((record.batch, 0, len(record.bodies)) for record in made))
    return made
