"""Stretches: what one task reads. Planned by the driver, read by workers, again if need be.

A stretch names the sequences that lived when it was planned, so it is the same whoever reads
it, and what is gone since is noticed. It is read from any copy in sync that has come as far as
the master had at planning: its own one first, another one when that node dies or stops.
"""

from __future__ import annotations

import logging
import queue as waiting_line
import threading
import time
from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from mirrorq import bulk
from mirrorq.arrow import record_batches
from mirrorq.bulk.reading import Batch, Extent
from mirrorq.errors import MirrorQError, QueueDown
from pyspark_mirrorq.cluster import NOT_HERE, client_of
from pyspark_mirrorq.losses import missing_from, on_missing
from pyspark_mirrorq.options import Options

__all__ = ["Stretch", "cut", "read_stretch", "split"]

log = logging.getLogger("pyspark_mirrorq")

Range = tuple[int, int]
AHEAD_COUNT = 4
"""Record batches that are fetched while Spark works on those before."""
PAUSE_S = 0.2
"""Between two rounds of trying all copies."""
TASK_MESSAGES = 250_000
"""Without minPartitions a task gets about so many messages …"""
COPY_MESSAGES = 10_000
"""… and another copy, with a task more, is used from so many on."""
Item = TypeVar("Item")


class Stretch(InputPartition):  # type: ignore[misc]
    """Messages of one queue, by sequence, and where to read them. Pickled to workers."""

    def __init__(
        self, queue: str, ranges: Sequence[Range], extent: Extent, endpoints: Sequence[str]
    ) -> None:
        self.queue = queue
        self.numbers = array("Q", [number for one in ranges for number in one]).tobytes()
        self.extent = extent
        self.endpoints = tuple(endpoints)

    @property
    def ranges(self) -> list[Range]:
        numbers = array("Q")
        numbers.frombytes(self.numbers)
        rows = iter(numbers)
        return list(zip(rows, rows, strict=True))


def split(ranges: Sequence[Range], parts: int) -> list[list[Range]]:
    """Cut ranges into so many parts of nearly equal counts; none is empty."""
    total = sum(last - first + 1 for first, last in ranges)
    parts = max(min(parts, total), 1)
    found: list[list[Range]] = []
    rest = list(reversed(ranges))
    for part in range(parts):
        wanted = total * (part + 1) // parts - total * part // parts
        piece: list[Range] = []
        while wanted > 0:
            first, last = rest.pop()
            end = min(last, first + wanted - 1)
            piece.append((first, end))
            wanted -= end - first + 1
            if end < last:
                rest.append((end + 1, last))
        found.append(piece)
    return found


def cut(
    queue: str,
    ranges: Sequence[Range],
    extent: Extent,
    orders: Sequence[Sequence[str]],
    least: int,
) -> list[Stretch]:
    """Make stretches of ranges, spread over the copies; [] of none.

    Args:
        orders: for each copy, the endpoints to try.
        least: how many stretches at least, messages permitting; 0: as suits their number.
    """
    total = sum(last - first + 1 for first, last in ranges)
    if not total:
        return []
    copies = min(len(orders), -(-total // COPY_MESSAGES))
    parts = max(least, copies, -(-total // TASK_MESSAGES))
    return [
        Stretch(queue, piece, extent, orders[number % len(orders)])
        for number, piece in enumerate(split(ranges, parts))
    ]


def read_stretch(
    stretch: Stretch, options: Options, columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Read a stretch as record batches; the next ones are fetched meanwhile.

    Raises:
        DataLossError: a part of it is gone, and failOnDataLoss is true.
        MirrorQError: no copy could be read within the option timeout.
    """
    batches = _checked(stretch, options)
    yield from _ahead(record_batches(batches, stretch.queue, columns), AHEAD_COUNT)


def _checked(stretch: Stretch, options: Options) -> Iterator[Batch]:
    """The batches of a stretch; what is missing is an error, or is counted."""
    wanted = stretch.ranges
    seen: list[Range] = []
    # In one piece, whatever the holes: what was not there at planning is not there now.
    for batch in _read_anywhere(stretch, options, wanted[0][0], wanted[-1][1]):
        if seen and seen[-1][1] + 1 == batch.first:
            seen[-1] = (seen[-1][0], batch.last)
        else:
            seen.append((batch.first, batch.last))
        yield batch
    missing = missing_from(wanted, seen)
    why = "They were there when the job was planned and have been acked, purged or expired since"
    on_missing(stretch.queue, missing, options.fail_on_loss, why)


def _read_anywhere(stretch: Stretch, options: Options, first: int, last: int) -> Iterator[Batch]:
    """Read a range from one copy after the other until it has been read once."""
    endpoints = list(stretch.endpoints)
    position = first
    trouble: MirrorQError | None = None
    deadline = time.monotonic() + options.timeout_s
    turn = 0
    while position <= last:
        order = endpoints[turn % len(endpoints) :] + endpoints[: turn % len(endpoints)]
        try:
            reader = bulk.open_reader(
                client_of(options, order), stretch.queue, timeout=options.timeout_s
            )
            for batch in reader.read(position, last, extent=stretch.extent):
                yield batch
                position = batch.last + 1
                deadline = time.monotonic() + options.timeout_s
            return
        except NOT_HERE as error:
            trouble = error
            log.warning("queue %s: going on with another copy: %s", stretch.queue, error)
        turn += 1
        if time.monotonic() >= deadline:
            raise QueueDown(
                f"messages {position} to {last} of queue {stretch.queue!r} could not be read from "
                f"{', '.join(endpoints)} for {options.timeout_s} s (option timeout): {trouble}"
            )
        if turn % len(endpoints) == 0:
            time.sleep(PAUSE_S)


def _ahead(items: Iterable[Item], count: int) -> Iterator[Item]:
    """Yield items that a thread fetches up to `count` ahead; may be left early."""
    line: waiting_line.Queue[tuple[Item | None, BaseException | None]] = waiting_line.Queue(count)
    is_left = threading.Event()

    def offer(item: Item | None, error: BaseException | None) -> bool:
        while not is_left.is_set():
            try:
                line.put((item, error), timeout=PAUSE_S)
            except waiting_line.Full:
                continue
            return True
        return False

    def fetch() -> None:
        try:
            for item in items:
                if not offer(item, None):
                    return
            offer(None, None)
        except BaseException as error:
            offer(None, error)

    thread = threading.Thread(target=fetch, name="mirrorq-read-ahead", daemon=True)
    thread.start()
    try:
        while True:
            item, error = line.get()
            if error is not None:
                raise error
            if item is None:
                return
            yield item
    finally:
        is_left.set()
        thread.join()
