"""Runs: frames end to end in one value."""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterable, Iterator

from mirrorq.errors import ProtocolError
from mirrorq.protocol.ops import Entry, Header
from mirrorq.store.records import Buffer, Damaged
from mirrorq.wire import frames
from mirrorq.wire.ops import make_logged_entry

RUN_BYTES_MAX = 1 << 20
"""Limit of a run's size; a larger frame is a run of its own. Large values cost few calls; much
larger values would make a read of a few messages check too many bytes."""

_SPAN = struct.Struct("<32xQII")
"""Fields of a frame's header: first sequence, count, length."""


def cut_into_runs(
    entries: Iterable[Entry], bytes_max: int = RUN_BYTES_MAX
) -> Iterator[list[Entry]]:
    """Group entries into runs, in order."""
    run: list[Entry] = []
    size = 0
    for entry in entries:
        if run and size + len(entry.frame) > bytes_max:
            yield run
            run, size = [], 0
        run.append(entry)
        size += len(entry.frame)
    if run:
        yield run


def join(run: list[Entry]) -> bytes:
    """Return the bytes of a run of the entries."""
    return run[0].frame if len(run) == 1 else b"".join([entry.frame for entry in run])


def split(table: str, key: Buffer, run: Buffer) -> list[memoryview]:
    """Return the frames of a run, as views of the run, each checked.

    Raises:
        Damaged: A frame differs from the written frame, or the run is empty.
    """
    try:
        split = frames.split_run(run)
    except ProtocolError as error:
        raise Damaged(table, key, str(error)) from error
    if not split:
        raise Damaged(table, key, "the run is empty")
    return split


def read(
    table: str,
    key: Buffer,
    run: Buffer,
    first: int,
    last: int,
    bytes_max: int,
    start: int = 0,
) -> tuple[list[memoryview], int] | None:
    """Copy the frames with sequences of [first, last] out of a run.

    Args:
        table: Table of the run, for errors.
        key: Key of the run, for errors.
        run: The run.
        first: First sequence.
        last: Last sequence.
        bytes_max: The frame which reaches the limit is the last.
        start: Offset of a frame at or before `first`. Any other number costs time only:
            sequences rise within a run, so nothing of interest lies before a checked frame
            at or before `first`.

    Returns:
        The checked frames, and a good `start` for the next read; None when the run begins
        after `last`.

    Raises:
        Damaged: A frame differs from the written frame.
    """
    stop, is_end = _walk(run, first, last, bytes_max, start)
    try:
        if is_end:
            # The checked header proves: the frame comes after `last`.
            first_header(table, key, memoryview(run)[stop:], is_checked=True)
            if stop == start == 0:
                return None
        found = split(table, key, bytes(run[start:stop]))
        if start and _span(found[0])[0] > first:
            return read(table, key, run, first, last, bytes_max)
    except Damaged:
        if start == 0:
            raise
        return read(table, key, run, first, last, bytes_max)
    begin = bisect_right(found, first, key=lambda frame: sum(_span(frame)[:2]))
    return found[begin:], stop - len(found[-1])


def pieces(run: Buffer) -> list[tuple[int, int, str]]:
    """Take a damaged run apart.

    Returns:
        (start, stop, description of the damage, "" for a whole frame) in order. A damaged frame's
        own length counts only when a whole frame, or the end, follows there. Otherwise the rest
        is one piece.
    """
    view = memoryview(run)
    found: list[tuple[int, int, str]] = []
    at, end = 0, len(run)
    while at < end:
        stop = min(at + _length(view, at), end)
        wrong = _wrong(view[at:stop])
        if wrong and stop < end:
            after = min(stop + _length(view, stop), end)
            stop = end if _wrong(view[stop:after]) else stop
        found.append((at, stop, wrong))
        at = stop
    return found or [(0, 0, "the run is empty")]


def _length(run: memoryview, at: int) -> int:
    """Return a frame's length by its header; nothing is checked."""
    if at + frames.FRAME_SIZE_MIN > len(run):
        return frames.FRAME_SIZE_MIN
    return max(int(_SPAN.unpack_from(run, at)[2]), frames.FRAME_SIZE_MIN)


def _wrong(frame: memoryview) -> str:
    try:
        frames.check(frame)
    except ProtocolError as error:
        return str(error)
    return ""


def _walk(run: Buffer, first: int, last: int, bytes_max: int, at: int) -> tuple[int, bool]:
    """Return the end of the frames wanted by `read`, and true if a frame after `last` follows.

    Nothing is checked: a wrong length leads to an end with an incomplete frame before, which a
    later check finds.
    """
    size = 0
    while at + frames.FRAME_SIZE_MIN <= len(run) and size < bytes_max:
        sequence, count, length = _SPAN.unpack_from(run, at)
        if sequence > last:
            return at, True
        if sequence + count > first:
            size += length
        at += max(length, frames.FRAME_SIZE_MIN)
    return at, False


def _span(frame: Buffer) -> tuple[int, int, int]:
    return _SPAN.unpack_from(frame)


def entry(table: str, key: Buffer, frame: memoryview) -> Entry:
    """The entry of a checked frame of a run."""
    try:
        return make_logged_entry(frame)
    except ProtocolError as error:
        raise Damaged(table, key, str(error)) from error


def first_header(table: str, key: Buffer, run: Buffer, *, is_checked: bool = False) -> Header:
    """Return the header of a run's first frame.

    Raises:
        Damaged: The header is invalid, or `is_checked` and the frame is changed.
    """
    try:
        header = frames.header(run)
        if is_checked:
            frames.check(memoryview(run)[: header.length])
        return header
    except ProtocolError as error:
        raise Damaged(table, key, str(error)) from error


def piece(entry: Entry, first: int, last: int) -> Entry:
    """The entry of messages [first, last] of a publish entry."""
    start = entry.header.first_sequence
    frame = frames.cut(entry.frame, first - start, last - start + 1)
    # A piece only fills a hole: its op was applied elsewhere, with the step in its first body.
    return entry if frame is entry.frame else Entry(frames.header(frame), None, frame)
