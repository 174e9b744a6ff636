"""Streaming read: offsets are sequences, and what Spark has committed is acked, nothing before.

An offset is, for each queue, and for each shard of a sharded one, `{"from": first, "seq": end,
"id": identity}`: `seq` is the first sequence that no batch has, and everything from `from` up to it
is the stream's to ack, in the queue with that identity. A queue that was deleted and declared again
has another identity, and nothing is acked in it by an offset of the old one. With it goes `count`,
the messages of the batch that ends there: when it is repeated and some are gone, that is noticed.
Spark calls `commit` only when the next batch has begun; from 4.2 on it tells `latestOffset` the end
of the last batch whose commit record is on its disk, and what is before that is acked there: so a
query that stops after its last batch has acked everything.

The reader lives in a process of the driver, which holds the claims; a copy of it, pickled, reads
in workers and holds nothing.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import wraps
from typing import Any, NotRequired, ParamSpec, TypedDict, TypeVar

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from mirrorq import bulk
from mirrorq.errors import ShutDown
from mirrorq.protocol.shard_names import logical_name
from pyspark_mirrorq.cluster import AGAIN_S, PASSING, is_matched, patiently
from pyspark_mirrorq.losses import on_another_queue, on_fewer, on_gone, on_missing
from pyspark_mirrorq.options import EARLIEST, LATEST, Options, check_stream
from pyspark_mirrorq.snapshot import check_names, check_start, checked_start, position_of
from pyspark_mirrorq.stream_driver import Held, Range, StreamDriver
from pyspark_mirrorq.stretches import Stretch, cut, read_stretch
from pyspark_mirrorq.workers import Sent

try:
    from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow
except ImportError:
    # Spark 4.0 and 4.1 run an AvailableNow query as one batch, and do not ask.
    SupportsTriggerAvailableNow = object

__all__ = ["QueueStream"]

log = logging.getLogger("pyspark_mirrorq")

Place = TypedDict("Place", {"from": int, "seq": int, "id": str, "count": NotRequired[int]})
Offset = Mapping[str, Place]
IDLE_S = 0.5
"""Without news latestOffset waits so long: Spark would ask 88 times a second."""
LOOK_S = 0.05
"""Meanwhile the masters are asked again after this, then after twice as long, …"""
UNTOLD = (
    "startingOffsets is latest, and Spark before 4.2 does not tell where this query began: if its "
    "last run made only one batch, what that has read stays in the queue. Give a sequence instead"
)
SEQUENCE_MAX = 1 << 63
"""Beyond every sequence."""
Given = ParamSpec("Given")
Value = TypeVar("Value")


def _told(call: Callable[Given, Value]) -> Callable[Given, Value]:
    """A call of Spark's, whose error says what to do when the driver's handles are closed."""

    @wraps(call)
    def told(*given: Given.args, **named: Given.kwargs) -> Value:
        try:
            return call(*given, **named)
        except ShutDown as error:
            raise ShutDown(
                f"{error}. The stream is over: start the query again, and it goes on from its "
                "checkpoint. A queue that was deleted has to be declared before (option queue), "
                "and has sequences of its own: give the query a new checkpoint"
            ) from None

    return told


class QueueStream(Sent, DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    """One stream of one or more queues."""

    def __init__(self, options: Options, columns: Sequence[str]) -> None:
        check_stream(options)
        self._options = options
        self._columns = tuple(columns)
        self._begin()

    def _begin(self) -> None:
        self._driver: StreamDriver | None = None
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

    def _connected(self) -> StreamDriver:
        if self._driver is None:
            self._driver = StreamDriver(self._options)
        return self._driver

    @_told
    def initialOffset(self) -> Offset:  # noqa: N802
        """Where a query without a checkpoint begins."""
        self._position = patiently(self._options, self._starts)
        return self._position

    def _starts(self) -> Offset:
        held = self._connected().see()
        check_names(self._options, {*held, *map(logical_name, held)})
        for one in held.values():
            self._check_start(one)
        return {name: self._start(one) for name, one in sorted(held.items())}

    def _check_start(self, held: Held) -> None:
        """Whether an explicit start is within the queue, and nothing after it is gone."""
        start = position_of(self._options.starting, held.queue.name, EARLIEST)
        if isinstance(start, int) and self._options.starting_ms is None:
            extent = held.ask()
            first, end = checked_start(start, held.queue.name, extent), extent.next_sequence
            live = held.live(first, end - 1, extent) if first < end else []
            check_start(self._options, held.queue.name, start, live, end)

    def _start(self, held: Held, *, is_later: bool = False) -> Place:
        """Where a queue is read from. `is_later`: others have been read before, and an option that
        does not name this queue was for those."""
        options, queue, starting = self._options, held.queue, self._options.starting
        first = 1
        if is_later and not isinstance(starting, Mapping):
            starting = EARLIEST
        elif options.starting_ms is not None:
            extent, start_s = bulk.extent(queue), options.starting_ms / 1000
            first = held.look(lambda reader: reader.sequence_at(start_s, extent))
        start = position_of(starting, queue.name, EARLIEST)
        if start == LATEST and not is_later:
            first = bulk.extent(queue).next_sequence
        elif isinstance(start, int):
            first = max(start, 1)
        return {"from": first, "seq": first, "id": held.identity}

    def _in_these(self, offset: Offset, held: Mapping[str, Held]) -> dict[str, Place]:
        """An offset in the queues that there are: a queue that took another one's place is read
        from its first message.

        Raises:
            DataLossError: a queue is another one than the offset is of, and failOnDataLoss is true.
        """
        found = _copy(offset)
        for name, place in offset.items():
            one = held.get(name)
            if one is not None and place.get("id") != one.identity:
                on_another_queue(name, place["seq"], self._options.fail_on_loss)
                found[name] = {"from": 1, "seq": 1, "id": one.identity}
        return found

    @_told
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """What is there now is read, and no more."""
        self._target = patiently(self._options, self._ends)

    def _ends(self) -> dict[str, int]:
        driver = self._connected()
        found = driver.for_each(lambda _, one: one.ask(), driver.see())
        return {name: extent.next_sequence for name, extent in found.items()}

    @_told
    def latestOffset(self, start: Offset | None = None, limit: object = None) -> Offset:  # noqa: N802
        """Where the next batch ends. From Spark 4.2 on `start` is what has been committed."""
        begin: Offset = self._position if start is None else start
        deadline = time.monotonic() + (0 if self._target else IDLE_S)
        patience = time.monotonic() + self._options.timeout_s
        driver = patiently(self._options, self._connected)
        if start is not None:
            begin = self._ack(start)
        elif not begin and self._options.starting == LATEST:
            log.warning(UNTOLD)
        is_first, pause = True, LOOK_S
        while True:
            try:
                end = self._next(driver, begin, driver.see() if is_first else driver.ready())
                is_first = False
            except PASSING as error:
                log.warning("a stream waits: %s", error)
                if self._target or not begin:
                    # A query of AvailableNow would end without what is there. Spark before 4.2,
                    # after a restart: which offset it has is not known here, and an earlier one
                    # would have it read again what has been committed.
                    if time.monotonic() >= patience:
                        raise
                    time.sleep(AGAIN_S)
                    continue
                end = _copy(begin)
            left = deadline - time.monotonic()
            if end != begin or left <= 0:
                self._position = end
                return end
            time.sleep(min(pause, left))
            pause *= 2

    def _next(
        self, driver: StreamDriver, begin: Offset, held: Mapping[str, Held]
    ) -> dict[str, Place]:
        """The end of a batch that begins there, within the limits."""
        options = self._options
        begin = self._in_these(begin, held)
        found = self._still_named(begin, held)
        has_limits = options.trigger_max is not None or options.trigger_min > 0
        # Who only looks sees others take; and Spark before 4.2 does not tell after a restart where
        # the batch begins.
        is_kept = options.mode != "browse" and bool(begin)

        def look(name: str, one: Held) -> tuple[Place, int, list[Range]]:
            """Where a queue's batch begins, where it may end, and what of it lives."""
            one.forget_live()
            place = begin.get(name) or self._start(one, is_later=bool(begin))
            extent = one.ask()
            end = extent.next_sequence
            if self._target:
                end = min(end, self._target.get(name, place["seq"]))
            if extent.is_paused and options.mode != "browse":
                end = place["seq"]
            is_counted = (has_limits or is_kept) and end > place["seq"]
            live = one.live(place["seq"], end - 1, one.reaching(end)) if is_counted else []
            return place, max(end, place["seq"]), live

        live: dict[str, list[Range]] = {}
        for name, (place, end, ranges) in driver.for_each(look, held).items():
            found.setdefault(name, place)
            if end > place["seq"]:
                found[name] = {"from": place["from"], "seq": end, "id": place["id"]}
                live[name] = ranges
        if begin and has_limits and self._is_too_little(sum(map(_count, live.values()))):
            return _copy(begin)
        if begin and options.trigger_max is not None:
            for name, room in _shares(live, options.trigger_max).items():
                end = _within(live[name], found[name]["seq"], room)
                found[name]["seq"] = end
        for name, ranges in live.items() if is_kept else ():
            found[name]["count"] = _count(ranges, found[name]["seq"])
        return dict(sorted(found.items()))

    def _still_named(self, offset: Offset, held: Mapping[str, Held]) -> dict[str, Place]:
        """The part of an offset whose queues the options name.

        Raises:
            DataLossError: a queue is gone that queuePattern matches, and failOnDataLoss is true.
        """
        for name in offset.keys() - held.keys():
            self._check_gone(name, offset[name])
        return {name: place for name, place in _copy(offset).items() if name in held}

    def _check_gone(self, name: str, place: Place) -> None:
        options = self._options
        if options.mode != "browse" and is_matched(options, logical_name(name)):
            on_gone(name, place["seq"], options.fail_on_loss)

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
        """For the progress: how far each queue goes, and how many messages are in it, as
        latestOffset has heard a moment ago."""
        if self._driver is None:
            return None
        return {
            name: {"seq": one.extent.next_sequence, "depth": one.extent.messages}
            for name, one in sorted(self._driver.held.items())
            if one.extent is not None
        } or None

    @_told
    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """Stretches of what lives between two offsets: the same again after a crash."""
        return patiently(self._options, lambda: self._stretches(start, end))

    def _stretches(self, start: Offset, end: Offset) -> list[Stretch]:
        driver = self._connected()
        held = dict(driver.ready())
        for name in end.keys() - held.keys():
            left = driver.left(name, end[name]["id"])
            if left is not None:
                held[name] = left
        start, end = self._in_these(start, held), self._in_these(end, held)
        self._learn(start, end, held)
        least = -(-self._options.partitions_min // max(len(end), 1))
        wanted: dict[str, tuple[int, int, int]] = {}
        for name, place in sorted(end.items()):
            first = start[name]["seq"] if name in start else place["from"]
            stop, count = place["seq"], place.get("count", 0)
            if first < stop and name in held:
                wanted[name] = first, stop, count
            elif first < stop:
                on_fewer(name, (first, stop - 1), count, 0, self._options.fail_on_loss)

        def plan(name: str, one: Held) -> list[Stretch]:
            return self._of_queue(driver, one, *wanted[name], least)

        found = driver.for_each(plan, {name: held[name] for name in wanted})
        return [stretch for some in found.values() for stretch in some]

    def _learn(self, start: Offset, end: dict[str, Place], held: Mapping[str, Held]) -> None:
        """Note which queues there were before a batch: Spark 4.0 and 4.1 do not tell latestOffset
        after a restart.

        Raises:
            DataLossError: a queue is gone that queuePattern matches, and failOnDataLoss is true.
        """
        for name in start.keys() - end.keys() - held.keys():
            self._check_gone(name, start[name])
        self._floors.update({name: place["from"] for name, place in start.items()})
        came_later = (end.keys() & held.keys()) - start.keys() if start else set()
        for name in came_later:
            first = self._start(held[name], is_later=True)["from"]
            self._floors[name] = end[name]["from"] = first
            if name in self._position:
                self._position[name]["from"] = first

    def _of_queue(
        self, driver: StreamDriver, held: Held, first: int, stop: int, planned: int, least: int
    ) -> list[Stretch]:
        name = held.queue.name
        extent = held.reaching(stop)
        if stop > extent.next_sequence:
            missing = [(max(first, extent.next_sequence), stop - 1)]
            why = (
                f"The checkpoint has read further than the queue goes, {extent.next_sequence - 1}: "
                "the queue was set back to an earlier copy, or has lost messages"
            )
            on_missing(name, missing, self._options.fail_on_loss, why)
        ranges = held.live(first, stop - 1, extent)
        on_fewer(name, (first, stop - 1), planned, _count(ranges), self._options.fail_on_loss)
        return cut(name, ranges, extent, held.order(), least)

    @_told
    def commit(self, end: Offset) -> None:
        """Spark has committed everything up to here: it is acked."""
        self._ack(end)

    def _ack(self, upto: Offset) -> Offset:
        """Ack up to an offset; return it in the queues that there are."""
        driver = patiently(self._options, self._connected)
        held = patiently(self._options, driver.ready)
        upto = self._in_these(upto, held)

        def ack(name: str, one: Held) -> None:
            place = upto[name]
            try:
                driver.ack(one, self._floors.get(name, place["from"]), place["seq"])
            except PASSING as error:
                # The next commit acks this too.
                log.warning("queue %s: acks wait: %s", name, error)

        driver.for_each(ack, {name: held[name] for name in upto if name in held})
        for name in upto.keys() - held.keys():
            self._finish(driver, name, upto[name])
        return upto

    def _finish(self, driver: StreamDriver, name: str, place: Place) -> None:
        """Be done with a queue that the options name no more."""
        first = self._floors.get(name, place["from"])
        patiently(self._options, lambda: driver.finish(name, place["id"], first, place["seq"]))

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


def _copy(offset: Offset) -> dict[str, Place]:
    return {name: place.copy() for name, place in sorted(offset.items())}


def _count(ranges: Sequence[tuple[int, int]], end: int = SEQUENCE_MAX) -> int:
    """How many sequences ranges have below an end."""
    return sum(max(min(last, end - 1) - first + 1, 0) for first, last in ranges)


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
