"""What the two workers write down for the check: fixed records in plain files.

Files, not pipes: the check wants every delivery, and the workers must not wait for a reader.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_CONFIRMED = struct.Struct("<QQQQ")
_TAKEN = struct.Struct("<qQ?16s")


class Confirmed(NamedTuple):
    """One confirmed `put_many`."""

    first_number: int
    """Number of its first row."""
    rows: int
    first_sequence: int
    at_ms: int
    """Time of the confirm, on the machine's clock since boot: equal in all processes."""


class Taken(NamedTuple):
    """One delivery."""

    number: int
    """Number of the row in the body; -1 without a number."""
    sequence: int
    redelivered: bool
    digest: bytes


def pack_confirmed(record: Confirmed) -> bytes:
    """Return the bytes of a record."""
    return _CONFIRMED.pack(*record)


def pack_taken(record: Taken) -> bytes:
    """Return the bytes of a record."""
    return _TAKEN.pack(*record)


def read_confirmed(path: Path) -> Iterator[Confirmed]:
    """Yield the records of a producer, in the order in which the confirms came."""
    return map(Confirmed._make, _CONFIRMED.iter_unpack(_whole(path, _CONFIRMED.size)))


def read_taken(path: Path) -> Iterator[Taken]:
    """Yield the records of a consumer, in the order of delivery."""
    return map(Taken._make, _TAKEN.iter_unpack(_whole(path, _TAKEN.size)))


def _whole(path: Path, size: int) -> bytes:
    """Return the whole records of a file, without the partial record of a worker that was ended."""
    content = path.read_bytes() if path.exists() else b""
    return content[: len(content) // size * size]
