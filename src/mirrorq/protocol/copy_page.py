"""A page of the live messages in one copy of a queue, and its wire form. Pure data."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from attrs import frozen

from mirrorq.errors import ProtocolError

Piece = tuple[int, int, int]
"""(first, last, count of the next delivery) of neighbouring live messages."""
PIECE_BYTES = 24


@frozen
class CopyPage:
    """A part of a requested range."""

    next: int
    """The next sequence to read: behind the requested range after the last page."""
    pieces: tuple[Piece, ...]
    frames: tuple[bytes, ...] = ()
    """Frames with the bodies of the pieces, each frame for a single piece."""


def pack_pieces(pieces: Sequence[Piece]) -> bytes:
    """Twenty-four bytes a piece, little-endian as everything of mirrorq."""
    return array("Q", [number for piece in pieces for number in piece]).tobytes()


def unpack_page(value: int, data: bytes, frames: tuple[bytes, ...]) -> CopyPage:
    """Return the page in a node's answer.

    Raises:
        ProtocolError: the bytes are no pieces.
    """
    if len(data) % PIECE_BYTES:
        raise ProtocolError(f"pieces of {len(data)} bytes: not a multiple of {PIECE_BYTES}")
    numbers = array("Q")
    numbers.frombytes(data)
    rows = iter(numbers)
    return CopyPage(value, tuple(zip(rows, rows, rows, strict=True)), frames)
