"""Streaming read: offsets are sequences, and what Spark has committed is acked, nothing before.

An offset is, for each queue, and for each shard of a sharded one, `{"from": first, "seq": end}`:
`seq` is the first sequence that no batch has, and everything from `from` up to it is the stream's
to ack. Spark calls `commit` only when the next batch has begun; from 4.2 on it tells
`latestOffset` the end of the last batch whose commit record is on its disk, and what is before that
is acked there: so a query that stops after its last batch has acked everything.

The reader lives in a process of the driver, which holds the claims; a copy of it, pickled, reads
in workers and holds nothing.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from mirrorq.client import Client
from mirrorq.errors import NoQuorum, PreconditionFailed, QueueDown
from mirrorq.queue import MirroredQueue
from mirrorq.reading import Extent
from mirrorq.takers import Claim
from pyspark_mirrorq.cluster import (
    connected,
    handle_on,
    label,
    master_first,
    queue_names,
    reading_order,
)
from pyspark_mirrorq.losses import on_missing
from pyspark_mirrorq.options import EARLIEST, LATEST, Options
from pyspark_mirrorq.shards import parts_of
from pyspark_mirrorq.snapshot import position_of
from pyspark_mirrorq.stretches import Stretch, cut, read_stretch

try:
    from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow
except ImportError:
    # Spark 4.0 and 4.1 run an AvailableNow query as one batch, and do not ask.
    SupportsTriggerAvailableNow = object

__all__ = ["QueueStream"]

log = logging.getLogger("pyspark_mirrorq")

Place = Mapping[str, int]
Offset = Mapping[str, Place]
IDLE_S = 0.5
"""Without news latestOffset waits so long: Spark would ask 88 times a second."""
LOOK_S = 0.05
AGAIN_S = 0.2
"""What a failover interrupts is tried again after this."""
_PASSING = (NoQuorum, QueueDown)
"""Trouble that ends by itself; an exception would end the query."""
Value = TypeVar("Value")


class _Held:
    """What the driver has of one queue."""

    def __init__(self, queue: MirroredQueue, claim: Claim | None) -> None:
        self.queue = queue
        self.claim = claim
        self.acked = 0
        """Everything below is acked."""


class _Driver:
    """Connection, claims, and what is known of the queues."""

    def __init__(self, options: Options) -> None:
        with connected(options) as client:
            order = master_first(options, client, queue_names(options, client)[0])
        self.client: Client = connected(options, order)
        self.held: dict[str, _Held] = {}
        """By name of a queue, or of a shard."""
        self._seen: list[str] = []
        """Queues all of whose parts are held."""
        self._options = options

    def see(self) -> dict[str, _Held]:
        """The queues that the options name now, each claimed.

        Raises:
            PreconditionFailed: a queue could not be had within claimTimeout; it says who has it.
            QueueNotFound, NoQuorum, QueueDown: and why.
        """
        options = self._options
        if len(self._seen) < len(options.queues) or options.queue_pattern:
            for name in queue_names(options, self.client):
                if name not in self._seen:
                    self._hold_all(name)
                    self._seen.append(name)
        return self.held

    def _hold_all(self, name: str) -> None:
        parts = parts_of(self.client, name, self._options.timeout_s)
        try:
            for part in parts:
                if part.name not in self.held:
                    self.held[part.name] = self._hold(part)
        finally:
            kept = {id(one.queue) for one in self.held.values()}
            for part in parts:
                if id(part) not in kept:
                    part.close()

    def _hold(self, queue: MirroredQueue) -> _Held:
        options = self._options
        if options.mode == "browse":
            return _Held(queue, None)
        who = label(f"a stream of queue {queue.name}")
        try:
            return _Held(queue, queue.claim(who, options.claim_timeout_s))
        except PreconditionFailed as error:
            raise PreconditionFailed(
                f"{error}. A stream needs its queue alone: stop the other, give it more time "
                "(option claimTimeout), or look without taking (option mode = browse)"
            ) from None

    def ack(self, name: str, first: int, end: int) -> None:
        """Be done with what Spark has committed; asked again it changes nothing."""
        held = self.held.get(name)
        if held is None or held.claim is None or end <= max(first, held.acked):
            return
        try:
            held.claim.ack(first, end - 1, self._options.timeout_s)
        except PreconditionFailed:
            # Another consumer came first after a change of master: it gives way, or is named.
            held.claim.ensure(self._options.claim_timeout_s)
            held.claim.ack(first, end - 1, self._options.timeout_s)
        held.acked = end

    def close(self) -> None:
        self.client.close()


class QueueStream(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    """One stream of one or more queues."""

    def __init__(self, options: Options, columns: Sequence[str]) -> None:
        self._options = options
        self._columns = tuple(columns)
        self._begin()

    def _begin(self) -> None:
        self._driver: _Driver | None = None
        self._target: dict[str, int] = {}
        """AvailableNow: where each queue ended when the query began."""
        self._position: Offset = {}
        """The end that was told last."""
        self._waits_since = 0.0
        self._floors: dict[str, int] = {}
        """`from` of each queue in offsets that Spark has kept: Spark 4.0 and 4.1 do not tell
        latestOffset, which then begins anew after a restart."""

    def __getstate__(self) -> dict[str, Any]:
        return {"_options": self._options, "_columns": self._columns}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._begin()

    # --- The driver -----------------------------------------------------------------------

    def _connected(self) -> _Driver:
        if self._driver is None:
            self._driver = _Driver(self._options)
        return self._driver

    def _patiently(self, function: Callable[[], Value]) -> Value:
        """Call a function until no failover interrupts it, for the option timeout at most."""
        deadline = time.monotonic() + self._options.timeout_s
        while True:
            try:
                return function()
            except _PASSING:
                if time.monotonic() >= deadline:
                    raise
            time.sleep(AGAIN_S)

    def initialOffset(self) -> Offset:  # noqa: N802
        """Where a query without a checkpoint begins."""
        self._position = self._patiently(self._starts)
        return self._position

    def _starts(self) -> Offset:
        held = self._connected().see()
        return {name: self._start(one.queue) for name, one in sorted(held.items())}

    def _start(self, queue: MirroredQueue) -> Place:
        options = self._options
        first = 1
        if options.starting_ms is not None:
            first = queue.sequence_at(options.starting_ms / 1000, queue.extent())
        else:
            start = position_of(options.starting, queue.name, EARLIEST)
            if start == LATEST:
                first = queue.extent().next_sequence
            elif start != EARLIEST:
                assert isinstance(start, int)
                first = max(start, 1)
        return {"from": first, "seq": first}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """What is there now is read, and no more."""
        self._target = self._patiently(self._ends)

    def _ends(self) -> dict[str, int]:
        held = self._connected().see()
        return {name: one.queue.extent().next_sequence for name, one in held.items()}

    def latestOffset(self, start: Offset | None = None, limit: object = None) -> Offset:  # noqa: N802
        """Where the next batch ends. From Spark 4.2 on `start` is what has been committed."""
        begin: Offset = self._position if start is None else start
        deadline = time.monotonic() + (0 if self._target else IDLE_S)
        driver = self._patiently(self._connected)
        if start is not None:
            self._ack(start)
        while True:
            try:
                end = self._next(driver, begin)
            except _PASSING as error:
                log.warning("a stream waits: %s", error)
                end = {name: dict(place) for name, place in begin.items()}
                if not end:
                    end = dict(self.initialOffset())
            if end != begin or time.monotonic() >= deadline:
                self._position = end
                return end
            time.sleep(LOOK_S)

    def _next(self, driver: _Driver, begin: Offset) -> dict[str, Place]:
        """The end of a batch that begins there, within the limits."""
        options = self._options
        found: dict[str, Place] = {name: dict(place) for name, place in sorted(begin.items())}
        has_limits = options.trigger_max is not None or options.trigger_min > 0
        live: dict[str, list[tuple[int, int]]] = {}
        for name, held in sorted(driver.see().items()):
            place = begin.get(name) or self._start(held.queue)
            extent = held.queue.extent()
            end = min(extent.next_sequence, self._target.get(name, extent.next_sequence))
            if self._target and name not in self._target:
                end = place["seq"]
            if end > place["seq"] and has_limits:
                live[name] = held.queue.live_ranges(place["seq"], end - 1, extent)
            found[name] = {"from": place["from"], "seq": max(end, place["seq"])}
        if self._is_too_little(sum(map(_count, live.values()))):
            return {name: dict(place) for name, place in sorted(begin.items())}
        if options.trigger_max is not None and begin:
            for name, room in _shares(live, options.trigger_max).items():
                end = _within(live[name], found[name]["seq"], room)
                found[name] = {"from": found[name]["from"], "seq": end}
        return dict(sorted(found.items()))

    def _is_too_little(self, available: int) -> bool:
        """minOffsetsPerTrigger: whether the batch waits for more, for maxTriggerDelay at most."""
        options = self._options
        if not available or available >= options.trigger_min or self._target:
            self._waits_since = 0.0
            return False
        now = time.monotonic()
        self._waits_since = self._waits_since or now
        if now - self._waits_since < options.trigger_delay_s:
            return True
        self._waits_since = 0.0
        return False

    def reportLatestOffset(self) -> Mapping[str, Mapping[str, int]] | None:  # noqa: N802
        """For the progress: how far each queue goes now, and how many messages are in it."""
        if self._driver is None:
            return None
        try:
            extents = {name: one.queue.extent() for name, one in sorted(self._driver.held.items())}
        except _PASSING:
            return None
        return {
            name: {"seq": extent.next_sequence, "depth": extent.messages}
            for name, extent in extents.items()
        }

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """Stretches of what lives between two offsets: the same again after a crash."""
        return self._patiently(lambda: self._stretches(start, end))

    def _stretches(self, start: Offset, end: Offset) -> list[Stretch]:
        driver = self._connected()
        held = driver.see()
        self._floors.update({name: place["from"] for name, place in start.items()})
        least = -(-self._options.partitions_min // max(len(end), 1))
        found: list[Stretch] = []
        for name, place in sorted(end.items()):
            one = held.get(name)
            if one is None:
                queue = handle_on(driver.client, name, self._options.timeout_s)
                one = held[name] = _Held(queue, None)
            first, stop = (start.get(name) or {"seq": place["from"]})["seq"], place["seq"]
            if first < stop:
                found += self._of_queue(driver, one.queue, first, stop, least)
        return found

    def _of_queue(
        self, driver: _Driver, queue: MirroredQueue, first: int, stop: int, least: int
    ) -> list[Stretch]:
        extent: Extent = queue.extent()
        if stop > extent.next_sequence:
            missing = [(max(first, extent.next_sequence), stop - 1)]
            why = (
                f"The checkpoint has read further than the queue goes, {extent.next_sequence - 1}: "
                "it is another queue of this name"
            )
            on_missing(queue.name, missing, self._options.fail_on_loss, why)
        ranges = queue.live_ranges(first, stop - 1, extent)
        order = reading_order(self._options, driver.client, queue)
        return cut(queue.name, ranges, extent, order, least)

    def commit(self, end: Offset) -> None:
        """Spark has committed everything up to here: it is acked."""
        self._ack(end)

    def _ack(self, upto: Offset) -> None:
        driver = self._patiently(self._connected)
        self._patiently(driver.see)
        for name, place in upto.items():
            first = self._floors.get(name, place["from"])
            try:
                driver.ack(name, first, place["seq"])
            except _PASSING as error:
                # The next commit acks this too.
                log.warning("queue %s: acks wait: %s", name, error)

    def stop(self) -> None:
        """The query is over: its claims end."""
        if self._driver is not None:
            self._driver.close()
            self._driver = None

    # --- Workers --------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one stretch. Nothing is acked here: a task may run again."""
        if not isinstance(partition, Stretch):
            return iter(())
        return read_stretch(partition, self._options, self._columns)


def _count(ranges: Sequence[tuple[int, int]]) -> int:
    return sum(last - first + 1 for first, last in ranges)


def _shares(live: Mapping[str, Sequence[tuple[int, int]]], room: int) -> dict[str, int]:
    """How much of the room each gets: in proportion to what there is, so that none has to wait for
    the end of another."""
    total = sum(map(_count, live.values()))
    found: dict[str, int] = {}
    before = 0
    for name, ranges in live.items():
        upto = before + _count(ranges)
        if total <= room:
            found[name] = upto - before
        else:
            found[name] = room * upto // total - room * before // total
        before = upto
    return found


def _within(ranges: Sequence[tuple[int, int]], end: int, room: int) -> int:
    """Where `room` messages of these ranges end, `end` at most."""
    for first, last in ranges:
        count = last - first + 1
        if count > room:
            return first + room
        room -= count
    return end
