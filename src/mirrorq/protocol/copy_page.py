"""A page of what lives in one copy of a queue, and its way over the wire. Pure data."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from attrs import frozen

from mirrorq.errors import ProtocolError

Piece = tuple[int, int, int]
"""(first, last, count of the next delivery) of neighbours that live."""
PIECE_BYTES = 24


@frozen
class CopyPage:
    """A part of what was asked for."""

    next: int
    """The sequence to go on from: behind what was asked for when that is all."""
    pieces: tuple[Piece, ...]
    frames: tuple[bytes, ...] = ()
    """They hold the bodies of the pieces, each of one piece only."""


def pack_pieces(pieces: Sequence[Piece]) -> bytes:
    """Twenty-four bytes a piece, little-endian as everything of mirrorq."""
    return array("Q", [number for piece in pieces for number in piece]).tobytes()


def unpack_page(value: int, data: bytes, frames: tuple[bytes, ...]) -> CopyPage:
    """Read what a node has answered.

    Raises:
        ProtocolError: these are no pieces.
    """
    if len(data) % PIECE_BYTES:
        raise ProtocolError(f"pieces of {len(data)} bytes: not a multiple of {PIECE_BYTES}")
    numbers = array("Q")
    numbers.frombytes(data)
    rows = iter(numbers)
    return CopyPage(value, tuple(zip(rows, rows, rows, strict=True)), frames)
