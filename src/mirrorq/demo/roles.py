"""The two workers of the demo: one publishes rows with confirms, the other takes and acks rows.

Each worker runs on a thread of its own beside the node (or client) of its handle, and records its
results for the check.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from mirrorq import clock
from mirrorq.demo.records import Confirmed, Taken, pack_confirmed, pack_taken
from mirrorq.demo.reports import Consumed, Produced
from mirrorq.demo.source import digest, number_of
from mirrorq.errors import ConfirmUnknown, Empty, NotConfirmed

if TYPE_CHECKING:
    from mirrorq.api.confirmation import Confirmation, Settlement
    from mirrorq.api.message import Message
    from mirrorq.api.queue import MirroredQueue

OPEN_BATCHES_MAX = 16
"""Batches without an outcome: a demo shows steady traffic, not how much fits in memory."""
TAKE_ROWS_MAX = 500
"""One get_many."""
TAKE_S = 0.2
"""Interval in which an idle consumer checks for its stop."""


class Producer:
    """Publishes the lines of a file, up to an allowed number."""

    report = "produced"

    def __init__(
        self, queue: MirroredQueue, rows: Path, records: Path, allowed: int, batch: int
    ) -> None:
        self._queue = queue
        self._batch = batch
        self._rows = rows
        self._records = records.open("wb", buffering=0)
        self._changed = threading.Condition()
        self._allowed = allowed
        self._is_stopping = False
        self.counts = Produced()

    def run(self) -> None:
        """Publish all; return when the outcome of every message is known."""
        self.counts.started_ms = clock.now_ms()
        with self._rows.open("rb") as lines:
            for batch in _batches((line.rstrip(b"\n") for line in lines), self._batch):
                if not self._may_publish(len(batch)):
                    return
                self._queue.put_many(batch).add_done_callback(self._noted(len(batch)))
                self.counts.published += len(batch)
        with self._changed:
            self._changed.wait_for(self._is_settled)
        self.counts.is_done = not self._is_stopping

    def allow(self, count: int) -> None:
        """Go on up to so many rows."""
        with self._changed:
            self._allowed = count
            self._changed.notify_all()

    def stop(self) -> None:
        with self._changed:
            self._is_stopping = True
            self._changed.notify_all()

    def _may_publish(self, count: int) -> bool:
        with self._changed:
            self._changed.wait_for(
                lambda: (
                    self._is_stopping
                    or (self.counts.published + count <= self._allowed and self._has_room())
                )
            )
            return not self._is_stopping

    def _has_room(self) -> bool:
        counts = self.counts
        open_count = counts.published - counts.confirmed - counts.refused
        return open_count < OPEN_BATCHES_MAX * self._batch

    def _is_settled(self) -> bool:
        counts = self.counts
        return self._is_stopping or counts.confirmed + counts.refused == counts.published

    def _noted(self, count: int) -> Callable[[Confirmation], None]:
        number = self.counts.published

        def note(confirmation: Confirmation) -> None:
            at_ms = clock.now_ms()
            with self._changed:
                try:
                    sequences = confirmation.result(0)
                except (NotConfirmed, ConfirmUnknown):
                    self.counts.refused += count
                else:
                    record = Confirmed(number, count, sequences[0], at_ms)
                    self._records.write(pack_confirmed(record))
                    self.counts.confirmed += count
                self._changed.notify_all()

        return note


class Consumer:
    """Takes and acks messages until stopped."""

    report = "consumed"

    def __init__(self, queue: MirroredQueue, records: Path, total: int) -> None:
        self._queue = queue
        self._records = records.open("wb", buffering=0)
        self._seen = bytearray(total)
        self._is_stopping = threading.Event()
        self._lock = threading.Lock()
        self.counts = Consumed()

    def run(self) -> None:
        while not self._is_stopping.is_set():
            try:
                messages = self._queue.get_many(TAKE_ROWS_MAX, timeout=TAKE_S)
            except Empty:
                continue
            if messages:
                self._records.write(b"".join(map(self._record, messages)))
                self.counts.taken += len(messages)
                settlement = self._queue.ack_many(messages)
                settlement.add_done_callback(self._noted(len(messages)))

    def stop(self) -> None:
        self._is_stopping.set()

    def _record(self, message: Message) -> bytes:
        body = message.body
        number = number_of(body)
        if 0 <= number < len(self._seen) and not self._seen[number]:
            self._seen[number] = 1
            self.counts.distinct += 1
        return pack_taken(Taken(number, message.sequence, message.redelivered, digest(body)))

    def _noted(self, count: int) -> Callable[[Settlement], None]:
        def note(settlement: Settlement) -> None:
            with self._lock:
                self.counts.last_ms = clock.now_ms()
                if settlement.exception(0) is None:
                    self.counts.acked += count
                else:
                    self.counts.refused += count

        return note


def _batches(rows: Iterator[bytes], size: int) -> Iterator[list[bytes]]:
    while batch := list(islice(rows, size)):
        yield batch
