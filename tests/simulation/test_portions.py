"""Random faults while what ends or comes back does so one range at a time: each edge of a portion
is met by each fault."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from harness.swarm import Swarm
from mirrorq.containers import ranges
from mirrorq.replication.master import dispatch, endings, expiry, purging, settling


@pytest.fixture(autouse=True)
def _tiny() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for module in (endings, purging, settling):
            patch.setattr(module, "PORTION", 1)
        patch.setattr(expiry, "PIECES", 1)
        patch.setattr(dispatch, "PIECES_MAX", 2)
        patch.setattr(ranges, "CHUNK_COUNT", 4)
        yield


@pytest.mark.parametrize("seed", range(2))
def test_nothing_is_lost_by_portions(seed: int) -> None:
    """Every checker of the swarm: holders that die, leases, clients, and messages by hundreds."""
    assert Swarm(seed, clients=True, holders=True, is_short=True).run().wrong == []
    assert Swarm(seed, chain=False, fan=False, is_short=True, bulk=True).run().wrong == []


def test_nothing_is_lost_by_portions_while_policies_change() -> None:
    """The same with limits, times to live and queues for what ends by them."""
    swarm = Swarm(1, policies=True, chain=False, fan=False)
    assert swarm.run().wrong == []
    assert swarm.policies is not None
    assert swarm.policies.changes >= 3
