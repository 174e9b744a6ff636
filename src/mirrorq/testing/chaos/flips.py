"""Bytes of messages that change in the data file of a store, whose node may run meanwhile."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from pathlib import Path

__all__ = ["flip", "places_of"]

DATA_FILE = "data.mdb"


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
            os.pwrite(file, bytes([byte ^ 0x04]), middle)
    finally:
        os.close(file)
    return len(places)
