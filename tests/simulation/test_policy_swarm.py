"""Random faults, and policies, masters and members that change all the time beside them."""

from __future__ import annotations

import pytest

from harness.swarm import Swarm


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_nothing_is_lost_while_copies_and_masters_move(seed: int) -> None:
    """Every checker of the swarm, with several policies set and masters moved in each run."""
    swarm = Swarm(seed, policies=True, chain=False, fan=False)
    report = swarm.run()
    assert report.wrong == []
    assert swarm.policies is not None
    assert swarm.policies.changes >= 3


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_nothing_is_lost_while_nodes_join_and_leave(seed: int) -> None:
    """The same with nodes that join, go for good and are forgotten."""
    swarm = Swarm(seed, members=True, chain=False, fan=False)
    report = swarm.run()
    assert report.wrong == []
    assert any(kind == "node joins" for kind in report.faults)


@pytest.mark.slow
def test_what_an_unclean_promotion_loses_is_counted() -> None:
    """Copies that are not in sync are promoted; no more is missing than their masters say."""
    swarm = Swarm(5, unclean=True, chain=False, fan=False)
    report = swarm.run()
    assert report.wrong == []
    assert report.faults["unclean promotion"] > 0


def test_what_waited_across_an_unclean_promotion_comes_flagged() -> None:
    """The end of a delay and a delivery are lost with a past: the next one says redelivered."""
    report = Swarm(4, unclean=True, chain=False, fan=False, pages=False).run()
    assert report.wrong == []
    assert report.faults["unclean promotion"] > 0
