"""A queue that is deeper than one message between nodes is large: it is joined all the same."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from tests.kit import DEADLINE_S, peers_of, until

from mirrorq import Config, Node

pytestmark = [pytest.mark.real, pytest.mark.soak]

COUNT = 400_000
"""Their sizes alone are larger than what one message may carry here."""
BATCH = 10_000
PATIENT = {"failure_ms": 4000, "session_expiry_ms": 4000, "election_ms": 2000}
CONFIG = Config(message_bytes_max=64 << 10, frame_bytes_max=512 << 10, **PATIENT)


def test_a_node_joins_a_queue_whose_state_is_larger_than_a_message(tmp_path: Path) -> None:
    """Messages of different sizes: 16 bytes of state each. All of them are on both disks."""
    random = Random(1)
    peers = peers_of("ab")
    with Node("a", path=tmp_path / "a", listen=peers["a"], config=CONFIG) as first:
        jobs = first.queue("jobs")
        for _ in range(COUNT // BATCH):
            jobs.put_many([bytes(random.randint(1, 59)) for _ in range(BATCH)], timeout=DEADLINE_S)
        (replica,) = first._driver.engine.replicas.values()
        assert replica.state.bytes_about > CONFIG.frame_bytes_max + (4 << 20)
        joins = peers["a"]
        with Node("b", path=tmp_path / "b", listen=peers["b"], join=joins, config=CONFIG):
            until(lambda: jobs.status().synchronised_mirrors == ("b",))
            assert jobs.status().messages == COUNT
