"""Bytes of messages that change in the data file of a store, whose node may run meanwhile."""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from random import Random

from attrs import frozen

__all__ = ["Flip", "flip", "flip_back", "flip_some", "places_of"]

DATA_FILE = "data.mdb"
BIT = 0x04

_PUBLISH = b"mqf1\x01\x01"
"""How the frame of a put begins."""
_FRAME = struct.Struct("<24xQ8xII")
"""Of its header: lsn, count, length."""
_HEADER_SIZE = 88


@frozen
class Flip:
    """One bit that was changed."""

    frame_at: int
    header: bytes
    """Of its frame: when that is another one, the place was used anew."""
    at: int
    byte: int
    """What was there before."""


def places_of(store: Path, body: bytes) -> list[int]:
    """Where a message's body lies in the data file: also in pages that are free by now."""
    with (
        (store / DATA_FILE).open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content,
    ):
        return list(_found(content, body))


def _found(content: mmap.mmap, body: bytes) -> Iterator[int]:
    at = content.find(body)
    while at >= 0:
        yield at
        at = content.find(body, at + 1)


def flip(store: Path, body: bytes) -> int:
    """Change one bit of a message's body wherever it lies on this disk; return in how many places.

    The node reads its store through a map of this file, and sees the change at once.
    """
    places = places_of(store, body)
    file = os.open(store / DATA_FILE, os.O_RDWR)
    try:
        for at in places:
            middle = at + len(body) // 2
            (byte,) = os.pread(file, 1, middle)
            os.pwrite(file, bytes([byte ^ BIT]), middle)
    finally:
        os.close(file)
    return len(places)


def flip_some(store: Path, chance: Random, count: int) -> list[Flip]:
    """Change one bit in the bodies of some of the newest frames in a data file."""
    with (
        (store / DATA_FILE).open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content,
    ):
        found = []
        for frame_at in _found(content, _PUBLISH):
            header = content[frame_at : frame_at + _HEADER_SIZE]
            if len(header) < _HEADER_SIZE:
                continue
            lsn, messages, length = _FRAME.unpack_from(header)
            begin = _HEADER_SIZE + 4 * (messages + 1)
            if begin < length <= len(content) - frame_at:
                at = frame_at + chance.randrange(begin, length)
                found.append((lsn, Flip(frame_at, header, at, content[at])))
        found.sort(key=lambda pair: pair[0])
        chosen = [one for _, one in found[-count:]]
    _change(store, chosen)
    return chosen


def flip_back(store: Path, flips: list[Flip]) -> None:
    """Undo those whose frames still lie where they were."""
    with (store / DATA_FILE).open("rb") as file:
        left = []
        for one in flips:
            file.seek(one.frame_at)
            is_same = file.read(_HEADER_SIZE) == one.header
            file.seek(one.at)
            if is_same and file.read(1) == bytes([one.byte ^ BIT]):
                left.append(one)
    _change(store, left)


def _change(store: Path, flips: list[Flip]) -> None:
    file = os.open(store / DATA_FILE, os.O_RDWR)
    try:
        for one in flips:
            (byte,) = os.pread(file, 1, one.at)
            os.pwrite(file, bytes([byte ^ BIT]), one.at)
    finally:
        os.close(file)
