"""The frames of tests/data are on users' disks: they are read, and made, the same for ever."""

from __future__ import annotations

import pytest
import reference
from golden import DATA, GOLDEN
from test_frames import header_of, make

from mirrorq.protocol.ops import AckOp, PromotedOp, RefusalOp
from mirrorq.wire import frames, ops


@pytest.mark.parametrize("name", GOLDEN)
def test_made_to_the_byte(name: str) -> None:
    """mirrorq and the reference codec make exactly the golden bytes."""
    golden = (DATA / name).read_bytes()
    assert reference.encode(GOLDEN[name]) == golden
    assert make(GOLDEN[name]) == golden


@pytest.mark.parametrize("name", GOLDEN)
def test_read_to_the_field(name: str) -> None:
    """Each golden frame says what it said when it was made."""
    golden, fields = (DATA / name).read_bytes(), GOLDEN[name]
    assert frames.check(golden) == header_of(fields, len(golden))
    assert frames.split(golden) == list(fields.values)
    properties = frames.split_properties(golden)
    assert properties == (None if fields.properties is None else list(fields.properties))


def test_payloads() -> None:
    """Golden ops are read as the ops they are."""
    payloads = {
        name: ops.make_entry((DATA / name).read_bytes()).payload
        for name in GOLDEN
        if GOLDEN[name].kind != reference.PUBLISH
    }
    assert payloads == {
        "frame_ack.bin": AckOp(((1, 5), (9, 9))),
        "frame_promoted.bin": PromotedOp("clean"),
        "frame_refusal.bin": RefusalOp("max-length"),
    }
