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
    """One `put_many` that was confirmed."""

    first_number: int
    """Number of its first row."""
    rows: int
    first_sequence: int
    at_ms: int
    """When the confirm came, on the machine's clock since boot: equal in all processes."""


class Taken(NamedTuple):
    """One delivery."""

    number: int
    """Number of the row that the body claims to be; -1 when it claims none."""
    sequence: int
    redelivered: bool
    digest: bytes


def pack_confirmed(record: Confirmed) -> bytes:
    """The bytes of one record."""
    return _CONFIRMED.pack(*record)


def pack_taken(record: Taken) -> bytes:
    """The bytes of one record."""
    return _TAKEN.pack(*record)


def read_confirmed(path: Path) -> Iterator[Confirmed]:
    """Yield the records of a producer, in the order in which the confirms came."""
    return map(Confirmed._make, _CONFIRMED.iter_unpack(_whole(path, _CONFIRMED.size)))


def read_taken(path: Path) -> Iterator[Taken]:
    """Yield the records of a consumer, in the order of delivery."""
    return map(Taken._make, _TAKEN.iter_unpack(_whole(path, _TAKEN.size)))


def _whole(path: Path, size: int) -> bytes:
    """A worker that was ended while it wrote leaves part of a record: that is left out."""
    content = path.read_bytes() if path.exists() else b""
    return content[: len(content) // size * size]
