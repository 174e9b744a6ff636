"""The golden frames of tests/data, and what each says.

`python tests/wire/golden.py` writes them anew with the reference codec. A diff in one of them
is a change of the format that is on users' disks: it needs another version number.
"""

from __future__ import annotations

from pathlib import Path

import reference
from reference import Fields

DATA = Path(__file__).parent.parent / "data"

GOLDEN = {
    "frame_unstamped.bin": Fields((b"hello",), producer=7, first_number=1),
    "frame_publish.bin": Fields(
        (b"", b"one", b"\x00\xff" * 20, "zwölf".encode()),
        flags=2,
        queue_id=11,
        epoch=3,
        lsn=42,
        first_sequence=1000,
        count=4,
        producer=9,
        first_number=501,
        settled=500,
        timestamp_us=1_700_000_000_123_456,
    ),
    "frame_properties.bin": Fields(
        (b"a", b"bc", b""),
        flags=1,
        queue_id=2**63 - 1,
        epoch=2**32 + 1,
        lsn=2**40,
        first_sequence=2**62,
        count=3,
        timestamp_us=-1,
        properties=(b"", b"\x81\xa1k\xa1v", b"p"),
    ),
    # Priority 5, delay 1500 ms, ttl 60 s.
    "frame_terms.bin": Fields(
        (b"later", b"too"),
        flags=1 | 4 | 5 << 8,
        queue_id=11,
        epoch=3,
        lsn=43,
        first_sequence=1004,
        count=2,
        producer=9,
        first_number=505,
        settled=504,
        timestamp_us=1_700_000_000_123_456,
        properties=(b"", b"p"),
        terms=(1500, 60_000),
    ),
    # MessagePack: [[[1, 5], [9, 9]]]
    "frame_ack.bin": Fields(
        (b"\x91\x92\x92\x01\x05\x92\x09\x09",), kind=2, queue_id=11, epoch=3, lsn=43
    ),
    # MessagePack: ["clean", 0, 0, [], 0]
    "frame_promoted.bin": Fields(
        (b"\x95\xa5clean\x00\x00\x90\x00",), kind=5, queue_id=11, epoch=4, lsn=44
    ),
    # MessagePack: ["max-length"]
    "frame_refusal.bin": Fields(
        (b"\x91\xaamax-length",),
        kind=6,
        queue_id=11,
        epoch=4,
        lsn=45,
        count=10,
        producer=9,
        first_number=505,
        settled=504,
    ),
}


if __name__ == "__main__":
    for name, fields in GOLDEN.items():
        (DATA / name).write_bytes(reference.encode(fields))
