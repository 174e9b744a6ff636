"""Whole clusters under random faults, on virtual time."""

from __future__ import annotations

import pytest

from mirrorq.testing.__main__ import describe
from mirrorq.testing.swarm import Swarm


@pytest.mark.parametrize("seed", range(40))
def test_nothing_is_lost_whatever_breaks(seed: int) -> None:
    """After faults, heal and drain every checker is content."""
    report = Swarm(seed).run()
    assert not report.wrong, describe(report)


def test_the_same_seed_gives_the_same_run() -> None:
    """A failing seed can be replayed: two runs of one seed have one trace."""
    assert Swarm(7).run().trace == Swarm(7).run().trace
