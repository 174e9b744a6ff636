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
"""A run is cut before it grows past this; a larger frame is a run of its own. Large values cost
few calls; much larger ones would make a read of a few messages check too many bytes."""

_SPAN = struct.Struct("<32xQII")
"""Of a frame's header: first sequence, count, length."""


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
    """The bytes of a run of these entries."""
    return run[0].frame if len(run) == 1 else b"".join([entry.frame for entry in run])


def split(table: str, key: Buffer, run: Buffer) -> list[memoryview]:
    """The frames of a run, as views of it, each checked.

    Raises:
        Damaged: A frame is not as it was written, or there is none.
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
    """Copy the frames that hold sequences of [first, last] out of a run.

    Args:
        table: Where the run is, for errors.
        key: Its key, for errors.
        run: The run.
        first: First sequence.
        last: Last sequence.
        bytes_max: Frames after the one that reaches this are left out.
        start: Offset of a frame at or before `first`. Any other number costs time only:
            sequences rise within a run, so a checked frame that is at or before `first` has
            nothing of interest before it.

    Returns:
        The checked frames, and a good `start` for what follows; None when the run begins
        after `last`.

    Raises:
        Damaged: A frame is not as it was written.
    """
    stop, is_end = _walk(run, first, last, bytes_max, start)
    try:
        if is_end:
            # That this frame comes after `last` must not rest on a changed header.
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
    """Take a run apart in which something is damaged.

    Returns:
        (start, stop, what is wrong with it, "" of a whole frame) in order. Where a damaged frame
        ends is believed of its own header only when a whole frame, or nothing, follows there: else
        all the rest is one piece.
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
    """What a header says of its frame's length; nothing is checked."""
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
    """Where the frames end that `read` wants, and whether a frame after `last` follows there.

    Nothing is checked: a wrong length leads to an end at which the frames before are not
    whole, and that is found out.
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
    """The header of a run's first frame.

    Raises:
        Damaged: It is none, or `is_checked` and the frame is not as it was written.
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
