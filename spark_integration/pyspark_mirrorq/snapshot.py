"""Offsets of a batch: what the options say, resolved to sequences that live."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial

from mirrorq import bulk
from mirrorq.api.queue import MirroredQueue
from mirrorq.bulk.reading import Extent
from mirrorq.client.client import Client
from mirrorq.errors import ConfigError
from pyspark_mirrorq.cluster import (
    at_a_copy,
    connected,
    patiently,
    queue_names,
    reading_order,
)
from pyspark_mirrorq.losses import missing_from, on_missing
from pyspark_mirrorq.options import EARLIEST, LATEST, Options, Position
from pyspark_mirrorq.shards import given_for, parts_of
from pyspark_mirrorq.stretches import Stretch, cut

__all__ = ["check_names", "check_start", "checked_start", "position_of", "snapshot"]


def snapshot(options: Options) -> list[Stretch]:
    """What a batch reads: the messages that live now, within the options' offsets.

    Raises:
        DataLossError: a sequence that was named is gone, and failOnDataLoss is true.
        QueueNotFound, NoQuorum, QueueDown, ConfigError: and why.
    """
    with connected(options) as client:
        names = queue_names(options, client)
        parts = [part for name in names for part in parts_of(client, name, options.timeout_s)]
        check_names(options, (*names, *(part.name for part in parts)))
        found: list[Stretch] = []
        least = -(-options.partitions_min // len(parts))
        for part in parts:
            found += patiently(options, partial(_of_part, options, client, part, least))
        return found


def check_names(options: Options, names: Collection[str]) -> None:
    """Whether offsets and sequences are given for queues, or shards, of these names only.

    Raises:
        ConfigError: for another one.
    """
    by_name = {
        "startingOffsets": options.starting,
        "endingOffsets": options.ending,
        "sequences": options.sequences,
    }
    for option, given in by_name.items():
        named = given if isinstance(given, Mapping) else {}
        unknown = [name for name in named if name not in names]
        if unknown:
            raise ConfigError(
                f"option {option} names {unknown[0]!r}, which is not read: "
                f"{', '.join(sorted(names))} are"
            )


def position_of(
    given: Position | Mapping[str, Position], name: str, otherwise: Position
) -> Position:
    """The position of one queue, or of one shard."""
    return given_for(given, name, otherwise) if isinstance(given, Mapping) else given


def _of_part(options: Options, client: Client, queue: MirroredQueue, least: int) -> list[Stretch]:
    name, only = queue.name, options.sequences
    extent = bulk.extent(queue, options.timeout_s)
    if only is not None:
        wanted = given_for(only, name, ()) if isinstance(only, Mapping) else only
        end = extent.next_sequence
        beyond = [(max(first, end), last) for first, last in wanted if last >= end]
        on_missing(name, beyond, options.fail_on_loss, f"The queue goes up to {end - 1}")
        named = [(first, min(last, end - 1)) for first, last in wanted if first < end]
        return cut(name, named, extent, reading_order(options, client, queue), least)

    def at(stamp_ms: int) -> int:
        """The first sequence that was published then or later."""
        stamp_s = stamp_ms / 1000
        return at_a_copy(options, client, queue, lambda reader: reader.sequence_at(stamp_s, extent))

    first = _first(options, queue, extent, at)
    end = _end(options, queue, extent, at)
    ranges: list[tuple[int, int]] = []
    if first < end:
        ranges = at_a_copy(
            options, client, queue, lambda reader: reader.live_ranges(first, end - 1, extent)
        )
    start = position_of(options.starting, name, EARLIEST)
    if isinstance(start, int):
        check_start(options, name, start, ranges, end)
    return cut(name, ranges, extent, reading_order(options, client, queue), least)


def checked_start(start: int, name: str, extent: Extent) -> int:
    """The first sequence that an explicit start asks for.

    Raises:
        ConfigError: the queue does not go so far.
    """
    if start > extent.next_sequence:
        raise ConfigError(
            f"option startingOffsets is {start}, but the next message of queue {name!r} will "
            f"be {extent.next_sequence}: is it another queue of this name?"
        )
    return max(start, 1)


def check_start(
    options: Options, name: str, start: int, live: Sequence[tuple[int, int]], end: int
) -> None:
    """Whether what an explicit start asks for is there.

    Args:
        live: what lives from there to `end`.

    Raises:
        DataLossError: what comes first is gone, and failOnDataLoss is true.
    """
    # Only up to what is there: further on, sequences that are no messages are nothing unusual
    # (staged chunks have some).
    until = live[0][0] if live else end
    missing = missing_from([(max(start, 1), until - 1)], [])
    why = f"They were asked for by startingOffsets {start}, and what is there begins at {until}"
    on_missing(name, missing, options.fail_on_loss, why)


def _first(options: Options, queue: MirroredQueue, extent: Extent, at: Callable[[int], int]) -> int:
    if options.starting_ms is not None:
        return at(options.starting_ms)
    start = position_of(options.starting, queue.name, EARLIEST)
    if start == EARLIEST:
        return 1
    if start == LATEST:
        raise ConfigError("option startingOffsets is latest: of a batch that would be nothing")
    assert isinstance(start, int)
    return checked_start(start, queue.name, extent)


def _end(options: Options, queue: MirroredQueue, extent: Extent, at: Callable[[int], int]) -> int:
    """The first sequence that is not read."""
    if options.ending_ms is not None:
        return at(options.ending_ms)
    end = position_of(options.ending, queue.name, LATEST)
    if end == LATEST:
        return extent.next_sequence
    assert isinstance(end, int)
    if end > extent.next_sequence:
        raise ConfigError(
            f"option endingOffsets is {end}, but the next message of queue {queue.name!r} will be "
            f"{extent.next_sequence}: name that or less (the end is not read), or latest"
        )
    start = position_of(options.starting, queue.name, EARLIEST)
    if isinstance(start, int) and end < start:
        raise ConfigError(
            f"option endingOffsets is {end}, before startingOffsets, which is {start}, of queue "
            f"{queue.name!r}: name that or more"
        )
    return end
