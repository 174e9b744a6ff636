"""CRC-32C: the known values, and that the CPU's instruction and the tables agree."""

from __future__ import annotations

import random

import pytest
import reference
from hypothesis import given
from hypothesis import strategies as st

from mirrorq._native import lib
from mirrorq.wire import frames


@pytest.mark.parametrize(
    ("data", "crc"),
    [
        (b"", 0),
        (b"123456789", 0xE3069283),
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (bytes(range(31, -1, -1)), 0x113FDB5C),
    ],
)
def test_published_values(data: bytes, crc: int) -> None:
    """The check value of the algorithm and the vectors of RFC 3720, B.4."""
    assert frames.crc32c(data) == crc
    assert lib.mq_crc32c_software(data, len(data)) == crc


@given(st.binary(max_size=700), st.integers(0, 8))
def test_all_ways_agree(data: bytes, shift: int) -> None:
    """Instruction, tables and the bit-wise loop give one number at any address."""
    expected = reference.crc32c(data)
    assert frames.crc32c(data) == expected
    assert frames.crc32c(memoryview(bytes(shift) + data)[shift:]) == expected
    assert lib.mq_crc32c_software(data, len(data)) == expected


@pytest.mark.parametrize("stream", [192, 2048])
@pytest.mark.parametrize("more", [-9, -8, -1, 0, 1, 7, 8, 9])
@pytest.mark.parametrize("times", [1, 2])
def test_ways_agree_around_the_edges_of_streams(stream: int, more: int, times: int) -> None:
    """Long inputs are read as three streams: every length about the joints is right."""
    size = 3 * stream * times + more
    data = random.Random(size).randbytes(size)
    assert frames.crc32c(data) == lib.mq_crc32c_software(data, size)
    assert frames.crc32c(data) == frames.crc32c(bytearray(data))
